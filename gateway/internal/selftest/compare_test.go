package selftest

import (
	"math"
	"testing"
)

func passOf(loss float64, values ...[]float32) pass {
	p := pass{Metrics: map[string]float64{"loss:sum": loss}}
	for _, v := range values {
		var one struct{ Logprobs struct{ Data logprobs } }
		one.Logprobs.Data = v
		p.Outputs = append(p.Outputs, one)
	}
	return p
}

func TestTally(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name    string
		compare func(r *tally)
		want    Difference // the zero value: none
		count   int
	}{
		{"equal bits", func(r *tally) { r.bits("x", []float32{-1, nan}, []float32{-1, nan}, 0) }, Difference{}, 2},
		{"the last bit", func(r *tally) { r.bits("x", []float32{-1, -2, -3}, []float32{-1, math.Nextafter32(-2, 0), 7}, 1) },
			Difference{"x, position 2", "-2 (0xc0000000)", "-1.9999999 (0xbfffffff)"}, 3},
		{"signs of zero are bits", func(r *tally) { r.bits("x", []float32{0}, []float32{float32(math.Copysign(0, -1))}, 0) },
			Difference{"x, position 0", "0 (0x00000000)", "-0 (0x80000000)"}, 1},
		{"too few", func(r *tally) { r.bits("x", []float32{0, 1}, []float32{0}, 0) }, Difference{"the number of values of x", "2", "1"}, 0},
		{"other tokens", func(r *tally) { r.tokens("x", []int{1, 2}, []int{1, 3}) }, Difference{"x, token 1", "2", "3"}, 2},
		{"more tokens", func(r *tally) { r.tokens("x", []int{1}, []int{1, 3}) }, Difference{"the number of tokens of x", "1", "2"}, 1},
		{"the loss", func(r *tally) { r.pass("x", passOf(3, []float32{-1}), passOf(math.Nextafter(3, 4), []float32{-1})) },
			Difference{"x, loss:sum", "3", "3.0000000000000004"}, 2},
		{"no loss", func(r *tally) { r.pass("x", passOf(3), pass{}) }, Difference{"x, loss:sum", "a number", "none"}, 1},
		{"a sequence that is not there", func(r *tally) { r.pass("x", passOf(3, []float32{-1}), passOf(3)) }, Difference{"the number of outputs of x", "1", "0"}, 0},
		{"a step that is not there", func(r *tally) { r.passes("x", []pass{passOf(1)}, nil) }, Difference{"the number of steps of x", "1", "0"}, 0},
		{"the first of two", func(r *tally) { r.bits("x", []float32{1}, []float32{2}, 0); r.bits("y", []float32{1}, []float32{3}, 0) },
			Difference{"x, position 0", "1 (0x3f800000)", "2 (0x40000000)"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r tally
			c.compare(&r)
			if r.compared != c.count {
				t.Errorf("compared %d values, want %d", r.compared, c.count)
			}
			if r.first == nil {
				r.first = &Difference{}
			}
			if *r.first != c.want {
				t.Errorf("difference %+v, want %+v", *r.first, c.want)
			}
		})
	}
}

func TestLargest(t *testing.T) {
	a := passOf(0, []float32{-1, -2}, []float32{-3, -4})
	d, i, j := largest(a, passOf(0, []float32{-1, -2.5}, []float32{-4, -4}))
	if d != 1 || i != 1 || j != 0 {
		t.Errorf("largest distance %v at %d, %d", d, i, j)
	}
	if d, _, _ := largest(a, passOf(0, []float32{-1, float32(math.NaN())})); !math.IsNaN(d) {
		t.Errorf("with NaN the largest distance is %v", d)
	}
}
