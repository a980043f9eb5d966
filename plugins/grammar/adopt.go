package grammar

import (
	"bytes"
	"crypto/sha256"
	"slices"
)

// adopt takes over a config of another engine of the same grammar, with the rows and terms that it consists of and nothing else. What the tables then hold
// depends on the text that led there alone, not on what else was asked of the other engine.
func (e *engine) adopt(old *engine, c configID) configID {
	m := &mover{from: old, to: e, rows: make(map[rowID]rowID), terms: make(map[term]term), hashes: make(map[term][sha256.Size]byte)}
	n := old.configs[c]
	var threads []thread
	for _, th := range old.threads[n.from:n.to] {
		threads = append(threads, thread{m.row(th.row), m.lex(th.lex)})
	}
	here := noRow
	if n.row != noRow {
		here = m.row(n.row)
	}
	e.found = append(e.found[:0], threads...)
	return e.config(here)
}

// mover copies between engines.
type mover struct {
	from, to *engine
	rows     map[rowID]rowID
	terms    map[term]term
	hashes   map[term][sha256.Size]byte // fingerprints of terms of from
}

func (m *mover) row(r rowID) rowID {
	if r < 0 {
		return r // self and root
	}
	if moved, ok := m.rows[r]; ok {
		return moved
	}
	old, p := m.from.parser, m.to.parser
	n := old.rows[r]
	waits := slices.Clone(old.waits[n.from:n.to])
	for i := range waits {
		waits[i].origin = m.row(waits[i].origin)
	}
	terminals := n.rules - n.from
	p.terminals = append(p.terminals[:0], waits[:terminals]...)
	p.rules = append(p.rules[:0], waits[terminals:]...)
	slices.SortFunc(p.rules, compareWaits)
	p.ends = n.ends
	moved := p.row()
	m.rows[r] = moved
	return moved
}

func (m *mover) lex(q lexState) lexState {
	old, l := m.from.lexer, m.to.lexer
	n := old.states[q]
	var found []lexeme
	for _, x := range old.lexemes[n.from:n.to] {
		found = append(found, lexeme{x.terminal, m.term(x.x)})
	}
	l.found = append(l.found[:0], found...)
	l.ended = append(l.ended[:0], old.accepts[n.accept]...)
	return l.state(n.place, l.acceptSet())
}

// term copies a term. Those of the grammar are in both tables; operands are taken in an order that does not depend on their numbers.
func (m *mover) term(x term) term {
	if int(x) < len(m.to.parser.g.terms.nodes) {
		return x
	}
	if moved, ok := m.terms[x]; ok {
		return moved
	}
	t, out := m.from.lexer.d.terms, m.to.lexer.d.terms
	n := t.nodes[x]
	var moved term
	switch n.kind {
	case kindClass:
		moved = out.class(t.sets[n.a])
	case kindLiteral:
		moved = out.suffix(n.a, n.b)
	case kindWords:
		moved = out.wordsBetween(n.a, n.b, n.c, n.d)
	case kindConcat:
		a := m.term(term(n.a))
		moved = out.concat(a, m.term(term(n.b)))
	case kindUnion, kindIntersect:
		list := slices.Clone(t.operands(n))
		slices.SortFunc(list, func(a, b term) int {
			x, y := t.fingerprint(a, m.hashes), t.fingerprint(b, m.hashes)
			return bytes.Compare(x[:], y[:])
		})
		for i := range list {
			list[i] = m.term(list[i])
		}
		if n.kind == kindUnion {
			moved = out.union(list...)
		} else {
			moved = out.intersect(list...)
		}
	case kindNot:
		moved = out.not(m.term(term(n.a)))
	case kindRepeat:
		moved = out.repeat(m.term(term(n.a)), n.b, n.c)
	case kindString, kindBody, kindEscape:
		moved = out.wrap(n.kind, m.term(term(n.a)))
	case kindHex:
		moved = out.hex(m.term(term(n.a)), n.b)
	}
	m.terms[x] = moved
	return moved
}
