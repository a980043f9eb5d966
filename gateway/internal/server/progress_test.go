package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
)

// quick is a pace for clients that stand still: the shorter the sooner they are given up.
var quick = pace{pause: 100 * time.Millisecond, earned: 50 * time.Millisecond, step: 64 << 10}

// serving is a server with its address, until the end of the test.
func serving(t *testing.T, most int, p pace, h http.Handler) (*connections, string) {
	t.Helper()
	raw, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newConnections(raw, most)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- serve(ctx, l, nil, p, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l, raw.Addr().String()
}

// reads is a handler that reads the body as the APIs do, and says how long it was.
func reads(w http.ResponseWriter, r *http.Request) {
	claim := body.NewClaim("ann")
	defer claim.Release()
	b, err := claim.Read(r, body.MaxTextBytes)
	var refused *body.Error
	switch {
	case errors.As(err, &refused):
		body.Send(w, r, refused.Status, "text/plain", []byte(refused.Message))
	case err != nil:
		body.Send(w, r, http.StatusBadRequest, "text/plain", []byte(err.Error()))
	default:
		body.Send(w, r, http.StatusOK, "text/plain", fmt.Append(nil, len(b)))
	}
}

// client is a connection on which a test writes what it likes. A test that hangs on it says that the server left it open.
type client struct {
	*testing.T
	net.Conn
	from *bufio.Reader
}

func dial(t *testing.T, address, from string) client {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return client{t, c, bufio.NewReader(c)}
}

func (c client) says(text string) {
	c.Helper()
	if _, err := io.WriteString(c.Conn, text); err != nil {
		c.Fatal(err)
	}
}

// hears wants an answer with that status.
func (c client) hears(status int) *http.Response {
	c.Helper()
	answer, err := http.ReadResponse(c.from, nil)
	if err != nil {
		c.Fatalf("instead of a status %d: %v", status, err)
	}
	b, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != status {
		c.Fatalf("status %d %q %v, want %d", answer.StatusCode, b, err, status)
	}
	return answer
}

// ended wants no more than the end of the connection.
func (c client) ended() {
	c.Helper()
	if n, err := io.Copy(io.Discard, c.from); n > 0 {
		c.Errorf("%d bytes more, %v", n, err)
	}
}

const post = "POST / HTTP/1.1\r\nHost: x\r\n"

// A body that stands still is refused, however it is sent, and its connection is closed.
func TestStalledBodies(t *testing.T) {
	for _, c := range []struct {
		name, sent string
		status     int
	}{
		{"nothing of it", post + "Content-Length: 1000\r\n\r\n", 408},
		{"some of it", post + "Content-Length: 1000\r\n\r\nhello", 408},
		{"some of a large one", post + "Content-Length: 10000000\r\n\r\n" + strings.Repeat("hello", 20000), 408},
		{"chunks", post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 408},
		{"half a chunk", post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhe", 408},
		{"a trailer", post + "Transfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n5\r\nhello\r\n0\r\nX-A: b\r\n", 400}, // net/http takes it for a trailer that is too long,
		{"compressed", post + "Content-Encoding: gzip\r\nContent-Length: 1000\r\n\r\n\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", 408},
		{"compressed otherwise", post + "Content-Encoding: zstd\r\nContent-Length: 1000\r\n\r\n\x28\xb5\x2f", 408},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, address := serving(t, 100, quick, http.HandlerFunc(reads))
			one := dial(t, address, "127.0.0.1")
			one.says(c.sent)
			if answer := one.hears(c.status); !answer.Close {
				t.Error("the connection is not said to end")
			}
			one.ended()
		})
	}
}

// Whoever asks whether to send and then does not is refused as well.
func TestStalledBodyThatWasAskedFor(t *testing.T) {
	_, address := serving(t, 100, quick, http.HandlerFunc(reads))
	one := dial(t, address, "127.0.0.1")
	one.says(post + "Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
	one.hears(http.StatusContinue)
	one.hears(http.StatusRequestTimeout)
	one.ended()
}

// Each request of a connection has its own pace; one that is whole is answered before one that is not.
func TestPipelinedBodies(t *testing.T) {
	_, address := serving(t, 100, quick, http.HandlerFunc(reads))
	one := dial(t, address, "127.0.0.1")
	one.says(post + "Content-Length: 5\r\n\r\nhello" + post + "Content-Length: 3\r\n\r\nyes" + post + "Content-Length: 5\r\n\r\nhe")
	one.hears(http.StatusOK)
	one.hears(http.StatusOK)
	one.hears(http.StatusRequestTimeout)
	one.ended()
}

// A body that nobody reads, as of a request without a key, holds its connection no longer.
func TestStalledBodyThatNobodyReads(t *testing.T) {
	_, address := serving(t, 100, quick, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	for _, length := range []int{1000, 100 << 20} {
		one := dial(t, address, "127.0.0.1")
		one.says(post + fmt.Sprintf("Content-Length: %d\r\n\r\nhello", length))
		one.hears(http.StatusUnauthorized)
		one.ended()
	}
}

// A body that drips never stands still, and is given up all the same.
func TestDrippingBody(t *testing.T) {
	_, address := serving(t, 100, quick, http.HandlerFunc(reads))
	one := dial(t, address, "127.0.0.1")
	one.says(post + "Content-Length: 100000\r\n\r\n")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				if _, err := one.Write([]byte("x")); err != nil {
					return
				}
			}
		}
	}()
	one.hears(http.StatusRequestTimeout)
	close(stop)
	<-stopped
}

func TestPace(t *testing.T) {
	p := pace{pause: 30 * time.Second, earned: 10 * time.Second, step: 1000}
	for _, c := range []struct {
		before, took time.Duration
		n            int
		want         time.Duration
	}{
		{30 * time.Second, 0, 1000, 30 * time.Second},
		{30 * time.Second, 10 * time.Second, 1000, 30 * time.Second},
		{30 * time.Second, 25 * time.Second, 1000, 15 * time.Second},
		{30 * time.Second, 25 * time.Second, 100, 6 * time.Second},
		{5 * time.Second, time.Second, 10, 4100 * time.Millisecond},
		{time.Second, 0, 100 << 20, 30 * time.Second},
	} {
		if got := p.left(c.before, c.took, c.n); got != c.want {
			t.Errorf("%v, after %d bytes in %v: %v, want %v", c.before, c.n, c.took, got, c.want)
		}
	}
}

// A request that is whole may be held for as long as its handler likes: neither its body's deadline ends it nor that of the answer.
func TestHeldRequests(t *testing.T) {
	_, address := serving(t, 100, quick, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body) // it is whole
		select {
		case <-r.Context().Done():
			t.Errorf("a held request ended: %v", r.Context().Err())
		case <-time.After(5 * quick.pause):
		}
		w.WriteHeader(http.StatusOK)
	}))
	one := dial(t, address, "127.0.0.1")
	for range 2 {
		one.says("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		one.hears(http.StatusOK)
		one.says(post + "Content-Length: 5\r\n\r\nhello")
		one.hears(http.StatusOK)
		one.says(post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
		one.hears(http.StatusOK)
	}
}

// A client that does not read its answer does not hold it for ever, in one piece or in many.
func TestUnreadAnswers(t *testing.T) {
	for name, write := range map[string]func(http.ResponseWriter) error{
		"in one piece": func(w http.ResponseWriter) error {
			_, err := w.Write(make([]byte, 64<<20))
			return err
		},
		"in many": func(w http.ResponseWriter) (err error) {
			for i := 0; i < 64<<10 && err == nil; i++ {
				_, err = w.Write(make([]byte, 1<<10))
			}
			return err
		},
		"flushed": func(w http.ResponseWriter) (err error) {
			for i := 0; i < 1<<20 && err == nil; i++ {
				_, err = w.Write(make([]byte, 64))
				err = errors.Join(err, http.NewResponseController(w).Flush())
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			result := make(chan error, 1)
			_, address := serving(t, 100, quick, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { result <- write(w) }))
			dial(t, address, "127.0.0.1").says("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if err := <-result; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the handler's error is %v", err)
			}
		})
	}
}

// A client that sends requests and reads no answer is given up, however small the answers are.
func TestUnreadSmallAnswers(t *testing.T) {
	l, address := serving(t, 100, quick, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<10)) }))
	one := dial(t, address, "127.0.0.1")
	for {
		if _, err := io.WriteString(one.Conn, strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1000)); err != nil {
			break // the server has closed it; else the test hangs here
		}
	}
	for l.count() > 0 {
		time.Sleep(time.Millisecond) // as above
	}
}

// count is how many connections are open.
func (l *connections) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// The end of a key sets deadlines while the handler writes: only the race detector finds fault here.
func TestDeadlineFromElsewhere(t *testing.T) {
	_, address := serving(t, 10, ordinary, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		set := make(chan error)
		go func() { set <- http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)) }()
		_, err := w.Write(make([]byte, 100<<10))
		if err = errors.Join(err, <-set); err != nil {
			t.Error(err)
		}
	}))
	c := dial(t, address, "127.0.0.1")
	c.says(post + "\r\n")
	c.hears(http.StatusOK)
}

// A handler that sets write deadlines itself is left alone.
func TestHandlersOwnDeadline(t *testing.T) {
	var result sync.WaitGroup
	result.Add(1)
	_, address := serving(t, 100, quick, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer result.Done()
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Error(err)
		}
		if _, err := w.Write(make([]byte, 32<<20)); err != nil {
			t.Errorf("the answer ended: %v", err)
		}
	}))
	one := dial(t, address, "127.0.0.1")
	one.says("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	time.Sleep(5 * quick.pause)
	one.hears(http.StatusOK)
	result.Wait()
}

// Large answers and requests share a connection, however long it rests between them.
func TestAnswersShareAConnection(t *testing.T) {
	p := pace{pause: time.Second, earned: time.Second, step: 64 << 10} // this client is honest, and the machine may be busy
	_, address := serving(t, 100, p, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body.Send(w, r, http.StatusOK, "application/octet-stream", make([]byte, 1<<20))
	}))
	one := dial(t, address, "127.0.0.1")
	for range 3 {
		one.says("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		one.hears(http.StatusOK)
		time.Sleep(p.pause * 5 / 4)
	}
}
