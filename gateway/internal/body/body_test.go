package body

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

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
			got, err := newMemory(MaxTotalBytes).claim("ann").Read(r, plugins.MaxBodyBytes)
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

func TestConnectionError(t *testing.T) {
	gone := errors.New("gone")
	r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(bytes.NewReader(gzipped(t, []byte("x"))[:12]), failing{gone}))
	r.Header.Set("Content-Encoding", "gzip")
	if _, err := newMemory(MaxTotalBytes).claim("ann").Read(r, plugins.MaxBodyBytes); !errors.Is(err, gone) {
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
		if got, err := newMemory(MaxTotalBytes).claim("ann").Read(r, plugins.MaxBodyBytes); err == nil && len(got) > plugins.MaxBodyBytes {
			t.Errorf("%d bytes", len(got))
		}
	})
}
