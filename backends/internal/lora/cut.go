package lora

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Part is what one rank has of a module when a model is cut over several: rows [OutFrom, OutTo) of B, and columns [InFrom, InTo) of A. What is not cut is there on every rank, and so may be rows of a part that several share.
type Part struct {
	OutFrom, OutTo, InFrom, InTo int
}

// Place is where packed matrices of an adapter are needed.
type Place struct {
	// Device has the matrices. Its methods are called by whoever calls the adapter's home device, whose memory it must be able to address.
	Device tensor.Device
	Parts  []Part // of the model's modules, by number; nil = every module whole
}

// Part is the part of module i that the place has.
func (p Place) Part(i int, m Module) Part {
	if p.Parts == nil {
		return Part{0, m.Out, 0, m.In}
	}
	return p.Parts[i]
}

// a and b are a part's views of the parameters of module i: a is one of all copies of A.
func (p Part) a(all *Parameters, i int) tensor.Tensor { return all.A(i).Columns(p.InFrom, p.InTo) }

// b has a view for each copy of B.
func (p Part) b(all *Parameters, i int) []tensor.Tensor {
	m := all.Layout.Modules[i]
	_, copies := m.Copies()
	views := make([]tensor.Tensor, copies)
	for e := range views {
		views[e] = all.B(i).Slice(e*m.Out+p.OutFrom, e*m.Out+p.OutTo)
	}
	return views
}

// cut is the layout of a rank's parts.
func (l *Layout) cut(parts []Part) (*Layout, error) {
	modules := make([]Module, len(l.Modules))
	for i, m := range l.Modules {
		m.Out, m.In = parts[i].OutTo-parts[i].OutFrom, parts[i].InTo-parts[i].InFrom
		modules[i] = m
	}
	number := -1
	return NewLayout(modules, l.Rank, func(Module) bool { number++; return l.Has(number) })
}

// CutBytes is ParameterBytes of all ranks' parts together: what is not cut counts on every rank.
func CutBytes(l *Layout, cuts [][]Part) (int64, error) {
	var n int64
	for rank, parts := range cuts {
		local, err := l.cut(parts)
		if err != nil {
			return 0, fmt.Errorf("rank %d: %w", rank, err)
		}
		n += ParameterBytes(local)
	}
	return n, nil
}

// NewCutReduction is NewReduction for a model that is cut over ranks: cuts[r] are the parts of rank r. Every rank sums the gradient by what it has, in the same order; what several ranks have is
// the same on each of them. Total is whole.
func NewCutReduction(device tensor.Device, layout *Layout, cuts [][]Part, n int, take func(*Layout) (*Gradient, error), give func(*Gradient)) (*Reduction, error) {
	r := NewReduction(device, layout, n, nil, nil)
	for rank, parts := range cuts {
		local, err := layout.cut(parts)
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
		r.layouts = append(r.layouts, local)
	}
	r.cuts = cuts
	r.give = func(g *Gradient) {
		for _, part := range g.ranks {
			give(part)
		}
	}
	r.free = func() (*Gradient, error) {
		g := &Gradient{Parameters: &Parameters{Layout: layout, device: device}}
		for _, local := range r.layouts {
			part, err := take(local)
			if err != nil {
				r.give(g)
				return nil, err
			}
			g.ranks = append(g.ranks, part)
		}
		return g, nil
	}
	r.whole, r.giveWhole = func() (*Gradient, error) { return take(layout) }, give
	return r, nil
}

// merge puts the ranks' parts of g together to a whole gradient; what several ranks have is the first one's.
func (r *Reduction) merge(whole, g *Gradient) error {
	for rank, part := range g.ranks {
		for i := range r.layout.Modules {
			if !r.layout.Has(i) {
				continue
			}
			p := r.cuts[rank][i]
			hasA, hasB := false, false // on a rank before
			for _, before := range r.cuts[:rank] {
				hasA = hasA || before[i].InFrom == p.InFrom
				hasB = hasB || before[i].OutFrom == p.OutFrom
			}
			if !hasA {
				if err := r.device.Round(p.a(whole.Parameters, i), part.A(i)); err != nil { // a copy
					return err
				}
			}
			if !hasB {
				own := part.B(i)
				for e, b := range p.b(whole.Parameters, i) {
					if err := r.device.Round(b, own.Slice(e*b.Rows, (e+1)*b.Rows)); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}
