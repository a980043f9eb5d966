package optest

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// layerWidths are the outputs of linear layers that have their input in common, as q, k and v have.
var layerWidths = [3]int{200, 40, 72}

// layerAdapter is an adapter's rows and its rank at each of the layers; 0: it is not on that one.
type layerAdapter struct {
	from, to int
	ranks    [3]int
}

type layersCase struct {
	name     string
	rows     int
	adapters []layerAdapter
}

// layersCases have ragged rows, one adapter of all rows and several, adapters on some of the layers, and rows of none.
func layersCases() []layersCase {
	cases := []layersCase{
		{"1 row", 1, []layerAdapter{{0, 1, [3]int{8, 8, 8}}}},
		{"15 rows, no adapter", 15, nil},
		{"16 rows, on two layers", 16, []layerAdapter{{0, 16, [3]int{24, 0, 24}}}},
		{"33 rows, on one layer", 33, []layerAdapter{{0, 33, [3]int{0, 40, 0}}}},
		{"63 rows, some of no adapter", 63, []layerAdapter{{3, 60, [3]int{16, 16, 16}}}},
		{"65 rows, 2 adapters", 65, []layerAdapter{{0, 30, [3]int{16, 16, 16}}, {30, 65, [3]int{33, 0, 33}}}},
		{"127 rows", 127, []layerAdapter{{0, 127, [3]int{32, 32, 32}}}},
		{"130 rows, few of an adapter", 130, []layerAdapter{{0, 129, [3]int{16, 0, 16}}, {129, 130, [3]int{16, 8, 0}}}},
	}
	many := layersCase{name: "80 rows, 17 adapters", rows: 80}
	for i := range 17 {
		a := layerAdapter{4 * i, 4*i + 1 + i%4, [3]int{1 + i, 16, 8 * (i % 3)}}
		if i%5 == 4 {
			a.ranks[1] = 0
		}
		many.adapters = append(many.adapters, a)
	}
	return append(cases, many)
}

// layers checks linear layers that have their input in common, with adapters on some of them, as two stages: of few rows a device may do all layers at once. The bits are those of the products one by one.
func layers(t *testing.T, d tensor.Device, cases []layersCase) {
	for _, c := range cases {
		for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			for _, transposed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %v, transposed %v", c.name, dtype, transposed), func(t *testing.T) { c.check(t, d, dtype, transposed) })
			}
		}
	}
}

func (c layersCase) check(t *testing.T, d tensor.Device, dtype tensor.DType, transposed bool) {
	const in = 264
	h := start(t, d)
	seed := uint64(0)
	next := func(n int) []float32 { seed++; return normal(seed, n) }
	inputs := []tensor.Tensor{h.tensor(c.rows, in, next(c.rows*in))}
	if dtype == tensor.BFloat16 { // rounded rows as well
		rounded, err := d.Alloc(dtype, c.rows, in)
		h.ok(err)
		defer d.Free(rounded)
		h.ok(d.Round(rounded, inputs[0]))
		inputs = append(inputs, rounded)
	}
	matrix := func(from, to int) tensor.Matrix {
		if transposed {
			from, to = to, from
		}
		return h.matrix(dtype, to, from, next(to*from))
	}
	for n, x := range inputs {
		var got, want []tensor.Tensor
		output := func(cols int) (mine, other tensor.Tensor) {
			values := next(c.rows * cols)
			got, want = append(got, h.tensor(c.rows, cols, values)), append(want, h.tensor(c.rows, cols, values))
			return got[len(got)-1], want[len(want)-1]
		}
		var bases, shrinks, expands, apart []tensor.Multiplication
		for l, width := range layerWidths {
			y, yApart := output(width)
			base := tensor.Multiplication{Y: y, X: x, Groups: []tensor.RowGroup{{To: c.rows, Matrix: matrix(in, width)}}, Accumulate: l == 1, Transposed: transposed}
			rank := 0
			for _, a := range c.adapters {
				rank = max(rank, a.ranks[l])
			}
			bases = append(bases, base)
			base.Y = yApart
			apart = append(apart, base)
			if rank == 0 {
				continue
			}
			s, sApart := output(rank)
			shrink, expand := tensor.Multiplication{Y: s, X: x, Transposed: transposed}, tensor.Multiplication{Y: y, X: s, Accumulate: true, Transposed: transposed}
			for _, a := range c.adapters {
				if r := a.ranks[l]; r > 0 {
					shrink.Groups = append(shrink.Groups, tensor.RowGroup{From: a.from, To: a.to, Matrix: matrix(in, r), Factor: 0.7, Round: dtype})
					expand.Groups = append(expand.Groups, tensor.RowGroup{From: a.from, To: a.to, Matrix: matrix(r, width)})
				}
			}
			shrinks, expands = append(shrinks, shrink), append(expands, expand)
			shrink.Y, expand.Y, expand.X = sApart, yApart, sApart
			apart = append(apart, shrink, expand)
		}
		h.ok(d.MatMuls(append(bases, shrinks...), expands))
		for _, p := range apart {
			if transposed {
				h.ok(d.MatMulTransposedGroups(p.Y, p.X, p.Groups, p.Accumulate))
			} else {
				h.ok(d.MatMulGroups(p.Y, p.X, p.Groups, p.Accumulate))
			}
		}
		for i := range want {
			sameBits(t, fmt.Sprintf("input %d, output %d", n, i), h.read(got[i]), h.read(want[i]))
		}
	}
}
