package model

import (
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Example is one training sequence of N tokens. First is 0, and its pages are its own.
type Example struct {
	Sequence
	Targets []int32 // N×K, row-major
	K       int
	Loss    loss.Loss
	Inputs  loss.Inputs
	// Gradient is where the gradient of the summed loss by the adapter's parameters is added: nil = forward only. Examples that share it form one chain in their order; they lie side by side.
	Gradient *lora.Gradient
	// Onto is to what Gradient is added as soon as both are complete, by lora.Reduction: nil = that is left to it. All examples of Gradient and, before them, the last ones of Onto are in the pass.
	Onto *lora.Gradient
}

// TrainOptions are settings of a training pass that do not change its results.
type TrainOptions struct {
	// Recompute keeps only the residual stream between layers and runs each layer's forward pass again before its backward pass: less memory, about a third more work.
	Recompute bool
	Yield     func() error // as in Batch
	// StepWork, when not 0, is about how many operations may run on the device before Yield is called again, within layers and the head too.
	StepWork float64
}

// Outcome is the result for one example.
type Outcome struct {
	Logprobs []float32 // N×K
	Terms    []float32 // N×K, what each target adds to Loss, rounded
	Loss     float64   // summed over the example
	Loads    Loads     // nil of a model without experts
	// Err wraps loss.ErrNotFinite: the example's loss or its derivative is not finite, so neither is the sum in its Gradient. Other gradients are not touched by that.
	Err error
}

// Train runs the examples forward and, if any has a gradient, backward. Outcomes are in the order of the examples. An error is about the whole pass: all gradients are then undefined.
// Examples without a gradient go through the layers' backward pass with those that have one; better pass them apart. Positions that count nothing in a loss cost no backward pass of the output head.
func (m *Model) Train(w *Workspace, pages tensor.Pages, examples []Example, o TrainOptions) ([]Outcome, error) {
	finish, err := m.StartTrain(w, pages, examples, o)
	if err != nil {
		return nil, err
	}
	return finish()
}

// StartTrain is Train that does not wait for the device at its end, where that computes beside the host: what follows may be launched meanwhile. finish, which must be called once, before the workspace is used again, waits and
// gives the outcomes.
func (m *Model) StartTrain(w *Workspace, pages tensor.Pages, examples []Example, o TrainOptions) (finish func() ([]Outcome, error), err error) {
	defer w.settle(&err)
	sequences := make([]Sequence, len(examples))
	for i, e := range examples {
		if err := m.checkExample(e); err != nil {
			return nil, fmt.Errorf("train: example %d: %w", i, err)
		}
		sequences[i] = e.Sequence
	}
	p, err := m.begin(w, sequences, pages, nil, o.Yield)
	if err != nil {
		return nil, fmt.Errorf("train: %w", err)
	}
	p.StepWork = o.StepWork
	for i, e := range examples {
		row := p.Runs[i].Row
		if e.Gradient == nil {
			continue
		}
		if n := len(p.Gradients); i > 0 && examples[i-1].Gradient == e.Gradient {
			p.Gradients[n-1].To = row + len(e.Tokens)
		} else {
			p.Gradients = append(p.Gradients, nn.GradientRange{From: row, To: row + len(e.Tokens), Modules: e.Gradient.Modules(m.Rank), Onto: e.Onto.Modules(m.Rank), Whole: true})
		}
	}
	t := training{m: m, w: w, p: p, examples: examples, recompute: o.Recompute, backward: len(p.Gradients) > 0, outcomes: make([]Outcome, len(examples))}
	for i, e := range examples {
		n := len(e.Targets)
		values := make([]float32, 2*n)
		t.outcomes[i].Logprobs, t.outcomes[i].Terms = values[:n:n], values[n:]
	}
	if err := m.record(len(w.tokens), t.run); err != nil {
		if t.loads != nil {
			err = errors.Join(err, t.loads.count()) // what was started ends
		}
		return nil, fmt.Errorf("train: %w", err)
	}
	return t.finish, nil
}

func (m *Model) checkExample(e Example) error {
	if e.First != 0 {
		return fmt.Errorf("starts at position %d, not 0", e.First)
	}
	if e.K < 1 || len(e.Targets) != len(e.Tokens)*e.K {
		return fmt.Errorf("%d targets for %d tokens of %d each", len(e.Targets), len(e.Tokens), e.K)
	}
	for i, t := range e.Targets {
		if t < 0 || int(t) >= m.Config.VocabSize {
			return fmt.Errorf("target %d is %d, it must be in 0 … %d", i, t, m.Config.VocabSize-1)
		}
	}
	if e.Gradient != nil && (e.Adapter == nil || e.Gradient.Layout != e.Adapter.Layout()) {
		return errors.New("the gradient is not of the adapter's layout")
	}
	return e.Loss.Check(e.Inputs, len(e.Tokens), e.K)
}

// training is one pass of Train.
type training struct {
	m         *Model
	w         *Workspace
	p         *nn.Pass
	examples  []Example
	recompute bool
	backward  bool
	outcomes  []Outcome

	visited bool // a chunk of logits has been computed
	ratios  ratios
	loads   *loadCounter // nil of a model without experts
	results *results     // nil: the host has the log-probabilities of a chunk when the next one is launched
}

// finish waits for what run has launched and gives the outcomes.
func (t *training) finish() ([]Outcome, error) {
	if t.results != nil {
		spans, logprobs, err := t.results.wait()
		if err != nil {
			return nil, fmt.Errorf("train: %w", err)
		}
		if t.ratios.there.Buffer != nil { // the losses' values need them here too
			t.take(spans, logprobs)
			t.hostRatios()
		}
		t.losses(spans, logprobs)
	}
	if t.loads != nil {
		if err := t.loads.count(); err != nil {
			return nil, fmt.Errorf("train: %w", err)
		}
	}
	return t.outcomes, nil
}

// run launches the pass. Where results stay on the device nothing waits; where the host computes losses, it waits in every chunk of logits.
func (t *training) run() error {
	hidden, err := t.forward()
	if err != nil {
		return err
	}
	targets := 0
	for _, e := range t.examples {
		targets += len(e.Targets)
	}
	if t.results, err = t.newResults(targets); err != nil {
		return err
	}
	dx, err := t.head(hidden)
	if err != nil {
		return err
	}
	if t.backward {
		if err := t.layersBackward(dx); err != nil {
			return err
		}
	}
	if t.results == nil {
		return nil
	}
	return t.results.fetch()
}

// forward runs all layers, keeping the residual stream before each (and after the last), and gives the final norm of all rows.
func (t *training) forward() (tensor.Tensor, error) {
	m, w, p := t.m, t.w, t.p
	p.Keep, p.Keeps = w.keep, t.backward && !t.recompute
	if t.recompute || !t.backward {
		p.Keep = w.temp
	}
	w.residuals = w.residuals[:0]
	x, err := m.embed(w, w.keep)
	if err != nil {
		return x, err
	}
	next, end := t.countLoads()
	defer end()
	spare := tensor.Tensor{} // without backward two buffers take turns
	for i := range m.layers {
		next(i)
		w.residuals = append(w.residuals, x)
		out := spare
		if t.backward || out.Buffer == nil {
			if out, err = w.keep.Get(x.Rows, x.Cols); err != nil {
				return x, err
			}
		}
		l, err := w.layer(m, i, i+1)
		if err != nil {
			return x, fmt.Errorf("layer %d: %w", i, err)
		}
		if err := l.Forward(p, out, x, w.activations[i]); err != nil {
			return x, fmt.Errorf("layer %d: %w", i, err)
		}
		x, spare = out, x
	}
	w.residuals = append(w.residuals, x)
	hidden, err := w.keep.Get(x.Rows, x.Cols)
	if err != nil {
		return hidden, err
	}
	return hidden, m.norm.Forward(p, hidden, x)
}

// layersBackward goes down from the gradient by the last residual stream, in place.
func (t *training) layersBackward(dx tensor.Tensor) error {
	m, w, p := t.m, t.w, t.p
	p.Keeps = true
	for i := len(m.layers) - 1; i >= 0; i-- {
		mark := w.temp.Mark()
		l, err := w.layer(m, i, i-1)
		if err != nil {
			return fmt.Errorf("layer %d backward: %w", i, err)
		}
		if t.recompute {
			if err := l.Forward(p, tensor.Tensor{}, w.residuals[i], w.activations[i]); err != nil {
				return fmt.Errorf("layer %d again: %w", i, err)
			}
		}
		if err := l.Backward(p, dx, w.residuals[i], w.activations[i], i > 0); err != nil {
			return fmt.Errorf("layer %d backward: %w", i, err)
		}
		if err := w.temp.Release(mark); err != nil {
			return err
		}
	}
	return nil
}
