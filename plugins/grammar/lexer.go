package grammar

import (
	"slices"
)

// lexState is what the lexer knows between two bytes: for each terminal that may be under way what of it is left, and where within a code point it is. It is
// an index into lexer; deadState is the state without anything.
type lexState int32

const (
	deadState    lexState = 0
	unknownState lexState = -1
)

// lexeme is a terminal that is under way.
type lexeme struct {
	terminal int32
	x        term // what is left of it; never the empty text alone
}

// acceptSet is the terminals that end in a state, an index into lexer.accepts; noAccept is none.
type acceptSet int32

const noAccept acceptSet = 0

type lexNode struct {
	from, to int32 // in lexemes
	place    int32 // state of the utf8Table
	accept   acceptSet
}

// lexer is a deterministic automaton over bytes, made as it is needed.
type lexer struct {
	d       *deriver
	utf8    *utf8Table
	limits  *Limits
	width   int // columns of the utf8Table
	states  []lexNode
	lexemes []lexeme
	next    []lexState // of each state and column
	accepts [][]int32  // ascending terminals
	index   intern
	sets    intern

	found []lexeme // scratch
	first classSet
	ended []int32
}

func newLexer(d *deriver, u *utf8Table, limits *Limits) *lexer {
	l := &lexer{d: d, utf8: u, limits: limits, width: len(u.bytes)}
	l.accepts = [][]int32{nil}
	l.add(nil, 0, noAccept, 0)
	return l
}

// start is the state before any of some terminals, which are ascending.
func (l *lexer) start(terminals []int32, all []terminal) lexState {
	l.found = l.found[:0]
	for _, t := range terminals {
		if x := all[t].x; l.grows(x) {
			l.found = append(l.found, lexeme{t, x})
		}
	}
	return l.state(0, noAccept)
}

// grows says whether a term, which has texts, has one that is not empty.
func (l *lexer) grows(x term) bool {
	t := l.d.terms
	if !t.uncertain(x) {
		return x != empty
	}
	if !t.nullable(x) {
		return true
	}
	first := l.d.first(x)
	for class := int32(0); class < l.d.part.count(); class++ {
		if first.has(class) && l.d.live(l.d.derive(x, class)) {
			return true
		}
	}
	return false
}

// step is the state behind a byte of a column.
func (l *lexer) step(q lexState, column uint8) lexState {
	at := int(q)*l.width + int(column)
	if s := l.next[at]; s != unknownState {
		return s
	}
	s := l.make(q, column)
	l.next[at] = s
	return s
}

func (l *lexer) make(q lexState, column uint8) lexState {
	n := l.states[q]
	d := l.d
	v := l.utf8.next[n.place][l.utf8.bytes[column]]
	d.steps += int(n.to-n.from) / 16
	l.found, l.ended = l.found[:0], l.ended[:0]
	switch {
	case v == invalidByte:
		return deadState
	case v >= 0:
		for _, m := range l.lexemes[n.from:n.to] {
			for _, class := range l.utf8.reach[v] {
				if d.begins(m.x, class) && d.live(d.derive(m.x, class)) {
					l.found = append(l.found, m)
					break
				}
			}
		}
		return l.state(v, noAccept)
	}
	for _, m := range l.lexemes[n.from:n.to] {
		if !d.begins(m.x, ^v) {
			continue
		}
		y := d.derive(m.x, ^v)
		if !d.live(y) {
			continue
		}
		if d.terms.nullable(y) {
			l.ended = append(l.ended, m.terminal)
		}
		if l.grows(y) {
			l.found = append(l.found, lexeme{m.terminal, y})
		}
	}
	return l.state(0, l.acceptSet())
}

// acceptSet is the number of the set in l.ended.
func (l *lexer) acceptSet() acceptSet {
	if len(l.ended) == 0 {
		return noAccept
	}
	h := newHash()
	for _, t := range l.ended {
		h.add(uint64(t))
	}
	at := l.sets.find(h, func(i int32) bool { return slices.Equal(l.accepts[i], l.ended) })
	if at < 0 {
		at = int32(len(l.accepts))
		l.accepts = append(l.accepts, slices.Clone(l.ended))
		l.sets.put(h, at)
	}
	return acceptSet(at)
}

// state is the number of the state with the lexemes in l.found.
func (l *lexer) state(place int32, accept acceptSet) lexState {
	if l.d.exhausted() {
		panic(capacity{"steps of the lexer", l.d.steps, l.limits.Steps})
	}
	if len(l.found) == 0 && accept == noAccept {
		return deadState
	}
	if len(l.found) > l.limits.LexemesAlive {
		panic(&LimitError{"terminals under way at once", len(l.found), l.limits.LexemesAlive})
	}
	h := newHash()
	h.add(uint64(place)<<32 | uint64(accept))
	for _, m := range l.found {
		h.add(uint64(m.terminal)<<32 | uint64(m.x))
	}
	at := l.index.find(h, func(i int32) bool {
		n := l.states[i]
		return n.place == place && n.accept == accept && slices.Equal(l.lexemes[n.from:n.to], l.found)
	})
	if at >= 0 {
		return lexState(at)
	}
	return l.add(l.found, place, accept, h)
}

func (l *lexer) add(found []lexeme, place int32, accept acceptSet, h hash) lexState {
	if len(l.states) > l.limits.LexerStates {
		panic(capacity{"states of the lexer", len(l.states), l.limits.LexerStates})
	}
	q := lexState(len(l.states))
	from := int32(len(l.lexemes))
	l.lexemes = append(l.lexemes, found...)
	l.states = append(l.states, lexNode{from, int32(len(l.lexemes)), place, accept})
	l.firsts(l.lexemes[from:], place)
	if q != deadState {
		l.index.put(h, int32(q))
	}
	return q
}

// firsts adds the columns of a new state: those by which none of its lexemes begins lead nowhere.
func (l *lexer) firsts(list []lexeme, place int32) {
	first := l.first
	if first == nil {
		first = make(classSet, (l.d.part.count()+63)/64)
		l.first = first
	}
	clear(first)
	for _, m := range list {
		l.d.addFirst(m.x, first)
	}
	for _, b := range l.utf8.bytes {
		next := deadState
		switch v := l.utf8.next[place][b]; {
		case v == invalidByte:
		case v < 0:
			if first.has(^v) {
				next = unknownState
			}
		default:
			for _, class := range l.utf8.reach[v] {
				if first.has(class) {
					next = unknownState
					break
				}
			}
		}
		l.next = append(l.next, next)
	}
}

// grown says whether something may follow in a state.
func (l *lexer) grown(q lexState) bool { return l.states[q].from < l.states[q].to }

func (l *lexer) size() int {
	d := l.d
	states := 4*len(l.next) + 8*len(l.lexemes) + 16*len(l.states) + l.index.size()
	return states + d.terms.size() + 12*len(d.memo.keys) + 4*len(d.firsts.at) + 8*len(d.firsts.bits) + d.lengthBytes
}
