package inference

import "github.com/tinsmith/tinsmith/gateway/internal/runs"

// Exact is what an answer tells of its tokens, for training on the very tokens that were read and sampled. It stands at the root of an answer, or of the first event of a stream.
type Exact struct {
	PromptTokenIDs []int32 `json:"prompt_token_ids"`
	// WeightVersion is the adapter's version that has answered, 0 for the base model; ModelPath the checkpoint's path or the run's.
	WeightVersion int64   `json:"weight_version"`
	ModelPath     *string `json:"model_path"`
	// Prefix tells whether the prompt begins with what the session has read and sampled before.
	Prefix *Prefix `json:"prefix,omitempty"`
}

// Prefix is how many of a prompt's tokens are those of an earlier turn, and whether they are that turn's bit for bit.
type Prefix struct {
	Tokens int  `json:"tokens"`
	Exact  bool `json:"exact"`
}

// pathOf is the name of a target's weights, nil for a base model.
func pathOf(t runs.Target) *string {
	path := t.Path
	if path == "" && t.RunID != "" {
		path = "tinker://" + t.RunID
	}
	if path == "" {
		return nil
	}
	return &path
}

// Sampled collects what a sequence has sampled.
type Sampled struct {
	Tokens   []int32
	Logprobs []float32
}

// Add takes the next tokens.
func (s *Sampled) Add(tokens []Token) {
	for _, t := range tokens {
		s.Tokens, s.Logprobs = append(s.Tokens, t.ID), append(s.Logprobs, t.Logprob)
	}
}

// IDs are the ids of tokens, never nil.
func IDs(tokens []Token) []int32 {
	out := make([]int32, len(tokens))
	for i, t := range tokens {
		out[i] = t.ID
	}
	return out
}
