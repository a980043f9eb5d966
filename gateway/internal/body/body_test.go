package body

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/tinsmith/tinsmith/plugins"
)

func gzipped(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t testing.TB, b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

func TestRead(t *testing.T) {
	text := []byte("hello, hello, hello")
	bomb := make([]byte, plugins.MaxBodyBytes+1)
	exact := make([]byte, plugins.MaxBodyBytes)
	for _, c := range []struct {
		name, encoding string
		body           []byte
		unknownLength  bool
		want           []byte
		status         int
	}{
		{name: "plain", body: text, want: text},
		{name: "empty", body: nil, want: nil},
		{name: "gzip", encoding: "gzip", body: gzipped(t, text), want: text},
		{name: "zstd", encoding: "zstd", body: zstandard(t, text), want: text},
		{name: "largest", encoding: "zstd", body: zstandard(t, exact), want: exact},
		{name: "unknown encoding", encoding: "br", body: text, status: 415},
		{name: "not gzip", encoding: "gzip", body: text, status: 400},
		{name: "not zstd", encoding: "zstd", body: text, status: 400},
		{name: "cut gzip", encoding: "gzip", body: gzipped(t, text)[:20], status: 400},
		{name: "cut zstd", encoding: "zstd", body: zstandard(t, text)[:10], status: 400},
		{name: "gzip bomb", encoding: "gzip", body: gzipped(t, bomb), status: 413},
		{name: "zstd bomb", encoding: "zstd", body: zstandard(t, bomb), status: 413},
		{name: "too long", body: bomb, status: 413},
		{name: "too long in chunks", body: bomb, unknownLength: true, status: 413},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(c.body))
			if c.unknownLength {
				r.Body, r.ContentLength = io.NopCloser(io.MultiReader(bytes.NewReader(c.body))), -1
			}
			r.Header.Set("Content-Encoding", c.encoding)
			got, err := Read(r)
			var refused *Error
			if c.status != 0 {
				if !errors.As(err, &refused) || refused.Status != c.status {
					t.Errorf("got %v, want status %d", err, c.status)
				}
				return
			}
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("got %d bytes, %v; want %d", len(got), err, len(c.want))
			}
		})
	}
}

// While the bodies of other requests take all that there is, large ones are refused; they count until their requests end, and no longer if they are refused.
func TestTotal(t *testing.T) {
	read := func(ctx context.Context, n int) error {
		_, err := Read(httptest.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(make([]byte, n))))
		return err
	}
	before := total.Load()
	ctx, end := context.WithCancel(t.Context())
	if err := read(ctx, 3*reserve); err != nil {
		t.Fatal(err)
	}
	if got := total.Load() - before; got != 3*reserve {
		t.Errorf("a body of %d bytes counts %d", 3*reserve, got)
	}
	total.Add(MaxTotalBytes) // as if many were there
	var refused *Error
	busy, endBusy := context.WithCancel(t.Context())
	if err := read(busy, 2*reserve); !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable {
		t.Errorf("with all taken: %v", err)
	}
	if err := read(t.Context(), 100); err != nil {
		t.Errorf("a small one: %v", err)
	}
	total.Add(-MaxTotalBytes)
	end()
	endBusy()
	for total.Load() != before { // a test that hangs here says that something is counted for ever
		runtime.Gosched()
	}
}

// A client that does not read its answer does not hold it in memory for ever.
func TestUnreadAnswer(t *testing.T) {
	patience := sendTimeout
	sendTimeout = 50 * time.Millisecond
	defer func() { sendTimeout = patience }()
	sent := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Send(w, r, http.StatusOK, "application/octet-stream", make([]byte, plugins.MaxBodyBytes))
		close(sent)
	}))
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-sent
}

// A large answer has a deadline, and what comes after it on the same connection has none.
func TestAnswersShareAConnection(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Send(w, r, http.StatusOK, "application/octet-stream", make([]byte, 1<<20))
	}))
	defer s.Close()
	for range 3 {
		res, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || len(b) != 1<<20 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	}
}

func TestConnectionError(t *testing.T) {
	gone := errors.New("gone")
	r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(bytes.NewReader(gzipped(t, []byte("x"))[:12]), failing{gone}))
	r.Header.Set("Content-Encoding", "gzip")
	if _, err := Read(r); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func FuzzRead(f *testing.F) {
	f.Add("gzip", gzipped(f, []byte("abc")))
	f.Add("zstd", zstandard(f, []byte("abc")))
	f.Fuzz(func(t *testing.T, encoding string, body []byte) {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.Header.Set("Content-Encoding", encoding)
		if got, err := Read(r); err == nil && len(got) > plugins.MaxBodyBytes {
			t.Errorf("%d bytes", len(got))
		}
	})
}
