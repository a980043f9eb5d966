package grammar

import (
	"math/rand/v2"
	"testing"
)

// lengthSet is the lengths of texts below some bound.
type lengthSet []bool

const lengthBound = 400

func lengthsOf(list ...int) lengthSet {
	out := make(lengthSet, lengthBound)
	for _, n := range list {
		out[n] = true
	}
	return out
}

func (s lengthSet) plus(o lengthSet) lengthSet {
	out := make(lengthSet, lengthBound)
	for i, a := range s {
		for j := 0; a && i+j < lengthBound; j++ {
			out[i+j] = out[i+j] || o[j]
		}
	}
	return out
}

func (s lengthSet) or(o lengthSet) lengthSet {
	out := make(lengthSet, lengthBound)
	for i := range out {
		out[i] = s[i] || o[i]
	}
	return out
}

// randomLengths makes an expression, and by its parts the lengths that its texts have.
func randomLengths(r *rand.Rand, b *Builder, depth int) (Expr, lengthSet) {
	if depth == 0 {
		switch r.IntN(4) {
		case 0:
			return b.Literal("abc"), lengthsOf(3)
		case 1:
			return b.Union(b.Literal("ab"), b.Literal("abcde")), lengthsOf(2, 5)
		case 2:
			return b.Empty(), lengthsOf(0)
		}
		return b.Class(RuneRange{'a', 'c'}), lengthsOf(1)
	}
	x, s := randomLengths(r, b, depth-1)
	y, o := randomLengths(r, b, depth-1)
	switch r.IntN(4) {
	case 0:
		return b.Union(x, y), s.or(o)
	case 1:
		low := r.IntN(30)
		high := low + r.IntN(20)
		out, round := make(lengthSet, lengthBound), lengthsOf(0)
		for k := 0; k <= high; k++ {
			if k >= low {
				out = out.or(round)
			}
			round = round.plus(s)
		}
		return b.Repeat(x, low, high), out
	case 2:
		all := s.or(lengthsOf(0))
		for range 9 { // twice as many rounds each time
			all = all.plus(all)
		}
		return b.Repeat(x, 0, -1), all
	}
	return b.Concat(x, y), s.plus(o)
}

// TestLengths compares what is found about languages cut by a length with the lengths that follow from how they were made.
func TestLengths(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	yes, no, unknown := 0, 0, 0
	for n := range 200 {
		limits := DefaultLimits()
		limits.Steps = 50_000
		b := NewBuilder(limits)
		x, lengths := randomLengths(r, b, 1+r.IntN(3))
		x = b.Intersect(x, b.Not(b.Concat(b.AnyText(), b.Literal("d")))) // none of them ends like that
		for range 5 {
			low := 65 + r.IntN(200)
			high := low + r.IntN(60)
			want := false
			for k := low; k <= high; k++ {
				want = want || lengths[k]
			}
			none, err := b.IsNothing(b.Intersect(x, b.Repeat(b.AnyChar(), low, high)))
			if err != nil { // too many derivatives
				unknown++
				break
			}
			if none == want {
				t.Fatalf("expression %d has a text of %d to %d characters: %v, want %v", n, low, high, !none, want)
			}
			if want {
				yes++
				continue
			}
			no++
			open, err := b.IsNothing(b.Intersect(x, b.Repeat(b.AnyChar(), low, -1)))
			longer := false
			for k := low; k < lengthBound; k++ {
				longer = longer || lengths[k]
			}
			if err == nil && longer && open {
				t.Fatalf("expression %d has a text from %d characters on: %v, %v", n, low, !open, err)
			}
		}
	}
	if yes < 50 || no < 50 || unknown > 20 {
		t.Errorf("%d have such texts, %d have none, of %d it was not found", yes, no, unknown)
	}
}

// TestLongLengths decides what has far more derivatives than steps.
func TestLongLengths(t *testing.T) {
	letter, digit := RuneRange{'a', 'z'}, RuneRange{'0', '9'}
	for name, test := range map[string]struct {
		low, high int
		nothing   bool
	}{
		"from odd":  {999_999, -1, false},
		"bounded":   {2_001, 2_001, true},
		"in a span": {2_001, 2_002, false},
	} {
		limits := DefaultLimits()
		limits.Steps = 5_000
		b := NewBuilder(limits)
		pairs := b.Repeat(b.Concat(b.Class(letter), b.Class(digit)), 1, -1)
		none, _ := b.Ask(b.Intersect(pairs, b.Repeat(b.AnyChar(), test.low, test.high)), limits.Steps)
		if none != test.nothing {
			t.Errorf("%s: %v", name, none)
		}
	}
}
