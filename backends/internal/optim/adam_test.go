package optim_test

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/optim"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// adapter is one small adapter with two versions of everything.
type adapter struct {
	t           *testing.T
	device      tensor.Device
	layout      *lora.Layout
	w, next     *lora.Weights
	s, newState *optim.State
	g           *lora.Gradient
}

func newAdapter(t *testing.T) *adapter {
	t.Helper()
	a := &adapter{t: t}
	var err error
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a.device, err = cpu.New(cpu.Options{Threads: 2})
	must(err)
	t.Cleanup(func() { must(a.device.Close()) })
	a.layout, err = lora.NewLayout([]lora.Module{{Name: "lm_head", Group: lora.Unembed, Out: 7, In: 5}}, 3, func(lora.Module) bool { return true })
	must(err)
	a.w, err = lora.NewWeights(a.device, a.layout, tensor.Float32)
	must(err)
	t.Cleanup(a.w.Free)
	a.next, err = lora.NewWeights(a.device, a.layout, tensor.Float32)
	must(err)
	t.Cleanup(a.next.Free)
	a.s, err = optim.NewState(a.device, a.layout)
	must(err)
	must(a.s.Zero())
	t.Cleanup(a.s.Free)
	a.newState, err = optim.NewState(a.device, a.layout)
	must(err)
	t.Cleanup(a.newState.Free)
	a.g, err = lora.NewGradient(a.device, a.layout)
	must(err)
	t.Cleanup(a.g.Free)
	must(a.w.Initialize(1))
	return a
}

// update is the step from the present version to the next.
func (a *adapter) update(g *lora.Gradient, s optim.Adam) optim.Update {
	return optim.Update{Next: a.next, NextState: a.newState, Weights: a.w, State: a.s, Gradient: g, Adam: s}
}

func (a *adapter) download(x tensor.Tensor) []float32 {
	a.t.Helper()
	v := make([]float32, x.Rows*x.Cols)
	if err := a.device.Download(v, x); err != nil {
		a.t.Fatal(err)
	}
	return v
}

func (a *adapter) upload(x tensor.Tensor, v []float32) {
	a.t.Helper()
	if err := a.device.Upload(x, v); err != nil {
		a.t.Fatal(err)
	}
}

// ramp is a gradient with values of both signs and a zero.
func (a *adapter) ramp() (values []float32) {
	for i := range a.layout.Size {
		values = append(values, float32(i-10)*0.1)
	}
	x := a.g.Flat
	x.Rows, x.Cols, x.Stride = 1, a.layout.Size, a.layout.Size
	a.upload(x, values)
	return values
}

func TestStepsFollowTheFormula(t *testing.T) {
	for _, c := range []struct {
		name string
		adam optim.Adam
	}{
		{"plain", optim.Adam{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}},
		{"decay and clipping", optim.Adam{LearningRate: 1e-2, Beta1: 0.8, Beta2: 0.99, Eps: 1e-3, WeightDecay: 0.1, GradClipNorm: 0.5}},
		{"norm below the clip", optim.Adam{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradClipNorm: 1e6}},
		{"no momentum", optim.Adam{LearningRate: 1e-2, Eps: 1e-8}},
		{"rate zero", optim.Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-12, WeightDecay: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAdapter(t)
			g := a.ramp()
			p := make([]float64, len(g))
			for i, v := range a.download(a.w.Masters.Flat)[:len(g)] {
				p[i] = float64(v)
			}
			m, v := make([]float64, len(g)), make([]float64, len(g))
			var square float64
			for _, x := range g {
				square += float64(x) * float64(x)
			}
			scale := 1.0
			if c.adam.GradClipNorm > 0 {
				scale = math.Min(1, c.adam.GradClipNorm/(math.Sqrt(square)+1e-6))
			}
			for step := 1; step <= 3; step++ {
				norms, err := optim.Step(a.device, a.update(a.g, c.adam))
				if err != nil {
					t.Fatal(err)
				}
				if math.Abs(norms.Gradient-math.Sqrt(square)) > 1e-5 || a.newState.Step != int64(step) {
					t.Errorf("norm %v, want %v; step %d", norms.Gradient, math.Sqrt(square), a.newState.Step)
				}
				a.w, a.next, a.s, a.newState = a.next, a.w, a.newState, a.s
				got := a.download(a.w.Masters.Flat)
				var adapterSquare float64
				for i := range g {
					x := float64(g[i]) * scale
					m[i] = c.adam.Beta1*m[i] + (1-c.adam.Beta1)*x
					v[i] = c.adam.Beta2*v[i] + (1-c.adam.Beta2)*x*x
					mhat, vhat := m[i]/(1-math.Pow(c.adam.Beta1, float64(step))), v[i]/(1-math.Pow(c.adam.Beta2, float64(step)))
					p[i] = p[i] - c.adam.LearningRate*c.adam.WeightDecay*p[i] - c.adam.LearningRate*mhat/(math.Sqrt(vhat)+c.adam.Eps)
					adapterSquare += p[i] * p[i]
					if math.Abs(float64(got[i])-p[i]) > 1e-6 {
						t.Fatalf("step %d, parameter %d: %v, want %v", step, i, got[i], p[i])
					}
				}
				for _, x := range got[len(g):] {
					if x != 0 {
						t.Fatal("the tail is not zero")
					}
				}
				if math.Abs(norms.Adapter-math.Sqrt(adapterSquare)) > 1e-5 {
					t.Errorf("norm of the adapter %v, want %v", norms.Adapter, math.Sqrt(adapterSquare))
				}
			}
		})
	}
}

// TestEpsZero: parameters with a zero gradient make 0/0, which must fail, but what lies behind the parameters must not.
func TestEpsZero(t *testing.T) {
	a := newAdapter(t)
	values := a.ramp()
	adam := optim.Adam{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95}
	if _, err := optim.Step(a.device, a.update(a.g, adam)); !errors.Is(err, lora.ErrNotFinite) {
		t.Errorf("error %v for a zero gradient without eps", err)
	}
	for i := range values {
		values[i] = 1
	}
	x := a.g.Flat
	x.Rows, x.Cols, x.Stride = 1, len(values), len(values)
	a.upload(x, values)
	if _, err := optim.Step(a.device, a.update(a.g, adam)); err != nil {
		t.Error(err)
	}
}

func TestZeroGradient(t *testing.T) {
	a := newAdapter(t)
	before := a.download(a.w.Masters.Flat)
	norms, err := optim.Step(a.device, a.update(nil, optim.Adam{LearningRate: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}))
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range a.download(a.next.Masters.Flat) {
		if v != before[i] {
			t.Fatalf("parameter %d moved without a gradient", i)
		}
	}
	if norms.Gradient != 0 || a.newState.Step != 1 {
		t.Errorf("norm %v, step %d", norms.Gradient, a.newState.Step)
	}
}

func TestNotFinite(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		a := newAdapter(t)
		a.ramp()
		b := a.download(a.g.B(0))
		b[4] = bad
		a.upload(a.g.B(0), b)
		_, err := optim.Step(a.device, a.update(a.g, optim.Adam{LearningRate: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12, GradClipNorm: 1}))
		if !errors.Is(err, lora.ErrNotFinite) || !strings.Contains(err.Error(), "gradient of base_model.model.lm_head.lora_B.weight") {
			t.Errorf("%v in the gradient: error %v", bad, err)
		}
	}
	a := newAdapter(t)
	a.ramp()
	if _, err := optim.Step(a.device, a.update(a.g, optim.Adam{LearningRate: 1e39, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12})); !errors.Is(err, lora.ErrNotFinite) {
		t.Errorf("a step beyond float32: error %v", err)
	}
}

func TestSettingsRefused(t *testing.T) {
	good := optim.Adam{LearningRate: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}
	for name, change := range map[string]func(*optim.Adam){
		"learning_rate":  func(a *optim.Adam) { a.LearningRate = -1 },
		"beta1":          func(a *optim.Adam) { a.Beta1 = 1 },
		"beta2":          func(a *optim.Adam) { a.Beta2 = -0.1 },
		"eps":            func(a *optim.Adam) { a.Eps = math.Inf(1) },
		"weight_decay":   func(a *optim.Adam) { a.WeightDecay = math.NaN() },
		"grad_clip_norm": func(a *optim.Adam) { a.GradClipNorm = -1 },
	} {
		a := good
		change(&a)
		if err := a.Check(); err == nil || !strings.HasPrefix(err.Error(), name+" is ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
}

// TestStepsAtOnce: updates beside each other give what each gives alone, and one that fails takes none with it.
func TestStepsAtOnce(t *testing.T) {
	settings := []optim.Adam{
		{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12},
		{LearningRate: 1e-2, Beta1: 0.8, Beta2: 0.99, Eps: 1e-3, WeightDecay: 0.1, GradClipNorm: 0.5},
		{LearningRate: 1e39, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12},
		{LearningRate: -1},
		{LearningRate: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradClipNorm: 2},
		{LearningRate: 1e-1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8},
	}
	const notANumber, withoutGradient = 4, 5
	make := func() (all []*adapter, updates []optim.Update) {
		for i, s := range settings {
			a := newAdapter(t)
			a.ramp()
			g := a.g
			switch i {
			case notANumber:
				b := a.download(a.g.B(0))
				b[0] = float32(math.NaN())
				a.upload(a.g.B(0), b)
			case withoutGradient:
				g = nil
			}
			all, updates = append(all, a), append(updates, a.update(g, s))
		}
		return all, updates
	}
	alone, updates := make()
	var want []optim.Result
	for i, u := range updates {
		norms, err := optim.Step(alone[i].device, u)
		want = append(want, optim.Result{Norms: norms, Err: err})
	}
	together, updates := make()
	got, err := optim.Steps(together[0].device, updates)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range got {
		if failed := i == 2 || i == 3 || i == notANumber; (r.Err != nil) != failed || (r.Err == nil) != (want[i].Err == nil) || (r.Err != nil && r.Err.Error() != want[i].Err.Error()) {
			t.Errorf("update %d: error %v, alone %v", i, r.Err, want[i].Err)
		}
		if r.Err != nil {
			continue
		}
		if !reflect.DeepEqual(r.Norms, want[i].Norms) {
			t.Errorf("update %d: %+v, alone %+v", i, r.Norms, want[i].Norms)
		}
		a, b := together[i], alone[i]
		for k, pair := range [][2]tensor.Tensor{{a.next.Masters.Flat, b.next.Masters.Flat}, {a.newState.M.Flat, b.newState.M.Flat}, {a.newState.V.Flat, b.newState.V.Flat}} {
			if !slices.Equal(a.download(pair[0]), b.download(pair[1])) {
				t.Errorf("update %d: what is written (%d) is not what it is alone", i, k)
			}
		}
		if a.newState.Step != 1 {
			t.Errorf("update %d: step %d", i, a.newState.Step)
		}
	}
}
