// Package elsewhere serves a backend to tests as to a gateway on another machine: over TCP with mutual TLS, under a lease, and with a data directory of its own.
package elsewhere

import (
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/authority"
)

// Machine has a backend.
type Machine struct {
	address string
	client  plugins.TLSFiles
}

// Serve serves a backend that has not been loaded, and may load one model, until the end of the test. The test fails if its process would end itself.
func Serve(t testing.TB, b plugins.Backend, model string) *Machine {
	t.Helper()
	ca := authority.New(t)
	l, err := plugins.Listen(b, plugins.ListenOptions{Listen: "127.0.0.1:0", TLS: ca.Issue(t, "backend"), Data: t.TempDir(), Models: []string{model}, Keep: 1 << 20, Exit: func(err error) { t.Error(err) }})
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
	return &Machine{l.Address(), ca.Issue(t, "gateway")}
}

// Attach takes the backend under a number, until Close or the end of the test.
func (m *Machine) Attach(t testing.TB, number uint64) *plugins.Attachment {
	t.Helper()
	a, err := plugins.Attach(t.Context(), plugins.AttachRequest{Address: m.address, TLS: m.client, Gateway: "test", Number: number})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}
