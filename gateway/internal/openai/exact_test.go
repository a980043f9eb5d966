package openai

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// exactBody is what an answer or an event tells of tokens.
type exactBody struct {
	PromptTokenIDs []int32 `json:"prompt_token_ids"`
	WeightVersion  *int64  `json:"weight_version"`
	ModelPath      *string `json:"model_path"`
	Choices        []struct {
		PromptTokenIDs []int32 `json:"prompt_token_ids"`
		TokenIDs       []int32 `json:"token_ids"`
		Logprobs       *struct {
			Content []chatLogprob `json:"content"`
		} `json:"logprobs"`
		StopReason any              `json:"stop_reason"`
		Datum      *json.RawMessage `json:"datum"`
		SequenceID string           `json:"sequence_id"`
	} `json:"choices"`
}

// TestTokenIDs: an answer tells of all tokens that were read and sampled, the same whole and streamed, with as many log-probabilities.
func TestTokenIDs(t *testing.T) {
	w := newWorld(t, options{})
	end, _ := w.model.Tokenizer.ID("<|im_end|>")
	for _, c := range []struct {
		name, text string
		change     fields
		all        bool // everything is sampled, and the end token
	}{
		{"content", "Hello there", nil, true},
		{"thoughts and a call", "<think>hm</think>" + oneCall, fields{"tools": []fields{weather}}, true},
		{"cut by a stop string", "Hello there, you", fields{"stop": "there"}, false},
		{"cut by its length", "Hello there, you", fields{"max_tokens": 3}, false},
		{"nothing", "", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.says(c.text)
			ask := asking("hello").with(fields{"return_token_ids": true, "logprobs": true, "max_tokens": 200}).with(c.change)
			var whole exactBody
			w.answer("/v1/chat/completions", "CreateChatCompletionResponse", ask, &whole)
			choice := whole.Choices[0]
			said := encoded(t, w.model.Tokenizer, c.text)
			if c.all && !slices.Equal(choice.TokenIDs, append(slices.Clone(said), end)) || len(choice.TokenIDs) == 0 || !c.all && !slices.Equal(choice.TokenIDs, said[:len(choice.TokenIDs)]) {
				t.Errorf("tokens %v of %v", choice.TokenIDs, said)
			}
			if len(choice.Logprobs.Content) != len(choice.TokenIDs) {
				t.Errorf("%d log-probabilities of %d tokens", len(choice.Logprobs.Content), len(choice.TokenIDs))
			}
			if c.all && choice.StopReason != float64(end) || c.change["stop"] != nil && choice.StopReason != "there" || c.change["max_tokens"] != nil && choice.StopReason != nil {
				t.Errorf("stop reason %v", choice.StopReason)
			}
			if *whole.WeightVersion != 0 || whole.ModelPath != nil || len(whole.PromptTokenIDs) == 0 {
				t.Errorf("%v, version %d of %v", whole.PromptTokenIDs, *whole.WeightVersion, whole.ModelPath)
			}
			var prompt, ids []int32
			scores := 0
			for i, event := range w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", ask) {
				var chunk exactBody
				w.ok(json.Unmarshal([]byte(event), &chunk))
				if (i == 0) != (chunk.PromptTokenIDs != nil) {
					t.Errorf("event %d: %s", i, event)
				}
				prompt = append(prompt, chunk.PromptTokenIDs...)
				for _, choice := range chunk.Choices {
					if choice.TokenIDs == nil {
						t.Errorf("no token ids in %s", event)
					}
					ids = append(ids, choice.TokenIDs...)
					if choice.Logprobs != nil {
						scores += len(choice.Logprobs.Content)
					}
				}
			}
			if !slices.Equal(prompt, whole.PromptTokenIDs) || !slices.Equal(ids, choice.TokenIDs) || scores != len(ids) {
				t.Errorf("streamed %v with %d log-probabilities, whole %v", ids, scores, choice.TokenIDs)
			}
		})
	}
}

// TestDatum: an answer as training data, shifted by one, with nothing on the prompt.
func TestDatum(t *testing.T) {
	w := newWorld(t, options{})
	w.says("Hello there")
	ask := asking("hello").with(fields{"max_tokens": 50})
	type tensor struct {
		Data  []float64 `json:"data"`
		DType string    `json:"dtype"`
		Shape []int     `json:"shape"`
	}
	for value, names := range map[any][]string{
		true: {"advantages", "logprobs", "target_tokens"}, "ppo": {"advantages", "logprobs", "target_tokens"}, "cross_entropy": {"target_tokens", "weights"},
		"gspo": {"advantages", "logprobs", "sequence_ratio_mask", "target_tokens"},
	} {
		var whole exactBody
		w.answer("/v1/chat/completions", "CreateChatCompletionResponse", ask.with(fields{"return_datum": value}), &whole)
		choice := whole.Choices[0]
		var d struct {
			ModelInput struct {
				Chunks []inference.EncodedText `json:"chunks"`
			} `json:"model_input"`
			Inputs map[string]tensor `json:"loss_fn_inputs"`
		}
		w.ok(json.Unmarshal(*choice.Datum, &d))
		all := append(slices.Clone(whole.PromptTokenIDs), choice.TokenIDs...)
		n := len(all) - 1
		if !slices.Equal(d.ModelInput.Chunks[0].Tokens, all[:n]) {
			t.Errorf("%v: tokens %v", value, d.ModelInput.Chunks)
		}
		var got []string
		for name, tensor := range d.Inputs {
			got = append(got, name)
			if len(tensor.Data) != n || !slices.Equal(tensor.Shape, []int{n}) {
				t.Errorf("%v: %s has %d numbers, shape %v", value, name, len(tensor.Data), tensor.Shape)
			}
			for i, x := range tensor.Data {
				at := i + 1 - len(whole.PromptTokenIDs) // among the sampled tokens
				want := 0.0
				switch {
				case name == "target_tokens":
					want = float64(all[i+1])
				case at >= 0 && name == "logprobs":
					want = float64(choice.Logprobs.Content[at].Logprob)
				case at >= 0:
					want = 1
				}
				if float32(x) != float32(want) {
					t.Errorf("%v: %s[%d] is %v, want %v", value, name, i, x, want)
				}
			}
		}
		slices.Sort(got)
		if !reflect.DeepEqual(got, names) {
			t.Errorf("%v: inputs %v", value, got)
		}
		var last exactBody
		events := w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", ask.with(fields{"return_datum": value}))
		w.ok(json.Unmarshal([]byte(events[len(events)-1]), &last))
		if last.Choices[0].Datum == nil || string(*last.Choices[0].Datum) != string(*choice.Datum) {
			t.Errorf("%v: streamed %v", value, last.Choices[0].Datum)
		}
	}
}

// TestCompletionTokenIDs: the same of a completion, with several prompts.
func TestCompletionTokenIDs(t *testing.T) {
	w := newWorld(t, options{})
	w.says("Hello there")
	ask := completing([][]int{{5, 6, 7}, {8}}).with(fields{"return_token_ids": true, "logprobs": 1, "max_tokens": 50})
	var whole exactBody
	w.answer("/v1/completions", "CreateCompletionResponse", ask, &whole)
	streamed := make([]exactBody, 2)
	for _, event := range w.events("/v1/completions", "CreateCompletionResponse", ask) {
		var chunk struct {
			Choices []struct {
				Index          int     `json:"index"`
				PromptTokenIDs []int32 `json:"prompt_token_ids"`
				TokenIDs       []int32 `json:"token_ids"`
			} `json:"choices"`
		}
		w.ok(json.Unmarshal([]byte(event), &chunk))
		for _, c := range chunk.Choices {
			s := &streamed[c.Index]
			s.PromptTokenIDs = append(s.PromptTokenIDs, c.PromptTokenIDs...)
			if s.Choices == nil {
				s.Choices = make([]struct {
					PromptTokenIDs []int32 `json:"prompt_token_ids"`
					TokenIDs       []int32 `json:"token_ids"`
					Logprobs       *struct {
						Content []chatLogprob `json:"content"`
					} `json:"logprobs"`
					StopReason any              `json:"stop_reason"`
					Datum      *json.RawMessage `json:"datum"`
					SequenceID string           `json:"sequence_id"`
				}, 1)
			}
			s.Choices[0].TokenIDs = append(s.Choices[0].TokenIDs, c.TokenIDs...)
		}
	}
	for i, prompt := range [][]int32{{5, 6, 7}, {8}} {
		c := whole.Choices[i]
		if !slices.Equal(c.PromptTokenIDs, prompt) || !slices.Equal(streamed[i].PromptTokenIDs, prompt) || len(c.TokenIDs) < 3 || !slices.Equal(c.TokenIDs, streamed[i].Choices[0].TokenIDs) {
			t.Errorf("choice %d: %v %v, streamed %+v", i, c.PromptTokenIDs, c.TokenIDs, streamed[i])
		}
	}
}

// TestConstraintLogprobs: an answer of a form tells what the form allowed at each token, the same whole and streamed; others tell nothing of the kind.
func TestConstraintLogprobs(t *testing.T) {
	w := newWorld(t, options{})
	type body struct {
		Choices []struct {
			TokenIDs []int32    `json:"token_ids"`
			Left     *[]float64 `json:"constraint_logprobs"`
		} `json:"choices"`
	}
	ask := asking("hello").with(fields{"return_token_ids": true, "reasoning_effort": "none"})
	var plain, whole body
	w.answer("/v1/chat/completions", "CreateChatCompletionResponse", ask, &plain)
	if plain.Choices[0].Left != nil {
		t.Errorf("an answer of no form: %v", *plain.Choices[0].Left)
	}
	ask = ask.with(fields{"guided_choice": []string{"yes", "no"}})
	w.answer("/v1/chat/completions", "CreateChatCompletionResponse", ask, &whole)
	left := *whole.Choices[0].Left
	if len(left) != len(whole.Choices[0].TokenIDs) || slices.Max(left) > 0 || left[0] > -1 {
		t.Errorf("%v of tokens %v", left, whole.Choices[0].TokenIDs)
	}
	var streamed []float64
	for _, event := range w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", ask) {
		var chunk body
		w.ok(json.Unmarshal([]byte(event), &chunk))
		if l := chunk.Choices[0].Left; l != nil {
			streamed = append(streamed, *l...)
		}
	}
	if !slices.Equal(streamed, left) {
		t.Errorf("streamed %v, whole %v", streamed, left)
	}
}
