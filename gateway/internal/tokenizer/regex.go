package tokenizer

import (
	"fmt"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// regexMatcher finds the matches of a regular expression.
type regexMatcher struct{ program *regexProgram }

func newRegexMatcher(field, pattern string) (*regexMatcher, error) {
	program, err := compileRegex(pattern)
	if err != nil {
		return nil, fmt.Errorf("%s %.200q: %w", field, pattern, err)
	}
	return &regexMatcher{program}, nil
}

func (m *regexMatcher) spans(b *budget.Budget, text string) ([]span, error) {
	search := m.program.search(b, text)
	out := spanList{budget: b}
	covered := 0
	for at, count := 0, 0; at <= len(text); count++ {
		start, end, err := search.find(at)
		if err != nil {
			return nil, err
		}
		if start < 0 {
			break
		}
		if start == end { // an empty match only marks a place to cut
			_, size := utf8.DecodeRuneInString(text[end:])
			at = end + max(size, 1)
			if start == covered && count > 0 {
				continue
			}
		} else {
			at = end
		}
		if covered < start {
			out.add(covered, start, false)
		}
		out.add(start, end, true)
		if out.err != nil {
			return nil, out.err
		}
		covered = end
	}
	if covered < len(text) {
		out.add(covered, len(text), false)
	}
	if out.err != nil {
		return nil, out.err
	}
	return out.spans, search.close()
}

// replaceAll replaces every match of m in text.
func replaceAll(b *budget.Budget, m matcher, text, by string) (string, error) {
	spans, err := m.spans(b, text)
	if err != nil {
		return "", err
	}
	defer b.Return(len(spans) * spanBytes)
	size := 0
	for _, s := range spans {
		if s.match {
			size += len(by)
		} else {
			size += int(s.end - s.start)
		}
	}
	if err := b.Take(size); err != nil {
		return "", err
	}
	out := make([]byte, 0, size)
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
