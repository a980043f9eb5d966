package inference

import "github.com/tinsmith/tinsmith/gateway/internal/runs"

// Exact is what an answer tells of its tokens, for training on the very tokens that were read and sampled. It stands at the root of an answer, or of the first event of a stream.
type Exact struct {
	PromptTokenIDs []int32 `json:"prompt_token_ids"`
	Weights
	// Prefix tells whether the prompt begins with what the session has read and sampled before.
	Prefix *Prefix `json:"prefix,omitempty"`
}

// Weights are what has answered: the adapter's version, 0 for the base model, and the checkpoint's path or the run's.
type Weights struct {
	WeightVersion int64   `json:"weight_version"`
	ModelPath     *string `json:"model_path"`
}

// WeightsOf are those of a target at a version.
func WeightsOf(t runs.Target, version int64) Weights { return Weights{version, pathOf(t)} }

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
	Left     []float32 // see Token.Left
}

// Add takes the next tokens.
func (s *Sampled) Add(tokens []Token) {
	for _, t := range tokens {
		s.Tokens, s.Logprobs, s.Left = append(s.Tokens, t.ID), append(s.Logprobs, t.Logprob), append(s.Left, t.Left)
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

// left is a list of what a form allowed, nil for an answer that was held to none.
func (j *Job) left(tokens []float32) []float32 {
	if j.Generation.Request.Constraint == nil {
		return nil
	}
	if tokens == nil {
		return []float32{}
	}
	return tokens
}

// ConstraintLogprobs are, for each token that a sequence has sampled so far, the logarithm of the probability of all that its form allowed there: the token's log-probability less
// this is that under the form. nil for an answer that is held to none.
func (j *Job) ConstraintLogprobs(sequence int) []float32 { return j.left(j.sampled[sequence].Left) }

// ConstraintLogprobsOf is the same of some tokens.
func (j *Job) ConstraintLogprobsOf(tokens []Token) []float32 {
	out := make([]float32, len(tokens))
	for i, t := range tokens {
		out[i] = t.Left
	}
	return j.left(out)
}
