package cudart

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// placeRows puts rows of values into memory of the device's, each behind elements that are not its own and no number.
func placeRows(t *testing.T, v *Device, rows, cols int, values []float32) View {
	t.Helper()
	wide := cols + 5
	all := make([]float32, rows*wide)
	for i := range all {
		all[i] = float32(math.NaN())
	}
	for r := range rows {
		copy(all[r*wide+3:r*wide+3+cols], values[r*cols:])
	}
	at := alloc(t, v, 4*len(all))
	if err := v.Upload(at, 4*len(all), bytesOf(all), 4*len(all), 1); err != nil {
		t.Fatal(err)
	}
	return View{At: at + 12, Rows: int64(rows), Cols: int64(cols), Stride: int64(wide)}
}

func readRows(t *testing.T, v *Device, x View) []float32 {
	t.Helper()
	b := make([]byte, 4*x.Rows*x.Cols)
	if err := v.Download(b, x.At, int(4*x.Stride), int(4*x.Cols), int(x.Rows)); err != nil {
		t.Fatal(err)
	}
	return floats(b)
}

// definedDraw is the definition of a draw, by sorting.
func definedDraw(logits, probs []float32, d Draw) int {
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
	best := left[0]
	if d.TopK > 0 {
		left = left[:min(d.TopK, int64(len(left)))]
	}
	if total := sum(left); d.TopP < 1 && total > 0 {
		need, have, n := max(1, uint64(math.Ceil(d.TopP*float64(total)))), weight(left[0]), 1
		for ; have < need; n++ {
			have += weight(left[n])
		}
		left = left[:n]
	}
	left = slices.DeleteFunc(left, func(c int) bool { return c != best && float64(probs[c]) < d.MinP*float64(probs[best]) })
	slices.Sort(left)
	target := uint64(d.U * float64(sum(left)))
	for _, c := range left {
		if d.TopK == 1 {
			break
		}
		if w := weight(c); w > target {
			return c
		} else {
			target -= w
		}
	}
	return best
}

// Draws are those of the definition where the search for a threshold has its edges: orders of logits that differ in any of its digits, ties at the threshold, more wanted than there is, sums that carry from one half to the other,
// nothing of weight, and numbers of columns around those that the threads ask for at once.
func TestDraws(t *testing.T) {
	infinite := float32(math.Inf(-1))
	fills := []struct {
		name  string
		logit func(r *rand.Rand, c int) float32
		prob  func(logit float32, cols int) float32 // nil: the softmax
	}{
		{"different", func(r *rand.Rand, _ int) float32 { return float32(4 * r.NormFloat64()) }, nil},
		{"ties", func(r *rand.Rand, _ int) float32 { return float32(r.IntN(5)-2) / 4 }, nil},
		{"all equal", func(*rand.Rand, int) float32 { return 2.5 }, nil},
		{"neighbours", func(r *rand.Rand, _ int) float32 { return math.Float32frombits(0x40ff_ff80 + uint32(r.IntN(256))) }, nil},
		{"negative neighbours", func(r *rand.Rand, _ int) float32 { return math.Float32frombits(0xc0ff_ff80 + uint32(r.IntN(256))) }, nil},
		{"any digits", func(r *rand.Rand, _ int) float32 { return math.Float32frombits(r.Uint32() &^ 0x4000_0000) }, nil}, // below 2 either way
		{"zeros of both signs", func(r *rand.Rand, _ int) float32 {
			return []float32{0, float32(math.Copysign(0, -1)), -1, infinite}[r.IntN(4)]
		}, nil},
		{"mostly impossible", func(r *rand.Rand, _ int) float32 {
			if r.IntN(9) > 0 {
				return infinite
			}
			return float32(20 * r.NormFloat64())
		}, nil},
		{"one is possible", func(_ *rand.Rand, c int) float32 {
			if c == 1 {
				return -7
			}
			return infinite
		}, nil},
		{"impossible", func(*rand.Rand, int) float32 { return infinite }, func(float32, int) float32 { return 0 }},
		{"no weight", func(r *rand.Rand, _ int) float32 { return float32(r.NormFloat64()) }, func(float32, int) float32 { return 1e-20 }},
		{"sums that carry", func(r *rand.Rand, _ int) float32 { return float32(r.NormFloat64()) }, func(x float32, _ int) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }},
		{"ties that carry", func(r *rand.Rand, _ int) float32 { return float32(r.IntN(3)) }, func(x float32, _ int) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }},
	}
	for _, order := range orders("20261125", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			columns := []int{4101}
			if order == "0" { // which has all
				columns = []int{2, 3, 511, 1537, 3583, 4096, 9000}
			}
			for _, cols := range columns {
				for _, f := range fills {
					t.Run(fmt.Sprintf("%d columns, %s", cols, f.name), func(t *testing.T) {
						r := rand.New(rand.NewPCG(uint64(cols), 11))
						k := int64(cols)
						draws := []Draw{{TopP: 1}, {TopP: 1, TopK: 1}, {TopP: 1, TopK: 2}, {TopP: 1, TopK: k/2 + 1}, {TopP: 1, TopK: k - 1}, {TopP: 1, TopK: k}, {TopP: 1, TopK: k + 1}, {TopP: 1, TopK: 1 << 40},
							{TopP: 0}, {TopP: 1e-9}, {TopP: 0.5}, {TopP: 0.999}, {TopP: 0.7, TopK: k/3 + 2}, {TopP: 0.9, TopK: 1 << 40, MinP: 0.3}, {TopP: 1, MinP: 1}}
						logits, probs := make([]float32, len(draws)*cols), make([]float32, len(draws)*cols)
						for i := range logits {
							logits[i] = f.logit(r, i%cols)
						}
						for i := range draws {
							draws[i].U = []float64{r.Float64(), 0, math.Nextafter(1, 0)}[(i+cols)%3]
							row := logits[i*cols : (i+1)*cols]
							top, sum := slices.Max(row), 0.0
							for _, x := range row {
								sum += math.Exp(float64(x) - float64(top))
							}
							for c, x := range row {
								if f.prob != nil {
									probs[i*cols+c] = f.prob(x, cols)
								} else {
									probs[i*cols+c] = float32(math.Exp(float64(x)-float64(top)) / sum)
								}
							}
						}
						rows := len(draws)
						y := View{At: alloc(t, v, 8*rows), Rows: int64(rows), Cols: 2, Stride: 2}
						if err := v.DrawTokens(y, placeRows(t, v, rows, cols, logits), placeRows(t, v, rows, cols, probs), draws); err != nil {
							t.Fatal(err)
						}
						got := readRows(t, v, y)
						for i, d := range draws {
							row := logits[i*cols : (i+1)*cols]
							if want := definedDraw(row, probs[i*cols:(i+1)*cols], d); got[2*i] != float32(want) || got[2*i+1] != row[want] {
								t.Errorf("%+v: token %v with logit %v, want %d with %v", d, got[2*i], got[2*i+1], want, row[want])
							}
						}
					})
				}
			}
		})
	}
}

// log32 is log_rn of arithmetic.h for normal numbers.
func log32(x float32) float32 {
	u := math.Float32bits(x)
	e, m := int(u>>23&255)-126, math.Float32frombits(u&0x007fffff|0x3f000000)
	if m < 0.707106781186547524 {
		e, m = e-1, m+m
	}
	m -= 1
	n, z, p := float32(e), float32(m*m), float32(7.0376836292e-2)
	for _, c := range []float32{-1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1} {
		p = fma32(p, m, c)
	}
	y := float32(float32(m*z) * p)
	y = fma32(z, -0.5, fma32(n, -2.12194440e-4, y))
	return fma32(n, 0.693359375, m+y)
}

// The sum of a row's exponentials has one order, whatever is asked for at once: a thread's is a chain over every 512th column, a warp's is a butterfly, the warps' come one after another. The exponentials are those of Softmax, whose
// rows are not longer for it.
func TestOrderOfLogSumExp(t *testing.T) {
	const threads = 512
	for _, order := range []string{"0", "20261125"} {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			for _, cols := range []int{1, 2, 511, 512, 513, 1024, 1100, 2048, 3000, 3584, 4095, 4096, 4097, 6145, 8192, 10000} {
				const rows = 12
				r := rand.New(rand.NewPCG(uint64(cols), 12))
				logits, tops := make([]float32, rows*cols), make([]float32, rows)
				for i := range logits {
					logits[i] = float32(2 * r.NormFloat64())
				}
				for i := range tops {
					row := logits[i*cols : (i+1)*cols]
					if i == 1 { // nothing comes of most columns
						for c := range cols - 1 {
							row[c] = float32(math.Inf(-1))
						}
					}
					top := slices.Max(row)
					for c := range row {
						row[c] -= top // the largest is 0: all bits of the sum show in its logarithm
					}
				}
				x, top, lse, p := placeRows(t, v, rows, cols, logits), placeRows(t, v, rows, 1, tops), placeRows(t, v, rows, 1, tops), placeRows(t, v, rows, cols, logits)
				for _, err := range []error{v.LogSumExp(lse, x), v.Softmax(p, x, top), v.Softmax(x, x, top)} {
					if err != nil {
						t.Fatal(err)
					}
				}
				exponentials, sums := readRows(t, v, p), readRows(t, v, lse)
				if !slices.Equal(exponentials, readRows(t, v, x)) {
					t.Errorf("%d columns: a softmax in place is another", cols)
				}
				for i := range rows {
					var sum [threads]float32
					for c := range cols {
						sum[c%threads] += exponentials[i*cols+c]
					}
					for mask := 16; mask > 0; mask /= 2 {
						before := sum
						for lane := range sum {
							sum[lane] = before[lane] + before[lane^mask]
						}
					}
					total := sum[0]
					for w := 1; w < threads/32; w++ {
						total += sum[32*w]
					}
					if want := log32(total); math.Float32bits(sums[i]) != math.Float32bits(want) {
						t.Errorf("%d columns, row %d: %v (%08x), want %v (%08x)", cols, i, sums[i], math.Float32bits(sums[i]), want, math.Float32bits(want))
					}
				}
			}
		})
	}
}

// Masks that do not fit into the staging memory together go through it one part after the other.
func TestMasksOfWideRows(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	const rows, cols = 17, 1<<21 + 3
	words := (cols + 63) / 64
	if most := stageHalf / (8 * words); most >= rows {
		t.Fatalf("%d rows fit into the staging memory at once", most)
	}
	r := rand.New(rand.NewPCG(3, 3))
	values, bits, which := make([]float32, rows*cols), make([]uint64, rows*words), make([]int32, rows)
	for i := range values {
		values[i] = float32(i % 1021)
	}
	for i := range bits {
		bits[i] = []uint64{0, math.MaxUint64, r.Uint64()}[r.IntN(3)]
	}
	for i := range which {
		which[i] = int32(i)
	}
	x := placeRows(t, v, rows, cols, values)
	if err := v.MaskColumns(x, which, bits); err != nil {
		t.Fatal(err)
	}
	for i, got := range readRows(t, v, x) {
		row, c := i/cols, i%cols
		want := values[i]
		if bits[row*words+c/64]>>(c%64)&1 == 0 {
			want = float32(math.Inf(-1))
		}
		if got != want {
			t.Fatalf("row %d, column %d is %v, want %v", row, c, got, want)
		}
	}
}
