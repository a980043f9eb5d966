package optest

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// routedSegments checks that routed products with segments have the bits of plain ones with them, those that continue one another too, and that products of what experts gave with its gradient are the sums of their segments, added as the
// tree says. Ranks that have some of the segments have subtrees: widths are how many ranks there are.
func routedSegments(t *testing.T, d tensor.Device, m mixture, logits []float32, widths ...int) {
	rows, first := m.sorted(logits)
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, ranks := range widths {
			t.Run(fmt.Sprintf("%v over %d", dtype, ranks), func(t *testing.T) {
				h := start(t, d)
				r := h.routed(m, logits)
				one, other := h.stack(dtype, m.experts, m.out, m.in, normal(81, m.experts*m.out*m.in)), h.stack(dtype, m.experts, m.out-16, m.in, normal(82, m.experts*(m.out-16)*m.in))
				x, dy, dother := h.view(m.tokens, m.in, normal(83, m.tokens*m.in)), h.view(len(rows), m.out, normal(84, len(rows)*m.out)), h.view(len(rows), m.out-16, normal(85, len(rows)*(m.out-16)))
				inner, _ := tensor.RankSegments(m.in, 0, 1)
				if ranks > 1 {
					inner = tensor.Segments{Count: tensor.MaxSegments / ranks} // any even ends will do
					for i := range inner.Count {
						inner.Ends[i] = int32((i + 1) * m.in / inner.Count &^ 1)
					}
					inner.Ends[inner.Count-1] = int32(m.in)
				}
				scaled := func(n int) tensor.Segments {
					s := tensor.Segments{Count: inner.Count}
					for i := range s.Count {
						s.Ends[i] = int32(int(inner.Ends[i]) * n / m.in &^ 1)
					}
					s.Ends[s.Count-1] = int32(n)
					return s
				}
				whole := func(s tensor.Stack) []tensor.RoutedGroup { return []tensor.RoutedGroup{{To: m.tokens, Stack: s}} }
				y, dx := h.view(len(rows), m.out, make([]float32, len(rows)*m.out)), h.view(len(rows), m.in, make([]float32, len(rows)*m.in))
				h.ok(d.MatMulRouted(r.table, tensor.RoutedProduct{Y: y, X: x, Gathered: true, Groups: whole(one), Segments: inner}))
				h.ok(d.MatMulRouted(r.table, tensor.RoutedProduct{Y: dx, X: dy, Transposed: true, Groups: whole(one), Segments: scaled(m.out)},
					tensor.RoutedProduct{Y: dx, X: dother, Transposed: true, Groups: whole(other), Segments: scaled(m.out - 16), Continues: true}))
				got, back := h.read(y), h.read(dx)
				y1, dx1 := h.view(1, m.out, make([]float32, m.out)), h.view(1, m.in, make([]float32, m.in))
				for e := range m.experts {
					group := func(s tensor.Stack) []tensor.RowGroup { return []tensor.RowGroup{{To: 1, Matrix: s.Of(e)}} }
					for i := first[e]; i < first[e+1]; i++ {
						h.ok(d.MatMuls([]tensor.Multiplication{{Y: y1, X: x.Slice(rows[i][0], rows[i][0]+1), Groups: group(one), Segments: inner},
							{Y: dx1, X: dy.Slice(i, i+1), Groups: group(one), Segments: scaled(m.out), Transposed: true},
							{Y: dx1, X: dother.Slice(i, i+1), Groups: group(other), Segments: scaled(m.out - 16), Transposed: true, Continues: true}}))
						sameBits(t, fmt.Sprintf("row %d", i), got[i*m.out:(i+1)*m.out], h.read(y1))
						sameBits(t, fmt.Sprintf("row %d back", i), back[i*m.in:(i+1)*m.in], h.read(dx1))
					}
				}
			})
		}
	}
	for _, ranks := range widths {
		t.Run(fmt.Sprintf("combine backward over %d", ranks), func(t *testing.T) { combinedSegments(t, d, m, logits, ranks) })
	}
}

// combinedSegments checks CombineBackward with segments of a width against that without, of each of them.
func combinedSegments(t *testing.T, d tensor.Device, m mixture, logits []float32, ranks int) {
	const width = 150
	h := start(t, d)
	r := h.routed(m, logits)
	n := r.table.Rows()
	drows, values, p := normal(86, n*width), h.view(n, width, normal(87, n*width)), h.view(m.tokens, m.slots, normal(88, m.tokens*m.slots))
	fresh := func() tensor.Tensor { return h.view(m.tokens, m.slots, make([]float32, m.tokens*m.slots)) }
	for rank := range ranks {
		cut, from, to := axisOf(width, rank, ranks)
		dp, got := fresh(), h.view(n, width, drows)
		h.ok(d.CombineBackward(dp, got.Columns(from, to), values.Columns(from, to), p, r.table, cut))
		var sums []tensor.Tensor
		want := h.view(n, width, drows)
		for i, at := 0, from; i < cut.Count; i++ {
			end, sum := from+int(cut.Ends[i]), fresh()
			if end > at {
				h.ok(d.CombineBackward(sum, want.Columns(at, end), values.Columns(at, end), p, r.table, tensor.Segments{}))
			}
			sums, at = append(sums, sum), end
		}
		sameBits(t, fmt.Sprintf("products of rank %d", rank), h.read(dp), h.read(tree(h, sums)))
		sameBits(t, fmt.Sprintf("gradients of rank %d", rank), h.read(got), h.read(want))
	}
}
