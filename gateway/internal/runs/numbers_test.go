package runs

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestNumbers(t *testing.T) {
	for name, c := range map[string]struct {
		added []int64
		spans []span64
	}{
		"none":                 {nil, nil},
		"in order":             {[]int64{0, 1, 2, 3}, []span64{{0, 4}}},
		"backwards":            {[]int64{3, 2, 1}, []span64{{1, 4}}},
		"twice":                {[]int64{5, 5, 6, 5}, []span64{{5, 7}}},
		"a gap that is filled": {[]int64{0, 2, 1}, []span64{{0, 3}}},
		"two clients":          {[]int64{0, cloneSize, 1, cloneSize + 1}, []span64{{0, 2}, {cloneSize, cloneSize + 2}}},
	} {
		var s numbers
		for _, n := range c.added {
			s.add(n)
		}
		if !slices.Equal(s.spans, c.spans) {
			t.Errorf("%s: %v, wanted %v", name, s.spans, c.spans)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	var s numbers
	in := map[int64]bool{}
	for range 3000 {
		n := random.Int64N(1000)
		if random.IntN(3) == 0 {
			s.remove(n)
			delete(in, n)
			continue
		}
		s.add(n)
		in[n] = true
	}
	for n := range int64(1001) {
		if s.has(n) != in[n] {
			t.Errorf("%d: %v, wanted %v", n, s.has(n), in[n])
		}
		if fits := in[n-1] || in[n] || in[n+1]; s.fits(n) != fits {
			t.Errorf("%d fits: %v, wanted %v", n, s.fits(n), fits)
		}
	}
	for i, x := range s.spans {
		if x.From >= x.To || i > 0 && x.From <= s.spans[i-1].To {
			t.Fatalf("the spans are not apart: %v", s.spans)
		}
	}
}
