package runs

import (
	"context"

	"github.com/tinsmith/tinsmith/plugins"
)

// Stops says what ends a sample.
type Stops struct {
	Given   bool     // false: the model's own end tokens stop it. true with both lists empty: nothing does
	Tokens  []int32  // the stop token is the last of the sample
	Strings []string // the token that completes the string is the last of the sample
}

// SamplingParams say how to draw.
type SamplingParams struct {
	MaxTokens   *int    // nil = up to the context limit
	Seed        *uint64 // nil = one is drawn and journalled
	Stops       Stops
	Temperature float64 // 0 = greedy
	TopK        int     // ≤ 0 = off
	TopP        float64 // in (0, 1]; 1 = off
}

// Sample is one asample request.
type Sample struct {
	Owner               string
	SamplerID           string
	Seq                 int64
	Prompt              []int32
	NumSamples          int
	Params              SamplingParams
	PromptLogprobs      bool
	PromptLogprobsLastN int     // 0 = all; else 1 … P-1, needs PromptLogprobs
	TopKPromptLogprobs  int     // 0 = off
	TopKSampledLogprobs int     // 0 = off
	TargetPromptTokens  []int32 // (P-1)×TargetPromptK row-major, -1 = not asked; nil = off
	TargetPromptK       int
	TargetPromptSparse  bool // the client sent the targets sparse and wants the answer so; -1 cells were not listed
	PromptAlternatives  int  // 0 = off
}

// SubmittedSample answers an accepted sample.
type SubmittedSample struct {
	RequestID   string
	SequenceIDs []string // one per sample
}

// SampleResult is what a sample gave, with what the encoding of the answer needs to know of the request.
type SampleResult struct {
	Prompt    plugins.PromptScores
	Sequences []SampledSequence

	PromptLength       int
	TargetPromptTokens []int32 // as in Sample
	TargetPromptK      int
	TargetPromptSparse bool
	PromptAlternatives int
}

// SampledSequence is one continuation.
type SampledSequence struct {
	StoppedByLength bool // else by a stop token or string
	Tokens          []int32
	Logprobs        []float32
	Top             plugins.TopLogprobs
}

// Sample submits; the outcome has a SampleResult. KindBusy when too much is queued; KindInvalid for what is wrong with the request, also when prompt and max_tokens
// together exceed the context.
func (c *Core) Sample(ctx context.Context, req Sample) (SubmittedSample, error) {
	return SubmittedSample{}, errNotYet
}
