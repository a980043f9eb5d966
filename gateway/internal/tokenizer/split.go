package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// span is a stretch of a text, in bytes; match tells a match of a pattern from
// what lies between matches.
type span struct {
	start, end int32
	match      bool
}

// spanBytes is what a span takes.
const spanBytes = 12

// matcher cuts a text into spans that cover it without gaps. Who has no more use for them returns their bytes to the budget.
type matcher interface {
	spans(b *budget.Budget, text string) ([]span, error)
}

// spanList collects spans and pays for them; after an error it takes no more.
type spanList struct {
	budget *budget.Budget
	spans  []span
	err    error
}

func (l *spanList) add(start, end int, match bool) {
	if l.err != nil {
		return
	}
	if l.err = l.budget.Take(spanBytes); l.err == nil {
		l.spans = append(l.spans, span{int32(start), int32(end), match})
	}
}

// literalMatcher finds a fixed, non-empty string.
type literalMatcher string

func (m literalMatcher) spans(b *budget.Budget, text string) ([]span, error) {
	out := spanList{budget: b, err: b.Work(len(text))}
	if m == "" {
		if text != "" {
			out.add(0, len(text), false)
		}
		return out.spans, out.err
	}
	at := 0
	for at < len(text) && out.err == nil {
		i := strings.Index(text[at:], string(m))
		if i < 0 {
			break
		}
		if i > 0 {
			out.add(at, at+i, false)
		}
		out.add(at+i, at+i+len(m), true)
		at += i + len(m)
	}
	if at < len(text) {
		out.add(at, len(text), false)
	}
	return out.spans, out.err
}

// runeMatcher matches each single character that it holds for.
type runeMatcher func(r rune) bool

func (m runeMatcher) spans(b *budget.Budget, text string) ([]span, error) {
	out := spanList{budget: b, err: b.Work(4 * len(text))}
	from := 0
	for i, r := range text {
		if out.err != nil {
			break
		}
		if !m(r) {
			continue
		}
		if from < i {
			out.add(from, i, false)
		}
		from = i + utf8.RuneLen(r)
		out.add(i, from, true)
	}
	if from < len(text) {
		out.add(from, len(text), false)
	}
	return out.spans, out.err
}

// spans makes a scanner a matcher: all of the text is matches.
func (f scanner) spans(b *budget.Budget, text string) ([]span, error) {
	out := spanList{budget: b, err: b.Work(2 * len(text))}
	for i := 0; i < len(text) && out.err == nil; {
		end := f(text, i)
		out.add(i, end, true)
		i = end
	}
	return out.spans, out.err
}

// inverted swaps matches and what lies between.
type inverted struct{ of matcher }

func (m inverted) spans(b *budget.Budget, text string) ([]span, error) {
	out, err := m.of.spans(b, text)
	for i := range out {
		out[i].match = !out[i].match
	}
	return out, err
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
