package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/fleet"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
	"github.com/tinsmith/tinsmith/plugins"
)

// TestDrain: who may drain what, and what is told.
func TestDrain(t *testing.T) {
	_, ann, _, root := keyed(t)
	for _, c := range []struct {
		name   string
		who    caller
		body   any
		status int
		words  string
	}{
		{"a user", ann, object{"backend": served, "drained": true}, http.StatusForbidden, "administrator"},
		{"no such backend", root, object{"backend": "nobody#1", "drained": true}, http.StatusNotFound, "no backend"},
		{"the only one", root, object{"backend": served, "drained": true}, http.StatusBadRequest, "no other backend"},
		{"one that is not drained", root, object{"backend": served, "drained": false}, http.StatusOK, served},
		{"no name", root, object{"drained": true}, http.StatusBadRequest, "backend: is required"},
		{"neither", root, object{"backend": served}, http.StatusBadRequest, "drained: is required"},
		{"not an object", root, []byte("[]"), http.StatusBadRequest, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := c.who.send(http.MethodPost, "/api/v1/tinsmith/backends/drain", c.body)
			if status != c.status || !strings.Contains(text, c.words) {
				t.Errorf("%d %s", status, text)
			}
		})
	}
	w := newWorld(t)
	if out, err := w.run(drainCommand(), "", served, "--undo"); err != nil || !strings.Contains(out, "takes work again") {
		t.Errorf("%s %v", out, err)
	}
	if _, err := w.run(drainCommand(), "", served); err == nil || !strings.Contains(err.Error(), "no other backend") {
		t.Errorf("%v", err)
	}
}

// state is one of a fleet.
func state(name string, phase supervisor.Phase, reason string) fleet.State {
	return fleet.State{Serves: "m", Name: name, State: supervisor.State{Phase: phase, Reason: reason, Restarts: 1, Loss: "/secret/place", Model: plugins.ModelInfo{Device: "cpu", DType: "float32", Arithmetic: "of " + name}}}
}

// TestHealthOfPools: a model with several backends is as well as the best of them, and each is told with its runs.
func TestHealthOfPools(t *testing.T) {
	pools := []runs.BackendInfo{{Model: "m", Name: "m#2", Drained: true, Runs: 3, Active: 2, Leaving: 1, Samples: 7}}
	for _, c := range []struct {
		name          string
		states        []fleet.State
		status, state string
		restarts      int
	}{
		{"one", []fleet.State{state("m", supervisor.Ready, "")}, "ok", "ready", 1},
		{"one that failed", []fleet.State{state("m", supervisor.Failed, "broken")}, "degraded", "failed", 1},
		{"all are there", []fleet.State{state("m#1", supervisor.Ready, ""), state("m#2", supervisor.Ready, "")}, "ok", "ready", 2},
		{"one is gone", []fleet.State{state("m#1", supervisor.Restarting, "killed"), state("m#2", supervisor.Ready, "")}, "ok", "ready", 2},
		{"none is there", []fleet.State{state("m#1", supervisor.Failed, "broken"), state("m#2", supervisor.Restarting, "killed")}, "degraded", "failed", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, status := (&health{}).model(c.states, pools)
			if m.Name != "m" || status != c.status || m.State != c.state || m.Restarts != c.restarts {
				t.Errorf("%s %+v", status, m)
			}
			if len(c.states) == 1 {
				if m.Backends != nil {
					t.Errorf("%+v", m.Backends)
				}
				return
			}
			if len(m.Backends) != 2 || m.Backends[0].Name != "m#1" || m.Backends[0].Runs != 0 {
				t.Fatalf("%+v", m.Backends)
			}
			if b := m.Backends[1]; !b.Drained || b.Runs != 3 || b.ActiveRuns != 2 || b.Leaving != 1 || b.Samples != 7 || b.Arithmetic != "of m#2" {
				t.Errorf("%+v", b)
			}
		})
	}
}

// TestBackendsCommand: what the server says of its backends is shown in lines that fit, with control characters left out.
func TestBackendsCommand(t *testing.T) {
	health := server.Health{Status: "ok", Models: []server.Model{
		{Name: "alone", State: "ready", Device: "cpu", DType: "float32", Arithmetic: "x"},
		{Name: "m", State: "ready", Backends: []server.Backend{
			{Name: "m#1", State: "ready", Device: "cpu", DType: "float32", Arithmetic: "avx2", Runs: 4, ActiveRuns: 3, Samples: 9},
			{Name: "m#2", State: "restarting", Reason: "killed \x1b[31m", Restarts: 2, LastLoss: "signal", Drained: true, Runs: 1, Leaving: 1},
		}},
	}}
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable) // the form is the same
		_ = json.NewEncoder(w).Encode(health)
	}))
	defer ts.Close()
	w := &world{T: t, url: ts.URL}
	out, err := w.run(backendsCommand(), "")
	if err != nil {
		t.Fatal(err)
	}
	fits(t, out)
	for _, words := range []string{"alone", "m#1", "arithmetic avx2", "restarting, drained", "restarted 2 times", "1 of its runs are moving"} {
		if !strings.Contains(out, words) {
			t.Errorf("it does not say %q:\n%s", words, out)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("control characters: %q", out)
	}
	out, err = w.run(backendsCommand(), "", "--json")
	var models []server.Model
	if err != nil || json.Unmarshal([]byte(out), &models) != nil || len(models) != 2 || len(models[1].Backends) != 2 {
		t.Errorf("%s %v", out, err)
	}
}

// told notes what each backend was configured to.
type told struct{ sections map[string]string }

func (c told) Configure(_ context.Context, backend string, section json.RawMessage) ([]string, error) {
	c.sections[backend] = string(section)
	if strings.Contains(string(section), "refuse") {
		return nil, errors.New("refused")
	}
	return nil, nil
}

// TestReloadOfAPool: each backend is told its own section; how many there are takes a restart.
func TestReloadOfAPool(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const before = "data_dir: data\nmodels:\n  - {name: a, path: x, backends: [{batch_tokens: 1}, {batch_tokens: 2}]}\n"
	for _, c := range []struct{ name, now, first, second, message string }{
		{"nothing changed", before, `{"batch_tokens":1}`, `{"batch_tokens":2}`, ""},
		{"the second", strings.Replace(before, "2", "3", 1), `{"batch_tokens":1}`, `{"batch_tokens":3}`, ""},
		{"the second, which is refused", strings.Replace(before, "2", "refuse", 1), `{"batch_tokens":1}`, `{"batch_tokens":"refuse"}`, "model a#2: refused"},
		{"one more", strings.Replace(before, "}]", "}, {}]", 1), "", "", "need a restart"},
		{"another plugin", strings.Replace(before, "batch_tokens: 2", "plugin: fake", 1), "", "", "need a restart"},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(before)
			cfg, err := config.LoadUnchecked(file)
			if err != nil {
				t.Fatal(err)
			}
			if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
				t.Fatal(err)
			}
			write(c.now)
			got := told{map[string]string{}}
			_, err = reload(t.Context(), cfg, got)
			if got.sections["a#1"] != c.first || got.sections["a#2"] != c.second {
				t.Errorf("told %v", got.sections)
			}
			if (err != nil) != (c.message != "") || err != nil && !strings.Contains(err.Error(), c.message) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSharesAreNoted: check-config says which backends of one machine take all of it.
func TestSharesAreNoted(t *testing.T) {
	var out strings.Builder
	noteShares(&out, "m", []config.Backend{
		{Name: "m#1", Section: json.RawMessage(`{"threads": 2}`)}, {Name: "m#2", Section: json.RawMessage(`{"memory_mib": 5, "threads": 2}`)}, {Name: "m#3", Remote: &config.Remote{}, Section: json.RawMessage(`{}`)},
	})
	if lines := slices.Collect(strings.Lines(out.String())); len(lines) != 1 || !strings.Contains(lines[0], "m#1 sets no memory_mib") {
		t.Errorf("%q", lines)
	}
}
