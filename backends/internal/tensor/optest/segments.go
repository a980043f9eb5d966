package optest

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// segmentShapes are products of which the inner axis has segments: k forward, n transposed. Segments begin and end anywhere in what kernels take at once, and some are empty.
var segmentShapes = []shape{
	{1, 40, 64}, {1, 300, 2048}, {1, 130, 1000}, {2, 33, 97}, {5, 96, 130}, {7, 64, 1026}, {8, 200, 24}, {12, 256, 512}, {13, 70, 1025}, {25, 1030, 40}, {40, 8, 300}, {64, 320, 2200},
	{3, 16, 5}, {30, 2, 3}, {130, 1500, 90}, {530, 2050, 33}, {260, 129, 260},
}

// tree adds sums of segments.
func tree(h *bench, sums []tensor.Tensor) tensor.Tensor {
	for len(sums) > 1 {
		for i := range len(sums) / 2 {
			h.ok(h.d.Add(sums[2*i], sums[2*i+1]))
			sums[i] = sums[2*i]
		}
		sums = sums[:len(sums)/2]
	}
	return sums[0]
}

// segmented checks that products with segments are the chains of the segments, added as the tree says; those of products that continue one another too. Ranks that have some of the segments have subtrees: widths are how many ranks there are.
func segmented(t *testing.T, d tensor.Device, widths ...int) {
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for i, s := range segmentShapes {
			for _, ranks := range widths {
				t.Run(fmt.Sprintf("%v %d×%d×%d over %d", dtype, s.m, s.n, s.k, ranks), func(t *testing.T) { segmentsOf(t, d, dtype, s, ranks, uint64(700+10*i)) })
			}
		}
	}
}

// axis is the inner axis of a rank: elements of the whole one, in segments.
func axisOf(n, rank, ranks int) (cut tensor.Segments, from, to int) {
	cut, from = tensor.RankSegments(n, rank, ranks)
	return cut, from, from + int(cut.Ends[cut.Count-1])
}

func segmentsOf(t *testing.T, d tensor.Device, dtype tensor.DType, s shape, ranks int, seed uint64) {
	h := start(t, d)
	x, w, dy := normal(seed, s.m*s.k), normal(seed+1, s.n*s.k), normal(seed+2, s.m*s.n)
	other := shape{s.m, max(1, s.n/3), s.k} // what continues
	dother, wother := normal(seed+3, other.m*other.n), normal(seed+4, other.n*other.k)
	columns := func(v []float32, cols, from, to int) []float32 {
		var part []float32
		for at := 0; at < len(v); at += cols {
			part = append(part, v[at+from:at+to]...)
		}
		return part
	}
	for rank := range ranks {
		var chains, back, both []tensor.Tensor
		kCut, kFrom, kTo := axisOf(s.k, rank, ranks)
		nCut, nFrom, nTo := axisOf(s.n, rank, ranks)
		oCut, oFrom, oTo := axisOf(other.n, rank, ranks)
		before := func(cut tensor.Segments, i int) int {
			if i == 0 {
				return 0
			}
			return int(cut.Ends[i-1])
		}
		for i := range kCut.Count { // each segment by itself
			from, to := kFrom+before(kCut, i), kFrom+int(kCut.Ends[i])
			y := h.view(s.m, s.n, make([]float32, s.m*s.n))
			if to > from {
				h.ok(d.MatMul(y, h.view(s.m, to-from, columns(x, s.k, from, to)), h.matrix(dtype, s.n, to-from, columns(w, s.k, from, to)), false))
			}
			chains = append(chains, y)

			from, to = nFrom+before(nCut, i), nFrom+int(nCut.Ends[i])
			dx, d2 := h.view(s.m, s.k, make([]float32, s.m*s.k)), h.view(s.m, s.k, make([]float32, s.m*s.k))
			if to > from {
				h.ok(d.MatMulTransposed(dx, h.view(s.m, to-from, columns(dy, s.n, from, to)), h.matrix(dtype, to-from, s.k, w[from*s.k:to*s.k]), false))
				h.ok(d.Round(d2, dx))
			}
			from, to = oFrom+before(oCut, i), oFrom+int(oCut.Ends[i])
			if to > from {
				h.ok(d.MatMulTransposed(d2, h.view(s.m, to-from, columns(dother, other.n, from, to)), h.matrix(dtype, to-from, s.k, wother[from*s.k:to*s.k]), true))
			}
			back, both = append(back, dx), append(both, d2)
		}
		yWant, dxWant, bothWant := h.read(tree(h, chains)), h.read(tree(h, back)), h.read(tree(h, both))
		rowsX, rowsDY, rowsOther := columns(x, s.k, kFrom, kTo), columns(dy, s.n, nFrom, nTo), columns(dother, other.n, oFrom, oTo)
		weights, turned, others := h.matrix(dtype, s.n, kTo-kFrom, columns(w, s.k, kFrom, kTo)), h.matrix(dtype, nTo-nFrom, s.k, w[nFrom*s.k:nTo*s.k]), h.matrix(dtype, oTo-oFrom, s.k, wother[oFrom*s.k:oTo*s.k])
		for _, m := range []int{s.m, 1, min(s.m, 2)} { // whatever the rows
			y, dx, d2 := h.view(m, s.n, normal(seed+5, m*s.n)), h.view(m, s.k, normal(seed+6, m*s.k)), h.view(m, s.k, normal(seed+7, m*s.k))
			xIn, dyIn, otherIn := h.view(m, kTo-kFrom, rowsX[:m*(kTo-kFrom)]), h.view(m, nTo-nFrom, rowsDY[:m*(nTo-nFrom)]), h.view(m, oTo-oFrom, rowsOther[:m*(oTo-oFrom)])
			all := func(w tensor.Matrix) []tensor.RowGroup { return []tensor.RowGroup{{To: m, Matrix: w}} }
			h.ok(d.MatMuls([]tensor.Multiplication{
				{Y: y, X: xIn, Groups: all(weights), Segments: kCut},
				{Y: dx, X: dyIn, Groups: all(turned), Segments: nCut, Transposed: true},
				{Y: d2, X: dyIn, Groups: all(turned), Segments: nCut, Transposed: true},
				{Y: d2, X: otherIn, Groups: all(others), Segments: oCut, Transposed: true, Continues: true},
			}))
			sameBits(t, fmt.Sprintf("forward, %d rows of rank %d", m, rank), h.read(y), yWant[:m*s.n])
			sameBits(t, fmt.Sprintf("transposed, %d rows of rank %d", m, rank), h.read(dx), dxWant[:m*s.k])
			sameBits(t, fmt.Sprintf("continued, %d rows of rank %d", m, rank), h.read(d2), bothWant[:m*s.k])
		}
	}
}

// segmentedLogits checks log-sum-exps of segments against those of their columns.
func segmentedLogits(t *testing.T, d tensor.Device) {
	for _, s := range [][2]int{{3, 97}, {1, 5}, {2, 40000}, {9, 4098}} {
		h := start(t, d)
		logits := h.view(s[0], s[1], normal(3, s[0]*s[1]))
		for _, ranks := range []int{1, 2, 4, 8} {
			for rank := range ranks {
				cut, from, to := axisOf(s[1], rank, ranks)
				if from == to {
					continue
				}
				got := h.view(s[0], cut.Count, normal(4, s[0]*cut.Count))
				h.ok(d.LogSumExps(got, logits.Columns(from, to), cut))
				for i, at := 0, 0; i < cut.Count; i++ {
					end := int(cut.Ends[i])
					if end > at {
						want := h.view(s[0], 1, make([]float32, s[0]))
						h.ok(d.LogSumExp(want, logits.Columns(from+at, from+end)))
						sameBits(t, fmt.Sprintf("%d×%d segment %d of rank %d of %d", s[0], s[1], i, rank, ranks), h.read(got.Columns(i, i+1)), h.read(want))
					}
					at = end
				}
			}
		}
	}
}

// keyParts checks that parts of a key head's gradients are those that its query heads give when they are all that there are.
func keyParts(t *testing.T, d tensor.Device) {
	const rows, keyHeads, queryHeads, dim, parts = 70, 2, 8, 16, 2
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		h := start(t, d)
		run := []tensor.AttentionRun{{Count: rows, Pages: []int32{0, 1}}}
		q, k, v, do := normal(1, rows*queryHeads*dim), normal(2, rows*keyHeads*dim), normal(3, rows*keyHeads*dim), normal(4, rows*queryHeads*dim)
		// gradients are dq, dk and dv for some of the query heads, and the key heads that these have.
		gradients := func(queries, keys [2]int, parts int) (dq, dk, dv tensor.Tensor) {
			nq, nk := queries[1]-queries[0], keys[1]-keys[0]
			p, err := d.NewPages(dtype, 1, 2, nk, dim)
			h.ok(err)
			t.Cleanup(p.Free)
			zeros := func(cols int) tensor.Tensor { return h.view(rows, cols, make([]float32, rows*cols)) }
			wide := func(values []float32, cols, from, to int) tensor.Tensor {
				return h.view(rows, cols, values).Columns(from*dim, to*dim)
			}
			h.ok(d.WritePages(p, 0, wide(k, keyHeads*dim, keys[0], keys[1]), wide(v, keyHeads*dim, keys[0], keys[1]), run))
			o, lse := zeros(nq*dim), zeros(nq)
			own := wide(q, queryHeads*dim, queries[0], queries[1])
			h.ok(d.Attention(o, lse, own, p, 0, run, nq, 0.25))
			dq, dk, dv = zeros(nq*dim), zeros(parts*nk*dim), zeros(parts*nk*dim)
			h.ok(d.AttentionBackward(dq, dk, dv, wide(do, queryHeads*dim, queries[0], queries[1]), o, lse, own, p, 0, run, nq, 0.25))
			return
		}
		dq, dk, dv := gradients([2]int{0, queryHeads}, [2]int{0, keyHeads}, parts)
		const each = queryHeads / keyHeads / parts
		for part := range parts * keyHeads {
			oq, ok, ov := gradients([2]int{part * each, (part + 1) * each}, [2]int{part / parts, part/parts + 1}, 1)
			sameBits(t, "dq", h.read(dq.Columns(part*each*dim, (part+1)*each*dim)), h.read(oq))
			sameBits(t, "dk", h.read(dk.Columns(part*dim, (part+1)*dim)), h.read(ok))
			sameBits(t, "dv", h.read(dv.Columns(part*dim, (part+1)*dim)), h.read(ov))
		}
	}
}
