package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
)

// pace is how slowly a client may send a body and read an answer. There is no limit of the whole time: large ones come over slow lines. A client may stand still for pause; every step of bytes that moves earns
// it `earned` more, up to pause again. So it may rest, but not drip.
type pace struct {
	pause  time.Duration
	earned time.Duration
	step   int
}

// ordinary is the pace of the server: 6.4 KiB/s, and rests of half a minute, in which a client's interpreter may be busy elsewhere.
var ordinary = pace{pause: 30 * time.Second, earned: 10 * time.Second, step: 64 << 10}

// left is what is left of a pause after n bytes that took some time.
func (p pace) left(before, took time.Duration, n int) time.Duration {
	return min(p.pause, before-took+time.Duration(float64(n)/float64(p.step)*float64(p.earned)))
}

// keep wraps a handler: bodies of its requests and its answers have to keep the pace. A body that does not ends with an error that is a *body.Error with status 408, and its connection is closed after the
// answer. A handler that sets a write deadline itself, as streams of events do, is left alone until it sets none.
func (p pace) keep(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{ResponseWriter: w, pace: p, readLeft: p.pause, writeLeft: p.pause}
		if d, ok := w.(deadlines); ok {
			x.connection = d
		} else { // not a connection, as in tests of handlers
			x.connection = noDeadlines{}
		}
		if r.Body == http.NoBody || r.ContentLength == 0 {
			x.whole = true
			next.ServeHTTP(x, r)
		} else {
			x.request, x.body = *r, r.Body // a copy: net/http looks at the body of its own
			x.request.Body = (*incoming)(x)
			next.ServeHTTP(x, &x.request)
		}
		x.end()
	})
}

// deadlines are a connection's.
type deadlines interface {
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

type noDeadlines struct{}

func (noDeadlines) SetReadDeadline(time.Time) error  { return nil }
func (noDeadlines) SetWriteDeadline(time.Time) error { return nil }

// exchange is a request and its answer.
type exchange struct {
	http.ResponseWriter
	pace       pace
	connection deadlines
	request    http.Request
	body       io.ReadCloser

	readLeft, writeLeft time.Duration
	whole               bool  // the body has been read
	stalled             error // it will not be
	written             int
	handlers            atomic.Bool // the handler has set the write deadline, or somebody who ends it, at any time
}

// incoming is the body.
type incoming exchange

// Read implements io.Reader.
func (b *incoming) Read(p []byte) (int, error) {
	if b.stalled != nil {
		return 0, b.stalled
	}
	begun := time.Now()
	if !b.whole {
		_ = b.connection.SetReadDeadline(begun.Add(b.readLeft)) // a connection that cannot have one ends by itself
		if b.request.Header["Expect"] != nil {
			_ = b.connection.SetWriteDeadline(begun.Add(b.writeLeft)) // of the interim answer
		}
	}
	n, err := b.body.Read(p)
	switch {
	case err == nil:
		b.readLeft = b.pace.left(b.readLeft, time.Since(begun), n)
	case errors.Is(err, io.EOF):
		b.whole = true // net/http takes the deadline away: from now on it only waits for the end of the connection
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.stalled = &body.Error{Status: http.StatusRequestTimeout, Message: fmt.Sprintf("body: it has to come at %d KiB in %v, and without a rest of more than %v", b.pace.step>>10, b.pace.earned, b.pace.pause)}
		b.Header().Set("Connection", "close")
		return n, b.stalled
	}
	return n, err
}

// Close implements io.Closer.
func (b *incoming) Close() error { return b.body.Close() }

// bufferedBytes go into the server's own buffer, whose write has the deadline that end sets.
const bufferedBytes = 2 << 10

// Write implements http.ResponseWriter: in pieces, each of which has a deadline.
func (x *exchange) Write(b []byte) (written int, err error) {
	if x.handlers.Load() || x.written+len(b) <= bufferedBytes {
		n, err := x.ResponseWriter.Write(b)
		x.written += n
		return n, err
	}
	for {
		piece := b[written:min(len(b), written+x.pace.step)]
		begun := time.Now()
		_ = x.connection.SetWriteDeadline(begun.Add(x.writeLeft)) // a connection that cannot have one ends by itself
		n, err := x.ResponseWriter.Write(piece)
		written, x.written = written+n, x.written+n
		x.writeLeft = x.pace.left(x.writeLeft, time.Since(begun), n)
		if err != nil || written == len(b) {
			return written, err
		}
	}
}

// WriteString implements io.StringWriter.
func (x *exchange) WriteString(s string) (int, error) {
	if x.handlers.Load() || x.written+len(s) <= bufferedBytes {
		n, err := io.WriteString(x.ResponseWriter, s)
		x.written += n
		return n, err
	}
	return x.Write([]byte(s))
}

// Flush implements http.Flusher.
func (x *exchange) Flush() {
	if !x.handlers.Load() {
		_ = x.connection.SetWriteDeadline(time.Now().Add(x.writeLeft)) // a connection that cannot have one ends by itself
	}
	if f, ok := x.ResponseWriter.(http.Flusher); ok {
		x.written += bufferedBytes // the buffer may be anywhere from now on
		f.Flush()
	}
}

// SetWriteDeadline is what http.ResponseController calls.
func (x *exchange) SetWriteDeadline(t time.Time) error {
	x.handlers.Store(!t.IsZero())
	return x.connection.SetWriteDeadline(t)
}

// Unwrap is what http.ResponseController calls for everything else.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// end sets the deadlines for what the server does after the handler: it writes what is buffered, and reads a little of a body that the handler has left.
func (x *exchange) end() {
	now := time.Now()
	_ = x.connection.SetWriteDeadline(now.Add(x.pace.pause))
	switch {
	case x.stalled != nil:
		_ = x.connection.SetReadDeadline(now)
	case !x.whole:
		_ = x.connection.SetReadDeadline(now.Add(x.pace.earned))
	}
}
