package grammar

import "encoding/binary"

// The bytes of a grammar, numbers as unsigned varints:
//
//	"tgr" and the version
//	terms behind the fixed ones: their number; of each its kind and operands, which are numbers of earlier terms
//	terminals: their number; of each its term, doubled, plus 1 for a tag
//	rules: their number; of each 0, low, high + 1, item and separator for a list, else the number of states
//	states: of each the number of edges, doubled, plus 1 if it accepts; of each edge its label and where it leads
//
// A label is 0 for none, else twice the number, plus 1 for a terminal and 2 for a rule.
const encodingMagic = "tgr\x01"

// Encode gives the canonical bytes of g: the same calls to a Builder give the same bytes. They must not be changed.
func (g *Grammar) Encode() []byte { return g.encoded }

type encoder struct{ out []byte }

func (e *encoder) number(v int) { e.out = binary.AppendUvarint(e.out, uint64(v)) }
func (e *encoder) numbers(list ...int) {
	for _, v := range list {
		e.number(v)
	}
}

func (e *encoder) text(b []byte) {
	e.number(len(b))
	e.out = append(e.out, b...)
}

func (e *encoder) label(l label) {
	switch l.kind {
	case labelNone:
		e.number(0)
	case labelTerminal:
		e.number(2*int(l.n) + 1)
	case labelRule:
		e.number(2*int(l.n) + 2)
	}
}

func (d *draft) encode() []byte {
	e := &encoder{out: []byte(encodingMagic)}
	e.number(len(d.terms.nodes) - int(firstTerm))
	for x := firstTerm; int(x) < len(d.terms.nodes); x++ {
		e.term(d.terms, x)
	}
	e.number(len(d.terminals))
	for _, t := range d.terminals {
		tag := 0
		if t.tag {
			tag = 1
		}
		e.number(2*int(t.x) + tag)
	}
	e.number(len(d.rules))
	for _, r := range d.rules {
		if r.list {
			e.numbers(0, int(r.low), int(r.high)+1)
			e.label(r.item)
			e.label(r.sep)
			continue
		}
		e.number(len(r.states))
		for _, s := range r.states {
			accept := 0
			if s.accept {
				accept = 1
			}
			e.number(2*len(s.edges) + accept)
			for _, g := range s.edges {
				e.label(g.label)
				e.number(int(g.to))
			}
		}
	}
	return e.out
}

func (e *encoder) term(t *terms, x term) {
	n := t.nodes[x]
	e.out = append(e.out, byte(n.kind))
	switch n.kind {
	case kindClass:
		set := t.sets[n.a]
		e.number(len(set))
		last := rune(0)
		for _, r := range set {
			e.numbers(int(r.Lo-last), int(r.Hi-r.Lo))
			last = r.Hi
		}
	case kindLiteral:
		e.text(t.texts[n.a : n.a+n.b])
	case kindWords:
		e.number(int(n.c - n.b))
		for _, w := range t.words[n.a][n.b:n.c] {
			e.text(t.text(w)[n.d:])
		}
	case kindConcat:
		e.numbers(int(n.a), int(n.b))
	case kindUnion, kindIntersect:
		e.number(int(n.b))
		for _, y := range t.operands(n) {
			e.number(int(y))
		}
	case kindRepeat:
		e.numbers(int(n.a), int(n.b), int(n.c)+1)
	case kindNot, kindString, kindBody, kindEscape:
		e.number(int(n.a))
	case kindHex:
		e.numbers(int(n.a), int(n.b))
	}
}
