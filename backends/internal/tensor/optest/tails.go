package optest

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// adapted checks linear layers with adapters as two stages, in which a device may do the base weight's product and the adapters' at once: forward, two layers with one input, and the gradient by an input. The bits are
// those of the products one by one.
func adapted(t *testing.T, d tensor.Device) {
	const in, out, between = 144, 72, 40
	for _, c := range []groupCase{
		{"one adapter", []adapterRows{{0, 9, 16}}},
		{"one adapter of many rows", []adapterRows{{0, 139, 5}}},
		{"few rows each", []adapterRows{{0, 1, 40}, {1, 1, 8}, {3, 9, 1}}},
		{"few and many rows", []adapterRows{{0, 130, 16}, {131, 140, 33}, {140, 268, 24}}},
		{"none", nil},
	} {
		for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			t.Run(fmt.Sprintf("%s %v", c.name, dtype), func(t *testing.T) {
				h := start(t, d)
				rows := c.rows() - 1
				rank := 0
				for _, g := range c.groups {
					rank = max(rank, g.rank)
				}
				if rows == 0 {
					rows, rank = 7, 8
				}
				seed := uint64(0)
				next := func(n int) []float32 { seed++; return normal(seed, n) }
				x, dy := h.tensor(rows, in, next(rows*in)), h.tensor(rows, out, next(rows*out))
				var first, second, apart []tensor.Multiplication
				var got, want []tensor.Tensor
				output := func(cols int) (mine, other tensor.Tensor) {
					values := next(rows * cols)
					got, want = append(got, h.tensor(rows, cols, values)), append(want, h.tensor(rows, cols, values))
					return got[len(got)-1], want[len(want)-1]
				}
				// layer adds y (+)= x·w, s = x·a and y += s·b, with the inner axes as they are when transposed.
				layer := func(x tensor.Tensor, from, to int, accumulate, transposed bool) {
					matrix := func(from, to int) tensor.Matrix {
						if transposed {
							from, to = to, from
						}
						return h.matrix(dtype, to, from, next(to*from))
					}
					y, yApart := output(to)
					s, sApart := output(rank)
					base := []tensor.RowGroup{{To: rows, Matrix: matrix(from, to)}}
					var shrink, expand []tensor.RowGroup
					for _, g := range c.groups {
						shrink = append(shrink, tensor.RowGroup{From: g.from, To: g.to, Matrix: matrix(from, g.rank), Factor: 0.7, Round: dtype})
						expand = append(expand, tensor.RowGroup{From: g.from, To: g.to, Matrix: matrix(g.rank, to)})
					}
					first = append(first, tensor.Multiplication{Y: y, X: x, Groups: base, Accumulate: accumulate, Transposed: transposed}, tensor.Multiplication{Y: s, X: x, Groups: shrink, Transposed: transposed})
					second = append(second, tensor.Multiplication{Y: y, X: s, Groups: expand, Accumulate: true, Transposed: transposed})
					apart = append(apart, tensor.Multiplication{Y: yApart, X: x, Groups: base, Accumulate: accumulate, Transposed: transposed},
						tensor.Multiplication{Y: sApart, X: x, Groups: shrink, Transposed: transposed}, tensor.Multiplication{Y: yApart, X: sApart, Groups: expand, Accumulate: true, Transposed: transposed})
				}
				layer(x, in, out, false, false)
				layer(x, in, between, true, false)
				layer(dy, out, in, false, true)
				layer(dy, out, between, true, true)
				h.ok(d.MatMuls(first, second))
				for _, p := range apart {
					if p.Transposed {
						h.ok(d.MatMulTransposedGroups(p.Y, p.X, p.Groups, p.Accumulate))
					} else {
						h.ok(d.MatMulGroups(p.Y, p.X, p.Groups, p.Accumulate))
					}
				}
				for i := range want {
					sameBits(t, fmt.Sprint("output ", i), h.read(got[i]), h.read(want[i]))
				}
			})
		}
	}
}
