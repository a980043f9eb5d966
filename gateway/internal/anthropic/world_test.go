package anthropic

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/inference/inferencetest"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	goleak.VerifyTestMain(m)
}

type fields = inferencetest.Fields

// world is a server that answers this API.
type world struct {
	*inferencetest.World
	header http.Header // sent with every request
}

func newWorld(t testing.TB, o inferencetest.Options) *world {
	t.Helper()
	o.Routes = func(s *inference.Service) []func(gin.IRouter) { return []func(gin.IRouter){New(s).Register} }
	return &world{inferencetest.New(t, o), http.Header{"Anthropic-Version": {"2023-06-01"}}}
}

func asking(content any) fields {
	return fields{"model": inferencetest.ModelName, "max_tokens": 200, "messages": []fields{{"role": "user", "content": content}}}
}

// object is a JSON object as a client reads it.
type object = map[string]any

func parsed(t testing.TB, text []byte) object {
	t.Helper()
	var out object
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

// whole asks for a whole answer.
func (w *world) whole(f fields) object {
	w.Helper()
	status, header, b := w.Send(http.MethodPost, "/v1/messages", f.Text(), w.header)
	if status != http.StatusOK {
		w.Fatalf("%d %s", status, b)
	}
	if !strings.HasPrefix(header.Get("Request-Id"), "req_") {
		w.Errorf("request id %q", header.Get("Request-Id"))
	}
	return parsed(w, b)
}

// sent is an event of a stream.
type sent struct {
	name string
	data object
}

// events asks for a stream and gives its events.
func (w *world) events(f fields) []sent {
	w.Helper()
	status, header, b := w.Send(http.MethodPost, "/v1/messages", f.With(fields{"stream": true}).Text(), w.header)
	if status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		w.Fatalf("%d %s %s", status, header.Get("Content-Type"), b)
	}
	var out []sent
	for _, text := range strings.Split(strings.TrimSuffix(string(b), "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(text, "\n")
		if !ok || !strings.HasPrefix(name, "event: ") || !strings.HasPrefix(data, "data: ") || strings.Contains(data, "\n") {
			w.Fatalf("not an event: %q", text)
		}
		out = append(out, sent{strings.TrimPrefix(name, "event: "), parsed(w, []byte(strings.TrimPrefix(data, "data: ")))})
	}
	for _, e := range out {
		if e.data["type"] != e.name {
			w.Errorf("the event %q is of the type %v", e.name, e.data["type"])
		}
	}
	return out
}

// accumulate puts a stream together as the SDKs do: what is there is added to.
func accumulate(t testing.TB, events []sent) object {
	t.Helper()
	var out object
	inputs := map[int]string{}
	for _, e := range events {
		switch e.name {
		case "message_start":
			out = e.data["message"].(object)
		case "content_block_start":
			out["content"] = append(out["content"].([]any), e.data["content_block"])
		case "content_block_delta":
			at := int(e.data["index"].(float64))
			block, d := out["content"].([]any)[at].(object), e.data["delta"].(object)
			switch d["type"] {
			case "text_delta":
				block["text"] = block["text"].(string) + d["text"].(string)
			case "thinking_delta":
				block["thinking"] = block["thinking"].(string) + d["thinking"].(string)
			case "signature_delta":
				block["signature"] = d["signature"]
			case "input_json_delta":
				inputs[at] += d["partial_json"].(string)
				var input object
				if json.Unmarshal([]byte(inputs[at]), &input) == nil {
					block["input"] = input
				}
			default:
				t.Fatalf("unknown delta %v", d)
			}
		case "message_delta":
			for key, value := range e.data["delta"].(object) {
				out[key] = value
			}
			for key, value := range e.data["usage"].(object) {
				out["usage"].(object)[key] = value
			}
		}
	}
	return out
}

// blocks tell in short what is in an answer.
func blocks(answer object) (out []string) {
	for _, b := range answer["content"].([]any) {
		block := b.(object)
		switch block["type"] {
		case "text":
			out = append(out, "text: "+block["text"].(string))
		case "thinking":
			out = append(out, "thinking: "+block["thinking"].(string))
		case "tool_use":
			input, err := json.Marshal(block["input"])
			if err != nil {
				panic(err)
			}
			out = append(out, "call: "+block["name"].(string)+string(input))
		}
	}
	return out
}

// withoutIDs takes away what differs between two answers to one request.
func withoutIDs(answer object) object {
	delete(answer, "id")
	for _, b := range answer["content"].([]any) {
		delete(b.(object), "id")
	}
	return answer
}

// prompt is the text that the model gets.
func (w *world) prompt(f fields) string {
	w.Helper()
	w.Says("x")
	answer := w.whole(f.With(fields{"return_token_ids": true}))
	var ids []int32
	for _, id := range answer["prompt_token_ids"].([]any) {
		ids = append(ids, int32(id.(float64)))
	}
	count, usage := w.count(f), answer["usage"].(object)
	if n := usage["input_tokens"].(float64) + usage["cache_read_input_tokens"].(float64); count != len(ids) || int(n) != count {
		w.Errorf("%d tokens are counted, %v used, of %d", count, usage, len(ids))
	}
	return w.Model.Tokenizer.Decode(ids, false)
}

// count asks how many tokens a prompt has.
func (w *world) count(f fields) int {
	w.Helper()
	f = f.With(nil)
	delete(f, "max_tokens")
	status, _, b := w.Send(http.MethodPost, "/v1/messages/count_tokens?beta=true", f.Text(), w.header)
	out := parsed(w, b)
	if status != http.StatusOK || len(out) != 1 {
		w.Fatalf("%d %s", status, b)
	}
	return int(out["input_tokens"].(float64))
}

// refused demands an error whose message has all the words.
func (w *world) refused(path, body string, status int, kind string, words ...string) {
	w.Helper()
	got, header, b := w.Send(http.MethodPost, path, body, w.header)
	if got != status {
		w.Fatalf("status %d, want %d: %s", got, status, b)
	}
	answer := parsed(w, b)
	e, _ := answer["error"].(object)
	message, _ := e["message"].(string)
	want := object{"type": "error", "error": object{"type": kind, "message": message}, "request_id": header.Get("Request-Id")}
	if !reflect.DeepEqual(answer, want) || !strings.HasPrefix(header.Get("Request-Id"), "req_") {
		w.Errorf("answer %s, want %v", b, want)
	}
	for _, word := range words {
		if !strings.Contains(message, word) {
			w.Errorf("%q does not say %q", message, word)
		}
	}
}
