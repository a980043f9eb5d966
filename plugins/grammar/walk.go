package grammar

import (
	"slices"
)

// walker goes through tries with the lexer or with whole configs and gathers tokens.
type walker struct {
	e     *engine
	x     *TokenIndex
	ids   []int32
	exits []exit
	steps int
	owned int // bytes of a bitset that was made
}

func (w *walker) step() {
	if w.steps++; w.steps > w.e.limits.MaskSteps {
		panic(&LimitError{"steps of a mask", w.steps, w.e.limits.MaskSteps})
	}
}

func (w *walker) take() []int32 {
	ids := slices.Clone(w.ids)
	w.ids = w.ids[:0]
	w.e.ids = w.ids
	return ids
}

func (e *engine) walker(x *TokenIndex) *walker { return &walker{e: e, x: x, ids: e.ids[:0]} }

// lexStack is scratch for a walk with the lexer, in which there is no other.
func (e *engine) lexStack(depth int) []lexState {
	if len(e.lexes) <= depth {
		e.lexes = make([]lexState, depth+1)
	}
	return e.lexes
}

// configStack is the same for a walk with configs.
func (e *engine) configStack(depth int) []configID {
	if len(e.steps) <= depth {
		e.steps = make([]configID, depth+1)
	}
	return e.steps
}

// lexMask finds what tokens do in a state of the lexer.
func (w *walker) lexMask(q lexState) *lexMask {
	m := &lexMask{}
	if w.plain(m, q) {
		m.inside.ids = w.take()
		return m
	}
	q = w.split(m, q)
	w.lex(w.x.trie, q)
	if len(w.ids) >= denseFrom {
		m.inside.bits = make([]uint64, w.x.Words())
		w.owned += 8 * len(m.inside.bits)
		setBits(m.inside.bits, w.ids)
		w.ids = w.ids[:0]
	}
	m.inside.ids, m.exits = w.take(), slices.Clone(w.exits)
	return m
}

// plain finds it from the slices of plain strings, if q is within strings and all but the longest tokens may stand there. It says whether that is so.
func (w *walker) plain(m *lexMask, q lexState) bool {
	l := w.e.lexer
	p := w.x.plain
	room, exact := l.room(q)
	switch {
	case room >= p.most || room > 0 && room <= maxLength && exact:
		m.inside.bits = p.within(room)
	default:
		i := slices.IndexFunc(longerThan[:], func(least int) bool { return room >= least })
		if i < 0 {
			return false
		}
		m.inside.bits = p.within(longerThan[i])
		w.lex(p.longer[i], q)
	}
	w.close(m, q)
	return true
}

// split takes out of a state what is within strings and wide, each of which has a mask of its own, and gives the state of what is left.
func (w *walker) split(m *lexMask, q lexState) lexState {
	l := w.e.lexer
	n := l.states[q]
	if n.place != 0 {
		return q
	}
	var narrow []lexeme
	for _, x := range slices.Clone(l.lexemes[n.from:n.to]) {
		wide, rest, ok := l.wide(x)
		if !ok {
			narrow = append(narrow, x)
			continue
		}
		mask := w.e.wideMask(wide, w.x)
		w.steps += mask.steps
		if l.d.terms.nodes[wide].kind != kindBody {
			l.found, l.ended = append(l.found[:0], x), append(l.ended[:0], x.terminal)
			m.texts = append(m.texts, textPart{mask, l.state(0, noAccept), l.acceptSet()})
			continue
		}
		l.found, l.ended = l.found[:0], l.ended[:0]
		if l.grows(rest) {
			l.found = append(l.found, lexeme{x.terminal, rest})
		}
		if l.d.terms.nullable(rest) {
			l.ended = append(l.ended, x.terminal)
		}
		m.wide = append(m.wide, widePart{mask, l.state(0, l.acceptSet())})
	}
	if m.wide == nil && m.texts == nil {
		return q
	}
	l.found = append(l.found[:0], narrow...)
	return l.state(0, noAccept)
}

// wideMask is TokenIndex.wideMask of a term, remembered by its number.
func (e *engine) wideMask(wide term, x *TokenIndex) *wideMask {
	if m, ok := e.masks.wide.get(wide); ok {
		return m
	}
	m := x.wideMask(e.lexer.d.terms, wide, e.limits)
	e.masks.wide.put(wide, m, m.size())
	return m
}

// close finds behind which tokens that end a string, and in which state of the lexer, something may follow.
func (w *walker) close(m *lexMask, q lexState) {
	l := w.e.lexer
	column := &l.utf8.column
	t := w.x.plain.closing.prefixes
	stack := w.e.lexStack(t.depth)
	stack[0] = q
	for i := int32(1); i < int32(len(t.nodes)-1); {
		n := &t.nodes[i]
		s := l.step(stack[n.depth-1], column[n.byte])
		w.step()
		if s == deadState {
			i = n.skip
			continue
		}
		if t.nodes[i+1].token > n.token {
			m.closings = append(m.closings, closing{i, s})
		}
		stack[n.depth] = s
		i++
	}
}

// lex goes through a trie with the lexer: tokens that do not die are gathered, and nodes at which terminals end with something below.
func (w *walker) lex(t *trie, q lexState) {
	l := w.e.lexer
	column := &l.utf8.column
	stack := w.e.lexStack(t.depth)
	stack[0] = q
	for _, root := range t.roots {
		if l.next[int(q)*l.width+int(column[root.byte])] == deadState {
			continue
		}
		end := t.nodes[root.node].skip
		for i := root.node; i < end; {
			n := &t.nodes[i]
			s := l.step(stack[n.depth-1], column[n.byte])
			if s == deadState {
				i = n.skip
				continue
			}
			w.step()
			if from, to := n.token, t.nodes[i+1].token; from < to {
				w.ids = append(w.ids, t.tokens[from:to]...)
			}
			x := &l.states[s]
			if x.accept != noAccept && n.skip > i+1 {
				w.exits = append(w.exits, exit{t, i, x.accept})
			}
			if x.from == x.to {
				i = n.skip
				continue
			}
			stack[n.depth] = s
			i++
		}
	}
}

// configs goes through what is below a node of a trie with whole configs.
func (w *walker) configs(t *trie, node int32, from configID) {
	e := w.e
	column := &e.lexer.utf8.column
	stack := e.configStack(t.depth)
	stack[t.nodes[node].depth] = from
	end := t.nodes[node].skip
	for i := node + 1; i < end; {
		n := &t.nodes[i]
		c := e.step(stack[n.depth-1], column[n.byte])
		if c == deadConfig {
			i = n.skip
			continue
		}
		w.step()
		w.ids = append(w.ids, t.at(i)...)
		stack[n.depth] = c
		i++
	}
}

// closings adds the tokens that end a string and may go on as they do, for a terminal that began in r.
func (w *walker) closings(r rowID, list []closing) {
	p := &w.x.plain.closing
	last, rests := deadState, []uint64(nil)
	for _, c := range list {
		if c.lex != last {
			rests = w.rests(w.e.behind(r, c.lex))
			last = c.lex
		}
		w.pairs(p, c.node, rests)
	}
}

// widePart adds the tokens that end a string of a wideMask.
func (w *walker) widePart(r rowID, part widePart) {
	if len(part.mask.closing) == 0 {
		return
	}
	p := &w.x.plain.closing
	rests := w.rests(w.e.behind(r, part.behind))
	for _, node := range part.mask.closing {
		w.pairs(p, node, rests)
	}
}

// textPart adds the tokens within which text of a wideMask ends.
func (w *walker) textPart(r rowID, part textPart) {
	if !part.mask.many && len(part.mask.exits) == 0 {
		return
	}
	// Where only special tokens follow, or nothing, no token goes on.
	next := w.e.parser.advance(r, part.accept)
	if w.e.parser.rows[next].start == deadState {
		return
	}
	from := w.e.at(next)
	for _, node := range part.mask.exits {
		w.configs(w.x.trie, node, from)
	}
	if part.mask.many {
		own := &walker{e: w.e, x: w.x, steps: w.steps}
		own.lex(w.x.trie, part.lex)
		w.steps = own.steps
		for _, exit := range own.exits {
			w.configs(exit.trie, exit.node, from)
		}
	}
}

func (w *walker) pairs(p *closingTokens, node int32, rests []uint64) {
	for _, pair := range p.prefixes.at(node) {
		if rest := p.rests[pair]; rests[rest/64]>>(rest%64)&1 != 0 {
			w.ids = append(w.ids, p.tokens[pair])
		}
	}
}

// rests is the rests behind the ends of strings that may follow a config, as a bitset.
func (w *walker) rests(c configID) []uint64 {
	if m, ok := w.e.masks.rests.get(c); ok {
		w.steps += m.steps
		return m.bits
	}
	p := &w.x.plain.closing
	own := &walker{e: w.e, x: w.x} // not the engine's list, which w fills
	own.configs(p.behind, 0, c)
	m := restMask{bits: make([]uint64, (p.count+63)/64), steps: own.steps}
	m.bits[0] = 1
	setBits(m.bits, own.ids)
	w.e.masks.rests.put(c, m, 64+8*len(m.bits))
	w.steps += own.steps
	return m.bits
}
