package ecma

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// normal sorts ranges and joins those that touch.
func normal(ranges []rune) []rune {
	type span struct{ low, high rune }
	spans := make([]span, 0, len(ranges)/2)
	for i := 0; i < len(ranges); i += 2 {
		spans = append(spans, span{ranges[i], ranges[i+1]})
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.low) - int(b.low) })
	out := make([]rune, 0, len(ranges))
	for _, s := range spans {
		if n := len(out); n > 0 && s.low <= out[n-1]+1 {
			out[n-1] = max(out[n-1], s.high)
			continue
		}
		out = append(out, s.low, s.high)
	}
	return out
}

func complement(ranges []rune) []rune {
	out := make([]rune, 0, len(ranges)+2)
	next := rune(0)
	for i := 0; i < len(ranges); i += 2 {
		if ranges[i] > next {
			out = append(out, next, ranges[i]-1)
		}
		next = ranges[i+1] + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, next, unicode.MaxRune)
	}
	return out
}

// foldedAtMost is up to how many characters of a class are looked at for their other cases.
const foldedAtMost = 4096

// foldedCharacters is how many characters folded looks at.
func foldedCharacters(ranges []rune) int {
	count := 0
	for i := 0; i < len(ranges) && count < foldedAtMost; i += 2 {
		count += int(ranges[i+1]-ranges[i]) + 1
	}
	return min(count, foldedAtMost)
}

func folded(ranges []rune) []rune {
	out := slices.Clone(ranges)
	seen := 0
	for i := 0; i < len(ranges); i += 2 {
		for r := ranges[i]; r <= ranges[i+1] && seen < foldedAtMost; r++ {
			seen++
			for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
				out = append(out, other, other)
			}
		}
	}
	return normal(out)
}

func contains(ranges []rune, r rune) bool {
	low, high := 0, len(ranges)/2
	for low < high {
		middle := (low + high) / 2
		switch {
		case r < ranges[2*middle]:
			high = middle
		case r > ranges[2*middle+1]:
			low = middle + 1
		default:
			return true
		}
	}
	return false
}

// longNames are the general categories' long names that schemas use; unicode knows the short ones.
var longNames = map[string]string{
	"Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm",
	"Other_Letter": "Lo",
	"Mark":         "M", "Combining_Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me",
	"Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No",
	"Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc", "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe",
	"Initial_Punctuation": "Pi", "Final_Punctuation": "Pf", "Other_Punctuation": "Po",
	"Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk", "Other_Symbol": "So",
	"Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl", "Paragraph_Separator": "Zp",
	"Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf", "Surrogate": "Cs", "Private_Use": "Co",
	"Alphabetic": "Alphabetic", "Alpha": "Alphabetic", "Uppercase": "Uppercase", "Lowercase": "Lowercase", "White_Space": "White_Space",
}

// property is the characters of \p{name}: a general category, a script, or one of the binary properties that patterns use.
func property(name string) ([]rune, error) {
	key, value, pair := strings.Cut(name, "=")
	if pair {
		switch key {
		case "Script", "sc", "Script_Extensions", "scx":
			if table := unicode.Scripts[value]; table != nil {
				return tableRanges(table), nil
			}
			return nil, fmt.Errorf(`\p{%s}: no such script`, name)
		case "General_Category", "gc":
			name = value
		default:
			return nil, fmt.Errorf(`\p{%s}: no such property`, name)
		}
	}
	if short, ok := longNames[name]; ok {
		name = short
	}
	switch name {
	case "Any":
		return []rune{0, unicode.MaxRune}, nil
	case "ASCII":
		return []rune{0, 0x7f}, nil
	case "LC":
		return tableRanges(unicode.Lu, unicode.Ll, unicode.Lt), nil
	case "Alphabetic":
		return tableRanges(unicode.L, unicode.Nl, unicode.Other_Alphabetic), nil
	case "Uppercase":
		return tableRanges(unicode.Lu, unicode.Other_Uppercase), nil
	case "Lowercase":
		return tableRanges(unicode.Ll, unicode.Other_Lowercase), nil
	}
	if table := unicode.Categories[name]; table != nil {
		return tableRanges(table), nil
	}
	if table := unicode.Properties[name]; table != nil {
		return tableRanges(table), nil
	}
	return nil, fmt.Errorf(`\p{%s}: no such property`, name)
}

func tableRanges(tables ...*unicode.RangeTable) []rune {
	var ranges []rune
	add := func(low, high, stride rune) {
		if stride == 1 {
			ranges = append(ranges, low, high)
			return
		}
		for r := low; r <= high; r += stride {
			ranges = append(ranges, r, r)
		}
	}
	for _, table := range tables {
		for _, r := range table.R16 {
			add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
		for _, r := range table.R32 {
			add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
	}
	return normal(ranges)
}
