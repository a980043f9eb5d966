package model_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Everything in this file demands equal bits, so it compares with ==.

var dtypes = []tensor.DType{tensor.Float32, tensor.BFloat16}

// randomAdapter makes an adapter whose B is not zero.
func (b *bench) randomAdapter(rank int, seed uint64, attention, mlp, unembed bool) *lora.Weights {
	b.t.Helper()
	l, err := b.Layout(rank, attention, mlp, unembed)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.fill(l, seed)
}

// fill makes an adapter of a layout with random weights.
func (b *bench) fill(l *lora.Layout, seed uint64) *lora.Weights {
	b.t.Helper()
	w := b.weights(l)
	if err := w.Initialize(seed); err != nil {
		b.t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b.Modules {
		if !l.Has(i) {
			continue
		}
		x := w.Masters.B(i)
		values := make([]float32, x.Rows*x.Cols)
		for j := range values {
			values[j] = float32(0.05 * r.NormFloat64())
		}
		if err := b.device.Upload(x, values); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := w.Pack(); err != nil {
		b.t.Fatal(err)
	}
	return w
}

func (b *bench) randomTokens(r *rand.Rand, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(r.IntN(b.Config.VocabSize))
	}
	return tokens
}

// scored runs pieces of a sequence one after the other, as a sampler does, and gives the log-probability of every target.
func (b *bench) scored(w *lora.Weights, tokens, targets []int32, pieces []int) []float32 {
	b.t.Helper()
	pages := b.take(len(tokens))
	b.begin(0)
	var got []float32
	first := 0
	for _, n := range pieces {
		rows := make([]int32, n)
		for i := range rows {
			rows[i] = int32(i)
		}
		h, err := b.Forward(b.work, model.Batch{Sequences: []model.Sequence{{Adapter: w, Tokens: tokens[first : first+n], First: first, Pages: pages}}, Pages: b.pages, States: b.states}, rows)
		if err != nil {
			b.t.Fatal(err)
		}
		if err := b.Logits(b.work, h, func(row int, logits tensor.Tensor) error {
			lp, _, err := b.Logprobs(b.work, logits, targets[first+row:first+row+logits.Rows], 1)
			got = append(got, lp...)
			return err
		}); err != nil {
			b.t.Fatal(err)
		}
		first += n
	}
	return got
}

func TestSamplerGivesTheTrainersBits(t *testing.T) {
	for name, dir := range lawful(t, "llama", "qwen2", "qwen3", "odd", "phi3", "smollm3", "qwen3.5", "qwen3.5-moe", "gpt-oss") {
		for _, d := range dtypes {
			t.Run(name+"/"+d.String(), func(t *testing.T) {
				b := newBench(t, dir, d, 2)
				r := rand.New(rand.NewPCG(1, 2))
				for _, w := range []*lora.Weights{nil, b.randomAdapter(8, 3, true, true, false), b.randomAdapter(4, 4, true, true, true), b.ownExperts(2, 5)} {
					tokens, targets := b.randomTokens(r, 150), b.randomTokens(r, 150)
					want := b.train(model.TrainOptions{}, b.example(w, tokens, targets, nil))[0].Logprobs
					oneByOne := append([]int{100}, slices.Repeat([]int{1}, 50)...)
					for _, pieces := range [][]int{{150}, {64, 64, 22}, {1, 63, 1, 85}, oneByOne} {
						if got := b.scored(w, tokens, targets, pieces); !slices.Equal(got, want) {
							t.Errorf("pieces of %v… tokens: log-probabilities differ from training's", pieces[:min(4, len(pieces))])
						}
					}
				}
			})
		}
	}
}

// TestBatchedDecode decodes many sequences of several adapters in one batch, each at its own position.
func TestBatchedDecode(t *testing.T) {
	for name, dir := range lawful(t, "qwen3", "qwen3.5", "qwen3.5-moe", "gpt-oss") {
		t.Run(name, func(t *testing.T) { batchedDecode(t, dir, 9, 9) })
	}
}

// batchedDecode decodes count sequences, a multiple of three, each so many tokens longer than the one before.
func batchedDecode(t *testing.T, dir string, count, longer int) {
	for _, d := range dtypes {
		t.Run(d.String(), func(t *testing.T) {
			b := newBench(t, dir, d, 2)
			r := rand.New(rand.NewPCG(5, 6))
			adapters := []*lora.Weights{b.ownExperts(4, 9), nil, b.randomAdapter(8, 1, true, false, true), b.randomAdapter(2, 2, false, true, false)}
			type stream struct {
				w               *lora.Weights
				tokens, targets []int32
				pages           []int32
				slot            int
				got, want       []float32
			}
			var streams []*stream
			for i := range count {
				n := 10 + longer*i
				s := &stream{w: adapters[i*len(adapters)/count], tokens: b.randomTokens(r, n), targets: b.randomTokens(r, n)}
				s.want = b.scored(s.w, s.tokens, s.targets, []int{n})
				streams = append(streams, s)
			}
			for i, s := range streams {
				s.pages, s.slot = b.take(len(s.tokens)), len(streams)-i
				b.begin(s.slot)
			}
			for done := 0; done < len(streams[len(streams)-1].tokens); {
				n := 1
				if done == 0 {
					n = 7 // a prefill
				}
				batch := model.Batch{Pages: b.pages, States: b.states}
				var part []*stream
				var rows, targets []int32
				for _, s := range streams {
					for k := done; k < min(done+n, len(s.tokens)); k++ {
						rows = append(rows, int32(len(rows)))
						targets = append(targets, s.targets[k])
					}
					if done < len(s.tokens) {
						batch.Sequences = append(batch.Sequences, model.Sequence{Adapter: s.w, Tokens: s.tokens[done:min(done+n, len(s.tokens))], First: done, Pages: s.pages, Slot: s.slot})
						part = append(part, s)
					}
				}
				h, err := b.Forward(b.work, batch, rows)
				if err != nil {
					t.Fatal(err)
				}
				var got []float32
				if err := b.Logits(b.work, h, func(row int, logits tensor.Tensor) error {
					lp, _, err := b.Logprobs(b.work, logits, targets[row:row+logits.Rows], 1)
					got = append(got, lp...)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				for i, s := range part {
					k := len(batch.Sequences[i].Tokens)
					s.got = append(s.got, got[:k]...)
					got = got[k:]
				}
				done += n
			}
			for i, s := range streams {
				if !slices.Equal(s.got, s.want) {
					t.Errorf("stream %d: log-probabilities differ from those alone", i)
				}
			}
		})
	}
}

// operation is a training operation of several sequences, and what it gave.
type operation struct {
	w        *lora.Weights
	data     []model.Example
	logprobs [][]float32
	losses   []float64
	gradient []float32
}

// run passes operations in micro-batches: cut[i] sequences of the operations' concatenation at a time. Sums are joined in the pass where that can be; it gives how many tensors were.
func (b *bench) run(operations []*operation, cuts []int, o model.TrainOptions) (joined int) {
	b.t.Helper()
	type item struct {
		op *operation
		i  int
	}
	var items []item
	reductions := map[*operation]*lora.Reduction{}
	for _, op := range operations {
		op.logprobs, op.losses = make([][]float32, len(op.data)), make([]float64, len(op.data))
		reductions[op] = lora.NewReduction(b.device, op.w.Layout(), len(op.data),
			func() (*lora.Gradient, error) { return lora.NewUnsetGradient(b.device, op.w.Layout()) }, func(g *lora.Gradient) { g.Free() })
		for i := range op.data {
			items = append(items, item{op, i})
		}
	}
	for len(items) > 0 {
		n := len(items)
		if len(cuts) > 0 {
			n, cuts = min(cuts[0], n), cuts[1:]
		}
		var batch []model.Example
		for _, it := range items[:n] {
			e := it.op.data[it.i]
			g, err := reductions[it.op].Buffer(it.i)
			if err != nil {
				b.t.Fatal(err)
			}
			e.Gradient, e.Pages = g, b.take(len(e.Tokens))
			batch = append(batch, e)
		}
		for i, it := range items[:n] {
			first, last := it.i, it.i
			for _, other := range items[:n] {
				if other.op == it.op {
					first, last = min(first, other.i), max(last, other.i)
				}
			}
			batch[i].Onto = reductions[it.op].Onto(it.i, first, last)
		}
		for i, out := range b.train(o, batch...) {
			items[i].op.logprobs[items[i].i], items[i].op.losses[items[i].i] = out.Logprobs, out.Loss
		}
		for i, it := range items[:n] {
			if batch[i].Onto != nil {
				for _, m := range batch[i].Gradient.Modules(0) {
					if m.Joined {
						joined++
					}
				}
			}
			if err := reductions[it.op].Done(it.i); err != nil {
				b.t.Fatal(err)
			}
		}
		items = items[n:]
	}
	for _, op := range operations {
		g, err := reductions[op].Total()
		if err != nil {
			b.t.Fatal(err)
		}
		op.gradient = b.download(g.Flat)
		g.Free()
	}
	return joined
}

// TestTrainingBits runs three operations of two adapters in every way that must not matter.
func TestTrainingBits(t *testing.T) {
	for name, dir := range lawful(t, "odd", "qwen3", "phi3", "smollm3", "qwen3.5", "qwen3.5-moe", "gpt-oss") {
		for _, d := range dtypes {
			t.Run(name+"/"+d.String(), func(t *testing.T) {
				trainingBits(t, dir, d, []trainingSetting{{1, 0}, {2, 0}, {2, 17 * 4 * 512}, {1, 1}}) // chunks of logits: all rows, 12 rows, one
			})
		}
	}
}

// trainingSetting is what must not matter either.
type trainingSetting struct {
	threads, logitsBytes int
}

func trainingBits(t *testing.T, dir string, d tensor.DType, settings []trainingSetting) {
	t.Helper()
	gspo, err := loss.New("gspo", map[string]float64{"clip_low_threshold": 0, "clip_high_threshold": 1e6})
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		logprobs [][]float32
		losses   []float64
		gradient []float32
	}
	var want []result
	compare := func(what string, operations []*operation) {
		t.Helper()
		if want == nil {
			for _, op := range operations {
				want = append(want, result{op.logprobs, op.losses, op.gradient})
			}
		}
		for i, op := range operations {
			for j := range op.logprobs {
				if !slices.Equal(op.logprobs[j], want[i].logprobs[j]) {
					t.Errorf("%s: log-probabilities of operation %d, sequence %d differ", what, i, j)
				}
			}
			if !slices.Equal(op.losses, want[i].losses) {
				t.Errorf("%s: losses of operation %d differ", what, i)
			}
			if !slices.Equal(op.gradient, want[i].gradient) {
				t.Errorf("%s: gradient of operation %d differs", what, i)
			}
		}
	}
	for _, setting := range settings {
		b := newBenchWith(t, dir, setting.threads, model.LoadOptions{DType: d, LogitsBytes: setting.logitsBytes})
		r := rand.New(rand.NewPCG(7, 8))
		first, second := b.randomAdapter(8, 1, true, true, true), b.ownExperts(4, 2)
		var operations []*operation
		for _, o := range []struct {
			w *lora.Weights
			n int
		}{{first, 11}, {first, 3}, {second, 5}} {
			op := &operation{w: o.w}
			for i := range o.n {
				n := 3 + 13*i%70
				weights := make([]float32, n)
				for j := range weights {
					if i%3 > 0 && (j < n/3 || j%5 == 0) {
						continue // a prompt, and gaps
					}
					weights[j] = float32(r.NormFloat64())
				}
				e := b.example(o.w, b.randomTokens(r, n), b.randomTokens(r, n), weights)
				if len(operations) == 1 { // the second operation has a loss with a quantity per datum
					e.Loss, e.Inputs = gspo, loss.Inputs{Advantages: weights, Logprobs: slices.Repeat([]float32{-6}, n), SequenceRatioMask: weights}
				}
				op.data = append(op.data, e)
			}
			operations = append(operations, op)
		}
		label := func(s string) string { return fmt.Sprintf("%+v, %s", setting, s) }
		if b.run(operations, nil, model.TrainOptions{}) == 0 {
			t.Error("no sum was joined in the pass")
		}
		compare(label("all at once"), operations)
		for _, op := range operations {
			b.run([]*operation{op}, nil, model.TrainOptions{})
		}
		compare(label("each operation alone"), operations)
		if n := b.run(operations, slices.Repeat([]int{1}, 19), model.TrainOptions{}); n > 0 {
			t.Errorf("%d sums were joined in passes of one sequence", n)
		}
		compare(label("each sequence alone"), operations)
		b.run(operations, []int{4, 1, 9, 2, 3}, model.TrainOptions{})
		compare(label("cut anyhow"), operations)
		b.run(operations, nil, model.TrainOptions{StepWork: 2e5})
		compare(label("in small steps"), operations)
		b.run(operations, nil, model.TrainOptions{StepWork: 1, Recompute: true})
		compare(label("in the smallest steps"), operations)
		slices.Reverse(operations)
		b.run(operations, []int{10, 9}, model.TrainOptions{Recompute: true})
		slices.Reverse(operations)
		compare(label("operations in another order, layers computed again"), operations)
	}
}

// TestLossOfOneNotFinite: an example whose ratio overflows is reported, and the gradients of others in the same pass keep their bits.
func TestLossOfOneNotFinite(t *testing.T) {
	b := newBench(t, unpack(t, "qwen3"), tensor.Float32, 2)
	r := rand.New(rand.NewPCG(11, 12))
	w := b.randomAdapter(4, 1, true, true, true)
	importance, err := loss.New("importance_sampling", nil)
	if err != nil {
		t.Fatal(err)
	}
	good, bad := b.example(w, b.randomTokens(r, 20), b.randomTokens(r, 20), slices.Repeat([]float32{1}, 20)), b.example(w, b.randomTokens(r, 9), b.randomTokens(r, 9), nil)
	bad.Loss, bad.Inputs = importance, loss.Inputs{Logprobs: slices.Repeat([]float32{-3e38}, 9), Advantages: slices.Repeat([]float32{1}, 9)}
	good.Gradient = b.gradient(w.Layout())
	b.train(model.TrainOptions{}, good)
	want := b.download(good.Gradient.Flat)
	if !slices.ContainsFunc(want, func(v float32) bool { return v != 0 }) {
		t.Fatal("the gradient is zero")
	}
	good.Gradient, bad.Gradient = b.gradient(w.Layout()), b.gradient(w.Layout())
	outcomes, err := b.Train(b.work, b.pages, []model.Example{bad, good}, model.TrainOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(outcomes[0].Err, loss.ErrNotFinite) || outcomes[1].Err != nil {
		t.Errorf("errors %v and %v", outcomes[0].Err, outcomes[1].Err)
	}
	if !slices.Equal(b.download(good.Gradient.Flat), want) {
		t.Error("another example's gradient changed")
	}
}

// TestYield runs a sampler's pass at every yield of a trainer's, which must change neither; and an error must end the pass.
func TestYield(t *testing.T) {
	b := newBench(t, unpack(t, "qwen3"), tensor.Float32, 2)
	r := rand.New(rand.NewPCG(9, 10))
	w := b.randomAdapter(8, 1, true, true, true)
	tokens, targets := b.randomTokens(r, 40), b.randomTokens(r, 40)
	want := b.scored(w, tokens, targets, []int{40})

	op := &operation{w: w, data: []model.Example{b.example(w, tokens, targets, slices.Repeat([]float32{1}, 40))}}
	b.run([]*operation{op}, nil, model.TrainOptions{})
	gradient := op.gradient
	sampler := *b
	sampler.work = b.NewWorkspace()
	defer sampler.work.Free()
	sampler.next = 32
	yields := 0
	b.run([]*operation{op}, nil, model.TrainOptions{Yield: func() error {
		yields++
		if got := sampler.scored(w, tokens, targets, []int{30, 10}); !slices.Equal(got, want) {
			t.Error("sampling between parts of a training pass gives other bits")
		}
		return nil
	}})
	if !slices.Equal(op.gradient, gradient) {
		t.Error("a training pass that yields gives other bits")
	}
	if least := 4 * b.Config.Layers; yields < least {
		t.Errorf("%d yields, at least %d expected", yields, least)
	}
	whole := yields
	yields = 0
	b.run([]*operation{op}, nil, model.TrainOptions{StepWork: 1e5, Yield: func() error { yields++; return nil }})
	if yields < 4*whole {
		t.Errorf("%d yields in small steps, %d without", yields, whole)
	}
	stop := errors.New("stop")
	if _, err := b.Train(b.work, b.pages, op.data, model.TrainOptions{Yield: func() error { return stop }}); !errors.Is(err, stop) {
		t.Errorf("error %v, want the hook's", err)
	}
}
