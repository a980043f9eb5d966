package tokenizer

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

const (
	// matchTimeout bounds the search for one match, splitTimeout all of one text:
	// a pattern from a model directory may backtrack without end.
	matchTimeout = 2 * time.Second
	splitTimeout = 30 * time.Second
	// maxPattern bounds the bytes of a pattern.
	maxPattern = 1 << 16
)

// regexMatcher finds the matches of a regular expression. The engine is
// regexp2; the expression has been rewritten from the syntax and the Unicode
// tables of the reference's engine, see translateRegex.
type regexMatcher struct {
	pattern string // as in the file
	re      *regexp2.Regexp
}

func newRegexMatcher(field, pattern string) (*regexMatcher, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("%s is %d bytes long: allowed are %d", field, len(pattern), maxPattern)
	}
	translated, err := translateRegex(pattern)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", field, pattern, err)
	}
	re, err := regexp2.Compile(translated)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", field, pattern, err)
	}
	re.MatchTimeout = matchTimeout
	return &regexMatcher{pattern: pattern, re: re}, nil
}

func (m *regexMatcher) spans(text string) ([]span, error) {
	runes := make([]rune, 0, len(text))
	offsets := make([]int32, 0, len(text)+1)
	for i, r := range text {
		runes = append(runes, r)
		offsets = append(offsets, int32(i))
	}
	offsets = append(offsets, int32(len(text)))
	var out []span
	deadline := time.Now().Add(splitTimeout)
	covered := 0
	for at, count := 0, 0; at <= len(runes); count++ {
		if count%64 == 63 && time.Now().After(deadline) {
			return nil, fmt.Errorf("splitting %d bytes by %q took longer than %v", len(text), m.pattern, splitTimeout)
		}
		match, err := m.re.FindRunesMatchStartingAt(runes, at)
		if err != nil {
			return nil, fmt.Errorf("splitting by %q: %w", m.pattern, err)
		}
		if match == nil {
			break
		}
		start, end := match.RuneIndex, match.RuneIndex+match.RuneLength
		if start == end { // an empty match only marks a place to cut
			at = end + 1
			if start == covered && count > 0 {
				continue
			}
		} else {
			at = end
		}
		if covered < start {
			out = append(out, span{int(offsets[covered]), int(offsets[start]), false})
		}
		out = append(out, span{int(offsets[start]), int(offsets[end]), true})
		covered = end
	}
	if covered < len(runes) {
		out = append(out, span{int(offsets[covered]), len(text), false})
	}
	return out, nil
}

// replaceAll replaces every match of m in text.
func replaceAll(m matcher, text, by string) (string, error) {
	spans, err := m.spans(text)
	if err != nil {
		return "", err
	}
	out := make([]byte, 0, len(text))
	for _, s := range spans {
		if s.match {
			out = append(out, by...)
		} else {
			out = append(out, text[s.start:s.end]...)
		}
	}
	return string(out), nil
}

// newMatcher reads a pattern, {"String": s} or {"Regex": r}, taking a scanner
// where there is one.
func newMatcher(field string, p patternDefinition) (matcher, error) {
	switch {
	case p.String != nil && p.Regex == nil:
		return literalMatcher(*p.String), nil
	case p.Regex != nil && p.String == nil:
		if s := scannerFor(*p.Regex); s != nil {
			return s, nil
		}
		return newRegexMatcher(field+".Regex", *p.Regex)
	}
	return nil, fmt.Errorf("%s: one of String and Regex is needed", field)
}

type patternDefinition struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// singleRune returns the only character of s.
func singleRune(field, s string) (rune, error) {
	r, size := utf8.DecodeRuneInString(s)
	if size == 0 || size != len(s) {
		return 0, fmt.Errorf("%s is %q: one character is needed", field, s)
	}
	return r, nil
}
