package cmd

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

func TestLocalURL(t *testing.T) {
	for _, c := range []struct {
		name string
		addr net.TCPAddr
		want string
	}{
		{"loopback", net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, "http://127.0.0.1:80"},
		{"every interface", net.TCPAddr{IP: net.IPv4zero, Port: 80}, "http://127.0.0.1:80"},
		{"every interface of IPv6", net.TCPAddr{IP: net.IPv6unspecified, Port: 80}, "http://127.0.0.1:80"},
		{"one interface of IPv6", net.TCPAddr{IP: net.IPv6loopback, Port: 80}, "http://[::1]:80"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := localURL("http", &c.addr); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestServeConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, model, listen string
		served              string   // the model's name
		words               []string // of the refusal
	}{
		{"directory", dir, "", "folder", nil},
		{"directory that is missing", filepath.Join(dir, "none"), "", "none", nil},
		{"relative path of nothing", "./none", "", "none", nil},
		{"name in the cache", "org/name", "", "org/name", nil},
		{"download", "hf://org/name@main", "", "org/name", nil},
		{"download of nothing", "hf://", "", "", []string{"--model hf://: ", "not a model name"}},
		{"address", dir, "127.0.0.1", "", []string{"--model " + dir + ": listen: ", "not host:port"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := serveConfig("", c.model, c.listen)
			if err == nil && (c.words != nil || cfg.Models[0].Name != c.served || cfg.Models[0].Path != c.model) {
				t.Errorf("%+v", cfg.Models)
			}
			if err != nil && c.words == nil {
				t.Error(err)
			}
			for _, word := range c.words {
				if err != nil && !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
		})
	}
}

// An alias of the command line is one more name of the only model; it is there still when the file is read again, and where there are more models it is refused.
func TestServeAliases(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	one := "models: [{name: a, path: x, aliases: [b]}]\n"
	if err := os.WriteFile(file, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := serveConfig(file, "", "", "c", "d/e")
	if err != nil || strings.Join(cfg.Models[0].Aliases, " ") != "b c d/e" {
		t.Fatalf("%v %+v", err, cfg.Models)
	}
	if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	if _, err := reload(t.Context(), cfg, configured{make(chan string, 1)}); err != nil {
		t.Errorf("read again: %v", err)
	}
	if _, err := serveConfig(file, "", "", "a"); err == nil || !strings.Contains(err.Error(), "\"a\"") {
		t.Errorf("a name that is taken: %v", err)
	}
	if err := os.WriteFile(file, []byte("models: [{name: a, path: x}, {name: b, path: x}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := serveConfig(file, "", "", "c"); err == nil || !strings.Contains(err.Error(), "has 2 models") {
		t.Errorf("two models: %v", err)
	}
}

// A data directory that another process has is waited for, /healthz says so, and the waiting one leaves the other's address alone.
func TestAwaitStore(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	other, err := store.Open(t.Context(), store.Options{Dir: cfg.DataDir})
	if err != nil {
		t.Fatal(err)
	}
	h := &health{models: []config.Model{{Name: "m"}}}
	opened := make(chan error, 1)
	var records store.Store
	go func() {
		var err error
		records, _, err = awaitStore(t.Context(), cfg, turn{}, h, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80})
		opened <- err
	}()
	for deadline := time.Now().Add(time.Minute); h.get().Storage.State != string(store.Locked) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	said := besideAnother(cfg.DataDir)
	for _, word := range []string{cfg.DataDir, "another server uses", "stop it", "--data-dir DIR"} {
		if !strings.Contains(said, word) {
			t.Errorf("%q does not say %q", said, word)
		}
	}
	if got := h.get(); got.Storage.State != string(store.Locked) || got.Storage.Reason == "" || got.Status != "degraded" {
		t.Errorf("health %+v", got)
	}
	if found, _ := filepath.Glob(filepath.Join(cfg.DataDir, "address")); len(found) != 0 {
		t.Error("the waiting process wrote its address")
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	if got := h.get(); got.Storage.State != "ok" || got.Status != "starting" {
		t.Errorf("health %+v", got)
	}
}

// A signal ends the server with status 0, and the log tells which one, when the end begins and when it is over. Here it waits for a data directory that another process has.
func TestEndBySignal(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		name   string
	}{{syscall.SIGTERM, "terminated"}, {syscall.SIGINT, "interrupt"}} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			other, err := store.Open(t.Context(), store.Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, []byte("listen: 127.0.0.1:0\ndata_dir: "+dir+"\nmodels: [{name: a, path: x}]\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			log, err := os.Create(filepath.Join(t.TempDir(), "log"))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			logged := func() string {
				b, err := os.ReadFile(log.Name())
				if err != nil {
					t.Error(err)
				}
				return string(b)
			}
			arguments, stderr, logger := os.Args, os.Stderr, slog.Default()
			os.Args, os.Stderr = []string{"tinsmith", "serve", "--config", file}, log
			defer func() {
				os.Args, os.Stderr = arguments, stderr
				slog.SetDefault(logger)
			}()
			status := make(chan int, 1)
			go func() { status <- Main("test") }()
			for deadline := time.Now().Add(time.Minute); !strings.Contains(logged(), "waiting for the data directory"); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the server does not wait: %s", logged())
				}
			}
			if err := syscall.Kill(os.Getpid(), c.signal); err != nil {
				t.Fatal(err)
			}
			if code := <-status; code != 0 {
				t.Errorf("status %d", code)
			}
			begins, ends := strings.Index(logged(), `msg="the server is ending" signal="`+c.name), strings.Index(logged(), `msg="the server has ended" signal="`+c.name)
			if begins < 0 || ends < begins {
				t.Errorf("the log: %s", logged())
			}
		})
	}
}

// What waiting does not change ends the start.
func TestAwaitStoreOfAnotherFormat(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Dir: cfg.DataDir})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Commit(t.Context(), store.Batch{Put: []store.Record{{Collection: "store", Key: "format", Value: []byte("0")}}}), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := awaitStore(t.Context(), cfg, turn{}, &health{}, &net.TCPAddr{}); !errors.Is(err, store.ErrFormat) {
		t.Errorf("got %v", err)
	}
}

// Whoever made the data directory, and however wide, nobody else reads what is in it.
func TestDataDirIsTheOwners(t *testing.T) {
	for _, c := range []struct {
		name string
		mode os.FileMode // 0 = there is none
	}{{"a new one", 0}, {"one of an earlier version", 0o755}, {"one for everybody", 0o777}, {"one for a group", 0o750}, {"one that is closed", 0o700}} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config.Default()
			cfg.DataDir = filepath.Join(t.TempDir(), "data")
			if c.mode != 0 {
				if err := errors.Join(os.Mkdir(cfg.DataDir, 0o700), os.Chmod(cfg.DataDir, c.mode)); err != nil {
					t.Fatal(err)
				}
			}
			records, _, err := openData(t.Context(), cfg, turn{}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80})
			if err != nil {
				t.Fatal(err)
			}
			defer records.Close()
			if info, err := os.Stat(cfg.DataDir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		})
	}
}
