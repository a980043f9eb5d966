package wire

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// TestSizes: what an answer takes is known before it is made, about, and never twice too little.
func TestSizes(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	floats := func(n int) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = -float32(math.Exp(10 * draw.NormFloat64()))
		}
		return out
	}
	tokens := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = draw.Int32N(200_000)
		}
		return out
	}
	pass := &runs.ForwardBackwardResult{K: []int{0, 5}}
	pass.Logprobs, pass.Terms = [][]float32{floats(3000), floats(5000)}, [][]float32{floats(3000), floats(5000)}
	pass.Metrics = map[string]float64{"loss:sum": math.Pi}
	sample := &runs.SampleResult{PromptLength: 1001, PromptAlternatives: 3, TargetPromptK: 2, TargetPromptTokens: tokens(2000), TargetPromptSparse: true, Prompt: plugins.PromptScores{
		Logprobs: floats(1001), Top: plugins.TopLogprobs{K: 4, IDs: tokens(4004), Logprobs: floats(4004)}, Targets: floats(2000), AltTokens: tokens(3000), AltLogprobs: floats(3000),
	}}
	sample.Sequences = []runs.SampledSequence{{Tokens: tokens(500), Logprobs: floats(500), Top: plugins.TopLogprobs{K: 2, IDs: tokens(1000), Logprobs: floats(1000)}}}
	for _, asProtobuf := range []bool{false, true} {
		passed, sampled := encode(t, pass, sample, asProtobuf)
		for name, c := range map[string]struct {
			size int64
			made int
		}{"pass": {OutputBytes(pass, asProtobuf), passed}, "sample": {SampleBytes(sample, asProtobuf), sampled}} {
			if ratio := float64(c.size) / float64(c.made); ratio < 0.8 || ratio > 2 {
				t.Errorf("%s, protobuf %v: %d bytes are expected of %d", name, asProtobuf, c.size, c.made)
			}
		}
	}
}

// encode gives the lengths of two results.
func encode(t *testing.T, pass *runs.ForwardBackwardResult, sample *runs.SampleResult, asProtobuf bool) (passed, sampled int) {
	t.Helper()
	if asProtobuf {
		a, err := EncodeForwardBackwardOutput(pass)
		if err != nil {
			t.Fatal(err)
		}
		b, err := EncodeSampleResponse(sample)
		if err != nil {
			t.Fatal(err)
		}
		return len(a), len(b)
	}
	a, err := EncodeForwardBackwardOutputJSON(pass)
	if err != nil {
		t.Fatal(err)
	}
	return len(a), len(EncodeSampleResponseJSON(sample))
}
