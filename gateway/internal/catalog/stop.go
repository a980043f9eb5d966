package catalog

import (
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/tokenizer"
)

// stopMatcher finds stop strings in the text of one sequence, across the borders of tokens. Special tokens count with their text.
type stopMatcher struct {
	stream  *tokenizer.Stream
	stops   []string
	longest int
	tail    string // the end of the text that can still begin a stop string
}

func newStopMatcher(t *tokenizer.Tokenizer, stops []string) *stopMatcher {
	m := &stopMatcher{stream: t.NewStream(false), stops: stops}
	for _, s := range stops {
		m.longest = max(m.longest, len(s))
	}
	return m
}

// Push takes the next token and tells whether the text now contains a stop string.
func (m *stopMatcher) Push(token int32) bool {
	m.tail += m.stream.Push(token)
	for _, s := range m.stops {
		if strings.Contains(m.tail, s) {
			return true
		}
	}
	if keep := m.longest - 1; len(m.tail) > keep {
		m.tail = m.tail[len(m.tail)-keep:]
	}
	return false
}
