package attach

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/authority"
)

// A model of which an adapter has 36 MB.
const benchConfig = `{"vocab_size": 16384, "hidden_size": 256, "max_rank": 512}`

// benchBackend is the fake backend in a process of its own, one that the gateway starts or one that it attaches to over loopback with TLS.
func benchBackend(b *testing.B, remote bool) plugins.Backend {
	b.Helper()
	dir := b.TempDir()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	program := filepath.Join(dir, pluginName)
	if err := os.Symlink(self, program); err != nil {
		b.Fatal(err)
	}
	c := supervisor.Config{
		Name: "m", Program: program, LockFile: filepath.Join(dir, "lock"), Load: plugins.LoadRequest{Name: "m", Config: json.RawMessage(benchConfig)}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		FirstPause: 10 * time.Millisecond, LongestPause: 100 * time.Millisecond,
	}
	if remote {
		model := filepath.Join(dir, "model")
		if err := errors.Join(os.Mkdir(model, 0o700), os.WriteFile(filepath.Join(model, "config.json"), []byte("{}"), 0o600)); err != nil {
			b.Fatal(err)
		}
		ca := authority.New(b)
		files, address := ca.Issue(b, "backend"), freeAddress(b)
		p := exec.CommandContext(b.Context(), program, "serve", "--listen", address, "--data", filepath.Join(dir, "data"), "--model", model, "--keep-mib", "0", "--tls-cert", files.Cert, "--tls-key", files.Key, "--client-ca", files.CA)
		if err := p.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = p.Process.Kill()
			_ = p.Wait()
		})
		c.Attach = To(Config{Address: address, TLS: ca.Issue(b, "gateway"), ModelDir: model, Leases: NewLeases("bench", 1)})
	}
	s, err := supervisor.New(c)
	if err != nil {
		b.Fatal(err)
	}
	s.Start(b.Context())
	b.Cleanup(s.Close)
	if err := s.Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	backend, _, err := s.Backend()
	if err != nil {
		b.Fatal(err)
	}
	return backend
}

// freeAddress is one on this machine that nobody listens on.
func freeAddress(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// BenchmarkBackend is what a call takes, and how fast an adapter of 36 MB is saved, which ends on the gateway's disk, and loaded, which begins there.
func BenchmarkBackend(b *testing.B) {
	for _, name := range []string{"local", "remote"} {
		b.Run(name, func(b *testing.B) {
			backend := benchBackend(b, name == "remote")
			b.Run("call", func(b *testing.B) {
				for b.Loop() {
					if err := backend.Unpin(b.Context(), plugins.UnpinRequest{Adapter: "a", Name: "none"}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "µs")
			})
			if _, err := backend.CreateAdapter(b.Context(), plugins.CreateAdapterRequest{Adapter: "a", Config: plugins.AdapterConfig{Rank: 512, TrainAttention: true, TrainMLP: true, TrainUnembed: true}}); err != nil {
				b.Fatal(err)
			}
			path := filepath.Join(b.TempDir(), "checkpoint")
			var bytes int64
			b.Run("save", func(b *testing.B) {
				for b.Loop() {
					if err := os.RemoveAll(path); err != nil {
						b.Fatal(err)
					}
					res, err := backend.SaveAdapter(b.Context(), plugins.SaveAdapterRequest{Adapter: "a", Version: plugins.LatestVersion, Path: path})
					if err != nil {
						b.Fatal(err)
					}
					bytes = res.Bytes
				}
				b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N), "ms")
				b.ReportMetric(float64(bytes)/1e6, "MB")
			})
			b.Run("load", func(b *testing.B) {
				for b.Loop() {
					if _, err := backend.LoadAdapter(b.Context(), plugins.LoadAdapterRequest{Adapter: "b", Path: path, Frozen: true}); err != nil {
						b.Fatal(err)
					}
					if err := backend.DeleteAdapter(b.Context(), "b"); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N), "ms")
			})
		})
	}
}
