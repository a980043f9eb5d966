package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
)

// pages is a server with an endpoint that answers, one that fails, one that panics and one that streams.
func pages(o Options) http.Handler {
	o.Health, o.Metrics = func() Health { return Health{Status: "ok"} }, http.NotFoundHandler()
	o.Routes = []func(gin.IRouter){func(r gin.IRouter) {
		r.POST("/good", func(c *gin.Context) { c.String(http.StatusOK, "good") })
		r.POST("/bad", func(c *gin.Context) { c.String(http.StatusBadRequest, "bad") })
		r.POST("/panic", func(*gin.Context) { panic("on purpose") })
		r.POST("/stream", func(c *gin.Context) {
			for range 2 {
				_, _ = io.WriteString(c.Writer, "data: x\n\n")
				c.Writer.Flush()
			}
		})
	}}
	return New(o)
}

func TestPagesOfOtherOrigins(t *testing.T) {
	const app, local = "https://app.example.org", "http://localhost:5173"
	for _, c := range []struct {
		name    string
		options Options
		origin  []string
		want    string // Access-Control-Allow-Origin; "" = none
		refused bool   // whatever is asked for
	}{
		{name: "no page", options: Options{Keyless: true}},
		{name: "a page of this machine", options: Options{Keyless: true}, origin: []string{local}, want: local},
		{name: "a page of this machine, with keys", origin: []string{local}, want: local},
		{name: "a page of public_url", options: Options{PublicURL: "https://models.example.org/tin"}, origin: []string{"https://models.example.org"}, want: "https://models.example.org"},
		{name: "a page of elsewhere, without keys", options: Options{Keyless: true}, origin: []string{app}, refused: true},
		{name: "a page of elsewhere, with keys", origin: []string{app}},
		{name: "one that is allowed", options: Options{Origins: []string{"https://other.example", app}}, origin: []string{app}, want: app},
		{name: "one that only begins so", options: Options{Origins: []string{app}}, origin: []string{app + ".evil.example"}},
		{name: "the same host by http", options: Options{Origins: []string{app}}, origin: []string{"http://app.example.org"}},
		{name: "all", options: Options{Origins: []string{"*"}}, origin: []string{"https://evil.example"}, want: "*"},
		{name: "all, a page without an origin", options: Options{Origins: []string{"*"}}, origin: []string{"null"}, want: "*"},
		{name: "two origins", options: Options{Origins: []string{app}}, origin: []string{app, app}},
	} {
		t.Run(c.name, func(t *testing.T) {
			handler := pages(c.options)
			ask := func(method, path string, header http.Header) *httptest.ResponseRecorder {
				r := httptest.NewRequest(method, path, nil)
				r.Host = "127.0.0.1:8000"
				for name, values := range header {
					r.Header[name] = values
				}
				if c.origin != nil {
					r.Header["Origin"] = c.origin
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				return w
			}
			for path, code := range map[string]int{"/good": 200, "/bad": 400, "/panic": 500, "/stream": 200, "/nothing": 404} {
				w := ask(http.MethodPost, path, nil)
				if c.refused {
					code = http.StatusForbidden
				}
				if got := w.Header().Get("Access-Control-Allow-Origin"); w.Code != code || got != c.want {
					t.Errorf("%s: status %d, allowed %q; want %d, %q", path, w.Code, got, code, c.want)
				}
				if !c.refused && !slices.Contains(w.Header().Values("Vary"), "Origin") {
					t.Errorf("%s: Vary %q", path, w.Header().Values("Vary"))
				}
				if w.Header().Get("Access-Control-Allow-Credentials") != "" {
					t.Errorf("%s: credentials are allowed", path)
				}
			}
			asked := http.Header{"Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"authorization,content-type"}}
			w := ask(http.MethodOptions, "/good", asked)
			h := w.Header()
			switch {
			case c.want != "":
				if w.Code != http.StatusNoContent || h.Get("Access-Control-Allow-Origin") != c.want || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST") ||
					h.Get("Access-Control-Allow-Headers") != "authorization,content-type" || w.Body.Len() != 0 {
					t.Errorf("preflight: %d %v", w.Code, h)
				}
			case c.refused:
				if w.Code != http.StatusForbidden || h.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("preflight: %d %v", w.Code, h)
				}
			case w.Code != http.StatusMethodNotAllowed || h.Get("Access-Control-Allow-Origin") != "" || h.Get("Access-Control-Allow-Methods") != "":
				t.Errorf("preflight: %d %v", w.Code, h)
			}
			if w := ask(http.MethodOptions, "/good", nil); w.Code != http.StatusMethodNotAllowed && !c.refused {
				t.Errorf("an OPTIONS request that is no preflight: %d", w.Code)
			}
		})
	}
}

// What a page asks for is repeated only if it is a list of names.
func TestPreflightHeaders(t *testing.T) {
	handler := pages(Options{})
	for name, c := range map[string]struct{ asked, want string }{
		"one":      {"X-API-Key", "X-API-Key"},
		"several":  {"authorization, x-api-key,x-stainless-os", "authorization, x-api-key,x-stainless-os"},
		"none":     {"", ""},
		"a colon":  {"a: b", ""},
		"an empty": {"a,,b", ""},
		"a break":  {"a\r\nSet-Cookie", ""},
		"long":     {strings.Repeat("a", 5000), ""},
	} {
		r := httptest.NewRequest(http.MethodOptions, "/good", nil)
		r.Header.Set("Origin", "http://localhost")
		r.Header.Set("Access-Control-Request-Method", "POST")
		r.Header["Access-Control-Request-Headers"] = []string{c.asked}
		r.Header.Set("Access-Control-Request-Private-Network", "true")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if got := w.Header().Get("Access-Control-Allow-Headers"); w.Code != http.StatusNoContent || got != c.want || w.Header().Get("Access-Control-Allow-Private-Network") != "true" {
			t.Errorf("%s: %d %q, want %q", name, w.Code, got, c.want)
		}
	}
}
