package optest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// attentionShape is a batch of whole sequences.
type attentionShape struct {
	lengths                    []int
	queryHeads, heads, headDim int
	dtype                      tensor.DType
}

func (s attentionShape) rows() int {
	var n int
	for _, l := range s.lengths {
		n += l
	}
	return n
}

func (s attentionShape) String() string {
	return fmt.Sprintf("%v lengths %v heads %d/%d dimension %d", s.dtype, s.lengths, s.queryHeads, s.heads, s.headDim)
}

func (s attentionShape) scale() float32 { return float32(1 / math.Sqrt(float64(s.headDim))) }

// inputs gives q, k, v and the gradient of the output.
func (s attentionShape) inputs() (q, k, v, do []float32) {
	rows := s.rows()
	return normal(1, rows*s.queryHeads*s.headDim), normal(2, rows*s.heads*s.headDim), normal(3, rows*s.heads*s.headDim), normal(4, rows*s.queryHeads*s.headDim)
}

// runs gives every sequence pages of its own, in an order that is not ascending, and the number of pages in all.
func (s attentionShape) runs() ([]tensor.AttentionRun, int) {
	var runs []tensor.AttentionRun
	var row, page int
	for _, l := range s.lengths {
		r := tensor.AttentionRun{Row: row, Count: l}
		for at := 0; at < l; at += tensor.PageSize {
			r.Pages = append(r.Pages, int32(page))
			page++
		}
		row += l
		runs = append(runs, r)
	}
	for i := range runs {
		for k := range runs[i].Pages {
			runs[i].Pages[k] = int32(page) - runs[i].Pages[k]
		}
	}
	return runs, page + 1
}

var attentionShapes = []attentionShape{
	{[]int{1}, 1, 1, 1, tensor.Float32},
	{[]int{3, 0, 5}, 2, 1, 8, tensor.Float32},
	{[]int{64, 1, 65}, 4, 2, 32, tensor.Float32},
	{[]int{130}, 6, 2, 40, tensor.BFloat16},
	{[]int{7, 200, 13}, 4, 2, 64, tensor.BFloat16},
	{[]int{90, 33}, 2, 2, 128, tensor.Float32},
	{[]int{20}, 15, 1, 24, tensor.BFloat16},
	// Devices may have other kernels for few rows, and for each head dimension.
	{[]int{1, 3, 5, 1}, 2, 1, 64, tensor.Float32},
	{[]int{1, 3, 5, 1}, 2, 1, 128, tensor.Float32},
	{[]int{1, 3, 5, 1}, 2, 1, 64, tensor.BFloat16},
	{[]int{1, 3, 5, 1}, 2, 1, 128, tensor.BFloat16},
	{[]int{9, 2}, 2, 1, 64, tensor.Float32},
	{[]int{9, 2}, 2, 1, 128, tensor.BFloat16},
	{[]int{1, 3, 5, 1}, 2, 1, 256, tensor.Float32},
	{[]int{1, 3, 5, 1}, 2, 1, 256, tensor.BFloat16},
	{[]int{70, 3}, 4, 2, 256, tensor.BFloat16},
	{[]int{33, 20}, 2, 1, 200, tensor.BFloat16},
	{[]int{40}, 2, 1, 256, tensor.Float32},
}

// attend is the reference, for the keys and values as the pages hold them. Each row's probabilities are given for the backward pass.
func (s attentionShape) attend(q, k, v []float64) (o, lse []float64, probabilities [][]float64) {
	d, qw, kw := s.headDim, s.queryHeads*s.headDim, s.heads*s.headDim
	row := 0
	for _, l := range s.lengths {
		for r := range l {
			for h := range s.queryHeads {
				kh := h / (s.queryHeads / s.heads)
				query := q[(row+r)*qw+h*d : (row+r)*qw+h*d+d]
				scores := elementwise(r+1, func(i int) float64 { return float64(s.scale()) * dot(query, k[(row+i)*kw+kh*d:(row+i)*kw+kh*d+d]) })
				z := logSumExp(scores)
				out := make([]float64, d)
				for i := range scores {
					scores[i] = math.Exp(scores[i] - z)
					for c := range d {
						out[c] += scores[i] * v[(row+i)*kw+kh*d+c]
					}
				}
				o, lse, probabilities = append(o, out...), append(lse, z), append(probabilities, scores)
			}
		}
		row += l
	}
	return o, lse, probabilities
}

// backward is the reference gradient.
func (s attentionShape) backward(q, k, v, do []float64) (dq, dk, dv []float64) {
	o, _, probabilities := s.attend(q, k, v)
	d, kw := s.headDim, s.heads*s.headDim
	dq, dk, dv = make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(v))
	row, at := 0, 0
	for _, l := range s.lengths {
		for r := range l {
			for h := range s.queryHeads {
				kh := h / (s.queryHeads / s.heads)
				qi := at * d
				delta := dot(do[qi:qi+d], o[qi:qi+d])
				for i, p := range probabilities[at] {
					ki := (row+i)*kw + kh*d
					ds := p * (dot(do[qi:qi+d], v[ki:ki+d]) - delta) * float64(s.scale())
					for c := range d {
						dv[ki+c] += p * do[qi+c]
						dk[ki+c] += ds * q[qi+c]
						dq[qi+c] += ds * k[ki+c]
					}
				}
				at++
			}
			_ = r
		}
		row += l
	}
	return dq, dk, dv
}

// attentionState has a batch's tensors on the device, its keys and values written.
type attentionState struct {
	q, o, lse tensor.Tensor
	pages     tensor.Pages
	runs      []tensor.AttentionRun
}

const attentionLayer = 1 // of two

func (s attentionShape) forward(h *bench, q, k, v []float32) attentionState {
	rows := s.rows()
	pages, runs := s.written(h, k, v)
	a := attentionState{h.view(rows, s.queryHeads*s.headDim, q), h.view(rows, s.queryHeads*s.headDim, q), h.view(rows, s.queryHeads, make([]float32, rows*s.queryHeads)), pages, runs}
	h.ok(h.d.Attention(a.o, a.lse, a.q, pages, attentionLayer, runs, s.queryHeads, s.scale()))
	return a
}

func attentionCases(attentionShapes []attentionShape, o Options) []testCase {
	var all []testCase
	for _, s := range attentionShapes {
		q, k, v, do := s.inputs()
		tolerance := o.attention(s.dtype)
		if s.headDim > 128 { // of the only key of a sequence the gradient is a difference of two sums over the dimension, which are equal but for their rounding
			tolerance *= 2
		}
		all = append(all, testCase{
			name: "attention " + s.String(), tolerance: tolerance, average: o.attentionAverage(s.dtype),
			run: func(h *bench) [][]float32 {
				a := s.forward(h, q, k, v)
				rows, qw, kw := s.rows(), s.queryHeads*s.headDim, s.heads*s.headDim
				dq, dk, dv := h.view(rows, qw, q), h.view(rows, kw, k), h.view(rows, kw, v)
				h.ok(h.d.AttentionBackward(dq, dk, dv, h.view(rows, qw, do), a.o, a.lse, a.q, a.pages, attentionLayer, a.runs, s.queryHeads, s.scale()))
				return [][]float32{h.read(a.o), h.read(a.lse), h.read(dq), h.read(dk), h.read(dv)}
			},
			want: func() [][]float64 {
				k64, v64 := rounded(s.dtype, k), rounded(s.dtype, v)
				product := tensor.Float32
				if o.RoundedAttention {
					product = s.dtype
				}
				q64, do64 := rounded(product, q), rounded(product, do)
				o, lse, _ := s.attend(q64, k64, v64)
				dq, dk, dv := s.backward(q64, k64, v64, do64)
				return [][]float64{o, lse, dq, dk, dv}
			},
		})
	}
	return all
}

// written gives pages with the keys and values of every sequence.
func (s attentionShape) written(h *bench, k, v []float32) (tensor.Pages, []tensor.AttentionRun) {
	runs, count := s.runs()
	pages, err := h.d.NewPages(s.dtype, 2, count, s.heads, s.headDim)
	h.ok(err)
	h.t.Cleanup(pages.Free)
	width := s.heads * s.headDim
	h.ok(h.d.WritePages(pages, attentionLayer, h.view(s.rows(), width, k), h.view(s.rows(), width, v), runs))
	return pages, runs
}

// attendRows gives the outputs and the log-sum-exps of rows [from, to) of the only sequence.
func (s attentionShape) attendRows(h *bench, q []float32, pages tensor.Pages, run tensor.AttentionRun, from, to int) (o, lse []float32) {
	n, width := to-from, s.queryHeads*s.headDim
	run.Count, run.First = n, from
	out, sum := h.view(n, width, make([]float32, n*width)), h.view(n, s.queryHeads, make([]float32, n*s.queryHeads))
	h.ok(h.d.Attention(out, sum, h.view(n, width, q[from*width:to*width]), pages, attentionLayer, []tensor.AttentionRun{run}, s.queryHeads, s.scale()))
	return h.read(out), h.read(sum)
}

// longAttentionCases are those of every head dimension that a device may have kernels for.
func longAttentionCases(o Options) []testCase {
	var all []testCase
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, headDim := range []int{16, 64, 128, 256} {
			all = append(all, longAttention(dtype, headDim, o))
		}
	}
	return all
}

// longAttention is the last rows of a sequence with two restarts of the running softmax.
func longAttention(dtype tensor.DType, headDim int, o Options) testCase {
	long := attentionShape{[]int{2*2048 + 70}, 2, 1, headDim, dtype}
	q, k, v, _ := long.inputs()
	const last = 5
	return testCase{
		name: "attention " + long.String(), tolerance: o.attention(dtype), average: o.attentionAverage(dtype),
		run: func(h *bench) [][]float32 {
			pages, runs := long.written(h, k, v)
			n := long.lengths[0]
			o, lse := long.attendRows(h, q, pages, runs[0], n-last, n)
			return [][]float32{o, lse}
		},
		want: func() [][]float64 {
			var o, lse []float64
			k, v := rounded(dtype, k), rounded(dtype, v)
			d := long.headDim
			for r := long.lengths[0] - last; r < long.lengths[0]; r++ {
				for h := range long.queryHeads {
					query := float64s(q[(r*long.queryHeads+h)*d : (r*long.queryHeads+h+1)*d])
					scores := elementwise(r+1, func(i int) float64 { return float64(long.scale()) * dot(query, k[i*d:(i+1)*d]) })
					z := logSumExp(scores)
					out := make([]float64, d)
					for i := range scores {
						for c := range d {
							out[c] += math.Exp(scores[i]-z) * v[i*d+c]
						}
					}
					o, lse = append(o, out...), append(lse, z)
				}
			}
			return [][]float64{o, lse}
		},
	}
}

// longCuts checks that the last rows of a sequence with a restart give equal bits all at once, in chunks and one by one: a device may give every part of the keys of few rows a block of its own.
func longCuts(t *testing.T, d tensor.Device, o Options) {
	last := 20
	if o.Slow {
		last = 9 // more than are done together, of two heads
	}
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, headDim := range []int{64, 128, 256} {
			s := attentionShape{[]int{2048 + 66}, 2, 1, headDim, dtype}
			t.Run(s.String(), func(t *testing.T) {
				h := start(t, d)
				q, k, v, _ := s.inputs()
				pages, runs := s.written(h, k, v)
				n := s.lengths[0]
				o, lse := s.attendRows(h, q, pages, runs[0], n-last, n)
				for _, chunk := range []int{1, 7} {
					var inChunks, sums []float32
					for from := n - last; from < n; from += chunk {
						o, lse := s.attendRows(h, q, pages, runs[0], from, min(from+chunk, n))
						inChunks, sums = append(inChunks, o...), append(sums, lse...)
					}
					sameBits(t, fmt.Sprintf("in chunks of %d", chunk), inChunks, o)
					sameBits(t, fmt.Sprintf("log-sum-exp in chunks of %d", chunk), sums, lse)
				}
			})
		}
	}
}

// attentionCuts checks that a sequence in one piece, in chunks, in another batch and token by token gives equal bits.
func attentionCuts(t *testing.T, d tensor.Device, o Options) {
	shapes := []attentionShape{
		{[]int{5, 150, 40}, 4, 2, 64, tensor.BFloat16},
		{[]int{70, 3}, 6, 2, 40, tensor.Float32},
		{[]int{2048 + 66}, 2, 1, 16, tensor.BFloat16},
	}
	if o.Slow {
		shapes = shapes[:2] // longCuts has the last rows of long ones
	}
	for _, s := range shapes {
		t.Run(s.String(), func(t *testing.T) {
			h := start(t, d)
			q, k, v, do := s.inputs()
			whole := s.forward(h, q, k, v)
			o, lse := h.read(whole.o), h.read(whole.lse)
			qw, kw := s.queryHeads*s.headDim, s.heads*s.headDim
			row := 0
			for i, n := range s.lengths {
				for _, chunk := range []int{1, 7, 64, n} {
					from := 0
					if chunk < 64 && n > 200 {
						from = n - 70 // small chunks only at the end of a long one
					}
					pages, err := d.NewPages(s.dtype, 2, len(whole.runs[i].Pages), s.heads, s.headDim)
					h.ok(err)
					var own []int32
					for p := range whole.runs[i].Pages {
						own = append(own, int32(p))
					}
					at := func(x []float32, width, from, to int) tensor.Tensor {
						return h.tensor(to-from, width, x[(row+from)*width:(row+to)*width])
					}
					if from > 0 {
						h.ok(d.WritePages(pages, attentionLayer, at(k, kw, 0, from), at(v, kw, 0, from), []tensor.AttentionRun{{Count: from, Pages: own}}))
					}
					for ; from < n; from += chunk {
						to := min(from+chunk, n)
						run := []tensor.AttentionRun{{Count: to - from, First: from, Pages: own}}
						h.ok(d.WritePages(pages, attentionLayer, at(k, kw, from, to), at(v, kw, from, to), run))
						out := h.tensor(to-from, qw, make([]float32, (to-from)*qw))
						sum := h.tensor(to-from, s.queryHeads, make([]float32, (to-from)*s.queryHeads))
						h.ok(d.Attention(out, sum, at(q, qw, from, to), pages, attentionLayer, run, s.queryHeads, s.scale()))
						sameBits(t, fmt.Sprintf("sequence %d in chunks of %d, rows %d to %d", i, chunk, from, to), h.read(out), o[(row+from)*qw:(row+to)*qw])
						sameBits(t, "log-sum-exp", h.read(sum), lse[(row+from)*s.queryHeads:(row+to)*s.queryHeads])
					}
					pages.Free()
				}
				row += n
			}
			rows := s.rows()
			if rows > 2048 {
				return // the backward pass knows no restarts
			}
			grads := func(runs []tensor.AttentionRun) (a, b, c tensor.Tensor) {
				a, b, c = h.tensor(rows, qw, make([]float32, rows*qw)), h.tensor(rows, kw, make([]float32, rows*kw)), h.tensor(rows, kw, make([]float32, rows*kw))
				for _, r := range runs {
					h.ok(d.AttentionBackward(a, b, c, h.tensor(rows, qw, do), whole.o, whole.lse, whole.q, whole.pages, attentionLayer, []tensor.AttentionRun{r}, s.queryHeads, s.scale()))
				}
				return a, b, c
			}
			a1, b1, c1 := grads(whole.runs) // one sequence at a time
			a2, b2, c2 := h.tensor(rows, qw, make([]float32, rows*qw)), h.tensor(rows, kw, make([]float32, rows*kw)), h.tensor(rows, kw, make([]float32, rows*kw))
			h.ok(d.AttentionBackward(a2, b2, c2, h.tensor(rows, qw, do), whole.o, whole.lse, whole.q, whole.pages, attentionLayer, whole.runs, s.queryHeads, s.scale()))
			sameBits(t, "dq", h.read(a1), h.read(a2))
			sameBits(t, "dk", h.read(b1), h.read(b2))
			sameBits(t, "dv", h.read(c1), h.read(c2))
			var keys, both, rowsOnly []tensor.AttentionRun
			for from := 0; from < slices.Max(s.lengths); from += 2 * tensor.PageSize { // the sequences taking turns
				for _, r := range whole.runs {
					if r.KeysFrom, r.KeysTo = from, min(from+2*tensor.PageSize, r.Count); r.KeysFrom < r.KeysTo {
						keys = append(keys, r)
					}
				}
			}
			for _, r := range whole.runs {
				for from := 0; from < r.Count; from += tensor.PageSize {
					part := r
					part.RowsFrom, part.RowsTo = from, min(from+tensor.PageSize, r.Count)
					rowsOnly = append(rowsOnly, part)
					part.KeysFrom, part.KeysTo = part.RowsFrom, part.RowsTo
					for row := from; row < r.Count; row += 3 * tensor.PageSize {
						part.RowsFrom, part.RowsTo = row, min(row+3*tensor.PageSize, r.Count)
						both = append(both, part)
					}
				}
			}
			for _, c := range []struct {
				name  string
				parts []tensor.AttentionRun
			}{{"pieces of keys", keys}, {"pieces of keys, and of each pieces of the rows that see some", both}, {"pieces of rows", rowsOnly}} {
				dq, dk, dv := grads(c.parts)
				sameBits(t, "dq in "+c.name, h.read(dq), h.read(a2))
				sameBits(t, "dk in "+c.name, h.read(dk), h.read(b2))
				sameBits(t, "dv in "+c.name, h.read(dv), h.read(c2))
			}
		})
	}
}

// pageCopies checks that a sequence that goes on from a copy of another's page gives the bits of one that wrote all itself, and that the original stays as it was; on a page that was discarded too.
func pageCopies(t *testing.T, d tensor.Device) {
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		s := attentionShape{[]int{30}, 4, 2, 24, dtype}
		t.Run(s.String(), func(t *testing.T) {
			const prefix = 20
			h := start(t, d)
			q, k, v, _ := s.inputs()
			whole := s.forward(h, q, k, v)
			want := h.read(whole.o)
			qw, kw := s.queryHeads*s.headDim, s.heads*s.headDim
			pages, err := d.NewPages(dtype, 2, 3, s.heads, s.headDim)
			h.ok(err)
			defer pages.Free()
			write := func(page int32, from, to int) {
				h.ok(d.WritePages(pages, attentionLayer, h.tensor(to-from, kw, k[from*kw:to*kw]), h.tensor(to-from, kw, v[from*kw:to*kw]), []tensor.AttentionRun{{Count: to - from, First: from, Pages: []int32{page}}}))
			}
			attend := func(page int32, from, to int) []float32 {
				out := h.tensor(to-from, qw, make([]float32, (to-from)*qw))
				h.ok(d.Attention(out, tensor.Tensor{}, h.tensor(to-from, qw, q[from*qw:to*qw]), pages, attentionLayer, []tensor.AttentionRun{{Count: to - from, First: from, Pages: []int32{page}}}, s.queryHeads, s.scale()))
				return h.read(out)
			}
			write(1, 0, prefix)
			write(2, 0, s.lengths[0]) // what was on the page before goes
			h.ok(pages.Copy(2, 1))
			write(2, prefix, s.lengths[0])
			sameBits(t, "behind the copy", attend(2, prefix, s.lengths[0]), want[prefix*qw:])
			sameBits(t, "the original", attend(1, 0, prefix), want[:prefix*qw])
			_, err = pages.Discard(2, 1)
			h.ok(err)
			h.ok(pages.Copy(2, 1))
			write(2, prefix, s.lengths[0])
			sameBits(t, "on a page that was discarded", attend(2, prefix, s.lengths[0]), want[prefix*qw:])
			sameBits(t, "the original beside it", attend(1, 0, prefix), want[:prefix*qw])
		})
	}
}
