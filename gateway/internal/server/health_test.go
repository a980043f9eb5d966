package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Everybody sees that something is not well, and who may look after the server sees why.
func TestHealthReasons(t *testing.T) {
	const secret = "/srv/tin/data: user=tin host=db.internal"
	health := func() Health {
		return Health{Status: "degraded", Storage: Storage{State: "failing", Reason: secret}, Models: []Model{
			{Name: "a", State: "failed", Reason: secret, Restarts: 3, LastLoss: secret, Products: secret}, {Name: "b", State: "ready"},
		}}
	}
	admin := func(r *http.Request) bool { return r.Header.Get("X-Api-Key") == "tml-root" }
	for _, c := range []struct {
		name    string
		options Options
		key     string
		reasons int
	}{
		{"nobody", Options{Admin: admin}, "", 0},
		{"a user", Options{Admin: admin}, "tml-ann", 0},
		{"an administrator", Options{Admin: admin}, "tml-root", 4},
		{"without administrators", Options{}, "tml-root", 0},
		{"without keys", Options{Keyless: true}, "", 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Health, c.options.Metrics = health, http.NotFoundHandler()
			handler := New(c.options)
			for _, path := range []string{"/healthz", "/health", "/ping"} {
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.Host = "localhost"
				r.Header.Set("X-Api-Key", c.key)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code != http.StatusServiceUnavailable {
					t.Errorf("%s: status %d", path, w.Code)
				}
				body := w.Body.String()
				if path != "/healthz" {
					if body != "" {
						t.Errorf("%s: %s", path, body)
					}
					continue
				}
				if strings.Count(body, secret) != c.reasons || strings.Count(body, told) != (4-c.reasons)/4*3 {
					t.Errorf("%s", body)
				}
				for _, part := range []string{`"failing"`, `"failed"`, `"ready"`, `"restarts":3`} {
					if !strings.Contains(body, part) {
						t.Errorf("%s is not told: %s", part, body)
					}
				}
			}
		})
	}
}

// A start does not mend what is damaged, and everything else is served: whoever watches the status alone is not to end such a server.
func TestHealthCodes(t *testing.T) {
	for status, want := range map[string]int{"ok": http.StatusOK, "damaged": http.StatusOK, "degraded": http.StatusServiceUnavailable, "starting": http.StatusServiceUnavailable} {
		handler := New(Options{Keyless: true, Metrics: http.NotFoundHandler(), Health: func() Health { return Health{Status: status} }})
		for _, path := range []string{"/healthz", "/health", "/ping"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host = "localhost"
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s of a server that is %s: status %d, want %d", path, status, w.Code, want)
			}
		}
	}
}

// A platform may go on to the next gateway when this one answers or waits for its turn, not while it starts.
func TestReady(t *testing.T) {
	for _, c := range []struct {
		health Health
		want   int
	}{
		{Health{Status: "ok", Open: true}, http.StatusOK},
		{Health{Status: "degraded", Open: true}, http.StatusOK},
		{Health{Status: "standby"}, http.StatusOK},
		{Health{Status: "starting"}, http.StatusServiceUnavailable},
		{Health{Status: "degraded"}, http.StatusServiceUnavailable},
	} {
		handler := New(Options{Keyless: true, Metrics: http.NotFoundHandler(), Health: func() Health { return c.health }})
		r := httptest.NewRequest(http.MethodGet, "/readyz", nil)
		r.Host = "localhost"
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != c.want || w.Body.String() != `{"status":"`+c.health.Status+`"}` {
			t.Errorf("%+v: status %d, %s", c.health, w.Code, w.Body)
		}
	}
}
