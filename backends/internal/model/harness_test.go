package model_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/optim"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// bench is a loaded model with pages and a workspace, freed at the end of the test.
type bench struct {
	t      *testing.T
	device tensor.Device
	*model.Model
	work   *model.Workspace
	pages  tensor.Pages
	states *model.States // nil: the model has no recurrent layers
	next   int32
}

// openDevice gives the device of the tests.
var openDevice = func(_ *testing.T, threads int) (tensor.Device, error) { return cpu.New(cpu.Options{Threads: threads}) }

func newBench(t *testing.T, dir string, d tensor.DType, threads int) *bench {
	t.Helper()
	return newBenchWith(t, dir, threads, model.LoadOptions{DType: d})
}

func newBenchWith(t *testing.T, dir string, threads int, o model.LoadOptions) *bench {
	t.Helper()
	device, err := openDevice(t, threads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := model.Load(context.Background(), dir, device, architectures.All(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	b := &bench{t: t, device: device, Model: m, work: m.NewWorkspace()}
	t.Cleanup(b.work.Free)
	if b.pages, err = m.NewPages(64); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.pages.Free)
	if m.Recurrent() {
		if b.states, err = m.NewStates(16); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.states.Free)
	}
	return b
}

// begin makes a slot that of a sequence's beginning, where the model has such.
func (b *bench) begin(slot int) {
	b.t.Helper()
	if b.states == nil {
		return
	}
	if err := b.states.Zero(slot); err != nil {
		b.t.Fatal(err)
	}
}

// take gives clean pages for n positions, the oldest ones again when all have been used.
func (b *bench) take(n int) []int32 {
	var pages []int32
	for len(pages)*tensor.PageSize < n {
		p := b.next % int32(b.pages.Count())
		b.next++
		if err := b.pages.Zero(p); err != nil {
			b.t.Fatal(err)
		}
		pages = append(pages, p)
	}
	return pages
}

// adapter loads the weights of a PEFT adapter.
func (b *bench) adapter(f golden) *lora.Weights {
	b.t.Helper()
	modules := slices.Clone(b.Modules)
	for i, m := range modules {
		if m.Experts == 0 || f.names("", m, "A") == nil {
			continue
		}
		var err error
		if modules[i], err = m.WithCopies(f.copies(m, "A"), f.copies(m, "B")); err != nil {
			b.t.Fatal(err)
		}
	}
	l, err := lora.NewLayout(modules, f.rank(), func(m lora.Module) bool { return f.names("", m, "A") != nil })
	if err != nil {
		b.t.Fatal(err)
	}
	w := b.weights(l)
	known := 0
	eachMatrix(w.Masters, func(m lora.Module, matrix string, x tensor.Tensor) {
		known += len(f.names("", m, matrix))
		if err := b.device.Upload(x, f.all("", m, matrix)); err != nil {
			b.t.Fatal(err)
		}
	})
	if n := len(f.Names()); n != known {
		b.t.Fatalf("%d of %d tensors of the adapter are known", known, n)
	}
	if err := w.Pack(); err != nil {
		b.t.Fatal(err)
	}
	return w
}

func (b *bench) weights(l *lora.Layout) *lora.Weights {
	b.t.Helper()
	w, err := lora.NewWeights(b.device, l, b.DType)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(w.Free)
	return w
}

func (b *bench) gradient(l *lora.Layout) *lora.Gradient {
	b.t.Helper()
	g, err := lora.NewGradient(b.device, l)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(g.Free)
	return g
}

// example makes a cross-entropy example; its weights are zero if they are nil.
func (b *bench) example(w *lora.Weights, tokens, targets []int32, weights []float32) model.Example {
	b.t.Helper()
	l, err := loss.New("cross_entropy", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	k := len(targets) / len(tokens)
	if weights == nil {
		weights = make([]float32, len(targets))
	}
	return model.Example{Sequence: model.Sequence{Adapter: w, Tokens: tokens, Pages: b.take(len(tokens))}, Targets: targets, K: k, Loss: l, Inputs: loss.Inputs{Weights: weights}}
}

func (b *bench) train(o model.TrainOptions, examples ...model.Example) []model.Outcome {
	b.t.Helper()
	outcomes, err := b.Train(b.work, b.pages, examples, o)
	if err != nil {
		b.t.Fatal(err)
	}
	for i, o := range outcomes {
		if o.Err != nil {
			b.t.Fatalf("example %d: %v", i, o.Err)
		}
	}
	return outcomes
}

func (b *bench) download(x tensor.Tensor) []float32 {
	b.t.Helper()
	v := make([]float32, x.Rows*x.Cols)
	if err := b.device.Download(v, x); err != nil {
		b.t.Fatal(err)
	}
	return v
}

// relative is the norm of the difference over the norm of want.
func relative(got, want []float32) float64 {
	var difference, norm float64
	for i, w := range want {
		d := float64(got[i]) - float64(w)
		difference += d * d
		norm += float64(w) * float64(w)
	}
	if norm == 0 {
		if difference == 0 {
			return 0
		}
		return math.Inf(1)
	}
	return math.Sqrt(difference / norm)
}

func furthest(got []float32, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var most float64
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - w); !(d <= most) {
			most = d
		}
	}
	return most
}

func (b *bench) state(l *lora.Layout) *optim.State {
	b.t.Helper()
	s, err := optim.NewState(b.device, l)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(s.Free)
	if err := s.Zero(); err != nil {
		b.t.Fatal(err)
	}
	return s
}
