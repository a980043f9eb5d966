package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
)

// A plugin that does not exist is refused before anything starts, with the key of the configuration and what there is.
func TestUnknownPlugin(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"dataparallel", "single"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, dir, plugin string
		words             []string // of the refusal; none: it is accepted
	}{
		{"there", dir, "single", nil},
		{"mistyped", dir, "dataparalel", []string{"model a/b: backend.plugin: ", `"dataparalel"`, dir, "[dataparallel single]"}},
		{"no folder", filepath.Join(dir, "none"), "single", []string{"model a/b: backend.plugin: ", `"single"`, "none", "[]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			model := config.DefaultModel()
			model.Name, model.Plugin = "a/b", c.plugin
			_, err := New(Config{Models: []*catalog.Model{{Model: model}}, PluginDir: c.dir, DataDir: t.TempDir()})
			if (err != nil) != (c.words != nil) {
				t.Fatal(err)
			}
			for _, word := range c.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
		})
	}
}
