package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// Case mappings are Unicode's full ones, as Python's: "ß" becomes "SS", a final sigma differs. Casers keep state, so each call makes its own.

func upper(s string) string { return cases.Upper(language.Und).String(s) }

func lower(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i, c := range s {
		writeLower(&b, s, i, c)
	}
	return b.String()
}

func casefold(s string) string {
	return strings.Map(func(c rune) rune {
		// Cherokee folds to its capitals, which are the older letters; cases.Fold has it the other way round.
		if unicode.Is(unicode.Cherokee, c) {
			return unicode.ToUpper(c)
		}
		return c
	}, cases.Fold().String(s))
}

// titleRune is the title case of one character, which may be several.
func titleRune(c rune) string {
	if c < utf8.RuneSelf {
		return string(unicode.ToUpper(c))
	}
	if t := unicode.ToTitle(c); t != c {
		return string(t)
	}
	// Characters without a simple title case may have a full one; only the first letter of what upper gives stays upper.
	up := []rune(upper(string(c)))
	if len(up) == 1 {
		return string(c)
	}
	return cases.Title(language.Und).String(string(c))
}

func isCased(c rune) bool {
	return unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c) || unicode.Is(unicode.Other_Lowercase, c) || unicode.Is(unicode.Other_Uppercase, c)
}

// titleWords is str.title: the first cased character of each run of cased ones in title case, the rest in lower case.
func titleWords(s string) string {
	var b strings.Builder
	previous := false
	for i, c := range s {
		if previous {
			writeLower(&b, s, i, c)
		} else {
			b.WriteString(titleRune(c))
		}
		previous = isCased(c)
	}
	return b.String()
}

// writeLower writes the lower case of c, which stands at byte i of s.
func writeLower(b *strings.Builder, s string, i int, c rune) {
	switch {
	case c == 'İ':
		b.WriteString("i\u0307")
	case c == 'Σ' && finalSigma(s[:i], s[i+len("Σ"):]):
		b.WriteRune('ς')
	default:
		b.WriteRune(unicode.ToLower(c))
	}
}

// finalSigma is Unicode's condition for a sigma at the end of a word: a cased character before it and none behind, punctuation and marks aside.
func finalSigma(before, after string) bool {
	before = strings.TrimRightFunc(before, isCaseIgnorable)
	after = strings.TrimLeftFunc(after, isCaseIgnorable)
	last, _ := utf8.DecodeLastRuneInString(before)
	next, _ := utf8.DecodeRuneInString(after)
	return before != "" && isCased(last) && !(after != "" && isCased(next))
}

// isCaseIgnorable is Unicode's property: marks, formats, modifiers and the punctuation that stands inside words.
func isCaseIgnorable(c rune) bool {
	return strings.ContainsRune("'.:·\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a", c) ||
		unicode.In(c, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk)
}

// capitalize is str.capitalize: the first character in title case, the rest in lower case.
func capitalize(s string) string {
	var b strings.Builder
	for i, c := range s {
		if i == 0 {
			b.WriteString(titleRune(c))
		} else {
			writeLower(&b, s, i, c)
		}
	}
	return b.String()
}

func swapCase(s string) string {
	var b strings.Builder
	for i, c := range s {
		switch {
		case isUpper(c):
			writeLower(&b, s, i, c)
		case c < utf8.RuneSelf:
			b.WriteRune(unicode.ToUpper(c))
		case isLower(c):
			b.WriteString(upper(string(c)))
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

func isUpper(c rune) bool { return unicode.IsUpper(c) || unicode.Is(unicode.Other_Uppercase, c) }

func isLower(c rune) bool { return unicode.IsLower(c) || unicode.Is(unicode.Other_Lowercase, c) }

func isDigit(c rune) bool { return unicode.Is(unicode.Nd, c) || unicode.Is(otherDigits, c) }

func isNumeric(c rune) bool { return isDigit(c) || unicode.Is(otherNumerics, c) }

func isLowerText(s string) bool {
	cased := false
	for _, c := range s {
		if isUpper(c) || unicode.IsTitle(c) {
			return false
		}
		cased = cased || isLower(c)
	}
	return cased
}

func isUpperText(s string) bool {
	cased := false
	for _, c := range s {
		if isLower(c) || unicode.IsTitle(c) {
			return false
		}
		cased = cased || isUpper(c)
	}
	return cased
}

func isTitleText(s string) bool {
	cased, previous := false, false
	for _, c := range s {
		switch {
		case isUpper(c) || unicode.IsTitle(c):
			if previous {
				return false
			}
			previous, cased = true, true
		case isLower(c):
			if !previous {
				return false
			}
			cased = true
		default:
			previous = false
		}
	}
	return cased
}

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

// escapeHTML is the function of that name, counted.
func (r *run) escapeHTML(s string) string {
	r.scan(4 * len(s))
	piecewise(s, func(piece string) {
		r.alloc(len(piece))
		for i := range len(piece) {
			switch piece[i] {
			case '&', '<', '>', '\'', '"':
				r.alloc(len("&#34;") - 1)
			}
		}
	})
	return escapeHTML(s)
}

// escapeHTML is markupsafe's escape.
func escapeHTML(s string) string { return htmlEscapes.Replace(s) }
