package cpu_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// flush is what becomes of a number whose magnitude is below the smallest normal one.
func flush(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

// fused is a·b + c rounded once, for a and b whose product float64 has exactly. Results too small to be normal, as rounding them with any
// exponent would tell, become zero.
func fused(a, b, c float32) float32 {
	p, q := float64(a)*float64(b), float64(c)
	s := p + q
	if math.IsNaN(s) || math.IsInf(s, 0) {
		return float32(s)
	}
	z := s - p
	if rest := (p - (s - z)) + (q - z); rest != 0 && math.Float64bits(s)&1 == 0 { // rounded to odd, so that rounding again does no harm
		if (rest > 0) == (s > 0) {
			s = math.Float64frombits(math.Float64bits(s) + 1)
		} else {
			s = math.Float64frombits(math.Float64bits(s) - 1)
		}
	}
	if math.Abs(s) < 0x1p-126*(1-0x1p-25) {
		return float32(math.Copysign(0, s))
	}
	return float32(s)
}

// tiles is the product of a row and a column, in segments, as the arithmetic cpu-amx-1 is defined: c before it, if it has no segments.
func tiles(x, w []float32, c float32, cut tensor.Segments) float32 {
	if cut.Count == 0 {
		cut = tensor.Segments{Count: 1, Ends: [tensor.MaxSegments]int32{int32(len(x))}}
	}
	var sums []float32
	from := 0
	for _, stop := range cut.Ends[:cut.Count] {
		for ; from < int(stop); from = min(from+32, int(stop)) {
			var chains [2]float32
			for k := range 32 {
				var a, b float32
				if from+k < int(stop) {
					a, b = flush(x[from+k]), flush(w[from+k])
				}
				chains[k%2] = fused(a, b, chains[k%2])
			}
			c = flush(c + flush(chains[0]+chains[1]))
		}
		sums, c = append(sums, c), 0
	}
	for ; len(sums) > 1; sums = sums[:len(sums)/2] {
		for i := range len(sums) / 2 {
			sums[i] = flush(sums[2*i] + sums[2*i+1])
		}
	}
	return sums[0]
}

// numbers draws n bfloat16 values: near 1 or of every magnitude, subnormal ones among them.
func numbers(r *rand.Rand, n int, every bool) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(r.NormFloat64())
		if every {
			values[i] = float32(math.Ldexp(float64(values[i]), r.IntN(150)-132))
		}
		values[i] = math.Float32frombits(math.Float32bits(values[i]) &^ 0xffff)
	}
	return values
}

// The products of the instruction set amx are, to the last bit, what its arithmetic is defined as, however many rows there are: the
// instructions themselves, or with the build tag emulate_avx512 what stands for them.
func TestTilesAreTheirFormula(t *testing.T) {
	if !slices.Contains(cpu.ISAs(), "amx") {
		t.Skip("this processor has no AMX: with the build tag emulate_avx512 its kernels run anywhere")
	}
	d := open(t, cpu.Options{ISA: "amx", Threads: 2})
	r := rand.New(rand.NewPCG(5, 7))
	upload := func(rows, cols int, values []float32) tensor.Tensor {
		x := allocate(t, d, rows, cols)
		if err := d.Upload(x, values); err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, s := range []struct {
		out, in int
		every   bool
		odd     float32 // one of the numbers
	}{
		{70, 130, false, 0.5}, {33, 1, false, 0.5}, {64, 640, false, 0.5}, {96, 1100, false, 0.5}, {129, 96, true, 0.5}, {40, 333, true, 0.5},
		{64, 96, false, float32(math.Inf(1))}, {64, 96, false, float32(math.NaN())},
	} {
		weights := numbers(r, s.out*s.in, s.every)
		weights[len(weights)/3] = s.odd
		packed := make([]byte, 0, 2*len(weights))
		for _, v := range weights {
			packed = binary.LittleEndian.AppendUint16(packed, uint16(math.Float32bits(v)>>16))
		}
		m, err := d.NewMatrix(tensor.BFloat16, s.out, s.in)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Free)
		if err := d.PackRows(m, 0, s.out, "BF16", packed); err != nil {
			t.Fatal(err)
		}
		turned := make([]float32, 0, len(weights))
		for k := range s.in {
			for n := range s.out {
				turned = append(turned, weights[n*s.in+k])
			}
		}
		for _, rows := range []int{1, 3, 16, 17, 32, 33, 75} {
			for _, transposed := range []bool{false, true} {
				for _, form := range []string{"plain", "accumulate", "segments"} {
					out, in, w := s.out, s.in, weights
					if transposed {
						out, in, w = s.in, s.out, turned
					}
					x, before := numbers(r, rows*in, s.every), numbers(r, rows*out, s.every)
					y := upload(rows, out, before)
					p := tensor.Multiplication{Y: y, X: upload(rows, in, x), Groups: []tensor.RowGroup{{To: rows, Matrix: m}}, Transposed: transposed}
					p.Accumulate = form == "accumulate"
					if form == "segments" {
						p.Segments, _ = tensor.RankSegments(in, 0, 1)
					}
					if err := d.MatMuls([]tensor.Multiplication{p}); err != nil {
						t.Fatal(err)
					}
					got := make([]float32, rows*out)
					if err := d.Download(got, y); err != nil {
						t.Fatal(err)
					}
					for i, v := range got {
						var c float32
						if p.Accumulate {
							c = before[i]
						}
						want := tiles(x[i/out*in:][:in], w[i%out*in:][:in], c, p.Segments)
						if math.Float32bits(v) != math.Float32bits(want) && !(v != v && want != want) {
							t.Fatalf("%d rows of %d×%d, %s, transposed %v: element %d is %v, the formula gives %v", rows, s.out, s.in, form, transposed, i, v, want)
						}
					}
				}
			}
		}
	}
}
