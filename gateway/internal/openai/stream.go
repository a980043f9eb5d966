package openai

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

// eventStream writes server-sent events. It begins with the first event, so that an error before it can still have a status of its own. Safe for concurrent use.
type eventStream struct {
	c *gin.Context

	now func() time.Time

	mu       sync.Mutex
	begun    bool
	patience patience
	stop     chan struct{}
	done     sync.WaitGroup
}

func newEventStream(c *gin.Context) *eventStream {
	return &eventStream{c: c, now: time.Now, stop: make(chan struct{})}
}

// send writes one event.
func (s *eventStream) send(value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return s.write("data: " + string(b) + "\n\n")
}

func (s *eventStream) write(text string) error {
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
		go s.ping()
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

func (s *eventStream) ping() {
	defer s.done.Done()
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			if s.write(": ping\n\n") != nil {
				return // the handler learns of it by its own write or context
			}
		}
	}
}

// end finishes the stream: with [DONE], or, if err is not nil, with an event that says why. Before the first event it returns err for an ordinary answer.
func (s *eventStream) end(err error) error {
	s.mu.Lock()
	begun := s.begun
	s.mu.Unlock()
	if !begun && err != nil {
		return err
	}
	revoked := keys.Revoked(s.c.Request.Context())
	if s.c.Request.Context().Err() == nil || revoked {
		if revoked {
			err = revokedError
		}
		if err != nil {
			err = s.send(told(s.c, err, "stream failed").body())
		} else {
			err = s.write("data: [DONE]\n\n")
		}
		if err != nil {
			slog.DebugContext(s.c.Request.Context(), "client went away during the stream", "error", err)
		}
	}
	return nil
}

// close ends what the stream started. It must be called, whatever happened.
func (s *eventStream) close() {
	close(s.stop)
	s.done.Wait()
	// The connection may serve further requests. Where it cannot have a deadline it has none.
	_ = http.NewResponseController(s.c.Writer).SetWriteDeadline(time.Time{})
}
