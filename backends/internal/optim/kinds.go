package optim

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// KindNorm is the norm of the parameters of all modules of one kind, A and B of each: "q_proj", …, "lm_head".
type KindNorm struct {
	Kind string
	Norm float64
}

// kindSums sums the squares of new weights by kind of module. The step has the sums of pieces of the flat vector anyway; only what of a module lies in a piece with others is summed anew, so that this costs as
// much as there are modules, and not as much as there are parameters. Whatever the device, a module's sum is that of what lies before its first whole piece, the pieces in their order, and what lies behind the last; modules
// are added in the layout's order.
type kindSums struct {
	layout *lora.Layout
	pieces []float64       // written by the step
	edges  []tensor.Tensor // of new weights: what lies before and behind whole pieces, by module
}

func newKindSums(p *lora.Parameters) *kindSums {
	s := &kindSums{layout: p.Layout, pieces: make([]float64, tensor.SumPieces(p.Layout.Size))}
	all := p.Values()
	s.each(func(_ int, c moduleCut) {
		if c.from < c.first {
			s.edges = append(s.edges, all.Columns(c.from, c.first))
		}
		if c.last < c.to {
			s.edges = append(s.edges, all.Columns(c.last, c.to))
		}
	})
	return s
}

// moduleCut is where a module's parameters [from, to) have whole pieces: [first, last), all of them multiples of a piece unless there is none.
type moduleCut struct{ from, first, last, to int }

func (s *kindSums) each(visit func(module int, c moduleCut)) {
	for i := range s.layout.Modules {
		if !s.layout.Has(i) {
			continue
		}
		c := moduleCut{}
		c.from, c.to = s.layout.Range(i)
		c.first, c.last = tensor.SumPieces(c.from)*tensor.SumPiece, c.to/tensor.SumPiece*tensor.SumPiece
		if c.first >= c.last {
			c.first, c.last = c.to, c.to
		}
		visit(i, c)
	}
}

// norms makes them of the sums of edges.
func (s *kindSums) norms(edges []float64) []KindNorm {
	kinds := s.layout.Kinds()
	squares := make(map[string]float64, len(kinds))
	take := func() float64 {
		sum := edges[0]
		edges = edges[1:]
		return sum
	}
	s.each(func(i int, c moduleCut) {
		sum := 0.0
		if c.from < c.first {
			sum = take()
		}
		for piece := c.first / tensor.SumPiece; piece < c.last/tensor.SumPiece; piece++ {
			sum += s.pieces[piece]
		}
		if c.last < c.to {
			sum += take()
		}
		squares[s.layout.Modules[i].Kind()] += sum
	})
	norms := make([]KindNorm, len(kinds))
	for i, kind := range kinds {
		norms[i] = KindNorm{kind, math.Sqrt(squares[kind])}
	}
	return norms
}
