package cudart

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// fma32 is x·y + z, rounded once: the sum in float64 is made odd where it is not exact, so that the second rounding is that of the exact sum.
func fma32(x, y, z float32) float32 {
	p, c := float64(x)*float64(y), float64(z) // the product is exact
	s := float64(p + c)
	b := float64(s - p)
	rest := float64(p-float64(s-b)) + float64(c-b)
	if u := math.Float64bits(s); rest != 0 && u&1 == 0 {
		if (rest > 0) == (s > 0) {
			u++
		} else {
			u--
		}
		s = math.Float64frombits(u)
	}
	return float32(s)
}

// outerCase is an outer product of matrices whose rows are so much longer than they must be.
type outerCase struct {
	rows, p, q, longer, apart int64
	first                     bool
}

func outerCases() []outerCase {
	cases := []outerCase{{0, 8, 130, 0, 0, false}, {40, 1, 1, 0, 0, false}, {16, 72, 513, 0, 0, true}, {9, 130, 129, 3, 0, false}, {70, 520, 8, 4, 69, false}, {33, 33, 33, 4, 33, false}}
	ranks, widths := []int64{8, 1, 32, 16, 33, 5, 64, 9, 40}, []int64{128, 40, 260, 515, 129, 33}
	for i, rows := range []int64{1, 2, 16, 17, 31, 33, 63, 64, 65, 127} {
		for k := range 2 {
			c := outerCase{rows, ranks[(2*i+k)%len(ranks)], widths[(i+k)%len(widths)], int64(i+k) % 5, rows * int64(i%3) / 3, (i+k)%3 == 0}
			if k == 1 {
				c.p, c.q = c.q, c.p
			}
			cases = append(cases, c)
		}
	}
	return cases
}

// An element of an outer product is the chain that it is said to be, bit for bit: of any shape, beside others in one launch, in any order of threads and with copies as early and as late as they may come. Nothing beside it is
// written, and another launch may go on at any row.
func TestOuterProducts(t *testing.T) {
	for _, order := range orders("20261122", "987654321", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			random := rand.New(rand.NewPCG(14, 15))
			matrix := func(rows, cols, longer int64) (View, []float32) {
				m := View{Rows: rows, Cols: cols, Stride: cols + longer}
				values := make([]float32, rows*m.Stride+longer) // one offset for all rows, too
				for i := range values {
					values[i] = float32(random.NormFloat64())
				}
				if len(values) > 0 {
					m.At = alloc(t, v, 4*len(values))
					if err := v.Upload(m.At, 4*len(values), bytesOf(values), 4*len(values), 1); err != nil {
						t.Fatal(err)
					}
				}
				m.At += Address(4 * longer)
				return m, values[longer:]
			}
			cases := outerCases()
			var whole, from, to []OuterProduct // each at once, or in two launches
			var wants [][]float32
			for _, c := range cases {
				a, as := matrix(c.rows, c.p, c.longer)
				b, bs := matrix(c.rows, c.q, c.longer)
				g, want := matrix(c.p, c.q, c.longer)
				second, _ := matrix(c.p, c.q, c.longer)
				if err := v.Copy(second.At, v, g.At, 4*len(want)); err != nil {
					t.Fatal(err)
				}
				main := c.rows - c.apart
				first := c.first && main > 0
				whole = append(whole, OuterProduct{g, a, b, first, c.apart})
				slice := func(m View, from, to int64) View {
					m.At, m.Rows = m.At+Address(4*from*m.Stride), to-from
					return m
				}
				cut := main * 2 / 3
				from = append(from, OuterProduct{second, slice(a, 0, cut), slice(b, 0, cut), first && cut > 0, 0})
				to = append(to, OuterProduct{second, slice(a, cut, c.rows), slice(b, cut, c.rows), first && cut == 0, c.apart})
				for i := range c.p {
					for j := range c.q {
						sum, other := want[i*g.Stride+j], float32(0)
						if first {
							sum = 0
						}
						for r := range c.rows {
							if r < main {
								sum = fma32(as[r*a.Stride+i], bs[r*b.Stride+j], sum)
							} else {
								other = fma32(as[r*a.Stride+i], bs[r*b.Stride+j], other)
							}
						}
						if c.apart > 0 {
							sum += other
						}
						want[i*g.Stride+j] = sum
					}
				}
				wants = append(wants, want)
			}
			for _, jobs := range [][]OuterProduct{whole, from, to} {
				if err := v.OuterProducts(jobs); err != nil {
					t.Fatal(err)
				}
			}
			for i, want := range wants {
				for name, g := range map[string]View{"at once": whole[i].G, "in two launches": to[i].G} {
					got := make([]byte, 4*len(want))
					if err := v.Download(got, g.At, len(got), len(got), 1); err != nil {
						t.Fatal(err)
					}
					for k, w := range want {
						if math.Float32bits(w) != math.Float32bits(floats(got)[k]) {
							t.Fatalf("%s %s: element %d of row %d is %v, want %v", fmt.Sprintf("%+v", cases[i]), name, int64(k)%g.Stride, int64(k)/g.Stride, floats(got)[k], w)
						}
					}
				}
			}
		})
	}
}

// An adapter's rank has tiles of 8, 16 and 32, no more than are needed.
func TestOuterTiles(t *testing.T) {
	for rank, want := range map[int64]string{1: "3", 8: "3", 9: "4", 16: "4", 17: "5", 32: "5", 33: "53", 48: "54", 64: "55", 0: ""} {
		got := ""
		covered := int64(0)
		for _, tile := range outerTiles(nil, 0, rank, 128) {
			if int64(tile.narrow) != covered {
				t.Errorf("rank %d: a tile begins at %d, want %d", rank, tile.narrow, covered)
			}
			covered += 1 << tile.power
			got += fmt.Sprint(tile.power)
		}
		if got != want || covered < rank {
			t.Errorf("rank %d: tiles %q, want %q", rank, got, want)
		}
	}
}
