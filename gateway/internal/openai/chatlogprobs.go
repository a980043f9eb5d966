package openai

import (
	"strconv"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// chatLogprob is one entry of logprobs.content.
type chatLogprob struct {
	Token   string           `json:"token"`
	Logprob float32          `json:"logprob"`
	Bytes   []int            `json:"bytes"`
	Top     []chatTopLogprob `json:"top_logprobs"`
}

type chatTopLogprob struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// logprobsObject is the value of a choice's logprobs: null unless asked.
func (a *chatAnswer) logprobsObject(content []chatLogprob) any {
	if !a.logprobs {
		return nil
	}
	if content == nil {
		content = []chatLogprob{}
	}
	return struct {
		Content []chatLogprob `json:"content"`
		Refusal *string       `json:"refusal"`
	}{content, nil}
}

// scores is how many log-probabilities logprobsOf gives.
func (a *chatAnswer) scores(tokens []inference.Token) int {
	if !a.logprobs {
		return 0
	}
	return len(tokens) * (1 + a.Generation.Request.TopKSampledLogprobs)
}

func (a *chatAnswer) logprobsOf(tokens []inference.Token) []chatLogprob {
	if !a.logprobs {
		return nil
	}
	return logprobsOf(a.Model, tokens, a.request.TokensAsIDs)
}

// logprobsOf are the log-probabilities of tokens, which are named by their texts or, as vLLM does it, by their ids.
func logprobsOf(m *catalog.Model, tokens []inference.Token, asIDs bool) []chatLogprob {
	name := func(id int32) (string, []int) {
		text, raw := m.TokenText(id)
		if asIDs {
			text = tokenIDText(id)
		}
		return text, raw
	}
	out := make([]chatLogprob, 0, len(tokens))
	for _, t := range tokens {
		text, raw := name(t.ID)
		entry := chatLogprob{text, inference.Score(t.Logprob), raw, make([]chatTopLogprob, 0, len(t.Top))}
		for _, alternative := range t.Top {
			text, raw := name(alternative.ID)
			entry.Top = append(entry.Top, chatTopLogprob{text, inference.Score(alternative.Logprob), raw})
		}
		out = append(out, entry)
	}
	return out
}

// tokenIDText names a token by its id, as vLLM does.
func tokenIDText(id int32) string { return "token_id:" + strconv.Itoa(int(id)) }
