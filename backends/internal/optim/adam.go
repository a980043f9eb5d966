// Package optim has the optimizer: one AdamW step from one version of an adapter to the next. It knows no run and no gradient but the sum it is given.
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

// Step writes the next version from weights w, state s and gradient g (nil = zero) into next and nextState, which have the same layout and are not yet in use, packs the matrices, and
// checks that gradient, moments and weights are finite. On error next and nextState are undefined, and w, s and g as they were.
func Step(device tensor.Device, next *lora.Weights, nextState *State, w *lora.Weights, s *State, g *lora.Gradient, a Adam) (Norms, error) {
	if err := a.Check(); err != nil {
		return Norms{}, err
	}
	var norms Norms
	step := tensor.AdamWStep{LearningRate: a.LearningRate, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay, GradScale: 1, Step: s.Step + 1}
	if g == nil {
		zero, err := lora.NewGradient(device, w.Layout())
		if err != nil {
			return Norms{}, err
		}
		defer zero.Free()
		g = zero
	}
	sums, err := device.SumSquares(g.Flat)
	if err != nil {
		return Norms{}, err
	}
	norms.Gradient = math.Sqrt(sums[0])
	if !isFinite(norms.Gradient) {
		if err := g.CheckFinite(); err != nil {
			return Norms{}, fmt.Errorf("gradient of %w", err)
		}
		return Norms{}, fmt.Errorf("norm of the gradient: %w", lora.ErrNotFinite)
	}
	if a.GradClipNorm > 0 {
		step.GradScale = math.Min(1, a.GradClipNorm/(norms.Gradient+1e-6))
	}
	if err := device.AdamW(next.Masters.Flat, nextState.M.Flat, nextState.V.Flat, w.Masters.Flat, s.M.Flat, s.V.Flat, g.Flat, step); err != nil {
		return Norms{}, err
	}
	nextState.Step = step.Step
	written := []struct {
		name string
		p    *lora.Parameters
	}{{"new weight", next.Masters}, {"first moment", nextState.M}, {"second moment", nextState.V}}
	for _, part := range written {
		// What lies behind the parameters must stay zero; with eps 0 the step writes 0/0 there.
		if err := part.p.ClearTail(); err != nil {
			return Norms{}, err
		}
	}
	if sums, err = device.SumSquares(next.Masters.Flat, nextState.M.Flat, nextState.V.Flat); err != nil { // one wait for the device
		return Norms{}, err
	}
	for i, part := range written {
		if isFinite(sums[i]) {
			continue
		}
		if err := part.p.CheckFinite(); err != nil {
			return Norms{}, fmt.Errorf("%s of %w", part.name, err)
		}
		return Norms{}, fmt.Errorf("norm of the %ss: %w", part.name, lora.ErrNotFinite)
	}
	norms.Adapter = math.Sqrt(sums[0])
	return norms, next.Pack()
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
