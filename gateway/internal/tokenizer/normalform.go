package tokenizer

import (
	"slices"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// The Hangul arithmetic of the Unicode Standard, chapter 3.12.
const (
	hangulBase, hangulLBase, hangulVBase, hangulTBase = 0xAC00, 0x1100, 0x1161, 0x11A7
	hangulLCount, hangulVCount, hangulTCount          = 19, 21, 28
	hangulCount                                       = hangulLCount * hangulVCount * hangulTCount
)

// normalForm is one of the four Unicode normalization forms. It differs from
// golang.org/x/text/unicode/norm in two ways that matter here: it knows the
// characters the reference implementation knows, no newer ones, and it never
// breaks up long runs of combining marks with U+034F.
type normalForm struct {
	compatible bool // NFKC, NFKD
	compose    bool // NFC, NFKC
}

// normalize returns s in the form. Stretches that are already in the form, by
// far the most text, are copied untouched.
func (f normalForm) normalize(b *budget.Budget, s string) (string, bool, error) {
	u := loadUnicode()
	if err := b.Spend(len(s), len(s)); err != nil {
		return "", false, err
	}
	affected := shapeMark
	switch {
	case f.compatible && f.compose:
		affected |= shapeNFKD | shapeNFC | shapeJoin
	case f.compose:
		affected |= shapeNFC | shapeJoin
	case f.compatible:
		affected |= shapeNFKD
	default:
		affected |= shapeNFD
	}
	var out []byte
	done := 0    // s[:done] is in out
	starter := 0 // the last boundary: nothing from here on changes what is before
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			starter = i
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if u.shape.at(r)&affected == 0 {
			starter = i
			i += size
			continue
		}
		end := i + size
		for end < len(s) && s[end] >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[end:])
			if u.shape.at(r)&affected == 0 {
				break
			}
			end += size
		}
		out = append(out, s[done:starter]...)
		before := len(out)
		var err error
		if out, err = f.appendSegment(b, out, u, s[starter:end]); err != nil {
			return "", false, err
		}
		if err := b.Take(max(0, len(out)-before-(end-starter))); err != nil {
			return "", false, err
		}
		done, starter, i = end, end, end
	}
	if done == 0 {
		return s, false, nil
	}
	return string(append(out, s[done:]...)), false, nil
}

// appendSegment normalizes a segment that stands between two boundaries.
func (f normalForm) appendSegment(b *budget.Budget, out []byte, u *unicodeData, s string) ([]byte, error) {
	paid := 0
	defer func() { b.Return(paid) }()
	runes := make([]rune, 0, len(s))
	for _, r := range s {
		if len(runes)+maxDecomposed > cap(runes) {
			runes = slices.Grow(runes, len(runes)+maxDecomposed)
		}
		if now := 4 * cap(runes); now > paid {
			if err := b.Take(now - paid); err != nil {
				return nil, err
			}
			paid = now
		}
		runes = f.appendDecomposed(runes, u, r)
	}
	if err := b.Work(16 * len(runes)); err != nil {
		return nil, err
	}
	class := func(r rune) uint8 { return u.combining.at(r) }
	for i := 0; i < len(runes); {
		if class(runes[i]) == 0 {
			i++
			continue
		}
		end := i + 1
		for end < len(runes) && class(runes[end]) != 0 {
			end++
		}
		if err := b.Work(8 * (end - i)); err != nil {
			return nil, err
		}
		slices.SortStableFunc(runes[i:end], func(a, b rune) int { return int(class(a)) - int(class(b)) })
		i = end
	}
	if f.compose {
		runes = u.compose(runes)
	}
	for _, r := range runes {
		out = utf8.AppendRune(out, r)
	}
	return out, nil
}

// maxDecomposed is the most characters that one becomes.
const maxDecomposed = 18

func (f normalForm) appendDecomposed(out []rune, u *unicodeData, r rune) []rune {
	if s := r - hangulBase; s >= 0 && s < hangulCount {
		out = append(out, hangulLBase+s/(hangulVCount*hangulTCount), hangulVBase+s%(hangulVCount*hangulTCount)/hangulTCount)
		if t := s % hangulTCount; t != 0 {
			out = append(out, hangulTBase+t)
		}
		return out
	}
	if f.compatible {
		if d, ok := u.compatible[r]; ok {
			return append(out, d...)
		}
	}
	if d, ok := u.canonical[r]; ok {
		return append(out, d...)
	}
	return append(out, r)
}

// compose joins in place what the canonical composition algorithm joins.
func (u *unicodeData) compose(runes []rune) []rune {
	out := runes[:0]
	starter := -1
	var last uint8 // combining class of the last character in out; 0 directly after the starter
	for _, r := range runes {
		class := u.combining.at(r)
		if starter >= 0 && (last == 0 || last < class) {
			if c, ok := u.pair(out[starter], r); ok {
				out[starter] = c
				continue
			}
		}
		out = append(out, r)
		last = class
		if class == 0 {
			starter = len(out) - 1
		}
	}
	return out
}

func (u *unicodeData) pair(a, b rune) (rune, bool) {
	if l := a - hangulLBase; l >= 0 && l < hangulLCount {
		if v := b - hangulVBase; v >= 0 && v < hangulVCount {
			return hangulBase + (l*hangulVCount+v)*hangulTCount, true
		}
		return 0, false
	}
	if s := a - hangulBase; s >= 0 && s < hangulCount && s%hangulTCount == 0 {
		if t := b - hangulTBase; t > 0 && t < hangulTCount {
			return a + t, true
		}
		return 0, false
	}
	c, ok := u.composed[[2]rune{a, b}]
	return c, ok
}
