package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Linear is y = Wx + bias + B·(scale·(A·x)), with the LoRA pair of each row's adapter. The chain of a product goes on from W over the rank; LoRA is never merged into W.
type Linear struct {
	Weight tensor.Matrix
	Bias   tensor.Tensor // 1 × out; no buffer = none
	Module int           // the module number of its LoRA
}

// LinearActivations keeps the inner vectors scale·(A·x), rounded as the product with B saw them.
type LinearActivations struct {
	inner tensor.Tensor // rows × the largest rank
}

// Forward writes y (rows × out) for x (rows × in).
func (l *Linear) Forward(p *Pass, y, x tensor.Tensor, a *LinearActivations) error {
	d := p.Device
	if err := p.matMul(y, x, l.Weight, false); err != nil {
		return err
	}
	if err := l.inner(p, x, a); err != nil {
		return err
	}
	for _, s := range p.Segments {
		m := s.lora(l.Module)
		if m.A == nil {
			continue
		}
		inner := a.inner.Slice(s.From, s.To).Columns(0, m.A.Out())
		if err := p.matMul(y.Slice(s.From, s.To), inner, m.B, true); err != nil {
			return err
		}
	}
	if l.Bias.Buffer == nil {
		return nil
	}
	return d.AddRow(y, l.Bias)
}

// inner computes only what Backward needs.
func (l *Linear) inner(p *Pass, x tensor.Tensor, a *LinearActivations) error {
	rank := p.largestRank(l.Module)
	if rank == 0 {
		return nil
	}
	var err error
	if a.inner, err = p.Keep.Get(x.Rows, rank); err != nil {
		return err
	}
	for _, s := range p.Segments {
		m := s.lora(l.Module)
		if m.A == nil {
			continue
		}
		inner := a.inner.Slice(s.From, s.To).Columns(0, m.A.Out())
		if err := p.matMul(inner, x.Slice(s.From, s.To), m.A, false); err != nil {
			return err
		}
		if err := p.Device.Scale(inner, m.Scale, m.A.DType()); err != nil {
			return err
		}
	}
	return nil
}

// Backward gives, for dy (rows × out) and the x that Forward had, the gradient by x: dx is overwritten or, with accumulate, added to; without inputGradient it is not computed and dx has no meaning. It adds
// the gradients by A and B of the ranges of p.Gradients.
func (l *Linear) Backward(p *Pass, dx, dy, x tensor.Tensor, a *LinearActivations, accumulate, inputGradient bool) error {
	d := p.Device
	if inputGradient {
		if err := p.matMulTransposed(dx, dy, l.Weight, accumulate); err != nil {
			return err
		}
	}
	mark := p.Temp.Mark()
	for _, s := range p.Segments {
		m := s.lora(l.Module)
		if m.A == nil || !inputGradient && !p.wantsGradient(s) {
			continue
		}
		dinner, err := p.Temp.Get(s.To-s.From, m.A.Out())
		if err != nil {
			return err
		}
		if err := p.matMulTransposed(dinner, dy.Slice(s.From, s.To), m.B, false); err != nil {
			return err
		}
		if err := d.Scale(dinner, m.Scale, tensor.Float32); err != nil {
			return err
		}
		if inputGradient {
			if err := p.matMulTransposed(dx.Slice(s.From, s.To), dinner, m.A, true); err != nil {
				return err
			}
		}
		for _, g := range p.Gradients {
			if g.From < s.From || g.To > s.To || g.Modules[l.Module].A.Buffer == nil {
				continue
			}
			inner := a.inner.Slice(g.From, g.To).Columns(0, m.A.Out())
			if err := p.outerProduct(g.Modules[l.Module].B, dy.Slice(g.From, g.To), inner); err != nil {
				return err
			}
			if err := p.outerProduct(g.Modules[l.Module].A, dinner.Slice(g.From-s.From, g.To-s.From), x.Slice(g.From, g.To)); err != nil {
				return err
			}
		}
	}
	return p.Temp.Release(mark)
}

// lora is the segment's pair for a module, the zero value if it has none.
func (s Segment) lora(module int) LoRA {
	if s.Modules == nil {
		return LoRA{}
	}
	return s.Modules[module]
}

// largestRank is the largest rank of a module's LoRA in the batch, 0 if there is none.
func (p *Pass) largestRank(module int) int {
	rank := 0
	for _, s := range p.Segments {
		if m := s.lora(module); m.A != nil {
			rank = max(rank, m.A.Out())
		}
	}
	return rank
}

// wantsGradient tells whether any range of the segment has gradients.
func (p *Pass) wantsGradient(s Segment) bool {
	for _, g := range p.Gradients {
		if g.From >= s.From && g.To <= s.To {
			return true
		}
	}
	return false
}
