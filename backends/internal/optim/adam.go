// Package optim has the optimizer: AdamW steps from one version of an adapter to the next, of any number of adapters at once. It knows no run and no gradient but the sum it is given.
package optim

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Adam are the settings of one step.
//
// g is the gradient, scaled by GradClipNorm / (‖g‖ + 1e-6) where that is below 1 and GradClipNorm is not 0 (the norm over all parameters); then
//
//	m' = β₁·m + (1−β₁)·g;  v' = β₂·v + (1−β₂)·g²
//	p' = p − lr·wd·p − lr·(m'/(1−β₁ᵗ)) / (√(v'/(1−β₂ᵗ)) + eps)
type Adam struct {
	LearningRate, Beta1, Beta2, Eps, WeightDecay float64
	GradClipNorm                                 float64 // 0 = off
}

// Check names the first setting that cannot be used.
func (a Adam) Check() error {
	for _, f := range []struct {
		name  string
		value float64
		below float64 // exclusive
	}{
		{"learning_rate", a.LearningRate, math.Inf(1)},
		{"beta1", a.Beta1, 1},
		{"beta2", a.Beta2, 1},
		{"eps", a.Eps, math.Inf(1)},
		{"weight_decay", a.WeightDecay, math.Inf(1)},
		{"grad_clip_norm", a.GradClipNorm, math.Inf(1)},
	} {
		if !(f.value >= 0 && f.value < f.below) {
			if math.IsInf(f.below, 1) {
				return fmt.Errorf("%s is %v, it must be finite and not negative", f.name, f.value)
			}
			return fmt.Errorf("%s is %v, it must be at least 0 and below %v", f.name, f.value, f.below)
		}
	}
	return nil
}

// State is what the optimizer carries from version to version. Like the weights it is immutable once made.
type State struct {
	M, V *lora.Parameters
	Step int64 // steps done
}

// NewState is the state of a fresh adapter: zeros.
func NewState(device tensor.Device, l *lora.Layout) (*State, error) {
	m, err := lora.NewParameters(device, l)
	if err != nil {
		return nil, err
	}
	v, err := lora.NewParameters(device, l)
	if err != nil {
		m.Free()
		return nil, err
	}
	return &State{M: m, V: v}, nil
}

// Free gives the memory back.
func (s *State) Free() { s.M.Free(); s.V.Free() }

// Bytes is the device memory held.
func (s *State) Bytes() int64 { return s.M.Bytes() + s.V.Bytes() }

// Norms are measured by a step.
type Norms struct {
	Gradient float64 // before clipping
	Adapter  float64 // of the new weights
}

// Update is one adapter's step: Next and NextState, which are not yet in use, are written from Weights, State and Gradient (nil = zero). All have the same layout. No two updates have memory in common that is written.
type Update struct {
	Next      *lora.Weights
	NextState *State
	Weights   *lora.Weights
	State     *State
	Gradient  *lora.Gradient
	Adam      Adam
}

// Result is that of one update. After an error its Next and NextState are undefined, and the rest of it as it was.
type Result struct {
	Norms Norms
	Err   error
}

// Step is Steps of one update.
func Step(device tensor.Device, u Update) (Norms, error) {
	r, err := Steps(device, []Update{u})
	if err != nil {
		return Norms{}, err
	}
	return r[0].Norms, r[0].Err
}

// Steps does updates at once, packs the matrices, and checks that gradients, moments and weights are finite: what one gives does not depend on the others, and one that fails takes none with it. The host waits for the device twice,
// however many there are. An error of its own is the device's: all Next and NextState are then undefined, and the rest as it was.
func Steps(device tensor.Device, updates []Update) ([]Result, error) {
	results := make([]Result, len(updates))
	steps := make([]step, 0, len(updates))
	var gradients []tensor.Tensor
	for i := range updates {
		u := &updates[i]
		if results[i].Err = u.Adam.Check(); results[i].Err != nil {
			continue
		}
		g := u.Gradient
		if g == nil {
			zero, err := lora.NewGradient(device, u.Weights.Layout())
			if err != nil {
				return nil, err
			}
			defer zero.Free()
			g = zero
		}
		steps = append(steps, step{u, &results[i], g})
		gradients = append(gradients, g.Flat)
	}
	sums, err := device.SumSquares(gradients...)
	if err != nil {
		return nil, err
	}
	finite := steps[:0]
	var arenas []tensor.AdamWUpdate
	for i, s := range steps {
		if s.result.Err = s.checkGradient(sums[i]); s.result.Err == nil {
			finite, arenas = append(finite, s), append(arenas, s.arena())
		}
	}
	if err := device.AdamW(arenas...); err != nil {
		return nil, err
	}
	var written []tensor.Tensor
	for _, s := range finite {
		s.update.NextState.Step = s.update.State.Step + 1
		for _, part := range s.written() {
			// What lies behind the parameters must stay zero; with eps 0 the step writes 0/0 there.
			if err := part.p.ClearTail(); err != nil {
				return nil, err
			}
			written = append(written, part.p.Flat)
		}
	}
	if sums, err = device.SumSquares(written...); err != nil {
		return nil, err
	}
	for _, s := range finite {
		var own []float64
		own, sums = sums[:3], sums[3:]
		if s.result.Err = s.checkWritten(own); s.result.Err == nil {
			s.result.Norms.Adapter = math.Sqrt(own[0])
			s.result.Err = s.update.Next.Pack()
		}
	}
	return results, nil
}

// step is an update under way.
type step struct {
	update   *Update
	result   *Result
	gradient *lora.Gradient
}

// checkGradient notes the norm of the gradient and refuses one that is not finite.
func (s step) checkGradient(sum float64) error {
	norm := math.Sqrt(sum)
	if !isFinite(norm) {
		if err := s.gradient.CheckFinite(); err != nil {
			return fmt.Errorf("gradient of %w", err)
		}
		return fmt.Errorf("norm of the gradient: %w", lora.ErrNotFinite)
	}
	s.result.Norms.Gradient = norm
	return nil
}

func (s step) arena() tensor.AdamWUpdate {
	u, a := s.update, s.update.Adam
	scalars := tensor.AdamWStep{LearningRate: a.LearningRate, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay, GradScale: 1, Step: u.State.Step + 1}
	if a.GradClipNorm > 0 {
		scalars.GradScale = math.Min(1, a.GradClipNorm/(s.result.Norms.Gradient+1e-6))
	}
	return tensor.AdamWUpdate{
		NewP: u.Next.Masters.Flat, NewM: u.NextState.M.Flat, NewV: u.NextState.V.Flat, P: u.Weights.Masters.Flat, M: u.State.M.Flat, V: u.State.V.Flat, G: s.gradient.Flat,
		AdamWStep: scalars,
	}
}

// part is something that a step has written.
type part struct {
	name string
	p    *lora.Parameters
}

func (s step) written() [3]part {
	return [3]part{{"new weight", s.update.Next.Masters}, {"first moment", s.update.NextState.M}, {"second moment", s.update.NextState.V}}
}

// checkWritten refuses values that are not finite, by the sums of their squares.
func (s step) checkWritten(sums []float64) error {
	for i, part := range s.written() {
		if isFinite(sums[i]) {
			continue
		}
		if err := part.p.CheckFinite(); err != nil {
			return fmt.Errorf("%s of %w", part.name, err)
		}
		return fmt.Errorf("norm of the %ss: %w", part.name, lora.ErrNotFinite)
	}
	return nil
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
