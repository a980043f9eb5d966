// Package sse writes server-sent events: streams that begin late enough for an error to have a status of its own, that are kept open while they wait, and that
// end where their reader is too slow or has lost its key. It knows no API: what the events are is its callers'.
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
	// pingEvery keeps proxies from closing a stream that waits for its turn.
	pingEvery = 15 * time.Second
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

// Stream writes server-sent events. It begins with the first event, so that an error before it can still have a status of its own. Safe for concurrent use.
type Stream struct {
	c    *gin.Context
	ping string

	now func() time.Time

	mu       sync.Mutex
	begun    bool
	patience patience
	stop     chan struct{}
	done     sync.WaitGroup
}

// New makes a stream that answers a request. ping is what is written every 15 seconds: [Comment], or an event of the API's own. The caller must Close it.
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

// Write writes text that is whole events.
func (s *Stream) Write(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		s.begun = true
		h := s.c.Writer.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.c.Status(http.StatusOK)
		s.done.Add(1)
		go s.keepOpen()
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
	s.patience.waited += s.now().Sub(begin)
	s.patience.taken += int64(len(text))
	return nil
}

func (s *Stream) keepOpen() {
	defer s.done.Done()
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			if s.Write(s.ping) != nil {
				return // the handler learns of it by its own write or context
			}
		}
	}
}

// End finishes the stream. Before the first event it returns err, for an ordinary answer. Else it has last write the last events, which tell of err if it is
// not nil, unless the client is gone. A request whose key was revoked ends with [keys.ErrRevoked].
func (s *Stream) End(err error, last func(err error) error) error {
	s.mu.Lock()
	begun := s.begun
	s.mu.Unlock()
	if !begun && err != nil {
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
