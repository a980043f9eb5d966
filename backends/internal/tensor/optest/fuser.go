package optest

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// fused checks that operations which are one have the bits of those that they stand for.
func fused(t *testing.T, f tensor.Fuser, d tensor.Device, shapes [][2]int, heads []headsShape) {
	for i, s := range shapes {
		for _, contiguous := range []bool{false, true} {
			for _, to := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
				t.Run(fmt.Sprintf("%d×%d to %v contiguous %v", s[0], s[1], to, contiguous), func(t *testing.T) {
					fusedRows(start(t, d), f, s[0], s[1], uint64(3000+10*i), to, contiguous)
				})
			}
		}
	}
	for _, s := range heads {
		t.Run("heads "+s.String(), func(t *testing.T) { s.check(start(t, d), f) })
	}
}

var fusedRowShapes = [][2]int{{1, 1}, {3, 17}, {2, 64}, {5, 256}, {2, 257}, {3, 1024}, {2, 4100}, {1, 9000}, {0, 8}}

// fusedRows checks a norm after a sum, and what may be written as bfloat16.
func fusedRows(h *bench, f tensor.Fuser, rows, cols int, seed uint64, to tensor.DType, contiguous bool) {
	n := rows * cols
	x, y, z := normal(seed, n), normal(seed+1, n), normal(seed+2, n)
	held := h.view
	if contiguous {
		held = h.tensor
	}
	weight := h.tensor(1, cols, normal(seed+3, cols))
	out := h.of(to, rows, cols, z)
	if !contiguous {
		out = h.of(to, rows, cols+5, make([]float32, rows*(cols+5))).Columns(1, 1+cols)
	}
	want := func(op func(y tensor.Tensor) error) []float32 {
		r := held(rows, cols, z)
		h.ok(op(r))
		return h.read(h.widened(h.of(to, rows, cols, h.read(r))))
	}

	sum, plain := held(rows, cols, x), held(rows, cols, x)
	h.ok(f.AddRMSNorm(out, sum, held(rows, cols, y), weight, normEps))
	h.ok(h.d.Add(plain, held(rows, cols, y)))
	sameBits(h.t, "sum", h.read(sum), h.read(plain))
	sameBits(h.t, "norm of the sum", h.read(h.widened(out)), want(func(y tensor.Tensor) error { return h.d.RMSNorm(y, plain, weight, normEps) }))
	h.ok(h.d.RMSNorm(out, held(rows, cols, z), weight, normEps))
	sameBits(h.t, "norm", h.read(h.widened(out)), want(func(y tensor.Tensor) error { return h.d.RMSNorm(y, held(rows, cols, z), weight, normEps) }))
	h.ok(h.d.SwiGLU(out, held(rows, cols, x), held(rows, cols, y)))
	gated := want(func(o tensor.Tensor) error { return h.d.SwiGLU(o, held(rows, cols, x), held(rows, cols, y)) })
	sameBits(h.t, "swiglu", h.read(h.widened(out)), gated)

	half := func(values []float32) tensor.Tensor {
		if contiguous {
			return h.of(tensor.BFloat16, rows, cols, values)
		}
		wide := h.of(tensor.BFloat16, rows, cols+3, make([]float32, rows*(cols+3))).Columns(2, 2+cols)
		h.ok(h.d.Round(wide, h.tensor(rows, cols, values)))
		return wide
	}
	gate, up := half(z), half(z)
	h.ok(h.d.Round(out, h.tensor(rows, cols, z)))
	h.ok(f.SwiGLUKeep(out, gate, up, held(rows, cols, x), held(rows, cols, y)))
	sameBits(h.t, "swiglu that keeps", h.read(h.widened(out)), gated)
	wideGate, wideUp := h.widened(half(x)), h.widened(half(y))
	sameBits(h.t, "kept gate", h.read(h.widened(gate)), h.read(wideGate))
	sameBits(h.t, "kept up", h.read(h.widened(up)), h.read(wideUp))
	h.ok(h.d.SwiGLU(out, gate, up))
	sameBits(h.t, "swiglu of what was kept", h.read(h.widened(out)), want(func(o tensor.Tensor) error { return h.d.SwiGLU(o, wideGate, wideUp) }))
	dgate, dup := held(rows, cols, x), held(rows, cols, z)
	h.ok(h.d.SwiGLUBackward(dgate, dup, dup, gate, up))
	h.ok(h.d.SwiGLUBackward(wideGate, wideUp, held(rows, cols, z), wideGate, wideUp))
	sameBits(h.t, "gradient by the gate of what was kept", h.read(dgate), h.read(wideGate))
	sameBits(h.t, "gradient by up of what was kept", h.read(dup), h.read(wideUp))
}

// of holds values as a type.
func (h *bench) of(d tensor.DType, rows, cols int, values []float32) tensor.Tensor {
	h.t.Helper()
	x := h.tensor(rows, cols, values)
	if d == tensor.Float32 {
		return x
	}
	y, err := h.d.Alloc(d, rows, cols)
	h.ok(err)
	h.t.Cleanup(func() { h.d.Free(y) })
	h.ok(h.d.Round(y, x))
	return y
}

// widened is a copy in float32.
func (h *bench) widened(x tensor.Tensor) tensor.Tensor {
	h.t.Helper()
	y := h.tensor(x.Rows, x.Cols, make([]float32, x.Rows*x.Cols))
	h.ok(h.d.Round(y, x))
	return y
}

// headsShape is heads of a batch; the first turned elements of each turn.
type headsShape struct {
	attentionShape
	turned int
	norms  bool
}

func (s headsShape) String() string {
	return fmt.Sprintf("%v turned %d norms %v", s.attentionShape, s.turned, s.norms)
}

var headsShapes = []headsShape{
	{attentionShape{[]int{1}, 1, 1, 2, tensor.Float32}, 2, true},
	{attentionShape{[]int{3, 0, 70}, 3, 1, 40, tensor.BFloat16}, 24, true},
	{attentionShape{[]int{9, 5}, 4, 2, 64, tensor.BFloat16}, 64, false},
	{attentionShape{[]int{65, 2}, 2, 2, 128, tensor.BFloat16}, 128, true},
	{attentionShape{[]int{17}, 14, 2, 36, tensor.BFloat16}, 36, true}, // not for tensor cores
	{attentionShape{[]int{9, 2}, 2, 1, 256, tensor.BFloat16}, 64, true},
	{attentionShape{[]int{0}, 2, 1, 16, tensor.Float32}, 16, true},
}

func (s headsShape) check(h *bench, f tensor.Fuser) {
	const nowhere = 3 // rows of no run, at the end
	runs, count := s.runs()
	rows, qw, kw := s.rows()+nowhere, s.queryHeads*s.headDim, s.heads*s.headDim
	q, k, v := normal(4000, rows*qw), normal(4001, rows*kw), normal(4002, rows*kw)
	do, dq, dk := normal(4003, rows*qw), normal(4004, rows*qw), normal(4005, rows*kw)
	positions := make([]int32, rows)
	for i := range positions {
		positions[i] = int32(i * 7 % 30)
	}
	heads := tensor.Heads{QueryHeads: s.queryHeads, KeyHeads: s.heads, Positions: positions, Table: h.tensor(30, s.turned, ropeTable(30, s.turned))}
	if s.norms {
		heads.QueryNorm = tensor.HeadNorm{Weight: h.tensor(1, s.headDim, normal(4006, s.headDim)), Eps: normEps}
		heads.KeyNorm = tensor.HeadNorm{Weight: h.tensor(1, s.headDim, normal(4007, s.headDim)), Eps: 2 * normEps}
	}
	perHead := func(x tensor.Tensor) tensor.Tensor { return x.Reshape(x.Rows*x.Cols/s.headDim, s.headDim) }
	norm := func(x tensor.Tensor, n tensor.HeadNorm) {
		if n.Weight.Buffer != nil {
			h.ok(h.d.RMSNorm(perHead(x), perHead(x), n.Weight, n.Eps))
		}
	}
	newPages := func() tensor.Pages {
		pages, err := h.d.NewPages(s.dtype, 2, count, s.heads, s.headDim)
		h.ok(err)
		h.t.Cleanup(pages.Free)
		return pages
	}
	// results are what shows which queries, keys and values attention found, forward and backward.
	results := func(q tensor.Tensor, pages tensor.Pages) [][]float32 {
		o, lse := h.tensor(rows, qw, make([]float32, rows*qw)), h.tensor(rows, s.queryHeads, make([]float32, rows*s.queryHeads))
		h.ok(h.d.Attention(o, lse, q, pages, attentionLayer, runs, s.queryHeads, s.scale()))
		a, b, c := h.tensor(rows, qw, make([]float32, rows*qw)), h.tensor(rows, kw, make([]float32, rows*kw)), h.tensor(rows, kw, make([]float32, rows*kw))
		h.ok(h.d.AttentionBackward(a, b, c, h.tensor(rows, qw, do), o, lse, q, pages, attentionLayer, runs, s.queryHeads, s.scale()))
		return [][]float32{h.read(o), h.read(lse), h.read(a), h.read(b), h.read(c)}
	}

	// keeping checks that attention which keeps its output gives it rounded, and that the gradient takes that.
	keeping := func(q tensor.Tensor, pages tensor.Pages, want [][]float32) {
		room, lse := h.view(rows, qw, do), h.tensor(rows, s.queryHeads, make([]float32, rows*s.queryHeads))
		kept := h.of(tensor.BFloat16, rows, qw+7, make([]float32, rows*(qw+7))).Columns(3, 3+qw)
		h.ok(f.AttentionKeep(kept, room, lse, q, pages, attentionLayer, runs, s.queryHeads, s.scale()))
		wide := h.widened(h.of(tensor.BFloat16, rows, qw, want[0])) // rows of no run are zero
		sameBits(h.t, "kept output", h.read(h.widened(kept)), h.read(wide))
		sameBits(h.t, "log-sum-exp beside a kept output", h.read(lse), want[1])
		backward := func(o tensor.Tensor) [][]float32 {
			a, b, c := h.tensor(rows, qw, make([]float32, rows*qw)), h.tensor(rows, kw, make([]float32, rows*kw)), h.tensor(rows, kw, make([]float32, rows*kw))
			h.ok(h.d.AttentionBackward(a, b, c, h.tensor(rows, qw, do), o, lse, q, pages, attentionLayer, runs, s.queryHeads, s.scale()))
			return [][]float32{h.read(a), h.read(b), h.read(c)}
		}
		separate := backward(wide)
		for i, got := range backward(kept) {
			sameBits(h.t, fmt.Sprintf("gradient %d by a kept output", i), got, separate[i])
		}
	}

	plainQ, plainK, plainPages := h.tensor(rows, qw, q), h.tensor(rows, kw, k), newPages()
	norm(plainQ, heads.QueryNorm)
	norm(plainK, heads.KeyNorm)
	h.ok(h.d.Rope(plainQ, positions, heads.Table, s.queryHeads, false))
	h.ok(h.d.Rope(plainK, positions, heads.Table, s.heads, false))
	h.ok(h.d.WritePages(plainPages, attentionLayer, plainK, h.tensor(rows, kw, v), runs))
	want := results(plainQ, plainPages)

	heads.Queries, heads.Keys, heads.Values = h.view(rows, qw, q), h.view(rows, kw, k), h.view(rows, kw, v)
	pages := newPages()
	for _, out := range []tensor.Tensor{h.view(rows, qw, q), h.of(tensor.BFloat16, rows, qw, q), h.of(tensor.BFloat16, rows, qw+3, make([]float32, rows*(qw+3))).Columns(1, 1+qw), heads.Queries} {
		h.ok(f.TurnHeads(out, heads, pages, attentionLayer, runs))
		sameBits(h.t, "turned queries", h.read(h.widened(out)), h.read(h.widened(h.of(out.DType, rows, qw, h.read(plainQ)))))
		if out.DType != tensor.Float32 && out.DType != f.QueryType(pages) {
			continue
		}
		for i, got := range results(out, pages) {
			sameBits(h.t, fmt.Sprintf("result %d of attention with %v queries", i, out.DType), got, want[i])
		}
		if out.Buffer == heads.Queries.Buffer || out.DType == tensor.BFloat16 {
			keeping(out, pages, want)
		}
	}
	sameBits(h.t, "keys afterwards", h.read(heads.Keys), k)
	heads.Queries = h.view(rows, qw, q) // the first ones have been turned in place
	heads.KeptQueries = h.of(tensor.BFloat16, rows, qw+5, make([]float32, rows*(qw+5))).Columns(3, 3+qw)
	heads.KeptKeys = h.of(tensor.BFloat16, rows, kw, make([]float32, rows*kw))
	h.ok(f.TurnHeads(heads.Queries, heads, pages, attentionLayer, runs))
	roundedQ, roundedK := h.widened(h.of(tensor.BFloat16, rows, qw, q)), h.widened(h.of(tensor.BFloat16, rows, kw, k))
	sameBits(h.t, "turned queries that were kept as they had been", h.read(heads.Queries), h.read(plainQ))
	sameBits(h.t, "kept queries", h.read(h.widened(heads.KeptQueries)), h.read(roundedQ))
	sameBits(h.t, "kept keys", h.read(h.widened(heads.KeptKeys)), h.read(roundedK))

	heads.Values = tensor.Tensor{}
	for _, c := range []struct {
		what                       string
		queries, keys              tensor.Tensor
		separateQuery, separateKey tensor.Tensor
	}{
		{"", h.view(rows, qw, q), h.view(rows, kw, k), h.tensor(rows, qw, q), h.tensor(rows, kw, k)},
		{" by what was kept", heads.KeptQueries, heads.KeptKeys, roundedQ, roundedK},
	} {
		plainDQ, plainDK := h.tensor(rows, qw, dq), h.tensor(rows, kw, dk)
		h.ok(h.d.Rope(plainDQ, positions, heads.Table, s.queryHeads, true))
		h.ok(h.d.Rope(plainDK, positions, heads.Table, s.heads, true))
		if s.norms {
			h.ok(h.d.RMSNormBackward(perHead(plainDQ), perHead(plainDQ), perHead(c.separateQuery), heads.QueryNorm.Weight, heads.QueryNorm.Eps, false))
			h.ok(h.d.RMSNormBackward(perHead(plainDK), perHead(plainDK), perHead(c.separateKey), heads.KeyNorm.Weight, heads.KeyNorm.Eps, false))
		}
		heads.Queries, heads.Keys = c.queries, c.keys
		gotQ, gotK := h.view(rows, qw, dq), h.view(rows, kw, dk)
		h.ok(f.TurnHeadsBackward(gotQ, gotK, heads))
		sameBits(h.t, "gradient by queries"+c.what, h.read(gotQ), h.read(plainDQ))
		sameBits(h.t, "gradient by keys"+c.what, h.read(gotK), h.read(plainDK))
	}
}

// keptLong checks that the last rows of a sequence with a restart are kept as they are given, where a block has all keys and where it has a part of them.
func keptLong(t *testing.T, f tensor.Fuser, d tensor.Device) {
	for _, s := range []attentionShape{{[]int{2048 + 66}, 2, 1, 64, tensor.BFloat16}, {[]int{2048 + 66}, 2, 1, 128, tensor.BFloat16}, {[]int{2048 + 66}, 2, 1, 12, tensor.BFloat16}} {
		t.Run(s.String(), func(t *testing.T) {
			h := start(t, d)
			q, k, v, _ := s.inputs()
			pages, runs := s.written(h, k, v)
			qw, n := s.queryHeads*s.headDim, s.lengths[0]
			for _, last := range []int{5, 20} {
				o, lse := s.attendRows(h, q, pages, runs[0], n-last, n)
				kept, sums := h.of(tensor.BFloat16, last, qw, make([]float32, last*qw)), h.tensor(last, s.queryHeads, make([]float32, last*s.queryHeads))
				h.ok(f.AttentionKeep(kept, h.view(last, qw, q[:last*qw]), sums, h.tensor(last, qw, q[(n-last)*qw:]), pages, attentionLayer,
					[]tensor.AttentionRun{{Count: last, First: n - last, Pages: runs[0].Pages}}, s.queryHeads, s.scale()))
				sameBits(t, fmt.Sprintf("%d rows", last), h.read(h.widened(kept)), h.read(h.widened(h.of(tensor.BFloat16, last, qw, o))))
				sameBits(t, fmt.Sprintf("log-sum-exp of %d rows", last), h.read(sums), lse)
			}
		})
	}
}

// fusedRefusals checks what is not accepted.
func fusedRefusals(t *testing.T, f tensor.Fuser, d tensor.Device) {
	h := start(t, d)
	of := func(rows, cols int) tensor.Tensor { return h.tensor(rows, cols, make([]float32, rows*cols)) }
	x, weight := of(2, 8), of(1, 8)
	pages, err := d.NewPages(tensor.Float32, 1, 1, 1, 4)
	h.ok(err)
	t.Cleanup(pages.Free)
	runs := []tensor.AttentionRun{{Count: 2, Pages: []int32{0}}}
	heads := tensor.Heads{Queries: x, Keys: of(2, 4), Values: of(2, 4), QueryHeads: 2, KeyHeads: 1, Positions: []int32{0, 1}, Table: of(2, 4)}
	with := func(change func(h *tensor.Heads)) tensor.Heads {
		other := heads
		change(&other)
		return other
	}
	half := h.of(tensor.BFloat16, 2, 8, make([]float32, 16))
	for name, err := range map[string]error{
		"a sum that is bfloat16":         f.AddRMSNorm(x, half, x, weight, normEps),
		"a sum of another shape":         f.AddRMSNorm(x, of(2, 7), of(2, 8), weight, normEps),
		"a weight of another shape":      f.AddRMSNorm(x, of(2, 8), of(2, 8), of(1, 7), normEps),
		"a norm of bfloat16":             d.RMSNorm(x, half, weight, normEps),
		"a kept gate of float32":         f.SwiGLUKeep(x, of(2, 8), half, x, x),
		"a kept up of another shape":     f.SwiGLUKeep(x, half, h.of(tensor.BFloat16, 2, 7, make([]float32, 14)), x, x),
		"keeping what was kept":          f.SwiGLUKeep(x, half, half, half, half),
		"gate and up of two types":       d.SwiGLU(of(2, 8), half, x),
		"the gradient by a kept gate":    d.SwiGLUBackward(half, x, x, half, half),
		"bfloat16 queries":               d.Attention(of(2, 8), tensor.Tensor{}, half, pages, 0, runs, 2, 1),
		"bfloat16 queries backward":      d.AttentionBackward(of(2, 8), of(2, 4), of(2, 4), of(2, 8), of(2, 8), of(2, 2), half, pages, 0, runs, 2, 1),
		"an output kept as float32":      f.AttentionKeep(of(2, 8), of(2, 8), tensor.Tensor{}, x, pages, 0, runs, 2, 1),
		"a kept output of another shape": f.AttentionKeep(h.of(tensor.BFloat16, 2, 7, make([]float32, 14)), of(2, 8), tensor.Tensor{}, x, pages, 0, runs, 2, 1),
		"an output of bfloat16":          d.Attention(half, tensor.Tensor{}, x, pages, 0, runs, 2, 1),
		"key heads":                      f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.KeyHeads = 2 }), pages, 0, runs),
		"query heads":                    f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.QueryHeads = 3 }), pages, 0, runs),
		"q of another shape":             f.TurnHeads(of(2, 7), heads, pages, 0, runs),
		"keys of another shape":          f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.Keys = of(1, 4) }), pages, 0, runs),
		"no values":                      f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.Values = tensor.Tensor{} }), pages, 0, runs),
		"a norm of another shape":        f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.KeyNorm.Weight = weight }), pages, 0, runs),
		"a table that is too wide":       f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.Table = of(2, 6) }), pages, 0, runs),
		"a position beyond the table":    f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.Positions = []int32{0, 2} }), pages, 0, runs),
		"a layer beyond the pages":       f.TurnHeads(of(2, 8), heads, pages, 1, runs),
		"a run beyond the rows":          f.TurnHeads(of(2, 8), heads, pages, 0, []tensor.AttentionRun{{Count: 3, Pages: []int32{0}}}),
		"kept queries of float32":        f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.KeptQueries = of(2, 8) }), pages, 0, runs),
		"kept keys of another shape":     f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.KeptKeys = half }), pages, 0, runs),
		"queries of bfloat16":            f.TurnHeads(of(2, 8), with(func(h *tensor.Heads) { h.Queries = half }), pages, 0, runs),
		"no query heads, backward":       f.TurnHeadsBackward(of(2, 8), of(2, 4), with(func(h *tensor.Heads) { h.QueryHeads = 0 })),
		"dk of another shape, backward":  f.TurnHeadsBackward(of(2, 8), of(2, 8), heads),
		"too few positions, backward":    f.TurnHeadsBackward(of(2, 8), of(2, 4), with(func(h *tensor.Heads) { h.Positions = nil })),
		"no queries for a norm backward": f.TurnHeadsBackward(of(2, 8), of(2, 4), with(func(h *tensor.Heads) { h.QueryNorm.Weight, h.Queries = of(1, 4), tensor.Tensor{} })),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
