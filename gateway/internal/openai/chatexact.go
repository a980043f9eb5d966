package openai

import "github.com/tinsmith/tinsmith/gateway/internal/inference"

// exactChoice is what a choice tells of its tokens.
type exactChoice struct {
	TokenIDs []int32 `json:"token_ids"`
	// ConstraintLogprobs are there where the answer was held to a form: the logarithm of the probability of all that was allowed.
	ConstraintLogprobs []float32        `json:"constraint_logprobs,omitempty"`
	Datum              *inference.Datum `json:"datum,omitempty"`
	// SequenceID is what the choice is recorded under for training, in its last chunk.
	SequenceID string `json:"sequence_id,omitempty"`
}

// exactChoice is what a whole choice tells of its tokens, nil unless asked.
func (a *chatAnswer) exactChoice(i int) (*exactChoice, error) {
	if !a.Exact {
		return nil, nil
	}
	datum, err := a.Datum(i)
	return &exactChoice{a.TokenIDs(i), a.ConstraintLogprobs(i), datum, a.SequenceID(i)}, err
}
