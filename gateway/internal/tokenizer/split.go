package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// span is a stretch of a text, in bytes; match tells a match of a pattern from
// what lies between matches.
type span struct {
	start, end int
	match      bool
}

// matcher cuts a text into spans that cover it without gaps.
type matcher interface {
	spans(text string) ([]span, error)
}

// literalMatcher finds a fixed, non-empty string.
type literalMatcher string

func (m literalMatcher) spans(text string) ([]span, error) {
	var out []span
	if m == "" {
		return wholeSpan(text), nil
	}
	at := 0
	for at < len(text) {
		i := strings.Index(text[at:], string(m))
		if i < 0 {
			break
		}
		if i > 0 {
			out = append(out, span{at, at + i, false})
		}
		out = append(out, span{at + i, at + i + len(m), true})
		at += i + len(m)
	}
	if at < len(text) {
		out = append(out, span{at, len(text), false})
	}
	return out, nil
}

// runeMatcher matches each single character that it holds for.
type runeMatcher func(r rune) bool

func (m runeMatcher) spans(text string) ([]span, error) {
	var out []span
	from := 0
	for i, r := range text {
		if !m(r) {
			continue
		}
		if from < i {
			out = append(out, span{from, i, false})
		}
		from = i + utf8.RuneLen(r)
		out = append(out, span{i, from, true})
	}
	if from < len(text) {
		out = append(out, span{from, len(text), false})
	}
	return out, nil
}

// spans makes a scanner a matcher: all of the text is matches.
func (f scanner) spans(text string) ([]span, error) {
	var out []span
	for i := 0; i < len(text); {
		end := f(text, i)
		out = append(out, span{i, end, true})
		i = end
	}
	return out, nil
}

// inverted swaps matches and what lies between.
type inverted struct{ of matcher }

func (m inverted) spans(text string) ([]span, error) {
	out, err := m.of.spans(text)
	for i := range out {
		out[i].match = !out[i].match
	}
	return out, err
}

func wholeSpan(text string) []span {
	if text == "" {
		return nil
	}
	return []span{{0, len(text), false}}
}

// behavior says what becomes of the matches of a splitting pattern.
type behavior string

const (
	removed            behavior = "Removed"            // matches are dropped
	isolated           behavior = "Isolated"           // a match is a piece of its own
	mergedWithPrevious behavior = "MergedWithPrevious" // a match ends the piece before it
	mergedWithNext     behavior = "MergedWithNext"     // a match begins the piece after it
	contiguous         behavior = "Contiguous"         // neighbouring matches are one piece
)

func checkBehavior(field string, b behavior) error {
	switch b {
	case removed, isolated, mergedWithPrevious, mergedWithNext, contiguous:
		return nil
	}
	return fmt.Errorf("%s.behavior is %q: supported are Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous", field, b)
}

// apply merges or drops spans in place; every span left is a piece.
func (b behavior) apply(spans []span) []span {
	out := spans[:0]
	switch b {
	case removed:
		for _, s := range spans {
			if !s.match {
				out = append(out, s)
			}
		}
	case isolated:
		out = spans
	case contiguous:
		for _, s := range spans {
			if n := len(out); n > 0 && out[n-1].match == s.match {
				out[n-1].end = s.end
				continue
			}
			out = append(out, s)
		}
	case mergedWithPrevious:
		before := false
		for _, s := range spans {
			if n := len(out); s.match && !before && n > 0 {
				out[n-1].end = s.end
			} else {
				out = append(out, s)
			}
			before = s.match
		}
	case mergedWithNext:
		// Merging runs from the end: each match joins what follows unless that is a match too.
		at, after := len(spans), false
		for i := len(spans) - 1; i >= 0; i-- {
			s := spans[i]
			if s.match && !after && at < len(spans) {
				spans[at].start = s.start
			} else {
				at--
				spans[at] = s
			}
			after = s.match
		}
		out = spans[at:]
	}
	return out
}
