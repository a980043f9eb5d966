package openai

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

type modelEntry struct {
	ID       string          `json:"id"`
	Created  int64           `json:"created"`
	OwnedBy  string          `json:"owned_by"`
	Base     string          `json:"base_model"`
	Run      string          `json:"training_run_id"`
	Session  string          `json:"session_id"`
	Metadata json.RawMessage `json:"user_metadata"`
}

func (w *world) models() map[string]modelEntry {
	w.Helper()
	status, _, b := w.send(http.MethodGet, "/v1/models", "")
	if status != 200 {
		w.Fatalf("%d %s", status, b)
	}
	w.check(w, "ListModelsResponse", parsed(w, string(b)))
	var list struct {
		Data []modelEntry `json:"data"`
	}
	w.ok(json.Unmarshal(b, &list))
	out := map[string]modelEntry{}
	for _, m := range list.Data {
		out[m.ID] = m
	}
	return out
}

func (w *world) modelOf(path string) modelEntry {
	w.Helper()
	status, _, b := w.send(http.MethodGet, path, "")
	if status != 200 {
		w.Fatalf("%s: %d %s", path, status, b)
	}
	w.check(w, "Model", parsed(w, string(b)))
	var m modelEntry
	w.ok(json.Unmarshal(b, &m))
	return m
}

func TestModels(t *testing.T) {
	w := newWorld(t, options{})
	if got := w.models(); len(got) != 2 || got[modelName].Base != "" || got[modelAlias].Base != modelName {
		t.Errorf("models %+v", got)
	}
	session := w.session("local")
	start := time.Now().Unix()
	run := w.adapter("local", session, 0, 1)
	saved := w.save("local", run, 3, "a")
	list := w.models()
	live := list["tinker://"+run]
	if live.Base != modelName || live.Run != run || live.Session != session || live.OwnedBy != "local" || string(live.Metadata) != `{"purpose":"test"}` || live.Created < start {
		t.Errorf("adapter %+v", live)
	}
	if got := list[saved]; got.Base != modelName || got.Run != run || got.Created < start {
		t.Errorf("checkpoint %+v", got)
	}
	now := time.Now().Unix()
	for id, m := range list {
		if year := int64(365 * 24 * 3600); m.Created < 50*year || m.Created > now {
			t.Errorf("%s was made at %d", id, m.Created)
		}
		for _, path := range []string{"/v1/models/" + url.PathEscape(id), "/v1/models/" + id, "/oai/api/v1/models/" + strings.ReplaceAll(id, "/", "%2F")} {
			got := w.modelOf(path)
			got.Metadata, m.Metadata = nil, nil
			if got.ID != id || got.Created != m.Created || got.Run != m.Run {
				t.Errorf("%s: %+v, listed %+v", path, got, m)
			}
		}
	}
	for _, name := range []string{modelName + ":latest", run, modelName + ";tinker://" + run, modelAlias + ":latest"} {
		if got := w.modelOf("/v1/models/" + url.PathEscape(name)); got.ID != name || got.Run != run || got.Base != modelName || got.Created != live.Created {
			t.Errorf("%s: %+v", name, got)
		}
	}
	w.refused(http.MethodGet, "/v1/models/nothing", "", 404, "model", "model_not_found", "nothing")
}

// TestNames: every name of weights means those weights, and the newest ones move with each step.
func TestNames(t *testing.T) {
	w := newWorld(t, options{})
	text := func(model string) string {
		return w.chat(asking("hello").with(fields{"model": model})).Choices[0].Message.Content
	}
	base := text(modelName)
	session := w.session("local")
	w.refused(http.MethodPost, "/v1/chat/completions", asking("hello").with(fields{"model": modelName + ":latest"}).text(), 404, "model", "model_not_found", "no adapter")
	run := w.adapter("local", session, 0, 2)
	first := text("tinker://" + run)
	if first == base {
		t.Fatal("training changed nothing")
	}
	saved := w.save("local", run, 5, "a")
	for _, name := range []string{saved, run, modelName + ":latest", modelName + ";" + saved, modelName + ";tinker://" + run} {
		if got := text(name); got != first {
			t.Errorf("%s says %q, want %q", name, got, first)
		}
	}
	w.train("local", run, 6, 3)
	second := text("tinker://" + run)
	if second == first || text(modelName+":latest") != second || text(saved) != first || text(modelName) != base {
		t.Errorf("after more steps: run %q, was %q; checkpoint %q; base %q", second, first, text(saved), text(modelName))
	}
	for _, c := range []struct{ name, code string }{
		{"tinker://" + run + "/sampler_weights/b", "model_not_found"},
		{"tinker://nobody:train:0", "model_not_found"},
		{"no/model", "model_not_found"},
		{"no/model;" + saved, "model_not_found"},
	} {
		w.refused(http.MethodPost, "/v1/chat/completions", asking("hello").with(fields{"model": c.name}).text(), 404, "model", c.code)
	}
}

func TestChatLatest(t *testing.T) {
	w := newWorld(t, options{chat: "latest"})
	text := func(model string) string {
		return w.complete(completing("hello").with(fields{"model": model})).Choices[0].Text
	}
	base := text(modelName)
	run := w.adapter("local", w.session("local"), 0, 2)
	if got := text(modelName); got == base || got != text("tinker://"+run) {
		t.Errorf("the plain name says %q, the base %q", got, base)
	}
}

func TestTokenize(t *testing.T) {
	w := newWorld(t, options{})
	type answer struct {
		Tokens  []int32  `json:"tokens"`
		Count   int      `json:"count"`
		Max     int      `json:"max_model_len"`
		Strings []string `json:"token_strs"`
		Prompt  string   `json:"prompt"`
	}
	ask := func(path string, f fields) (a answer) {
		status, _, b := w.send(http.MethodPost, path, f.text())
		if status != 200 {
			t.Fatalf("%s: %d %s", path, status, b)
		}
		w.ok(json.Unmarshal(b, &a))
		return a
	}
	const text = "hello né <|im_end|> 𝄞"
	want := encoded(t, w.model.Tokenizer, text)
	a := ask("/tokenize", fields{"model": modelName, "prompt": text, "add_special_tokens": false, "return_token_strs": true})
	if len(a.Tokens) != len(want) || a.Count != len(want) || a.Max != w.inside.Info.MaxContextLength || len(a.Strings) != len(want) {
		t.Errorf("%+v, want %d tokens", a, len(want))
	}
	if got := ask("/detokenize", fields{"tokens": a.Tokens}).Prompt; got != text {
		t.Errorf("back again: %q", got)
	}
	messages := fields{"messages": []fields{{"role": "user", "content": "hello"}}}
	if got, prompt := ask("/tokenize", messages).Count, w.chat(asking("hello")).Usage.PromptTokens; got != prompt {
		t.Errorf("messages make %d tokens, chat counts %d", got, prompt)
	}
	if got := ask("/tokenize", fields{"prompt": ""}); got.Tokens == nil || got.Count != 0 {
		t.Errorf("empty text: %+v", got)
	}
	status, _, b := w.send(http.MethodGet, "/tokenizer_info", "")
	var info map[string]any
	w.ok(json.Unmarshal(b, &info))
	if status != 200 || info["eos_token"] != "<|im_end|>" || info["chat_template"] != w.model.Tokenizer.ChatTemplate() {
		t.Errorf("%d %s", status, b)
	}
	w.refused(http.MethodPost, "/tokenize", `{}`, 400, "prompt", "")
	w.refused(http.MethodPost, "/tokenize", `{"prompt": "a", "messages": []}`, 400, "prompt", "")
	w.refused(http.MethodPost, "/tokenize", `{"prompt": "a", "model": "x"}`, 404, "model", "model_not_found")
	w.refused(http.MethodPost, "/detokenize", `{"tokens": [1, null]}`, 400, "tokens", "", "null")
	w.refused(http.MethodPost, "/detokenize", `{"tokens": [99999]}`, 400, "tokens", "", "99999")
	w.refused(http.MethodPost, "/detokenize", `{}`, 400, "tokens", "")
}
