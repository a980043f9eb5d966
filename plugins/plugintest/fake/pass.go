package fake

import (
	"context"
	"math"
	"slices"

	"github.com/tinsmith/tinsmith/plugins/simple"
)

// Modules implements simple.Model.
func (m *model) Modules() []simple.Module {
	var all []simple.Module
	for _, l := range m.modules {
		all = append(all, l.Module)
	}
	return all
}

// Fill implements simple.Model.
func (m *model) Fill(values []float32, seed uint64, name string, bound float64) {
	fillUniform(values, seed, name, bound)
}

// Immediate implements simple.Model.
func (m *model) Immediate() bool { return true }

// Forget implements simple.Model.
func (m *model) Forget(*simple.Weights) {}

// Forward implements simple.Model.
func (m *model) Forward(_ context.Context, w *simple.Weights, tokens []int32, gradient bool) (simple.Pass, error) {
	p := &pass{model: m, weights: w, tokens: tokens}
	if gradient {
		p.rows = make([]*activations, len(tokens))
	}
	return p, nil
}

// pass is one sequence. Its rows are computed when they are asked for, and kept for the gradient only.
type pass struct {
	*model
	weights *simple.Weights
	tokens  []int32
	rows    []*activations
	targets []int32
	k       int
}

// walk computes the rows of positions from … to-1.
func (p *pass) walk(from, to int, each func(i int, a *activations) error) error {
	state, a := make([]float64, p.hidden), p.newActivations()
	for i, token := range p.tokens[:to] {
		p.advance(state, token)
		if i < from {
			continue
		}
		if p.rows != nil {
			a = p.newActivations()
			p.rows[i] = a
		}
		p.forward(p.weights, state, a)
		if err := each(i, a); err != nil {
			return err
		}
	}
	return nil
}

// Logprobs implements simple.Pass.
func (p *pass) Logprobs(_ context.Context, targets []int32, k int) ([]float64, error) {
	p.targets, p.k = targets, k
	lps := make([]float64, len(targets))
	err := p.walk(0, len(p.tokens), func(i int, a *activations) error {
		lse := simple.LogSumExp(a.logits)
		for j := range k {
			lps[i*k+j] = a.logits[targets[i*k+j]] - lse
		}
		return nil
	})
	return lps, err
}

// Rows implements simple.Pass.
func (p *pass) Rows(_ context.Context, from, to int, each func(i int, logits []float64, logSumExp float64) error) error {
	return p.walk(from, to, func(i int, a *activations) error { return each(i, a.logits, simple.LogSumExp(a.logits)) })
}

// Backward implements simple.Pass.
func (p *pass) Backward(_ context.Context, coefficients, sum []float64) error {
	dLogits := make([]float64, p.vocab)
	for i, row := range p.rows {
		c := coefficients[i*p.k:][:p.k]
		total, any := 0.0, false
		for _, x := range c {
			total += x
			any = any || x != 0
		}
		if !any {
			continue
		}
		lse := simple.LogSumExp(row.logits)
		for j, l := range row.logits {
			dLogits[j] = -total * math.Exp(l-lse)
		}
		for j, x := range c {
			dLogits[p.targets[i*p.k+j]] += x
		}
		p.backward(p.weights, row, dLogits, sum)
	}
	return nil
}

// Close implements simple.Pass.
func (p *pass) Close() {}

// continuation is a prompt or what follows it: the state after its tokens.
type continuation struct {
	*model
	weights *simple.Weights
	state   []float64
	a       *activations
}

// Prefill implements simple.Model.
func (m *model) Prefill(_ context.Context, w *simple.Weights, prompt []int32) (simple.Prefix, error) {
	c := &continuation{model: m, weights: w, state: make([]float64, m.hidden), a: m.newActivations()}
	for _, token := range prompt {
		m.advance(c.state, token)
	}
	return c, nil
}

// Continue implements simple.Prefix.
func (c *continuation) Continue(context.Context) (simple.Sequence, error) {
	return &continuation{model: c.model, weights: c.weights, state: slices.Clone(c.state), a: c.a}, nil
}

// Next implements simple.Sequence.
func (c *continuation) Next(_ context.Context, logits []float64) error {
	c.forward(c.weights, c.state, c.a)
	copy(logits, c.a.logits)
	return nil
}

// Append implements simple.Sequence.
func (c *continuation) Append(token int32) { c.advance(c.state, token) }

// Close implements simple.Prefix and simple.Sequence.
func (c *continuation) Close() {}
