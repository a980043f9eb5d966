package grammar

// endless is a room without bound.
const endless = 1 << 30

// room says how many characters may stand within strings in a state of the lexer, whatever they are: each text of up to so many can be gone on with. exact
// says that no longer one can. It is 0 if something else than strings may be under way, or if it is not known.
func (l *lexer) room(q lexState) (room int, exact bool) {
	n := l.states[q]
	if n.place != 0 {
		return 0, false
	}
	t := l.d.terms
	exact = true
	for _, m := range l.lexemes[n.from:n.to] {
		x := t.nodes[m.x]
		if x.kind == kindConcat && !t.uncertain(term(x.b)) {
			x = t.nodes[x.a]
		}
		if x.kind != kindBody {
			return 0, false
		}
		e := term(x.a)
		room = max(room, t.room(e, maxRoomDepth))
		if base, _, _ := t.repetition(e); base != anyChar && e != empty {
			exact = false
		}
	}
	return room, exact
}

// maxRoomDepth is how deep a term is looked into.
const maxRoomDepth = 8

// room is a number of characters, such that each text of up to so many can be gone on with to a text of x. There may be longer ones.
func (t *terms) room(x term, depth int) int {
	if depth == 0 {
		return 0
	}
	switch n := t.nodes[x]; n.kind {
	case kindClass, kindRepeat:
		base, _, high := t.repetition(x)
		switch {
		case base != anyChar:
			return 0
		case high < 0:
			return endless
		default:
			return int(high)
		}
	case kindConcat:
		if t.uncertain(term(n.b)) {
			return 0
		}
		return t.room(term(n.a), depth-1)
	case kindUnion:
		room := 0
		for _, y := range t.operands(n) {
			room = max(room, t.room(y, depth-1))
		}
		return room
	case kindNot:
		// All but texts up to some length: whatever stands there, there is a longer one.
		if t.bounded(term(n.a), depth-1) {
			return endless
		}
	case kindIntersect:
		return t.roomOfIntersection(t.operands(n), depth-1)
	}
	return 0
}

// bounded says whether the texts of x have a largest length.
func (t *terms) bounded(x term, depth int) bool {
	if depth < 0 {
		return false
	}
	switch n := t.nodes[x]; n.kind {
	case kindEmpty, kindLiteral, kindWords, kindClass:
		return true
	case kindRepeat:
		return n.c >= 0 && t.bounded(term(n.a), depth-1)
	case kindConcat:
		for ; t.nodes[x].kind == kindConcat; x = term(t.nodes[x].b) {
			if !t.bounded(term(t.nodes[x].a), depth-1) {
				return false
			}
		}
		return t.bounded(x, depth-1)
	case kindUnion:
		for _, y := range t.operands(n) {
			if !t.bounded(y, depth-1) {
				return false
			}
		}
		return true
	case kindIntersect:
		for _, y := range t.operands(n) {
			if t.bounded(y, depth-1) {
				return true
			}
		}
	}
	return false
}

// few says whether x is made of single texts.
func (t *terms) few(x term, depth int) bool {
	switch n := t.nodes[x]; n.kind {
	case kindEmpty, kindLiteral, kindWords:
		return true
	case kindUnion:
		for _, y := range t.operands(n) {
			if depth == 0 || !t.few(y, depth-1) {
				return false
			}
		}
		return true
	}
	return false
}

// roomOfIntersection knows texts of some length among which are all that hold certain others: what a pattern and the bounds of a length make together.
func (t *terms) roomOfIntersection(list []term, depth int) int {
	room, held, excluded, many := endless, 0, false, false
	for _, x := range list {
		n := t.nodes[x]
		if base, _, high := t.repetition(x); n.kind == kindRepeat && base == anyChar {
			if high >= 0 {
				room = min(room, int(high))
			}
			continue
		}
		if n.kind == kindNot && t.bounded(term(n.a), depth) {
			excluded = true
			many = many || !t.few(term(n.a), depth)
			continue
		}
		length, ok := t.holds(x)
		if !ok {
			return 0
		}
		held += length
	}
	switch {
	case !excluded:
		return max(0, room-held)
	case room == endless:
		// There are longer and longer texts that hold what they must.
		return endless
	case held == 0 && !many:
		// There are more single characters than texts that are excluded.
		return max(0, room-1)
	}
	return 0
}

// holds says whether x has, among others, all texts that hold one certain text anywhere, and how long the shortest such text is.
func (t *terms) holds(x term) (length int, ok bool) {
	switch n := t.nodes[x]; n.kind {
	case kindConcat:
		if term(n.a) != anyText || t.uncertain(x) {
			return 0, false
		}
		rest := term(n.b)
		for t.nodes[rest].kind == kindConcat {
			head := term(t.nodes[rest].a)
			length += t.shortest(head)
			rest = term(t.nodes[rest].b)
		}
		return length, rest == anyText
	case kindUnion:
		for _, y := range t.operands(n) {
			if l, found := t.holds(y); found && (!ok || l < length) {
				length, ok = l, true
			}
		}
	}
	return length, ok
}

// shortest is the number of characters of the shortest text of a term that is not uncertain.
func (t *terms) shortest(x term) int {
	switch n := t.nodes[x]; n.kind {
	case kindClass:
		return 1
	case kindLiteral:
		return len([]rune(string(t.texts[n.a : n.a+n.b])))
	case kindWords:
		least := endless
		for _, w := range t.words[n.a][n.b:n.c] {
			least = min(least, len([]rune(string(t.text(w)[n.d:]))))
		}
		return least
	case kindConcat:
		return min(endless, t.shortest(term(n.a))+t.shortest(term(n.b)))
	case kindUnion:
		least := endless
		for _, y := range t.operands(n) {
			least = min(least, t.shortest(y))
		}
		return least
	case kindRepeat:
		return int(min(endless, int64(n.b)*int64(t.shortest(term(n.a)))))
	case kindString, kindBody:
		return 2 + t.shortest(term(n.a))
	}
	return 0
}
