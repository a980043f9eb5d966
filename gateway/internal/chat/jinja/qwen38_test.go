package jinja_test

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// TestQwen38 renders the template of Qwen3.8 with and without a reasoning effort (testdata/qwen38.py). The template is outside the repository.
func TestQwen38(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set: it names a folder with chat_templates")
	}
	source, err := os.ReadFile(filepath.Join(root, "chat_templates", "Qwen3.8.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	template, err := jinja.Parse("Qwen3.8", string(source))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join("testdata", "qwen38.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]struct {
		Vars   json.RawMessage
		Out    *string
		Raised string
		Err    string
	}
	if err := json.NewDecoder(in).Decode(&cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 33 {
		t.Fatalf("%d cases", len(cases))
	}
	for name, want := range cases {
		t.Run(name, func(t *testing.T) {
			vars, err := jinja.FromJSON(want.Vars)
			if err != nil {
				t.Fatal(err)
			}
			got, err := template.Render(t.Context(), vars.(*jinja.Dict), jinja.Options{Clock: goldenClock})
			var failed *jinja.Error
			switch {
			case want.Out != nil:
				if err != nil || got != *want.Out {
					t.Errorf("%v, got\n%s\nwant\n%s", err, got, *want.Out)
				}
			case want.Raised != "":
				if !errors.As(err, &failed) || !strings.HasSuffix(err.Error(), ": "+want.Raised) {
					t.Errorf("error %v, want %q", err, want.Raised)
				}
			case !errors.As(err, &failed) || failed.Class != want.Err:
				t.Errorf("error %v, want %s", err, want.Err)
			}
		})
	}
}
