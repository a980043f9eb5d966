package openai

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"
)

// TestResponseTokens: a response tells of all tokens that were read and sampled, the same whole and streamed, and of the log-probabilities of those that its messages are made of.
func TestResponseTokens(t *testing.T) {
	w := newWorld(t, options{})
	end, _ := w.model.Tokenizer.ID("<|im_end|>")
	for _, c := range []struct {
		name, says string
		change     fields
		logprobs   string // the text whose tokens have log-probabilities
		all        bool
	}{
		{"content", "Hello there", nil, "Hello there", true},
		{"thoughts and a call", "<think>hm</think>" + oneCall, fields{"tools": []fields{flat(weather)}}, "", true},
		{"thoughts, content and a call", "<think>\nhm\n</think>\n\nHello there.\n" + oneCall, fields{"tools": []fields{flat(weather)}}, "Hello there.", true},
		{"cut by its length", "Hello there, you", fields{"max_output_tokens": 3}, "", false},
		{"nothing", "", nil, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.says(c.says)
			ask := responding("hello").with(fields{"return_token_ids": true, "include": []string{"message.output_text.logprobs"}, "top_logprobs": 2, "return_datum": true}).with(c.change)
			whole := w.respond(ask)
			prompt, sampled, _ := prefixOf(whole)
			said := encoded(t, w.model.Tokenizer, c.says)
			if c.all && !slices.Equal(sampled, append(slices.Clone(said), end)) || !c.all && !slices.Equal(sampled, said[:len(sampled)]) || len(sampled) == 0 {
				t.Errorf("tokens %v of %v", sampled, said)
			}
			events, last := w.followed(ask)
			var streamed []int32
			for i, e := range events {
				p, s, _ := prefixOf(e)
				streamed = append(streamed, s...)
				if (i == 0) != (p != nil) || i == 0 && !slices.Equal(p, prompt) {
					t.Errorf("event %d has the prompt %v", i, p)
				}
				if _, ok := e["token_ids"]; !ok {
					t.Errorf("%v has no tokens", e)
				}
			}
			if !slices.Equal(streamed, sampled) {
				t.Errorf("streamed %v, whole %v", streamed, sampled)
			}
			for _, key := range []string{"prompt_token_ids", "token_ids", "weight_version", "model_path", "datum"} {
				if _, ok := whole[key]; !ok || !reflect.DeepEqual(whole[key], last[key]) {
					t.Errorf("%s is %v whole and %v streamed", key, whole[key], last[key])
				}
			}
			var text strings.Builder
			for _, i := range whole["output"].([]any) {
				if i.(map[string]any)["type"] != "message" {
					continue
				}
				for _, entry := range i.(map[string]any)["content"].([]any)[0].(map[string]any)["logprobs"].([]any) {
					text.WriteString(entry.(map[string]any)["token"].(string))
					if top := entry.(map[string]any)["top_logprobs"].([]any); len(top) != 2 {
						t.Errorf("%d alternatives", len(top))
					}
				}
			}
			if got := strings.TrimSpace(text.String()); c.all && got != c.logprobs {
				t.Errorf("log-probabilities of %q, want %q", got, c.logprobs)
			}
		})
	}
}

// TestStoringChangesNoLogprobs: that the tokens are kept for the next turn is not seen in the log-probabilities of the answer.
func TestStoringChangesNoLogprobs(t *testing.T) {
	w := newWorld(t, options{change: keeping})
	for _, says := range []string{"Hello there, you <", "Hello there, you all"} { // what may become a call is held back to the end
		w.says(says)
		var got [2]any
		for i, store := range []bool{true, false} {
			ask := responding("hi").with(fields{"store": store, "top_logprobs": 1, "stop": "you a", "tools": []fields{flat(weather)}})
			got[i] = w.respond(ask)["output"].([]any)[0].(map[string]any)["content"]
		}
		if !reflect.DeepEqual(got[0], got[1]) {
			t.Errorf("stored\n%v\nnot stored\n%v", got[0], got[1])
		}
	}
}

// TestIncompleteResponses: what is cut says so, the item that is cut too.
func TestIncompleteResponses(t *testing.T) {
	w := newWorld(t, options{change: keeping})
	for _, c := range []struct {
		name, says string
		most       int
		last       string
		events     []string
	}{
		{"text", "Hello there, you all", 4, "message", told("incomplete", textEvents)},
		{"thoughts", "<think>\nHello there, you all", 6, "reasoning", told("incomplete", reasoningEvents)},
		{"a call", oneCall, 32, "function_call", told("incomplete", callEvents)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.says(c.says)
			ask := responding("hi").with(fields{"max_output_tokens": c.most, "tools": []fields{flat(weather)}})
			whole := w.respond(ask)
			events, last := w.followed(ask)
			for _, r := range []map[string]any{whole, last} {
				items := r["output"].([]any)
				cut := items[len(items)-1].(map[string]any)
				if r["status"] != "incomplete" || !reflect.DeepEqual(r["incomplete_details"], map[string]any{"reason": "max_output_tokens"}) || r["completed_at"] != nil || cut["type"] != c.last || cut["status"] != "incomplete" {
					t.Errorf("%v", r)
				}
			}
			if !reflect.DeepEqual(plainOutput(whole), plainOutput(last)) {
				t.Errorf("whole %v\nstreamed %v", plainOutput(whole), plainOutput(last))
			}
			if got := types(events); !slices.Equal(got, c.events) {
				t.Errorf("events %v, want %v", got, c.events)
			}
		})
	}
}

// TestFailingStream: what fails in the middle of a stream is told of by an error and by a response that has failed; it is not stored. Before the first event it is a refusal.
func TestFailingStream(t *testing.T) {
	w := newWorld(t, options{change: keeping})
	w.says(strings.Repeat("Hello there, you all. ", 5))
	w.service.WholeBytes = 1000
	events, last := w.followed(responding("hi"))
	w.service.WholeBytes = 256 << 20
	if last["status"] != "failed" || last["error"] == nil || last["completed_at"] != nil {
		t.Errorf("%v", last)
	}
	if message := last["error"].(map[string]any)["message"].(string); !strings.Contains(message, "fewer tokens") || strings.Contains(message, "stream it") {
		t.Errorf("somebody who streams is told: %s", message)
	}
	if got := types(events); len(got) < 5 || !slices.Equal(got[len(got)-3:], []string{"output_text.delta", "error", "failed"}) {
		t.Errorf("events %v", got)
	}
	w.refused(http.MethodGet, responsesPath+"/"+last["id"].(string), "", 404, "response_id", "response_not_found")
	w.service.WholeBytes = 1
	w.refused(http.MethodPost, responsesPath, responding("hi").with(fields{"stream": true, "input": ""}).text(), 400, "stream", "")
}

// keysOf are the keys of an object, and of the objects and lists in it.
func keysOf(v any, at string, into map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			into[at+"."+key] = true
			keysOf(value, at+"."+key, into)
		}
	case []any:
		for _, one := range v {
			keysOf(one, at+"[]", into)
		}
	}
}

// TestRecordedResponses: streams of this server have the events of recorded ones in their order, with all their keys but those of other features.
func TestRecordedResponses(t *testing.T) {
	path := testdata(t, "streams/openai.responses.jsonl")
	w := newWorld(t, options{})
	w.says("<think>\nHm.\n</think>\n\nLet me see.\n" + oneCall)
	ours, _ := w.followed(responding("hi").with(fields{"tools": []fields{flat(weather)}, "include": []string{"message.output_text.logprobs"}}))
	follows := map[[2]string]bool{}
	keys := map[string]map[string]bool{}
	previous := ""
	for _, e := range ours {
		kind := e["type"].(string)
		follows[[2]string{previous, kind}] = true
		if keys[kind] == nil {
			keys[kind] = map[string]bool{}
		}
		keysOf(e, "", keys[kind])
		previous = kind
	}
	// What others tell of that there is not here.
	elsewhere := []string{"prompt_cache_retention", "moderation", "tool_usage", "obfuscation", "phase", "caller", "namespace", "verbosity", "output_schema", "allowed_callers", "context", "mode", "parameters", "annotations[]", "content.", "encrypted_content", "environment"}
	compared := 0
	eachLine(t, path, func(line []byte) {
		var one struct {
			ID     string
			Events []struct{ Data json.RawMessage }
		}
		w.ok(json.Unmarshal(line, &one))
		if !strings.Contains(one.ID, "lmstudio") && !strings.Contains(one.ID, "openai-pdf") && !strings.Contains(one.ID, "multiturn") {
			return // of tools that run elsewhere
		}
		compared++
		before := ""
		missing := map[string]bool{}
		for _, e := range one.Events {
			event, ok := parsed(t, string(e.Data)).(map[string]any)
			if !ok {
				continue
			}
			kind := event["type"].(string)
			if before != "" && !follows[[2]string{before, kind}] && !(strings.HasSuffix(before, ".added") || kind == "response.completed" || kind == "response.output_item.added" || strings.HasSuffix(before, ".delta")) {
				t.Errorf("%s: %s comes after %s, and never here", one.ID, kind, before)
			}
			before = kind
			theirs := map[string]bool{}
			keysOf(event, "", theirs)
			for key := range theirs {
				if !keys[kind][key] && !slices.ContainsFunc(elsewhere, func(name string) bool { return strings.Contains(key, name) }) && keys[kind] != nil {
					missing[kind+key] = true
				}
			}
		}
		var list []string
		for key := range missing {
			list = append(list, key)
		}
		sort.Strings(list)
		if len(list) > 0 {
			t.Errorf("%s has what is not here: %v", one.ID, list)
		}
	})
	if compared == 0 {
		t.Error("there are none")
	}
}

// FuzzResponses sends arbitrary bodies. Whatever comes is answered with a valid answer or a 4xx that says why; never with a 500.
func FuzzResponses(f *testing.F) {
	for _, body := range []string{
		responding("hi").text(),
		`{"model":"tinsmith/tiny-chat","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"reasoning","summary":[],"encrypted_content":"tin1.aGk"},{"type":"function_call","call_id":"c","name":"f","arguments":"{"},{"type":"function_call_output","call_id":"c","output":[]}],"tools":[{"type":"function","name":"f"},{"type":"custom","name":"g"},{"type":"namespace","name":"n","tools":[{"type":"function","name":"h"}]},{"type":"mcp"}],"tool_choice":{"type":"allowed_tools","tools":[{"name":"f"}]},"max_output_tokens":5}`,
		`{"model":"tinsmith/tiny-chat","input":[{"type":"item_reference","id":"msg_ABCDEFGHIJKLMNOPQRSTUVWXYZ00"}],"previous_response_id":"resp_x","store":true}`,
		`{"model":"tinsmith/tiny-chat","input":"a","text":{"format":{"type":"json_schema","schema":{}},"verbosity":"\u0000"},"include":[null],"reasoning":{"effort":"none"},"max_output_tokens":1,"metadata":null}`,
		`[]`, `{`, `{"input":{}}`,
	} {
		f.Add([]byte(body))
	}
	w := newWorld(f, options{backend: `"max_context_length": 96,`, change: keeping})
	f.Fuzz(func(t *testing.T, body []byte) {
		w := *w
		w.TB = t
		for path, schema := range map[string]string{responsesPath: "Response", responsesPath + "/input_tokens": "TokenCountsResource"} {
			status, header, b := w.send(http.MethodPost, path, string(body))
			switch {
			case status == http.StatusOK && header.Get("Content-Type") == "application/json":
				var asked struct {
					Tools []json.RawMessage `json:"tools"`
				}
				_ = json.Unmarshal(body, &asked)
				answer := parsed(t, string(b)).(map[string]any)
				if len(asked.Tools) > 0 { // the client's own words come back
					answer["tools"] = []any{}
				}
				w.check(w, schema, answer)
			case status == http.StatusOK: // a stream
			case status >= 400 && status < 500:
				w.check(w, "ErrorResponse", parsed(t, string(b)))
			default:
				t.Errorf("%d %s", status, b)
			}
		}
	})
}
