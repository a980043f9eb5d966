package openai

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// begin sends a request and gives the answer as soon as it begins.
func (w *world) begin(path string, f fields) *http.Response {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), http.MethodPost, w.url+path, strings.NewReader(f.text()))
	w.ok(err)
	req.Header.Set("Authorization", "Bearer "+w.key)
	res, err := w.client.Do(req)
	w.ok(err)
	return res
}

// A key that is revoked ends what it has asked for: a stream tells why in its last event, an answer that has not begun is a refusal. The places in the batch are free after that.
func TestRevokedKey(t *testing.T) {
	for _, c := range []struct {
		name, path string
		request    fields
	}{
		{"chat", "/v1/chat/completions", asking("hello")},
		{"completion", "/oai/api/v1/completions", completing("hello")},
		{"response", "/v1/responses", fields{"model": modelName, "input": "hello", "max_output_tokens": 1900}},
	} {
		for _, streamed := range []bool{true, false} {
			name := c.name + " as a whole"
			if streamed {
				name = c.name + " streamed"
			}
			t.Run(name, func(t *testing.T) {
				path, made := keysFile(t, "ann", "bob")
				w := newWorld(t, options{keys: path, backend: `"delays": [{"operation": "token", "seconds": 0.02}],`})
				w.key = made["ann"]
				request := c.request.with(fields{"stream": streamed})
				if c.path != responsesPath {
					request = request.with(fields{"max_tokens": 1900})
				}
				idle := w.core.Stats()
				if streamed {
					res := w.begin(c.path, request)
					defer res.Body.Close()
					lines := bufio.NewReader(res.Body)
					first, err := lines.ReadString('\n')
					if err != nil || res.StatusCode != http.StatusOK || !strings.HasPrefix(first, "data: {") && first != "event: response.created\n" {
						t.Fatalf("%d %q, %v", res.StatusCode, first, err)
					}
					w.ok(w.auth.Ring.Revoke(w.key))
					rest, err := io.ReadAll(lines)
					events := strings.Split(strings.TrimSpace(string(rest)), "\n\n")
					last := events[len(events)-1]
					if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(last, "the API key was revoked") || !strings.Contains(string(rest), `"code":"invalid_api_key"`) {
						t.Errorf("the stream ends with %q, %v", last, err)
					}
				} else {
					answers := make(chan *http.Response, 1)
					go func() { answers <- w.begin(c.path, request) }()
					w.eventually(func() bool { return w.core.Stats() != idle })
					w.ok(w.auth.Ring.Revoke(w.key))
					res := <-answers
					defer res.Body.Close()
					if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusUnauthorized || !strings.Contains(string(b), "the API key was revoked") {
						t.Errorf("%d %s, %v", res.StatusCode, b, err)
					}
				}
				w.eventually(func() bool { return w.core.Stats() == idle })
				w.refused(http.MethodGet, "/v1/models", "", http.StatusUnauthorized, "", "invalid_api_key")
				w.key = made["bob"]
				if status, _, b := w.send(http.MethodGet, "/v1/models", ""); status != http.StatusOK {
					t.Errorf("another key: %d %s", status, b)
				}
			})
		}
	}
}
