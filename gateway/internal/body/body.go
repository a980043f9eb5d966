// Package body reads HTTP request bodies that may be hostile: compressed or not, never more than a bound, before and after decompression, and all of them together never more memory than Memory has,
// which is shared by key. It also writes those of answers.
package body

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/klauspost/compress/zstd"

	"github.com/tinsmith/tinsmith/plugins"
)

// MaxTextBytes bounds bodies of JSON, on the wire and decoded. Only training data are larger, and those are protobuf.
const MaxTextBytes = 16 << 20

// Error is a body that is refused, with the HTTP status that says so.
type Error struct {
	Status  int
	Message string
}

// Error gives the message.
func (e *Error) Error() string { return e.Message }

// Read reads and decompresses the whole body: identity, gzip or zstd, at most `most` bytes on the wire and as many decoded. Errors are *Error values, except those of the connection. Memory is claimed
// for what has arrived, and for what a decoder needs; it stays claimed until Release. What is refused is read to its end all the same, if that is not far, and forgotten: a client that still sends is told
// by its system that the connection is broken, and never sees the refusal.
func (c *Claim) Read(r *http.Request, most int64) ([]byte, error) {
	out, err := c.read(r, most)
	if err == nil {
		return out, nil
	}
	var refused *Error
	if errors.As(err, &refused) && (refused.Status == http.StatusRequestEntityTooLarge || refused.Status == http.StatusServiceUnavailable) {
		c.Release()
		if r.Header.Get("Expect") == "" { // who expects to be told before it sends is told
			_, _ = io.CopyN(io.Discard, r.Body, plugins.MaxBodyBytes)
		}
	}
	return out, err
}

func (c *Claim) read(r *http.Request, most int64) ([]byte, error) {
	if r.ContentLength > most {
		return nil, tooLarge("body", most)
	}
	encoding := r.Header.Get("Content-Encoding")
	plain := encoding == "" || encoding == "identity"
	if plain && r.ContentLength >= 0 && r.ContentLength <= smallBytes {
		out := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, out); err != nil {
			return nil, fmt.Errorf("read body: %w", err)
		}
		return out, nil
	}
	c.move(r)
	defer c.settle()
	raw := &counted{r: io.LimitReader(r.Body, most+1)}
	decoded, closeDecoder, err := c.decoder(encoding, raw, most)
	if err != nil {
		return nil, err
	}
	defer closeDecoder()
	hint := int64(-1)
	if plain {
		hint = r.ContentLength
	}
	out, err := c.collect(decoded, hint, most)
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case raw.err != nil:
		return nil, fmt.Errorf("read body: %w", raw.err)
	case raw.n > most:
		return nil, tooLarge("body", most)
	case int64(len(out)) > most || errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, tooLarge("decompressed body", most)
	case err != nil && !plain:
		return nil, broken(encoding, err)
	case err != nil:
		return nil, fmt.Errorf("read body: %w", err)
	}
	return out, nil
}

// decoder undoes the encoding, and claims what that takes beside the result.
func (c *Claim) decoder(encoding string, raw io.Reader, most int64) (decoded io.Reader, closeDecoder func(), err error) {
	switch encoding {
	case "", "identity":
		return raw, func() {}, nil
	case "gzip":
		if err := c.Take(gzipBytes); err != nil {
			return nil, nil, err
		}
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, nil, broken(encoding, err)
		}
		return z, func() { z.Close() }, nil
	case "zstd":
		// A frame's window decides how much memory the decoder takes before the first byte: it is bounded like the result, and that of the first frame bounds those of the others.
		peeked := bufio.NewReader(raw)
		beginning, _ := peeked.Peek(zstd.HeaderMaxSize) // shorter ones are whole, and an error is there for the decoder too
		var h zstd.Header
		window := uint64(leastWindow)
		if h.Decode(beginning) == nil && !h.Skippable {
			window = max(window, h.WindowSize, h.FrameContentSize)
		}
		if window > uint64(most) {
			return nil, nil, tooLarge("decompressed body", most)
		}
		if h.WindowSize > leastWindow {
			err = c.Take(int64(h.WindowSize))
		} else {
			err = c.Take(leastWindow)
		}
		if err != nil {
			return nil, nil, err
		}
		z, err := zstd.NewReader(peeked, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(window), zstd.WithDecoderMaxWindow(window))
		if err != nil {
			return nil, nil, broken(encoding, err)
		}
		return z, z.Close, nil
	}
	return nil, nil, &Error{http.StatusUnsupportedMediaType, fmt.Sprintf("content-encoding: %.40q is not one of identity, gzip, zstd", encoding)}
}

const (
	gzipBytes   = 64 << 10 // of its decoder
	leastWindow = 1 << 20  // that a zstd decoder is let have
)

// collect reads all of r, but not much more than most bytes. It claims memory before it makes its buffer larger, which it does when that is full: length is only what the client says will come, -1 if
// it says nothing.
func (c *Claim) collect(r io.Reader, length, most int64) ([]byte, error) {
	if length < 0 {
		length = most
	}
	length++ // one more tells whether that was all
	out := make([]byte, 0, min(length, smallBytes))
	if err := c.Take(int64(cap(out))); err != nil {
		return nil, err
	}
	for {
		if len(out) == cap(out) {
			if int64(len(out)) > most {
				return out, nil
			}
			size := min(2*int64(cap(out)), max(length, int64(cap(out))+smallBytes))
			if err := c.Take(size - int64(cap(out))); err != nil {
				return nil, err
			}
			grown := make([]byte, len(out), size)
			copy(grown, out)
			out = grown
		}
		n, err := r.Read(out[len(out):cap(out)])
		out = out[:len(out)+n]
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// valueBytes are about what one value of a JSON document takes that is decoded, beside its text.
const valueBytes = 96

// TakeJSON claims what a JSON document will take that is decoded, where that is much: a few values may be long texts, of which there will be so many copies, and many values take more than their text.
func (c *Claim) TakeJSON(b []byte, copies int64) error {
	if len(b) <= smallBytes {
		return nil
	}
	return c.Take(copies*int64(len(b)) + valueBytes*int64(countValues(b)))
}

// countValues counts what separates values, outside of texts. Of what is no JSON it says nothing, but no text hides what a decoder would take for values before it finds the fault.
func countValues(b []byte) int {
	n := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case ',', ':', '[', '{':
			n++
		case '"':
			for i++; i < len(b); i += 2 { // over an escape
				next := bytes.IndexAny(b[i:], "\"\\")
				if next < 0 {
					return n
				}
				if i += next; b[i] == '"' {
					break
				}
			}
		}
	}
	return n
}

func tooLarge(what string, most int64) error {
	return &Error{http.StatusRequestEntityTooLarge, fmt.Sprintf("%s: more than the %d bytes that it may have", what, most)}
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

// Send writes an answer in one piece with its length: a 400 without Content-Length is taken for a proxy's fault by the Tinker SDK, and repeated. A large answer is in memory until its reader has taken
// it, and is what the request has from now on: everything else is given back. Who claims it before it is made waits for memory before there is an answer, and not with one. The error is Take's, and nothing was written
// then.
func (c *Claim) Send(w http.ResponseWriter, r *http.Request, status int, contentType string, b []byte) error {
	if len(b) <= largeAnswer {
		Send(w, r, status, contentType, b)
		return nil
	}
	if err := c.keep(int64(len(b))); err != nil {
		return err
	}
	c.move(r)
	defer c.settle()
	Send(w, r, status, contentType, b)
	return nil
}

// TakeAnswer claims about so many bytes for an answer that is to be made, where that is much.
func (c *Claim) TakeAnswer(n int64) error {
	if n <= largeAnswer {
		return nil
	}
	return c.Take(n)
}

// largeAnswer is more than what goes into the connection's buffers, whoever reads it or not.
const largeAnswer = 64 << 10

// Send is Claim.Send for an answer that is not counted, such as a refusal.
func Send(w http.ResponseWriter, r *http.Request, status int, contentType string, b []byte) {
	h, values := w.Header(), [...]string{contentType, strconv.Itoa(len(b))}
	h["Content-Type"], h["Content-Length"] = values[:1:1], values[1:]
	w.WriteHeader(status)
	if _, err := w.Write(b); err != nil {
		slog.DebugContext(r.Context(), "client went away during the answer", "path", where(r), "error", err)
	}
}

// SendJSON is Send of a value as JSON; where that cannot be encoded, which is our fault, failure is sent with status 500 and the fault logged.
func (c *Claim) SendJSON(w http.ResponseWriter, r *http.Request, status int, value any, failure []byte) error {
	status, b := encode(r, status, value, failure)
	return c.Send(w, r, status, "application/json", b)
}

// SendJSON is Claim.SendJSON for an answer that is not counted.
func SendJSON(w http.ResponseWriter, r *http.Request, status int, value any, failure []byte) {
	status, b := encode(r, status, value, failure)
	Send(w, r, status, "application/json", b)
}

func encode(r *http.Request, status int, value any, failure []byte) (int, []byte) {
	b, err := json.Marshal(value)
	if err != nil {
		slog.ErrorContext(r.Context(), "answer cannot be encoded", "path", where(r), "error", err)
		return http.StatusInternalServerError, failure
	}
	return status, b
}
