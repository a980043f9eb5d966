package optest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// deltaShape is a batch of whole sequences through the delta rule.
type deltaShape struct {
	lengths                                []int
	keyHeads, valueHeads, keyDim, valueDim int
	decay                                  float32 // what A_log is about: more forgets faster
}

func (s deltaShape) String() string {
	return fmt.Sprintf("lengths %v heads %d/%d dimensions %d, %d decay %g", s.lengths, s.keyHeads, s.valueHeads, s.keyDim, s.valueDim, s.decay)
}

func (s deltaShape) rows() int {
	n := 0
	for _, l := range s.lengths {
		n += l
	}
	return n
}

func (s deltaShape) mixed() int { return 2*s.keyHeads*s.keyDim + s.valueHeads*s.valueDim }
func (s deltaShape) out() int   { return s.valueHeads * s.valueDim }

func (s deltaShape) runs() []tensor.StateRun {
	var runs []tensor.StateRun
	row := 0
	for _, l := range s.lengths {
		runs = append(runs, tensor.StateRun{Row: row, Count: l, Slot: tensor.NoSlot})
		row += l
	}
	return runs
}

var deltaShapes = []deltaShape{
	{[]int{1}, 1, 1, 1, 1, 0},
	{[]int{63}, 1, 2, 8, 16, 0},
	{[]int{64}, 2, 4, 32, 16, 0},
	{[]int{65}, 1, 1, 30, 40, 1},
	{[]int{3, 0, 70}, 2, 6, 17, 33, -1},
	{[]int{129, 1, 2}, 2, 4, 128, 128, 0},
	{[]int{200}, 1, 1, 64, 256, 2},
	{[]int{70, 2}, 1, 2, 256, 33, 0},
	{[]int{130}, 1, 1, 64, 32, 4}, // everything before is forgotten at once
	{[]int{4097}, 1, 1, 12, 12, -2},
	{[]int{2300}, 1, 2, 16, 32, -5}, // hardly anything is
}

// deltaValues are the inputs, and the gradient of the output.
type deltaValues struct{ mixed, a, b, decay, bias, do []float32 }

func (s deltaShape) values() deltaValues {
	rows := s.rows()
	v := deltaValues{normal(31, rows*s.mixed()), normal(32, rows*s.valueHeads), normal(33, rows*s.valueHeads), normal(34, s.valueHeads), normal(35, s.valueHeads), normal(36, rows*s.out())}
	for i := range v.decay {
		v.decay[i] = v.decay[i]/4 + s.decay
	}
	if rows > 2 {
		v.a[rows/2*s.valueHeads] = 30 // beyond where softplus is its argument
	}
	return v
}

// inputs holds them on the device.
func (s deltaShape) inputs(h *bench, v deltaValues) tensor.DeltaInputs {
	rows := s.rows()
	return tensor.DeltaInputs{Mixed: h.view(rows, s.mixed(), v.mixed), A: h.view(rows, s.valueHeads, v.a), B: h.view(rows, s.valueHeads, v.b), ALog: h.tensor(1, s.valueHeads, v.decay),
		Bias: h.tensor(1, s.valueHeads, v.bias), KeyHeads: s.keyHeads, ValueHeads: s.valueHeads, KeyDim: s.keyDim, ValueDim: s.valueDim}
}

func (s deltaShape) forward(h *bench, v deltaValues) []float32 {
	o := h.view(s.rows(), s.out(), make([]float32, s.rows()*s.out()))
	h.ok(h.d.DeltaRule(o, s.inputs(h, v), tensor.Tensor{}, s.runs()))
	return h.read(o)
}

func (s deltaShape) backward(h *bench, v deltaValues) (dmixed, da, db []float32) {
	rows := s.rows()
	m, a, b := h.view(rows, s.mixed(), v.mixed), h.view(rows, s.valueHeads, v.a), h.view(rows, s.valueHeads, v.b)
	h.ok(h.d.DeltaRuleBackward(m, a, b, h.view(rows, s.out(), v.do), s.inputs(h, v), s.runs()))
	return h.read(m), h.read(a), h.read(b)
}

// unit gives x · (Σx²+1e-6)^-½ · factor and the first two factors.
func unit(x []float64, factor float64) ([]float64, float64) {
	inverse := 1 / math.Sqrt(dot(x, x)+1e-6)
	return elementwise(len(x), func(i int) float64 { return x[i] * inverse * factor }), inverse
}

// reference goes through the recurrence token by token, and back through it: the plain derivatives of its formulas, no chunks.
func (s deltaShape) reference(v deltaValues) (o, dmixed, da, db []float64) {
	K, V, width := s.keyDim, s.valueDim, s.mixed()
	mixed, a, b, do := float64s(v.mixed), float64s(v.a), float64s(v.b), float64s(v.do)
	o, dmixed, da, db = make([]float64, len(do)), make([]float64, len(mixed)), make([]float64, len(a)), make([]float64, len(b))
	root := 1 / math.Sqrt(float64(K))
	for _, r := range s.runs() {
		for head := range s.valueHeads {
			qAt := head / (s.valueHeads / s.keyHeads) * K
			kAt, vAt := s.keyHeads*K+qAt, 2*s.keyHeads*K+head*V
			rate := math.Exp(float64(v.decay[head]))
			before := make([][]float64, r.Count) // the state before each token, K × V
			S := make([]float64, K*V)
			for t := range r.Count {
				row := r.Row + t
				x := mixed[row*width:]
				q, _ := unit(x[qAt:qAt+K], root)
				k, _ := unit(x[kAt:kAt+K], 1)
				y := a[row*s.valueHeads+head] + float64(v.bias[head])
				e, beta := math.Exp(-rate*math.Log1p(math.Exp(y))), sigmoid(b[row*s.valueHeads+head])
				before[t] = slices.Clone(S)
				for c := range V {
					m := 0.0
					for i := range K {
						m += S[i*V+c] * k[i]
					}
					delta := beta * (x[vAt+c] - e*m)
					out := 0.0
					for i := range K {
						S[i*V+c] = e*S[i*V+c] + k[i]*delta
						out += S[i*V+c] * q[i]
					}
					o[row*s.out()+head*V+c] = out
				}
			}
			D := make([]float64, K*V) // the gradient by S
			for t := r.Count - 1; t >= 0; t-- {
				row, after := r.Row+t, S
				if t+1 < r.Count {
					after = before[t+1]
				}
				x, dx, S := mixed[row*width:], dmixed[row*width:], before[t]
				q, qInverse := unit(x[qAt:qAt+K], root)
				k, kInverse := unit(x[kAt:kAt+K], 1)
				y := a[row*s.valueHeads+head] + float64(v.bias[head])
				e, beta := math.Exp(-rate*math.Log1p(math.Exp(y))), sigmoid(b[row*s.valueHeads+head])
				dq, dk := make([]float64, K), make([]float64, K)
				var de, dbeta float64
				for c := range V {
					g := do[row*s.out()+head*V+c]
					var m, ddelta float64
					for i := range K {
						m += S[i*V+c] * k[i]
						dq[i] += after[i*V+c] * g
						D[i*V+c] += q[i] * g
						ddelta += D[i*V+c] * k[i]
					}
					delta := beta * (x[vAt+c] - e*m)
					dbeta += ddelta * (x[vAt+c] - e*m)
					dx[vAt+c] = beta * ddelta
					de -= beta * ddelta * m
					dm := -beta * e * ddelta
					for i := range K {
						dk[i] += D[i*V+c]*delta + S[i*V+c]*dm
						de += D[i*V+c] * S[i*V+c]
						D[i*V+c] = e*D[i*V+c] + k[i]*dm
					}
				}
				db[row*s.valueHeads+head] = dbeta * beta * (1 - beta)
				da[row*s.valueHeads+head] = de * e * -rate * sigmoid(y)
				for i := range K { // x · inverse · factor
					dx[qAt+i] += qInverse * root * (dq[i] - q[i]/root*dot(q, dq)/root)
					dx[kAt+i] += kInverse * (dk[i] - k[i]*dot(k, dk))
				}
			}
		}
	}
	return o, dmixed, da, db
}

// convShape is a batch of whole sequences through a convolution.
type convShape struct {
	lengths         []int
	channels, width int
}

var convShapes = []convShape{{[]int{1}, 1, 4}, {[]int{2, 0, 7}, 17, 4}, {[]int{70, 1}, 300, 4}, {[]int{5}, 256, 1}, {[]int{3, 9}, 40, 8}}

// filter is the reference: the sums before the activation.
func (s convShape) filter(x, weight []float64) []float64 {
	y := make([]float64, len(x))
	row := 0
	for _, l := range s.lengths {
		for t := range l {
			for c := range s.channels {
				for i := range s.width {
					if at := t - s.width + 1 + i; at >= 0 {
						y[(row+t)*s.channels+c] += weight[i*s.channels+c] * x[(row+at)*s.channels+c]
					}
				}
			}
		}
		row += l
	}
	return y
}

func (s convShape) backward(dy, x, weight []float64) []float64 {
	dx, sums := make([]float64, len(x)), s.filter(x, weight)
	row := 0
	for _, l := range s.lengths {
		for t := range l {
			for c := range s.channels {
				v := sums[(row+t)*s.channels+c]
				g := dy[(row+t)*s.channels+c] * sigmoid(v) * (1 + v*(1-sigmoid(v)))
				for i := range s.width {
					if at := t - s.width + 1 + i; at >= 0 {
						dx[(row+at)*s.channels+c] += weight[i*s.channels+c] * g
					}
				}
			}
		}
		row += l
	}
	return dx
}

func recurrenceCases(o Options) []testCase {
	shapes := deltaShapes
	if o.Slow { // one of several thousand rows is enough
		shapes = slices.DeleteFunc(slices.Clone(shapes), func(s deltaShape) bool { return s.rows() > 4096 })
	}
	return slices.Concat(convCases(convShapes), deltaCases(shapes), gateCases(rowShapes))
}

func convCases(convShapes []convShape) []testCase {
	var all []testCase
	for _, s := range convShapes {
		d := deltaShape{lengths: s.lengths}
		n := d.rows() * s.channels
		x, dy, weight := normal(41, n), normal(42, n), normal(43, s.width*s.channels)
		all = append(all, testCase{name: fmt.Sprintf("conv %v × %d width %d", s.lengths, s.channels, s.width), tolerance: 2e-6,
			run: func(h *bench) [][]float32 {
				y, w := h.view(d.rows(), s.channels, dy), h.tensor(s.width, s.channels, weight)
				h.ok(h.d.Conv(y, h.view(d.rows(), s.channels, x), w, tensor.Tensor{}, d.runs()))
				dx, in := h.view(d.rows(), s.channels, x), h.view(d.rows(), s.channels, dy)
				h.ok(h.d.ConvBackward(dx, in, h.view(d.rows(), s.channels, x), w, d.runs()))
				h.ok(h.d.ConvBackward(in, in, h.view(d.rows(), s.channels, x), w, d.runs()))
				return [][]float32{h.read(y), h.read(dx), h.read(in)}
			},
			want: func() [][]float64 {
				y := s.filter(float64s(x), float64s(weight))
				for i := range y {
					y[i] *= sigmoid(y[i])
				}
				dx := s.backward(float64s(dy), float64s(x), float64s(weight))
				return [][]float64{y, dx, dx}
			}})
	}
	return all
}

func deltaCases(deltaShapes []deltaShape) []testCase {
	var all []testCase
	for _, s := range deltaShapes {
		v := s.values()
		all = append(all, testCase{name: "delta rule " + s.String(), tolerance: 1e-5,
			run: func(h *bench) [][]float32 {
				dmixed, da, db := s.backward(h, v)
				return [][]float32{s.forward(h, v), dmixed, da, db}
			},
			want: func() [][]float64 {
				o, dmixed, da, db := s.reference(v)
				return [][]float64{o, dmixed, da, db}
			}})
	}
	return all
}

func gateCases(rowShapes [][2]int) []testCase {
	var all []testCase
	for i, s := range rowShapes {
		rows, cols := s[0], s[1]
		n, seed := rows*cols, uint64(5000+10*i)
		x, z, dy, weight := normal(seed, n), normal(seed+1, n), normal(seed+2, n), normal(seed+3, cols)
		x64, z64, dy64, w64 := float64s(x), float64s(z), float64s(dy), float64s(weight)
		all = append(all, testCase{name: fmt.Sprintf("gated norm %d×%d", rows, cols), tolerance: 1e-5,
			run: func(h *bench) [][]float32 {
				y, in, w := h.view(rows, cols, dy), h.view(rows, cols, x), h.tensor(1, cols, weight)
				h.ok(h.d.GatedNorm(y, in, h.view(rows, cols, z), w, normEps))
				h.ok(h.d.GatedNorm(in, in, h.view(rows, cols, z), w, normEps))
				dx, dz := h.view(rows, cols, dy), h.view(rows, cols, z)
				h.ok(h.d.GatedNormBackward(dx, dz, dx, h.view(rows, cols, x), dz, w, normEps))
				return [][]float32{h.read(y), h.read(in), h.read(dx), h.read(dz)}
			},
			want: func() [][]float64 {
				y := eachRow(x64, cols, func(r int, row []float64) []float64 {
					v := rmsNorm(row, w64)
					return elementwise(cols, func(i int) float64 { g := z64[r*cols+i]; return v[i] * g * sigmoid(g) })
				})
				dx := eachRow(x64, cols, func(r int, row []float64) []float64 {
					d := elementwise(cols, func(i int) float64 { g := z64[r*cols+i]; return dy64[r*cols+i] * g * sigmoid(g) })
					return rmsNormBackward(d, row, w64)
				})
				dz := eachRow(x64, cols, func(r int, row []float64) []float64 {
					v := rmsNorm(row, w64)
					return elementwise(cols, func(i int) float64 {
						g := z64[r*cols+i]
						return dy64[r*cols+i] * v[i] * sigmoid(g) * (1 + g*(1-sigmoid(g)))
					})
				})
				return [][]float64{y, y, dx, dz}
			}}, testCase{name: fmt.Sprintf("sigmoid gate %d×%d", rows, cols), tolerance: 3e-6, // 1 - sigmoid(gate) is as coarse as the sigmoid
			run: func(h *bench) [][]float32 {
				y := h.view(rows, cols, x)
				h.ok(h.d.SigmoidGate(y, y, h.view(rows, cols, z)))
				dx, dgate := h.view(rows, cols, dy), h.view(rows, cols, z)
				h.ok(h.d.SigmoidGateBackward(dx, dgate, dx, h.view(rows, cols, x), dgate))
				return [][]float32{h.read(y), h.read(dx), h.read(dgate)}
			},
			want: func() [][]float64 {
				return [][]float64{
					elementwise(n, func(i int) float64 { return x64[i] * sigmoid(z64[i]) }),
					elementwise(n, func(i int) float64 { return dy64[i] * sigmoid(z64[i]) }),
					elementwise(n, func(i int) float64 { s := sigmoid(z64[i]); return dy64[i] * x64[i] * s * (1 - s) }),
				}
			}})
	}
	return all
}

// recurrence checks what makes equal bits of every path: where a sequence is cut, and what else is in the batch, changes nothing.
func recurrence(t *testing.T, d tensor.Device, o Options) {
	for _, c := range recurrenceCases(o) {
		t.Run(c.name, func(t *testing.T) { c.check(t, d) })
	}
	t.Run("conv cuts", func(t *testing.T) { convCuts(t, d) })
	for _, s := range []deltaShape{{[]int{129}, 2, 4, 32, 16, 0}, {[]int{129}, 1, 2, 128, 128, 0}, {[]int{129}, 1, 1, 30, 70, 0}, {[]int{20}, 1, 1, 200, 40, 0}} {
		t.Run("delta rule cuts "+s.String(), func(t *testing.T) { deltaCuts(t, d, s, o.Slow) })
	}
	t.Run("delta rule alone", func(t *testing.T) { deltaAlone(t, d) })
	t.Run("refusals", func(t *testing.T) { recurrenceRefusals(t, d) })
}

// convCuts runs a sequence in parts that are joined by a slot of tails, beside another one.
func convCuts(t *testing.T, d tensor.Device) {
	const rows, channels, width = 9, 300, 4
	h := start(t, d)
	x, w := normal(51, rows*channels), h.tensor(width, channels, normal(52, width*channels))
	y, whole := h.tensor(rows, channels, make([]float32, rows*channels)), h.tensor(rows, channels, x)
	h.ok(d.Conv(y, whole, w, tensor.Tensor{}, []tensor.StateRun{{Count: rows, Slot: tensor.NoSlot}}))
	want := h.read(y)
	for _, cuts := range [][]int{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 2, 9}, {0, 3, 4, 9}, {0, 8, 9}} {
		tails := h.tensor(3, (width-1)*channels, make([]float32, 3*(width-1)*channels))
		got := make([]float32, 0, rows*channels)
		for i := range cuts[1:] {
			n := cuts[i+1] - cuts[i]
			part := append(normal(53, channels), x[cuts[i]*channels:cuts[i+1]*channels]...)
			out := h.tensor(n+1, channels, make([]float32, (n+1)*channels))
			h.ok(d.Conv(out, h.tensor(n+1, channels, part), w, tails, []tensor.StateRun{{Row: 1, Count: n, Slot: 2}, {Row: 0, Count: 1, Slot: 0}}))
			got = append(got, h.read(out.Slice(1, n+1))...)
		}
		sameBits(t, fmt.Sprint("cuts ", cuts), got, want)
	}
}

// deltaCuts runs a sequence in parts that are joined by a slot of states, beside another one: two parts with every cut, of large heads and on slow devices with some, and token by token.
func deltaCuts(t *testing.T, d tensor.Device, s deltaShape, slow bool) {
	h := start(t, d)
	v, rows := s.values(), s.rows()
	want := s.forward(h, v)
	in := s.inputs(h, v)
	zeros := make([]float32, 3*in.StateSize())
	states, o := h.tensor(3, in.StateSize(), zeros), h.tensor(rows, s.out(), make([]float32, rows*s.out()))
	part := func(from, to int) {
		p := in
		p.Mixed, p.A, p.B = in.Mixed.Slice(from, to), in.A.Slice(from, to), in.B.Slice(from, to)
		h.ok(d.DeltaRule(o.Slice(from, to), p, states, []tensor.StateRun{{Count: to - from, Slot: 1}}))
	}
	for cut := range rows + 1 {
		if (s.keyDim > 32 || slow) && cut%8 > 1 && cut%8 < 7 {
			continue // of large heads, cuts at and beside what devices may take at once
		}
		if slow && cut > 17 && cut%32 > 1 && cut%32 < 31 {
			continue
		}
		h.ok(d.Upload(states, zeros))
		part(0, cut)
		part(cut, rows)
		sameBits(t, fmt.Sprint("cut at ", cut), h.read(o), want)
	}
	h.ok(d.Upload(states, zeros))
	for i := range rows {
		part(i, i+1)
	}
	sameBits(t, "token by token", h.read(o), want)
	for i, other := range h.read(states.Slice(0, 1)) {
		if other != 0 {
			t.Fatalf("element %d of another slot was written", i)
		}
	}
}

// deltaAlone runs sequences beside others, one of which is not a number, and alone.
func deltaAlone(t *testing.T, d tensor.Device) {
	h := start(t, d)
	s := deltaShape{[]int{70, 3, 65}, 2, 4, 32, 48, 0}
	v := s.values()
	clean, cleanMixed, cleanA := s.forward(h, v), []float32(nil), []float32(nil)
	cleanMixed, cleanA, _ = s.backward(h, v)
	for i := range 4 {
		v.mixed[(70+1)*s.mixed()+40*i] = float32(math.NaN())
	}
	got := s.forward(h, v)
	gotMixed, gotA, _ := s.backward(h, v)
	for _, rows := range [][2]int{{0, 70}, {73, 138}} {
		sameBits(t, "outputs", got[rows[0]*s.out():rows[1]*s.out()], clean[rows[0]*s.out():rows[1]*s.out()])
		sameBits(t, "gradients", gotMixed[rows[0]*s.mixed():rows[1]*s.mixed()], cleanMixed[rows[0]*s.mixed():rows[1]*s.mixed()])
		sameBits(t, "gradients of a", gotA[rows[0]*s.valueHeads:rows[1]*s.valueHeads], cleanA[rows[0]*s.valueHeads:rows[1]*s.valueHeads])
	}
	row, whole := 0, s.values()
	for _, l := range s.lengths {
		one := s
		one.lengths = []int{l}
		slice := func(x []float32, width int) []float32 { return x[row*width : (row+l)*width] }
		v := deltaValues{slice(whole.mixed, s.mixed()), slice(whole.a, s.valueHeads), slice(whole.b, s.valueHeads), whole.decay, whole.bias, slice(whole.do, s.out())}
		sameBits(t, "outputs alone", one.forward(h, v), slice(clean, s.out()))
		dmixed, da, _ := one.backward(h, v)
		sameBits(t, "gradients alone", dmixed, slice(cleanMixed, s.mixed()))
		sameBits(t, "gradients of a alone", da, slice(cleanA, s.valueHeads))
		row += l
	}
}

func recurrenceRefusals(t *testing.T, d tensor.Device) {
	h := start(t, d)
	s := deltaShape{[]int{4}, 1, 2, 3, 2, 0}
	v := s.values()
	in := s.inputs(h, v)
	zeros := func(rows, cols int) tensor.Tensor { return h.tensor(rows, cols, make([]float32, rows*cols)) }
	o, m, gate, states := zeros(4, 4), zeros(4, s.mixed()), zeros(4, 2), zeros(2, in.StateSize())
	wrong := func(change func(*tensor.DeltaInputs)) tensor.DeltaInputs { w := in; change(&w); return w }
	none := tensor.Tensor{}
	whole := []tensor.StateRun{{Count: 4, Slot: tensor.NoSlot}}
	x, w, tails, row := zeros(4, 5), zeros(4, 5), zeros(2, 15), zeros(1, 5)
	for name, err := range map[string]error{
		"conv shape":          d.Conv(x, m, w, tails, whole),
		"conv weight":         d.Conv(x, x, zeros(9, 5), none, whole),
		"conv no weight":      d.Conv(x, x, w.Slice(0, 0), none, whole),
		"conv tails":          d.Conv(x, x, w, m, whole),
		"conv slot":           d.Conv(x, x, w, tails, []tensor.StateRun{{Count: 4, Slot: 2}}),
		"conv no slots":       d.Conv(x, x, w, none, []tensor.StateRun{{Count: 4}}),
		"conv backward slot":  d.ConvBackward(x, x, x, w, []tensor.StateRun{{Count: 4}}),
		"conv backward shape": d.ConvBackward(x, x, m, w, whole),
		"delta heads":         d.DeltaRule(o, wrong(func(w *tensor.DeltaInputs) { w.KeyHeads = 3 }), none, whole),
		"delta no heads":      d.DeltaRule(o, wrong(func(w *tensor.DeltaInputs) { w.KeyHeads = 0 }), none, whole),
		"delta dimension":     d.DeltaRule(o, wrong(func(w *tensor.DeltaInputs) { w.KeyDim = 257 }), none, whole),
		"delta no dimension":  d.DeltaRule(o, wrong(func(w *tensor.DeltaInputs) { w.ValueDim = 0 }), none, whole),
		"delta mixed":         d.DeltaRule(o, wrong(func(w *tensor.DeltaInputs) { w.Mixed = o }), none, whole),
		"delta a":             d.DeltaRule(o, wrong(func(w *tensor.DeltaInputs) { w.A = o }), none, whole),
		"delta decay":         d.DeltaRule(o, wrong(func(w *tensor.DeltaInputs) { w.ALog = row }), none, whole),
		"delta output":        d.DeltaRule(x, in, none, whole),
		"delta states":        d.DeltaRule(o, in, x, whole),
		"delta slot":          d.DeltaRule(o, in, states, []tensor.StateRun{{Count: 4, Slot: 2}}),
		"delta slot below":    d.DeltaRule(o, in, states, []tensor.StateRun{{Count: 4, Slot: -2}}),
		"delta slot twice":    d.DeltaRule(o, in, states, []tensor.StateRun{{Count: 2, Slot: 1}, {Row: 2, Count: 2, Slot: 1}}),
		"delta rows":          d.DeltaRule(o, in, states, []tensor.StateRun{{Row: 1, Count: 4, Slot: 1}}),
		"delta rows twice":    d.DeltaRule(o, in, states, []tensor.StateRun{{Count: 2, Slot: 1}, {Row: 1, Count: 2, Slot: 0}}),
		"backward slot":       d.DeltaRuleBackward(m, gate, gate, o, in, []tensor.StateRun{{Count: 4}}),
		"backward mixed":      d.DeltaRuleBackward(o, gate, gate, o, in, whole),
		"backward a":          d.DeltaRuleBackward(m, o, gate, o, in, whole),
		"backward output":     d.DeltaRuleBackward(m, gate, gate, x, in, whole),
		"gated norm shape":    d.GatedNorm(x, x, o, row, normEps),
		"gated norm weight":   d.GatedNorm(x, x, x, x, normEps),
		"gated norm backward": d.GatedNormBackward(x, x, x, x, o, row, normEps),
		"sigmoid gate":        d.SigmoidGate(x, x, o),
		"sigmoid gate back":   d.SigmoidGateBackward(x, x, x, x, o),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
