package openai

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// sequenceBody is what an answer or an event tells of a recorded sequence.
type sequenceBody struct {
	PromptTokenIDs []int32 `json:"prompt_token_ids"`
	SequenceID     string  `json:"sequence_id"`
	TokenIDs       []int32 `json:"token_ids"`
	Choices        []struct {
		SequenceID string  `json:"sequence_id"`
		TokenIDs   []int32 `json:"token_ids"`
	} `json:"choices"`
}

// TestSequencesAreTrainedOn: what an answer names as its sequence is taken by a loss that wants provenance, as what was sampled; from the owner alone.
func TestSequencesAreTrainedOn(t *testing.T) {
	path, names := keysFile(t, "one", "two")
	w := newWorld(t, options{keys: path})
	w.key = names["one"]
	w.says("Hello there")
	session := w.session("one")
	run := w.adapter("one", session, 0, 0)
	foreign := w.adapter("two", w.session("two"), 0, 0)
	seq := map[string]int64{}
	train := func(owner, run, id string, prompt, sampled []int32) *runs.Outcome {
		t.Helper()
		n := len(prompt) + len(sampled) - 1
		all := append(append([]int32{}, prompt...), sampled...)
		targets, advantages := make([]int64, n), make([]float32, n)
		for i := range targets {
			targets[i] = int64(all[i+1])
			if i+1 >= len(prompt) {
				advantages[i] = 1
			}
		}
		seq[run]++
		s, err := w.core.ForwardBackward(w.Context(), runs.ForwardBackward{Operation: runs.Operation{Owner: owner, RunID: run, Seq: seq[run]}, Loss: "stable_reinforce", Data: []runs.Datum{{
			Tokens: all[:n], Inputs: map[string]runs.Tensor{"target_tokens": {Ints: targets}, "logprobs": {Floats: make([]float32, n)}, "advantages": {Floats: advantages}},
			LossSpans: []runs.Span{{SequenceID: id, Offset: 1, Length: int64(len(prompt) - 1)}, {Sampled: true, SequenceID: id, Length: int64(len(sampled))}},
		}}})
		w.ok(err)
		out, err := w.core.Wait(w.Context(), owner, s.RequestID, day)
		w.ok(err)
		return out
	}
	seen := map[string]bool{}
	check := func(name, id string, prompt, sampled []int32) {
		t.Helper()
		if id == "" || seen[id] {
			t.Fatalf("%s: sequence id %q", name, id)
		}
		seen[id] = true
		if out := train("one", run, id, prompt, sampled); out.Failure != nil {
			t.Errorf("%s: %s", name, out.Failure.Message)
		}
		if out := train("two", foreign, id, prompt, sampled); out.Failure == nil {
			t.Errorf("%s: another owner trains on it", name)
		}
		other := append([]int32{}, sampled...)
		other[0]++
		if out := train("one", run, id, prompt, other); out.Failure == nil {
			t.Errorf("%s: other tokens are trained on", name)
		}
	}
	for name, more := range map[string]fields{"tokens": {"return_token_ids": true, "n": 2}, "datum": {"return_datum": true}, "session": {"session_id": "s"}} {
		var whole sequenceBody
		w.answer("/v1/chat/completions", "CreateChatCompletionResponse", asking("hi").with(more), &whole)
		for _, choice := range whole.Choices {
			check(name, choice.SequenceID, whole.PromptTokenIDs, choice.TokenIDs)
		}
		streamed := map[int]*sequenceBody{}
		for _, event := range w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", asking("hi").with(more)) {
			var chunk struct {
				Choices []struct {
					Index int `json:"index"`
					sequenceBody
					FinishReason *string `json:"finish_reason"`
				} `json:"choices"`
			}
			w.ok(json.Unmarshal([]byte(event), &chunk))
			for _, c := range chunk.Choices {
				if streamed[c.Index] == nil {
					streamed[c.Index] = &sequenceBody{}
				}
				streamed[c.Index].TokenIDs = append(streamed[c.Index].TokenIDs, c.TokenIDs...)
				if (c.FinishReason != nil) != (c.SequenceID != "") {
					t.Errorf("%s: %s", name, event)
				}
				streamed[c.Index].SequenceID = c.SequenceID
			}
		}
		if len(streamed) != len(whole.Choices) {
			t.Errorf("%s: %d choices are streamed", name, len(streamed))
		}
		for _, s := range streamed {
			check(name+", streamed", s.SequenceID, whole.PromptTokenIDs, s.TokenIDs)
		}
	}
	var response sequenceBody
	status, _, b := w.send(http.MethodPost, "/v1/responses", responding("hi").with(fields{"return_token_ids": true}).text())
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, b)
	}
	w.ok(json.Unmarshal(b, &response))
	check("responses", response.SequenceID, response.PromptTokenIDs, response.TokenIDs)

	var plain sequenceBody
	w.answer("/v1/chat/completions", "CreateChatCompletionResponse", asking("hi"), &plain)
	if plain.Choices[0].SequenceID != "" {
		t.Error("a sequence is recorded that nobody asked for")
	}
}
