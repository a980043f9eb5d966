// Package sse writes server-sent events: streams that begin soon after their request is accepted, so that an error before that has a status of its own, that are kept open while they wait,
// and that end where their reader is too slow or has lost its key. It knows no API: what the events are is its callers'.
package sse

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
)

const (
	// pingEvery keeps proxies from closing a stream that waits for its turn, or for its next token.
	pingEvery = 15 * time.Second
	// beginAfter is how long a stream without an event waits for a refusal that comes at once, as that of a backend which has no room, and has a status of its own so.
	beginAfter = 500 * time.Millisecond
	// writeTimeout is how long a client may leave an event unread: its request takes a place among those that are served, and memory.
	writeTimeout = 60 * time.Second
	// leastRate is what a client must take, in bytes for each second that is waited for it, beyond the first writeTimeout: one that takes a byte now and
	// then ends as well.
	leastRate = 1 << 10
)

// patience is how long a stream may still wait for its reader.
type patience struct {
	waited time.Duration
	taken  int64 // bytes
}

// left is how long the next write may wait; nothing if the reader is too slow.
func (p *patience) left() time.Duration {
	return min(writeTimeout, writeTimeout+time.Duration(p.taken)*(time.Second/leastRate)-p.waited)
}

var errSlowReader = errors.New("the client reads too slowly")

// Comment is a ping that every reader of server-sent events passes over.
const Comment = ": ping\n\n"

// Stream writes server-sent events. It begins with the first event, or soon after [Stream.Accept]: an error before that can still have a status of its own. Safe for concurrent use.
type Stream struct {
	c    *gin.Context
	ping string

	now func() time.Time

	mu       sync.Mutex
	kept     bool // keepOpen runs
	begun    bool
	over     bool      // an ordinary answer is given in place of the stream
	spoken   bool      // an event has been sent
	last     time.Time // when something was sent
	patience patience
	stop     chan struct{}
	done     sync.WaitGroup
}

// New makes a stream that answers a request. ping is [Comment], which is written whenever nothing else was for 15 seconds, or an event of the API's own, which is written every 15 seconds
// from the first event on; before that it is the comment here too. The caller must Close it.
func New(c *gin.Context, ping string) *Stream {
	return &Stream{c: c, ping: ping, now: time.Now, stop: make(chan struct{})}
}

// Send writes one event with a value as JSON. event is its name, "" for none.
func (s *Stream) Send(event string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if event != "" {
		event = "event: " + event + "\n"
	}
	return s.Write(event + "data: " + string(b) + "\n\n")
}

// Accept says that the request has been accepted. If no event comes soon the head of the answer is sent without one: a client and the proxies before it then know that they have to wait.
func (s *Stream) Accept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		s.keep(beginAfter)
	}
}

// keep has the stream kept open from here on. mu is held.
func (s *Stream) keep(first time.Duration) {
	if !s.kept {
		s.kept = true
		s.done.Add(1)
		go s.keepOpen(first)
	}
}

// Write writes text that is whole events.
func (s *Stream) Write(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoken = true
	return s.write(text)
}

// write sends a text, and the head before it if that is not sent yet. mu is held.
func (s *Stream) write(text string) error {
	if !s.begun {
		s.begun = true
		h := s.c.Writer.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.c.Status(http.StatusOK)
		s.c.Writer.WriteHeaderNow()
		s.keep(pingEvery)
	}
	left, begin := s.patience.left(), s.now()
	if left <= 0 {
		return errSlowReader
	}
	// A revoked key has given the connection a last moment.
	if !keys.Revoked(s.c.Request.Context()) {
		if err := http.NewResponseController(s.c.Writer).SetWriteDeadline(begin.Add(left)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
	}
	if _, err := s.c.Writer.WriteString(text); err != nil {
		return err
	}
	s.c.Writer.Flush()
	s.last = s.now()
	s.patience.waited += s.last.Sub(begin)
	s.patience.taken += int64(len(text))
	return nil
}

func (s *Stream) keepOpen(first time.Duration) {
	defer s.done.Done()
	next := time.NewTimer(first)
	defer next.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-next.C:
			wait, err := s.wake()
			if err != nil {
				return // the handler learns of it by its own write or context
			}
			next.Reset(wait)
		}
	}
}

// wake begins the stream, or writes a ping if one is due, and tells how long it is until the next one may be.
func (s *Stream) wake() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.ping
	switch {
	case s.over:
		return pingEvery, nil
	case !s.begun:
		return pingEvery, s.write("")
	}
	if !s.spoken {
		text = Comment
	}
	if quiet := s.now().Sub(s.last); text == Comment && quiet < pingEvery {
		return pingEvery - quiet, nil
	}
	return pingEvery, s.write(text)
}

// End finishes the stream. Before it has begun it returns err, for an ordinary answer. Else it has last write the last events, which tell of err if it is
// not nil, unless the client is gone. A request whose key was revoked ends with [keys.ErrRevoked].
func (s *Stream) End(err error, last func(err error) error) error {
	s.mu.Lock()
	s.over = !s.begun && err != nil
	over := s.over
	s.mu.Unlock()
	if over {
		return err
	}
	ctx := s.c.Request.Context()
	revoked := keys.Revoked(ctx)
	if ctx.Err() != nil && !revoked {
		return nil
	}
	if revoked {
		err = keys.ErrRevoked
	}
	if err := last(err); err != nil {
		slog.DebugContext(ctx, "client went away during the stream", "error", err)
	}
	return nil
}

// Close ends what the stream started. It must be called, whatever happened.
func (s *Stream) Close() {
	close(s.stop)
	s.done.Wait()
	// The connection may serve further requests. Where it cannot have a deadline it has none.
	_ = http.NewResponseController(s.c.Writer).SetWriteDeadline(time.Time{})
}
