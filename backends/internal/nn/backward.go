package nn

import (
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// slope is a layer whose outputs ranks share out, with the gradient dy by its outputs. part is what of dy counts in the sums over the ranks: dy itself, or, where several ranks have the same outputs, dy with zeros for those that are
// another one's to count.
type slope struct {
	*Linear
	dy, part tensor.Tensor
	a        *LinearActivations
}

// backward gives dx, the gradient by the input x that layers have in common, which is overwritten, and adds the gradients by A and B of the ranges of p.Gradients. Without inputGradient dx is not computed and has no meaning.
//
// In each segment the chain of dx goes over the outputs of all layers' W in order; when its tree is whole, on all ranks, it goes on over the ranks of their A.
func (p *Pass) backward(dx, x tensor.Tensor, inputGradient bool, slopes ...slope) error {
	mark := p.Temp.Mark()
	if err := p.together(func() error { return p.slopesBackward(dx, x, inputGradient, slopes) }); err != nil {
		return err
	}
	return p.releaseRead(mark)
}

func (p *Pass) slopesBackward(dx, x tensor.Tensor, inputGradient bool, slopes []slope) error {
	if p.Comm == nil && !p.Device.Segmented() {
		for i, s := range slopes {
			if err := s.backward(p, dx, s.dy, x, s.a, i > 0, inputGradient); err != nil {
				return err
			}
		}
		return nil
	}
	mark := p.Temp.Mark()
	var inner [maxSlopes]tensor.Tensor                                      // the gradients by scale·(A·x), times scale
	p.groups = slices.Grow(p.groups[:0], len(slopes)*(2*len(p.Segments)+1)) // grown before, because products have slices of it
	for i, s := range slopes {
		if rank := p.largestRank(s.Module); rank > 0 {
			var err error
			if inner[i], err = p.Temp.Get(x.Rows, rank); err != nil {
				return err
			}
		}
	}
	if err := p.slopesBack(dx, inner[:], inputGradient, slopes); err != nil {
		return err
	}
	if p.Comm != nil {
		if err := p.reduceSlopes(dx, inner[:], inputGradient, slopes); err != nil {
			return err
		}
	}
	for i, s := range slopes {
		if inner[i].Buffer == nil {
			continue
		}
		if inputGradient {
			p.groups = p.groups[:0]
			if err := p.matMulTransposedGroups(dx, inner[i], p.slopesOn(s.Module), true, tensor.Segments{}); err != nil {
				return err
			}
		}
		if err := s.gradients(p, s.dy, inner[i], x, s.a.inner); err != nil {
			return err
		}
	}
	return p.releaseRead(mark)
}

// maxSlopes is how many layers have an input in common at most.
const maxSlopes = 6

// slopesBack does the products with W and B: all at once, unless that is more than a step, so that dy is packed once for both.
func (p *Pass) slopesBack(dx tensor.Tensor, inner []tensor.Tensor, inputGradient bool, slopes []slope) error {
	work, atOnce := 0.0, inputGradient && p.Device.Segmented()
	for _, s := range slopes {
		work += productWork(dx.Rows, s.Weight)
		if _, ok := s.Weight.(Streamed); ok {
			atOnce = false
		}
	}
	if !atOnce || p.StepWork > 0 && work > p.StepWork {
		if inputGradient {
			if err := p.slopesByWeights(dx, slopes, work); err != nil {
				return err
			}
		}
		for i, s := range slopes {
			if inner[i].Buffer != nil {
				p.groups = p.groups[:0]
				if err := p.matMulTransposedGroups(inner[i], s.part, p.slopesInner(s.Module, inputGradient), false, s.Segments); err != nil {
					return err
				}
			}
		}
		return nil
	}
	p.matMuls = p.matMuls[:0]
	for i, s := range slopes {
		p.groups = append(p.groups, tensor.RowGroup{To: dx.Rows, Matrix: s.Weight})
		p.matMuls = append(p.matMuls, tensor.Multiplication{Y: dx, X: s.part, Groups: p.groups[len(p.groups)-1:], Transposed: true, Segments: s.segments(), Continues: i > 0})
		if inner[i].Buffer != nil {
			p.matMuls = append(p.matMuls, tensor.Multiplication{Y: inner[i], X: s.part, Groups: p.slopesInner(s.Module, inputGradient), Transposed: true, Segments: s.Segments})
		}
	}
	p.stages = append(p.stages[:0], p.matMuls)
	if err := p.Device.MatMuls(p.stages...); err != nil {
		return err
	}
	return p.did(work)
}

// segments are those of the outputs, one if the layer has none.
func (s slope) segments() tensor.Segments {
	if s.Segments.Count == 0 {
		return tensor.Segments{Count: 1, Ends: [tensor.MaxSegments]int32{int32(s.Weight.Out())}}
	}
	return s.Segments
}

// slopesByWeights writes the products with W to dx in steps.
func (p *Pass) slopesByWeights(dx tensor.Tensor, slopes []slope, work float64) error {
	if !p.Device.Segmented() {
		for i, s := range slopes {
			if err := p.matMulTransposed(dx, s.part, s.Weight, i > 0); err != nil {
				return err
			}
		}
		return nil
	}
	if w, ok := slopes[0].Weight.(Streamed); ok { // the output head, which is alone
		return p.slopeByPieces(dx, slopes[0].part, w, slopes[0].segments())
	}
	size := p.piece(dx.Rows, leastSlopeRows, work)
	for from := 0; from < dx.Rows; from += size {
		to := min(from+size, dx.Rows)
		p.matMuls, p.groups = p.matMuls[:0], slices.Grow(p.groups[:0], len(slopes))
		for i, s := range slopes {
			p.groups = append(p.groups, tensor.RowGroup{To: to - from, Matrix: s.Weight})
			p.matMuls = append(p.matMuls, tensor.Multiplication{Y: dx.Slice(from, to), X: s.part.Slice(from, to), Groups: p.groups[i:], Transposed: true, Segments: s.segments(), Continues: i > 0})
		}
		p.stages = append(p.stages[:0], p.matMuls)
		if err := p.Device.MatMuls(p.stages...); err != nil {
			return err
		}
		if err := p.did(work * float64(to-from) / float64(dx.Rows)); err != nil {
			return err
		}
	}
	return nil
}

// leastSlopeRows is how many rows a step of a product with weights that are turned, or copied, for it has at least.
const leastSlopeRows = 96

// slopeByPieces is the product with a weight of which pieces come in order: chains and sums of segments are held beside dx.
func (p *Pass) slopeByPieces(dx, dy tensor.Tensor, w Streamed, segments tensor.Segments) error {
	mark := p.Temp.Mark()
	sums := []tensor.Tensor{dx} // the present segment's chain is the last one
	free := []tensor.Tensor{}
	for n := segments.Count; n > 1; n /= 2 {
		t, err := p.Temp.Get(dx.Rows, dx.Cols)
		if err != nil {
			return err
		}
		free = append(free, t)
	}
	segment, begun := 0, false
	// finish adds what is complete when the segment is, and begins the next one.
	finish := func() error {
		if !begun {
			if err := p.Device.Zero(sums[len(sums)-1]); err != nil {
				return err
			}
		}
		for done := segment; done%2 == 1; done /= 2 {
			last := sums[len(sums)-1]
			sums = sums[:len(sums)-1]
			if err := p.Device.Add(sums[len(sums)-1], last); err != nil {
				return err
			}
			free = append(free, last)
		}
		if segment, begun = segment+1, false; segment < segments.Count {
			sums, free = append(sums, free[len(free)-1]), free[:len(free)-1]
		}
		return nil
	}
	if err := w.Stream(func(from int, piece tensor.Matrix) error {
		for at := from; at < from+piece.Out(); {
			for at == int(segments.Ends[segment]) {
				if err := finish(); err != nil {
					return err
				}
			}
			to := min(from+piece.Out(), int(segments.Ends[segment]))
			if err := p.slopeByPiece(sums[len(sums)-1], dy, piece, from, at, to, begun); err != nil {
				return err
			}
			at, begun = to, true
		}
		return nil
	}); err != nil {
		return err
	}
	for segment < segments.Count {
		if err := finish(); err != nil {
			return err
		}
	}
	return p.Temp.Release(mark)
}

// slopeByPiece goes on with a chain over outputs [at, to) of a piece, which begins with output from. Where a piece cannot be cut at at, a new chain begins with zeros before it.
func (p *Pass) slopeByPiece(sum, dy tensor.Tensor, piece tensor.Matrix, from, at, to int, begun bool) error {
	first := from + (at-from)/tensor.MatrixRows*tensor.MatrixRows
	rows := dy.Columns(first, to)
	mark := p.Temp.Mark()
	if first < at {
		part, err := p.Temp.Get(dy.Rows, to-first)
		if err != nil {
			return err
		}
		if err := p.Device.Zero(part.Columns(0, at-first)); err != nil {
			return err
		}
		if err := p.Device.Round(part.Columns(at-first, to-first), dy.Columns(at, to)); err != nil { // a copy
			return err
		}
		rows = part
	}
	if err := p.Device.MatMulTransposed(sum, rows, piece.Rows(first-from, to-from), begun); err != nil {
		return err
	}
	if err := p.Temp.Release(mark); err != nil {
		return err
	}
	return p.did(productWork(dy.Rows, piece) * float64(to-at) / float64(piece.Out()))
}

// slopesInner appends the products of gradients by outputs with B of a module to p.groups, and gives them: finished, if they are not the ranks' parts.
func (p *Pass) slopesInner(module int, inputGradient bool) []tensor.RowGroup {
	from := len(p.groups)
	for _, s := range p.Segments {
		if m := s.lora(module); m.A != nil && (inputGradient || p.wantsGradient(s)) {
			g := tensor.RowGroup{From: s.From, To: s.To, Matrix: m.B}
			if p.Comm == nil {
				g.Factor, g.Round = m.Scale, tensor.Float32
			}
			p.groups = append(p.groups, g)
		}
	}
	return p.groups[from:]
}

// slopesOn appends the products of gradients by A·x with A of a module to p.groups, and gives them.
func (p *Pass) slopesOn(module int) []tensor.RowGroup {
	from := len(p.groups)
	for _, s := range p.Segments {
		if m := s.lora(module); m.A != nil {
			p.groups = append(p.groups, tensor.RowGroup{From: s.From, To: s.To, Matrix: m.A})
		}
	}
	return p.groups[from:]
}

// reduceSlopes makes the ranks' parts whole, and finishes those by A·x.
func (p *Pass) reduceSlopes(dx tensor.Tensor, inner []tensor.Tensor, inputGradient bool, slopes []slope) error {
	p.sums = p.sums[:0]
	if inputGradient {
		p.sums = append(p.sums, dx)
	}
	for i := range slopes {
		if inner[i].Buffer != nil {
			p.sums = append(p.sums, inner[i])
		}
	}
	if err := p.reduce(p.sums...); err != nil {
		return err
	}
	for i, l := range slopes {
		for _, s := range p.Segments {
			if m := s.lora(l.Module); m.A != nil && (inputGradient || p.wantsGradient(s)) {
				if err := p.Device.Scale(inner[i].Slice(s.From, s.To).Columns(0, m.A.Out()), m.Scale, tensor.Float32); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
