package sse

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
)

// slowWriter is a connection whose reader takes so long for each write, on a clock of its own. It keeps the deadline that was set.
type slowWriter struct {
	*httptest.ResponseRecorder
	now      time.Time
	each     time.Duration
	deadline time.Time
}

func (w *slowWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

func (w *slowWriter) Write(b []byte) (int, error) {
	if w.now = w.now.Add(w.each); w.now.After(w.deadline) {
		return 0, errors.New("write: deadline exceeded")
	}
	return len(b), nil
}

func (w *slowWriter) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// A reader who takes nothing for the time of a write, or too little over several writes, is given up; one who takes enough is not, for as long as it lasts.
func TestSlowReaders(t *testing.T) {
	for _, c := range []struct {
		name  string
		each  time.Duration
		bytes int
		want  int // events until it is given up; 0: it is not
	}{
		{"quick", time.Millisecond, 100, 0},
		{"slow, but enough for events of that size", time.Second, 1100, 0},
		{"nothing", 2 * time.Minute, 100, 1},
		{"a little at a time", 10 * time.Second, 100, 7},
		{"a little at a time, more often", time.Second, 10, 61},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), now: time.Unix(1_000_000, 0), each: c.each}
			g, _ := gin.CreateTestContext(w)
			g.Request = httptest.NewRequest(http.MethodPost, "/", nil)
			s := New(g, Comment)
			s.now = func() time.Time { return w.now }
			defer s.Close()
			for i := 1; i <= 2000; i++ {
				if err := s.Write(strings.Repeat("x", c.bytes)); err != nil {
					if i < c.want || i > c.want+1 {
						t.Errorf("given up with event %d, %v; want event %d", i, err, c.want)
					}
					return
				}
			}
			if c.want > 0 {
				t.Error("not given up")
			}
		})
	}
}
