package grammar

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
)

// wideMask is what tokens do within a JSON string whose value is in a certain language, from some place in it on: what a pattern is, and a walk through most
// of the vocabulary to find. It depends on nothing but the language and the vocabulary, so that all grammars share it.
type wideMask struct {
	inside  []uint64 // tokens behind which it goes on; for text also those with which it ends
	closing []int32  // of strings: nodes of closingTokens.prefixes at which the string may end
	exits   []int32  // of text: nodes of the vocabulary's trie at which it may end within tokens
	many    bool     // there are more of them than maxExits, and exits is empty
	chars   int      // the most characters that such tokens have, in front of such an end where they have one
	steps   int
}

// wideMasks remembers wideMasks of a vocabulary. It is safe for concurrent use.
type wideMasks struct {
	mu    sync.Mutex
	masks generations[[sha256.Size]byte, *wideMask]
}

// wideMaskBytes is what each of the two generations may hold.
const wideMaskBytes = 16 << 20

func newWideMasks() *wideMasks {
	return &wideMasks{masks: generations[[sha256.Size]byte, *wideMask]{limit: wideMaskBytes}}
}

func (w *wideMasks) get(key [sha256.Size]byte) (*wideMask, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.masks.get(key)
}

func (w *wideMasks) put(key [sha256.Size]byte, m *wideMask) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.masks.put(key, m, m.size())
}

// horizons are numbers of characters: no token being longer, a counter that is above makes no difference. The last is above the length of any token.
var horizons = [...]int32{16, 40, maxTokenBytes}

// maxExits is how many exits are kept.
const maxExits = 4096

// wideMask finds the mask of a term, which is the body of a string or text. It does so in tables of its own: what the caller's tables hold does not
// depend on what others have found out.
func (x *TokenIndex) wideMask(t *terms, e term, limits *Limits) *wideMask {
	for _, horizon := range horizons {
		own, copied := t.copyWithin(e, horizon)
		key := own.fingerprint(copied, make(map[term][sha256.Size]byte))
		m, ok := x.wide.get(key)
		if !ok {
			m = x.makeWideMask(own, copied, limits)
			x.wide.put(key, m)
		}
		// Tokens that are longer than the horizon see other counters than there are; if there are none, none was seen.
		if m.chars <= int(horizon) {
			return m
		}
	}
	panic("a token is longer than tokens are")
}

func (x *TokenIndex) makeWideMask(t *terms, e term, limits *Limits) *wideMask {
	defer func() {
		if r := recover(); r != nil {
			if full, ok := r.(capacity); ok {
				panic(&LimitError{full.what, full.count, full.limit})
			}
			panic(r)
		}
	}()
	part, err := newPartition(t)
	if err != nil {
		panic(err)
	}
	l := newLexer(&deriver{terms: t, part: part, limit: limits.Steps}, newUTF8Table(part), limits)
	l.found = append(l.found[:0], lexeme{0, e})
	q := l.state(0, noAccept)
	m := &wideMask{inside: make([]uint64, x.Words())}
	body := t.nodes[e].kind == kindBody
	m.steps = l.walkInside(x, q, m, body, limits.MaskSteps)
	if len(m.exits) > maxExits {
		m.exits, m.many = nil, true
	}
	if !body {
		return m
	}
	w := &walker{e: &engine{lexer: l, limits: limits}, x: x}
	var found lexMask
	w.close(&found, q)
	for _, c := range found.closings {
		m.closing = append(m.closing, c.node)
	}
	m.steps += w.steps
	if size := l.size(); size > limits.MatcherMemory {
		panic(&LimitError{"bytes of tables", size, limits.MatcherMemory})
	}
	return m
}

func (m *wideMask) size() int { return 64 + 8*len(m.inside) + 4*len(m.closing) + 4*len(m.exits) }

// walkInside gathers the tokens that do not die, but for those that end a string, and where text may end within tokens. It gives the steps it took.
func (l *lexer) walkInside(x *TokenIndex, q lexState, m *wideMask, body bool, limit int) int {
	t := x.trie
	column := &l.utf8.column
	type place struct {
		lex   lexState
		chars int32
	}
	stack := make([]place, t.depth+1)
	stack[0] = place{lex: q}
	var loops []uint64 // of each state, the kinds of bytes that lead back to it, + 1
	steps := 0
	for i := int32(1); i < int32(len(t.nodes)-1); {
		n := &t.nodes[i]
		from := stack[n.depth-1]
		s := l.step(from.lex, column[n.byte])
		// A string's quote leads to a state in which nothing more is under way.
		if s == deadState || body && !l.grown(s) {
			if s != deadState {
				m.chars = max(m.chars, int(from.chars))
			}
			i = n.skip
			continue
		}
		steps++
		ends := l.states[s].accept != noAccept && n.skip > i+1
		if ends && len(m.exits) <= maxExits {
			m.exits = append(m.exits, i)
		}
		if l.states[s].place == 0 && l.grown(s) && n.skip > i+1 {
			for int(s) >= len(loops) {
				loops = append(loops, 0)
			}
			if loops[s] == 0 {
				loops[s] = l.loops(s) | 1<<62
			}
			if below := x.plain.below[i]; below.kinds&^loops[s] == 0 && (!ends || len(m.exits) > maxExits) {
				// Whatever comes below leads back here.
				setBits(m.inside, t.below(i))
				m.chars = max(m.chars, int(below.chars), int(from.chars)+1)
				i = n.skip
				continue
			}
		}
		// A character counts from its first byte on.
		if n.byte < 0x80 || n.byte >= 0xc0 {
			from.chars++
		}
		if a, b := n.token, t.nodes[i+1].token; a < b {
			setBits(m.inside, t.tokens[a:b])
			m.chars = max(m.chars, int(from.chars))
		}
		if ends {
			m.chars = max(m.chars, int(from.chars))
		}
		stack[n.depth] = place{s, from.chars}
		if i++; !l.grown(s) {
			i = n.skip
		}
	}
	if steps > limit {
		panic(&LimitError{"steps of a mask", steps, limit})
	}
	return steps
}

// loops is the kinds of bytes all of which lead from a state between two characters back to it, with all that may follow them in a character.
func (l *lexer) loops(q lexState) uint64 {
	n := l.states[q]
	x := l.lexemes[n.from].x
	kinds := ^uint64(notPlain)
	for b, kind := range byteKinds {
		if kind&kinds == 0 {
			continue
		}
		switch v := l.utf8.next[0][b]; {
		case v == invalidByte:
		case v < 0:
			if l.d.derive(x, ^v) != x {
				kinds &^= kind
			}
		default:
			for _, class := range l.utf8.reach[v] {
				if l.d.derive(x, class) != x {
					kinds &^= kind
					break
				}
			}
		}
	}
	return kinds
}

// wide gives the part of a terminal under way of which there is a wideMask, and what stands behind it, if many characters may follow.
func (l *lexer) wide(m lexeme) (x, rest term, ok bool) {
	t := l.d.terms
	if _, _, spelled := t.spelled(m.x); spelled {
		return m.x, empty, false
	}
	x, rest = t.bodyOf(m.x)
	if x == nothing || t.uncertain(rest) {
		x, rest = m.x, empty
	}
	value := x
	if n := t.nodes[x]; n.kind == kindBody {
		value = term(n.a)
	}
	if t.few(value, maxRoomDepth) {
		return x, rest, false
	}
	first := l.d.first(m.x)
	count := 0
	for r := rune(' '); r < 0x7f; r++ {
		if first.has(l.d.part.ascii[r]) {
			count++
		}
	}
	return x, rest, count >= 20
}

// bodyOf takes a term apart into the rest of a string and what stands behind it; body is nothing if it is not such a term.
func (t *terms) bodyOf(x term) (body, rest term) {
	switch n := t.nodes[x]; {
	case n.kind == kindBody:
		return x, empty
	case n.kind == kindConcat && t.nodes[n.a].kind == kindBody:
		return term(n.a), term(n.b)
	}
	return nothing, nothing
}

// copyWithin copies a term into a table of its own, with counters above the horizon as if they were without bound. Where operators might cancel each other
// counters stay as they are.
func (t *terms) copyWithin(x term, horizon int32) (*terms, term) {
	out := newTerms()
	done := make(map[term]term)
	var walk func(x term) term
	walk = func(x term) term {
		if x < firstTerm {
			return x
		}
		if y, ok := done[x]; ok {
			return y
		}
		n := t.nodes[x]
		var y term
		switch n.kind {
		case kindClass:
			y = out.class(t.sets[n.a])
		case kindLiteral:
			y = out.literal(string(t.texts[n.a : n.a+n.b]))
		case kindWords:
			set := make([]span, 0, n.c-n.b)
			for _, w := range t.words[n.a][n.b:n.c] {
				set = append(set, span{int32(len(out.texts)), w.size - n.d})
				out.texts = append(out.texts, t.text(w)[n.d:]...)
			}
			out.words = append(out.words, set)
			y = out.wordsBetween(int32(len(out.words)-1), 0, int32(len(set)), 0)
		case kindConcat:
			y = out.concat(walk(term(n.a)), walk(term(n.b)))
		case kindUnion, kindIntersect:
			list := make([]term, n.b)
			for i := range list {
				list[i] = walk(t.lists[n.a+int32(i)])
			}
			if n.kind == kindUnion {
				y = out.union(list...)
			} else {
				y = out.intersect(list...)
			}
		case kindNot:
			y = out.not(walk(term(n.a)))
		case kindRepeat:
			low, high := n.b, n.c
			if high > horizon {
				high = unbounded
			}
			y = out.repeat(walk(term(n.a)), min(low, horizon+1), high)
		case kindString, kindBody, kindEscape:
			y = out.wrap(n.kind, walk(term(n.a)))
		case kindHex:
			y = out.hex(walk(term(n.a)), n.b)
		}
		done[x] = y
		return y
	}
	if t.uncertain(x) {
		horizon = countCap
	}
	return out, walk(x)
}

// fingerprint is a hash of what a term is made of; done remembers those of the table. Terms of different tables that have the same are the same language.
func (t *terms) fingerprint(x term, done map[term][sha256.Size]byte) [sha256.Size]byte {
	var walk func(x term) [sha256.Size]byte
	walk = func(x term) [sha256.Size]byte {
		if h, ok := done[x]; ok {
			return h
		}
		n := t.nodes[x]
		buf := []byte{byte(n.kind)}
		number := func(v int32) { buf = binary.LittleEndian.AppendUint32(buf, uint32(v)) }
		text := func(b []byte) {
			number(int32(len(b)))
			buf = append(buf, b...)
		}
		operand := func(x int32) {
			h := walk(term(x))
			buf = append(buf, h[:]...)
		}
		switch n.kind {
		case kindClass:
			text([]byte(t.sets[n.a].key()))
		case kindLiteral:
			text(t.texts[n.a : n.a+n.b])
		case kindWords:
			for _, w := range t.words[n.a][n.b:n.c] {
				text(t.text(w)[n.d:])
			}
		case kindConcat:
			operand(n.a)
			operand(n.b)
		case kindUnion, kindIntersect:
			list := make([][sha256.Size]byte, 0, n.b)
			for _, y := range t.operands(n) {
				list = append(list, walk(y))
			}
			slices.SortFunc(list, func(a, b [sha256.Size]byte) int { return cmp.Compare(string(a[:]), string(b[:])) })
			for _, h := range list {
				buf = append(buf, h[:]...)
			}
		case kindRepeat:
			operand(n.a)
			number(n.b)
			number(n.c)
		case kindNot, kindString, kindBody, kindEscape:
			operand(n.a)
		case kindHex:
			operand(n.a)
			number(n.b)
		}
		h := sha256.Sum256(buf)
		done[x] = h
		return h
	}
	return walk(x)
}
