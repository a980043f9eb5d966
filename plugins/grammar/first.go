package grammar

import (
	"sort"
	"unicode/utf8"
)

// classSet is a set of classes of a partition, a bit for each.
type classSet []uint64

func (s classSet) has(class int32) bool { return s[class>>6]>>(class&63)&1 != 0 }
func (s classSet) add(class int32)      { s[class>>6] |= 1 << (class & 63) }

func (s classSet) addAll(o classSet) {
	for i, w := range o {
		s[i] |= w
	}
}

// firstSets remembers the first of terms.
type firstSets struct {
	at   []int32 // of each term, where its set is in bits, +1; 0 is not known
	bits []uint64
}

// first is a set of classes outside of which no text of x begins. It may have others too: what operators cancel it does not look at.
func (d *deriver) first(x term) classSet {
	width := (int(d.part.count()) + 63) / 64
	f := &d.firsts
	if int(x) < len(f.at) && f.at[x] != 0 {
		at := int(f.at[x]) - 1
		return f.bits[at : at+width]
	}
	set := make(classSet, width)
	d.makeFirst(x, set)
	for int(x) >= len(f.at) {
		f.at = append(f.at, make([]int32, len(d.terms.nodes)-len(f.at))...)
	}
	f.at[x] = int32(len(f.bits)) + 1
	f.bits = append(f.bits, set...)
	return set
}

// spelled gives the literal with which each text of x begins, or, if quoted says so, that literal within a JSON string. There are very many such terms where
// there are many names, so nothing is remembered of them.
func (t *terms) spelled(x term) (literal node, quoted, ok bool) {
	n := t.nodes[x]
	if n.kind == kindConcat {
		n = t.nodes[n.a]
	}
	if n.kind == kindBody {
		n, quoted = t.nodes[n.a], true
	}
	return n, quoted, n.kind == kindLiteral
}

// addFirst adds the first of x to a set.
func (d *deriver) addFirst(x term, set classSet) {
	n, quoted, ok := d.terms.spelled(x)
	if !ok {
		set.addAll(d.first(x))
		return
	}
	r, _ := utf8.DecodeRune(d.terms.texts[n.a : n.a+n.b])
	class := d.part.classOf(r)
	if !quoted {
		set.add(class)
		return
	}
	if j := d.part.json; !j.special.has(class) {
		set.add(class)
	}
	if j := d.part.json; j.escapable.has(class) {
		set.add(j.backslash)
	}
}

// begins says whether class is in the first of x.
func (d *deriver) begins(x term, class int32) bool {
	n, quoted, ok := d.terms.spelled(x)
	if !ok {
		return d.first(x).has(class)
	}
	r, _ := utf8.DecodeRune(d.terms.texts[n.a : n.a+n.b])
	own := d.part.classOf(r)
	if !quoted {
		return own == class
	}
	j := d.part.json
	return own == class && !j.special.has(own) || class == j.backslash && j.escapable.has(own)
}

func (d *deriver) makeFirst(x term, set classSet) {
	t := d.terms
	n := t.nodes[x]
	all := func() {
		for i := range set {
			set[i] = ^uint64(0)
		}
	}
	switch n.kind {
	case kindClass:
		set.addAll(d.setOf(n.a))
	case kindLiteral:
		r, _ := utf8.DecodeRune(t.texts[n.a : n.a+n.b])
		set.add(d.part.classOf(r))
	case kindWords:
		words := t.words[n.a]
		for i := n.b; i < n.c; {
			if words[i].size == n.d {
				i++
				continue
			}
			r, _ := utf8.DecodeRune(t.text(words[i])[n.d:])
			set.add(d.part.classOf(r))
			i += int32(sort.Search(int(n.c-i), func(k int) bool {
				v, _ := utf8.DecodeRune(t.text(words[i+int32(k)])[n.d:])
				return v > r
			}))
		}
	case kindConcat:
		set.addAll(d.first(term(n.a)))
		if t.nullable(term(n.a)) {
			set.addAll(d.first(term(n.b)))
		}
	case kindUnion:
		for _, y := range t.operands(n) {
			set.addAll(d.first(y))
		}
	case kindIntersect:
		all()
		for _, y := range t.operands(n) {
			for i, w := range d.first(y) {
				set[i] &= w
			}
		}
	case kindNot:
		all()
	case kindRepeat:
		set.addAll(d.first(term(n.a)))
	case kindString:
		set.add(d.part.json.quote)
	case kindBody:
		j := d.part.json
		escapes := uint64(0)
		for i, w := range d.first(term(n.a)) {
			set[i] |= w &^ j.special[i]
			escapes |= w & j.escapable[i]
		}
		if escapes != 0 {
			set.add(j.backslash)
		}
		if t.nullable(term(n.a)) {
			set.add(j.quote)
		}
	case kindEscape, kindHex:
		all()
	}
}
