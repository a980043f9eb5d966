package fake_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
	"github.com/tinsmith/tinsmith/plugins/plugintest/authority"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

// TestConformanceOnAnotherMachine puts TCP, mutual TLS, a lease and the files' streams between the tests and the backend, whose data directory and model's are not the tests'.
func TestConformanceOnAnotherMachine(t *testing.T) {
	ca := authority.New(t)
	server, client := ca.Issue(t, "backend"), ca.Issue(t, "gateway")
	model := t.TempDir()
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		b := fake.New(fake.Options{})
		l, err := plugins.Listen(b, plugins.ListenOptions{Listen: "127.0.0.1:0", TLS: server, Data: t.TempDir(), Models: []string{model}, Keep: 1 << 20, Exit: func(err error) { t.Error(err) }})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- l.Serve() }()
		t.Cleanup(func() {
			l.Stop("the test is over")
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
		a, err := plugins.Attach(t.Context(), plugins.AttachRequest{Address: l.Address(), TLS: client, Gateway: "test", Number: 1, Plugin: "fake"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		s := load(t, a.Backend())
		s.Starve, s.Shrink = b.Starve, b.Shrink
		return s
	})
}
