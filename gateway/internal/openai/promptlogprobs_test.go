package openai

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type promptToken struct {
	Logprob float32 `json:"logprob"`
	Rank    *int    `json:"rank"`
	Text    string  `json:"decoded_token"`
}

// TestPromptLogprobs: a prompt's log-probabilities in vLLM's form are those that an echo tells of, in chat and in completions, with ranks as far as they are known.
func TestPromptLogprobs(t *testing.T) {
	w := newWorld(t, options{})
	var chat struct {
		PromptTokenIDs []int32                  `json:"prompt_token_ids"`
		PromptLogprobs []map[string]promptToken `json:"prompt_logprobs"`
	}
	status, _, b := w.send(http.MethodPost, "/v1/chat/completions", asking("hi there").with(fields{"return_token_ids": true, "prompt_logprobs": 3, "max_tokens": 1}).text())
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, b)
	}
	w.ok(json.Unmarshal(b, &chat))
	ids := chat.PromptTokenIDs
	echo := w.complete(completing(ids).with(fields{"echo": true, "logprobs": 5, "max_tokens": 0})).Choices[0].Logprobs
	check := func(name string, got []map[string]promptToken, alternatives int) {
		t.Helper()
		if len(got) != len(ids) || got[0] != nil {
			t.Fatalf("%s: %d entries for %d tokens, the first %v", name, len(got), len(ids), got[0])
		}
		for i := 1; i < len(ids); i++ {
			own, ok := got[i][strconv.Itoa(int(ids[i]))]
			text, _ := w.model.TokenText(ids[i])
			if !ok || own.Logprob != *echo.TokenLogprobs[i] || own.Text != text {
				t.Fatalf("%s: token %d: %+v, want %v of %q", name, i, got[i], *echo.TokenLogprobs[i], text)
			}
			var ranks []int
			for _, one := range got[i] {
				if one.Rank != nil {
					ranks = append(ranks, *one.Rank)
				}
			}
			slices.Sort(ranks)
			for at := range alternatives {
				if len(ranks) != alternatives || ranks[at] != at+1 {
					t.Fatalf("%s: token %d: ranks %v", name, i, ranks)
				}
			}
			if more := len(got[i]) - alternatives; own.Rank == nil && more != 1 || own.Rank != nil && more != 0 {
				t.Fatalf("%s: token %d: %+v", name, i, got[i])
			}
		}
	}
	check("chat", chat.PromptLogprobs, 3)
	first := b[strings.Index(string(b), `"prompt_logprobs":[null,{`):]
	if want := `"prompt_logprobs":[null,{"` + strconv.Itoa(int(ids[1])) + `":{`; !strings.HasPrefix(string(first), want) {
		t.Errorf("the prompt's own token is not the first: %.80s", first)
	}
	for name, more := range map[string]fields{"alone": {"prompt_logprobs": 2, "n": 2}, "own only": {"prompt_logprobs": 0}, "with an echo of more": {"prompt_logprobs": 1, "echo": true, "logprobs": 5}, "with an echo of fewer": {"prompt_logprobs": 5, "echo": true, "logprobs": 1}} {
		status, _, b := w.send(http.MethodPost, "/v1/completions", completing([][]int32{ids, ids[:1]}).with(fields{"max_tokens": 1}).with(more).text())
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", name, status, b)
		}
		var a struct {
			Choices []struct {
				PromptLogprobs []map[string]promptToken `json:"prompt_logprobs"`
				Logprobs       *completionLogprobs      `json:"logprobs"`
			} `json:"choices"`
		}
		w.ok(json.Unmarshal(b, &a))
		for _, c := range a.Choices[:len(a.Choices)/2] {
			check(name, c.PromptLogprobs, more["prompt_logprobs"].(int))
			if c.Logprobs != nil && (len(c.Logprobs.TopLogprobs[1]) < more["logprobs"].(int) || len(c.Logprobs.TopLogprobs[1]) > more["logprobs"].(int)+1) {
				t.Errorf("%s: %d alternatives", name, len(c.Logprobs.TopLogprobs[1]))
			}
		}
		if last := a.Choices[len(a.Choices)-1].PromptLogprobs; len(last) != 1 || last[0] != nil {
			t.Errorf("%s: of one token: %v", name, last)
		}
	}
	for path, ask := range map[string]fields{"/v1/chat/completions": asking("hi"), "/v1/completions": completing("hi")} {
		for _, c := range []struct {
			value  any
			stream bool
			words  string
		}{{1, true, "stream"}, {21, false, "20"}, {-1, false, "-1"}, {true, false, "true"}, {1.5, false, "1.5"}} {
			code := ""
			if c.stream {
				code = "unsupported_parameter"
			}
			w.refused(http.MethodPost, path, ask.with(fields{"prompt_logprobs": c.value, "stream": c.stream}).text(), http.StatusBadRequest, "prompt_logprobs", code, c.words)
		}
		for _, nothing := range []any{nil, false} {
			status, _, b := w.send(http.MethodPost, path, ask.with(fields{"prompt_logprobs": nothing}).text())
			if status != http.StatusOK || strings.Contains(string(b), "prompt_logprobs") {
				t.Errorf("%s: %v: %d %s", path, nothing, status, b)
			}
		}
	}
	w.refused(http.MethodPost, "/v1/responses", responding("hi").with(fields{"prompt_logprobs": 1}).text(), http.StatusBadRequest, "prompt_logprobs", "unsupported_parameter", "/v1/completions")
	whole := w.service.WholeBytes
	w.service.WholeBytes = 1 << 20
	w.refused(http.MethodPost, "/v1/chat/completions", asking(strings.Repeat("many words ", 400)).with(fields{"prompt_logprobs": 20}).text(), http.StatusBadRequest, "stream", "", "1024 KiB")
	w.service.WholeBytes = whole
}
