package fake_test

import (
	"context"
	"encoding/json"
	"net"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

const config = `{"vocab_size": 64, "max_context_length": 64, "max_rank": 8}`

func load(t *testing.T, b plugins.Backend) plugintest.Subject {
	t.Helper()
	m, err := b.Load(t.Context(), plugins.LoadRequest{Name: "test", Config: json.RawMessage(config)}, func(plugins.LoadProgress) {})
	if err != nil {
		t.Fatal(err)
	}
	return plugintest.Subject{Backend: b, Model: m}
}

func TestConformance(t *testing.T) {
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		b := fake.New(fake.Options{})
		s := load(t, b)
		s.Starve, s.Shrink = b.Starve, b.Shrink
		return s
	})
}

// TestConformanceOverTheTransport puts client and server of package plugins between the tests and the backend.
func TestConformanceOverTheTransport(t *testing.T) {
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		listener := bufconn.Listen(1 << 16)
		server := grpc.NewServer(plugins.ServerOptions()...)
		b := fake.New(fake.Options{})
		plugins.Register(server, b)
		go func() { _ = server.Serve(listener) }()
		options := append(plugins.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(_ context.Context, _ string) (net.Conn, error) { return listener.Dial() }))
		conn, err := grpc.NewClient("passthrough:///backend", options...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = conn.Close()
			server.Stop()
		})
		s := load(t, plugins.NewClient(conn, nil))
		s.Starve, s.Shrink = b.Starve, b.Shrink
		return s
	})
}
