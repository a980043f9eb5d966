package runs

import (
	"math"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
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

// told gives how many sampled positions no step of a run has taken, and of how many records.
func (w *world) told(run string) (positions float64, records int) {
	w.t.Helper()
	w.quiet()
	records, err := w.store.Count(w.t.Context(), inEntropies, run, store.Range{})
	w.ok(err)
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	return w.runs[run].untaken.sum.Sampled.Count, records
}

// Each sample counts once, in the step after it, whatever comes between.
func TestEntropiesOutliveTheServer(t *testing.T) {
	w := newWorld(t, nil)
	session := w.session()
	run := w.trained(session, 0)
	sampler := w.good(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 5), SamplerSeq: 0})).SavedSampler.SamplerID
	seq := int64(0)
	sample := func(n int) {
		t.Helper()
		for range n {
			req := w.sample(sampler, seq)
			req.TopKSampledLogprobs = 3
			w.sampled(req)
			seq++
		}
	}
	tokens := func(want int) {
		t.Helper()
		if got, records := w.told(run); got != float64(10*want) || (records == 0) != (want == 0) || records > joinAt+1 {
			t.Fatalf("%v tokens in %d records are not taken, wanted those of %d samples", got, records, want)
		}
	}
	sample(3)
	tokens(3)
	w.restart()
	tokens(3)
	w.restartBackend()
	sample(2)
	w.restart()
	w.restart()
	tokens(5)
	w.trainSteps(run, 6, 1)
	tokens(0)
	w.restart()
	tokens(0)
	if curve := w.points(run, history.TopEntropy); len(curve.Steps) != 1 || curve.Steps[0] != 3 {
		t.Errorf("the entropy is of %v", curve.Steps)
	}
	sample(2*joinAt + 5) // more than there are records
	tokens(2*joinAt + 5)
	w.restart()
	tokens(2*joinAt + 5)
	target, err := w.Resolve(t.Context(), owner, "tinker://"+run)
	w.ok(err)
	w.ok(w.Generate(t.Context(), target, Generation{Owner: owner, Stops: Stops{Given: true}, Request: plugins.SampleRequest{
		Prompt: []int32{2, 3}, NumSamples: 1, MaxTokens: 10, Temperature: 1, TopP: 1, RepetitionPenalty: 1, TopKSampledLogprobs: 3,
	}}, func(plugins.SampleEvent) error { return nil }))
	w.restart()
	tokens(2*joinAt + 6)
	w.ok(w.FinishSession(t.Context(), owner, session, "success", ""))
	w.eventually(func() bool { // of a run that takes no step any more nothing is left
		n, err := w.store.Count(t.Context(), inEntropies, run, store.Range{})
		w.ok(err)
		return n == 0
	})
}
