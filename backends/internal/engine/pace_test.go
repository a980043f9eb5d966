package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// weighed is the processor with a count of the operations that it does, in the large device calls.
type weighed struct {
	tensor.Device
	work float64
	// step is called when a pass of the sampler or the trainer begins.
	step func(tokens []int32)
}

func (w *weighed) GatherRows(dst tensor.Tensor, m tensor.Matrix, ids []int32) error {
	if w.step != nil {
		w.step(ids)
	}
	return w.Device.GatherRows(dst, m, ids)
}

func (w *weighed) MatMul(y, x tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	w.work += 2 * float64(x.Rows) * float64(m.In()) * float64(m.Out())
	return w.Device.MatMul(y, x, m, accumulate)
}

func (w *weighed) MatMuls(stages ...[]tensor.Multiplication) error {
	for _, products := range stages {
		for _, p := range products {
			for _, g := range p.Groups {
				w.work += 2 * float64(g.To-g.From) * float64(g.Matrix.In()) * float64(g.Matrix.Out())
			}
		}
	}
	return w.Device.MatMuls(stages...)
}

func (w *weighed) MatMulTransposed(dx, dy tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	w.work += 2 * float64(dx.Rows) * float64(m.In()) * float64(m.Out())
	return w.Device.MatMulTransposed(dx, dy, m, accumulate)
}

func (w *weighed) OuterProduct(g, a, b tensor.Tensor) error {
	w.work += 2 * float64(a.Rows) * float64(g.Rows) * float64(g.Cols)
	return w.Device.OuterProduct(g, a, b)
}

func (w *weighed) Attention(o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, heads int, scale float32) error {
	for _, r := range runs {
		w.work += 4 * float64(q.Cols) * float64(r.Count) * (float64(r.First) + float64(r.Count)/2)
	}
	return w.Device.Attention(o, lse, q, p, layer, runs, heads, scale)
}

func (w *weighed) AttentionBackward(dq, dk, dv, do, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, heads int, scale float32) error {
	for _, r := range runs {
		from, to := r.KeysFrom, r.KeysTo
		if to == 0 {
			to = r.Count
		}
		first, last := r.RowsFrom, r.RowsTo
		if last == 0 {
			last = r.Count
		}
		for row := max(first, from); row < last; row++ {
			w.work += 10 * float64(q.Cols) * float64(min(to, row+1)-from)
		}
	}
	return w.Device.AttentionBackward(dq, dk, dv, do, o, lse, q, p, layer, runs, heads, scale)
}

// A stream of tokens goes on while sequences as long as the context are trained and prompts as long are read: between two of its tokens the device does no more than a bounded amount of work. Whatever that is, the
// bits are the same.
func TestGapsOfAStream(t *testing.T) {
	const mark = 511 // a token that stands in training data only
	dir := t.TempDir()
	if err := writeModel(dir, shape{512, 128, 384, 2, 4, 2, 32}); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 1))
	prompts := make([][]int32, 3)
	for i := range prompts {
		prompts[i] = randomTokens(random, tinyContext-2)
	}
	long := plugins.Datum{Tokens: slices.Repeat([]int32{mark}, tinyContext), Targets: randomTokens(random, tinyContext), K: 1, Weights: slices.Repeat([]float32{1}, tinyContext)}
	play := func(work float64, prefill int) (gaps []float64, sampledBits []float32, trainedBits []float32) {
		var w *weighed
		e := New(Options{Plugin: "single", Version: "test", Registry: architectures.All(), OpenDevice: func(c Config) (tensor.Device, error) {
			d, err := cpu.New(cpu.Options{Threads: 2})
			w = &weighed{Device: d}
			return w, err
		}})
		e.interval, e.turn = 0, 0 // a sampling step in every turn
		defer func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}()
		if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny"}, nil); err != nil {
			t.Fatal(err)
		}
		d := create(t, e, "a", 1, 4)
		last := 0.0
		if err := e.onDevice(func() error {
			e.pace.fixedWork, e.pace.fixedPrefill = work, prefill
			w.step = func(tokens []int32) {
				e.mu.Lock()
				q := e.requests["stream"]
				e.mu.Unlock()
				if tokens[0] == mark || q == nil || q.ended {
					return
				}
				// Every step of the sampler has a token of the stream.
				gaps = append(gaps, w.work-last)
				last = w.work
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		release := block(t, e, nil)
		together(func() {
			s, err := collect(context.Background(), e, ask("stream", "a", []int32{1, 2, 3}, 1, 400))
			if err != nil {
				t.Error(err)
			}
			sampledBits = s.sequences[0].Logprobs
		}, func() {
			eventually(t, "the stream waits", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.waiting.count > 0 })
			for i, p := range prompts {
				go func() {
					if _, err := collect(context.Background(), e, ask(fmt.Sprint("prompt ", i), "", p, 1, 1)); err != nil {
						t.Error(err)
					}
				}()
			}
			go func() {
				eventually(t, "all wait", func() bool {
					e.mu.Lock()
					defer e.mu.Unlock()
					return e.waiting.count == 1+len(prompts) && e.runs["a"].queue.waiting[1] != nil
				})
				release()
			}()
			trainedBits = d.pass([]plugins.Datum{long}).Logprobs[0]
		})
		eventually(t, "everything has ended", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.requests) == 0 })
		return gaps[1:], sampledBits, trainedBits
	}
	const work, prefill = 4e7, 16
	uncut, wantSampled, wantTrained := play(1e18, tinyContext)
	gaps, gotSampled, gotTrained := play(work, prefill)
	equalBits(t, "sampled", gotSampled, wantSampled)
	equalBits(t, "trained", gotTrained, wantTrained)
	slices.Sort(gaps)
	slices.Sort(uncut)
	quantile := func(x []float64, q float64) float64 { return x[int(q*float64(len(x)-1))] }
	t.Logf("operations between two tokens: median %.1e, p99 %.1e, most %.1e; uncut: %.1e, %.1e, %.1e",
		quantile(gaps, 0.5), quantile(gaps, 0.99), quantile(gaps, 1), quantile(uncut, 0.5), quantile(uncut, 0.99), quantile(uncut, 1))
	// What runs between two yields may be up to twice of what was asked for; the stream's own step has 16 tokens of a prompt with it.
	const own = 2.5e7
	if most := quantile(gaps, 1); most > 2*work+own {
		t.Errorf("%.1e operations between two tokens, at most %.1e are allowed", most, 2*work+own)
	}
	if most := quantile(uncut, 1); most < 4*(2*work+own) {
		t.Errorf("%.1e operations between two tokens without cuts: the test shows nothing", most)
	}
}

func TestPace(t *testing.T) {
	p := newPace(true, 0, 2, 1e9)
	if w := p.stepWork(); w != 5e11 {
		t.Errorf("a first step of %v operations on a GPU, want 5e11", w)
	}
	p = newPace(true, 1e15, 2, 1e9)
	if w := p.stepWork(); w != 1.25e13 {
		t.Errorf("a first step of %v operations on a GPU that does 1e15 a second at most, want 1.25e13", w)
	}
	if n := p.prefillTokens(stepTime, 1<<20); n != 6250 {
		t.Errorf("%d tokens of a prompt at 1.25e5 a second, want 6,250", n)
	}
	p = newPace(false, 0, 2, 1e9)
	if w := p.stepWork(); w != 1e9 {
		t.Errorf("a first step of %v operations, want 1e9", w)
	}
	for range 40 {
		p.trained(1e12, 2*time.Second)
		p.prefilled(1000, 2*time.Second)
		p.prefilled(1, time.Second) // a decoding step says nothing
	}
	if w := p.stepWork(); w < 0.99*2.5e10 || w > 1.01*2.5e10 {
		t.Errorf("steps of %v operations at 5e11 a second, want 2.5e10", w)
	}
	if n := p.prefillTokens(100*time.Millisecond, 512); n < 49 || n > 51 {
		t.Errorf("%d tokens of a prompt at 500 a second", n)
	}
	if n := p.prefillTokens(100*time.Second, 512); n != 512 {
		t.Errorf("%d tokens of a prompt, at most 512 are wanted", n)
	}
	if n := p.cycleTokens(1e9, 1<<16); n < 1240 || n > 1260 {
		t.Errorf("cycles of %d tokens, want ten seconds of work", n)
	}
	if n := p.cycleTokens(1e6, 1<<16); n != 1<<16 {
		t.Errorf("cycles of %d tokens on a small model, want what is configured", n)
	}
	for range 60 {
		p.trained(1, time.Second)
		p.prefilled(leastPrefill, time.Hour)
	}
	if w, n := p.stepWork(), p.prefillTokens(time.Second, 512); w != leastWork || n != leastPrefill {
		t.Errorf("a slow device: %v operations, %d tokens", w, n)
	}
}
