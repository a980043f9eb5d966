package optest

import (
	"fmt"
	"math"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

var arenaShapes = [][2]int{{1, 1}, {1, 9000}, {3, 17}, {16, 1000}, {32, 512}, {0, 4}, {2, 8192}, {2, 5000}}

func optimizerCases(arenaShapes [][2]int) []testCase {
	var all []testCase
	var arenas []adamw
	steps := []tensor.AdamWStep{
		{LearningRate: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12, Step: 1},
		{LearningRate: 3e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1, MaxNorm: 0.25, Step: 7},
		{LearningRate: 1, Beta1: 0, Beta2: 0, Eps: 1e-3, WeightDecay: 0.01, MaxNorm: 1e6, Step: 100000},
	}
	for i, s := range arenaShapes {
		rows, cols := s[0], s[1]
		n, seed := rows*cols, uint64(4000+10*i)
		p, m, v, g := normal(seed, n), normal(seed+1, n), normal(seed+2, n), normal(seed+3, n)
		for j := range v {
			v[j] *= v[j]
		}
		for k, step := range steps {
			arena := adamw{rows, cols, p, m, v, g, step}
			arenas = append(arenas, arena)
			all = append(all, testCase{
				name: fmt.Sprintf("adamw %d×%d step %d", rows, cols, k), tolerance: 1e-6,
				run: func(h *bench) [][]float32 {
					u := arena.update(h)
					h.adamW([]tensor.AdamWUpdate{u}, []adamw{arena})
					return [][]float32{h.read(u.NewP), h.read(u.NewM), h.read(u.NewV)}
				},
				want: arena.want,
			})
		}
		all = append(all, testCase{
			name: fmt.Sprintf("sum of squares %d×%d", rows, cols), tolerance: 1e-7,
			run: func(h *bench) [][]float32 {
				sums := h.sumSquares(h.view(rows, cols, p), h.tensor(1, 0, nil), h.tensor(1, n, g))
				if want := []float64{sumSquares(p, cols), 0, sumSquares(g, n)}; !slices.Equal(sums, want) {
					h.t.Errorf("sums %v, in the order of the interface %v", sums, want)
				}
				return [][]float32{{float32(sums[0]), float32(sums[2])}}
			},
			want: func() [][]float64 { return [][]float64{{dot(float64s(p), float64s(p)), dot(float64s(g), float64s(g))}} },
		})
	}
	return append(all, testCase{
		name: fmt.Sprintf("adamw of %d arenas at once", len(arenas)), tolerance: 1e-6,
		run: func(h *bench) (out [][]float32) {
			var updates []tensor.AdamWUpdate
			for _, a := range arenas {
				updates = append(updates, a.update(h))
			}
			h.adamW(updates, arenas)
			for i, a := range arenas {
				u := a.update(h)
				h.adamW([]tensor.AdamWUpdate{u}, arenas[i:i+1])
				for k, alone := range []tensor.Tensor{u.NewP, u.NewM, u.NewV} {
					together := h.read([]tensor.Tensor{updates[i].NewP, updates[i].NewM, updates[i].NewV}[k])
					sameBits(h.t, fmt.Sprintf("arena %d beside others", i), together, h.read(alone))
					out = append(out, together)
				}
			}
			return out
		},
		want: func() (out [][]float64) {
			for _, a := range arenas {
				out = append(out, a.want()...)
			}
			return out
		},
	})
}

// adamw is one update.
type adamw struct {
	rows, cols int
	p, m, v, g []float32
	step       tensor.AdamWStep
}

// update puts it on the device: the first moment is overwritten, the others are not.
func (a adamw) update(h *bench) tensor.AdamWUpdate {
	nm := h.view(a.rows, a.cols, a.m)
	return tensor.AdamWUpdate{
		NewP: h.view(a.rows, a.cols, a.p), NewM: nm, NewV: h.tensor(a.rows, a.cols, a.v),
		P: h.view(a.rows, a.cols, a.p), M: nm, V: h.view(a.rows, a.cols, a.v), G: h.view(a.rows, a.cols, a.g), AdamWStep: a.step,
	}
}

// adamW does updates, which are those of arenas, and compares their sums: they are those of what was written, bit by bit, wherever that is computed.
func (h *bench) adamW(updates []tensor.AdamWUpdate, arenas []adamw) {
	h.t.Helper()
	for i := 0; i < len(updates); i += 2 { // of every second one
		updates[i].Pieces = make([]float64, arenas[i].rows*tensor.SumPieces(arenas[i].cols))
	}
	wait, err := h.d.AdamW(updates...)
	h.ok(err)
	sums, err := wait()
	h.ok(err)
	for i, a := range arenas {
		u := updates[i]
		sum := func(x tensor.Tensor) float64 { return sumSquares(h.read(x), a.cols) }
		if want := (tensor.AdamWSums{G: sumSquares(a.g, a.cols), NewP: sum(u.NewP), NewM: sum(u.NewM), NewV: sum(u.NewV)}); sums[i] != want {
			h.t.Errorf("arena %d: sums %v, in the order of the interface %v", i, sums[i], want)
		}
		if u.Pieces == nil {
			continue
		}
		var pieces []float64
		for r := range a.rows {
			for row := h.read(u.NewP)[r*a.cols : (r+1)*a.cols]; len(row) > 0; row = row[min(tensor.SumPiece, len(row)):] {
				piece := row[:min(tensor.SumPiece, len(row))]
				pieces = append(pieces, sumSquares(piece, len(piece)))
			}
		}
		if !slices.Equal(u.Pieces, pieces) {
			h.t.Errorf("arena %d: sums of pieces %v, in the order of the interface %v", i, u.Pieces, pieces)
		}
	}
}

// sumSquares gives the device's sums.
func (h *bench) sumSquares(xs ...tensor.Tensor) []float64 {
	h.t.Helper()
	wait, err := h.d.SumSquares(xs...)
	h.ok(err)
	sums, err := wait()
	h.ok(err)
	return sums
}

// want is the formula.
func (a adamw) want() [][]float64 {
	n, step := a.rows*a.cols, a.step
	scale := 1.0
	if step.MaxNorm > 0 {
		scale = math.Min(1, step.MaxNorm/(math.Sqrt(sumSquares(a.g, a.cols))+1e-6))
	}
	np, nm, nv := make([]float64, n), make([]float64, n), make([]float64, n)
	for j := range n {
		grad := float64(a.g[j]) * scale
		nm[j] = step.Beta1*float64(a.m[j]) + (1-step.Beta1)*grad
		nv[j] = step.Beta2*float64(a.v[j]) + (1-step.Beta2)*grad*grad
		root := math.Sqrt(nv[j] / (1 - math.Pow(step.Beta2, float64(step.Step))))
		np[j] = float64(a.p[j]) - step.LearningRate*step.WeightDecay*float64(a.p[j]) -
			step.LearningRate*nm[j]/(1-math.Pow(step.Beta1, float64(step.Step)))/(root+step.Eps)
	}
	return [][]float64{np, nm, nv}
}

// sumSquares sums in the order that tensor.Device defines.
func sumSquares(x []float32, cols int) float64 {
	const piece = 4096
	tree := func(lanes []float64) float64 {
		for half := len(lanes) / 2; half > 0; half /= 2 {
			for i := range half {
				lanes[i] += lanes[i+half]
			}
		}
		return lanes[0]
	}
	all, n := make([]float64, 256), 0
	for ; len(x) > 0; x = x[cols:] {
		for from := 0; from < cols; from += piece {
			lanes := make([]float64, 16)
			for i, v := range x[from:min(from+piece, cols)] {
				lanes[i%16] += float64(float64(v) * float64(v))
			}
			all[n%256] += tree(lanes)
			n++
		}
	}
	return tree(all)
}
