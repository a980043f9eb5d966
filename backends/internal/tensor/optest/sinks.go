package optest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// windowed is attention to a window, 0 = none, with a sink for each head.
type windowed struct {
	attentionShape
	window int
}

func (s windowed) String() string {
	return fmt.Sprintf("%v window %d with sinks", s.attentionShape, s.window)
}

var windowedShapes = []windowed{
	{attentionShape{[]int{1}, 1, 1, 1, tensor.Float32}, 1},
	{attentionShape{[]int{3, 0, 5}, 2, 1, 8, tensor.Float32}, 0},
	{attentionShape{[]int{64, 1, 65, 30}, 4, 2, 32, tensor.Float32}, 16},
	{attentionShape{[]int{130}, 6, 2, 40, tensor.BFloat16}, 3},
	{attentionShape{[]int{7, 200, 13}, 4, 2, 64, tensor.BFloat16}, 64},
	{attentionShape{[]int{300, 33}, 8, 1, 64, tensor.Float32}, 128},
	{attentionShape{[]int{90, 200}, 2, 2, 16, tensor.Float32}, 65},
	{attentionShape{[]int{70}, 2, 2, 128, tensor.Float32}, 1000},
	{attentionShape{[]int{150}, 3, 1, 24, tensor.BFloat16}, 1},
	{attentionShape{[]int{2300}, 1, 1, 8, tensor.Float32}, 2200}, // one that is wider than what restarts without a window
	{attentionShape{[]int{130, 9}, 4, 2, 128, tensor.BFloat16}, 50},
	{attentionShape{[]int{100}, 2, 1, 256, tensor.BFloat16}, 33},
}

func (s windowed) runs() ([]tensor.AttentionRun, int) {
	runs, pages := s.attentionShape.runs()
	for i := range runs {
		runs[i].Window = s.window
	}
	return runs, pages
}

func (s windowed) sinks() []float32 { return normal(5, s.queryHeads) }

// values are the reference's outputs, log-sum-exps and gradients.
func (s windowed) values(q, k, v, do []float64) [][]float64 {
	d, qw, kw, sinks := s.headDim, s.queryHeads*s.headDim, s.heads*s.headDim, float64s(s.sinks())
	var o, lse []float64
	dq, dk, dv := make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(v))
	row := 0
	for _, l := range s.lengths {
		for r := range l {
			first := 0
			if s.window > 0 {
				first = max(0, r-s.window+1)
			}
			for h := range s.queryHeads {
				at, kh := (row+r)*qw+h*d, h/(s.queryHeads/s.heads)
				key := func(i int) int { return (row+first+i)*kw + kh*d }
				p := elementwise(r-first+1, func(i int) float64 { return float64(s.scale()) * dot(q[at:at+d], k[key(i):key(i)+d]) })
				z := logSumExp(append(p, sinks[h]))
				out := make([]float64, d)
				for i := range p {
					p[i] = math.Exp(p[i] - z)
					for c := range d {
						out[c] += p[i] * v[key(i)+c]
					}
				}
				delta := dot(do[at:at+d], out)
				for i := range p {
					ds := p[i] * (dot(do[at:at+d], v[key(i):key(i)+d]) - delta) * float64(s.scale())
					for c := range d {
						dv[key(i)+c] += p[i] * do[at+c]
						dk[key(i)+c] += ds * q[at+c]
						dq[at+c] += ds * k[key(i)+c]
					}
				}
				o, lse = append(o, out...), append(lse, z)
			}
		}
		row += l
	}
	return [][]float64{o, lse, dq, dk, dv}
}

// attend is attention and its sinks on the device.
func (s windowed) attend(h *bench, o, lse, q tensor.Tensor, pages tensor.Pages, runs []tensor.AttentionRun) {
	h.t.Helper()
	h.ok(h.d.Attention(o, lse, q, pages, attentionLayer, runs, s.queryHeads, s.scale()))
	h.ok(h.d.Sink(o, lse, h.view(1, s.queryHeads, s.sinks())))
}

func sinkCases(o Options) []testCase {
	return slices.Concat(windowedCases(windowedShapes, o), clampedCases([][2]int{{1, 1}, {3, 16}, {2, 33}, {5, 100}, {40, 700}}), biasCases(mixtures))
}

func windowedCases(shapes []windowed, o Options) []testCase {
	var all []testCase
	for _, s := range shapes {
		q, k, v, do := s.inputs()
		rows, qw, kw := s.rows(), s.queryHeads*s.headDim, s.heads*s.headDim
		all = append(all, testCase{
			name: "attention " + s.String(), tolerance: o.attention(s.dtype), average: o.attentionAverage(s.dtype),
			run: func(h *bench) [][]float32 {
				pages, _ := s.written(h, k, v)
				runs, _ := s.runs()
				out, lse, query := h.view(rows, qw, q), h.view(rows, s.queryHeads, make([]float32, rows*s.queryHeads)), h.view(rows, qw, q)
				s.attend(h, out, lse, query, pages, runs)
				dq, dk, dv := h.view(rows, qw, q), h.view(rows, kw, k), h.view(rows, kw, v)
				h.ok(h.d.AttentionBackward(dq, dk, dv, h.view(rows, qw, do), out, lse, query, pages, attentionLayer, runs, s.queryHeads, s.scale()))
				return [][]float32{h.read(out), h.read(lse), h.read(dq), h.read(dk), h.read(dv)}
			},
			want: func() [][]float64 {
				product := tensor.Float32
				if o.RoundedAttention {
					product = s.dtype
				}
				return s.values(rounded(product, q), rounded(s.dtype, k), rounded(s.dtype, v), rounded(product, do))
			},
		})
	}
	return all
}

func clampedCases(shapes [][2]int) []testCase {
	var all []testCase
	for _, s := range shapes {
		rows, cols := s[0], s[1]
		clamp := tensor.Clamp{Alpha: 1.702, Limit: 1.25} // near enough that it cuts off often
		gate, up, dy := normal(31, rows*cols), normal(32, rows*cols), normal(33, rows*cols)
		all = append(all, testCase{name: fmt.Sprintf("clamped swiglu %d×%d", rows, cols), tolerance: 1e-5,
			run: func(h *bench) [][]float32 {
				y, g, u := h.view(rows, cols, dy), h.view(rows, cols, gate), h.view(rows, cols, up)
				h.ok(h.d.SwiGLUClamped(y, g, u, clamp))
				dgate, dup := h.view(rows, cols, gate), h.view(rows, cols, dy)
				h.ok(h.d.SwiGLUClampedBackward(dgate, dup, dup, dgate, u, clamp)) // in place
				return [][]float32{h.read(y), h.read(dgate), h.read(dup)}
			},
			want: func() [][]float64 {
				y, dgate, dup := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
				for i := range y {
					alpha, limit := float64(clamp.Alpha), float64(clamp.Limit)
					g, u := min(float64(gate[i]), limit), min(max(float64(up[i]), -limit), limit)
					s := 1 / (1 + math.Exp(-alpha*g))
					y[i] = (u + 1) * g * s
					if float64(gate[i]) <= limit {
						dgate[i] = float64(dy[i]) * (u + 1) * (s + alpha*g*s*(1-s))
					}
					if math.Abs(float64(up[i])) <= limit {
						dup[i] = float64(dy[i]) * g * s
					}
				}
				return [][]float64{y, dgate, dup}
			}})
	}
	return all
}

// biasCases are biases of experts.
func biasCases(mixtures []mixture) []testCase {
	var all []testCase
	for i, m := range mixtures {
		seed := uint64(9700 + 100*i)
		logits := m.logits(seed)
		rows, first := m.sorted(logits)
		values, bias, dy, dp := normal(seed+1, len(rows)*m.out), normal(seed+2, m.experts*m.out), normal(seed+3, m.tokens*m.out), normal(seed+4, m.tokens*m.slots)
		all = append(all, testCase{name: fmt.Sprintf("biases of experts %v", m), tolerance: 1e-5,
			run: func(h *bench) [][]float32 {
				r := h.routed(m, logits)
				y, d, b := h.view(len(rows), m.out, values), h.view(m.tokens, m.slots, dp), h.view(m.experts, m.out, bias)
				h.ok(h.d.AddRouted(y, b, r.table))
				h.ok(h.d.AddRoutedBackward(d, h.view(m.tokens, m.out, dy), b, r.choice))
				return [][]float32{h.read(y), h.read(d)}
			},
			want: func() [][]float64 {
				y, d := float64s(values), float64s(dp)
				for e := range m.experts {
					for i := first[e]; i < first[e+1]; i++ {
						for c := range m.out {
							b := float64(bias[e*m.out+c])
							y[i*m.out+c] += b
							d[rows[i][0]*m.slots+rows[i][1]] += b * float64(dy[rows[i][0]*m.out+c])
						}
					}
				}
				return [][]float64{y, d}
			}})
	}
	return all
}

// sinks checks the promises on bits: a sequence has the same however it is cut, with windows too, and what lies before a window has no influence.
func sinks(t *testing.T, d tensor.Device, o Options) {
	wide := 2000 // over where a running softmax without a window restarts
	if o.Slow {
		wide = 200
	}
	for _, s := range []windowed{
		{attentionShape{[]int{5, 150, 40}, 4, 2, 64, tensor.BFloat16}, 0},
		{attentionShape{[]int{5, 150, 40}, 4, 2, 64, tensor.BFloat16}, 20},
		{attentionShape{[]int{300, 3}, 8, 1, 64, tensor.Float32}, 128},
		{attentionShape{[]int{210, 66}, 6, 2, 40, tensor.Float32}, 3},
		{attentionShape{[]int{2048 + 300}, 2, 1, 64, tensor.BFloat16}, wide},
		{attentionShape{[]int{2048 + 130}, 2, 1, 64, tensor.Float32}, 65},
	} {
		t.Run(s.String(), func(t *testing.T) { s.cuts(t, d, o) })
	}
	t.Run("windows beside others", func(t *testing.T) { windowsBesideOthers(t, d) })
	t.Run("refusals", func(t *testing.T) {
		h := start(t, d)
		zeros := func(rows, cols int) tensor.Tensor { return h.tensor(rows, cols, make([]float32, rows*cols)) }
		pages, err := d.NewPages(tensor.Float32, 1, 1, 1, 6)
		h.ok(err)
		defer pages.Free()
		a, b, column := zeros(4, 6), zeros(4, 5), zeros(4, 1)
		m := mixture{4, 2, 3, 6, 5}
		r := h.routed(m, m.logits(1))
		clamp := tensor.Clamp{Alpha: 1, Limit: 1}
		run := func(window int) error {
			return d.Attention(a, tensor.Tensor{}, a, pages, 0, []tensor.AttentionRun{{Count: 4, Pages: []int32{0}, Window: window}}, 1, 1)
		}
		h.ok(run(tensor.MaxWindow))
		for name, err := range map[string]error{
			"negative window":          run(-1),
			"wide window":              run(tensor.MaxWindow + 1),
			"sinks of no heads":        d.Sink(a, column, zeros(1, 0)),
			"sinks of heads":           d.Sink(a, zeros(4, 4), zeros(1, 4)),
			"sinks lse":                d.Sink(a, column, zeros(1, 2)),
			"clamped shape":            d.SwiGLUClamped(a, a, b, clamp),
			"clamped limit":            d.SwiGLUClamped(a, a, a, tensor.Clamp{Alpha: 1}),
			"clamped alpha":            d.SwiGLUClamped(a, a, a, tensor.Clamp{Alpha: float32(math.NaN()), Limit: 1}),
			"clamped backward":         d.SwiGLUClampedBackward(a, b, a, a, a, clamp),
			"biases of rows":           d.AddRouted(a, zeros(3, 6), r.table),
			"biases of experts":        d.AddRouted(zeros(8, 6), zeros(2, 6), r.table),
			"biases backward choice":   d.AddRoutedBackward(zeros(4, 3), a, zeros(3, 6), r.choice),
			"biases backward gradient": d.AddRoutedBackward(zeros(4, 2), b, zeros(3, 6), r.choice),
		} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}

func (s windowed) cuts(t *testing.T, d tensor.Device, options Options) {
	h := start(t, d)
	q, k, v, do := s.inputs()
	rows, qw, kw := s.rows(), s.queryHeads*s.headDim, s.heads*s.headDim
	zeros := func(rows, cols int) tensor.Tensor { return h.tensor(rows, cols, make([]float32, rows*cols)) }
	pages, _ := s.written(h, k, v)
	runs, _ := s.runs()
	out, lse, query := zeros(rows, qw), zeros(rows, s.queryHeads), h.tensor(rows, qw, q)
	s.attend(h, out, lse, query, pages, runs)
	o, sums := h.read(out), h.read(lse)
	last := 300
	if options.Slow {
		last = 70
	}
	for i, run := range runs {
		for _, chunk := range []int{1, 7, 64, run.Count} {
			for from := max(0, run.Count-last); from < run.Count; from += chunk {
				part := run
				part.Row, part.First, part.Count = 0, from, min(chunk, run.Count-from)
				a, b := zeros(part.Count, qw), zeros(part.Count, s.queryHeads)
				first, last := run.Row+from, run.Row+from+part.Count
				s.attend(h, a, b, query.Slice(first, last), pages, []tensor.AttentionRun{part})
				sameBits(t, fmt.Sprintf("sequence %d in chunks of %d from %d", i, chunk, from), h.read(a), o[first*qw:last*qw])
				sameBits(t, "log-sum-exp", h.read(b), sums[first*s.queryHeads:last*s.queryHeads])
			}
		}
	}
	if rows > 2048 {
		return
	}
	gradients := func(runs ...tensor.AttentionRun) [][]float32 {
		dq, dk, dv := zeros(rows, qw), zeros(rows, kw), zeros(rows, kw)
		for _, r := range runs {
			h.ok(d.AttentionBackward(dq, dk, dv, h.tensor(rows, qw, do), out, lse, query, pages, attentionLayer, []tensor.AttentionRun{r}, s.queryHeads, s.scale()))
		}
		return [][]float32{h.read(dq), h.read(dk), h.read(dv)}
	}
	whole := gradients(runs...)
	var keys, both []tensor.AttentionRun
	for _, r := range runs {
		for from := 0; from < r.Count; from += tensor.PageSize {
			part := r
			part.KeysFrom, part.KeysTo = from, min(from+tensor.PageSize, r.Count)
			keys = append(keys, part)
			for row := from; row < r.Count; row += tensor.PageSize {
				part.RowsFrom, part.RowsTo = row, min(row+tensor.PageSize, r.Count)
				both = append(both, part)
			}
		}
	}
	for i, name := range []string{"dq", "dk", "dv"} {
		sameBits(t, name+" in pieces of keys", gradients(keys...)[i], whole[i])
		sameBits(t, name+" in pieces of keys and rows", gradients(both...)[i], whole[i])
	}
	s.before(t, h, q, k, v, o)
}

// windowsBesideOthers checks that a row with a window and one without have the bits in one batch that each has alone, where keys are many enough that a device may cut them.
func windowsBesideOthers(t *testing.T, d tensor.Device) {
	for _, s := range []attentionShape{{[]int{2048 + 66, 2048 + 70, 100}, 2, 1, 64, tensor.BFloat16}, {[]int{2048 + 66, 2048 + 70, 100}, 2, 1, 12, tensor.Float32}} {
		t.Run(s.String(), func(t *testing.T) {
			h := start(t, d)
			_, k, v, _ := s.inputs()
			qw := s.queryHeads * s.headDim
			q := normal(77, len(s.lengths)*qw)
			pages, _ := s.written(h, k, v)
			runs, _ := s.runs()
			for i, window := range []int{0, 100, 64} {
				runs[i].Row, runs[i].First, runs[i].Count, runs[i].Window = i, s.lengths[i]-1, 1, window
			}
			attend := func(rows int, q []float32, runs []tensor.AttentionRun) ([]float32, []float32) {
				o, lse := h.tensor(rows, qw, make([]float32, rows*qw)), h.tensor(rows, s.queryHeads, make([]float32, rows*s.queryHeads))
				h.ok(d.Attention(o, lse, h.tensor(rows, qw, q), pages, attentionLayer, runs, s.queryHeads, s.scale()))
				return h.read(o), h.read(lse)
			}
			o, lse := attend(len(runs), q, runs)
			for i, run := range runs {
				run.Row = 0
				a, b := attend(1, q[i*qw:(i+1)*qw], []tensor.AttentionRun{run})
				sameBits(t, fmt.Sprintf("sequence %d", i), a, o[i*qw:(i+1)*qw])
				sameBits(t, fmt.Sprintf("log-sum-exp of sequence %d", i), b, lse[i*s.queryHeads:(i+1)*s.queryHeads])
			}
		})
	}
}

// before checks that keys and values before the window of the last rows have no influence, even if they are no numbers.
func (s windowed) before(t *testing.T, h *bench, q, k, v, want []float32) {
	if s.window == 0 {
		return
	}
	runs, count := s.runs()
	n, kw, qw := runs[0].Count, s.heads*s.headDim, s.queryHeads*s.headDim
	first := max(0, n-20)
	nan := max(0, first-s.window+1) // rows from first on see none of those
	spoilt := [2][]float32{append([]float32(nil), k...), append([]float32(nil), v...)}
	for _, x := range spoilt {
		for i := range nan * kw {
			x[i] = float32(math.NaN())
		}
	}
	pages, err := h.d.NewPages(s.dtype, 2, count, s.heads, s.headDim)
	h.ok(err)
	defer pages.Free()
	h.ok(h.d.WritePages(pages, attentionLayer, h.view(s.rows(), kw, spoilt[0]), h.view(s.rows(), kw, spoilt[1]), runs))
	for _, chunk := range []int{1, n - first} {
		for from := first; from < n; from += chunk {
			part := runs[0]
			part.First, part.Count = from, chunk
			o, lse := h.view(chunk, qw, make([]float32, chunk*qw)), h.view(chunk, s.queryHeads, make([]float32, chunk*s.queryHeads))
			s.attend(h, o, lse, h.view(chunk, qw, q[from*qw:(from+chunk)*qw]), pages, []tensor.AttentionRun{part})
			sameBits(t, fmt.Sprintf("%d rows from %d behind what is not a number", chunk, from), h.read(o), want[from*qw:(from+chunk)*qw])
		}
	}
}

// fusedSinkShapes are rows, heads and elements of a head.
var fusedSinkShapes = [][3]int{{1, 1, 1}, {3, 2, 17}, {2, 8, 64}, {5, 64, 64}, {2, 3, 257}, {0, 2, 8}}

// fusedSinks checks that what is one operation with sinks and clamped gates has the bits of those that it stands for.
func fusedSinks(t *testing.T, f tensor.Fuser, d tensor.Device, shapes [][3]int) {
	for _, s := range shapes {
		t.Run(fmt.Sprintf("%d×%d×%d", s[0], s[1], s[2]), func(t *testing.T) {
			h := start(t, d)
			rows, heads, cols := s[0], s[1], s[1]*s[2]
			o, lse, sinks := normal(51, rows*cols), normal(52, rows*heads), h.view(1, heads, normal(53, heads))
			narrow := func(values []float32) tensor.Tensor { return h.of(tensor.BFloat16, rows, cols, values) }
			apart := func() tensor.Tensor { // with a stride
				return h.of(tensor.BFloat16, rows, cols+3, make([]float32, rows*(cols+3))).Columns(1, 1+cols)
			}
			want, sums := h.view(rows, cols, o), h.view(rows, heads, lse)
			h.ok(d.Sink(want, sums, sinks))
			kept, keptSums := apart(), h.view(rows, heads, lse)
			h.ok(f.SinkKeep(kept, h.view(rows, cols, o), keptSums, sinks))
			sameBits(t, "kept output", h.read(h.widened(kept)), h.read(h.widened(narrow(h.read(want)))))
			sameBits(t, "log-sum-exp", h.read(keptSums), h.read(sums))

			clamp := tensor.Clamp{Alpha: 1.702, Limit: 0.75}
			gate, up, dy := normal(54, rows*cols), normal(55, rows*cols), normal(56, rows*cols)
			y := h.view(rows, cols, dy)
			h.ok(d.SwiGLUClamped(y, h.view(rows, cols, gate), h.view(rows, cols, up), clamp))
			gated := h.read(h.widened(narrow(h.read(y))))
			for _, room := range []func() tensor.Tensor{func() tensor.Tensor { return narrow(dy) }, apart} {
				to, keptGate, keptUp := room(), room(), room()
				h.ok(d.SwiGLUClamped(to, h.view(rows, cols, gate), h.view(rows, cols, up), clamp))
				sameBits(t, "clamped swiglu", h.read(h.widened(to)), gated)
				h.ok(f.SwiGLUClampedKeep(to, keptGate, keptUp, h.tensor(rows, cols, gate), h.tensor(rows, cols, up), clamp))
				sameBits(t, "clamped swiglu that keeps", h.read(h.widened(to)), gated)
				wideGate, wideUp := h.widened(narrow(gate)), h.widened(narrow(up))
				sameBits(t, "kept gate", h.read(h.widened(keptGate)), h.read(wideGate))
				sameBits(t, "kept up", h.read(h.widened(keptUp)), h.read(wideUp))
				h.ok(d.SwiGLUClamped(y, wideGate, wideUp, clamp))
				h.ok(d.SwiGLUClamped(to, keptGate, keptUp, clamp))
				sameBits(t, "clamped swiglu of what was kept", h.read(h.widened(to)), h.read(h.widened(narrow(h.read(y)))))
				dgate, dup := h.view(rows, cols, gate), h.view(rows, cols, dy)
				h.ok(d.SwiGLUClampedBackward(dgate, dup, dup, keptGate, keptUp, clamp))
				h.ok(d.SwiGLUClampedBackward(wideGate, wideUp, h.view(rows, cols, dy), wideGate, wideUp, clamp))
				sameBits(t, "gradient by the gate of what was kept", h.read(dgate), h.read(wideGate))
				sameBits(t, "gradient by up of what was kept", h.read(dup), h.read(wideUp))
			}
		})
	}
	t.Run("refusals", func(t *testing.T) {
		h := start(t, d)
		of := func(rows, cols int) tensor.Tensor { return h.tensor(rows, cols, make([]float32, rows*cols)) }
		x, half, clamp := of(2, 8), h.of(tensor.BFloat16, 2, 8, make([]float32, 16)), tensor.Clamp{Alpha: 1, Limit: 1}
		for name, err := range map[string]error{
			"an output kept as float32":      f.SinkKeep(of(2, 8), x, of(2, 2), of(1, 2)),
			"a kept output of another shape": f.SinkKeep(h.of(tensor.BFloat16, 2, 7, make([]float32, 14)), x, of(2, 2), of(1, 2)),
			"an output of bfloat16":          f.SinkKeep(half, half, of(2, 2), of(1, 2)),
			"sinks of other heads":           f.SinkKeep(half, x, of(2, 2), of(1, 4)),
			"a kept gate of float32":         f.SwiGLUClampedKeep(half, x, half, of(2, 8), of(2, 8), clamp),
			"keeping what was kept":          f.SwiGLUClampedKeep(x, half, half, half, half, clamp),
			"no limit":                       f.SwiGLUClampedKeep(half, half, half, x, x, tensor.Clamp{Alpha: 1}),
			"gate and up of two types":       d.SwiGLUClamped(of(2, 8), half, x, clamp),
			"a gradient that is bfloat16":    d.SwiGLUClampedBackward(half, of(2, 8), x, half, half, clamp),
		} {
			if err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	})
}
