package plugins

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Models of a hub are found by the gateway's program, here a script that answers for it. Others stay as they are.
func TestFetchModels(t *testing.T) {
	for _, c := range []struct {
		name, script, model string
		want                string // the model's directory
		refused             string
	}{
		{"downloaded", `[ "$*" = "fetch -- hf://org/m@v1" ] && echo /cache/m`, "hf://org/m@v1", "/cache/m", ""},
		{"a directory", `exit 1`, "/models/m", "/models/m", ""},
		{"the hub refuses", `echo "no such repository" >&2; exit 1`, "hf://org/m", "", "model hf://org/m: "},
		{"an answer that is no directory", `echo downloading; echo m`, "hf://org/m", "", "no directory"},
		{"no program", "", "hf://org/m", "", "PATH"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			if c.script != "" {
				if err := os.WriteFile(filepath.Join(dir, "tinsmith"), []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			models := []string{c.model}
			err := fetchModels(models)
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Fatalf("got %v, want %q", err, c.refused)
			}
			if err == nil && models[0] != c.want {
				t.Errorf("%s became %s", c.model, models[0])
			}
		})
	}
}
