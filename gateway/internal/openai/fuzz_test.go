package openai

import (
	"encoding/json"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"net/http"
	"testing"
)

// FuzzRequests sends arbitrary bodies. Whatever comes is answered with a valid answer or a 4xx that says why; never with a 500.
func FuzzRequests(f *testing.F) {
	for _, body := range []string{
		asking("hello").text(), asking("hello").with(fields{"n": 2, "stop": []string{"a"}, "logprobs": true, "top_logprobs": 3, "logit_bias": fields{"5": 3}}).text(),
		completing("hello").text(), completing([][]int{{1, 2}, {3}}).with(fields{"echo": true, "logprobs": 1, "max_tokens": 0, "stop_token_ids": []int{4}}).text(),
		`{"model":"tinsmith/tiny-chat","messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]}`,
		`{"model":"tinsmith/tiny-chat","prompt":[1,null,-3,"a",[],{}]}`, `{"prompt":"a"}`, `{"tokens":[1,2]}`, `[]`, `{`, `{"model":"tinsmith/tiny-chat","seed":-1e5,"stop":[[]],"prompt":"x"}`,
		`{"token_ids":[1,2],"sampling_params":{"max_tokens":3,"logprobs":1,"n":2,"stop":["a"],"structured_outputs":{"choice":["a"]}},"prompt_logprobs":2}`, asking("hello").with(fields{"prompt_logprobs": 2, "session_id": "a/b", "return_datum": true}).text(),
	} {
		for route := range 5 {
			f.Add(byte(route), []byte(body))
		}
	}
	w := newWorld(f, options{backend: `"max_context_length": 64,`})
	routes := []struct{ path, schema string }{{"/v1/chat/completions", "CreateChatCompletionResponse"}, {"/v1/completions", "CreateCompletionResponse"}, {"/tokenize", ""}, {"/detokenize", ""}, {"/inference/v1/generate", ""}}
	f.Fuzz(func(t *testing.T, route byte, body []byte) {
		w := *w
		w.TB = t
		r := routes[int(route)%len(routes)]
		status, header, b := w.send(http.MethodPost, r.path, string(body))
		switch {
		case status == http.StatusOK && header.Get("Content-Type") == "application/json":
			if r.schema != "" {
				w.check(t, r.schema, withoutNulls(parsed(t, string(b))))
			}
		case status == http.StatusOK: // a stream
		case status >= 400 && status < 500:
			w.check(t, "ErrorResponse", parsed(t, string(b)))
		default:
			t.Errorf("%d %s", status, b)
		}
	})
}

// FuzzTokenIDs compares the reader of long lists with the JSON package's.
func FuzzTokenIDs(f *testing.F) {
	for _, s := range []string{"[]", "[1]", " [ 1 , 2 ] ", "[1,null]", "[-1]", "[1.0]", "[1e3]", "[\"1\"]", "[[1]]", "[00]", "[4294967297]", "5", "[9,10]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) {
			return
		}
		var want []*int32
		wrong := json.Unmarshal([]byte(text), &want) != nil || want == nil
		for _, id := range want {
			wrong = wrong || id == nil || *id < 0 || *id >= 10
		}
		got, err := inference.TokenIDs(json.RawMessage(text), 10)
		if (err != nil) != wrong {
			t.Fatalf("%q: %v, %v", text, got, err)
		}
		for i := range got {
			if got[i] != *want[i] {
				t.Fatalf("%q: %v", text, got)
			}
		}
	})
}
