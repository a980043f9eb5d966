package fake_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/plugintest"
	"github.com/tinsmith/tinsmith/plugins/plugintest/elsewhere"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

// TestConformanceOnAnotherMachine puts TCP, mutual TLS, a lease and the files' streams between the tests and the backend, whose data directory and model's are not the tests'.
func TestConformanceOnAnotherMachine(t *testing.T) {
	model := t.TempDir()
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		b := fake.New(fake.Options{})
		s := load(t, elsewhere.Serve(t, b, model).Attach(t, 1).Backend())
		s.Starve, s.Shrink = b.Starve, b.Shrink
		return s
	})
}
