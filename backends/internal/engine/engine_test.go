package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// alike are placements that cut the model into equally many parts for training and for sampling, which is how many there are.
var alike = []struct {
	placement
	parts int
}{
	{placement{"one device", "single", `{"device": "cpu"}`}, 1},
	{placement{"3 copies", "dataparallel", `{"devices": ["cpu", "cpu", "cpu"]}`}, 1},
	{placement{"3 copies with shared-out weights", "dataparallel", `{"devices": ["cpu", "cpu", "cpu"], "shard_base": true}`}, 1},
	{placement{"one device trains, two sample", "dataparallel", `{"devices": ["cpu"], "sample_devices": ["cpu", "cpu"]}`}, 1},
	{placement{"2 ranks", "tensorparallel", `{"devices": ["cpu", "cpu"]}`}, 2},
	{placement{"2 copies of 2 ranks", "dataparallel", `{"devices": [["cpu", "cpu"], ["cpu", "cpu"]]}`}, 2},
	{placement{"2 ranks train, 2 others sample", "tensorparallel", `{"devices": ["cpu", "cpu"], "sample_devices": ["cpu", "cpu"]}`}, 2},
}

// with is the placement with other settings.
func (p placement) with(settings string) placement {
	p.section = strings.Replace(p.section, "{", "{"+settings+", ", 1)
	return p
}

// The log-probabilities of sampled tokens are those that the trainer computes for the same version, bit for bit, whatever type the weights have, on every device that samples.
func TestSamplerEqualsTrainer(t *testing.T) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		for _, p := range alike {
			t.Run(dtype+" "+p.name, func(t *testing.T) {
				samplerEqualsTrainer(t, place(t, p.with(`"dtype": "`+dtype+`", "prefill_tokens": 50`)))
			})
		}
	}
}

func samplerEqualsTrainer(t *testing.T, e *Engine) {
	random := rand.New(rand.NewPCG(1, 1))
	d := create(t, e, "a", 5, 4)
	for range 2 {
		d.pass(randomData(random, 3, 40))
		d.step()
	}
	prompt := randomTokens(random, 150)
	results := make([]sampled, len(e.loaded.sampling)) // requests that come together are spread over the devices
	var done sync.WaitGroup
	release := block(t, e, nil)
	for i := range results {
		q := ask(fmt.Sprint("q", i), "a", prompt, 3, 90)
		q.PromptLogprobs, q.TopKPromptLogprobs, q.TopKSampledLogprobs, q.Seed = true, 2, 3, uint64(i)
		done.Go(func() {
			var err error
			if results[i], err = collect(t.Context(), e, q); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all requests wait", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.waiting.count == 3*len(results)
	})
	release()
	done.Wait()
	if t.Failed() {
		return
	}
	for _, got := range results {
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
	}
}

// A seeded request gives the same tokens alone and among others of other adapters, versions and settings, with little room for keys and values as well as with much, on one device or many.
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
	first := map[int][]sampled{} // by the parts of the model: alone
	for _, p := range alike {
		t.Run(p.name, func(t *testing.T) {
			if first[p.parts] == nil {
				first[p.parts] = sampleAll(t, p.with(`"threads": 1, "max_batch": 1`), data, requests, func(calls ...func()) {
					for _, f := range calls {
						f()
					}
				})
			}
			for _, settings := range []string{`"threads": 2`, `"threads": 2, "kv_cache_tokens": 640, "max_batch": 20, "prefill_tokens": 37`} {
				for i, got := range sampleAll(t, p.with(settings), data, requests, together) {
					want := first[p.parts][i]
					for k, s := range got.sequences {
						if !slices.Equal(s.Tokens, want.sequences[k].Tokens) {
							t.Fatalf("%s: request %d sequence %d: %v, alone %v", settings, i, k, s.Tokens, want.sequences[k].Tokens)
						}
						equalBits(t, settings, s.Logprobs, want.sequences[k].Logprobs)
					}
					if !slices.Equal(got.reasons, want.reasons) {
						t.Fatalf("%s: request %d ended with %v, alone %v", settings, i, got.reasons, want.reasons)
					}
				}
			}
		})
	}
}

// sampleAll trains adapters a and b on a placement and has call make the requests.
func sampleAll(t *testing.T, p placement, data []plugins.Datum, requests []plugins.SampleRequest, call func(...func())) []sampled {
	t.Helper()
	e := place(t, p)
	for i, id := range []string{"a", "b"} {
		d := create(t, e, id, uint64(i), 8)
		d.pass(data)
		d.step()
	}
	results := collectBy(t, e, requests, call)
	eventually(t, "all pages come back", func() bool {
		s := e.status(time.Now())
		return s.KVPagesFree == s.KVPages && s.RunningSamples == 0
	})
	return results
}

// trainingScript is a run.
type trainingScript struct {
	seed  uint64
	rank  int
	loops [][][]plugins.Datum // steps of passes of data
}

// What a run computes does not depend on what else runs, how it was fused and cut, on the number of threads and copies, or on recomputation.
func TestTrainingAloneAndFused(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	var scripts [4]trainingScript
	for i := range scripts {
		s := trainingScript{seed: uint64(i), rank: 1 << i}
		for range 3 {
			var passes [][]plugins.Datum
			for range 1 + random.IntN(3) {
				passes = append(passes, randomData(random, 1+random.IntN(12), 60))
			}
			s.loops = append(s.loops, passes)
		}
		scripts[i] = s
	}
	type results struct {
		weights  [4]map[string][]float32
		logprobs [4][][]float32
	}
	wants := map[int]*results{} // by the parts of the model: alone
	for _, p := range alike {
		t.Run(p.name, func(t *testing.T) {
			want := wants[p.parts]
			if want == nil {
				want = &results{}
				wants[p.parts] = want
				alone := place(t, p.with(`"threads": 1, "batch_tokens": 1, "cycle_tokens": 1`))
				for i, s := range scripts {
					want.weights[i], want.logprobs[i] = playTraining(t, alone, i, s)
				}
			}
			for _, settings := range []string{`"threads": 2`, `"threads": 2, "batch_tokens": 100, "cycle_tokens": 300, "recompute": "on"`, `"threads": 1, "batch_tokens": 64, "recompute": "off"`} {
				e := place(t, p.with(settings))
				var got results
				var calls []func()
				for i, s := range scripts {
					calls = append(calls, func() { got.weights[i], got.logprobs[i] = playTraining(t, e, i, s) })
				}
				together(calls...)
				if t.Failed() {
					return
				}
				for i := range scripts {
					equalTensors(t, fmt.Sprint(settings, " run ", i), got.weights[i], want.weights[i])
					for k := range want.logprobs[i] {
						equalBits(t, fmt.Sprint(settings, " run ", i, " datum ", k), got.logprobs[i][k], want.logprobs[i][k])
					}
				}
			}
		})
	}
}

// playTraining runs a script with everything sent ahead, out of order, and gives the weights and all log-probabilities.
func playTraining(t *testing.T, e *Engine, i int, script trainingScript) (map[string][]float32, [][]float32) {
	d := create(t, e, fmt.Sprint("run", i), script.seed, script.rank)
	type answer struct {
		r   plugins.ForwardBackwardResult
		err error
	}
	var answers []chan answer
	var calls []func()
	for _, loop := range script.loops {
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
