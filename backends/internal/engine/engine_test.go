package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// The log-probabilities of sampled tokens are those that the trainer computes for the same version, bit for bit, whatever type the weights have.
func TestSamplerEqualsTrainer(t *testing.T) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		t.Run(dtype, func(t *testing.T) {
			e := start(t, `{"dtype": "`+dtype+`", "prefill_tokens": 50}`)
			random := rand.New(rand.NewPCG(1, 1))
			d := create(t, e, "a", 5, 4)
			for range 2 {
				d.pass(randomData(random, 3, 40))
				d.step()
			}
			prompt := randomTokens(random, 150)
			q := ask("q", "a", prompt, 3, 90)
			q.PromptLogprobs, q.TopKPromptLogprobs, q.TopKSampledLogprobs = true, 2, 3
			got, err := collect(t.Context(), e, q)
			if err != nil {
				t.Fatal(err)
			}
			if got.prompt.Version != 2 {
				t.Errorf("version %d, want 2", got.prompt.Version)
			}
			for i, s := range got.sequences {
				if len(s.Tokens) != 90 || got.reasons[i] != plugins.StopLength {
					t.Fatalf("sequence %d has %d tokens and ended with %v", i, len(s.Tokens), got.reasons[i])
				}
				whole := slices.Concat(prompt, s.Tokens)
				r, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Loss: "cross_entropy", ForwardOnly: true,
					Data: []plugins.Datum{{Tokens: whole[:len(whole)-1], Targets: whole[1:], K: 1, Weights: make([]float32, len(whole)-1)}}})
				if err != nil {
					t.Fatal(err)
				}
				equalBits(t, "prompt", got.prompt.Logprobs[1:], r.Logprobs[0][:len(prompt)-1])
				equalBits(t, "sampled", s.Logprobs, r.Logprobs[0][len(prompt)-1:])
				for k, token := range s.Tokens {
					if at := slices.Index(s.Top.IDs[3*k:3*k+3], token); at >= 0 && s.Top.Logprobs[3*k+at] != s.Logprobs[k] {
						t.Fatalf("token %d has two log-probabilities", k)
					}
					if !slices.IsSortedFunc(s.Top.Logprobs[3*k:3*k+3], func(a, b float32) int { return int(b*1e6 - a*1e6) }) {
						t.Fatalf("likeliest tokens are not in order: %v", s.Top.Logprobs[3*k:3*k+3])
					}
				}
			}
			if slices.Equal(got.sequences[0].Tokens, got.sequences[1].Tokens) {
				t.Error("two samples of a request are the same")
			}
		})
	}
}

// A seeded request gives the same tokens alone and among others of other adapters, versions and settings, with little room for keys and values as well as with much.
func TestSampleAloneAndAmongOthers(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	data := randomData(random, 4, 30)
	var requests []plugins.SampleRequest
	shared := randomTokens(random, 130)
	for i := range 64 {
		q := ask(fmt.Sprint("q", i), []string{"", "a", "b"}[i%3], randomTokens(random, 1+random.IntN(200)), 1+i%2, 1+random.IntN(40))
		if i%4 == 0 {
			q.Prompt = append(slices.Clone(shared), q.Prompt[:min(len(q.Prompt), 3)]...)
		}
		q.Seed = uint64(i)
		switch i % 5 {
		case 0:
			q.Temperature = 0
		case 1:
			q.Temperature, q.TopP = 0.7, 0.9
		case 2:
			q.TopK, q.MinP, q.FrequencyPenalty, q.PresencePenalty = 20, 0.01, 0.5, 0.2
		case 3:
			q.RepetitionPenalty, q.LogitBias, q.StopTokens, q.MinTokens = 1.3, map[int32]float64{3: 4, 7: -3}, []int32{3, 9, 40}, min(5, q.MaxTokens)
		}
		requests = append(requests, q)
	}
	var first []sampled
	for _, section := range []string{`{"threads": 1, "max_batch": 1}`, `{"threads": 2}`, `{"threads": 2, "kv_cache_tokens": 640, "max_batch": 20, "prefill_tokens": 37}`} {
		e := start(t, section)
		for i, id := range []string{"a", "b"} {
			d := create(t, e, id, uint64(i), 8)
			d.pass(data)
			d.step()
		}
		results := make([]sampled, len(requests))
		var calls []func()
		for i, q := range requests {
			calls = append(calls, func() {
				var err error
				if results[i], err = collect(t.Context(), e, q); err != nil {
					t.Error(err)
				}
			})
		}
		if first == nil {
			for _, f := range calls {
				f()
			}
			first = results
		} else {
			together(calls...)
			for i := range results {
				for k, s := range results[i].sequences {
					if want := first[i].sequences[k]; !slices.Equal(s.Tokens, want.Tokens) {
						t.Fatalf("%s: request %d sequence %d: %v, alone %v", section, i, k, s.Tokens, want.Tokens)
					}
					equalBits(t, section, s.Logprobs, first[i].sequences[k].Logprobs)
				}
				if !slices.Equal(results[i].reasons, first[i].reasons) {
					t.Fatalf("%s: request %d ended with %v, alone %v", section, i, results[i].reasons, first[i].reasons)
				}
			}
		}
		eventually(t, "all pages come back", func() bool {
			s := e.status(time.Now())
			return s.KVPagesFree == s.KVPages && s.RunningSamples == 0
		})
	}
}

// What a run computes does not depend on what else runs, how it was fused and cut, on the number of threads, or on recomputation.
func TestTrainingAloneAndFused(t *testing.T) {
	type script struct {
		seed  uint64
		rank  int
		loops [][][]plugins.Datum // steps of passes of data
	}
	random := rand.New(rand.NewPCG(3, 3))
	var scripts []script
	for i := range 4 {
		s := script{seed: uint64(i), rank: 1 << i}
		for range 3 {
			var passes [][]plugins.Datum
			for range 1 + random.IntN(3) {
				passes = append(passes, randomData(random, 1+random.IntN(12), 60))
			}
			s.loops = append(s.loops, passes)
		}
		scripts = append(scripts, s)
	}
	play := func(e *Engine, i int) (map[string][]float32, [][]float32) {
		d := create(t, e, fmt.Sprint("run", i), scripts[i].seed, scripts[i].rank)
		type answer struct {
			r   plugins.ForwardBackwardResult
			err error
		}
		// Everything is sent ahead, out of order.
		var answers []chan answer
		var calls []func()
		for _, loop := range scripts[i].loops {
			for _, data := range loop {
				p, c := d.position(), make(chan answer, 1)
				answers = append(answers, c)
				calls = append(calls, func() {
					r, err := e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: p, Data: data, Loss: "cross_entropy"})
					c <- answer{r, err}
				})
			}
			p := d.position()
			calls = append(calls, func() {
				if _, err := e.OptimStep(context.Background(), plugins.OptimStepRequest{Adapter: d.adapter, Position: p, Adam: adamDefaults}); err != nil {
					t.Error(err)
				}
			})
		}
		slices.Reverse(calls)
		together(calls...)
		var logprobs [][]float32
		for _, c := range answers {
			a := <-c
			if a.err != nil {
				t.Error(a.err)
			}
			logprobs = append(logprobs, a.r.Logprobs...)
		}
		return d.weights(), logprobs
	}
	wantWeights, wantLogprobs := make([]map[string][]float32, len(scripts)), make([][][]float32, len(scripts))
	alone := start(t, `{"threads": 1, "batch_tokens": 1, "cycle_tokens": 1}`)
	for i := range scripts {
		wantWeights[i], wantLogprobs[i] = play(alone, i)
	}
	for _, section := range []string{`{"threads": 2}`, `{"threads": 2, "batch_tokens": 100, "cycle_tokens": 300, "recompute": "on"}`, `{"threads": 1, "batch_tokens": 64, "recompute": "off"}`} {
		e := start(t, section)
		gotWeights, gotLogprobs := make([]map[string][]float32, len(scripts)), make([][][]float32, len(scripts))
		var calls []func()
		for i := range scripts {
			calls = append(calls, func() { gotWeights[i], gotLogprobs[i] = play(e, i) })
		}
		together(calls...)
		for i := range scripts {
			equalTensors(t, fmt.Sprint(section, " run ", i), gotWeights[i], wantWeights[i])
			for k := range wantLogprobs[i] {
				equalBits(t, fmt.Sprint(section, " run ", i, " datum ", k), gotLogprobs[i][k], wantLogprobs[i][k])
			}
		}
	}
}
