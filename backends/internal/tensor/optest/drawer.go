package optest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// drawing checks a device's own draws from so many columns against the definition, token by token.
func drawing(t *testing.T, d tensor.Drawer, device tensor.Device, columns []int) {
	draws := []tensor.Draw{
		{TopP: 1}, {TopP: 1, TopK: 1}, {TopP: 1, TopK: 2}, {TopP: 1, TopK: 5}, {TopP: 1, TopK: 1 << 40}, {TopP: 1e-9}, {TopP: 0.3}, {TopP: 0.95}, {TopP: 1, MinP: 0.2}, {TopP: 1, MinP: 1},
		{TopP: 0.9, TopK: 7}, {TopP: 0.5, TopK: 3, MinP: 0.1}, {TopP: 0.99, MinP: 0.01}, {TopP: 0},
	}
	for _, cols := range columns {
		for name, fill := range map[string]func(r *rand.Rand) float32{
			"different": func(r *rand.Rand) float32 { return float32(3 * r.NormFloat64()) },
			"ties":      func(r *rand.Rand) float32 { return float32(r.IntN(7)-3) / 2 },
			"all equal": func(*rand.Rand) float32 { return -1.5 },
			"mostly impossible": func(r *rand.Rand) float32 {
				if r.IntN(3) > 0 {
					return float32(math.Inf(-1))
				}
				return float32(50 * r.NormFloat64())
			},
		} {
			t.Run(fmt.Sprintf("%d columns, %s", cols, name), func(t *testing.T) {
				h := start(t, device)
				r := rand.New(rand.NewPCG(uint64(cols), 7))
				rows := len(draws)
				own := slices.Clone(draws)
				values := make([]float32, rows*cols)
				for i := range values {
					values[i] = fill(r)
				}
				for i := range own {
					own[i].U = []float64{r.Float64(), 0, math.Nextafter(1, 0)}[i%3]
					values[i*cols+r.IntN(cols)] = 0 // something is possible in every row
				}
				logits, probs, lse := h.view(rows, cols, values), h.view(rows, cols, values), h.view(rows, 1, make([]float32, rows))
				h.ok(device.LogSumExp(lse, logits))
				h.ok(device.Softmax(probs, logits, lse))
				dst := h.view(rows, 2, make([]float32, 2*rows))
				h.ok(d.DrawTokens(dst, logits, probs, own))
				got, p := h.read(dst), h.read(probs)
				for i, one := range own {
					row := values[i*cols : (i+1)*cols]
					if want := drawn(row, p[i*cols:(i+1)*cols], one); got[2*i] != float32(want) || got[2*i+1] != row[want] {
						t.Errorf("%+v: token %v with logit %v, want %d with %v", one, got[2*i], got[2*i+1], want, row[want])
					}
				}
			})
		}
	}
	t.Run("nothing has weight", func(t *testing.T) {
		h := start(t, device)
		dst, logits, zeros := h.tensor(2, 2, make([]float32, 4)), h.tensor(2, 3, []float32{1, 3, 2, 5, 5, 4}), h.tensor(2, 3, make([]float32, 6))
		h.ok(d.DrawTokens(dst, logits, zeros, []tensor.Draw{{U: 0.5, TopP: 1}, {U: 0.5, TopP: 0.9, TopK: 2}}))
		sameBits(t, "the likeliest", h.read(dst), []float32{1, 3, 0, 5})
	})
	t.Run("adjustments", func(t *testing.T) {
		h := start(t, device)
		x := h.view(2, 3, []float32{3, -3, 8, 0.5, 7, -1})
		h.ok(d.AdjustElements(x, []tensor.Adjustment{
			{Row: 0, Column: 0, Divisor: 3}, {Row: 0, Column: 1, Divisor: 3, Less: 2, More: 0.25}, {Row: 1, Column: 2, Divisor: 1, Less: 4}, {Row: 1, Column: 1, Divisor: 1, More: float32(math.Inf(-1))}}))
		h.ok(d.AdjustElements(x, nil))
		sameBits(t, "x", h.read(x), []float32{1, -10.75, 8, 0.5, float32(math.Inf(-1)), -5})
	})
	for _, cols := range columns {
		t.Run(fmt.Sprintf("masks of %d columns", cols), func(t *testing.T) { masking(t, d, device, cols) })
	}
	t.Run("refusals", func(t *testing.T) {
		h := start(t, device)
		a, pair := h.tensor(2, 3, make([]float32, 6)), h.tensor(2, 2, make([]float32, 4))
		two := func(change func(*tensor.Draw)) []tensor.Draw {
			all := []tensor.Draw{{TopP: 1}, {TopP: 1}}
			change(&all[1])
			return all
		}
		for name, err := range map[string]error{
			"draws":        d.DrawTokens(pair, a, a, two(func(*tensor.Draw) {})[:1]),
			"dst":          d.DrawTokens(a, a, a, two(func(*tensor.Draw) {})),
			"probs":        d.DrawTokens(pair, a, pair, two(func(*tensor.Draw) {})),
			"U of 1":       d.DrawTokens(pair, a, a, two(func(d *tensor.Draw) { d.U = 1 })),
			"U of NaN":     d.DrawTokens(pair, a, a, two(func(d *tensor.Draw) { d.U = math.NaN() })),
			"TopP":         d.DrawTokens(pair, a, a, two(func(d *tensor.Draw) { d.TopP = math.NaN() })),
			"MinP":         d.DrawTokens(pair, a, a, two(func(d *tensor.Draw) { d.MinP = -1 })),
			"TopK":         d.DrawTokens(pair, a, a, two(func(d *tensor.Draw) { d.TopK = -1 })),
			"no columns":   d.DrawTokens(pair, a.Columns(0, 0), a.Columns(0, 0), two(func(*tensor.Draw) {})),
			"adjusted row": d.AdjustElements(a, []tensor.Adjustment{{Row: 2, Divisor: 1}}),
			"masked row":   d.MaskColumns(a, []int32{2}, []uint64{1}),
			"masked twice": d.MaskColumns(a, []int32{1, 1}, []uint64{1, 1}),
			"mask words":   d.MaskColumns(a, []int32{0, 1}, []uint64{1}),
			"adjusted col": d.AdjustElements(a, []tensor.Adjustment{{Column: -1, Divisor: 1}}),
		} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}

// masking checks the columns that masks leave, of some rows.
func masking(t *testing.T, d tensor.Drawer, device tensor.Device, cols int) {
	h := start(t, device)
	r := rand.New(rand.NewPCG(uint64(cols), 8))
	const rows = 9
	chosen := []int32{0, 1, 3, 4, 6, 8}
	words := tensor.MaskWords(cols)
	values, bits := make([]float32, rows*cols), make([]uint64, len(chosen)*words)
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	for i := range chosen {
		for w := range words {
			bits[i*words+w] = []uint64{0, math.MaxUint64, r.Uint64(), 1 << r.IntN(64), ^(1 << r.IntN(64)), []uint64{0, math.MaxUint64}[r.IntN(2)]}[i]
		}
	}
	x := h.view(rows, cols, values)
	h.ok(d.MaskColumns(x, chosen, bits))
	h.ok(d.MaskColumns(x, nil, nil))
	want := slices.Clone(values)
	for i, row := range chosen {
		for c := range cols {
			if bits[i*words+c/64]>>(c%64)&1 == 0 {
				want[int(row)*cols+c] = float32(math.Inf(-1))
			}
		}
	}
	sameBits(t, "masked rows", h.read(x), want)
}

// drawn is the definition of tensor.Drawer, by sorting.
func drawn(logits, probs []float32, d tensor.Draw) int {
	weight := func(c int) uint64 { return uint64(float64(probs[c]) * (1 << 44)) }
	sum := func(columns []int) (s uint64) {
		for _, c := range columns {
			s += weight(c)
		}
		return s
	}
	left := make([]int, len(logits))
	for c := range left {
		left[c] = c
	}
	slices.SortStableFunc(left, func(a, b int) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return 0
	})
	if d.TopK > 0 {
		left = left[:min(d.TopK, int64(len(left)))]
	}
	if total := sum(left); d.TopP < 1 && total > 0 {
		need, n := max(1, uint64(math.Ceil(d.TopP*float64(total)))), 1
		for sum(left[:n]) < need {
			n++
		}
		left = left[:n]
	}
	best := left[0]
	left = slices.DeleteFunc(left, func(c int) bool { return c != best && float64(probs[c]) < d.MinP*float64(probs[best]) })
	total := sum(left)
	if total == 0 || d.TopK == 1 {
		return best
	}
	slices.Sort(left)
	target, n := uint64(d.U*float64(total)), 1
	for sum(left[:n]) <= target {
		n++
	}
	return left[n-1]
}
