package openai

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestChat(t *testing.T) {
	w := newWorld(t, options{})
	before := time.Now().Unix()
	a := w.chat(asking("hello"))
	if !strings.HasPrefix(a.ID, "chatcmpl-") || a.Created < before || a.Created > time.Now().Unix() || a.Model != modelName || len(a.Choices) != 1 {
		t.Errorf("answer %+v", a)
	}
	prompt := encoded(t, w.model.Tokenizer, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
	if u := a.Usage; u.PromptTokens != len(prompt) || u.CompletionTokens != 24 || u.TotalTokens != len(prompt)+24 {
		t.Errorf("usage %+v, prompt of %d", *a.Usage, len(prompt))
	}
	if *a.Choices[0].FinishReason != "length" || a.Choices[0].Message.Content == "" || a.Choices[0].Logprobs != nil {
		t.Errorf("choice %+v", a.Choices[0])
	}
	if again := w.chat(asking("hello")); again.Choices[0].Message.Content != a.Choices[0].Message.Content || again.ID == a.ID {
		t.Errorf("the same seed gave %+v", again)
	}
	if other := w.chat(asking("hello").with(fields{"seed": -8})); other.Choices[0].Message.Content == a.Choices[0].Message.Content {
		t.Error("another seed gave the same text")
	}
}

// TestChatForms: what means the same gives the same.
func TestChatForms(t *testing.T) {
	w := newWorld(t, options{})
	plain := w.chat(asking("hello\nyou")).Choices[0].Message.Content
	for name, change := range map[string]fields{
		"content in parts":           {"messages": []fields{{"role": "user", "content": []fields{{"type": "text", "text": "hello"}, {"type": "text", "text": "you"}}}}},
		"max_completion_tokens":      {"max_tokens": nil, "max_completion_tokens": 24},
		"both limits":                {"max_completion_tokens": 24},
		"alias":                      {"model": modelAlias},
		"defaults spelled out":       {"n": 1, "temperature": 1, "top_p": 1, "stop": nil, "stream": false, "logit_bias": nil, "presence_penalty": 0, "frequency_penalty": 0, "logprobs": false, "response_format": fields{"type": "text"}, "tools": []int{}, "modalities": []string{"text"}, "top_k": 0, "min_p": 0, "repetition_penalty": 1},
		"harmless fields":            {"user": "u", "metadata": fields{"a": "b"}, "store": false, "service_tier": "auto", "parallel_tool_calls": true, "safety_identifier": "x", "prompt_cache_key": "y", "never_heard_of": []int{1}},
		"no stop strings":            {"stop": []string{}},
		"unserved fields that are 0": {"prompt_logprobs": nil, "use_beam_search": false, "bad_words": []string{}, "tool_choice": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.chat(asking("hello\nyou").with(change)).Choices[0].Message.Content; got != plain {
				t.Errorf("%q, want %q", got, plain)
			}
		})
	}
	if developer, system := chatOf(w, "developer"), chatOf(w, "system"); developer != system || developer == plain {
		t.Errorf("developer %q, system %q", developer, system)
	}
	thinking := asking("hello").with(fields{"chat_template_kwargs": fields{"enable_thinking": false}})
	if w.chat(thinking).Usage.PromptTokens <= w.chat(asking("hello")).Usage.PromptTokens {
		t.Error("enable_thinking: false did not reach the template")
	}
	if a, b := w.chat(thinking), w.chat(asking("hello").with(fields{"reasoning_effort": "none"})); a.Choices[0].Message.Content != b.Choices[0].Message.Content {
		t.Error("reasoning_effort none is not enable_thinking: false")
	}
	continued := asking("hello").with(fields{"continue_final_message": true, "messages": []fields{{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}}})
	if got := w.chat(continued).Usage.PromptTokens; got != len(encoded(t, w.model.Tokenizer, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nb")) {
		t.Errorf("a continued message makes %d tokens", got)
	}
}

func chatOf(w *world, role string) string {
	return w.chat(asking("").with(fields{"messages": []fields{{"role": role, "content": "be brief"}, {"role": "user", "content": "hi"}}})).Choices[0].Message.Content
}

func TestChatStream(t *testing.T) {
	w := newWorld(t, options{})
	for name, change := range map[string]fields{
		"plain":    {},
		"n":        {"n": 3},
		"logprobs": {"logprobs": true, "top_logprobs": 2},
		"usage":    {"stream_options": fields{"include_usage": true}},
		"greedy":   {"temperature": 0},
	} {
		t.Run(name, func(t *testing.T) {
			whole := w.chat(asking("hello").with(change))
			texts, logprobs, reasons := make([]string, len(whole.Choices)), make([][]chatLogprob, len(whole.Choices)), make([]string, len(whole.Choices))
			var ids []string
			var used *inference.Usage
			for _, event := range w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", asking("hello").with(change)) {
				var chunk chatAnswerBody
				w.ok(json.Unmarshal([]byte(event), &chunk))
				ids = append(ids, chunk.ID)
				if used != nil {
					t.Error("a chunk follows the usage")
				}
				if chunk.Usage != nil {
					if used = chunk.Usage; len(chunk.Choices) != 0 {
						t.Error("the chunk with the usage has choices")
					}
				}
				for _, c := range chunk.Choices {
					if texts[c.Index] == "" && reasons[c.Index] == "" && (c.Delta.Role == "assistant") != (len(logprobs[c.Index]) == 0 && c.Delta.Content == "" && c.FinishReason == nil) {
						t.Errorf("the role comes with %+v", c)
					}
					if reasons[c.Index] != "" {
						t.Errorf("choice %d goes on after its end", c.Index)
					}
					texts[c.Index] += c.Delta.Content
					if c.Logprobs != nil {
						logprobs[c.Index] = append(logprobs[c.Index], c.Logprobs.Content...)
					}
					if c.FinishReason != nil {
						reasons[c.Index] = *c.FinishReason
					}
				}
			}
			if len(slices.Compact(ids)) != 1 {
				t.Errorf("ids %q", ids)
			}
			for i, c := range whole.Choices {
				if texts[i] != c.Message.Content || reasons[i] != *c.FinishReason {
					t.Errorf("choice %d: streamed %q (%s), whole %q (%s)", i, texts[i], reasons[i], c.Message.Content, *c.FinishReason)
				}
				if c.Logprobs != nil && fmt.Sprint(c.Logprobs.Content) != fmt.Sprint(logprobs[i]) {
					t.Errorf("choice %d: streamed log-probabilities differ", i)
				}
			}
			if name == "n" && texts[0] == texts[1] {
				t.Error("the choices are equal")
			}
			if (used != nil) != (name == "usage") || used != nil && *used != *whole.Usage {
				t.Errorf("usage %+v, want %+v", used, whole.Usage)
			}
		})
	}
}

// TestChatLogprobs: the entries are those of the text's tokens, best first, and the bytes of all tokens are the text.
func TestChatLogprobs(t *testing.T) {
	w := newWorld(t, options{})
	a := w.chat(asking("hello").with(fields{"logprobs": true, "top_logprobs": 5, "skip_special_tokens": false, "n": 2}))
	for _, c := range a.Choices {
		var all []byte
		for _, entry := range c.Logprobs.Content {
			for _, b := range entry.Bytes {
				all = append(all, byte(b))
			}
			if len(entry.Top) != 5 || !slices.IsSortedFunc(entry.Top, func(x, y chatTopLogprob) int {
				if x.Logprob > y.Logprob {
					return -1
				}
				return 1
			}) {
				t.Errorf("top %+v", entry.Top)
			}
			for _, top := range entry.Top {
				if top.Token == entry.Token && slices.Equal(top.Bytes, entry.Bytes) && top.Logprob != entry.Logprob {
					t.Errorf("%+v is not its own alternative %+v", entry, top)
				}
			}
		}
		if text := strings.ToValidUTF8(string(all), ""); strings.ReplaceAll(c.Message.Content, "\uFFFD", "") != text {
			t.Errorf("tokens make %q, the text is %q", all, c.Message.Content)
		}
	}
	if got := w.chat(asking("hello").with(fields{"logprobs": true})).Choices[0].Logprobs.Content[0]; len(got.Top) != 0 {
		t.Errorf("nobody asked for alternatives: %+v", got)
	}
	greedy := w.chat(asking("hello").with(fields{"logprobs": true, "top_logprobs": 1, "temperature": 0}))
	for _, entry := range greedy.Choices[0].Logprobs.Content {
		if entry.Logprob != entry.Top[0].Logprob {
			t.Errorf("greedy %v, best %v", entry.Logprob, entry.Top[0].Logprob)
		}
	}
	// A temperature near 0 is greedy, and no log-probability is minus infinity.
	for _, temperature := range []float64{1e-45, 1e-6, 1e-3} {
		cold := w.chat(asking("hello").with(fields{"logprobs": true, "top_logprobs": 20, "temperature": temperature}))
		if cold.Choices[0].Message.Content != greedy.Choices[0].Message.Content {
			t.Errorf("temperature %v: %q, greedy %q", temperature, cold.Choices[0].Message.Content, greedy.Choices[0].Message.Content)
		}
	}
}

func TestStops(t *testing.T) {
	w := newWorld(t, options{})
	text := w.chat(asking("hello")).Choices[0].Message.Content
	runes := []rune(text)
	for from := 0; from+6 < len(runes); from += 5 {
		stop := string(runes[from : from+6])
		cut, _, _ := strings.Cut(text, stop)
		for _, value := range []any{stop, []string{"never seen", stop}} {
			c := w.chat(asking("hello").with(fields{"stop": value})).Choices[0]
			if c.Message.Content != cut || *c.FinishReason != "stop" {
				t.Errorf("stop %q: %q (%s), want %q", value, c.Message.Content, *c.FinishReason, cut)
			}
		}
		if got := w.chat(asking("hello").with(fields{"stop": stop, "include_stop_str_in_output": true})).Choices[0].Message.Content; got != cut+stop {
			t.Errorf("stop %q included: %q", stop, got)
		}
	}
	// Biased beyond doubt, the end token comes first; ignored, it is a token like any other.
	end := fmt.Sprint(w.model.EndTokens[0])
	certain := asking("hello").with(fields{"logit_bias": fields{end: 100}, "logprobs": true})
	if a := w.chat(certain); a.Choices[0].Message.Content != "" || *a.Choices[0].FinishReason != "stop" || a.Usage.CompletionTokens != 1 || len(a.Choices[0].Logprobs.Content) != 0 {
		t.Errorf("end token: %+v", a)
	}
	if a := w.chat(certain.with(fields{"ignore_eos": true})); a.Choices[0].Message.Content != "" || *a.Choices[0].FinishReason != "length" || len(a.Choices[0].Logprobs.Content) != 24 {
		t.Errorf("ignored end token: %+v", a)
	}
	if a := w.chat(certain.with(fields{"min_tokens": 3})); a.Usage.CompletionTokens != 4 {
		t.Errorf("min_tokens 3: %+v", a.Usage)
	}
	word := encoded(t, w.model.Tokenizer, "one")
	one := asking("hello").with(fields{"logit_bias": fields{fmt.Sprint(word[0]): 100}, "stop_token_ids": word[:1]})
	if c := w.chat(one).Choices[0]; c.Message.Content != "" || *c.FinishReason != "stop" {
		t.Errorf("stop token: %+v", c)
	}
	if c := w.chat(one.with(fields{"include_stop_str_in_output": true})).Choices[0]; c.Message.Content != w.model.Tokenizer.Decode(word[:1], false) {
		t.Errorf("included stop token: %+v", c)
	}
}

func TestSamplingParameters(t *testing.T) {
	w := newWorld(t, options{})
	text := func(change fields) string { return w.chat(asking("hello").with(change)).Choices[0].Message.Content }
	greedy := text(fields{"temperature": 0})
	for name, change := range map[string]fields{
		"temperature 0 with another seed": {"temperature": 0, "seed": 99},
		"top_k 1":                         {"top_k": 1},
		"top_p 0":                         {"top_p": 0},
		"tiny top_p":                      {"top_p": 1e-9},
		"min_p 1":                         {"min_p": 1},
	} {
		if got := text(change); got != greedy {
			t.Errorf("%s: %q, greedy %q", name, got, greedy)
		}
	}
	plain := text(nil)
	for name, change := range map[string]fields{
		"temperature 2":        {"temperature": 2},
		"top_k 3":              {"top_k": 3},
		"top_p 0.3":            {"top_p": 0.3},
		"repetition_penalty 5": {"repetition_penalty": 5},
	} {
		if text(change) == plain {
			t.Errorf("%s changes nothing", name)
		}
	}
	word := encoded(t, w.model.Tokenizer, "one")[0]
	biased := text(fields{"logit_bias": fields{fmt.Sprint(word): 100}, "max_tokens": 3})
	if want := strings.Repeat(w.model.Tokenizer.Decode([]int32{word}, false), 3); biased != want {
		t.Errorf("biased %q, want %q", biased, want)
	}
	// Some tokens are far ahead of all others, so that they repeat; a penalty changes their order.
	bias := fields{}
	for _, id := range encoded(t, w.model.Tokenizer, "one two three four five six seven eight nine ten") {
		bias[fmt.Sprint(id)] = 100
	}
	for name, change := range map[string]fields{"frequency_penalty": {"frequency_penalty": 2}, "presence_penalty": {"presence_penalty": 2}, "neither": {"presence_penalty": 0, "frequency_penalty": 0}} {
		changed := 0
		for i := range 6 {
			ahead := asking(fmt.Sprint(i)).with(fields{"temperature": 0, "max_tokens": 12, "logit_bias": bias})
			if w.chat(ahead).Choices[0].Message.Content != w.chat(ahead.with(change)).Choices[0].Message.Content {
				changed++
			}
		}
		if (changed > 0) == (name == "neither") {
			t.Errorf("%s changes %d of 6 answers", name, changed)
		}
	}
}

func TestMidStreamFailure(t *testing.T) {
	w := newWorld(t, options{backend: `"faults": [{"operation": "token", "n": 5, "action": "fail", "message": "the device is on fire", "kind": "unavailable"}],`})
	events := w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", asking("hello"))
	var last struct {
		Error *failure `json:"error"`
	}
	w.ok(json.Unmarshal([]byte(events[len(events)-1]), &last))
	if last.Error == nil || !strings.Contains(last.Error.Message, "on fire") || len(events) < 3 {
		t.Errorf("events %q", events)
	}
	w.chat(asking("hello")) // the server goes on
}

func TestFailureBeforeTheStream(t *testing.T) {
	w := newWorld(t, options{backend: `"faults": [{"operation": "sample", "n": 1, "action": "fail", "message": "no room", "kind": "capacity"}, {"operation": "sample", "n": 2, "action": "fail", "message": "secret path"}],`})
	body := asking("hello").with(fields{"stream": true}).text()
	w.refused(http.MethodPost, "/v1/chat/completions", body, 429, "", "rate_limit_exceeded", "no room")
	w.refused(http.MethodPost, "/v1/chat/completions", body, 500, "", "", "The server had an error")
}

// TestDisconnect: a client that goes away frees its sequences.
func TestDisconnect(t *testing.T) {
	w := newWorld(t, options{backend: `"delays": [{"operation": "token", "seconds": 0.02}],`})
	for _, stream := range []bool{true, false} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/chat/completions", strings.NewReader(asking("hello").with(fields{"max_tokens": 2000, "stream": stream, "ignore_eos": true}).text()))
		w.ok(err)
		transport := &http.Transport{}
		if stream {
			res, err := transport.RoundTrip(req)
			w.ok(err)
			if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
				t.Fatalf("%q, %v", line, err)
			}
			if n := w.core.Stats().Generations; n != 1 {
				t.Fatalf("%d generations", n)
			}
			w.ok(res.Body.Close())
		} else {
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() {
				res, err := transport.RoundTrip(req.WithContext(ctx))
				if err == nil {
					err = res.Body.Close()
				}
				failed <- err
			}()
			w.eventually(func() bool { return w.core.Stats().Generations == 1 })
			cancel()
			if err := <-failed; err == nil {
				t.Error("the request was answered")
			}
		}
		w.eventually(func() bool { return w.core.Stats().Generations == 0 })
		transport.CloseIdleConnections()
	}
}
