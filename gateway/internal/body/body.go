// Package body reads HTTP request bodies that may be hostile: compressed or not, never more than a bound, before and after decompression. It also writes those of answers.
package body

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/tinsmith/tinsmith/plugins"
)

// reserve is how much memory a request's Content-Length alone can claim.
const reserve = 1 << 20

// MaxTotalBytes bounds what the larger bodies of all requests that are being answered take together: one of them may have plugins.MaxBodyBytes, and any number may come at once.
const MaxTotalBytes = 16 * plugins.MaxBodyBytes

// total is what they take now.
var total atomic.Int64

// sendTimeout is how long a client may take for a large answer, which is in memory until then.
var sendTimeout = 10 * time.Minute

// Error is a body that is refused, with the HTTP status that says so.
type Error struct {
	Status  int
	Message string
}

// Error gives the message.
func (e *Error) Error() string { return e.Message }

// Read reads and decompresses the whole body: identity, gzip or zstd, at most plugins.MaxBodyBytes on the wire and as many decoded. Errors are *Error values,
// except those of the connection; 503 while the bodies of all requests take MaxTotalBytes. A body counts until the context of its request ends.
func Read(r *http.Request) ([]byte, error) {
	if r.ContentLength > plugins.MaxBodyBytes {
		return nil, tooLarge("body")
	}
	encoding := r.Header.Get("Content-Encoding")
	if (encoding == "" || encoding == "identity") && r.ContentLength >= 0 && r.ContentLength <= reserve {
		out := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, out); err != nil {
			return nil, fmt.Errorf("read body: %w", err)
		}
		return out, nil
	}
	raw := &counted{r: io.LimitReader(r.Body, plugins.MaxBodyBytes+1)}
	var decoded io.Reader
	switch encoding {
	case "", "identity":
		decoded = raw
	case "gzip":
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, broken(encoding, err)
		}
		defer z.Close()
		decoded = z
	case "zstd":
		// A frame's window decides how much memory the decoder takes before the first byte: it is bounded like the result.
		z, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(plugins.MaxBodyBytes), zstd.WithDecoderMaxWindow(plugins.MaxBodyBytes))
		if err != nil {
			return nil, broken(encoding, err)
		}
		defer z.Close()
		decoded = z
	default:
		return nil, &Error{http.StatusUnsupportedMediaType, fmt.Sprintf("content-encoding: %.40q is not one of identity, gzip, zstd", encoding)}
	}
	var out metered
	defer func() { context.AfterFunc(r.Context(), out.release) }()
	if encoding == "" && r.ContentLength > 0 {
		out.Grow(reserve) // a length is a claim: more is taken as it comes
	}
	n, err := io.Copy(&out, io.LimitReader(decoded, plugins.MaxBodyBytes+1))
	switch {
	case errors.Is(err, errFull):
		return nil, errFull
	case raw.n > plugins.MaxBodyBytes:
		return nil, tooLarge("body")
	case n > plugins.MaxBodyBytes || errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, tooLarge("decompressed body")
	case err != nil && encoding != "" && raw.err == nil:
		return nil, broken(encoding, err)
	case err != nil:
		return nil, fmt.Errorf("read body: %w", err)
	}
	return out.Bytes(), nil
}

var errFull = &Error{http.StatusServiceUnavailable, fmt.Sprintf("the bodies of all requests take the %d MiB that they may have; repeat a little later", MaxTotalBytes>>20)}

// metered is a buffer that counts.
type metered struct {
	bytes.Buffer
	n int64
}

// Write implements io.Writer.
func (m *metered) Write(p []byte) (int, error) {
	m.n += int64(len(p))
	if total.Add(int64(len(p))) > MaxTotalBytes {
		return 0, errFull
	}
	return m.Buffer.Write(p)
}

// ReadFrom keeps io.Copy from the buffer's own method, which does not count.
func (m *metered) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{m}, r)
}

func (m *metered) release() { total.Add(-m.n) }

func tooLarge(what string) error {
	return &Error{http.StatusRequestEntityTooLarge, fmt.Sprintf("%s: more than %d bytes", what, plugins.MaxBodyBytes)}
}

func broken(encoding string, err error) error {
	return &Error{http.StatusBadRequest, fmt.Sprintf("body: not valid %s: %v", encoding, err)}
}

// counted counts what was read and keeps the connection's own error apart from those of the decoder.
type counted struct {
	r   io.Reader
	n   int64
	err error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// where names a request in the log. A path may end in a signed token, which is a key to one file; without its end it opens nothing.
func where(r *http.Request) string { return r.URL.Path[:min(len(r.URL.Path), 64)] }

// Send writes an answer in one piece with its length: a 400 without Content-Length is taken for a proxy's fault by the Tinker SDK, and repeated.
func Send(w http.ResponseWriter, r *http.Request, status int, contentType string, b []byte) {
	if len(b) > 64<<10 { // less goes into the connection's buffers, whoever reads it or not
		connection := http.NewResponseController(w)
		if connection.SetWriteDeadline(time.Now().Add(sendTimeout)) == nil {
			defer func() { _ = connection.SetWriteDeadline(time.Time{}) }() // the connection may serve further requests
		}
	}
	h, values := w.Header(), [...]string{contentType, strconv.Itoa(len(b))}
	h["Content-Type"], h["Content-Length"] = values[:1:1], values[1:]
	w.WriteHeader(status)
	if _, err := w.Write(b); err != nil {
		slog.DebugContext(r.Context(), "client went away during the answer", "path", where(r), "error", err)
	}
}

// SendJSON is Send of a value as JSON; where that cannot be encoded, which is our fault, failure is sent with status 500 and the fault logged.
func SendJSON(w http.ResponseWriter, r *http.Request, status int, value any, failure []byte) {
	b, err := json.Marshal(value)
	if err != nil {
		slog.ErrorContext(r.Context(), "answer cannot be encoded", "path", where(r), "error", err)
		status, b = http.StatusInternalServerError, failure
	}
	Send(w, r, status, "application/json", b)
}
