package server

import (
	"net/http"
	"sync/atomic"
)

// Switch is a handler that can be replaced while it serves: the server listens at once, and its APIs are put in when they are there.
type Switch struct{ current atomic.Pointer[http.Handler] }

// NewSwitch begins with one handler.
func NewSwitch(h http.Handler) *Switch {
	s := &Switch{}
	s.Set(h)
	return s
}

// Set replaces the handler; requests in flight stay with theirs.
func (s *Switch) Set(h http.Handler) { s.current.Store(&h) }

// Drain refuses further requests: the server is ending.
func (s *Switch) Drain() {
	s.Set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		const body = `{"detail":"the server is shutting down","error":{"message":"the server is shutting down","type":"server_error","param":null,"code":null}}`
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(body)) // a client that is gone needs no answer
	}))
}

// ServeHTTP implements http.Handler.
func (s *Switch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*s.current.Load()).ServeHTTP(w, r)
}
