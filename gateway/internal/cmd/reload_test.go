package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
)

// configured notes the sections that it is given; it refuses, or takes over later, those that say so.
type configured struct{ sections chan string }

func (c configured) Configure(_ context.Context, model string, section json.RawMessage) ([]string, error) {
	c.sections <- model + " " + string(section)
	if strings.Contains(string(section), "refuse") {
		return nil, errors.New("refused")
	}
	if strings.Contains(string(section), "later") {
		return nil, supervisor.ErrLater
	}
	return []string{"batch_tokens"}, nil
}

// ofModel gives what the backend of a model was told, with its name; "" = nothing.
func (c configured) ofModel(name string) (told string) {
	for len(c.sections) > 0 {
		if s := <-c.sections; strings.HasPrefix(s, name+" ") {
			told = s
		}
	}
	return told
}

func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const before = "data_dir: data\nmodels:\n  - {name: a, path: x, backend: {plugin: single, batch_tokens: 1}}\n  - {name: b, path: y}\n"
	load := func() config.Config {
		t.Helper()
		write(before)
		cfg, err := config.LoadUnchecked(file)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
			t.Fatal(err)
		}
		cfg.Listen = "127.0.0.1:0"
		return cfg
	}
	for _, c := range []struct{ name, file, want, message string }{
		{name: "nothing changed", file: before, want: `a {"batch_tokens":1,"plugin":"single"}`},
		{name: "a backend section", file: strings.Replace(before, "1}", "2}", 1), want: `a {"batch_tokens":2,"plugin":"single"}`},
		{name: "a section that is refused", file: strings.Replace(before, "1}", "refuse}", 1), want: `a {"batch_tokens":"refuse","plugin":"single"}`, message: "model a: refused"},
		{name: "a section for a backend that is not ready", file: strings.Replace(before, "1}", "later}", 1), want: `a {"batch_tokens":"later","plugin":"single"}`},
		{name: "another key", file: strings.Replace(before, "path: y", "path: z", 1), want: `a {"batch_tokens":1,"plugin":"single"}`, message: "need a restart"},
		{name: "a mistake", file: before + "modles: 1\n", message: "modles"},
		{name: "another plugin", file: strings.Replace(before, "plugin: single", "plugin: dataparallel", 1), message: "need a restart"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := load()
			write(c.file)
			for range 2 { // one that is refused is tried again
				b := configured{make(chan string, 2)}
				var err error
				cfg, err = reload(t.Context(), cfg, b)
				if c.message == "" && err != nil || c.message != "" && (err == nil || !strings.Contains(err.Error(), c.message)) {
					t.Errorf("error %v, want %q", err, c.message)
				}
				if told := b.ofModel("a"); told != c.want {
					t.Errorf("told %q, want %q", told, c.want)
				}
			}
		})
	}
	t.Run("by signal", func(t *testing.T) {
		cfg := load()
		write(strings.Replace(before, "1}", "3}", 1))
		r := catchReloads()
		defer r.stop()
		ctx, cancel := context.WithCancel(t.Context())
		b, ended := configured{make(chan string, 2)}, make(chan struct{})
		go func() {
			defer close(ended)
			r.serve(ctx, cfg, b)
		}()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		select {
		case told := <-b.sections:
			if told != `a {"batch_tokens":3,"plugin":"single"}` {
				t.Errorf("told %q", told)
			}
		case <-time.After(time.Minute):
			t.Error("nothing was read")
		}
		cancel()
		<-ended
	})
}
