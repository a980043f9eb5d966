package grammar

import (
	"slices"
	"unicode/utf8"
)

// term is a regular language of code points, an index into terms. Equal terms are equal numbers; different terms may still be the same language.
type term int32

const (
	nothing term = iota // the empty language
	empty               // the empty text alone
	anyChar             // one code point
	anyText             // every text
	firstTerm
)

// kind is what a term is made of.
type kind uint8

const (
	kindNothing kind = iota
	kindEmpty
	kindClass     // a = index of its ranges
	kindLiteral   // texts[a : a+b], not empty
	kindWords     // words a, from b up to c, each without its first d bytes; at least two
	kindConcat    // a then b; a is no concatenation
	kindUnion     // lists[a : a+b], at least two, ascending
	kindIntersect // lists[a : a+b], at least two, ascending
	kindNot       // every text that is not in a
	kindRepeat    // a, from b up to c times; c < 0 is without bound
	kindString    // the JSON string literals whose value is in a
	kindBody      // the same behind the opening quote
	kindEscape    // the same behind a backslash
	kindHex       // the same behind \u and the digits that b counts, as hexPlace says
	kinds
)

const (
	flagNullable  = 1 << iota // the empty text is in it
	flagUncertain             // whether it is nothing takes a search: operators inside may cancel each other
)

type node struct {
	kind       kind
	flags      uint8
	a, b, c, d int32
}

// terms is a table of terms in which each is found once. It is not safe for concurrent use.
type terms struct {
	nodes []node
	lists []term   // operands of unions and intersections
	texts []byte   // literals
	sets  []runes  // classes
	words [][]span // sorted texts of kindWords
	index []int32  // open addressing by hash; 0 is free
	used  int      // entries of index

	building bool             // texts of unions are gathered into kindWords
	setIndex map[string]int32 // number of a set in sets, made when it is first needed
	literals map[string]term  // of a Builder
	scratch  []term
}

// span is a text of a kindWords: texts[at : at+size].
type span struct{ at, size int32 }

// unbounded is the upper count of a repetition without one.
const unbounded = -1

func newTerms() *terms {
	t := &terms{index: make([]int32, 64)}
	t.add(node{kind: kindNothing}, nil)
	t.add(node{kind: kindEmpty, flags: flagNullable}, nil)
	t.class(runes{{0, utf8.MaxRune}}.withoutSurrogates())
	t.add(node{kind: kindRepeat, flags: flagNullable, a: int32(anyChar), b: 0, c: unbounded}, nil)
	return t
}

// clone gives a table that grows by itself.
func (t *terms) clone() *terms {
	return &terms{
		nodes: slices.Clone(t.nodes), lists: slices.Clone(t.lists), texts: slices.Clip(t.texts), sets: slices.Clip(t.sets), words: slices.Clip(t.words),
		index: slices.Clone(t.index), used: t.used,
	}
}

func (t *terms) operands(n node) []term { return t.lists[n.a : n.a+n.b] }

func (t *terms) nullable(x term) bool  { return t.nodes[x].flags&flagNullable != 0 }
func (t *terms) uncertain(x term) bool { return t.nodes[x].flags&flagUncertain != 0 }

// hashNode mixes what makes a node: its operands where it has a list, its fields otherwise.
func hashNode(n node, list []term) uint64 {
	h := uint64(n.kind) + 0x9e3779b97f4a7c15
	mix := func(v uint64) {
		h ^= v
		h *= 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	if list != nil {
		for _, x := range list {
			mix(uint64(x) + 1)
		}
		return h
	}
	mix(uint64(uint32(n.a)) | uint64(uint32(n.b))<<32)
	mix(uint64(uint32(n.c)) | uint64(uint32(n.d))<<32)
	return h
}

// add gives the term of a node, the one that is there if there is one. list are the operands of a union or an intersection, else nil.
func (t *terms) add(n node, list []term) term {
	if 4*(t.used+1) > 3*len(t.index) {
		t.grow()
	}
	mask := uint64(len(t.index) - 1)
	at := hashNode(n, list) & mask
	for ; t.index[at] != 0; at = (at + 1) & mask {
		x := term(t.index[at] - 1)
		m := t.nodes[x]
		if m.kind != n.kind {
			continue
		}
		if list != nil {
			if slices.Equal(t.operands(m), list) {
				return x
			}
		} else if m.a == n.a && m.b == n.b && m.c == n.c && m.d == n.d {
			return x
		}
	}
	if list != nil {
		n.a, n.b = int32(len(t.lists)), int32(len(list))
		t.lists = append(t.lists, list...)
	}
	x := term(len(t.nodes))
	t.nodes = append(t.nodes, n)
	t.index[at] = int32(x) + 1
	t.used++
	return x
}

func (t *terms) grow() {
	old := t.index
	t.index = make([]int32, 2*len(old))
	mask := uint64(len(t.index) - 1)
	for _, v := range old {
		if v == 0 {
			continue
		}
		n := t.nodes[v-1]
		var list []term
		if n.kind == kindUnion || n.kind == kindIntersect {
			list = t.operands(n)
		}
		at := hashNode(n, list) & mask
		for t.index[at] != 0 {
			at = (at + 1) & mask
		}
		t.index[at] = v
	}
}

// size is about how many bytes the table takes.
func (t *terms) size() int {
	return 24*len(t.nodes) + 4*len(t.lists) + 4*len(t.index)
}
