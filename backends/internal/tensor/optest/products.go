package optest

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// shape is rows × out × in of a product.
type shape struct{ m, n, k int }

var productShapes = []shape{
	{1, 1, 1}, {1, 33, 7}, {2, 64, 64}, {3, 31, 129}, {4, 95, 64}, {5, 200, 33}, {6, 96, 300}, {7, 65, 513}, {8, 256, 96}, {9, 40, 1}, {10, 130, 31}, {11, 97, 64},
	{12, 224, 258}, {13, 70, 1025}, {25, 1030, 40}, {64, 320, 527}, {130, 100, 530}, {1, 1500, 700}, {8, 700, 1500}, {300, 129, 260}, {0, 32, 32},
	{30, 8, 130}, {26, 16, 200}, {27, 24, 65}, {25, 48, 96}, // the ranks of adapters
}

func multiply(x, w []float64, s shape, into []float64) []float64 {
	y := make([]float64, s.m*s.n)
	copy(y, into)
	for m := range s.m {
		for n := range s.n {
			for k := range s.k {
				y[m*s.n+n] += x[m*s.k+k] * w[n*s.k+k]
			}
		}
	}
	return y
}

func transpose(x []float64, rows, cols int) []float64 {
	y := make([]float64, len(x))
	for r := range rows {
		for c := range cols {
			y[c*rows+r] = x[r*cols+c]
		}
	}
	return y
}

func productCases(productShapes []shape) []testCase {
	var all []testCase
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for i, s := range productShapes {
			accumulate := i%2 == 1
			x, w, before := normal(uint64(100+i), s.m*s.k), normal(uint64(200+i), s.n*s.k), normal(uint64(300+i), s.m*s.n)
			name := fmt.Sprintf("%v %d×%d×%d", dtype, s.m, s.n, s.k)
			all = append(all, testCase{
				name: "matmul " + name, tolerance: 1e-5,
				run: func(h *bench) [][]float32 {
					m, in, y := h.matrix(dtype, s.n, s.k, w), h.view(s.m, s.k, x), h.view(s.m, s.n, before)
					h.ok(h.d.MatMul(y, in, m, accumulate))
					return [][]float32{h.read(y)}
				},
				want: func() [][]float64 {
					into := float64s(before)
					if !accumulate {
						clear(into)
					}
					return [][]float64{multiply(rounded(dtype, x), rounded(dtype, w), s, into)}
				},
			})
			dy, dx := before, x
			all = append(all, testCase{
				name: "matmul transposed " + name, tolerance: 1e-5,
				run: func(h *bench) [][]float32 {
					m, in, y := h.matrix(dtype, s.n, s.k, w), h.view(s.m, s.n, dy), h.view(s.m, s.k, dx)
					h.ok(h.d.MatMulTransposed(y, in, m, accumulate))
					return [][]float32{h.read(y)}
				},
				want: func() [][]float64 {
					into := float64s(dx)
					if !accumulate {
						clear(into)
					}
					return [][]float64{multiply(rounded(dtype, dy), transpose(rounded(dtype, w), s.n, s.k), shape{s.m, s.k, s.n}, into)}
				},
			})
		}
	}
	for i, s := range productShapes { // m rows are summed, g is n × k
		a, b, before := normal(uint64(400+i), s.m*s.n), normal(uint64(500+i), s.m*s.k), normal(uint64(600+i), s.n*s.k)
		all = append(all, testCase{
			name: fmt.Sprintf("outer product %d×%d×%d", s.m, s.n, s.k), tolerance: 1e-5,
			run: func(h *bench) [][]float32 {
				g := h.view(s.n, s.k, before)
				h.ok(h.d.OuterProduct(g, h.view(s.m, s.n, a), h.view(s.m, s.k, b)))
				return [][]float32{h.read(g)}
			},
			want: func() [][]float64 {
				return [][]float64{multiply(transpose(float64s(a), s.m, s.n), transpose(float64s(b), s.m, s.k), shape{s.n, s.k, s.m}, float64s(before))}
			},
		})
	}
	return all
}

// packing checks that a matrix packed in pieces, from every source type or from a tensor is the same matrix, by reading its rows back.
func packing(t *testing.T, d tensor.Device) {
	const out, in = 75, 41
	values := normal(1, out*in)
	for i := range values { // exact in every source type
		values[i] = bfloat16(values[i])
		if v := values[i]; v < 0.01 && v > -0.01 {
			values[i] = 0.25
		}
	}
	ids := []int32{-1, 74, 0, -1, -1, 31, 32, 33, 0, -1}
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, source := range []string{"F32", "BF16", "F16", "tensor"} {
			t.Run(fmt.Sprintf("%v from %s", dtype, source), func(t *testing.T) {
				h := start(t, d)
				m, err := d.NewMatrix(dtype, out, in)
				h.ok(err)
				t.Cleanup(m.Free)
				if source == "tensor" {
					h.ok(repack(d, m, h.view(out, in, values)))
				} else {
					raw := encode(source, values)
					row := len(raw) / out
					for _, piece := range [][2]int{{40, 75}, {0, 1}, {1, 40}, {7, 7}} {
						h.ok(d.PackRows(m, piece[0], piece[1]-piece[0], source, raw[piece[0]*row:piece[1]*row]))
					}
				}
				y := h.view(len(ids), in, normal(2, len(ids)*in))
				h.ok(d.GatherRows(y, m, ids))
				got := h.read(y)
				for i, id := range ids {
					want := make([]float32, in)
					if id >= 0 {
						want = values[int(id)*in : int(id+1)*in]
					}
					sameBits(t, fmt.Sprintf("row %d", id), got[i*in:(i+1)*in], want)
				}
				h.ok(d.GatherRows(y.Slice(4, 6), m, []int32{-1, -1}))
				sameBits(t, "no row", h.read(y.Slice(4, 6)), make([]float32, 2*in))
			})
		}
	}
}

// repack packs one matrix.
func repack(d tensor.Device, m tensor.Matrix, src tensor.Tensor) error {
	return d.Repack(tensor.MatrixSource{Matrix: m, Src: src})
}

// repacking checks matrices of many shapes that are packed at once, from views; what packing leaves beside one shows in the others.
func repacking(t *testing.T, d tensor.Device) {
	h := start(t, d)
	var list []tensor.MatrixSource
	var want [][]float32
	for i, s := range [][2]int{{3, 2100}, {300, 5}, {1, 1}, {0, 4}, {64, 1024}, {33, 1025}, {700, 16}} {
		for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			m, err := d.NewMatrix(dtype, s[0], s[1])
			h.ok(err)
			t.Cleanup(m.Free)
			values := normal(uint64(90+i), s[0]*s[1])
			for j := range values {
				values[j] = bfloat16(values[j])
			}
			list, want = append(list, tensor.MatrixSource{Matrix: m, Src: h.view(s[0], s[1], values)}), append(want, values)
		}
	}
	h.ok(d.Repack(list...))
	h.ok(d.Repack())
	for i, s := range list {
		ids := make([]int32, s.Matrix.Out())
		for r := range ids {
			ids[r] = int32(r)
		}
		y := h.view(len(ids), s.Matrix.In(), make([]float32, len(want[i])))
		h.ok(d.GatherRows(y, s.Matrix, ids))
		sameBits(t, fmt.Sprintf("matrix %d", i), h.read(y), want[i])
	}
	first := list[0].Matrix
	if err := d.Repack(list[0], tensor.MatrixSource{Matrix: first, Src: list[2].Src}); err == nil {
		t.Error("no error for a source of another shape behind a good one")
	}
}
