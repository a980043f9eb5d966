package grammar

import (
	"context"
	"sort"
	"unicode/utf8"
)

// deriver takes derivatives: of a language by a class of code points, the texts that may follow one of them. It is not safe for concurrent use.
type deriver struct {
	terms  *terms
	part   *partition
	sets   []classSet // for each class of terms, the classes of part it has
	firsts firstSets
	memo   pairMap   // (term, class) → derivative
	known  []verdict // of each term, whether it has texts, as far as asked
	leasts []int32   // of each term, least + 1; 0 is not known
	// lengths is of terms whose derivatives are a graph where they are in it.
	lengths     map[term]lengthPlace
	lengthBytes int // that they take
	steps       int
	limit       int             // of steps; when it is passed every answer is wrong, and exhausted says so
	looked      int             // at ctx, by which steps
	depth       int             // of searches in searches
	ctx         context.Context // nil is none; when it is done the limit is met at once
	weigh       bool            // a step of many operands counts as several: for questions, which are to take about the same time whatever they are about
}

func newDeriver(t *terms, limit int) *deriver {
	part, err := newPartition(t)
	if err != nil {
		// There are too many classes to take any step.
		part, limit = &partition{}, -1
		_ = part.refine(nil)
	}
	return &deriver{terms: t, part: part, limit: limit}
}

// stepsPerLook is after how many steps, as a power of two, a deriver looks whether anybody waits for it.
const stepsPerLook = 8

// Parts of a question that take about as long as one step: operands of a union or an intersection, terms that are copied for it, ranges of classes that are
// sorted or looked at.
const (
	operandsPerStep = 4
	termsPerStep    = 8
	rangesPerStep   = 64
)

// questioner is a deriver for one question about x, and what x is in it. What the question takes to put is part of its steps.
func (t *terms) questioner(ctx context.Context, x term, limit int) (*deriver, term) {
	sub, at := t.extract(x)
	d := newDeriver(sub, limit)
	d.ctx, d.weigh = ctx, true
	d.steps = (len(sub.nodes)+len(t.nodes)/16)/termsPerStep + d.part.work/rangesPerStep
	return d, at[x]
}

// exhausted says whether the limit was met, so that what was answered is not to be relied upon.
func (d *deriver) exhausted() bool { return d.steps > d.limit }

// setOf gives the classes of code points that a class of terms has.
func (d *deriver) setOf(set int32) classSet {
	for int(set) >= len(d.sets) {
		s := d.terms.sets[len(d.sets)]
		if d.weigh {
			d.steps += len(d.part.first) / rangesPerStep
		}
		bits := make(classSet, (d.part.count()+63)/64)
		for c, r := range d.part.first {
			if s.contains(r) {
				bits.add(int32(c))
			}
		}
		d.sets = append(d.sets, bits)
	}
	return d.sets[set]
}

// derive gives the texts that follow a code point of a class in the texts of x.
func (d *deriver) derive(x term, class int32) term {
	t := d.terms
	n := t.nodes[x]
	switch n.kind {
	case kindNothing, kindEmpty:
		return nothing
	case kindClass:
		if d.setOf(n.a).has(class) {
			return empty
		}
		return nothing
	case kindLiteral:
		r, size := utf8.DecodeRune(t.texts[n.a : n.a+n.b])
		if d.part.classOf(r) == class {
			return t.suffix(n.a+int32(size), n.b-int32(size))
		}
		return nothing
	}
	if x == anyText {
		return anyText
	}
	_, _, spelled := t.spelled(x)
	if !spelled {
		if y, ok := d.memo.get(x, class); ok {
			return y
		}
	}
	if d.steps++; d.exhausted() {
		return nothing
	}
	if d.ctx != nil && d.steps>>stepsPerLook != d.looked {
		if d.looked = d.steps >> stepsPerLook; d.ctx.Err() != nil {
			d.limit = -1
			return nothing
		}
	}
	if d.weigh && (n.kind == kindUnion || n.kind == kindIntersect) {
		d.steps += int(n.b) / operandsPerStep
	}
	var y term
	switch n.kind {
	case kindWords:
		y = d.deriveWords(n, class)
	case kindConcat:
		a, b := term(n.a), term(n.b)
		y = t.concat(d.derive(a, class), b)
		if t.nullable(a) {
			y = t.union2(y, d.derive(b, class))
		}
	case kindUnion, kindIntersect:
		list := make([]term, n.b)
		for i := range list {
			list[i] = d.derive(t.lists[n.a+int32(i)], class)
			if list[i] == nothing && n.kind == kindIntersect {
				list = []term{nothing}
				break
			}
		}
		if n.kind == kindUnion {
			y = t.union(list...)
		} else {
			y = t.intersect(list...)
		}
	case kindNot:
		y = t.not(d.derive(term(n.a), class))
	case kindRepeat:
		low, high := max(n.b-1, 0), n.c
		if high > 0 {
			high--
		}
		y = t.concat(d.derive(term(n.a), class), t.repeat(term(n.a), low, high))
	default:
		y = d.deriveJSON(n, class)
	}
	if !spelled {
		d.memo.put(x, class, y)
	}
	return y
}

// deriveWords narrows a list of words to those that go on with a code point.
func (d *deriver) deriveWords(n node, class int32) term {
	t := d.terms
	r := d.part.first[class]
	words := t.words[n.a]
	from := n.b
	if words[from].size == n.d {
		from++
	}
	next := func(i int32) (rune, int) { return utf8.DecodeRune(t.text(words[i])[n.d:]) }
	lo := from + int32(sort.Search(int(n.c-from), func(i int) bool { v, _ := next(from + int32(i)); return v >= r }))
	hi := lo + int32(sort.Search(int(n.c-lo), func(i int) bool { v, _ := next(lo + int32(i)); return v > r }))
	if lo == hi {
		return nothing
	}
	_, size := next(lo)
	return t.wordsBetween(n.a, lo, hi, n.d+int32(size))
}

// Places in \u00XX: the digits read so far.
const (
	hexNone  = iota // \u
	hexZero         // \u0
	hexZeros        // \u00
	hexHigh0        // \u000
	hexHigh1        // \u001
	hexHigh7        // \u007
)

func (d *deriver) deriveJSON(n node, class int32) term {
	t, j := d.terms, d.part.json
	e := term(n.a)
	value := func(r rune) term { return t.wrap(kindBody, d.derive(e, d.part.classOf(r))) }
	switch n.kind {
	case kindString:
		if class == j.quote {
			return t.wrap(kindBody, e)
		}
	case kindBody:
		switch {
		case class == j.quote:
			if t.nullable(e) {
				return empty
			}
		case class == j.backslash:
			return t.wrap(kindEscape, e)
		case !j.control[class]:
			return t.wrap(kindBody, d.derive(e, class))
		}
	case kindEscape:
		switch r := j.escapes[class]; r {
		case -1:
		case 'u':
			return t.hex(e, hexNone)
		default:
			return value(r)
		}
	case kindHex:
		digit := j.digits[class]
		if digit < 0 {
			return nothing
		}
		switch n.b {
		case hexNone:
			if digit == 0 {
				return t.hex(e, hexZero)
			}
		case hexZero:
			if digit == 0 {
				return t.hex(e, hexZeros)
			}
		case hexZeros:
			switch digit {
			case 0:
				return t.hex(e, hexHigh0)
			case 1:
				return t.hex(e, hexHigh1)
			case 7:
				return t.hex(e, hexHigh7)
			}
		case hexHigh0:
			return value(rune(digit))
		case hexHigh1:
			return value(0x10 + rune(digit))
		case hexHigh7:
			if digit == 0xf {
				return value(0x7f)
			}
		}
	}
	return nothing
}

// pairMap maps a term and a class to a term.
type pairMap struct {
	keys []uint64 // 0 is free
	vals []term
	used int
}

func pairKey(x term, class int32) uint64 { return uint64(x)<<32 | uint64(uint32(class)) + 1 }

func (m *pairMap) slot(key uint64) int {
	h := key * 0x9e3779b97f4a7c15
	at := int(h>>32) & (len(m.keys) - 1)
	for m.keys[at] != 0 && m.keys[at] != key {
		at = (at + 1) & (len(m.keys) - 1)
	}
	return at
}

func (m *pairMap) get(x term, class int32) (term, bool) {
	if m.used == 0 {
		return 0, false
	}
	at := m.slot(pairKey(x, class))
	return m.vals[at], m.keys[at] != 0
}

func (m *pairMap) put(x term, class int32, y term) {
	if 4*(m.used+1) > 3*len(m.keys) {
		old := *m
		m.keys = make([]uint64, max(64, 2*len(old.keys)))
		m.vals = make([]term, len(m.keys))
		for i, k := range old.keys {
			if k != 0 {
				at := m.slot(k)
				m.keys[at], m.vals[at] = k, old.vals[i]
			}
		}
	}
	at := m.slot(pairKey(x, class))
	if m.keys[at] == 0 {
		m.used++
	}
	m.keys[at], m.vals[at] = pairKey(x, class), y
}
