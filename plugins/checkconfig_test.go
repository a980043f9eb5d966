package plugins

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checking is a backend that knows one key.
type checking struct{ Backend }

func (checking) CheckConfig(section json.RawMessage) error {
	var values map[string]any
	if err := json.Unmarshal(section, &values); err != nil {
		return err
	}
	if _, ok := values["threads"]; !ok && len(values) > 0 {
		return Invalidf("backend.thread", "is not a setting")
	}
	return nil
}

func TestServeCheck(t *testing.T) {
	for _, c := range []struct{ name, section, want string }{
		{"right", `{"threads": 1}`, `{"field":"","message":""}`},
		{"unknown key", `{"thread": 1}`, `{"field":"backend.thread","message":"is not a setting"}`},
		{"no JSON", `{`, `{"field":"","message":"unexpected end of JSON input"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			if err := serveCheck(checking{}, strings.NewReader(c.section), &out); err != nil || strings.TrimSpace(out.String()) != c.want {
				t.Errorf("%s %v, want %s", out.String(), err, c.want)
			}
		})
	}
	var out strings.Builder
	if err := serveCheck(struct{ Backend }{}, strings.NewReader("{}"), &out); err == nil || out.Len() > 0 {
		t.Errorf("a backend that cannot tell: %v, %q", err, out.String())
	}
}

// TestCheckConfig: programs of every kind, also such as know nothing of checks.
func TestCheckConfig(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         error
		message      string
	}{
		{"right", `[ "$1" = check-config ] && [ "$(cat)" = '{"a":1}' ] && echo '{"field":"","message":""}'`, nil, ""},
		{"wrong", `echo '{"field":"backend.a","message":"is wrong"}'`, ErrInvalid, "backend.a: is wrong"},
		{"of an earlier version", `echo "this program is a backend plugin" >&2; exit 1`, ErrUnchecked, ""},
		{"that says something else", `echo hello`, ErrUnchecked, ""},
		{"that says nothing", `true`, ErrUnchecked, ""},
		{"that says too much", `yes`, ErrUnchecked, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "plugin")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			err := CheckConfig(t.Context(), path, os.Environ(), json.RawMessage(`{"a":1}`))
			if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.message) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	if err := CheckConfig(t.Context(), filepath.Join(t.TempDir(), "none"), nil, nil); err == nil || errors.Is(err, ErrUnchecked) {
		t.Errorf("no program: %v", err)
	}
}
