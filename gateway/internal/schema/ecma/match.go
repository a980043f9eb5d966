package ecma

import (
	"errors"
	"slices"
	"sync"
)

// ErrSteps says that a match took more steps than it was given, so nobody knows whether the text matches.
var ErrSteps = errors.New("the pattern takes too many steps on this text")

// maxMatchDepth bounds the stack of a match.
const maxMatchDepth = 100_000

// Match tells whether the pattern matches anywhere in the text, in at most that many steps.
func (p *Pattern) Match(text string, steps int) (bool, error) {
	yes, _, err := p.MatchCounted(text, steps)
	return yes, err
}

// matchers are for further matches: there are many short ones.
var matchers = sync.Pool{New: func() any { return new(matcher) }}

// MatchCounted is Match, and how many steps it took.
func (p *Pattern) MatchCounted(text string, steps int) (yes bool, taken int, err error) {
	m := matchers.Get().(*matcher)
	defer matchers.Put(m)
	*m = matcher{text: m.text[:0], steps: steps, groups: slices.Grow(m.groups[:0], p.groups+1)[:p.groups+1]}
	for _, r := range text {
		m.text = append(m.text, r)
	}
	for start := 0; start <= len(m.text) && !yes; start++ {
		for i := range m.groups {
			m.groups[i] = span{-1, -1}
		}
		yes = m.match(p.root, start, false, func(int) bool { return true })
		if !yes && (m.failed || m.steps < 0) {
			return false, steps, ErrSteps
		}
	}
	return yes, min(steps-m.steps, steps), nil
}

type span struct{ start, end int }

type matcher struct {
	text   []rune
	steps  int
	depth  int
	failed bool
	groups []span
}

// match tries n at a place, and then the rest; backwards inside of a look behind.
func (m *matcher) match(n *node, at int, backwards bool, rest func(int) bool) bool {
	if m.steps--; m.steps < 0 || m.depth > maxMatchDepth {
		m.failed = true
	}
	if m.failed {
		return false
	}
	m.depth++
	yes := m.try(n, at, backwards, rest)
	m.depth--
	return yes
}

// try is match where the steps suffice.
func (m *matcher) try(n *node, at int, backwards bool, rest func(int) bool) bool {
	switch n.operation {
	case opEmpty:
		return rest(at)
	case opClass:
		next, ok := m.class(n, at, backwards)
		return ok && rest(next)
	case opConcat:
		return m.concat(n.subs, at, backwards, rest)
	case opAlternate:
		for _, sub := range n.subs {
			if m.match(sub, at, backwards, rest) {
				return true
			}
		}
		return false
	case opRepeat:
		if n.subs[0].operation == opClass {
			return m.repeatClass(n, at, backwards, rest)
		}
		return m.repeat(n, 0, at, -1, backwards, rest)
	case opGroup:
		before := m.groups[n.number]
		if m.match(n.subs[0], at, backwards, func(end int) bool {
			inner := m.groups[n.number]
			m.groups[n.number] = span{min(at, end), max(at, end)}
			if rest(end) {
				return true
			}
			m.groups[n.number] = inner
			return false
		}) {
			return true
		}
		m.groups[n.number] = before
		return false
	case opStart:
		return at == 0 && rest(at)
	case opEnd:
		return at == len(m.text) && rest(at)
	case opBoundary:
		return (m.word(at-1) != m.word(at)) != n.negated && rest(at)
	case opLook:
		before := slices.Clone(m.groups)
		found := m.match(n.subs[0], at, n.behind, func(int) bool { return true })
		if m.failed || found == n.negated {
			copy(m.groups, before)
			return false
		}
		if n.negated {
			copy(m.groups, before)
		}
		if rest(at) {
			return true
		}
		copy(m.groups, before)
		return false
	case opBackreference:
		group := m.groups[n.number]
		if group.start < 0 {
			return rest(at)
		}
		caught := m.text[group.start:group.end]
		if backwards {
			return at >= len(caught) && slices.Equal(m.text[at-len(caught):at], caught) && rest(at-len(caught))
		}
		return at+len(caught) <= len(m.text) && slices.Equal(m.text[at:at+len(caught)], caught) && rest(at+len(caught))
	}
	return false
}

func (m *matcher) word(at int) bool {
	return at >= 0 && at < len(m.text) && contains(wordRanges, m.text[at])
}

func (m *matcher) class(n *node, at int, backwards bool) (int, bool) {
	if backwards {
		return at - 1, at > 0 && contains(n.ranges, m.text[at-1])
	}
	return at + 1, at < len(m.text) && contains(n.ranges, m.text[at])
}

func (m *matcher) concat(subs []*node, at int, backwards bool, rest func(int) bool) bool {
	if len(subs) == 0 {
		return rest(at)
	}
	first, others := subs[0], subs[1:]
	if backwards {
		first, others = subs[len(subs)-1], subs[:len(subs)-1]
	}
	if first.operation == opClass { // most are, and most do not match
		if m.steps--; m.steps < 0 {
			m.failed = true
			return false
		}
		next, ok := m.class(first, at, backwards)
		return ok && m.concat(others, next, backwards, rest)
	}
	return m.match(first, at, backwards, func(next int) bool { return m.concat(others, next, backwards, rest) })
}

// repeatClass repeats one character without a frame for each.
func (m *matcher) repeatClass(n *node, at int, backwards bool, rest func(int) bool) bool {
	ends := 0
	place := at
	for n.max < 0 || ends < n.max {
		next, ok := m.class(n.subs[0], place, backwards)
		if !ok {
			break
		}
		place = next
		ends++
	}
	m.steps -= ends
	step := 1
	if backwards {
		step = -1
	}
	if n.lazy {
		for count := n.min; count <= ends; count++ {
			if m.steps--; m.steps < 0 || rest(at+step*count) {
				return m.steps >= 0
			}
		}
		return false
	}
	for count := ends; count >= n.min; count-- {
		if m.steps--; m.steps < 0 || rest(at+step*count) {
			return m.steps >= 0
		}
	}
	return false
}

// repeat tries another round and the rest; a round that took nothing is not followed by another.
func (m *matcher) repeat(n *node, done, at, before int, backwards bool, rest func(int) bool) bool {
	more := func() bool {
		if n.max >= 0 && done >= n.max || at == before && done >= n.min {
			return false
		}
		return m.match(n.subs[0], at, backwards, func(next int) bool {
			if next == at && done >= n.min {
				return false
			}
			return m.repeat(n, done+1, next, at, backwards, rest)
		})
	}
	if m.steps--; m.steps < 0 {
		m.failed = true
		return false
	}
	if done < n.min {
		return more()
	}
	if n.lazy {
		return rest(at) || more()
	}
	return more() || rest(at)
}
