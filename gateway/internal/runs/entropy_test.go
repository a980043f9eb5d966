package runs

import (
	"math"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/plugins"
)

// TestEntropiesOfSamples asks for the likeliest tokens, all there are and few, and compares with sums over what the client gets.
func TestEntropiesOfSamples(t *testing.T) {
	w := newWorld(t, nil)
	session := w.session()
	run := w.trained(session, 0)
	sampler := w.good(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 5), SamplerSeq: 0})).SavedSampler.SamplerID
	direct := func(top plugins.TopLogprobs) (sum float64, n int) {
		for i := 0; i < len(top.Logprobs); i += top.K {
			if top.Logprobs[i] == unscoredLogprob {
				continue
			}
			n++
			rest := 1.0
			for _, lp := range top.Logprobs[i : i+top.K] {
				p := math.Exp(float64(lp))
				sum -= p * math.Log(p)
				rest -= p
			}
			if top.K < 64 {
				sum -= rest * math.Log(rest)
			}
		}
		return sum, n
	}
	for i, k := range []int{64, 3} { // of 64 tokens
		var sampled, prompt float64
		var tokens, positions int
		for seq := range int64(2) {
			req := w.sample(sampler, int64(2*i)+seq)
			req.TopKSampledLogprobs, req.TopKPromptLogprobs = k, k
			got := w.sampled(req)
			for _, s := range got.Sequences {
				sum, n := direct(s.Top)
				sampled, tokens = sampled+sum, tokens+n
			}
			sum, n := direct(got.Prompt.Top)
			prompt, positions = prompt+sum, positions+n
		}
		from := int64(6 + 2*i)
		w.trainSteps(run, from, 1)
		if tokens != 20 || positions != 4 {
			t.Fatalf("%d tokens and %d positions of prompts", tokens, positions)
		}
		for name, want := range map[string]float64{history.TopEntropy: sampled / float64(tokens), history.PromptTopEntropy: prompt / float64(positions)} {
			curve := w.curve(run, name)
			if got := curve[len(curve)-1]; len(curve) != i+1 || !(math.Abs(got-want) < 1e-4) {
				t.Errorf("%d likeliest: %s is %v, want %v as the last", k, name, curve, want)
			}
		}
	}
	w.trainSteps(run, 10, 1) // nothing was sampled before it
	w.restart()
	rest := w.curve(run, history.TopRest)
	if len(rest) != 2 || math.Abs(rest[0]) > 1e-4 || !(rest[1] > 0.1 && rest[1] < 1) {
		t.Errorf("what is not among the likeliest: %v", rest)
	}
	if kinds := w.curve(run, history.AdapterNorm+"/lm_head"); len(kinds) != 5 || !(kinds[4] > 0) {
		t.Errorf("the norm of one kind of module: %v", kinds)
	}
}
