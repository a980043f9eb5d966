package sse

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
)

// TestKeptOpen: the head goes out soon after a request is accepted, and while nothing is sent there are comments, or from the first event on the API's own pings.
func TestKeptOpen(t *testing.T) {
	type step struct {
		wait time.Duration
		send string
		want string // all that has been sent by then
	}
	const own = "event: ping\ndata: {}\n\n"
	for _, c := range []struct {
		name, ping string
		steps      []step
	}{
		{"comments", Comment, []step{
			{beginAfter / 2, "", ""},
			{14 * time.Second, "", ""},
			{2 * time.Second, "", Comment},
			{15 * time.Second, "a\n\n", Comment + Comment},
			{10 * time.Second, "b\n\n", Comment + Comment + "a\n\n"},
			{10 * time.Second, "c\n\n", Comment + Comment + "a\n\nb\n\n"},
			{16 * time.Second, "", Comment + Comment + "a\n\nb\n\nc\n\n" + Comment},
		}},
		{"an API's own", own, []step{
			{16 * time.Second, "a\n\n", Comment},
			{10 * time.Second, "b\n\n", Comment + "a\n\n"},
			{10 * time.Second, "", Comment + "a\n\nb\n\n" + own},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := streamed(c.ping)
				defer s.Close()
				s.Accept()
				for i, step := range c.steps {
					time.Sleep(step.wait)
					synctest.Wait()
					s.mu.Lock()
					got, begun := w.Body.String(), w.Flushed
					s.mu.Unlock()
					if got != step.want {
						t.Fatalf("step %d: %q, want %q", i, got, step.want)
					}
					if begun != (i > 0 || step.wait > beginAfter) {
						t.Fatalf("step %d: the head has gone out: %v", i, begun)
					}
					if step.send == "" {
						continue
					}
					if err := s.Write(step.send); err != nil {
						t.Fatal(err)
					}
				}
				if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/event-stream; charset=utf-8" {
					t.Errorf("%d, %v", w.Code, w.Header())
				}
			})
		})
	}
}

// TestRefusedAtOnce: an error that comes soon enough is an ordinary answer, and nothing is sent after it.
func TestRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := streamed(Comment)
		defer s.Close()
		s.Accept()
		time.Sleep(beginAfter / 2)
		refusal := errors.New("no room")
		if err := s.End(refusal, func(error) error { t.Error("last events of a stream that has not begun"); return nil }); !errors.Is(err, refusal) {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.Flushed || w.Body.Len() > 0 {
			t.Errorf("%q was sent", w.Body)
		}
	})
}

func streamed(ping string) (*Stream, *httptest.ResponseRecorder) {
	w := httptest.NewRecorder()
	g, _ := gin.CreateTestContext(w)
	g.Request = httptest.NewRequest(http.MethodPost, "/", nil)
	return New(g, ping), w
}
