package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
)

func TestOnlyLocal(t *testing.T) {
	for _, c := range []struct {
		name, host, origin string
		header             http.Header // further ones
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
		{name: "an empty origin", host: "127.0.0.1:8000", header: http.Header{"Origin": {""}}, want: 200},
		{name: "an address that is typed", host: "127.0.0.1:8000", header: http.Header{"Sec-Fetch-Site": {"none"}}, want: 200},
		{name: "a page of ours that loads another", host: "127.0.0.1:8000", header: http.Header{"Sec-Fetch-Site": {"same-origin"}}, want: 200},
		{name: "a page of this machine on another port", host: "127.0.0.1:8000", origin: "http://127.0.0.1:3000", header: http.Header{"Sec-Fetch-Site": {"same-site"}}, want: 200},
		{name: "a page of this machine by another name", host: "127.0.0.1:8000", origin: "http://localhost:3000", header: http.Header{"Sec-Fetch-Site": {"cross-site"}}, want: 200},
		{name: "a page of IPv6", host: "[::1]:8000", origin: "http://[::1]:3000", want: 200},
		{name: "two origins, the second foreign", host: "127.0.0.1:8000", header: http.Header{"Origin": {"http://localhost:8000", "https://evil.example"}}, want: 403},
		{name: "two origins, the first foreign", host: "127.0.0.1:8000", header: http.Header{"Origin": {"https://evil.example", "http://localhost:8000"}}, want: 403},
		{name: "two origins, both ours", host: "127.0.0.1:8000", header: http.Header{"Origin": {"http://localhost:8000", "http://localhost:8000"}}, want: 403},
		{name: "two origins in one", host: "127.0.0.1:8000", origin: "http://localhost:8000, https://evil.example", want: 403},
		{name: "two origins in one with a blank", host: "127.0.0.1:8000", origin: "http://localhost:8000 https://evil.example", want: 403},
		{name: "an extension", host: "127.0.0.1:8000", origin: "chrome-extension://abcdefghijklmnop", want: 403},
		{name: "an extension that is called as this machine", host: "127.0.0.1:8000", origin: "chrome-extension://localhost", want: 403},
		{name: "another extension that is called so", host: "127.0.0.1:8000", origin: "moz-extension://localhost", want: 403},
		{name: "a file", host: "127.0.0.1:8000", origin: "file://", want: 403},
		{name: "an origin with a user", host: "127.0.0.1:8000", origin: "http://evil.example@localhost", want: 403},
		{name: "an origin with a path", host: "127.0.0.1:8000", origin: "http://localhost/evil", want: 403},
		{name: "an origin without a scheme", host: "127.0.0.1:8000", origin: "//localhost", want: 403},
		{name: "a cross-site request without an origin", host: "127.0.0.1:8000", header: http.Header{"Sec-Fetch-Site": {"cross-site"}}, want: 403},
		{name: "a request of another port without an origin", host: "127.0.0.1:8000", header: http.Header{"Sec-Fetch-Site": {"same-site"}}, want: 403},
		{name: "a site that there is not", host: "127.0.0.1:8000", header: http.Header{"Sec-Fetch-Site": {"cross-site "}}, want: 403},
		{name: "two sites", host: "127.0.0.1:8000", header: http.Header{"Sec-Fetch-Site": {"none", "cross-site"}}, want: 403},
		{name: "a host with a user", host: "evil.example@127.0.0.1:8000", want: 403},
		{name: "a host with a user and a password", host: "user:password@localhost:8000", want: 403},
		{name: "a host behind a user", host: "127.0.0.1:8000@evil.example", want: 403},
		{name: "two hosts in one", host: "localhost,evil.example", want: 403},
		{name: "a port that is none", host: "localhost:evil", want: 403},
		{name: "a bracket", host: "[::1", want: 403},
		{name: "a host with a path", host: "localhost/evil.example", want: 403},
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
			for name, values := range c.header {
				r.Header[name] = values
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != c.want || reached != (c.want == 200) {
				t.Errorf("status %d, reached %v; want %d", w.Code, reached, c.want)
			}
		})
	}
}

// Two Host headers, which may be read one way here and another way in front of us, never come through.
func TestTwoHosts(t *testing.T) {
	ts := httptest.NewServer(New(Options{Health: func() Health { return Health{Status: "ok"} }, Metrics: http.NotFoundHandler(), Keyless: true}))
	defer ts.Close()
	for _, c := range []struct {
		name, request string
		want          int
	}{
		{"one", "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
		{"two", "GET /version HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400},
		{"the same twice", "GET /version HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
		{"none", "GET /version HTTP/1.1\r\n\r\n", 400},
		{"another in the first line", "GET http://evil.example/version HTTP/1.1\r\nHost: localhost\r\n\r\n", 403},
		{"a user in it", "GET /version HTTP/1.1\r\nHost: user@localhost\r\n\r\n", 400},
		{"a user in the first line", "GET http://user@localhost/version HTTP/1.1\r\nHost: localhost\r\n\r\n", 403},
		{"one in the first line and another one", "GET http://localhost/version HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", ts.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			if _, err := io.WriteString(connection, c.request); err != nil {
				t.Fatal(err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if answer.StatusCode != c.want {
				t.Errorf("status %d, want %d", answer.StatusCode, c.want)
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
