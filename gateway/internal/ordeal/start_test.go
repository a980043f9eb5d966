package ordeal

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// A model may be loaded before the APIs are there. /healthz says "starting" until both are: whoever waits for "ok" is never told that the server is starting.
func TestReadyMeansThatTheAPIsAnswer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "go on")
	t.Setenv(heldVariable, file)
	s := newServer(t, settings{"plugin": "fake"}, nil)
	s.start()
	s.await("loaded", func(h health) bool { return len(h.Models) == 1 && h.Models[0].State == "ready" })
	if h := s.healthz(); h.Status != "starting" {
		t.Errorf("health %+v while the APIs are closed", h)
	}
	if status, after, text := s.post("/auth/token", object{}); status != http.StatusServiceUnavailable || after == "" {
		t.Errorf("an API that is closed: %d, Retry-After %q, %s", status, after, text)
	}
	s.ok(os.WriteFile(file, nil, 0o600))
	s.ready()
	if status, _, text := s.post("/auth/token", object{}); status != http.StatusOK {
		t.Errorf("after \"ok\": %d %s", status, text)
	}
}
