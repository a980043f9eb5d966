package anthropic

import (
	"net/http"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/inference/inferencetest"
)

// FuzzRequests sends arbitrary bodies. Whatever comes is answered with a message, a count, or a 4xx that says why; never with a 500.
func FuzzRequests(f *testing.F) {
	for _, body := range []string{
		asking("hello").Text(), asking([]object{text("a"), {"type": "tool_result", "tool_use_id": "x", "content": []object{text("b")}, "is_error": true}}).Text(),
		asking("hello").With(fields{"system": []object{text("x")}, "tools": []fields{weather, {"type": "web_search_20250305"}}, "tool_choice": fields{"type": "auto"}, "thinking": fields{"type": "adaptive", "display": "omitted"}, "stop_sequences": []string{"a"}}).Text(),
		`{"model":"tinsmith/tiny-chat","max_tokens":3,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"tin1.YQ"},{"type":"tool_use","id":"a","name":"f","input":{"_raw_arguments":"{"}}]},{"role":"user","content":[{"type":"mid_conv_system","content":"b"},{"type":"text","text":"c"}]},{"role":"assistant","content":"d"}]}`,
		`{"model":"tinsmith/tiny-chat","max_tokens":3,"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a"}]}],"output_config":{"effort":"low","format":{"type":"json_schema","schema":{}}},"stream":true}`,
		`[]`, `{`, `{"model":"tinsmith/tiny-chat","max_tokens":1,"messages":[null]}`,
	} {
		for route := range 2 {
			f.Add(byte(route), []byte(body))
		}
	}
	w := newWorld(f, inferencetest.Options{Backend: `"max_context_length": 64,`})
	f.Fuzz(func(t *testing.T, route byte, body []byte) {
		w := &world{w.On(t), w.header}
		path := [2]string{"/v1/messages", "/v1/messages/count_tokens"}[route%2]
		status, header, b := w.Send(http.MethodPost, path, string(body), w.header)
		switch {
		case status == http.StatusOK && header.Get("Content-Type") != "application/json": // a stream
		case status == http.StatusOK:
			if answer := parsed(t, b); answer["type"] != "message" && answer["input_tokens"] == nil {
				t.Errorf("answer %s", b)
			}
		case status >= 400 && status < 500:
			if answer := parsed(t, b); answer["type"] != "error" {
				t.Errorf("%d %s", status, b)
			}
		default:
			t.Errorf("%d %s", status, b)
		}
	})
}
