package selftest

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	r := NewReport("v1")
	r.Model = "a|b<script>"
	r.Fill([]Check{
		{Name: "order", Promise: "in order", Result: passed, Compared: 3},
		{Name: "crowd", Promise: "alone", Result: differs, Difference: &Difference{"step 2, position 7", "-1", "-2"}},
		{Name: "export", Promise: "same", Result: failed, Error: "no room"},
		{Name: "reference", Promise: "file", Result: skipped, Detail: "none"},
	}, state{Device: "cpu", DType: "float32", Arithmetic: "cpu-1"})
	if r.Passed {
		t.Error("it passed")
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "2 of 4") || !strings.Contains(err.Error(), "crowd differs") || !strings.Contains(err.Error(), "export could not be checked") {
		t.Errorf("error %v", err)
	}
	for name, text := range map[string]string{"text": r.Text(), "markdown": r.Markdown()} {
		for _, want := range []string{"step 2, position 7", "-1", "-2", "no room", "1 passed, 1 differ, 1 could not be checked, 1 skipped", "cpu-1", "float32"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q:\n%s", name, want, text)
			}
		}
		if lines := strings.Count(text, "\n"); lines > 60 {
			t.Errorf("%s has %d lines, which is more than a page", name, lines)
		}
	}
	if text := r.Markdown(); strings.Contains(text, "<script>") || strings.Contains(text, "a|b") {
		t.Errorf("names are markup:\n%s", text)
	}
	r.Fill([]Check{{Name: "order", Result: passed}, {Name: "reference", Result: skipped}}, state{})
	if !r.Passed || r.Err() != nil {
		t.Errorf("passed %v, error %v", r.Passed, r.Err())
	}
}
