package fleet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
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

// Each backend of a model has a name, a lock and scratch space of its own; the model has failed when all of them have.
func TestPool(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"single", "fake"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Parse("test.yaml", []byte("models:\n  - {name: a, path: /a, backends: [{}, {plugin: fake}]}\n  - {name: b, path: /b}\n  - {name: c, path: /c, replicas: 2}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var models []*catalog.Model
	for _, m := range cfg.Models {
		models = append(models, &catalog.Model{Model: m})
	}
	models[2].Err = errors.New("no such directory")
	f, err := New(Config{Models: models, PluginDir: dir, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range f.States() {
		got = append(got, s.Serves+" "+s.Name)
	}
	if want := []string{"a a#1", "a a#2", "b b", "c c#1", "c c#2"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if f.Failed("a") != nil || f.Failed("c") == nil || f.Idle("a") == "" {
		t.Errorf("a: %v, c: %v, idle: %q", f.Failed("a"), f.Failed("c"), f.Idle("a"))
	}
	if _, err := f.Backend(t.Context(), "a"); err == nil {
		t.Error("the name of a model with several backends names one of them")
	}
	if _, err := f.Backend(t.Context(), "c#2"); err == nil || !strings.Contains(err.Error(), "no such directory") {
		t.Errorf("%v", err)
	}
}
