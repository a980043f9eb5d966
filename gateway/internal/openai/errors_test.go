package openai

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

func TestRefusedChat(t *testing.T) {
	w := newWorld(t, options{backend: `"max_context_length": 100,`})
	huge := strings.Repeat("[", 20000)
	for _, c := range []struct {
		name   string
		change fields
		param  string
		code   string
		words  []string
	}{
		{"tool without a name", fields{"tools": []fields{{"type": "function"}}}, "tools[0].name", "", nil},
		{"tool of another type", fields{"tools": []fields{{"type": "custom", "custom": fields{"name": "f"}}}}, "tools[0].type", "unsupported_parameter", []string{"function"}},
		{"name of a tool", fields{"tools": []fields{{"type": "function", "function": fields{"name": "a b"}}}}, "tools[0].function.name", "", nil},
		{"two tools of a name", fields{"tools": []fields{clock, clock}}, "tools[1].function.name", "", []string{"get_time"}},
		{"tool that is no object", fields{"tools": []int{1}}, "tools[0]", "", nil},
		{"parameters of a tool", fields{"tools": []fields{{"type": "function", "function": fields{"name": "f", "parameters": []int{}}}}}, "tools[0].function.parameters", "", []string{"object"}},
		{"many tools", fields{"tools": make([]int, 513)}, "tools", "", []string{"513", "512"}},
		{"large description", fields{"tools": []fields{{"type": "function", "function": fields{"name": "f", "description": strings.Repeat("x", 65<<10)}}}}, "tools[0].function.description", "", []string{"65536"}},
		{"strict tool that is impossible", fields{"tools": []fields{{"type": "function", "function": fields{"name": "f", "strict": true, "parameters": fields{"properties": fields{"a": fields{"pattern": "(?=b)"}}}}}}}, "tools[0].function.parameters", "", []string{"pattern"}},
		{"choice of no tool", fields{"tools": []fields{clock}, "tool_choice": fields{"type": "function", "function": fields{"name": "g"}}}, "tool_choice", "", []string{"g"}},
		{"a call without tools", fields{"tool_choice": "required"}, "tool_choice", "", nil},
		{"unknown choice", fields{"tool_choice": "sometimes"}, "tool_choice", "", []string{"auto"}},
		{"choice without a name", fields{"tool_choice": fields{"type": "function"}}, "tool_choice.function.name", "", nil},
		{"tools and functions", fields{"tools": []fields{clock}, "functions": []any{clock["function"]}}, "functions", "", nil},
		{"two choices", fields{"tool_choice": "auto", "function_call": "auto"}, "function_call", "", nil},
		{"a function's call without functions", fields{"function_call": fields{"name": "f"}}, "function_call", "", nil},
		{"effort", fields{"reasoning_effort": "a lot"}, "reasoning_effort", "", []string{"medium"}},
		{"budget of thoughts", fields{"thinking_token_budget": -5}, "thinking_token_budget", "", nil},
		{"kind of thinking", fields{"thinking": fields{"type": "x"}}, "thinking.type", "", []string{"disabled"}},
		{"reasoning format", fields{"reasoning_format": "x"}, "reasoning_format", "", nil},
		{"template of the client", fields{"chat_template": "{{ x }}"}, "chat_template", "unsupported_parameter", nil},
		{"echo", fields{"echo": true}, "echo", "unsupported_parameter", nil},
		{"unknown format", fields{"response_format": fields{"type": "xml"}}, "response_format.type", "unsupported_parameter", []string{"json_schema", "text"}},
		{"format that is no object", fields{"response_format": "json"}, "response_format", "", nil},
		{"schema that is missing", fields{"response_format": fields{"type": "json_schema"}}, "response_format.json_schema", "", []string{"schema"}},
		{"schema one level too high", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"type": "object"}}}, "response_format.json_schema.schema", "", []string{"deeper"}},
		{"strict without a schema", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"strict": true}}}, "response_format.json_schema.schema", "", []string{"required"}},
		{"wrong schema", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"schema": fields{"type": "objekt"}}}}, "response_format.json_schema.schema", "", []string{"objekt"}},
		{"schema that nothing satisfies", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"schema": false}}}, "response_format.json_schema.schema", "", nil},
		{"strict and impossible", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"strict": true, "schema": fields{"type": "string", "pattern": "^(?=a)"}}}}, "response_format.json_schema.schema", "", []string{"pattern", "set strict to false"}},
		{"two forms", fields{"response_format": fields{"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "", []string{"response_format"}},
		{"choices of nothing", fields{"guided_choice": []string{}}, "guided_choice", "", nil},
		{"choices of numbers", fields{"guided_choice": []int{1}}, "guided_choice[0]", "", nil},
		{"regex", fields{"guided_regex": "("}, "guided_regex", "", nil},
		{"structural tag", fields{"structured_outputs": fields{"structural_tag": "x"}}, "structured_outputs.structural_tag", "unsupported_parameter", nil},
		{"two structured outputs", fields{"structured_outputs": fields{"regex": "a", "json_object": true}}, "structured_outputs", "", []string{"exactly one"}},
		{"grammar", fields{"guided_grammar": "no grammar"}, "guided_grammar", "", []string{"line 1"}},
		{"grammar of a token that there is not", fields{"guided_grammar": "root ::= <[99999999]>"}, "guided_grammar", "", []string{"<[99999999]>", "no token of this number"}},
		{"a form and min_tokens", fields{"guided_regex": "a+", "min_tokens": 2}, "min_tokens", "", []string{"guided_regex"}},
		{"a form and ignore_eos", fields{"guided_regex": "a+", "ignore_eos": true}, "ignore_eos", "", []string{"guided_regex"}},
		{"audio", fields{"audio": fields{"voice": "a"}}, "audio", "unsupported_parameter", nil},
		{"modalities", fields{"modalities": []string{"text", "audio"}}, "modalities", "unsupported_parameter", nil},
		{"prediction", fields{"prediction": fields{}}, "prediction", "unsupported_parameter", nil},
		{"web search", fields{"web_search_options": fields{}}, "web_search_options", "unsupported_parameter", nil},
		{"beam search", fields{"use_beam_search": true}, "use_beam_search", "unsupported_parameter", nil},
		{"min_tokens with stop", fields{"min_tokens": 2, "stop": "x"}, "min_tokens", "unsupported_parameter", nil},

		{"no model", fields{"model": ""}, "model", "", nil},
		{"model of a wrong type", fields{"model": 5}, "model", "", []string{"a string"}},
		{"no messages", fields{"messages": []int{}}, "messages", "", nil},
		{"messages of a wrong type", fields{"messages": "hello"}, "messages", "", []string{"a list"}},
		{"message of a wrong type", fields{"messages": []string{"hello"}}, "messages[0]", "", nil},
		{"unknown role", fields{"messages": []fields{{"role": "robot", "content": ""}}}, "messages[0].role", "", []string{"assistant"}},
		{"no content", fields{"messages": []fields{{"role": "user"}}}, "messages[0].content", "", nil},
		{"image", fields{"messages": []fields{{"role": "user", "content": []fields{{"type": "image_url"}}}}}, "messages[0].content[0].type", "", []string{"text"}},
		{"part without text", fields{"messages": []fields{{"role": "user", "content": []fields{{"type": "text"}}}}}, "messages[0].content[0].text", "", nil},
		{"tool call without a name", fields{"messages": []fields{{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": []fields{{"function": fields{"arguments": "{"}}}}}}, "messages[1].tool_calls[0].function.name", "", nil},
		{"arguments that are a list", fields{"messages": []fields{{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": []fields{{"function": fields{"name": "f", "arguments": []int{}}}}}}}, "messages[1].tool_calls[0].function.arguments", "", nil},
		{"assistant without anything", fields{"messages": []fields{{"role": "user", "content": "a"}, {"role": "assistant", "content": nil, "tool_calls": []int{}}}}, "messages[1].content", "", nil},
		{"n", fields{"n": 0}, "n", "", []string{"0", "128"}},
		{"many choices", fields{"n": 129}, "n", "", nil},
		{"fraction", fields{"n": 1.5}, "n", "", []string{"1.5", "an integer"}},
		{"temperature", fields{"temperature": 2.1}, "temperature", "", []string{"2.1"}},
		{"temperature of a wrong type", fields{"temperature": "hot"}, "temperature", "", []string{"a number"}},
		{"negative temperature", fields{"temperature": -1}, "temperature", "", nil},
		{"top_p", fields{"top_p": 1.1}, "top_p", "", nil},
		{"frequency_penalty", fields{"frequency_penalty": 3}, "frequency_penalty", "", nil},
		{"presence_penalty", fields{"presence_penalty": -3}, "presence_penalty", "", nil},
		{"repetition_penalty", fields{"repetition_penalty": 0}, "repetition_penalty", "", []string{"above 0", "10"}},
		{"negative top_k", fields{"top_k": -2}, "top_k", "", []string{"-2", "-1 (off)"}},
		{"large top_k", fields{"top_k": 1 << 40}, "top_k", "", []string{"1099511627776", "2147483647"}},
		{"logprobs of a wrong type", fields{"logprobs": 5}, "logprobs", "", []string{"true or false"}},
		{"top_logprobs alone", fields{"top_logprobs": 5}, "top_logprobs", "", nil},
		{"many top_logprobs", fields{"logprobs": true, "top_logprobs": 21}, "top_logprobs", "", []string{"20"}},
		{"empty stop", fields{"stop": ""}, "stop", "", nil},
		{"stop of a wrong type", fields{"stop": []int{1}}, "stop", "", nil},
		{"null among stops", fields{"stop": []any{"a", nil}}, "stop", "", nil},
		{"many stops", fields{"stop": make([]string, 65)}, "stop", "", []string{"64"}},
		{"stop token", fields{"stop_token_ids": []int{4096}}, "stop_token_ids", "", []string{"4096", "4095"}},
		{"seed", fields{"seed": 1.5}, "seed", "", []string{"1.5"}},
		{"long seed", fields{"seed": jsonNumber(strings.Repeat("9", 30))}, "seed", "", nil},
		{"logit_bias", fields{"logit_bias": fields{"4096": 1}}, "logit_bias", "", []string{"4096"}},
		{"logit_bias of text", fields{"logit_bias": fields{"one": 1}}, "logit_bias", "", nil},
		{"large logit_bias", fields{"logit_bias": fields{"1": 101}}, "logit_bias", "", []string{"101"}},
		{"min_tokens", fields{"min_tokens": 25}, "min_tokens", "", []string{"25", "24"}},
		{"two limits", fields{"max_completion_tokens": 5}, "max_tokens", "", nil},
		{"negative limit", fields{"max_tokens": -1}, "max_tokens", "", nil},
		{"context", fields{"max_tokens": 95}, "max_tokens", "context_length_exceeded", []string{"100"}},
		{"context by its other name", fields{"max_tokens": nil, "max_completion_tokens": 95}, "max_completion_tokens", "context_length_exceeded", nil},
		{"long prompt", fields{"max_tokens": nil, "messages": []fields{{"role": "user", "content": strings.Repeat("hello ", 200)}}}, "max_tokens", "context_length_exceeded", nil},
		{"unknown template variable", fields{"chat_template_kwargs": fields{"no_such_thing": 1}}, "chat_template_kwargs.no_such_thing", "", nil},
		{"template variable that is the request's", fields{"chat_template_kwargs": fields{"messages": []int{}}}, "chat_template_kwargs.messages", "", nil},
		{"reasoning_effort", fields{"reasoning_effort": "huge"}, "reasoning_effort", "", []string{"huge", "xhigh"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.refused(http.MethodPost, "/v1/chat/completions", asking("hello").with(c.change).text(), 400, c.param, c.code, c.words...)
			w.refused(http.MethodPost, "/v1/chat/completions", asking("hello").with(c.change).with(fields{"stream": true}).text(), 400, c.param, c.code)
		})
	}
	for name, body := range map[string]string{"empty": "", "not JSON": "{", "list": "[]", "text": `"hello"`, "nested": huge, "two values": "{} {}"} {
		t.Run("body "+name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.refused(http.MethodPost, "/v1/chat/completions", body, 400, "", "")
		})
	}
	w.chat(asking("hello"))
}

type jsonNumber string

func (n jsonNumber) MarshalJSON() ([]byte, error) { return []byte(n), nil }

func TestRefusedCompletions(t *testing.T) {
	w := newWorld(t, options{})
	for _, c := range []struct {
		name   string
		change fields
		param  string
		code   string
		words  []string
	}{
		{"no prompt", fields{"prompt": nil}, "prompt", "", nil},
		{"prompt of a wrong type", fields{"prompt": 5}, "prompt", "", []string{"list"}},
		{"object", fields{"prompt": fields{}}, "prompt", "", nil},
		{"empty string", fields{"prompt": ""}, "prompt", "", nil},
		{"empty list", fields{"prompt": []int{}}, "prompt", "", nil},
		{"empty list in a list", fields{"prompt": [][]int{{1}, {}}}, "prompt", "", nil},
		{"null among ids", fields{"prompt": []any{1, nil}}, "prompt", "", []string{"null"}},
		{"null among prompts", fields{"prompt": []any{"a", nil}}, "prompt", "", []string{"prompt 1"}},
		{"id out of the vocabulary", fields{"prompt": [][]int{{1}, {1, 4096}}}, "prompt", "", []string{"prompt 1", "element 1", "4096", "4095"}},
		{"negative id", fields{"prompt": []int{-1}}, "prompt", "", []string{"-1"}},
		{"fraction", fields{"prompt": []float64{1.5}}, "prompt", "", []string{"1.5"}},
		{"lists in lists", fields{"prompt": [][][]int{{{1}}}}, "prompt", "", nil},
		{"many prompts", fields{"prompt": make([]string, 2049)}, "prompt", "", []string{"2048"}},
		{"many choices", fields{"prompt": strings.Split(strings.Repeat("a ", 100), " ")[:100], "n": 50}, "n", "", []string{"4096"}},
		{"suffix", fields{"suffix": "x"}, "suffix", "unsupported_parameter", nil},
		{"best_of", fields{"best_of": 5}, "best_of", "unsupported_parameter", nil},
		{"logprobs", fields{"logprobs": 21}, "logprobs", "", []string{"20"}},
		{"logprobs of a wrong type", fields{"logprobs": "two"}, "logprobs", "", nil},
		{"context", fields{"max_tokens": 4096}, "max_tokens", "context_length_exceeded", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.refused(http.MethodPost, "/v1/completions", completing("hello").with(c.change).text(), 400, c.param, c.code, c.words...)
		})
	}
}

func TestKeys(t *testing.T) {
	path, made := keysFile(t, "alice", "bob")
	w := newWorld(t, options{keys: path})
	session := w.session("alice")
	run := w.adapter("alice", session, 0, 1)
	body := func(model string) string { return asking("hello").with(fields{"model": model}).text() }
	for _, key := range []string{"", "tml-wrong", "not-needed"} {
		w.key = key
		w.refused(http.MethodPost, "/v1/chat/completions", body(modelName), 401, "", "invalid_api_key")
		w.refused(http.MethodGet, "/v1/models", "", 401, "", "invalid_api_key")
		w.refused(http.MethodPost, "/tokenize", `{"prompt": "a"}`, 401, "", "invalid_api_key")
	}
	w.key = made["alice"]
	w.chat(asking("hello").with(fields{"model": "tinker://" + run}))
	w.key = made["bob"] // another key sees nothing of it
	w.chat(asking("hello"))
	w.refused(http.MethodPost, "/v1/chat/completions", body("tinker://"+run), 404, "model", "model_not_found")
	w.refused(http.MethodPost, "/v1/chat/completions", body(modelName+":latest"), 404, "model", "model_not_found")
	w.refused(http.MethodGet, "/v1/models/tinker:%2F%2F"+run, "", 404, "model", "model_not_found")
}

func TestBusy(t *testing.T) {
	w := newWorld(t, options{backend: `"delays": [{"operation": "token", "seconds": 60}],`, change: func(c *runs.Config) { c.MaxRunningSample = 1 }})
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v1/chat/completions", strings.NewReader(asking("hello").text()))
	w.ok(err)
	left := make(chan error, 1)
	go func() {
		res, err := w.client.Do(req)
		if err == nil {
			err = res.Body.Close()
		}
		left <- err
	}()
	w.eventually(func() bool { return w.core.Stats().Generations == 1 })
	status, header, b := w.send(http.MethodPost, "/v1/chat/completions", asking("hello").text())
	if status != 429 || header.Get("Retry-After") == "" {
		t.Errorf("%d %v %s", status, header, b)
	}
	leave()
	if err := <-left; err == nil {
		t.Error("the request before it was answered")
	}
}

// A model whose numbers have left the range of its type is no fault of the server: the answer says what is wrong, and is none that clients repeat.
func TestNotFinite(t *testing.T) {
	w := newWorld(t, options{backend: `"faults": [{"operation": "sample", "token": 7, "action": "fail", "kind": "not finite", "field": "logits", "message": "overflow"}],`})
	body := completing("").with(fields{"prompt": []int{7}})
	w.refused(http.MethodPost, "/v1/completions", body.text(), 400, "model", "", "logits: overflow")
	w.refused(http.MethodPost, "/v1/completions", body.with(fields{"stream": true}).text(), 400, "model", "", "logits: overflow")
}

// What never fits into the backend as it is configured is refused for good, with the reason; what there is no room for now is to be repeated.
func TestTooLarge(t *testing.T) {
	w := newWorld(t, options{backend: `"faults": [{"operation": "sample", "n": 1, "action": "fail", "kind": "too large", "message": "raise the limit"}, {"operation": "sample", "n": 2, "action": "fail", "kind": "capacity", "message": "no room"}],`})
	body := completing("").with(fields{"prompt": []int{7}})
	w.refused(http.MethodPost, "/v1/completions", body.text(), 400, "", "", "raise the limit")
	w.refused(http.MethodPost, "/v1/completions", body.text(), 429, "", "rate_limit_exceeded", "no room")
}

func TestUnknownPaths(t *testing.T) {
	w := newWorld(t, options{})
	w.refused(http.MethodPost, "/v1/embeddings", "{}", 404, "", "unsupported_endpoint", "/v1/responses")
	w.refused(http.MethodGet, "/oai/api/v1/files/file-1/content", "", 404, "", "unsupported_endpoint", "/v1/responses")
	w.refused(http.MethodPost, "/v1/responses/compact", "{}", 404, "", "unsupported_endpoint")
	w.refused(http.MethodPost, "/v1/nothing", "{}", 404, "", "")
	w.refused(http.MethodGet, "/v1/chat/completions", "", 404, "", "unsupported_endpoint")
	w.refused(http.MethodDelete, "/v1/chat/completions/chatcmpl-1", "", 404, "", "unsupported_endpoint")
	w.refused(http.MethodGet, "/v1/completions", "", 405, "", "")
	for _, path := range []string{"/health", "/ping"} {
		if status, _, b := w.send(http.MethodGet, path, ""); status != 200 || len(b) != 0 {
			t.Errorf("%s: %d %q", path, status, b)
		}
	}
	if status, _, _ := w.send(http.MethodPost, "/oai/api/v1/chat/completions", asking("hello").text()); status != 200 {
		t.Errorf("under /oai/api/v1: %d", status)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/models", nil)
	w.ok(err)
	req.Header.Set("X-Request-Id", "mine")
	res, err := w.client.Do(req)
	w.ok(err)
	defer res.Body.Close()
	if got := res.Header.Get("X-Request-Id"); got != "mine" {
		t.Errorf("request id %q", got)
	}
}

func TestLargeBody(t *testing.T) {
	w := newWorld(t, options{})
	w.refused(http.MethodPost, "/v1/completions", fmt.Sprintf(`{"model": %q, "prompt": [%s1]}`, modelName, strings.Repeat("1,", 40<<20)), 413, "", "")
}
