package cmd

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestModelsOfTwoAPIs: the header of one API's clients says in whose form models are told of.
func TestModelsOfTwoAPIs(t *testing.T) {
	w := newWorldWithKeys(t, "")
	for _, c := range []struct {
		path, header, want string
	}{
		{"/v1/models", "", `"object":"list"`},
		{"/v1/models", "2023-06-01", `"has_more":false`},
		{"/v1/models/" + served, "", `"object":"model"`},
		{"/v1/models/" + served, "2023-06-01", `"type":"model"`},
		{"/v1/models/none", "2023-06-01", `"not_found_error"`},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil)
		r.Host = "localhost"
		r.Header.Set("Anthropic-Version", c.header)
		answer := httptest.NewRecorder()
		w.handler.ServeHTTP(answer, r)
		if !strings.Contains(answer.Body.String(), c.want) {
			t.Errorf("%s with %q: %d %s", c.path, c.header, answer.Code, answer.Body)
		}
	}
}
