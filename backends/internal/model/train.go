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
}

// TrainOptions are settings of a training pass that do not change its results.
type TrainOptions struct {
	// Recompute keeps only the residual stream between layers and runs each layer's forward pass again before its backward pass: less memory, about a third more work.
	Recompute bool
	Yield     func() error // as in Batch
}

// Outcome is the result for one example.
type Outcome struct {
	Logprobs []float32 // N×K
	Loss     float64   // summed over the example
	// Err wraps loss.ErrNotFinite: the example's loss or its derivative is not finite, so neither is the sum in its Gradient. Other gradients are not touched by that.
	Err error
}

// Train runs the examples forward and, if any has a gradient, backward. Outcomes are in the order of the examples. An error is about the whole pass: all gradients are then undefined.
// Examples without a gradient go through the backward pass of those that have one; better pass them apart.
func (m *Model) Train(w *Workspace, pages tensor.Pages, examples []Example, o TrainOptions) ([]Outcome, error) {
	sequences := make([]Sequence, len(examples))
	for i, e := range examples {
		if err := m.checkExample(e); err != nil {
			return nil, fmt.Errorf("train: example %d: %w", i, err)
		}
		sequences[i] = e.Sequence
	}
	p, err := m.begin(w, sequences, pages, o.Yield)
	if err != nil {
		return nil, fmt.Errorf("train: %w", err)
	}
	for i, e := range examples {
		row := p.Runs[i].Row
		if e.Gradient == nil {
			continue
		}
		if n := len(p.Gradients); i > 0 && examples[i-1].Gradient == e.Gradient {
			p.Gradients[n-1].To = row + len(e.Tokens)
		} else {
			p.Gradients = append(p.Gradients, nn.GradientRange{From: row, To: row + len(e.Tokens), Modules: e.Gradient.Modules()})
		}
	}
	t := training{m: m, w: w, p: p, examples: examples, recompute: o.Recompute, backward: len(p.Gradients) > 0, outcomes: make([]Outcome, len(examples))}
	if err := t.run(); err != nil {
		return nil, fmt.Errorf("train: %w", err)
	}
	return t.outcomes, nil
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
	targets   []int32   // of a chunk
	logprobs  []float32 // of a chunk
	slopes    []float32 // ∂loss/∂logprob of a chunk
	ratios    []float64 // per example, for losses that need one
}

func (t *training) run() error {
	hidden, err := t.forward()
	if err != nil {
		return err
	}
	if err := t.datumRatios(hidden); err != nil {
		return err
	}
	dx, err := t.head(hidden)
	if err != nil || !t.backward {
		return err
	}
	return t.layersBackward(dx)
}

// forward runs all layers, keeping the residual stream before each (and after the last), and gives the final norm of all rows.
func (t *training) forward() (tensor.Tensor, error) {
	m, w, p := t.m, t.w, t.p
	p.Keep = w.keep
	if t.recompute || !t.backward {
		p.Keep = w.temp
	}
	w.residuals = w.residuals[:0]
	x, err := m.embed(w, w.keep)
	if err != nil {
		return x, err
	}
	spare := tensor.Tensor{} // without backward two buffers take turns
	for i, l := range m.layers {
		w.residuals = append(w.residuals, x)
		out := spare
		if t.backward || out.Buffer == nil {
			if out, err = w.keep.Get(x.Rows, x.Cols); err != nil {
				return x, err
			}
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

// chunk is a range of rows within one example.
type chunk struct {
	example  int
	from, to int // rows of the batch
	first    int // position of the first row
}

// chunks calls visit for ranges of rows that fit the memory for logits, with the parts of examples in each. Only examples that choose names are taken; without choose, all.
func (t *training) chunks(choose func(int) bool, visit func(from, to int, parts []chunk) error) error {
	most := t.m.chunkRows()
	var parts []chunk
	flush := func() error {
		if len(parts) == 0 {
			return nil
		}
		mark := t.w.temp.Mark()
		if err := visit(parts[0].from, parts[len(parts)-1].to, parts); err != nil {
			return err
		}
		parts = parts[:0]
		if err := t.w.temp.Release(mark); err != nil {
			return err
		}
		if t.p.Yield != nil {
			return t.p.Yield()
		}
		return nil
	}
	for i, run := range t.p.Runs {
		if choose != nil && !choose(i) {
			if err := flush(); err != nil {
				return err
			}
			continue
		}
		for done := 0; done < run.Count; {
			room := most
			if len(parts) > 0 {
				room = most - (parts[len(parts)-1].to - parts[0].from)
			}
			n := min(room, run.Count-done)
			parts = append(parts, chunk{example: i, from: run.Row + done, to: run.Row + done + n, first: done})
			done += n
			if n == room {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}

// evaluate computes logits of rows and the log-probabilities of their targets, which it leaves in t.logprobs in order. It gives the logits and their log-sum-exps.
func (t *training) evaluate(p *nn.Pass, hidden tensor.Tensor, parts []chunk) (logits, sums tensor.Tensor, err error) {
	if logits, err = t.m.logits(t.w, p, hidden); err != nil {
		return
	}
	if sums, err = t.w.temp.Get(logits.Rows, 1); err != nil {
		return
	}
	t.logprobs = t.logprobs[:0]
	row := 0
	for _, c := range parts {
		e := t.examples[c.example]
		n := c.to - c.from
		targets := e.Targets[c.first*e.K : (c.first+n)*e.K]
		if t.logprobs, _, err = t.m.logprobs(sums.Slice(row, row+n), logits.Slice(row, row+n), targets, e.K, t.logprobs); err != nil {
			return
		}
		row += n
	}
	return
}

// datumRatios makes the first pass of losses that need all log-probabilities of a datum before any derivative.
func (t *training) datumRatios(hidden tensor.Tensor) error {
	t.ratios = make([]float64, len(t.examples))
	needed := func(i int) bool { return t.examples[i].Loss.PerDatum() }
	logprobs := make([][]float32, len(t.examples))
	err := t.chunks(needed, func(from, to int, parts []chunk) error {
		p := t.w.slice(t.p.Segments, nil, from, to)
		if _, _, err := t.evaluate(p, hidden.Slice(from, to), parts); err != nil {
			return err
		}
		for _, c := range parts {
			logprobs[c.example] = append(logprobs[c.example], t.logprobs[c.from-from:c.to-from]...) // K is 1
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("log-probabilities: %w", err)
	}
	for i, e := range t.examples {
		if needed(i) {
			t.ratios[i] = e.Loss.DatumRatio(e.Inputs, logprobs[i])
		}
	}
	return nil
}

// head visits the logits once: log-probabilities, losses, the gradient by the logits, and from it those of the head's LoRA and by the last residual stream, which it gives.
func (t *training) head(hidden tensor.Tensor) (tensor.Tensor, error) {
	m, w := t.m, t.w
	var dx tensor.Tensor
	if t.backward {
		var err error
		if dx, err = w.keep.Get(hidden.Rows, hidden.Cols); err != nil {
			return dx, err
		}
	}
	for i, e := range t.examples {
		t.outcomes[i].Logprobs = make([]float32, 0, len(e.Targets))
	}
	err := t.chunks(nil, func(from, to int, parts []chunk) error {
		p := w.slice(t.p.Segments, t.p.Gradients, from, to)
		rows := hidden.Slice(from, to)
		logits, sums, err := t.evaluate(p, rows, parts)
		if err != nil {
			return err
		}
		if !t.losses(parts) || !t.backward {
			if t.backward {
				return m.Device.Zero(dx.Slice(from, to))
			}
			return nil
		}
		offset := 0
		for _, c := range parts {
			e := t.examples[c.example]
			a, b, n := c.from-from, c.to-from, (c.to-c.from)*e.K
			if err := m.Device.SoftmaxGradient(logits.Slice(a, b), sums.Slice(a, b), e.Targets[c.first*e.K:c.first*e.K+n], t.slopes[offset:offset+n]); err != nil {
				return err
			}
			offset += n
		}
		return m.head.Backward(p, dx.Slice(from, to), logits, rows, &w.head, false, true)
	})
	if err != nil || !t.backward {
		return dx, err
	}
	return dx, m.norm.Backward(t.p, dx, dx, w.residuals[len(m.layers)], false)
}

// losses evaluates the losses of a chunk from t.logprobs into t.slopes and the outcomes. It tells whether any slope is not zero.
func (t *training) losses(parts []chunk) bool {
	if cap(t.slopes) < len(t.logprobs) {
		t.slopes = make([]float32, len(t.logprobs))
	}
	t.slopes = t.slopes[:len(t.logprobs)]
	offset := 0
	some := false
	for _, c := range parts {
		e, outcome := t.examples[c.example], &t.outcomes[c.example]
		n := (c.to - c.from) * e.K
		logprobs, slopes := t.logprobs[offset:offset+n], t.slopes[offset:offset+n]
		offset += n
		outcome.Logprobs = append(outcome.Logprobs, logprobs...)
		sum, err := e.Loss.Rows(e.Inputs, c.first, e.K, logprobs, t.ratios[c.example], slopes)
		if err != nil && outcome.Err == nil {
			outcome.Err = err
		}
		outcome.Loss += sum
		if e.Gradient == nil || outcome.Err != nil {
			clear(slopes)
			continue
		}
		for _, s := range slopes {
			if s != 0 {
				some = true
				break
			}
		}
	}
	return some
}

// layersBackward goes down from the gradient by the last residual stream, in place.
func (t *training) layersBackward(dx tensor.Tensor) error {
	m, w, p := t.m, t.w, t.p
	for i := len(m.layers) - 1; i >= 0; i-- {
		mark := w.temp.Mark()
		if t.recompute {
			if err := m.layers[i].Forward(p, tensor.Tensor{}, w.residuals[i], w.activations[i]); err != nil {
				return fmt.Errorf("layer %d again: %w", i, err)
			}
		}
		if err := m.layers[i].Backward(p, dx, w.residuals[i], w.activations[i], i > 0); err != nil {
			return fmt.Errorf("layer %d backward: %w", i, err)
		}
		if err := w.temp.Release(mark); err != nil {
			return err
		}
	}
	return nil
}
