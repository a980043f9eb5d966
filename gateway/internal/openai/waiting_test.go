package openai

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

// TestStreamsBeginWhileTheyWait: the head of a stream comes before there is a token, so that no proxy gives the request up; what is wrong with a request still has its status.
func TestStreamsBeginWhileTheyWait(t *testing.T) {
	w := newWorld(t, options{backend: `"delays": [{"operation": "token", "seconds": 3600}],`})
	for path, ask := range map[string]fields{"/v1/chat/completions": asking("hi"), "/v1/completions": completing("hi"), "/v1/responses": responding("hi")} {
		body := ask.with(fields{"stream": true})
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, strings.NewReader(body.text()))
		w.ok(err)
		res, err := w.client.Do(req)
		w.ok(err)
		if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
			t.Errorf("%s: %d %v", path, res.StatusCode, res.Header)
		}
		cancel()
		_ = res.Body.Close()
		w.refused(http.MethodPost, path, body.with(fields{"top_p": 2}).text(), http.StatusBadRequest, "top_p", "", "2")
	}
	w.eventually(func() bool { return w.core.Stats().Generations == 0 })
}
