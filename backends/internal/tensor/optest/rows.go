package optest

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

var rowShapes = [][2]int{{1, 3}, {1, 15}, {2, 16}, {3, 17}, {5, 100}, {7, 1024}, {33, 70}, {64, 4096}, {2, 20000}, {0, 8}}

const normEps = 1e-6

func rmsNorm(x, weight []float64) []float64 {
	inverse := 1 / math.Sqrt(dot(x, x)/float64(len(x))+normEps)
	return elementwise(len(x), func(i int) float64 { return x[i] * inverse * weight[i] })
}

func rmsNormBackward(dy, x, weight []float64) []float64 {
	n := float64(len(x))
	inverse := 1 / math.Sqrt(dot(x, x)/n+normEps)
	var s float64
	for i := range x {
		s += dy[i] * weight[i] * x[i]
	}
	return elementwise(len(x), func(i int) float64 { return inverse*dy[i]*weight[i] - x[i]*inverse*inverse*inverse*s/n })
}

// rotate turns row x of heads at a position, by angles position / 100^(2i/dim).
func rotate(x []float64, heads, dim, position int, inverse bool) []float64 {
	y := append([]float64(nil), x...)
	headDim := len(x) / heads
	for h := range heads {
		for i := range dim / 2 {
			angle := ropeAngle(position, i, dim)
			if inverse {
				angle = -angle
			}
			a, b := x[h*headDim+i], x[h*headDim+i+dim/2]
			y[h*headDim+i] = a*math.Cos(angle) - b*math.Sin(angle)
			y[h*headDim+i+dim/2] = b*math.Cos(angle) + a*math.Sin(angle)
		}
	}
	return y
}

func ropeAngle(position, i, dim int) float64 {
	return float64(position) / math.Pow(100, float64(2*i)/float64(dim))
}

func ropeTable(positions, dim int) []float32 {
	var t []float32
	for p := range positions {
		for i := range dim / 2 {
			t = append(t, float32(math.Cos(ropeAngle(p, i, dim))))
		}
		for i := range dim / 2 {
			t = append(t, float32(math.Sin(ropeAngle(p, i, dim))))
		}
	}
	return t
}

// ropeShape is rows of heads, of which the first dim elements turn.
type ropeShape struct{ rows, heads, headDim, dim int }

var ropeShapes = []ropeShape{{1, 1, 2, 2}, {5, 3, 64, 64}, {9, 2, 40, 24}, {40, 4, 128, 128}, {0, 1, 4, 4}}

func rowCases(rowShapes [][2]int, ropeShapes []ropeShape) []testCase {
	var all []testCase
	one := func(name string, tolerance float64, run func(h *bench) tensor.Tensor, want func() []float64) {
		all = append(all, testCase{name: name, tolerance: tolerance,
			run:  func(h *bench) [][]float32 { return [][]float32{h.read(run(h))} },
			want: func() [][]float64 { return [][]float64{want()} }})
	}
	for i, s := range rowShapes {
		rows, cols := s[0], s[1]
		n, seed := rows*cols, uint64(1000+10*i)
		x, y, z, weight := normal(seed, n), normal(seed+1, n), normal(seed+2, n), normal(seed+3, cols)
		x64, y64, z64, w64 := float64s(x), float64s(y), float64s(z), float64s(weight)
		name := func(op string) string { return fmt.Sprintf("%s %d×%d", op, rows, cols) }
		one(name("rms norm"), 1e-5, func(h *bench) tensor.Tensor {
			out := h.view(rows, cols, y)
			h.ok(h.d.RMSNorm(out, h.view(rows, cols, x), h.tensor(1, cols, weight), normEps))
			return out
		}, func() []float64 {
			return eachRow(x64, cols, func(_ int, r []float64) []float64 { return rmsNorm(r, w64) })
		})
		one(name("rms norm in place"), 1e-5, func(h *bench) tensor.Tensor {
			out := h.view(rows, cols, x)
			h.ok(h.d.RMSNorm(out, out, h.tensor(1, cols, weight), normEps))
			return out
		}, func() []float64 {
			return eachRow(x64, cols, func(_ int, r []float64) []float64 { return rmsNorm(r, w64) })
		})
		for _, accumulate := range []bool{false, true} {
			one(name(fmt.Sprintf("rms norm backward %v", accumulate)), 1e-5, func(h *bench) tensor.Tensor {
				dx, dy := h.view(rows, cols, z), h.view(rows, cols, y)
				if !accumulate {
					dx = dy
				}
				h.ok(h.d.RMSNormBackward(dx, dy, h.view(rows, cols, x), h.tensor(1, cols, weight), normEps, accumulate))
				return dx
			}, func() []float64 {
				g := eachRow(x64, cols, func(r int, row []float64) []float64 { return rmsNormBackward(y64[r*cols:(r+1)*cols], row, w64) })
				for i := range g {
					if accumulate {
						g[i] += z64[i]
					}
				}
				return g
			})
		}
		one(name("swiglu"), 1e-6, func(h *bench) tensor.Tensor {
			out := h.view(rows, cols, z)
			h.ok(h.d.SwiGLU(out, h.view(rows, cols, x), h.view(rows, cols, y)))
			return out
		}, func() []float64 {
			return elementwise(n, func(i int) float64 { return x64[i] * sigmoid(x64[i]) * y64[i] })
		})
		all = append(all, testCase{name: name("swiglu backward"), tolerance: 1e-6,
			run: func(h *bench) [][]float32 {
				gate, up := h.view(rows, cols, x), h.view(rows, cols, y)
				h.ok(h.d.SwiGLUBackward(gate, up, h.view(rows, cols, z), gate, up))
				dgate, dup := h.view(rows, cols, y), h.view(rows, cols, z)
				h.ok(h.d.SwiGLUBackward(dgate, dup, dup, h.view(rows, cols, x), h.view(rows, cols, y)))
				return [][]float32{h.read(gate), h.read(up), h.read(dgate), h.read(dup)}
			},
			want: func() [][]float64 {
				dgate := elementwise(n, func(i int) float64 { s := sigmoid(x64[i]); return z64[i] * y64[i] * s * (1 + x64[i]*(1-s)) })
				dup := elementwise(n, func(i int) float64 { return z64[i] * x64[i] * sigmoid(x64[i]) })
				return [][]float64{dgate, dup, dgate, dup}
			}})
		one(name("add"), 1e-6, func(h *bench) tensor.Tensor {
			out := h.view(rows, cols, x)
			h.ok(h.d.Add(out, h.view(rows, cols, y)))
			return out
		}, func() []float64 { return elementwise(n, func(i int) float64 { return x64[i] + y64[i] }) })
		one(name("add contiguous"), 1e-6, func(h *bench) tensor.Tensor {
			out := h.tensor(rows, cols, x)
			h.ok(h.d.Add(out, h.tensor(rows, cols, y)))
			return out
		}, func() []float64 { return elementwise(n, func(i int) float64 { return x64[i] + y64[i] }) })
		one(name("add row"), 1e-6, func(h *bench) tensor.Tensor {
			out := h.view(rows, cols, x)
			h.ok(h.d.AddRow(out, h.tensor(1, cols, weight)))
			return out
		}, func() []float64 { return elementwise(n, func(i int) float64 { return x64[i] + w64[i%cols] }) })
		for _, as := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			one(name(fmt.Sprintf("scale as %v", as)), 1e-6, func(h *bench) tensor.Tensor {
				out := h.view(rows, cols, x)
				h.ok(h.d.Scale(out, 0.37, as))
				return out
			}, func() []float64 {
				return elementwise(n, func(i int) float64 { return rounded(as, []float32{float32(x[i] * 0.37)})[0] })
			})
		}
		one(name("zero"), 1e-6, func(h *bench) tensor.Tensor {
			out := h.view(rows, cols, x)
			h.ok(h.d.Zero(out))
			return out
		}, func() []float64 { return make([]float64, n) })
		one(name("round and back"), 0, func(h *bench) tensor.Tensor {
			half, err := h.d.Alloc(tensor.BFloat16, rows, cols)
			h.ok(err)
			h.t.Cleanup(func() { h.d.Free(half) })
			out, copied := h.view(rows, cols, z), h.view(rows, cols, z)
			h.ok(h.d.Round(half, h.view(rows, cols, x)))
			h.ok(h.d.Round(out, half))
			h.ok(h.d.Round(copied, out))
			sameBits(h.t, "a float32 copy", h.read(copied), h.read(out))
			return out
		}, func() []float64 { return rounded(tensor.BFloat16, x) })
	}
	for i, s := range ropeShapes {
		x := normal(uint64(2000+i), s.rows*s.heads*s.headDim)
		positions := make([]int32, s.rows)
		for r := range positions {
			positions[r] = int32(r * 7 % 30)
		}
		for _, inverse := range []bool{false, true} {
			one(fmt.Sprintf("rope %d×%d×%d inverse %v", s.rows, s.heads, s.headDim, inverse), 1e-6, func(h *bench) tensor.Tensor {
				out := h.view(s.rows, s.heads*s.headDim, x)
				h.ok(h.d.Rope(out, positions, h.tensor(30, s.dim, ropeTable(30, s.dim)), s.heads, inverse))
				return out
			}, func() []float64 {
				return eachRow(float64s(x), s.heads*s.headDim, func(r int, row []float64) []float64 { return rotate(row, s.heads, s.dim, int(positions[r]), inverse) })
			})
		}
	}
	return all
}
