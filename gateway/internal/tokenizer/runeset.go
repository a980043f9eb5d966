package tokenizer

import (
	"slices"
	"sort"
	"unicode/utf8"
)

// runeRange is an inclusive range of code points.
type runeRange struct{ lo, hi rune }

// runeSet is a set of code points: ascending ranges that neither overlap nor
// touch. The zero value is the empty set.
type runeSet []runeRange

// newRuneSet brings ranges in any order into the form a runeSet must have.
func newRuneSet(ranges []runeRange) runeSet {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b runeRange) int { return int(a.lo) - int(b.lo) })
	var out runeSet
	for _, r := range sorted {
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
			continue
		}
		out = append(out, r)
	}
	return out
}

func (s runeSet) contains(r rune) bool {
	i := sort.Search(len(s), func(i int) bool { return s[i].hi >= r })
	return i < len(s) && s[i].lo <= r
}

func (s runeSet) union(t runeSet) runeSet {
	return newRuneSet(append(slices.Clone(s), t...))
}

func (s runeSet) complement() runeSet {
	var out runeSet
	next := rune(0)
	for _, r := range s {
		if r.lo > next {
			out = append(out, runeRange{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= utf8.MaxRune {
		out = append(out, runeRange{next, utf8.MaxRune})
	}
	return out
}

func (s runeSet) intersect(t runeSet) runeSet {
	return s.complement().union(t.complement()).complement()
}

// runeTable maps every code point to eight bits in two array reads. Blocks of
// 256 code points that are equal are stored once.
type runeTable struct {
	index  [(utf8.MaxRune + 1) >> 8]uint16
	blocks [][256]uint8
}

func (t *runeTable) at(r rune) uint8 {
	if uint32(r) > utf8.MaxRune {
		return 0
	}
	return t.blocks[t.index[r>>8]][r&0xff]
}

// newRuneTable builds a table from the pairs that fill hands to its argument;
// bits set for the same code point are combined with or.
func newRuneTable(fill func(set func(lo, hi rune, bits uint8))) *runeTable {
	raw := make([]uint8, utf8.MaxRune+1)
	fill(func(lo, hi rune, bits uint8) {
		for r := lo; r <= hi; r++ {
			raw[r] |= bits
		}
	})
	t := &runeTable{}
	seen := map[[256]uint8]uint16{}
	for i := range t.index {
		block := [256]uint8(raw[i<<8 : (i+1)<<8])
		n, ok := seen[block]
		if !ok {
			n = uint16(len(t.blocks))
			seen[block] = n
			t.blocks = append(t.blocks, block)
		}
		t.index[i] = n
	}
	return t
}
