package optim_test

import (
	"math"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/optim"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// TestNormsByKind compares with sums over the downloaded weights, of modules that lie in one piece, over its ends, over several and exactly on them, beside ones that carry no LoRA.
func TestNormsByKind(t *testing.T) {
	const rank = 4
	modules := []lora.Module{
		{Name: "model.layers.0.q_proj", Group: lora.Attention, Out: 10, In: 7},
		{Name: "model.layers.0.k_proj", Group: lora.Attention, Out: 4000, In: 3000}, // several pieces, begins within one
		{Name: "model.layers.0.up_proj", Group: lora.MLP, Out: 5, In: 6},
		{Name: "model.layers.1.q_proj", Group: lora.Attention, Out: 3, In: 3},
		{Name: "model.layers.1.k_proj", Group: lora.Attention, Out: 700, In: 500},
		{Name: "model.layers.1.experts.w1", Group: lora.Attention, Out: 11, In: 9, Experts: 5, CopiesA: 1, CopiesB: 5},
		{Name: "lm_head", Group: lora.Unembed, Out: 20000, In: 16},
	}
	for _, c := range []struct {
		name  string
		align int // parameters that the first module has then
		has   func(lora.Module) bool
	}{
		{"as they lie", 0, func(m lora.Module) bool { return m.Group != lora.MLP }},
		{"the second begins with a piece", tensor.SumPiece, func(lora.Module) bool { return true }},
		{"one module", 0, func(m lora.Module) bool { return m.Group == lora.Unembed }},
		{"one small module", 0, func(m lora.Module) bool { return m.Group == lora.MLP }},
	} {
		t.Run(c.name, func(t *testing.T) {
			device, err := cpu.New(cpu.Options{Threads: 2})
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(err)
			t.Cleanup(func() { must(device.Close()) })
			list := append([]lora.Module(nil), modules...)
			if c.align > 0 {
				list[0].In = c.align/rank - list[0].Out
			}
			layout, err := lora.NewLayout(list, rank, c.has)
			must(err)
			w, err := lora.NewWeights(device, layout, tensor.Float32)
			must(err)
			t.Cleanup(w.Free)
			next, err := lora.NewWeights(device, layout, tensor.Float32)
			must(err)
			t.Cleanup(next.Free)
			s, err := optim.NewState(device, layout)
			must(err)
			t.Cleanup(s.Free)
			must(s.Zero())
			newState, err := optim.NewState(device, layout)
			must(err)
			t.Cleanup(newState.Free)
			g, err := lora.NewGradient(device, layout)
			must(err)
			t.Cleanup(g.Free)
			values := make([]float32, layout.Size)
			for i := range values {
				values[i] = float32(math.Sin(float64(i)))
			}
			must(device.Upload(g.Values(), values))
			must(w.Initialize(1))
			norms, err := optim.Step(device, optim.Update{Next: next, NextState: newState, Weights: w, State: s, Gradient: g, Adam: optim.Adam{LearningRate: 0.1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}})
			must(err)
			must(device.Download(values, next.Masters.Values()))
			want, all := map[string]float64{}, 0.0
			for i, m := range list {
				if !layout.Has(i) {
					continue
				}
				from, to := layout.Range(i)
				for _, x := range values[from:to] {
					want[m.Kind()] += float64(x) * float64(x)
					all += float64(x) * float64(x)
				}
			}
			if len(norms.Kinds) != len(want) {
				t.Errorf("norms of %d kinds, want %d: %+v", len(norms.Kinds), len(want), norms.Kinds)
			}
			for i, k := range norms.Kinds {
				if w := math.Sqrt(want[k.Kind]); !(math.Abs(k.Norm-w) <= 1e-12*w) || k.Kind != layout.Kinds()[i] {
					t.Errorf("norm %d is %v of %s, want %v of %s", i, k.Norm, k.Kind, w, layout.Kinds()[i])
				}
			}
			if w := math.Sqrt(all); !(math.Abs(norms.Adapter-w) <= 1e-12*w) {
				t.Errorf("norm %v, want %v", norms.Adapter, w)
			}
		})
	}
}
