package optest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// rowOperation is an operation that maps row r of its input to row r of its output, with everything else fixed.
type rowOperation struct {
	name    string
	in, out int
	run     func(h *bench, y, x tensor.Tensor)
}

func rowOperations(h *bench) []rowOperation {
	const cols, out = 259, 331
	weight := h.tensor(1, cols, normal(10, cols))
	all := []rowOperation{
		{"rms norm", cols, cols, func(h *bench, y, x tensor.Tensor) { h.ok(h.d.RMSNorm(y, x, weight, normEps)) }},
		{"rms norm backward", cols, cols, func(h *bench, y, x tensor.Tensor) { h.ok(h.d.RMSNormBackward(y, x, x, weight, normEps, false)) }},
		{"swiglu", cols, cols, func(h *bench, y, x tensor.Tensor) { h.ok(h.d.SwiGLU(y, x, x)) }},
		{"log-sum-exp", 9001, 1, func(h *bench, y, x tensor.Tensor) { h.ok(h.d.LogSumExp(y, x)) }},
		{"softmax", 300, 300, func(h *bench, y, x tensor.Tensor) {
			lse := h.tensor(x.Rows, 1, make([]float32, x.Rows))
			h.ok(h.d.LogSumExp(lse, x))
			h.ok(h.d.Softmax(y, x, lse))
		}},
	}
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		m := h.matrix(dtype, out, cols, normal(11, out*cols))
		all = append(all,
			rowOperation{fmt.Sprintf("matmul %v", dtype), cols, out, func(h *bench, y, x tensor.Tensor) { h.ok(h.d.MatMul(y, x, m, false)) }},
			rowOperation{fmt.Sprintf("matmul transposed %v", dtype), out, cols, func(h *bench, y, x tensor.Tensor) { h.ok(h.d.MatMulTransposed(y, x, m, false)) }})
	}
	return all
}

// groups checks that products of groups give the bits of the same products one by one.
func groups(t *testing.T, d tensor.Device) {
	groupsOf(t, d, []groupCase{
		{"one row each", []adapterRows{{0, 1, 8}, {1, 2, 64}, {3, 4, 16}, {4, 5, 1}}},
		{"few and many rows", []adapterRows{{0, 70, 33}, {71, 75, 64}, {75, 75, 2}, {75, 88, 5}}},
		{"one group", []adapterRows{{0, 88, 32}}},
		{"none", nil},
	})
}

// matMuls checks that several products at once give the bits of the same products one by one: those of linear layers that have their input in common, with adapters, and of an input of their own.
func matMuls(t *testing.T, d tensor.Device) {
	const in, out = 300, 130
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, rows := range []int{1, 3, 8, 12, 21, 40, 64} {
			t.Run(fmt.Sprintf("%d rows %v", rows, dtype), func(t *testing.T) {
				h := start(t, d)
				var want, got []tensor.Tensor
				var products []tensor.Multiplication
				add := func(x tensor.Tensor, out int, accumulate bool, groups ...tensor.RowGroup) {
					seed := uint64(20 + len(want))
					want, got = append(want, h.tensor(rows, out, normal(seed, rows*out))), append(got, h.tensor(rows, out, normal(seed, rows*out)))
					h.ok(d.MatMulGroups(want[len(want)-1], x, groups, accumulate))
					products = append(products, tensor.Multiplication{Y: got[len(got)-1], X: x, Groups: groups, Accumulate: accumulate})
				}
				back := func(dy tensor.Tensor, in int, accumulate bool, groups ...tensor.RowGroup) {
					seed := uint64(20 + len(want))
					want, got = append(want, h.tensor(rows, in, normal(seed, rows*in))), append(got, h.tensor(rows, in, normal(seed, rows*in)))
					h.ok(d.MatMulTransposedGroups(want[len(want)-1], dy, groups, accumulate))
					products = append(products, tensor.Multiplication{Y: got[len(got)-1], X: dy, Groups: groups, Accumulate: accumulate, Transposed: true})
				}
				x, other := h.tensor(rows, in, normal(1, rows*in)), h.tensor(rows, in, normal(2, rows*in))
				whole := h.matrix(dtype, out, in, normal(3, out*in))
				adapter := func(seed uint64, rank int) tensor.Matrix { return h.matrix(dtype, rank, in, normal(seed, rank*in)) }
				add(x, out, false, tensor.RowGroup{To: rows, Matrix: whole})
				add(x, out, true, tensor.RowGroup{To: rows, Matrix: whole})
				add(x, 64, false, tensor.RowGroup{To: (rows + 1) / 2, Matrix: adapter(4, 8), Factor: 0.7, Round: dtype}, tensor.RowGroup{From: (rows + 1) / 2, To: rows, Matrix: adapter(5, 64), Factor: 1.3, Round: dtype})
				add(x, 64, false, tensor.RowGroup{To: (rows + 1) / 2, Matrix: adapter(6, 33), Factor: 0.7, Round: dtype})
				add(x, 64, false, tensor.RowGroup{To: rows / 3, Matrix: adapter(7, 5)}, tensor.RowGroup{From: rows / 3, To: rows / 2, Matrix: adapter(8, 16)}, tensor.RowGroup{From: rows / 2, To: rows, Matrix: adapter(9, 40)})
				add(x, out, false)
				stages := [][]tensor.Multiplication{products, nil}
				products = nil
				inner := want[2] // what the first stage writes; its bits are checked below
				expand := h.matrix(dtype, out, 64, normal(10, out*64))
				add(inner, out, true, tensor.RowGroup{To: rows, Matrix: expand})
				products[0].X = got[2]
				add(other, out, false, tensor.RowGroup{To: rows, Matrix: whole})
				dy := h.tensor(rows, out, normal(11, rows*out))
				back(dy, in, true, tensor.RowGroup{To: rows, Matrix: whole})
				back(dy, 8, false, tensor.RowGroup{To: rows, Matrix: h.matrix(dtype, out, 8, normal(12, out*8)), Factor: 0.7, Round: tensor.Float32})
				back(dy, 8, false, tensor.RowGroup{From: rows / 4, To: rows / 2, Matrix: h.matrix(dtype, out, 8, normal(15, out*8))}, tensor.RowGroup{From: rows / 2, To: rows, Matrix: h.matrix(dtype, out, 8, normal(13, out*8))})
				add(dy, out, false, tensor.RowGroup{To: rows, Matrix: h.matrix(dtype, out, out, normal(14, out*out))})
				h.ok(d.MatMuls(append(stages, products)...))
				for i := range want {
					sameBits(t, fmt.Sprint("product ", i), h.read(got[i]), h.read(want[i]))
				}
				h.ok(d.MatMuls(nil))
				h.ok(d.MatMuls())
			})
		}
	}
}

// adapterRows are the rows of a batch that one adapter of a rank has.
type adapterRows struct{ from, to, rank int }

type groupCase struct {
	name   string
	groups []adapterRows
}

// rows is how many the batch has: one more than the last group, so that there are some of no group.
func (c groupCase) rows() int {
	n := 0
	for _, g := range c.groups {
		n = max(n, g.to)
	}
	return n + 1
}

// hasRows tells whether every group has some.
func (c groupCase) hasRows() bool {
	return !slices.ContainsFunc(c.groups, func(g adapterRows) bool { return g.from == g.to })
}

func groupsOf(t *testing.T, d tensor.Device, cases []groupCase) {
	const wide, narrow = 300, 64
	for _, c := range cases {
		for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			t.Run(fmt.Sprintf("%s %v", c.name, dtype), func(t *testing.T) {
				const factor = 0.7
				rows := c.rows()
				h := start(t, d)
				x, dy := h.tensor(rows, wide, normal(30, rows*wide)), h.tensor(rows, wide, normal(31, rows*wide))
				var shrink, expand, back, again []tensor.RowGroup
				var products []tensor.OuterProduct
				outcome := func() (all [4]tensor.Tensor, a, b []tensor.Tensor) {
					for i, cols := range []int{narrow, wide, narrow, wide} {
						all[i] = h.tensor(rows, cols, normal(uint64(32+i), rows*cols))
					}
					for i, g := range c.groups {
						a = append(a, h.tensor(g.rank, wide, normal(uint64(50+i), g.rank*wide)))
						b = append(b, h.tensor(wide, g.rank, normal(uint64(70+i), g.rank*wide)))
					}
					return all, a, b
				}
				want, wantA, wantB := outcome()
				got, gotA, gotB := outcome()
				for i, g := range c.groups {
					a, b := h.matrix(dtype, g.rank, wide, normal(uint64(90+i), g.rank*wide)), h.matrix(dtype, wide, g.rank, normal(uint64(110+i), g.rank*wide))
					shrink = append(shrink, tensor.RowGroup{From: g.from, To: g.to, Matrix: a, Factor: factor, Round: dtype})
					expand, again = append(expand, tensor.RowGroup{From: g.from, To: g.to, Matrix: b}), append(again, tensor.RowGroup{From: g.from, To: g.to, Matrix: a})
					back = append(back, tensor.RowGroup{From: g.from, To: g.to, Matrix: b, Factor: factor, Round: tensor.Float32})
					part := func(x tensor.Tensor, cols int) tensor.Tensor { return x.Slice(g.from, g.to).Columns(0, cols) }
					h.ok(d.MatMul(part(want[0], g.rank), part(x, wide), a, false))
					h.ok(d.Scale(part(want[0], g.rank), factor, dtype))
					h.ok(d.MatMul(part(want[1], wide), part(want[0], g.rank), b, true))
					h.ok(d.MatMulTransposed(part(want[2], g.rank), part(dy, wide), b, false))
					h.ok(d.Scale(part(want[2], g.rank), factor, tensor.Float32))
					h.ok(d.MatMulTransposed(part(want[3], wide), part(want[2], g.rank), a, true))
					h.ok(d.OuterProduct(wantA[i], part(want[2], g.rank), part(x, wide)))
					h.ok(d.OuterProduct(wantB[i], part(dy, wide), part(want[0], g.rank)))
					products = append(products, tensor.OuterProduct{G: gotA[i], A: part(got[2], g.rank), B: part(x, wide)}, tensor.OuterProduct{G: gotB[i], A: part(dy, wide), B: part(got[0], g.rank)})
				}
				h.ok(d.MatMulGroups(got[0], x, shrink, false))
				h.ok(d.MatMulGroups(got[1], got[0], expand, true))
				h.ok(d.MatMulTransposedGroups(got[2], dy, back, false))
				h.ok(d.MatMulTransposedGroups(got[3], got[2], again, true))
				h.ok(d.OuterProducts(products))
				var firstA, firstB []tensor.Tensor
				for i, g := range c.groups { // from zero, over what means nothing
					nan := slices.Repeat([]float32{float32(math.NaN())}, wide*g.rank)
					firstA, firstB = append(firstA, h.tensor(g.rank, wide, nan)), append(firstB, h.tensor(wide, g.rank, nan))
					products[2*i].G, products[2*i].First = firstA[i], true
					products[2*i+1].G, products[2*i+1].First = firstB[i], true
				}
				if c.hasRows() {
					h.ok(d.OuterProducts(products))
				}
				for i, name := range []string{"inner", "y", "gradient by inner", "dx"} {
					sameBits(t, name, h.read(got[i]), h.read(want[i]))
				}
				for i := range c.groups {
					sameBits(t, "gradient by a", h.read(gotA[i]), h.read(wantA[i]))
					sameBits(t, "gradient by b", h.read(gotB[i]), h.read(wantB[i]))
					if !c.hasRows() {
						continue
					}
					for _, first := range []struct{ got, a, b tensor.Tensor }{{firstA[i], products[2*i].A, products[2*i].B}, {firstB[i], products[2*i+1].A, products[2*i+1].B}} {
						zero := h.tensor(first.got.Rows, first.got.Cols, make([]float32, first.got.Rows*first.got.Cols))
						h.ok(d.OuterProduct(zero, first.a, first.b))
						sameBits(t, "first gradient", h.read(first.got), h.read(zero))
					}
				}
			})
		}
	}
}

// rowsAlone checks that any cut of the rows, down to each alone, gives the same bits.
func rowsAlone(t *testing.T, d tensor.Device) {
	const rows = 77
	for _, op := range rowOperations(start(t, d)) {
		t.Run(op.name, func(t *testing.T) {
			h := start(t, d)
			x, y := h.tensor(rows, op.in, normal(12, rows*op.in)), h.tensor(rows, op.out, make([]float32, rows*op.out))
			op.run(h, y, x)
			want := h.read(y)
			for _, cut := range []int{1, 2, 5, 8, 13, 50} {
				h.ok(d.Zero(y))
				for from := 0; from < rows; from += cut {
					to := min(from+cut, rows)
					op.run(h, y.Slice(from, to), x.Slice(from, to))
				}
				sameBits(t, fmt.Sprintf("in pieces of %d rows", cut), h.read(y), want)
			}
		})
	}
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		t.Run(fmt.Sprintf("matrix in views %v", dtype), func(t *testing.T) {
			const out, in = 5*tensor.MatrixRows/2 + 7, 61
			h := start(t, d)
			m := h.matrix(dtype, out, in, normal(16, out*in))
			x, dy := h.tensor(rows, in, normal(17, rows*in)), h.tensor(rows, out, normal(18, rows*out))
			y, dx := h.tensor(rows, out, make([]float32, rows*out)), h.tensor(rows, in, make([]float32, rows*in))
			y2, dx2 := h.tensor(rows, out, make([]float32, rows*out)), h.tensor(rows, in, make([]float32, rows*in))
			h.ok(d.MatMul(y, x, m, false))
			h.ok(d.MatMulTransposed(dx, dy, m, false))
			for from := 0; from < out; from += tensor.MatrixRows {
				part := m.Rows(from, min(from+tensor.MatrixRows, out))
				h.ok(d.MatMul(y2.Columns(from, from+part.Out()), x, part, false))
				h.ok(d.MatMulTransposed(dx2, dy.Columns(from, from+part.Out()), part, from > 0))
				part.Free() // a view owns nothing
			}
			sameBits(t, "y", h.read(y2), h.read(y))
			sameBits(t, "dx", h.read(dx2), h.read(dx))
			for _, r := range [][2]int{{1, out}, {-tensor.MatrixRows, out}, {0, out + 1}, {0, 0}, {2 * tensor.MatrixRows, tensor.MatrixRows}} {
				if m.Rows(r[0], r[1]) != nil {
					t.Errorf("rows %d to %d of %d were given", r[0], r[1], out)
				}
			}
		})
	}
	t.Run("outer product", func(t *testing.T) {
		const p, q = 45, 70
		h := start(t, d)
		for _, s := range [][2]int{{p, q}, {q, 8}, {8, q}} {
			a, b := h.tensor(rows, s[0], normal(13, rows*s[0])), h.tensor(rows, s[1], normal(14, rows*s[1]))
			whole, parts := h.tensor(s[0], s[1], normal(15, s[0]*s[1])), h.tensor(s[0], s[1], normal(15, s[0]*s[1]))
			h.ok(d.OuterProduct(whole, a, b))
			for from := 0; from < rows; from += 9 {
				to := min(from+9, rows)
				h.ok(d.OuterProduct(parts, a.Slice(from, to), b.Slice(from, to)))
			}
			sameBits(t, "rows in pieces", h.read(parts), h.read(whole))
		}
	})
	t.Run("outer products with rows apart", func(t *testing.T) {
		h := start(t, d)
		for _, s := range [][2]int{{45, 70}, {70, 8}, {8, 70}, {32, 200}, {200, 32}} {
			for _, r := range []struct {
				rows, apart int
				first       bool
			}{{1, 1, false}, {2, 1, true}, {40, 31, false}, {140, 10, true}, {290, 280, true}, {290, 150, false}, {129, 129, false}} {
				size := s[0] * s[1]
				a, b := h.tensor(r.rows, s[0], normal(13, r.rows*s[0])), h.tensor(r.rows, s[1], normal(14, r.rows*s[1]))
				start := normal(15, size)
				if r.first {
					start = make([]float32, size)
				}
				want, own := h.tensor(s[0], s[1], start), h.tensor(s[0], s[1], make([]float32, size))
				from := r.rows - r.apart
				h.ok(d.OuterProduct(want, a.Slice(0, from), b.Slice(0, from)))
				h.ok(d.OuterProduct(own, a.Slice(from, r.rows), b.Slice(from, r.rows)))
				h.ok(d.Add(want, own))
				if r.first {
					start = slices.Repeat([]float32{float32(math.NaN())}, size)
				}
				got := h.tensor(s[0], s[1], start)
				h.ok(d.OuterProducts([]tensor.OuterProduct{{G: got, A: a, B: b, First: r.first, Apart: r.apart}}))
				sameBits(t, fmt.Sprintf("%v, %+v", s, r), h.read(got), h.read(want))
			}
		}
	})
}

// notFinite checks that a NaN or an infinity in one row reaches no other row, and does reach its own.
func notFinite(t *testing.T, d tensor.Device) {
	const rows, bad = 29, 14
	for _, op := range rowOperations(start(t, d)) {
		for _, value := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			t.Run(fmt.Sprintf("%s %v", op.name, value), func(t *testing.T) {
				h := start(t, d)
				values := normal(16, rows*op.in)
				y := h.tensor(rows, op.out, make([]float32, rows*op.out))
				op.run(h, y, h.tensor(rows, op.in, values))
				clean := h.read(y)
				values[bad*op.in+5] = float32(value)
				op.run(h, y, h.tensor(rows, op.in, values))
				got := h.read(y)
				sameBits(t, "rows before", got[:bad*op.out], clean[:bad*op.out])
				sameBits(t, "rows after", got[(bad+1)*op.out:], clean[(bad+1)*op.out:])
				if math.IsNaN(value) {
					var seen bool
					for _, v := range got[bad*op.out : (bad+1)*op.out] {
						seen = seen || math.IsNaN(float64(v))
					}
					if !seen {
						t.Error("the NaN is gone")
					}
				}
			})
		}
	}
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		t.Run(fmt.Sprintf("attention %v", dtype), func(t *testing.T) { // a key's NaN reaches the rows that see it, not those before, nor another sequence
			s := attentionShape{[]int{40, 90}, 4, 2, 32, dtype}
			q, k, v, _ := s.inputs()
			h := start(t, d)
			clean := h.read(s.forward(h, q, k, v).o)
			for _, target := range [][]float32{k, v} {
				row, width := 40+20, s.heads*s.headDim
				old := target[row*width]
				target[row*width] = float32(math.NaN())
				got := h.read(s.forward(h, q, k, v).o)
				target[row*width] = old
				qw := s.queryHeads * s.headDim
				sameBits(t, "rows before", got[:row*qw], clean[:row*qw])
				for r := row; r < s.rows(); r++ {
					if !math.IsNaN(float64(got[r*qw])) {
						t.Fatalf("row %d does not show the NaN that it attends to", r)
					}
				}
			}
		})
	}
	t.Run("sum of squares", func(t *testing.T) {
		h := start(t, d)
		for _, value := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat32} {
			x := normal(17, 3*1000)
			x[2345] = float32(value)
			sums := h.sumSquares(h.tensor(2, 1000, normal(18, 2000)), h.tensor(3, 1000, x))
			if math.IsNaN(sums[0]) || math.IsInf(sums[0], 0) {
				t.Errorf("with %g in another tensor: %g", value, sums[0])
			}
			sum := sums[1]
			if finite := !math.IsNaN(sum) && !math.IsInf(sum, 0); finite != (value == math.MaxFloat32) {
				t.Errorf("with %g: %g", value, sum)
			}
		}
	})
}

// gradients checks backward operations against central differences of the device's own forward operations.
func gradients(t *testing.T, d tensor.Device) {
	const step = 1e-2
	// compare checks the directional derivative of f along several directions.
	compare := func(t *testing.T, f func(x []float32) []float32, x, dy, dx []float32) {
		t.Helper()
		for trial := range 4 {
			direction := normal(uint64(50+trial), len(x))
			up, down := make([]float32, len(x)), make([]float32, len(x))
			var want float64
			for i := range x {
				up[i], down[i] = x[i]+step*direction[i], x[i]-step*direction[i]
				want += float64(dx[i]) * (float64(up[i]) - float64(down[i]))
			}
			a, b := f(up), f(down)
			var got float64
			for i := range a {
				got += float64(dy[i]) * (float64(a[i]) - float64(b[i]))
			}
			if math.Abs(got-want) > 0.02*math.Max(math.Abs(want), step*math.Sqrt(float64(len(x)))) {
				t.Errorf("direction %d: difference %g, gradient gives %g", trial, got, want)
			}
		}
	}
	const rows, cols = 6, 50
	x, dy, weight := normal(20, rows*cols), normal(21, rows*cols), normal(22, cols)
	t.Run("rms norm", func(t *testing.T) {
		h := start(t, d)
		w := h.tensor(1, cols, weight)
		dx := h.tensor(rows, cols, dy)
		h.ok(d.RMSNormBackward(dx, dx, h.tensor(rows, cols, x), w, normEps, false))
		compare(t, func(x []float32) []float32 {
			y := h.tensor(rows, cols, x)
			h.ok(d.RMSNorm(y, y, w, normEps))
			return h.read(y)
		}, x, dy, h.read(dx))
	})
	t.Run("swiglu", func(t *testing.T) {
		h := start(t, d)
		both := append(append([]float32(nil), x...), normal(23, rows*cols)...)
		n := rows * cols
		gate, up := h.tensor(rows, cols, both[:n]), h.tensor(rows, cols, both[n:])
		h.ok(d.SwiGLUBackward(gate, up, h.tensor(rows, cols, dy), gate, up))
		compare(t, func(x []float32) []float32 {
			y := h.tensor(rows, cols, x[:n])
			h.ok(d.SwiGLU(y, y, h.tensor(rows, cols, x[n:])))
			return h.read(y)
		}, both, dy, append(h.read(gate), h.read(up)...))
	})
	t.Run("matmul", func(t *testing.T) {
		h := start(t, d)
		const out = 37
		m, g := h.matrix(tensor.Float32, out, cols, normal(24, out*cols)), normal(25, rows*out)
		dx := h.tensor(rows, cols, x)
		h.ok(d.MatMulTransposed(dx, h.tensor(rows, out, g), m, false))
		compare(t, func(x []float32) []float32 {
			y := h.tensor(rows, out, make([]float32, rows*out))
			h.ok(d.MatMul(y, h.tensor(rows, cols, x), m, false))
			return h.read(y)
		}, x, g, h.read(dx))
	})
	t.Run("log-probability", func(t *testing.T) {
		h := start(t, d)
		targets := []int32{3, 49, 0, 3, 17, 20}
		c := normal(26, rows)
		lse, logits := h.tensor(rows, 1, make([]float32, rows)), h.tensor(rows, cols, x)
		h.ok(d.LogSumExp(lse, logits))
		h.ok(d.SoftmaxGradient(logits, lse, targets, c))
		compare(t, func(x []float32) []float32 {
			h.ok(d.LogSumExp(lse, h.tensor(rows, cols, x)))
			p := h.read(lse)
			for r := range p {
				p[r] = x[r*cols+int(targets[r])] - p[r]
			}
			return p
		}, x, c, h.read(logits))
	})
	t.Run("attention", func(t *testing.T) {
		h := start(t, d)
		s := attentionShape{[]int{9, 70}, 4, 2, 16, tensor.Float32}
		q, k, v, do := s.inputs()
		a := s.forward(h, q, k, v)
		rows, qw, kw := s.rows(), s.queryHeads*s.headDim, s.heads*s.headDim
		dq, dk, dv := h.tensor(rows, qw, q), h.tensor(rows, kw, k), h.tensor(rows, kw, v)
		h.ok(d.AttentionBackward(dq, dk, dv, h.tensor(rows, qw, do), a.o, a.lse, a.q, a.pages, attentionLayer, a.runs, s.queryHeads, s.scale()))
		join := func(a, b, c []float32) []float32 { return append(append(append([]float32(nil), a...), b...), c...) }
		compare(t, func(x []float32) []float32 {
			return h.read(s.forward(h, x[:len(q)], x[len(q):len(q)+len(k)], x[len(q)+len(k):]).o)
		}, join(q, k, v), do, join(h.read(dq), h.read(dk), h.read(dv)))
	})
}
