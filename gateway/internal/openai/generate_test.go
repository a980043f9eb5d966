package openai

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

type generatedBody struct {
	RequestID string `json:"request_id"`
	Model     string `json:"model"`
	Choices   []struct {
		Index    int     `json:"index"`
		TokenIDs []int32 `json:"token_ids"`
		Logprobs *struct {
			Content []chatLogprob `json:"content"`
		} `json:"logprobs"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
	PromptLogprobs []map[string]promptToken `json:"prompt_logprobs"`
	WeightVersion  *int64                   `json:"weight_version"`
}

// TestGenerate: tokens in and tokens out, whole and streamed, are those that completions sample, with a log-probability for each.
func TestGenerate(t *testing.T) {
	w := newWorld(t, options{})
	end, _ := w.model.Tokenizer.ID("<|im_end|>")
	const path = "/inference/v1/generate"
	prompt := []int32{5, 6, 7, 8}
	for _, c := range []struct {
		name, says, finish string
		params             fields
	}{
		{"random", "", "length", fields{"max_tokens": 20, "logprobs": 1, "n": 2, "ignore_eos": true}},
		{"to the end", "Hello there", "stop", fields{"max_tokens": 100, "logprobs": 3, "stop_token_ids": []int32{end}, "skip_special_tokens": false, "routed_experts_prompt_start": 0}},
		{"a stop string", "Hello there", "stop", fields{"stop": []string{"there"}, "logprobs": 0}},
		{"no log-probabilities", "Hello there", "stop", fields{}},
		{"the prompt's", "Hello there", "stop", fields{"prompt_logprobs": 1}},
		{"a form", "", "stop", fields{"structured_outputs": fields{"choice": []string{"yes", "no"}}, "logprobs": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			if w.inside.Says(); c.says != "" {
				w.says(c.says)
			}
			params := c.params.with(fields{"seed": 7, "temperature": 0.7})
			body := fields{"model": modelName, "token_ids": prompt, "sampling_params": params, "request_id": "mine", "cache_salt": "x", "priority": 0}
			status, _, b := w.send(http.MethodPost, path, body.text())
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, b)
			}
			var whole generatedBody
			w.ok(json.Unmarshal(b, &whole))
			same := completing(prompt).with(params).with(fields{"return_token_ids": true, "max_tokens": 100, "prompt_logprobs": nil}).with(fields{"logprobs": 1})
			if n, ok := params["max_tokens"]; ok {
				same["max_tokens"] = n
			}
			var reference struct {
				Choices []struct {
					TokenIDs []int32             `json:"token_ids"`
					Logprobs *completionLogprobs `json:"logprobs"`
				} `json:"choices"`
			}
			w.answer("/v1/completions", "CreateCompletionResponse", same, &reference)
			if len(whole.Choices) != len(reference.Choices) || whole.RequestID != "mine" || whole.Model != modelName || whole.Usage.Prompt != len(prompt) || *whole.WeightVersion != 0 {
				t.Fatalf("%s", b)
			}
			for i, choice := range whole.Choices {
				if !slices.Equal(choice.TokenIDs, reference.Choices[i].TokenIDs) || *choice.FinishReason != c.finish || choice.Index != i {
					t.Errorf("choice %d: %v, %s; completions have %v", i, choice.TokenIDs, *choice.FinishReason, reference.Choices[i].TokenIDs)
				}
				k, asked := c.params["logprobs"].(int)
				if asked != (choice.Logprobs != nil) {
					t.Fatalf("log-probabilities: %v", choice.Logprobs)
				}
				if !asked {
					continue
				}
				if len(choice.Logprobs.Content) != len(choice.TokenIDs) {
					t.Fatalf("%d log-probabilities of %d tokens", len(choice.Logprobs.Content), len(choice.TokenIDs))
				}
				for j, entry := range choice.Logprobs.Content {
					if entry.Token != tokenIDText(choice.TokenIDs[j]) || len(entry.Top) != k || entry.Logprob != *reference.Choices[i].Logprobs.TokenLogprobs[j] {
						t.Errorf("token %d: %+v", j, entry)
					}
				}
			}
			if asked := c.params["prompt_logprobs"] != nil; asked != (len(whole.PromptLogprobs) == len(prompt)) {
				t.Errorf("%v", whole.PromptLogprobs)
			}
			if c.params["prompt_logprobs"] != nil {
				return
			}
			streamed := make([][]int32, len(whole.Choices))
			used := 0
			for _, event := range w.events(path, "", body.with(fields{"stream_options": fields{"include_usage": true}})) {
				var chunk generatedBody
				w.ok(json.Unmarshal([]byte(event), &chunk))
				if used = chunk.Usage.Completion; chunk.RequestID != "mine" {
					t.Errorf("%s", event)
				}
				for _, choice := range chunk.Choices {
					streamed[choice.Index] = append(streamed[choice.Index], choice.TokenIDs...)
				}
			}
			for i, ids := range streamed {
				if !slices.Equal(ids, whole.Choices[i].TokenIDs) {
					t.Errorf("choice %d: streamed %v, whole %v", i, ids, whole.Choices[i].TokenIDs)
				}
			}
			if used != whole.Usage.Completion || used == 0 {
				t.Errorf("%d tokens are counted of %d", used, whole.Usage.Completion)
			}
		})
	}
	good := fields{"token_ids": prompt, "sampling_params": fields{"max_tokens": 1}}
	for _, c := range []struct {
		name, param, code string
		change            fields
	}{
		{"no tokens", "token_ids", "", fields{"token_ids": []int{}}},
		{"tokens that are none", "token_ids", "", fields{"token_ids": []int{1 << 30}}},
		{"text", "token_ids", "", fields{"token_ids": "hello"}},
		{"no parameters", "sampling_params", "", fields{"sampling_params": nil}},
		{"temperature", "sampling_params.temperature", "", fields{"sampling_params": fields{"temperature": 3}}},
		{"many tokens", "sampling_params.max_tokens", "context_length_exceeded", fields{"sampling_params": fields{"max_tokens": 1 << 30}}},
		{"wrong type", "sampling_params.max_tokens", "", fields{"sampling_params": fields{"max_tokens": "a"}}},
		{"all log-probabilities", "sampling_params.logprobs", "", fields{"sampling_params": fields{"logprobs": -1}}},
		{"beam search", "sampling_params.use_beam_search", "unsupported_parameter", fields{"sampling_params": fields{"use_beam_search": true}}},
		{"images", "features", "unsupported_parameter", fields{"features": fields{"mm_hashes": 1}}},
		{"long name", "request_id", "", fields{"request_id": strings.Repeat("x", 1000)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.refused(http.MethodPost, path, good.with(c.change).text(), http.StatusBadRequest, c.param, c.code)
		})
	}
	w.inside.Says()
	if status, _, b := w.send(http.MethodPost, path, good.text()); status != http.StatusOK { // the first model
		t.Errorf("%d %s", status, b)
	}
}
