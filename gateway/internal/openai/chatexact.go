package openai

import "github.com/tinsmith/tinsmith/gateway/internal/inference"

// exactChoice is what a choice tells of its tokens.
type exactChoice struct {
	TokenIDs []int32          `json:"token_ids"`
	Datum    *inference.Datum `json:"datum,omitempty"`
}

// exactPrompt is what an answer tells of its prompt's tokens, nil unless asked.
func (a *chatAnswer) exactPrompt() *inference.Exact {
	if !a.exact {
		return nil
	}
	out := inference.NewExact(a.target, a.version, a.generation.Request.Prompt)
	out.Prefix = a.prompt.Prefix()
	return out
}

// exactChoice is what a whole choice tells of its tokens, nil unless asked.
func (a *chatAnswer) exactChoice(i int) (*exactChoice, error) {
	if !a.exact {
		return nil, nil
	}
	datum, err := a.datum(i)
	tokens := a.sampled[i].Tokens
	if tokens == nil {
		tokens = []int32{}
	}
	return &exactChoice{tokens, datum}, err
}

// datum is a choice as training data, nil unless asked.
func (a *chatAnswer) datum(i int) (*inference.Datum, error) {
	if a.loss == "" {
		return nil, nil
	}
	return inference.NewDatum(a.loss, []inference.Span{{Tokens: a.generation.Request.Prompt}, {Tokens: a.sampled[i].Tokens, Logprobs: a.sampled[i].Logprobs}})
}

// exactBytes is about the memory of some tokens in an answer.
func (a *chatAnswer) exactBytes(tokens []inference.Token) int {
	const one = 64 // with its score, as numbers and as JSON, twice
	if !a.exact {
		return 0
	}
	return one * len(tokens)
}

// remember keeps what a choice has sampled, for its Datum and for its session.
func (a *chatAnswer) remember(p inference.Part) error {
	if !a.exact {
		return nil
	}
	i := p.Sequence
	a.sampled[i].Add(p.Tokens)
	if a.prompt.Prefix() == nil {
		return nil
	}
	a.said[i].Add(p.Events)
	if p.Reason == "" {
		return nil
	}
	return a.prompt.Remember(a.said[i].Answer(), a.sampled[i], a.version, p.Reason, p.Stop)
}
