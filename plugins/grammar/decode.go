package grammar

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// errEncoding is what Decode's errors wrap that are no limits.
var errEncoding = errors.New("these bytes are no grammar")

type decoder struct {
	in  []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errEncoding, fmt.Sprintf(format, args...))
		d.in = nil
	}
}

// number reads a number of at most limit.
func (d *decoder) number(what string, limit int) int {
	v, size := binary.Uvarint(d.in)
	if size <= 0 {
		d.fail("%s is cut off", what)
		return 0
	}
	d.in = d.in[size:]
	if v > uint64(limit) {
		d.fail("%s is %d, at most %d is allowed", what, v, limit)
		return 0
	}
	return int(v)
}

// length reads how many things follow, each of at least one byte.
func (d *decoder) length(what string) int { return d.number(what, len(d.in)) }

func (d *decoder) text() []byte {
	n := d.length("a text's length")
	if n > len(d.in) {
		d.fail("a text is cut off")
		return nil
	}
	b := d.in[:n]
	d.in = d.in[n:]
	if !utf8.Valid(b) {
		d.fail("a text is not UTF-8")
	}
	return b
}

// Decode reads what Encode wrote, and takes nothing else. What it costs is bounded by the limits and the length.
func Decode(data []byte, limits Limits) (*Grammar, error) {
	if len(data) > limits.Encoding {
		return nil, &LimitError{"bytes", len(data), limits.Encoding}
	}
	d := &decoder{in: data}
	if !bytes.HasPrefix(data, []byte(encodingMagic)) {
		d.fail("they do not begin with %q", encodingMagic)
		return nil, d.err
	}
	d.in = data[len(encodingMagic):]
	out := &draft{terms: d.terms()}
	for range d.length("the number of terminals") {
		v := d.number("a terminal", 2*len(out.terms.nodes)-1)
		t := terminal{x: term(v / 2), tag: v%2 == 1}
		if t.tag && out.terms.nodes[t.x].kind != kindLiteral {
			d.fail("a tag is no literal")
		}
		out.terminals = append(out.terminals, t)
	}
	rules := d.length("the number of rules")
	if rules > limits.Rules {
		return nil, &LimitError{"rules", rules, limits.Rules}
	}
	for range rules {
		out.rules = append(out.rules, d.rule(len(out.terminals), rules))
	}
	if len(d.in) > 0 {
		d.fail("%d bytes are left over", len(d.in))
	}
	if len(out.rules) == 0 {
		d.fail("there is no rule")
	}
	if d.err != nil {
		return nil, d.err
	}
	g, _, err := out.finish(context.Background(), limits, limits.Steps)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(g.encoded, data) {
		return nil, fmt.Errorf("%w: they are not in canonical form", errEncoding)
	}
	return g, nil
}

func (d *decoder) label(terminals, rules int) label {
	switch v := d.number("a label", math.MaxInt32); {
	case v == 0:
		return label{}
	case v%2 == 1:
		if v /= 2; v < terminals {
			return label{labelTerminal, int32(v)}
		}
	default:
		if v = v/2 - 1; v < rules {
			return label{labelRule, int32(v)}
		}
	}
	d.fail("a label refers to what is not there")
	return label{}
}

func (d *decoder) rule(terminals, rules int) draftRule {
	n := d.length("the number of states")
	if n == 0 {
		r := draftRule{list: true}
		r.low = int32(d.number("a lower count", countCap))
		r.high = int32(d.number("an upper count", countCap+1)) - 1
		if r.high >= 0 && r.low > r.high || r.high == 0 {
			d.fail("a list of %d to %d items", r.low, r.high)
		}
		r.item = d.label(terminals, rules)
		r.sep = d.label(terminals, rules)
		return r
	}
	var r draftRule
	for range n {
		v := d.number("the number of edges", 2*len(d.in)+1)
		s := draftState{accept: v%2 == 1}
		for range v / 2 {
			l := d.label(terminals, rules)
			to := d.number("a state", n-1)
			if d.err != nil {
				return r
			}
			s.edges = append(s.edges, draftEdge{l, int32(to)})
		}
		r.states = append(r.states, s)
	}
	return r
}

// terms reads the table of terms. Terms are made as they stand, without the constructors: what follows relies on no normal form but on each term being there
// once.
func (d *decoder) terms() *terms {
	t := newTerms()
	count := d.length("the number of terms")
	for range count {
		if len(d.in) == 0 {
			d.fail("a term is cut off")
			break
		}
		k := kind(d.in[0])
		d.in = d.in[1:]
		before := len(t.nodes)
		d.term(t, k)
		if d.err != nil {
			break
		}
		if len(t.nodes) != before+1 {
			d.fail("a term is there twice")
			break
		}
	}
	t.setIndex = nil
	return t
}

func (d *decoder) term(t *terms, k kind) {
	operand := func() int32 { return int32(d.number("a term", len(t.nodes)-1)) }
	n := node{kind: k}
	var list []term
	switch k {
	case kindClass:
		var set runes
		last := -1
		for range d.length("the number of ranges") {
			lo := max(last, 0) + d.number("a range", maxRune)
			hi := lo + d.number("a range", maxRune)
			if hi > maxRune || last >= 0 && lo <= last {
				d.fail("a range is out of order")
				return
			}
			set = append(set, RuneRange{rune(lo), rune(hi)})
			last = hi
		}
		if clean := newRunes(set); len(set) == 0 || clean.key() != set.key() {
			d.fail("a class is not in canonical form")
			return
		}
		t.class(set)
		return
	case kindLiteral:
		text := d.text()
		if len(text) == 0 {
			d.fail("a literal is empty")
			return
		}
		if _, ok := t.literals[string(text)]; ok {
			d.fail("a literal is there twice")
			return
		}
		t.literal(string(text))
		return
	case kindWords:
		d.words(t)
		return
	case kindConcat:
		n.a, n.b = operand(), operand()
		x, y := t.nodes[n.a], t.nodes[n.b]
		n.flags = x.flags&y.flags&flagNullable | (x.flags|y.flags)&flagUncertain
		if x.kind == kindConcat || x.kind == kindNothing || y.kind == kindNothing {
			d.fail("a sequence is not in canonical form")
		}
	case kindUnion, kindIntersect:
		n.flags = flagNullable | flagUncertain
		if k == kindUnion {
			n.flags = 0
		}
		for range d.length("the number of operands") {
			x := term(operand())
			if len(list) > 0 && x <= list[len(list)-1] {
				d.fail("operands are out of order")
			}
			if d.err != nil {
				return
			}
			list = append(list, x)
			if f := t.nodes[x].flags; k == kindUnion {
				n.flags |= f
			} else {
				n.flags &= f | flagUncertain
			}
		}
		if len(list) < 2 {
			d.fail("an operator has %d operands", len(list))
			return
		}
	case kindNot:
		n.a = operand()
		n.flags = ^t.nodes[n.a].flags&flagNullable | flagUncertain
	case kindRepeat:
		n.a = operand()
		n.b = int32(d.number("a lower count", countCap))
		n.c = int32(d.number("an upper count", countCap+1)) - 1
		f := t.nodes[n.a].flags
		if n.c >= 0 && n.b > n.c || n.c == 0 || t.nodes[n.a].kind == kindNothing || f&flagNullable != 0 && n.b > 0 {
			d.fail("a repetition is not in canonical form")
			return
		}
		if n.flags = f & flagUncertain; n.b == 0 {
			n.flags |= flagNullable
		}
	case kindString:
		n.a = operand()
		if t.nodes[n.a].kind == kindNothing {
			d.fail("a string is not in canonical form")
			return
		}
		n.flags = t.nodes[n.a].flags & flagUncertain
	default:
		d.fail("%d is no kind of term", k)
	}
	if d.err == nil {
		t.add(n, list)
	}
}

func (d *decoder) words(t *terms) {
	count := d.length("the number of words")
	var set []span
	for range count {
		b := d.text()
		if d.err != nil {
			return
		}
		w := span{int32(len(t.texts)), int32(len(b))}
		t.texts = append(t.texts, b...)
		if len(set) > 0 && bytes.Compare(t.text(set[len(set)-1]), b) >= 0 {
			d.fail("words are out of order")
			return
		}
		set = append(set, w)
	}
	if len(set) < 2 {
		d.fail("a list of %d words", len(set))
		return
	}
	t.words = append(t.words, set)
	t.wordsBetween(int32(len(t.words)-1), 0, int32(len(set)), 0)
}
