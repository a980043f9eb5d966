package engine

import (
	"context"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
)

// subject loads the test model through b.
func subject(t *testing.T, b plugins.Backend) plugintest.Subject {
	t.Helper()
	dir := t.TempDir()
	if err := writeTiny(dir); err != nil {
		t.Fatal(err)
	}
	info, err := b.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny"}, func(plugins.LoadProgress) {})
	if err != nil {
		t.Fatal(err)
	}
	return plugintest.Subject{Backend: b, Model: info}
}

func open(t testing.TB) *Engine {
	e := New(testOptions())
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// starvable gives an engine whose device can be told to have no memory.
func starvable(t *testing.T) (e *Engine, starve func(starved bool)) {
	t.Helper()
	var f *faulty
	e = openOn(t, func(d *faulty) { f = d })
	return e, func(starved bool) {
		hook(t, e, func() {
			f.alloc = func(int) error {
				if starved {
					return fmt.Errorf("no room in the test: %w", tensor.ErrMemory)
				}
				return nil
			}
		})
	}
}

// shrinkable lets an engine be told that no adapter fits into the memory for them.
func shrinkable(t *testing.T, e *Engine) (shrink func(small bool)) {
	return func(small bool) {
		hook(t, e, func() {
			e.loaded.adapters.limit = e.loaded.plan.adapters
			if small {
				e.loaded.adapters.limit = 1
			}
		})
	}
}

func TestContract(t *testing.T) {
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		e, starve := starvable(t)
		s := subject(t, e)
		s.Starve, s.Shrink = starve, shrinkable(t, e)
		return s
	})
}

// The same with the transport between the tests and the engine.
func TestContractOverTheTransport(t *testing.T) {
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		e, starve := starvable(t)
		s := subject(t, overTransport(t, e, bufconn.Listen(1<<16)))
		s.Starve, s.Shrink = starve, shrinkable(t, e)
		return s
	})
}

// overTransport serves a backend at a listener, and gives a client of it.
func overTransport(t testing.TB, b plugins.Backend, listener interface {
	net.Listener
	Dial() (net.Conn, error)
}) plugins.Backend {
	server := grpc.NewServer(plugins.ServerOptions()...)
	plugins.Register(server, b)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///backend", append(plugins.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(_ context.Context, _ string) (net.Conn, error) { return listener.Dial() }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return plugins.NewClient(conn, nil)
}
