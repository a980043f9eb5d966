package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

// slowToLoad makes a supervisor of configurable plugins that need a while to load, with the file in which they tell their last configuration.
func slowToLoad(t *testing.T, log *slog.Logger) (s *Supervisor, file string) {
	file = filepath.Join(t.TempDir(), "configured")
	s = newSupervisor(t, "configurable", func(c *Config) {
		if log != nil {
			c.Log = log
		}
		c.Load.Config = fakeConfig(t, fake.Config{Delays: []fake.Delay{{Operation: "load", Seconds: 0.3}}})
		c.prepare = func(cmd *exec.Cmd) {
			inMode("configurable")(cmd)
			cmd.Env = append(cmd.Env, configuredVariable+"="+file)
		}
	})
	s.Start(context.Background())
	return s, file
}

// TestConfiguredWhileLoading has a configuration come while the next process is loaded with the former one, as when the process that took it was lost behind its answer.
func TestConfiguredWhileLoading(t *testing.T) {
	s, file := slowToLoad(t, nil)
	for ctx := testContext(t); s.State().Info.BootID == ""; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("state %+v", s.State())
		}
	}
	want := []byte(`{"seed":3}`)
	s.mu.Lock()
	s.config.Load.Config = want
	s.mu.Unlock()
	if err := s.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("when it became ready it had been told %q, %v", got, err)
	}
}

// TestConfiguredLater has configurations come while no process is ready: at the start, or because it was lost. The newest is for the next process, and for those behind it; one that is refused leaves everything as it was.
func TestConfiguredLater(t *testing.T) {
	for _, c := range []struct {
		name     string
		lost     bool // a process that was ready
		sections []string
		want     string // what the next process is told; "" = nothing that it takes
	}{
		{"at the start", false, []string{`{"seed":3}`}, `{"seed":3}`},
		{"a process was lost", true, []string{`{"seed":3}`}, `{"seed":3}`},
		{"several", true, []string{`{"seed":"refuse"}`, `{"seed":3}`, `{"seed":4}`}, `{"seed":4}`},
		{"refused", true, []string{`{"seed":3}`, `{"seed":"refuse"}`}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			s, file := slowToLoad(t, slog.New(slog.NewTextHandler(&log, nil)))
			s.mu.Lock()
			first := s.config.Load.Config
			s.mu.Unlock()
			if c.lost {
				if err := s.Wait(testContext(t)); err != nil {
					t.Fatal(err)
				}
				s.mu.Lock()
				pid := s.current.(*process).cmd.Process.Pid
				s.mu.Unlock()
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				for ctx := testContext(t); s.State().Phase == Ready && ctx.Err() == nil; {
					time.Sleep(time.Millisecond)
				}
			}
			for _, section := range c.sections {
				if changed, err := s.Configure(testContext(t), json.RawMessage(section)); !errors.Is(err, ErrLater) || changed != nil {
					t.Errorf("%s: changed %v, %v", section, changed, err)
				}
			}
			if err := s.Wait(testContext(t)); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(file)
			if string(got) != c.want || err != nil && c.want != "" {
				t.Errorf("the next process was told %q, %v, want %q", got, err, c.want)
			}
			s.Close()
			told, held, logged := "backend configured", c.want, log.String()
			if c.want == "" {
				told, held = "was not taken over", string(first)
			}
			if !strings.Contains(logged, told) || string(s.config.Load.Config) != held || s.later != nil {
				t.Errorf("holds %s, and later %s, want %s; the log: %s", s.config.Load.Config, s.later, held, logged)
			}
		})
	}
}

// TestConfiguredAgain gives a process the configuration that it has: it is not asked, as there are plugins that refuse every one.
func TestConfiguredAgain(t *testing.T) {
	s, file := slowToLoad(t, nil)
	if err := s.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	first, other := s.config.Load.Config, json.RawMessage(`{"seed":3}`)
	for _, c := range []struct {
		section json.RawMessage
		told    string // last; "" = nothing
	}{{first, ""}, {other, string(other)}, {first, string(first)}} {
		if _, err := s.Configure(testContext(t), c.section); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); string(got) != c.told || err != nil && c.told != "" {
			t.Errorf("with %s the process was told %q, %v, want %q", c.section, got, err, c.told)
		}
	}
}

// TestConfigurationOfNobody has a configuration come for a backend that is given up before it is ready.
func TestConfigurationOfNobody(t *testing.T) {
	var log bytes.Buffer
	s := newSupervisor(t, "fake", func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Load.Config = fakeConfig(t, fake.Config{Faults: []fake.Fault{{Operation: "load", N: 1, Action: "crash", ExitCode: 7}}})
	})
	s.Start(context.Background())
	if _, err := s.Configure(testContext(t), json.RawMessage(`{"seed":3}`)); !errors.Is(err, ErrLater) {
		t.Fatal(err)
	}
	if err := s.Wait(testContext(t)); err == nil {
		t.Fatal("a backend that crashes in loading became ready")
	}
	s.Close()
	if !strings.Contains(log.String(), "was not taken over") {
		t.Errorf("nothing tells that it was not taken over; the log: %s", log.String())
	}
}
