package optest

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// mixture is tokens that each choose slots of experts, whose matrices are out × in.
type mixture struct{ tokens, slots, experts, out, in int }

var mixtures = []mixture{
	{1, 1, 1, 5, 3}, {1, 2, 4, 33, 20}, {3, 3, 3, 64, 17}, {7, 2, 60, 20, 31}, {40, 2, 8, 130, 70}, {100, 8, 10, 40, 129}, {9, 10, 512, 8, 20}, {200, 4, 5, 24, 70},
	{64, 1, 3, 200, 64}, {300, 1, 1, 40, 33}, {0, 2, 4, 8, 8},
}

func (m mixture) String() string {
	return fmt.Sprintf("%d tokens %d of %d experts %d×%d", m.tokens, m.slots, m.experts, m.out, m.in)
}

// logits has ties: values are multiples of a quarter.
func (m mixture) logits(seed uint64) []float32 {
	v := normal(seed, m.tokens*m.experts)
	for i := range v {
		v[i] = float32(math.Round(4*float64(v[i])) / 4)
	}
	return v
}

// chosen is what a token with these logits chooses.
func chosen(logits []float32, slots int) []int {
	all := make([]int, len(logits))
	for e := range all {
		all[e] = e
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	return all[:slots]
}

// weights is the softmax of those that are chosen or of all.
func weights(logits []float32, choice []int, normalise bool) []float64 {
	var sum float64
	p := make([]float64, len(choice))
	for s, e := range choice {
		p[s] = math.Exp(float64(logits[e]))
		sum += p[s]
	}
	if !normalise {
		sum = 0
		for _, l := range logits {
			sum += math.Exp(float64(l))
		}
	}
	for s := range p {
		p[s] /= sum
	}
	return p
}

// sorted is the token and slot of each row of the table, and the rows of each expert.
func (m mixture) sorted(logits []float32) (rows [][2]int, first []int) {
	first = []int{0}
	choices := make([][]int, m.tokens)
	for t := range choices {
		choices[t] = chosen(logits[t*m.experts:(t+1)*m.experts], m.slots)
	}
	for e := range m.experts {
		for t, choice := range choices {
			if s := slices.Index(choice, e); s >= 0 {
				rows = append(rows, [2]int{t, s})
			}
		}
		first = append(first, len(rows))
	}
	return rows, first
}

// routed is a table on the device with what belongs to it.
type routed struct {
	table     tensor.Table
	choice, p tensor.Tensor
}

func (h *bench) routed(m mixture, logits []float32) routed {
	h.t.Helper()
	r := routed{choice: h.view(m.tokens, m.slots, make([]float32, m.tokens*m.slots)), p: h.view(m.tokens, m.slots, make([]float32, m.tokens*m.slots))}
	h.ok(h.d.Route(r.choice, r.p, h.view(m.tokens, m.experts, logits), true))
	words := tensor.TableWords(m.tokens, m.slots, m.experts)
	r.table = tensor.Table{Words: h.tensor(1, words, make([]float32, words)), Tokens: m.tokens, Slots: m.slots, Experts: m.experts}
	h.ok(h.d.Dispatch(r.table, r.choice))
	return r
}

// stack packs the matrices of experts, of which there is one for all or one each.
func (h *bench) stack(d tensor.DType, experts, out, in int, values []float32) tensor.Stack {
	h.t.Helper()
	m, err := h.d.NewMatrix(d, tensor.StackRows(experts, out), in)
	h.ok(err)
	h.t.Cleanup(m.Free)
	s := tensor.NewStack(m, experts, out)
	for e := range experts {
		h.ok(h.d.PackRows(m, e*s.Pitch, out, "F32", littleEndian(values[e*out*in:(e+1)*out*in])))
	}
	return s
}

func integers(v []float32) []float64 {
	w := make([]float64, len(v))
	for i := range v {
		w[i] = float64(int32(math.Float32bits(v[i])))
	}
	return w
}

func expertCases(mixtures []mixture, o Options) []testCase {
	var all []testCase
	for i, m := range mixtures {
		if o.Slow {
			m.experts = min(m.experts, 150)
		}
		seed := uint64(9000 + 100*i)
		logits := m.logits(seed)
		rows, first := m.sorted(logits)
		row := func(t int) []float32 { return logits[t*m.experts : (t+1)*m.experts] }
		dp := normal(seed+1, m.tokens*m.slots)
		for _, normalise := range []bool{true, false} {
			all = append(all, testCase{name: fmt.Sprintf("route %v normalise %v", m, normalise), tolerance: 1e-5,
				run: func(h *bench) [][]float32 {
					choice, p, l := h.view(m.tokens, m.slots, make([]float32, m.tokens*m.slots)), h.view(m.tokens, m.slots, make([]float32, m.tokens*m.slots)), h.view(m.tokens, m.experts, logits)
					h.ok(h.d.Route(choice, p, l, normalise))
					numbers := h.read(choice)
					for i, v := range integers(numbers) {
						numbers[i] = float32(v)
					}
					dlogits := h.view(m.tokens, m.experts, normal(seed+2, m.tokens*m.experts))
					h.ok(h.d.RouteBackward(dlogits, h.view(m.tokens, m.slots, dp), p, choice, l, normalise))
					return [][]float32{numbers, h.read(p), h.read(dlogits)}
				},
				want: func() [][]float64 {
					var numbers, p, dlogits []float64
					for t := range m.tokens {
						choice := chosen(row(t), m.slots)
						w := weights(row(t), choice, normalise)
						p = append(p, w...)
						everyone := weights(row(t), chosen(row(t), m.experts), normalise)
						d, mean := make([]float64, m.experts), 0.0
						for s, e := range choice {
							numbers = append(numbers, float64(e))
							mean += w[s] * float64(dp[t*m.slots+s])
						}
						if !normalise {
							for i, e := range chosen(row(t), m.experts) {
								d[e] = -everyone[i] * mean
							}
						}
						for s, e := range choice {
							d[e] = w[s] * (float64(dp[t*m.slots+s]) - mean)
						}
						dlogits = append(dlogits, d...)
					}
					return [][]float64{numbers, p, dlogits}
				}})
		}
		all = append(all, testCase{name: fmt.Sprintf("dispatch %v", m), tolerance: 0,
			run: func(h *bench) [][]float32 {
				words := h.read(h.routed(m, logits).table.Words)
				for i, v := range integers(words) {
					words[i] = float32(v)
				}
				return [][]float32{words}
			},
			want: func() [][]float64 {
				var words, slots []float64
				for _, f := range first {
					words = append(words, float64(f))
				}
				places := make([]float64, len(rows))
				for i, r := range rows {
					words, slots, places[r[0]*m.slots+r[1]] = append(words, float64(r[0])), append(slots, float64(r[0]*m.slots+r[1])), float64(i)
				}
				return [][]float64{slices.Concat(words, slots, places)}
			}})
		all = append(all, m.products(seed, logits, rows, first, o)...)
		all = append(all, m.combinations(seed, logits, rows)...)
	}
	return all
}

// products are the routed products and outer products of a mixture: with one matrix for all or one each, of the last tokens with others than the first ones.
func (m mixture) products(seed uint64, logits []float32, rows [][2]int, first []int, o Options) []testCase {
	var all []testCase
	cut := m.tokens / 3
	for i := range 16 {
		if o.Slow && bits.OnesCount(uint(i))%2 != 0 {
			continue // with the others each three of the four settings are there in all ways
		}
		dtype, gathered, shared, transposed := tensor.Float32, i&1 != 0, i&2 != 0, i&4 != 0
		if i&8 != 0 {
			dtype = tensor.BFloat16
		}
		accumulate := (i/2+i/8)%2 == 0
		experts, out, in := m.experts, m.out, m.in
		if shared {
			experts = 1
		}
		if transposed {
			out, in = in, out
		}
		have := len(rows)
		if gathered {
			have = m.tokens
		}
		x, before := normal(seed+10, have*in), normal(seed+11, len(rows)*out)
		w := [2][]float32{normal(seed+12, experts*m.out*m.in), normal(seed+13, experts*m.out*m.in)}
		all = append(all, testCase{
			name: fmt.Sprintf("routed matmul %v %v gathered %v shared %v transposed %v", m, dtype, gathered, shared, transposed), tolerance: 1e-5,
			run: func(h *bench) [][]float32 {
				r := h.routed(m, logits)
				y := h.view(len(rows), out, before)
				h.ok(h.d.MatMulRouted(r.table, tensor.RoutedProduct{Y: y, X: h.view(have, in, x), Gathered: gathered, Accumulate: accumulate, Transposed: transposed, Groups: []tensor.RoutedGroup{
					{From: 0, To: cut, Stack: h.stack(dtype, experts, m.out, m.in, w[0])},
					{From: cut, To: m.tokens, Stack: h.stack(dtype, experts, m.out, m.in, w[1]), Factor: 0.5, Round: tensor.Float32},
				}}))
				return [][]float32{h.read(y)}
			},
			want: func() [][]float64 {
				y := make([]float64, len(rows)*out)
				for e := range m.experts {
					for i := first[e]; i < first[e+1]; i++ {
						t, from, which, factor := rows[i][0], i, 0, 1.0
						if gathered {
							from = t
						}
						if t >= cut {
							which, factor = 1, 0.5
						}
						at := e * m.out * m.in
						if shared {
							at = 0
						}
						weight := rounded(dtype, w[which][at:at+m.out*m.in])
						if transposed {
							weight = transpose(weight, m.out, m.in)
						}
						into := make([]float64, out)
						if accumulate {
							into = float64s(before[i*out : (i+1)*out])
						}
						for k, v := range multiply(rounded(dtype, x[from*in:(from+1)*in]), weight, shape{1, out, in}, into) {
							y[i*out+k] = v * factor
						}
					}
				}
				return [][]float64{y}
			}})
	}
	a, b, before := normal(seed+20, len(rows)*m.out), normal(seed+21, len(rows)*m.in), normal(seed+22, m.experts*m.out*m.in)
	for _, isFirst := range []bool{false, true} {
		all = append(all, testCase{
			name: fmt.Sprintf("routed outer products %v first %v", m, isFirst), tolerance: 1e-5,
			run: func(h *bench) [][]float32 {
				r := h.routed(m, logits)
				var g [2]tensor.Tensor
				var list []tensor.RoutedOuter
				for k, part := range [][2]int{{0, cut}, {cut, m.tokens}} {
					g[k] = h.view(m.experts*m.out, m.in, before)
					list = append(list, tensor.RoutedOuter{G: g[k], A: h.view(len(rows), m.out, a), B: h.view(len(rows), m.in, b), From: part[0], To: part[1], First: isFirst})
				}
				h.ok(h.d.OuterRouted(r.table, list...))
				return [][]float32{h.read(g[0]), h.read(g[1])}
			},
			want: func() [][]float64 {
				var g [][]float64
				for k := range 2 {
					sums := float64s(before)
					if isFirst {
						clear(sums)
					}
					for e := range m.experts {
						for i := first[e]; i < first[e+1]; i++ {
							if (rows[i][0] >= cut) != (k == 1) {
								continue
							}
							for p := range m.out {
								for q := range m.in {
									sums[(e*m.out+p)*m.in+q] += float64(a[i*m.out+p]) * float64(b[i*m.in+q])
								}
							}
						}
					}
					g = append(g, sums)
				}
				return g
			}})
	}
	return all
}

// combinations are what goes from tokens to rows and back.
func (m mixture) combinations(seed uint64, logits []float32, rows [][2]int) []testCase {
	var all []testCase
	cols := m.in
	x, y, drows, values := normal(seed+30, m.tokens*cols), normal(seed+31, m.tokens*cols), normal(seed+32, len(rows)*cols), normal(seed+33, len(rows)*cols)
	p := normal(seed+34, m.tokens*m.slots)
	for _, weighted := range []bool{false, true} {
		factor := func(r [2]int) float64 {
			if weighted {
				return float64(p[r[0]*m.slots+r[1]])
			}
			return 1
		}
		all = append(all, testCase{name: fmt.Sprintf("spread and combine %v weighted %v", m, weighted), tolerance: 1e-5,
			run: func(h *bench) [][]float32 {
				r := h.routed(m, logits)
				var weights tensor.Tensor
				if weighted {
					weights = h.view(m.tokens, m.slots, p)
				}
				spread, sums, more := h.view(len(rows), cols, values), h.view(m.tokens, cols, y), h.view(m.tokens, cols, y)
				h.ok(h.d.Spread(spread, h.view(m.tokens, cols, x), weights, r.table, true))
				weighed := h.view(len(rows), cols, values)
				h.ok(h.d.Spread(weighed, weighed, weights, r.table, false))
				h.ok(h.d.Combine(sums, h.view(len(rows), cols, values), weights, r.table, false))
				h.ok(h.d.Combine(more, h.view(len(rows), cols, values), weights, r.table, true))
				return [][]float32{h.read(spread), h.read(weighed), h.read(sums), h.read(more)}
			},
			want: func() [][]float64 {
				spread, weighed, sums, more := make([]float64, len(rows)*cols), make([]float64, len(rows)*cols), make([]float64, m.tokens*cols), float64s(y)
				for i, r := range rows {
					for c := range cols {
						spread[i*cols+c] = float64(x[r[0]*cols+c]) * factor(r)
						weighed[i*cols+c] = float64(values[i*cols+c]) * factor(r)
						sums[r[0]*cols+c] += factor(r) * float64(values[i*cols+c])
						more[r[0]*cols+c] += factor(r) * float64(values[i*cols+c])
					}
				}
				return [][]float64{spread, weighed, sums, more}
			}})
	}
	return append(all, testCase{name: fmt.Sprintf("combine backward %v", m), tolerance: 1e-5,
		run: func(h *bench) [][]float32 {
			r := h.routed(m, logits)
			dp, d := h.view(m.tokens, m.slots, make([]float32, m.tokens*m.slots)), h.view(len(rows), cols, drows)
			h.ok(h.d.CombineBackward(dp, d, h.view(len(rows), cols, values), h.view(m.tokens, m.slots, p), r.table, tensor.Segments{}))
			return [][]float32{h.read(dp), h.read(d)}
		},
		want: func() [][]float64 {
			dp, d := make([]float64, m.tokens*m.slots), make([]float64, len(rows)*cols)
			for i, r := range rows {
				at := r[0]*m.slots + r[1]
				for c := i * cols; c < (i+1)*cols; c++ {
					dp[at] += float64(drows[c]) * float64(values[c])
					d[c] = float64(drows[c]) * float64(p[at])
				}
			}
			return [][]float64{dp, d}
		}})
}

// experts checks the promises on bits: a token's rows do not depend on the other tokens, and a routed product has the bits of the plain one; and that what does not fit is refused.
func experts(t *testing.T, d tensor.Device, o Options) {
	m := mixture{90, 3, 7, 70, 65}
	logits := m.logits(77)
	for i := range m.tokens { // many tokens to one expert, and one that nobody chooses
		logits[i*m.experts+2], logits[i*m.experts+5] = 9, -9
	}
	rows, first := m.sorted(logits)
	if first[3]-first[2] != m.tokens || first[6] != first[5] {
		t.Fatal("the loads are not as they should be")
	}
	if d.Segmented() {
		t.Run("segments", func(t *testing.T) { routedSegments(t, d, m, logits, 1, 2, 8) })
	}
	x, w := normal(78, m.tokens*m.in), normal(79, m.experts*m.out*m.in)
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, transposed := range []bool{false, true} {
			t.Run(fmt.Sprintf("bits %v transposed %v", dtype, transposed), func(t *testing.T) {
				h := start(t, d)
				r, stack := h.routed(m, logits), h.stack(dtype, m.experts, m.out, m.in, w)
				in, out := m.in, m.out
				if transposed {
					in, out = out, in
				}
				x := h.tensor(m.tokens, in, normal(80, m.tokens*in))
				y, one := h.tensor(len(rows), out, make([]float32, len(rows)*out)), h.tensor(1, out, make([]float32, out))
				h.ok(d.MatMulRouted(r.table, tensor.RoutedProduct{Y: y, X: x, Gathered: true, Transposed: transposed, Groups: []tensor.RoutedGroup{{To: m.tokens, Stack: stack}}}))
				got := h.read(y)
				again := h.tensor(len(rows), out, make([]float32, len(rows)*out))
				for _, part := range [][2]int{{3, 7}, {0, 1}, {1, 3}} {
					some := r.table
					some.From, some.To = part[0], part[1]
					h.ok(d.MatMulRouted(some, tensor.RoutedProduct{Y: again, X: x, Gathered: true, Transposed: transposed, Groups: []tensor.RoutedGroup{{To: m.tokens, Stack: stack}}}))
				}
				sameBits(t, "some experts at a time", h.read(again), got)
				for e := range m.experts {
					for i := first[e]; i < first[e+1]; i++ {
						token := x.Slice(rows[i][0], rows[i][0]+1)
						if transposed {
							h.ok(d.MatMulTransposed(one, token, stack.Of(e), false))
						} else {
							h.ok(d.MatMul(one, token, stack.Of(e), false))
						}
						sameBits(t, fmt.Sprintf("row %d", i), got[i*out:(i+1)*out], h.read(one))
					}
				}
				single := m
				single.tokens = 1
				for _, token := range []int{0, 31, 89} {
					r := h.routed(single, logits[token*m.experts:(token+1)*m.experts])
					y := h.tensor(m.slots, out, make([]float32, m.slots*out))
					h.ok(d.MatMulRouted(r.table, tensor.RoutedProduct{Y: y, X: x.Slice(token, token+1), Gathered: true, Transposed: transposed, Groups: []tensor.RoutedGroup{{To: 1, Stack: stack}}}))
					alone, at := h.read(y), 0
					for i, row := range rows {
						if row[0] == token {
							sameBits(t, fmt.Sprintf("token %d alone", token), alone[at*out:(at+1)*out], got[i*out:(i+1)*out])
							at++
						}
					}
				}
			})
		}
	}
	t.Run("bits of many rows", func(t *testing.T) { // for which devices may have other products
		h := start(t, d)
		m := mixture{400, 1, 2, 40, 70}
		logits := m.logits(81)
		rows, first := m.sorted(logits)
		r, stack := h.routed(m, logits), h.stack(tensor.BFloat16, m.experts, m.out, m.in, normal(82, m.experts*m.out*m.in))
		x, y, one := h.tensor(m.tokens, m.in, normal(83, m.tokens*m.in)), h.tensor(len(rows), m.out, make([]float32, len(rows)*m.out)), h.tensor(1, m.out, make([]float32, m.out))
		h.ok(d.MatMulRouted(r.table, tensor.RoutedProduct{Y: y, X: x, Gathered: true, Groups: []tensor.RoutedGroup{{To: m.tokens, Stack: stack}}}))
		got := h.read(y)
		for e := range m.experts {
			for i := first[e]; i < first[e+1]; i += 21 {
				h.ok(d.MatMul(one, x.Slice(rows[i][0], rows[i][0]+1), stack.Of(e), false))
				sameBits(t, fmt.Sprintf("row %d", i), got[i*m.out:(i+1)*m.out], h.read(one))
			}
		}
	})
	t.Run("alone", func(t *testing.T) {
		h := start(t, d)
		all := h.routed(m, logits)
		choice, p := h.read(all.choice), h.read(all.p)
		one := m
		one.tokens = 1
		for i := range m.tokens {
			alone := h.routed(one, logits[i*m.experts:(i+1)*m.experts])
			sameBits(t, fmt.Sprintf("choice of token %d", i), h.read(alone.choice), choice[i*m.slots:(i+1)*m.slots])
			sameBits(t, fmt.Sprintf("weights of token %d", i), h.read(alone.p), p[i*m.slots:(i+1)*m.slots])
		}
	})
	t.Run("not finite", func(t *testing.T) {
		h := start(t, d)
		random := rand.New(rand.NewPCG(1, 2))
		clean := h.routed(m, logits)
		spoilt := slices.Clone(logits)
		values := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}
		for i := range m.experts {
			if random.IntN(3) > 0 {
				spoilt[40*m.experts+i] = values[random.IntN(3)]
			}
		}
		spoilt[40*m.experts+3] = values[0]
		bad := h.routed(m, spoilt)
		got, want := h.read(bad.choice), h.read(clean.choice)
		sameBits(t, "before", got[:40*m.slots], want[:40*m.slots])
		sameBits(t, "after", got[41*m.slots:], want[41*m.slots:])
		seen := map[float64]bool{}
		for _, e := range integers(got[40*m.slots : 41*m.slots]) {
			if e < 0 || e >= float64(m.experts) || seen[e] {
				t.Errorf("chose expert %v", e)
			}
			seen[e] = true
		}
	})
	t.Run("NaN is chosen", func(t *testing.T) { // wherever it stands, so that it is seen
		nan := float32(math.NaN())
		for _, at := range []int{0, 3, m.experts - 1} {
			for _, normalise := range []bool{true, false} {
				h := start(t, d)
				spoilt := slices.Clone(logits[:m.experts])
				spoilt[at] = nan
				choice, p := h.view(1, m.slots, make([]float32, m.slots)), h.view(1, m.slots, make([]float32, m.slots))
				h.ok(d.Route(choice, p, h.view(1, m.experts, spoilt), normalise))
				if got := integers(h.read(choice)); int(got[0]) != at {
					t.Errorf("NaN is expert %d's logit, chosen are %v", at, got)
				}
				for s, v := range h.read(p) {
					if v == v {
						t.Errorf("NaN is expert %d's logit, normalise %v: slot %d has the probability %v", at, normalise, s, v)
					}
				}
			}
		}
	})
	t.Run("refusals", func(t *testing.T) {
		h := start(t, d)
		r, stack := h.routed(m, logits), h.stack(tensor.Float32, m.experts, m.out, m.in, w)
		zeros := func(rows, cols int) tensor.Tensor { return h.tensor(rows, cols, make([]float32, rows*cols)) }
		in, y, y2 := h.tensor(m.tokens, m.in, x), zeros(len(rows), m.out), zeros(len(rows), m.in)
		product := func(change func(*tensor.RoutedProduct)) error {
			p := tensor.RoutedProduct{Y: y, X: in, Gathered: true, Groups: []tensor.RoutedGroup{{To: m.tokens, Stack: stack}}}
			change(&p)
			return d.MatMulRouted(r.table, p)
		}
		h.ok(product(func(*tensor.RoutedProduct) {}))
		short := r.table
		short.Words = short.Words.Columns(0, short.Words.Cols-1)
		other := r.table
		other.Slots = 8
		beyond := r.table
		beyond.To = m.experts + 1
		g := zeros(m.experts*m.out, m.in)
		outer := tensor.RoutedOuter{G: g, A: y, B: y2, To: m.tokens}
		h.ok(d.OuterRouted(r.table, outer))
		wrong := h.tensor(m.tokens, m.slots, slices.Repeat([]float32{math.Float32frombits(99)}, m.tokens*m.slots))
		for name, err := range map[string]error{
			"a short table":           d.Dispatch(short, r.choice),
			"experts beyond":          d.Dispatch(beyond, r.choice),
			"more slots than experts": d.Dispatch(other, r.choice),
			"not a choice":            d.Dispatch(r.table, zeros(m.tokens, m.slots+1)),
			"rows as tokens":          product(func(p *tensor.RoutedProduct) { p.Gathered = false }),
			"narrow y":                product(func(p *tensor.RoutedProduct) { p.Y = y.Columns(1, m.out) }),
			"tokens beyond":           product(func(p *tensor.RoutedProduct) { p.Groups[0].To++ }),
			"a token twice":           product(func(p *tensor.RoutedProduct) { p.Groups = append(p.Groups, p.Groups[0]) }),
			"few matrices":            product(func(p *tensor.RoutedProduct) { p.Groups[0].Stack.Pitch *= 2 }),
			"pitch":                   product(func(p *tensor.RoutedProduct) { p.Groups[0].Stack.Pitch = 72 }),
			"one for all":             product(func(p *tensor.RoutedProduct) { p.Groups[0].Stack.Pitch = 0 }),
			"small g":                 d.OuterRouted(r.table, tensor.RoutedOuter{G: g.Slice(1, g.Rows), A: y, B: y2, To: m.tokens}),
			"g twice":                 d.OuterRouted(r.table, outer, outer),
			"spread":                  d.Spread(y, in, tensor.Tensor{}, r.table, true),
			"combine":                 d.Combine(in, y, tensor.Tensor{}, r.table, false),
			"combine backward":        d.CombineBackward(r.p, y, y2, r.p, r.table, tensor.Segments{}),
			"an odd segment":          product(func(p *tensor.RoutedProduct) { p.Segments = tensor.Segments{Count: 2, Ends: [8]int32{3, int32(m.in)}} }),
			"segments that accumulate": product(func(p *tensor.RoutedProduct) {
				p.Segments, p.Accumulate = tensor.Segments{Count: 2, Ends: [8]int32{4, int32(m.in)}}, true
			}),
			"continues nothing": product(func(p *tensor.RoutedProduct) { p.Continues = true }),
			"continues another": d.MatMulRouted(r.table, tensor.RoutedProduct{Y: y, X: in, Gathered: true, Groups: []tensor.RoutedGroup{{To: m.tokens, Stack: stack}}},
				tensor.RoutedProduct{Y: y, X: in, Gathered: true, Continues: true, Groups: []tensor.RoutedGroup{{To: m.tokens, Stack: stack}}}),
			"route": d.Route(r.choice, r.p, in.Columns(0, 2), true),
		} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		switch err := d.Dispatch(r.table, wrong); {
		case !o.ChoicesUnseen && err == nil:
			t.Error("an expert that there is not: no error")
		case o.ChoicesUnseen:
			h.ok(err)
			words := integers(h.read(r.table.Words))
			for i, v := range words {
				switch slot := i - m.experts - 1; {
				case slot < 0 && v != 0 && i < m.experts, i == m.experts && v != float64(len(rows)):
					t.Errorf("expert %d begins with row %v", i, v)
				case slot >= 0 && v != float64([]int{slot / m.slots, slot - len(rows), slot - 2*len(rows)}[slot/len(rows)]): // all are the last expert's
					t.Errorf("of slot %d the table has %v", slot, v)
				}
			}
		}
	})
}
