package optest

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// lossShapes are rows × vocabulary, and the targets of a row.
var lossShapes = [][3]int{{1, 1, 1}, {2, 17, 1}, {5, 4096, 2}, {3, 5000, 3}, {2, 20011, 1}, {70, 130, 1}, {0, 9, 1}}

func lossCases(lossShapes [][3]int) []testCase {
	var all []testCase
	for i, s := range lossShapes {
		rows, cols, k := s[0], s[1], s[2]
		all = append(all, gatherElements(rows, cols, k))
		logits, c := normal(uint64(3000+i), rows*cols), normal(uint64(3100+i), rows*k)
		for j := range logits {
			logits[j] *= 6
		}
		targets := make([]int32, rows*k)
		for j := range targets {
			targets[j] = int32(j * 7919 % cols)
			if j%5 == 4 {
				targets[j] = -1 // in columns of another device
			}
		}
		x := float64s(logits)
		all = append(all, testCase{
			name: fmt.Sprintf("log-sum-exp, softmax and its gradient %d×%d", rows, cols), tolerance: 2e-6,
			run: func(h *bench) [][]float32 {
				lse, in, p := h.view(rows, 1, make([]float32, rows)), h.view(rows, cols, logits), h.view(rows, cols, logits)
				h.ok(h.d.LogSumExp(lse, in))
				h.ok(h.d.Softmax(p, in, lse))
				h.ok(h.d.SoftmaxGradient(in, lse, targets, c))
				return [][]float32{h.read(lse), h.read(p), h.read(in)}
			},
			want: func() [][]float64 {
				lse := eachRow(x, cols, func(_ int, r []float64) []float64 { return []float64{logSumExp(r)} })
				p := elementwise(len(x), func(i int) float64 { return math.Exp(x[i] - lse[i/cols]) })
				g := elementwise(len(x), func(i int) float64 {
					var s float64
					for j := range k {
						at := i/cols*k + j
						s -= float64(c[at]) * p[i]
						if int(targets[at]) == i%cols {
							s += float64(c[at])
						}
					}
					return s
				})
				return [][]float64{lse, p, g}
			},
		})
	}
	return all
}

// gatherElements picks k elements of every row, in an order that is not the rows', and some of no column.
func gatherElements(rows, cols, k int) testCase {
	x := normal(uint64(3200+rows), rows*cols)
	var at []tensor.Element
	for j := range k {
		for r := range rows {
			at = append(at, tensor.Element{Row: int32(rows - 1 - r), Column: int32((r+j*7919)%(cols+1)) - 1})
		}
	}
	return testCase{
		name: fmt.Sprintf("gather elements %d×%d, %d of each row", rows, cols, k),
		run: func(h *bench) [][]float32 {
			out := h.view(1, len(at), normal(3300, len(at)))
			h.ok(h.d.GatherElements(out, h.view(rows, cols, x), at))
			return [][]float32{h.read(out)}
		},
		want: func() [][]float64 {
			return [][]float64{elementwise(len(at), func(i int) float64 {
				if at[i].Column < 0 {
					return 0
				}
				return float64(x[int(at[i].Row)*cols+int(at[i].Column)])
			})}
		},
	}
}
