// Package optim has the optimizer: AdamW steps from one version of an adapter to the next, of any number of adapters at once. It knows no run and no gradient but the sum it is given.
package optim

import (
	"errors"
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

// NewState allocates a state, whose moments are undefined until they are written: by Steps, or by Zero for a fresh adapter.
func NewState(device tensor.Device, l *lora.Layout) (*State, error) {
	m, err := lora.NewUnsetParameters(device, l)
	if err != nil {
		return nil, err
	}
	v, err := lora.NewUnsetParameters(device, l)
	if err != nil {
		m.Free()
		return nil, err
	}
	return &State{M: m, V: v}, nil
}

// Zero makes it the state of a fresh adapter.
func (s *State) Zero() error {
	s.Step = 0
	return errors.Join(s.M.Zero(), s.V.Zero())
}

// Free gives the memory back.
func (s *State) Free() { s.M.Free(); s.V.Free() }

// Bytes is the device memory held.
func (s *State) Bytes() int64 { return s.M.Bytes() + s.V.Bytes() }

// Norms are measured by a step.
type Norms struct {
	Gradient float64    // before clipping
	Adapter  float64    // of the new weights, as the following
	Kinds    []KindNorm // in the layout's order
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

// Steps does updates at once, packs the matrices, and checks that gradients, moments and weights are finite: what one gives does not depend on the others, and one that fails takes none with it. All is launched before the
// host waits for the device, once; for the name of what is not finite it waits again. An error of its own is the device's: all Next and NextState are then undefined, and the rest as it was.
func Steps(device tensor.Device, updates []Update) ([]Result, error) {
	results := make([]Result, len(updates))
	steps := make([]step, 0, len(updates))
	arenas := make([]tensor.AdamWUpdate, 0, len(updates))
	next := make([]*lora.Weights, 0, len(updates))
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
		s := step{u, &results[i], g, newKindSums(u.Next.Masters)}
		steps, arenas, next = append(steps, s), append(arenas, s.arena()), append(next, u.Next)
		u.NextState.Step = u.State.Step + 1
	}
	wait, err := device.AdamW(arenas...)
	if err != nil {
		return nil, err
	}
	edges := make([]tensor.Tensor, 0, len(steps))
	for _, s := range steps {
		edges = append(edges, s.kinds.edges...)
	}
	waitEdges, edgesErr := device.SumSquares(edges...)
	packed := lora.Pack(next...)
	sums, err := wait()
	var ofEdges []float64
	if edgesErr == nil {
		ofEdges, edgesErr = waitEdges()
	}
	if err = errors.Join(err, edgesErr, packed); err != nil {
		return nil, err
	}
	for i, s := range steps {
		mine := ofEdges[:len(s.kinds.edges)]
		ofEdges = ofEdges[len(mine):]
		if s.result.Err = s.check(sums[i]); s.result.Err == nil {
			s.result.Norms = Norms{Gradient: math.Sqrt(sums[i].G), Adapter: math.Sqrt(sums[i].NewP), Kinds: s.kinds.norms(mine)}
		}
	}
	return results, nil
}

// step is an update under way.
type step struct {
	update   *Update
	result   *Result
	gradient *lora.Gradient
	kinds    *kindSums
}

// arena is the parameters alone: what lies behind them stays zero, where with eps 0 a step would write 0/0.
func (s step) arena() tensor.AdamWUpdate {
	u, a := s.update, s.update.Adam
	return tensor.AdamWUpdate{
		NewP: u.Next.Masters.Values(), NewM: u.NextState.M.Values(), NewV: u.NextState.V.Values(),
		P: u.Weights.Masters.Values(), M: u.State.M.Values(), V: u.State.V.Values(), G: s.gradient.Values(),
		AdamWStep: tensor.AdamWStep{
			LearningRate: a.LearningRate, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay, MaxNorm: a.GradClipNorm, Step: u.State.Step + 1,
		},
		Pieces: s.kinds.pieces,
	}
}

// check refuses values that are not finite, by the sums of their squares.
func (s step) check(sums tensor.AdamWSums) error {
	u := s.update
	for _, part := range []struct {
		name string
		sum  float64
		p    *lora.Parameters
	}{{"gradient", sums.G, s.gradient.Parameters}, {"new weight", sums.NewP, u.Next.Masters}, {"first moment", sums.NewM, u.NextState.M}, {"second moment", sums.NewV, u.NextState.V}} {
		if isFinite(part.sum) {
			continue
		}
		if err := part.p.CheckFinite(); err != nil {
			return fmt.Errorf("%s of %w", part.name, err)
		}
		return fmt.Errorf("norm of the %s: %w", part.name, lora.ErrNotFinite)
	}
	return nil
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
