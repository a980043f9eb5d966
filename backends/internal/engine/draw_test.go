package engine

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// drawsEqual asks two engines, of which one draws on its device and one in Go memory, for samples in all the ways of drawing, each alone and all at once.
func drawsEqual(t *testing.T, there, here *Engine, sequences, tokens int) {
	t.Helper()
	random := rand.New(rand.NewPCG(5, 1))
	prompt := randomTokens(random, 6)
	setVocabulary(t, there)
	setVocabulary(t, here)
	var all []plugins.SampleRequest
	for _, c := range append(constrainedCases(t), []struct {
		name string
		set  func(*plugins.SampleRequest)
	}{
		{"plain", func(*plugins.SampleRequest) {}},
		{"greedy", func(q *plugins.SampleRequest) { q.Temperature = 0 }},
		{"greedy with penalties", func(q *plugins.SampleRequest) { q.Temperature, q.RepetitionPenalty, q.FrequencyPenalty = 0, 1.5, 0.5 }},
		{"temperature and top-k", func(q *plugins.SampleRequest) { q.Temperature, q.TopK = 1.7, 5 }},
		{"top-p and min-p", func(q *plugins.SampleRequest) { q.Temperature, q.TopP, q.MinP = 0.3, 0.8, 0.05 }},
		{"top-p", func(q *plugins.SampleRequest) { q.TopP = 0.9 }},
		{"min-p", func(q *plugins.SampleRequest) { q.Temperature, q.MinP = 0.5, 0.2 }},
		{"top-k, top-p and min-p", func(q *plugins.SampleRequest) { q.TopK, q.TopP, q.MinP = 11, 0.7, 0.1 }},
		{"penalties", func(q *plugins.SampleRequest) {
			q.Temperature, q.RepetitionPenalty, q.FrequencyPenalty, q.PresencePenalty = 0.7, 1.3, 0.5, 0.25
		}},
		{"additive penalties", func(q *plugins.SampleRequest) { q.FrequencyPenalty, q.TopK = 1.5, 20 }},
		{"bias and stop tokens too early", func(q *plugins.SampleRequest) {
			q.LogitBias, q.StopTokens, q.MinTokens = map[int32]float64{3: 4, 7: 4.5, 9: -2}, []int32{3, 11}, 3
		}},
		{"likeliest tokens", func(q *plugins.SampleRequest) { q.TopKSampledLogprobs = 3 }},
		{"likeliest tokens among those that may not be drawn", func(q *plugins.SampleRequest) {
			q.TopKSampledLogprobs, q.LogitBias, q.StopTokens, q.MinTokens = 2, map[int32]float64{5: 9}, []int32{5}, 2
		}},
		{"likeliest tokens of the prompt, and draws in it", func(q *plugins.SampleRequest) {
			q.TopKPromptLogprobs, q.PromptAlternatives, q.Temperature, q.TopK, q.TopKSampledLogprobs = 2, 2, 0.8, 9, 2
		}},
	}...) {
		q := ask(c.name, "", prompt, sequences, tokens)
		q.Version = 0
		q.Seed = uint64(len(all))
		c.set(&q)
		all = append(all, q)
	}
	sample := func(e *Engine, q plugins.SampleRequest) (out sampled) {
		out, err := collect(t.Context(), e, q)
		if err != nil {
			t.Errorf("%s: %v", q.ID, err)
		}
		return out
	}
	crowd := make([]sampled, len(all))
	var calls []func()
	for i, q := range all {
		q.ID += " in a crowd"
		calls = append(calls, func() { crowd[i] = sample(there, q) })
	}
	together(calls...)
	for i, q := range all {
		want := sample(here, q)
		for name, got := range map[string]sampled{"alone": sample(there, q), "in a crowd": crowd[i]} {
			t.Run(q.ID+" "+name, func(t *testing.T) {
				if !slices.Equal(got.prompt.Top.IDs, want.prompt.Top.IDs) || !slices.Equal(got.prompt.AltTokens, want.prompt.AltTokens) {
					t.Errorf("the prompt: %v %v on the device, %v %v in memory", got.prompt.Top.IDs, got.prompt.AltTokens, want.prompt.Top.IDs, want.prompt.AltTokens)
				}
				equalBits(t, "those of the prompt's likeliest", got.prompt.Top.Logprobs, want.prompt.Top.Logprobs)
				equalBits(t, "those of draws in the prompt", got.prompt.AltLogprobs, want.prompt.AltLogprobs)
				for j, w := range want.sequences {
					g := got.sequences[j]
					if !slices.Equal(g.Tokens, w.Tokens) || !slices.Equal(g.Top.IDs, w.Top.IDs) {
						t.Errorf("sequence %d: %v %v on the device, %v %v in memory", j, g.Tokens, g.Top.IDs, w.Tokens, w.Top.IDs)
					}
					equalBits(t, "log-probabilities of sequence "+strconv.Itoa(j), g.Logprobs, w.Logprobs)
					equalBits(t, "those of what constraints left of sequence "+strconv.Itoa(j), g.ConstraintLogprobs, w.ConstraintLogprobs)
					equalBits(t, "those of the likeliest of sequence "+strconv.Itoa(j), g.Top.Logprobs, w.Top.Logprobs)
				}
			})
		}
	}
}

// Tokens that the processor's kernels draw are those that package sample draws, with the same log-probabilities.
func TestDrawsEqualThoseInMemory(t *testing.T) {
	dir := t.TempDir()
	if err := writeModelOf(dir, shape{4099, 32, 48, 1, 2, 1, 16}, 256); err != nil {
		t.Fatal(err)
	}
	var engines [2]*Engine
	for i := range engines {
		o := testOptions()
		o.OpenDevice = func(c Config) (tensor.Device, error) {
			d, err := cpu.New(cpu.Options{Threads: c.Threads})
			if i == 0 || err != nil {
				return d, err
			}
			return struct{ tensor.Device }{d}, nil // which does not draw
		}
		e := New(o)
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "model", Config: []byte(`{"threads": 2}`)}, nil); err != nil {
			t.Fatal(err)
		}
		engines[i] = e
	}
	drawsEqual(t, engines[0], engines[1], 3, 40)
}
