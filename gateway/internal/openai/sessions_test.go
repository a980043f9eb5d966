package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// sessionAnswer is what a client of a session reads.
type sessionAnswer struct {
	PromptTokenIDs []int32 `json:"prompt_token_ids"`
	Prefix         struct {
		Tokens int  `json:"tokens"`
		Exact  bool `json:"exact"`
	} `json:"prefix"`
	Choices []struct {
		Message    map[string]any `json:"message"`
		TokenIDs   []int32        `json:"token_ids"`
		SequenceID string         `json:"sequence_id"`
		Logprobs   struct {
			Content []chatLogprob `json:"content"`
		} `json:"logprobs"`
	} `json:"choices"`
}

// oddCall is a call that no template prints as the model wrote it.
func oddCall(n int) string {
	return fmt.Sprintf("<tool_call>\n{\"name\":\"get_weather\",  \"arguments\": {\"city\" :\"Ü\\u00fc %d\",\"b\":1.50, \"a\": [1,2 ]}}\n</tool_call>", n)
}

// converse plays an agent's conversation with a session: the model calls a tool, its result comes back.
func converse(w *world, ask fields, turns int) (answers []sessionAnswer) {
	w.Helper()
	messages := []any{fields{"role": "user", "content": "weather?"}}
	for turn := range turns {
		w.says(oddCall(turn))
		var a sessionAnswer
		w.answer("/v1/chat/completions", "CreateChatCompletionResponse", ask.with(fields{"messages": messages}), &a)
		answers = append(answers, a)
		message := a.Choices[0].Message
		call := message["tool_calls"].([]any)[0].(map[string]any)
		messages = append(messages, message, fields{"role": "tool", "tool_call_id": call["id"], "content": fmt.Sprintf("sunny %d", turn)})
	}
	return answers
}

// TestSessionPrefix: each turn of an agent's conversation begins with the tokens of the one before, bit for bit; without a session it does not.
func TestSessionPrefix(t *testing.T) {
	w := newWorld(t, options{})
	ask := fields{"model": modelName, "tools": []fields{weather}, "max_tokens": 200, "seed": 7, "logprobs": true, "return_token_ids": true}
	begins := func(a, b sessionAnswer) bool {
		before := append(slices.Clone(a.PromptTokenIDs), a.Choices[0].TokenIDs...)
		return len(b.PromptTokenIDs) > len(before) && slices.Equal(b.PromptTokenIDs[:len(before)], before)
	}
	answers := converse(w, ask.with(fields{"session_id": "one"}), 5)
	for i, a := range answers[1:] {
		if !a.Prefix.Exact || !begins(answers[i], a) || a.Prefix.Tokens != len(answers[i].PromptTokenIDs)+len(answers[i].Choices[0].TokenIDs) {
			t.Errorf("turn %d: prefix %+v", i+1, a.Prefix)
		}
		text := w.model.Tokenizer.Decode(a.PromptTokenIDs[a.Prefix.Tokens:], false)
		if want := fmt.Sprintf("\n<|im_start|>user\n<tool_response>\nsunny %d\n</tool_response><|im_end|>\n<|im_start|>assistant\n", i); text != want {
			t.Errorf("turn %d goes on with %q, want %q", i+1, text, want)
		}
	}
	if answers[0].Prefix.Exact || answers[0].Prefix.Tokens != 0 {
		t.Errorf("the first turn's prefix is %+v", answers[0].Prefix)
	}
	drifting := converse(w, ask, 2)
	if begins(drifting[0], drifting[1]) {
		t.Error("the same tokens come without a session: the test shows nothing")
	}

	// The turns as training data: one Datum of all, in which what was sampled counts and what was read does not.
	var merged, single struct {
		Data []inference.SessionDatum `json:"data"`
	}
	get := func(path string, into any) {
		status, _, b := w.send(http.MethodGet, path, "")
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, status, b)
		}
		w.ok(json.Unmarshal(b, into))
	}
	get("/v1/sessions/one/datums?merge=true", &merged)
	get("/v1/sessions/one/datums", &single)
	whole := w.service.WholeBytes
	w.service.WholeBytes = 10_000
	w.refused(http.MethodGet, "/v1/sessions/one/datums", "", http.StatusBadRequest, "session", "", "more training data")
	w.service.WholeBytes = whole
	if len(single.Data) != 5 || len(merged.Data) != 1 || !slices.Equal(merged.Data[0].Turns, []int{1, 2, 3, 4, 5}) || len(merged.Data[0].WeightVersions) != 5 {
		t.Fatalf("%d turns, merged %+v", len(single.Data), merged.Data)
	}
	for i, id := range merged.Data[0].SequenceIDs {
		if id == "" || id != answers[i].Choices[0].SequenceID || id != single.Data[i].SequenceIDs[0] {
			t.Errorf("turn %d: recorded as %q, told as %q", i+1, id, answers[i].Choices[0].SequenceID)
		}
	}
	last := answers[4]
	all := append(slices.Clone(last.PromptTokenIDs), last.Choices[0].TokenIDs...)
	numbers := func(d *inference.Datum, name string) (out []float64) {
		for _, x := range d.LossInputs[name].(map[string]any)["data"].([]any) {
			out = append(out, x.(float64))
		}
		return out
	}
	d := merged.Data[0].Datum
	if !slices.Equal(d.ModelInput.Chunks[0].Tokens, all[:len(all)-1]) {
		t.Error("the merged tokens are not the last turn's")
	}
	logprobs, advantages := numbers(d, "logprobs"), numbers(d, "advantages")
	want := make([]float64, len(all))
	for _, a := range answers {
		for i, l := range a.Choices[0].Logprobs.Content {
			want[len(a.PromptTokenIDs)+i] = float64(l.Logprob)
		}
	}
	for i := range logprobs {
		if float32(logprobs[i]) != float32(want[i+1]) || (advantages[i] == 1) != (want[i+1] != 0) {
			t.Fatalf("position %d: log-probability %v with weight %v, want %v", i, logprobs[i], advantages[i], want[i+1])
		}
	}
	if status, _, b := w.send(http.MethodDelete, "/v1/sessions/one", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, b)
	}
	w.refused(http.MethodGet, "/v1/sessions/one/datums", "", http.StatusNotFound, "session", "session_not_found", "one")
}

// TestSessionForms: what clients change in a message before they send it back, and what makes a conversation another one.
func TestSessionForms(t *testing.T) {
	w := newWorld(t, options{})
	base := fields{"model": modelName, "tools": []fields{weather}, "max_tokens": 200, "session_id": "s"}
	question, next := fields{"role": "user", "content": "weather?"}, fields{"role": "user", "content": "and now?"}
	for _, c := range []struct {
		name, said string
		change     func(message map[string]any) // of the answer, before it is sent back
		request    fields                       // of the second request
		exact      bool
	}{
		{"as it was", "Sunny.", nil, nil, true},
		{"only role and content", "Sunny.", func(m map[string]any) {
			for key := range m {
				if key != "role" && key != "content" {
					delete(m, key)
				}
			}
		}, nil, true},
		{"arguments spaced otherwise", oddCall(1), func(m map[string]any) {
			m["content"] = ""
			m["tool_calls"].([]any)[0].(map[string]any)["function"].(map[string]any)["arguments"] = `{"a": [1, 2], "b": 1.5, "city": "Üü 1"}`
		}, nil, true},
		{"another answer", "Sunny.", func(m map[string]any) { m["content"] = "Rainy." }, nil, false},
		{"other tools", "Sunny.", nil, fields{"tools": []fields{clock}}, false},
		{"another session", "Sunny.", nil, fields{"session_id": "t"}, false},
		{"thoughts that the template leaves out", "<think>\nhm\n</think>\n\nSunny.", nil, nil, false},
		{"cut", "Sunny and much more than that", nil, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.says(c.said)
			ask := base.with(fields{"session_id": c.name})
			first := ask
			if c.name == "cut" {
				first = ask.with(fields{"max_tokens": 3})
			}
			var a, b sessionAnswer
			w.answer("/v1/chat/completions", "CreateChatCompletionResponse", first.with(fields{"messages": []any{question}}), &a)
			message := a.Choices[0].Message
			if c.change != nil {
				c.change(message)
			}
			w.answer("/v1/chat/completions", "CreateChatCompletionResponse", ask.with(fields{"messages": []any{question, message, next}}).with(c.request), &b)
			if b.Prefix.Exact != c.exact {
				t.Errorf("prefix %+v, want exact %v", b.Prefix, c.exact)
			}
			if !c.exact {
				plain := w.prompt(fields{"model": modelName, "messages": []any{question, message, next}, "tools": ask.with(c.request)["tools"]})
				if got := w.model.Tokenizer.Decode(b.PromptTokenIDs, false); got != plain {
					t.Errorf("prompt %q, want %q", got, plain)
				}
			}
		})
	}
}

// TestSessionsBelongToKeys: nobody else sees a session, or goes on from it.
func TestSessionsBelongToKeys(t *testing.T) {
	file, made := keysFile(t, "ann", "bob")
	w := newWorld(t, options{keys: file})
	w.says("Sunny.")
	w.key = made["ann"]
	question := fields{"role": "user", "content": "weather?"}
	ask := fields{"model": modelName, "max_tokens": 20, "session_id": "s", "messages": []any{question}}
	var a, b sessionAnswer
	w.answer("/v1/chat/completions", "CreateChatCompletionResponse", ask, &a)
	w.key = made["bob"]
	w.refused(http.MethodGet, "/v1/sessions/s/datums", "", http.StatusNotFound, "session", "session_not_found")
	w.refused(http.MethodDelete, "/v1/sessions/s", "", http.StatusNotFound, "session", "session_not_found")
	w.answer("/v1/chat/completions", "CreateChatCompletionResponse", ask.with(fields{"messages": []any{question, a.Choices[0].Message, question}}), &b)
	if b.Prefix.Exact || b.Prefix.Tokens != 0 {
		t.Errorf("another key goes on from it: %+v", b.Prefix)
	}
}

// TestSessionNames: a session is found under its name, whatever that is.
func TestSessionNames(t *testing.T) {
	w := newWorld(t, options{})
	w.says("Sunny.")
	for _, name := range []string{"plain", "a/b", "a/datums", "/", "50% ?#+ ü", strings.Repeat("x", 128)} {
		var a sessionAnswer
		w.answer("/v1/chat/completions", "CreateChatCompletionResponse", asking("hi").with(fields{"session_id": name}), &a)
		path := "/v1/sessions/" + url.PathEscape(name)
		if status, _, b := w.send(http.MethodGet, path+"/datums", ""); status != http.StatusOK {
			t.Errorf("%q: %d %s", name, status, b)
		}
		if status, _, b := w.send(http.MethodDelete, path, ""); status != http.StatusOK {
			t.Errorf("%q: %d %s", name, status, b)
		}
		w.refused(http.MethodGet, path+"/datums", "", http.StatusNotFound, "session", "session_not_found")
	}
	if status, _, b := w.send(http.MethodGet, "/v1/sessions/plain", ""); status != http.StatusNotFound {
		t.Errorf("%d %s", status, b)
	}
}

// TestPromptOfTokens: a client that has made the prompt itself, as verifiers does.
func TestPromptOfTokens(t *testing.T) {
	w := newWorld(t, options{})
	w.says("Well.\n" + oneCall)
	ids := encoded(t, w.model.Tokenizer, "<|im_start|>user\nweather?<|im_end|>\n<|im_start|>assistant\n")
	ask := fields{"model": modelName, "messages": []fields{{"role": "user", "content": "ignored"}}, "tools": []fields{weather}, "max_tokens": 200}
	for path, field := range map[string]string{"/v1/chat/completions/tokens": "tokens", "/v1/chat/completions": "prompt_token_ids"} {
		var a sessionAnswer
		w.answer(path, "CreateChatCompletionResponse", ask.with(fields{field: ids, "return_token_ids": true}), &a)
		if !slices.Equal(a.PromptTokenIDs, ids) || a.Choices[0].Message["content"] != "Well." || len(plainCalls(a.Choices[0].Message)) != 1 {
			t.Errorf("%s: prompt %v, message %v", path, a.PromptTokenIDs, a.Choices[0].Message)
		}
		w.refused(http.MethodPost, path, ask.with(fields{field: []int{1 << 30}}).text(), http.StatusBadRequest, field, "", "token id")
		w.refused(http.MethodPost, path, ask.with(fields{field: ids, "session_id": "s"}).text(), http.StatusBadRequest, "session_id", "")
		header := http.Header{"X-Session-Id": {"s"}} // which routers send with everything
		if status, _, b := w.inside.Send(http.MethodPost, path, ask.with(fields{field: ids}).text(), header); status != http.StatusOK || strings.Contains(string(b), `"prefix"`) {
			t.Errorf("%s with a session's header: %d %s", path, status, b)
		}
	}
	w.refused(http.MethodPost, "/v1/chat/completions/tokens", ask.text(), http.StatusBadRequest, "tokens", "", "required")
}
