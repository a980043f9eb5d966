package server

import (
	"fmt"
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
		w.Header().Set("Retry-After", "2")
		refuse(w, http.StatusServiceUnavailable, "the server is shutting down")
	}))
}

// refuse answers outside of the APIs, in a form that clients of either understand. The text needs no escape.
func refuse(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"detail":"%[1]s","error":{"message":"%[1]s","type":"server_error","param":null,"code":null}}`, text) // a client that is gone needs no answer
}

// ServeHTTP implements http.Handler.
func (s *Switch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*s.current.Load()).ServeHTTP(w, r)
}
