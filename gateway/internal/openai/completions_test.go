package openai

import (
	"encoding/json"
	"fmt"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// TestCompletionForms: the four forms of prompt, with n, give one choice per prompt and sample, in order.
func TestCompletionForms(t *testing.T) {
	w := newWorld(t, options{})
	hello, world := encoded(t, w.model.Tokenizer, "hello"), encoded(t, w.model.Tokenizer, "the world")
	one := func(prompt any) string { return w.complete(completing(prompt)).Choices[0].Text }
	first, second := one("hello"), one("the world")
	if first == second {
		t.Fatal("the prompt makes no difference")
	}
	for _, c := range []struct {
		name   string
		prompt any
		want   []string
	}{
		{"string", "hello", []string{first}},
		{"strings", []string{"hello", "the world"}, []string{first, second}},
		{"list of one string", []string{"hello"}, []string{first}},
		{"token ids", hello, []string{first}},
		{"lists of token ids", [][]int32{world, hello}, []string{second, first}},
		{"strings and lists", []any{"hello", world}, []string{first, second}},
	} {
		for _, n := range []int{1, 3} {
			a := w.complete(completing(c.prompt).with(fields{"n": n}))
			if len(a.Choices) != n*len(c.want) {
				t.Fatalf("%s: %d choices", c.name, len(a.Choices))
			}
			for i, choice := range a.Choices {
				if choice.Index != i || i%n == 0 && choice.Text != c.want[i/n] || i%n > 0 && choice.Text == c.want[i/n] {
					t.Errorf("%s, n %d: choice %d is %+v, want %q", c.name, n, i, choice, c.want)
				}
			}
			if a.Usage.CompletionTokens != 24*len(a.Choices) {
				t.Errorf("%s: usage %+v", c.name, a.Usage)
			}
		}
	}
	if a := w.complete(fields{"model": modelName, "prompt": "hello", "seed": 1}); a.Usage.CompletionTokens > 16 || *a.Choices[0].FinishReason == "length" && a.Usage.CompletionTokens != 16 {
		t.Errorf("max_tokens is 16 by default: %+v", a.Usage)
	}
}

// TestScoring is how evaluation tools score texts: batches of token ids, echo, log-probabilities, and no or one token generated.
func TestScoring(t *testing.T) {
	w := newWorld(t, options{})
	prompts := [][]int32{encoded(t, w.model.Tokenizer, "one two three four"), encoded(t, w.model.Tokenizer, "né €"), {5}}
	for _, generated := range []int{0, 1, 3} {
		for _, bias := range []fields{{}, {fmt.Sprint(w.model.EndTokens[0]): 100}} { // the generated token may be an end token
			f := completing(prompts).with(fields{"echo": true, "logprobs": 1, "max_tokens": generated, "temperature": 0, "logit_bias": bias})
			a := w.complete(f)
			for i, c := range a.Choices {
				want := len(prompts[i]) + generated
				if len(bias) > 0 {
					want = len(prompts[i]) + min(generated, 1)
				}
				l := c.Logprobs
				if len(l.Tokens) != want || len(l.TokenLogprobs) != want || len(l.TopLogprobs) != want || len(l.TextOffset) != want {
					t.Fatalf("max_tokens %d: prompt of %d tokens: %d tokens, %d log-probabilities, %d tops, %d offsets", generated, len(prompts[i]), len(l.Tokens), len(l.TokenLogprobs), len(l.TopLogprobs), len(l.TextOffset))
				}
				if l.TokenLogprobs[0] != nil || l.TopLogprobs[0] != nil {
					t.Errorf("the first token has %v, %v", l.TokenLogprobs[0], l.TopLogprobs[0])
				}
				for j := 1; j < want; j++ {
					best := *l.TokenLogprobs[j]
					for _, v := range l.TopLogprobs[j] {
						best = max(best, v)
					}
					if len(l.TopLogprobs[j]) > 2 || l.TopLogprobs[j][l.Tokens[j]] < *l.TokenLogprobs[j] {
						t.Errorf("token %d: %v, top %v", j, *l.TokenLogprobs[j], l.TopLogprobs[j])
					}
					if greedy := *l.TokenLogprobs[j] == best; j >= len(prompts[i]) && !greedy && len(bias) == 0 {
						t.Errorf("generated token %d has %v, the best %v", j, *l.TokenLogprobs[j], best)
					}
				}
				if prompt := w.model.Tokenizer.Decode(prompts[i], false); !strings.HasPrefix(c.Text, prompt) || generated == 0 && c.Text != prompt {
					t.Errorf("text %q does not begin with %q", c.Text, prompt)
				}
			}
			if want := len(prompts[0]) + len(prompts[1]) + 1; a.Usage.PromptTokens != want || generated == 0 && a.Usage.TotalTokens != want {
				t.Errorf("usage %+v", a.Usage)
			}
		}
	}
	// What was generated greedily is scored as the likeliest continuation, with the same numbers.
	a := w.complete(completing(prompts[0]).with(fields{"logprobs": 1, "temperature": 0, "max_tokens": 6, "skip_special_tokens": false, "return_token_ids": nil}))
	ids := make([]int32, 0, 6)
	for i, text := range a.Choices[0].Logprobs.Tokens {
		id := tokenNamed(w, text)
		if id < 0 {
			t.Skipf("token %d (%q) has no unique name", i, text)
		}
		ids = append(ids, id)
	}
	whole := append(slices.Clone(prompts[0]), ids...)
	scored := w.complete(completing(whole).with(fields{"echo": true, "logprobs": 1, "max_tokens": 0}))
	for i := range ids {
		got, want := scored.Choices[0].Logprobs.TokenLogprobs[len(prompts[0])+i], a.Choices[0].Logprobs.TokenLogprobs[i]
		if *got != *want {
			t.Errorf("token %d: scored %v, generated with %v", i, *got, *want)
		}
		if best := scored.Choices[0].Logprobs.TopLogprobs[len(prompts[0])+i]; best[a.Choices[0].Logprobs.Tokens[i]] != *got {
			t.Errorf("token %d: %v is not the best of %v", i, *got, best)
		}
	}
}

// tokenNamed finds the token that completions call by a text, -1 if there are several.
func tokenNamed(w *world, text string) int32 {
	found := int32(-1)
	a := &completionAnswer{model: w.model, request: &completionRequest{}}
	for id := range int32(w.model.Tokenizer.VocabSize()) {
		if a.tokenName(id) == text {
			if found >= 0 {
				return -1
			}
			found = id
		}
	}
	return found
}

// TestOffsets: offsets count characters of the text from its beginning, the echoed prompt included.
func TestOffsets(t *testing.T) {
	w := newWorld(t, options{})
	for _, prompt := range []string{"plain text", "né €𝄞 x"} {
		a := w.complete(completing(prompt).with(fields{"echo": true, "logprobs": 0, "skip_special_tokens": false, "n": 2}))
		for _, c := range a.Choices {
			text := []rune(c.Text)
			for i, offset := range c.Logprobs.TextOffset {
				name := c.Logprobs.Tokens[i]
				if strings.HasPrefix(name, "bytes:") || offset > len(text) || strings.ContainsRune(c.Text, utf8.RuneError) {
					continue
				}
				if !strings.HasPrefix(string(text[offset:]), name) {
					t.Errorf("%q: token %d %q is not at %d", c.Text, i, name, offset)
				}
			}
		}
	}
}

// TestPartsOfCharacters: tokens that are parts of a character have names of their own, and the text is whole.
func TestPartsOfCharacters(t *testing.T) {
	w := newWorld(t, options{})
	ids := encoded(t, w.model.Tokenizer, "𝄞")
	if len(ids) < 2 {
		t.Skip("the tokenizer has a token for it")
	}
	a := w.complete(completing(ids).with(fields{"echo": true, "logprobs": 0, "max_tokens": 0}))
	l := a.Choices[0].Logprobs
	if a.Choices[0].Text != "𝄞" || !strings.HasPrefix(l.Tokens[0], `bytes:\xf0`) {
		t.Errorf("%q, tokens %q", a.Choices[0].Text, l.Tokens)
	}
	// The text after half a character finishes it.
	rest := w.complete(completing(ids[:len(ids)-1]).with(fields{"logit_bias": fields{fmt.Sprint(ids[len(ids)-1]): 100}, "max_tokens": 1}))
	if rest.Choices[0].Text != "𝄞" {
		t.Errorf("half a character goes on as %q", rest.Choices[0].Text)
	}
}

func TestCompletionStream(t *testing.T) {
	w := newWorld(t, options{})
	for name, f := range map[string]fields{
		"plain":      completing("hello"),
		"batch":      completing([]string{"hello", "the world", "é"}).with(fields{"n": 2, "stream_options": fields{"include_usage": true}}),
		"echo":       completing("hello €").with(fields{"echo": true, "logprobs": 2}),
		"only echo":  completing("hello").with(fields{"echo": true, "max_tokens": 0}),
		"stop":       completing("hello").with(fields{"stop": []string{"e", "a"}}),
		"no logprob": completing("hello").with(fields{"logprobs": 0}),
	} {
		t.Run(name, func(t *testing.T) {
			whole := w.complete(f)
			streamed := make([]completionChoice, len(whole.Choices))
			var used *inference.Usage
			for _, event := range w.events("/v1/completions", "CreateCompletionResponse", f) {
				var chunk completionAnswerBody
				w.ok(json.Unmarshal([]byte(event), &chunk))
				if chunk.Usage != nil {
					used = chunk.Usage
				}
				for _, c := range chunk.Choices {
					s := &streamed[c.Index]
					s.Text += c.Text
					if c.Logprobs != nil {
						if s.Logprobs == nil {
							s.Logprobs = &completionLogprobs{}
						}
						s.Logprobs.add(c.Logprobs)
					}
					if c.FinishReason != nil {
						s.FinishReason = c.FinishReason
					}
				}
			}
			for i, c := range whole.Choices {
				c.Index = 0
				want, _ := json.Marshal(c)
				if got, _ := json.Marshal(streamed[i]); string(got) != string(want) {
					t.Errorf("choice %d: streamed %s\nwhole %s", i, got, want)
				}
			}
			if used != nil && *used != *whole.Usage || (used != nil) != (name == "batch") {
				t.Errorf("usage %+v, want %+v", used, whole.Usage)
			}
		})
	}
}

// TestManyPrompts: a request with more prompts than there are places is served, a little at a time.
func TestManyPrompts(t *testing.T) {
	w := newWorld(t, options{change: func(c *runs.Config) { c.MaxRunningSample = 2 }})
	prompts := make([][]int32, 40)
	for i := range prompts {
		prompts[i] = []int32{int32(i + 10)}
	}
	a := w.complete(completing(prompts).with(fields{"max_tokens": 1, "echo": true}))
	for i, c := range a.Choices {
		if !strings.HasPrefix(c.Text, w.model.Tokenizer.Decode(prompts[i], false)) {
			t.Errorf("choice %d: %q", i, c.Text)
		}
	}
}

// TestLongWholeAnswer: what is kept until an answer is whole is bounded; streamed, the same answer is no burden.
func TestLongWholeAnswer(t *testing.T) {
	w := newWorld(t, options{})
	whole := w.service.WholeBytes
	w.service.WholeBytes = 1 << 20
	words := []string{"1024 KiB", "stream it", "fewer choices"}
	prompt := make([]int, 500)
	for i := range prompt {
		prompt[i] = 100 + i
	}
	f := completing(prompt).with(fields{"echo": true, "logprobs": 5, "max_tokens": 0})
	w.refused(http.MethodPost, "/v1/completions", f.with(fields{"n": 3}).text(), http.StatusBadRequest, "stream", "", words...)
	if a := w.complete(f); len(a.Choices) != 1 || len(a.Choices[0].Logprobs.Tokens) != len(prompt) {
		t.Errorf("one choice: %+v", a)
	}
	chat := asking("hello").with(fields{"logprobs": true, "top_logprobs": 20, "max_tokens": 100, "n": 3, "ignore_eos": true})
	w.refused(http.MethodPost, "/v1/chat/completions", chat.text(), http.StatusBadRequest, "stream", "", words...)
	if tokens := len(w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", chat.with(fields{"stream": true}))); tokens < 300 {
		t.Errorf("%d events", tokens)
	}
	w.service.WholeBytes = whole
	if a := w.chat(chat); len(a.Choices) != 3 {
		t.Errorf("%d choices", len(a.Choices))
	}
}
