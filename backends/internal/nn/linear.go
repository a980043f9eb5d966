package nn

import (
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Linear is y = Wx + bias + B·(scale·(A·x)), with the LoRA pair of each row's adapter. The chain of a product goes on from W over the rank; LoRA is never merged into W.
//
// Where a model is cut over ranks, a layer whose outputs are cut has rows of W and B and all of A; the gradients by its input and by A·x are sums over the ranks. A layer whose inputs are cut has columns of W and A and all of B; its
// output and A·x are. Those sums' axes are cut into Segments, of a model that is whole as well, and W·x and A·x are whole, scaled and rounded, before B's product begins; so the bits are the same on any number of ranks that
// have whole segments, and every rank has the gradients by what it has of A and B (what several ranks have, each has whole).
type Linear struct {
	Weight tensor.Matrix
	Bias   tensor.Tensor // 1 × out; no buffer = none
	Module int           // the module number of its LoRA
	Cut    Cut
	// Segments are those of the axis that is cut, as far as it is here; none on a device that knows none, and on ranks that do not have whole ones.
	Segments tensor.Segments
}

// Cut is what of a layer ranks share out.
type Cut uint8

// The axes of a weight.
const (
	NotCut Cut = iota
	CutOutputs
	CutInputs
)

// inputSegments are those of products over the layer's inputs.
func (l *Linear) inputSegments() tensor.Segments {
	if l.Cut == CutInputs {
		return l.Segments
	}
	return tensor.Segments{}
}

// LinearActivations keeps the inner vectors scale·(A·x), rounded as the product with B saw them.
type LinearActivations struct {
	inner tensor.Tensor // rows × the largest rank
}

// application is a linear layer with where its output goes and what it keeps.
type application struct {
	*Linear
	y tensor.Tensor
	a *LinearActivations
}

// reserve gets what the layer keeps of so many rows.
func (l *Linear) reserve(p *Pass, rows int, a *LinearActivations) error {
	rank := p.largestRank(l.Module)
	if rank == 0 {
		return nil
	}
	var err error
	a.inner, err = p.Keep.Get(rows, rank)
	return err
}

// linears is Forward of layers that have x in common and what they keep reserved, all at once unless that is more than a step: x is packed for all of them together, with few rows the time of reading the weights is all there is, and with small
// matrices so would waiting between products be.
func (p *Pass) linears(x tensor.Tensor, layers ...application) error {
	_, err := p.linearsEnding(nil, x, layers...)
	return err
}

// linearsEnding is linears whose products end does instead of Device.MatMuls, together with what comes next, where they are all at once and the layers' outputs are theirs; ended says whether it did. nil: there is no other end.
func (p *Pass) linearsEnding(end func(stages ...[]tensor.Multiplication) error, x tensor.Tensor, layers ...application) (ended bool, err error) {
	work := 0.0
	atOnce := true
	for _, l := range layers {
		work += productWork(x.Rows, l.Weight)
		if _, ok := l.Weight.(Streamed); ok {
			atOnce = false
		}
		if l.Bias.Buffer != nil {
			end = nil
		}
	}
	if !atOnce || p.StepWork > 0 && work > p.StepWork {
		for _, l := range layers {
			if err := l.forward(p, l.y, x, l.a); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	reduces := layers[0].reduces(p) // all of them do, or none: they have x in common
	p.matMuls, p.expansions = p.matMuls[:0], p.expansions[:0]
	p.groups = slices.Grow(p.groups[:0], len(layers)*(2*len(p.Segments)+1)) // grown before, because products have slices of it
	for _, l := range layers {
		p.groups = append(p.groups, tensor.RowGroup{To: x.Rows, Matrix: l.Weight})
		p.matMuls = append(p.matMuls, tensor.Multiplication{Y: l.y, X: x, Groups: p.groups[len(p.groups)-1:], Segments: l.inputSegments()})
	}
	for _, l := range layers {
		if p.largestRank(l.Module) == 0 {
			continue
		}
		p.matMuls = append(p.matMuls, tensor.Multiplication{Y: l.a.inner, X: x, Groups: p.shrinks(l.Module, !reduces), Segments: l.inputSegments()})
		p.expansions = append(p.expansions, tensor.Multiplication{Y: l.y, X: l.a.inner, Groups: p.expands(l.Module), Accumulate: true})
	}
	p.stages = append(p.stages[:0], p.matMuls)
	if reduces {
		if err := p.Device.MatMuls(p.stages...); err != nil {
			return false, err
		}
		for _, l := range layers {
			if err := l.reduce(p, l.y, l.a); err != nil {
				return false, err
			}
		}
		p.stages = p.stages[:0]
	}
	p.stages = append(p.stages, p.expansions)
	if end != nil && !reduces {
		if err := end(p.stages...); err != nil {
			return false, err
		}
		return true, p.did(work)
	}
	if err := p.Device.MatMuls(p.stages...); err != nil {
		return false, err
	}
	for _, l := range layers {
		if l.Bias.Buffer != nil {
			if err := p.Device.AddRow(l.y, l.Bias); err != nil {
				return false, err
			}
		}
	}
	return false, p.did(work)
}

// Forward writes y (rows × out) for x (rows × in).
func (l *Linear) Forward(p *Pass, y, x tensor.Tensor, a *LinearActivations) error {
	if err := l.reserve(p, x.Rows, a); err != nil {
		return err
	}
	return p.linears(x, application{l, y, a})
}

// forward is Forward in steps.
func (l *Linear) forward(p *Pass, y, x tensor.Tensor, a *LinearActivations) error {
	if err := p.matMul(y, x, l.Weight, l.inputSegments()); err != nil {
		return err
	}
	if err := l.shrink(p, x, a); err != nil {
		return err
	}
	if err := l.reduce(p, y, a); err != nil {
		return err
	}
	p.groups = p.groups[:0]
	if err := p.matMulGroups(y, a.inner, p.expands(l.Module), true, tensor.Segments{}); err != nil {
		return err
	}
	if l.Bias.Buffer == nil {
		return nil
	}
	return p.Device.AddRow(y, l.Bias)
}

// inner computes only what Backward needs, which has been reserved.
func (l *Linear) inner(p *Pass, x tensor.Tensor, a *LinearActivations) error {
	if err := l.shrink(p, x, a); err != nil {
		return err
	}
	return l.reduce(p, tensor.Tensor{}, a)
}

// shrink computes A·x: the rank's part of it, if the layer reduces.
func (l *Linear) shrink(p *Pass, x tensor.Tensor, a *LinearActivations) error {
	if p.largestRank(l.Module) == 0 {
		return nil
	}
	p.groups = p.groups[:0]
	return p.matMulGroups(a.inner, x, p.shrinks(l.Module, !l.reduces(p)), false, l.inputSegments())
}

// reduces tells whether what products over the layer's inputs give are sums over the ranks.
func (l *Linear) reduces(p *Pass) bool { return l.Cut == CutInputs && p.Comm != nil }

// reduce makes the ranks' parts of y, if it has a buffer, and of A·x whole, if the layer's are parts, and finishes A·x.
func (l *Linear) reduce(p *Pass, y tensor.Tensor, a *LinearActivations) error {
	if !l.reduces(p) {
		return nil
	}
	p.sums = p.sums[:0]
	if y.Buffer != nil {
		p.sums = append(p.sums, y)
	}
	lora := p.largestRank(l.Module) > 0
	if lora {
		p.sums = append(p.sums, a.inner)
	}
	if err := p.reduce(p.sums...); err != nil || !lora {
		return err
	}
	for _, s := range p.Segments {
		if m := s.lora(l.Module); m.A != nil {
			if err := p.Device.Scale(a.inner.Slice(s.From, s.To).Columns(0, m.A.Out()), m.Scale, m.A.DType()); err != nil {
				return err
			}
		}
	}
	return nil
}

// shrinks appends the products with A of a module to p.groups, and gives them: scaled and rounded, if they are to be finished.
func (p *Pass) shrinks(module int, finish bool) []tensor.RowGroup {
	from := len(p.groups)
	for _, s := range p.Segments {
		if m := s.lora(module); m.A != nil {
			g := tensor.RowGroup{From: s.From, To: s.To, Matrix: m.A}
			if finish {
				g.Factor, g.Round = m.Scale, m.A.DType()
			}
			p.groups = append(p.groups, g)
		}
	}
	return p.groups[from:]
}

// expands appends the products with B of a module to p.groups, and gives them.
func (p *Pass) expands(module int) []tensor.RowGroup {
	from := len(p.groups)
	for _, s := range p.Segments {
		if m := s.lora(module); m.A != nil {
			p.groups = append(p.groups, tensor.RowGroup{From: s.From, To: s.To, Matrix: m.B})
		}
	}
	return p.groups[from:]
}

// Backward gives, for dy (rows × out) and the x that Forward had, the gradient by x: dx is overwritten; without inputGradient it is not computed and dx has no meaning. It adds
// the gradients by A and B of the ranges of p.Gradients.
func (l *Linear) Backward(p *Pass, dx, dy, x tensor.Tensor, a *LinearActivations, inputGradient bool) error {
	if l.Cut == CutOutputs {
		return p.backward(dx, x, inputGradient, slope{l, dy, dy, a})
	}
	return l.backward(p, dx, dy, x, a, false, inputGradient)
}

// backward is Backward of a layer whose input's gradient is no sum over ranks: with accumulate it is added to dx.
func (l *Linear) backward(p *Pass, dx, dy, x tensor.Tensor, a *LinearActivations, accumulate, inputGradient bool) error {
	rank := p.largestRank(l.Module)
	_, streamed := l.Weight.(Streamed)
	work := productWork(dy.Rows, l.Weight)
	atOnce := inputGradient && rank > 0 && !streamed && (p.StepWork <= 0 || work <= p.StepWork) // W beside B, then A: dy is packed once for both, and a device may go on from W to A without storing dx between
	if inputGradient && !atOnce {
		if err := p.matMulTransposed(dx, dy, l.Weight, accumulate); err != nil {
			return err
		}
	}
	if rank == 0 {
		return nil
	}
	mark := p.Temp.Mark()
	dinner, err := p.Temp.Get(dy.Rows, rank) // the gradient by scale·(A·x), times scale
	if err != nil {
		return err
	}
	p.groups = p.groups[:0]
	for _, s := range p.Segments {
		if m := s.lora(l.Module); m.A != nil && (inputGradient || p.wantsGradient(s)) {
			p.groups = append(p.groups, tensor.RowGroup{From: s.From, To: s.To, Matrix: m.B, Factor: m.Scale, Round: tensor.Float32})
		}
	}
	n := len(p.groups)
	if inputGradient {
		for _, s := range p.Segments {
			if m := s.lora(l.Module); m.A != nil {
				p.groups = append(p.groups, tensor.RowGroup{From: s.From, To: s.To, Matrix: m.A})
			}
		}
	}
	back, on := p.groups[:n], p.groups[n:] // products with B, and those with A
	if atOnce {
		p.groups = append(p.groups, tensor.RowGroup{To: dy.Rows, Matrix: l.Weight})
		p.matMuls = append(p.matMuls[:0], tensor.Multiplication{Y: dx, X: dy, Groups: p.groups[len(p.groups)-1:], Accumulate: accumulate, Transposed: true},
			tensor.Multiplication{Y: dinner, X: dy, Groups: back, Transposed: true})
		p.expansions = append(p.expansions[:0], tensor.Multiplication{Y: dx, X: dinner, Groups: on, Accumulate: true, Transposed: true})
		p.stages = append(p.stages[:0], p.matMuls, p.expansions)
		if err = p.Device.MatMuls(p.stages...); err == nil {
			err = p.did(work)
		}
	} else {
		err = p.matMulTransposedGroups(dinner, dy, back, false, tensor.Segments{})
		if err == nil && inputGradient {
			err = p.matMulTransposedGroups(dx, dinner, on, true, tensor.Segments{})
		}
	}
	if err != nil {
		return err
	}
	if err := l.gradients(p, dy, dinner, x, a.inner); err != nil {
		return err
	}
	return p.releaseRead(mark)
}

// gradients adds the gradients by A and B of all ranges.
func (l *Linear) gradients(p *Pass, dy, dinner, x, inner tensor.Tensor) error {
	if !p.joined {
		p.products = p.products[:0]
	}
	for i, g := range p.Gradients {
		to := &g.Modules[l.Module]
		if to.A.Buffer == nil {
			continue
		}
		rank := to.A.Rows
		from, first, apart := g.From, to.Unset, 0
		if onto := l.onto(p, g); onto != nil {
			to.Joined, to, first, apart = true, onto, false, g.To-g.From
			if n := len(p.products); n > 0 && p.products[n-2].G == onto.B && p.products[n-1].Apart == 0 && p.Gradients[i-1].To == g.From { // of the rows right before
				from, first = g.From-p.products[n-1].A.Rows, p.products[n-1].First
				p.products = p.products[:n-2]
			}
		}
		var positions []int32 // of a pass over some of the rows, the head's, there are none
		if len(p.Positions) == dy.Rows {
			positions = p.Positions[from:g.To]
		}
		b := tensor.OuterProduct{G: to.B, A: dy.Slice(from, g.To), B: inner.Slice(from, g.To).Columns(0, rank), First: first, Apart: apart, Positions: positions}
		a := tensor.OuterProduct{G: to.A, A: dinner.Slice(from, g.To).Columns(0, rank), B: x.Slice(from, g.To), First: first, Apart: apart, Positions: positions}
		to.Unset = false
		for _, before := range p.products {
			if before.G == b.G { // one chain, in order
				if err := p.outerProducts(p.products); err != nil {
					return err
				}
				p.products = p.products[:0]
				break
			}
		}
		p.products = append(p.products, b, a)
	}
	if p.joined {
		return nil
	}
	return p.outerProducts(p.products)
}

// onto is the gradient of this module that a range's sum can be added to on the device, nil if there is none: there is nothing to add to, or the sum takes more than a step.
func (l *Linear) onto(p *Pass, g GradientRange) *LoRAGradient {
	if g.Onto == nil || !g.Whole || g.Onto[l.Module].Unset {
		return nil
	}
	own := g.Modules[l.Module]
	if p.StepWork > 0 && max(outerWork(g.To-g.From, own.A), outerWork(g.To-g.From, own.B)) > p.StepWork {
		return nil
	}
	return &g.Onto[l.Module]
}

// rank is that of one pair.
func (l LoRA) rank() int {
	if l.Rank > 0 {
		return l.Rank
	}
	return l.A.Out()
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
			rank = max(rank, m.rank())
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
