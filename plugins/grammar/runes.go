package grammar

import "slices"

// RuneRange is the code points from Lo up to Hi, both included.
type RuneRange struct{ Lo, Hi rune }

// runes is a set of code points: ranges in ascending order that do not touch.
type runes []RuneRange

const (
	maxRune        = 0x10ffff
	firstSurrogate = 0xd800
	lastSurrogate  = 0xdfff
)

// newRunes sorts and joins ranges; what is no code point, surrogates included, is left out.
func newRunes(ranges []RuneRange) runes {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b RuneRange) int { return int(a.Lo) - int(b.Lo) })
	var out runes
	for _, r := range sorted {
		r.Lo, r.Hi = max(r.Lo, 0), min(r.Hi, maxRune)
		if r.Lo > r.Hi {
			continue
		}
		if n := len(out); n > 0 && r.Lo <= out[n-1].Hi+1 {
			out[n-1].Hi = max(out[n-1].Hi, r.Hi)
			continue
		}
		out = append(out, r)
	}
	return out.withoutSurrogates()
}

func (s runes) withoutSurrogates() runes {
	out := make(runes, 0, len(s)+1)
	for _, r := range s {
		if r.Hi < firstSurrogate || r.Lo > lastSurrogate {
			out = append(out, r)
			continue
		}
		if r.Lo < firstSurrogate {
			out = append(out, RuneRange{r.Lo, firstSurrogate - 1})
		}
		if r.Hi > lastSurrogate {
			out = append(out, RuneRange{lastSurrogate + 1, r.Hi})
		}
	}
	return out
}

func (s runes) contains(r rune) bool {
	_, found := slices.BinarySearchFunc(s, r, func(x RuneRange, r rune) int {
		switch {
		case x.Hi < r:
			return -1
		case x.Lo > r:
			return 1
		}
		return 0
	})
	return found
}

func (s runes) intersect(o runes) runes {
	var out runes
	for i, j := 0, 0; i < len(s) && j < len(o); {
		if lo, hi := max(s[i].Lo, o[j].Lo), min(s[i].Hi, o[j].Hi); lo <= hi {
			out = append(out, RuneRange{lo, hi})
		}
		if s[i].Hi < o[j].Hi {
			i++
		} else {
			j++
		}
	}
	return out
}
