package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
)

func TestOnlyLocal(t *testing.T) {
	for _, c := range []struct {
		name, host, origin string
		public             string
		want               int
	}{
		{name: "an SDK", host: "127.0.0.1:8000", want: 200},
		{name: "IPv6", host: "[::1]:8000", want: 200},
		{name: "IPv6 without a port", host: "[::1]", want: 200},
		{name: "a name", host: "localhost:8000", want: 200},
		{name: "a name in capitals", host: "LOCALHOST.", want: 200},
		{name: "a name below it", host: "tinsmith.localhost:8000", want: 200},
		{name: "an address that was forwarded", host: "192.168.1.7:8000", want: 200},
		{name: "no host", host: "", want: 200},
		{name: "a page of this machine", host: "127.0.0.1:8000", origin: "http://localhost:3000", want: 200},
		{name: "a page of this machine by address", host: "127.0.0.1:8000", origin: "http://127.0.0.1:3000", want: 200},
		{name: "a page of a proxy", host: "models.example.org", origin: "https://models.example.org", public: "https://models.example.org/tin", want: 200},
		{name: "an SDK through a proxy that keeps its name", host: "Models.example.org", public: "https://models.example.org", want: 200},
		{name: "a name that was made to mean this machine", host: "evil.example:8000", want: 403},
		{name: "a name that looks like it", host: "localhost.evil.example", want: 403},
		{name: "another name than the proxy's", host: "evil.example", public: "https://models.example.org", want: 403},
		{name: "a page of elsewhere", host: "127.0.0.1:8000", origin: "https://evil.example", want: 403},
		{name: "a page of an address elsewhere", host: "127.0.0.1:8000", origin: "http://203.0.113.5", want: 403},
		{name: "a page without an origin", host: "127.0.0.1:8000", origin: "null", want: 403},
		{name: "an origin that is none", host: "127.0.0.1:8000", origin: "%", want: 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			reached := false
			handler := New(Options{
				Health: func() Health { return Health{Status: "ok"} }, Metrics: http.NotFoundHandler(), Keyless: true, PublicURL: c.public,
				Routes: []func(gin.IRouter){func(r gin.IRouter) { r.POST("/thing", func(*gin.Context) { reached = true }) }},
			})
			r := httptest.NewRequest(http.MethodPost, "/thing", nil)
			r.Host = c.host
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != c.want || reached != (c.want == 200) {
				t.Errorf("status %d, reached %v; want %d", w.Code, reached, c.want)
			}
		})
	}
}

// With keys a name says nothing: every request brings its right with it.
func TestKeysAreNotLocal(t *testing.T) {
	handler := New(Options{Health: func() Health { return Health{Status: "ok"} }, Metrics: http.NotFoundHandler()})
	r := httptest.NewRequest(http.MethodGet, "/healthz", nil)
	r.Host = "anything.example"
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Errorf("status %d", w.Code)
	}
}
