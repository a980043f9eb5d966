package engine

import (
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// lossCase is one pass of a loss.
type lossCase struct {
	name, loss string
	data       []plugins.Datum
}

// lossCases makes passes of every loss from what an adapter's log-probabilities of data are. Ratios are inside and outside of the bounds, above and below, with advantages of both signs and none, and none is so near a bound that
// rounding decides. Where there are several targets per position, they are all in different parts of the vocabulary, all in one, and the same ones more than once.
func lossCases(random *rand.Rand, data []plugins.Datum, logprobs [][]float32) []lossCase {
	offsets := []float32{0.05, -0.3, -1.6, 0.4, 0, -0.1, 0.3, -0.9} // logarithms of 1 over the ratio; each datum adds one of shifts, so that its own ratio is far from 1 as well
	shifts := []float32{0, 0.65, -0.65}
	advantages := []float32{1, -0.5, 2, 0, -1, 0.5, -2}
	policy := make([]plugins.Datum, len(data))
	for i, d := range data {
		p := plugins.Datum{Tokens: d.Tokens, Targets: d.Targets, K: 1}
		for k := range d.Tokens {
			p.Logprobs = append(p.Logprobs, logprobs[i][k]+offsets[(i+k)%len(offsets)]+shifts[i%len(shifts)])
			p.Advantages = append(p.Advantages, advantages[(2*i+k)%len(advantages)])
		}
		policy[i] = p
	}
	masked := slices.Clone(policy)
	for i := range masked {
		d := &masked[i]
		d.SequenceRatioMask = make([]float32, len(d.Tokens))
		for k := range d.SequenceRatioMask {
			if i > 0 && k%3 != 1 { // the first datum's ratio is that of no position
				d.SequenceRatioMask[k] = 1
			}
		}
	}
	const parts = 4
	wide := make([]plugins.Datum, len(data))
	for i, d := range data {
		p := plugins.Datum{Tokens: d.Tokens, K: parts}
		for k := range d.Tokens {
			for j := range parts {
				part := (j + k) % parts
				switch k % 4 {
				case 1:
					part = i % parts
				case 2:
					part = parts - 1
				}
				token := (part*tinyVocabulary + random.IntN(tinyVocabulary)) / parts
				if k%4 == 2 && j > 0 {
					token = int(p.Targets[len(p.Targets)-1])
				}
				p.Targets = append(p.Targets, int32(token))
				p.Weights = append(p.Weights, []float32{1, 0.5, 0, -0.25, 2}[random.IntN(5)])
			}
		}
		wide[i] = p
	}
	cases := []lossCase{{"several targets per position", "cross_entropy", wide}}
	for _, loss := range plugins.LossNames() {
		c := lossCase{loss, loss, data}
		switch spec, _ := plugins.LookupLoss(loss); {
		case spec.SequenceRatioMask:
			c.data = masked
		case spec.Logprobs:
			c.data = policy
		}
		cases = append(cases, c)
		if loss != "cross_entropy" {
			w := lossCase{loss + ", weighted", loss, slices.Clone(c.data)}
			for i := range w.data {
				weights := make([]float32, len(w.data[i].Tokens))
				for k := range weights {
					weights[k] = []float32{1, 0.5, 0.25, 2, 0.3}[(i+k)%5] // none is zero: losses may differ at one position only
				}
				w.data[i].Weights = weights
			}
			cases = append(cases, w)
		}
	}
	return cases
}

// lossRun is what passes of all losses begin with, and the passes.
type lossRun struct {
	checkpoint string // weights neither of whose factors is zero, so that both have gradients
	cases      []lossCase
}

// prepareLosses trains an adapter a little.
func prepareLosses(t *testing.T, e *Engine, rank, sequences, longest int) lossRun {
	t.Helper()
	random := rand.New(rand.NewPCG(12, 1))
	d := create(t, e, "prepared", 4, rank)
	data := randomData(random, sequences, longest)
	for range 2 {
		d.pass(data)
		d.step()
	}
	r, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: d.position(), Loss: "cross_entropy", Data: data, ForwardOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	return lossRun{d.save(plugins.ScopeWeights), lossCases(random, data, r.Logprobs)}
}

// passLosses makes a pass of each loss, each by an adapter of its own: one after the other, or all in one cycle, so that data of different losses share batches. It gives log-probabilities, losses and accumulated gradients.
func passLosses(t *testing.T, e *Engine, run lossRun, together bool) history {
	t.Helper()
	h := history{floats: map[string][]float32{}, tokens: map[string][]int32{"": {}}}
	var lock sync.Mutex
	var done sync.WaitGroup
	release := func() {}
	var drivers []*driver
	for _, c := range run.cases {
		drivers = append(drivers, load(t, e, c.name, run.checkpoint, plugins.ScopeWeights))
	}
	if together {
		release = block(t, e, nil)
	}
	for i, c := range run.cases {
		d := drivers[i]
		position := d.position()
		done.Go(func() {
			r, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: position, Data: c.data, Loss: c.loss})
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				return
			}
			lock.Lock()
			defer lock.Unlock()
			loss := r.Metrics["loss:sum"]
			high := float32(loss)
			h.floats[c.name+": loss"] = []float32{high, float32(loss - float64(high))}
			h.floats[c.name+": log-probabilities"] = slices.Concat(r.Logprobs...)
			h.floats[c.name+": terms"] = slices.Concat(r.Terms...)
		})
		if together {
			eventually(t, "the pass has arrived", func() bool { return arrived(e, d.adapter, position) })
		} else {
			done.Wait()
		}
	}
	release()
	done.Wait()
	for i, c := range run.cases {
		for name, g := range tensorsOf(t, filepath.Join(drivers[i].save(plugins.ScopeAccumulator), plugins.AccumulatorFile)) {
			h.floats[c.name+": gradient of "+name] = g
		}
	}
	return h
}

// tellLossesApart demands that gradients are there, and that those of different losses differ.
func tellLossesApart(t *testing.T, run lossRun, h history) {
	t.Helper()
	seen := map[float64]string{}
	for _, c := range run.cases {
		var sum float64
		for _, name := range slices.Sorted(maps.Keys(h.floats)) {
			if strings.HasPrefix(name, c.name+": gradient") {
				for _, v := range h.floats[name] {
					sum += math.Abs(float64(v))
				}
			}
		}
		if other, ok := seen[sum]; ok || sum == 0 {
			t.Errorf("%s: gradients of %v in all, as many as %q: the test shows nothing", c.name, sum, other)
		}
		seen[sum] = c.name
	}
}

// Every loss gives the gradients of one device under every placement, bit for bit.
func TestLossesOfPlacements(t *testing.T) {
	single := place(t, placement{plugin: "single", section: `{"threads": 1}`})
	run := prepareLosses(t, single, 4, 7, 14)
	want := passLosses(t, single, run, false)
	tellLossesApart(t, run, want)
	t.Run("one device, all losses at once", func(t *testing.T) {
		equalHistories(t, passLosses(t, place(t, placement{plugin: "single", section: `{"threads": 2}`}), run, true), want)
	})
	for _, p := range slices.Concat(copies, splits, sharded, cuts, mixed) {
		t.Run(p.name, func(t *testing.T) { equalHistories(t, passLosses(t, place(t, p), run, true), want) })
	}
}

// Likewise on GPUs, which differentiate the losses themselves.
func TestLossesOnCUDA(t *testing.T) {
	single := placeOnCUDA(t, placement{plugin: "single", section: `{"device": "cuda:0"` + smallMemory + `}`}, 1)
	run := prepareLosses(t, single, 2, 3, 8)
	want := passLosses(t, single, run, false)
	tellLossesApart(t, run, want)
	t.Run("nearly those of a processor", func(t *testing.T) {
		nearHistories(t, want, passLosses(t, place(t, placement{plugin: "single", section: `{"threads": 1}`}), run, false))
	})
	t.Run("two copies on one GPU", func(t *testing.T) {
		equalHistories(t, passLosses(t, placeOnCUDA(t, placement{plugin: "dataparallel", section: `{"devices": ["cuda:0", "cuda:0"]` + smallMemory + `}`}, 1), run, true), want)
	})
	var first history
	for _, p := range []struct {
		placement
		devices int
	}{
		{placement{"a cut over two ranks on one GPU", "tensorparallel", `{"devices": ["cuda:0", "cuda:0"]` + smallMemory + `}`}, 1},
		{placement{"a cut over two GPUs by NCCL", "tensorparallel", `{"devices": ["cuda:0", "cuda:1"], "comm": "nccl"` + smallMemory + `}`}, 2},
	} {
		t.Run(p.name, func(t *testing.T) {
			got := passLosses(t, placeOnCUDA(t, p.placement, p.devices), run, true)
			nearHistories(t, got, want)
			if first.floats == nil {
				first = got
			}
			equalHistories(t, got, first)
		})
	}
}
