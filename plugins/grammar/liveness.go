package grammar

import "unicode/utf8"

// verdict is what is known about whether a term has any text.
type verdict uint8

const (
	unknown verdict = iota
	alive
	dead
)

// maxSearchDepth is how deep searches may need each other's answers: operators inside operators.
const maxSearchDepth = 200

func (d *deriver) verdictOf(x term) verdict {
	if int(x) < len(d.known) {
		return d.known[x]
	}
	return unknown
}

func (d *deriver) setVerdict(x term, v verdict) {
	if int(x) >= len(d.known) {
		d.known = append(d.known, make([]verdict, len(d.terms.nodes)-len(d.known))...)
	}
	d.known[x] = v
}

// live says whether x has any text.
func (d *deriver) live(x term) bool {
	t := d.terms
	if x == nothing {
		return false
	}
	if !t.uncertain(x) {
		return true
	}
	if v := d.verdictOf(x); v != unknown {
		return v == alive
	}
	if d.exhausted() {
		return true
	}
	if d.depth++; d.depth > maxSearchDepth {
		d.steps = d.limit + 1
	}
	defer func() { d.depth-- }()
	var live bool
	switch n := t.nodes[x]; n.kind {
	case kindConcat:
		live = true
		for y := x; ; {
			m := t.nodes[y]
			if m.kind != kindConcat {
				live = live && d.live(y)
				break
			}
			if live = d.live(term(m.a)); !live {
				break
			}
			y = term(m.b)
		}
	case kindUnion:
		for i := n.a; i < n.a+n.b && !live; i++ {
			live = d.live(t.lists[i])
		}
	case kindRepeat:
		live = n.b == 0 || d.live(term(n.a))
	case kindString, kindBody:
		live = d.live(term(n.a))
	default:
		var ok bool
		if live, ok = d.liveByLength(x); !ok {
			return d.search(x)
		}
		if d.exhausted() {
			return true
		}
	}
	if live {
		d.setVerdict(x, alive)
	} else {
		d.setVerdict(x, dead)
	}
	return live
}

// search looks for a text of x, which shows that it has one: first where the least is missing by what the operands say, and among equals first where it came
// first, so that counted repetitions are not run through to their ends.
func (d *deriver) search(x term) bool {
	t := d.terms
	if t.nullable(x) || t.room(x, maxRoomDepth) > 0 {
		d.setVerdict(x, alive)
		return true
	}
	s := &searching{seen: map[term]bool{x: true}}
	s.add(x, -1, d.least(x))
	found := func(at int32) bool {
		length := 0
		for ; at >= 0; at = s.visits[at].from {
			d.setVerdict(s.visits[at].x, alive)
			length++
		}
		if d.weigh && length > longLength && d.heavy(x, length) {
			d.steps = max(d.steps, d.limit+1)
		}
		return true
	}
	for len(s.open) > 0 {
		i := s.next()
		y := s.visits[i].x
		if t.nullable(y) {
			return found(i)
		}
		first := d.first(y)
		for class := int32(0); class < d.part.count(); class++ {
			if !first.has(class) {
				continue
			}
			z := d.derive(y, class)
			if d.exhausted() {
				return true
			}
			if z == nothing || s.seen[z] {
				continue
			}
			switch d.verdictOf(z) {
			case alive:
				return found(i)
			case dead:
				continue
			}
			if !t.uncertain(z) {
				return found(i)
			}
			switch t.nodes[z].kind {
			case kindIntersect, kindNot, kindEscape, kindHex:
				s.seen[z] = true
				s.add(z, i, d.least(z))
			default:
				// Its parts have fewer operators than y, so this ends.
				if d.live(z) {
					return found(i)
				}
			}
		}
	}
	for _, v := range s.visits {
		d.setVerdict(v.x, dead)
	}
	return false
}

const (
	probeSteps     = 100
	maxProbeWeight = 8_000 // operands of a derivative, times the length of the text that was found
)

// heavy tells whether a language whose shortest texts are long has derivatives of many operands: then every mask would have to look for such a text again, and
// take long for each character of it. What a search comes by says little of that, so it follows some text.
func (d *deriver) heavy(x term, length int) bool {
	most, next := 0, uint32(1)
	for range probeSteps {
		next = next*1664525 + 1013904223
		first, count := d.first(x), d.part.count()
		at, y := int32(next>>8)%count, nothing
		for range count {
			if at = (at + 1) % count; first.has(at) {
				if y = d.derive(x, at); y != nothing {
					break
				}
			}
		}
		if d.exhausted() || y == nothing {
			break
		}
		x = y
		most = max(most, d.terms.weight(x, maxRoomDepth))
	}
	return most*length > maxProbeWeight
}

// weight is about how many operands a term has.
func (t *terms) weight(x term, depth int) int {
	if depth == 0 {
		return 1
	}
	switch n := t.nodes[x]; n.kind {
	case kindUnion, kindIntersect:
		sum := 0
		for _, y := range t.operands(n) {
			sum += t.weight(y, depth-1)
		}
		return sum
	case kindConcat, kindNot, kindString, kindBody:
		return t.weight(term(n.a), depth-1)
	}
	return 1
}

// searching is what a search has come by, and in a heap what of that it has not looked at.
type searching struct {
	visits []visit
	open   []int32
	seen   map[term]bool
}

type visit struct {
	x     term
	from  int32
	least int32
}

func (s *searching) before(a, b int32) bool {
	if x, y := s.visits[a].least, s.visits[b].least; x != y {
		return x < y
	}
	return a < b
}

func (s *searching) add(x term, from, least int32) {
	s.open = append(s.open, int32(len(s.visits)))
	s.visits = append(s.visits, visit{x, from, least})
	for i := len(s.open) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.before(s.open[i], s.open[up]) {
			break
		}
		s.open[i], s.open[up] = s.open[up], s.open[i]
		i = up
	}
}

func (s *searching) next() int32 {
	out, last := s.open[0], len(s.open)-1
	s.open[0] = s.open[last]
	s.open = s.open[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && s.before(s.open[down+1], s.open[down]) {
			down++
		}
		if !s.before(s.open[down], s.open[i]) {
			break
		}
		s.open[i], s.open[down] = s.open[down], s.open[i]
		i = down
	}
	return out
}

// least is a number of characters that no text of x has fewer of. Of a term within too many others it is 0.
func (d *deriver) least(x term) int32 { return d.leastWithin(x, maxLeastDepth) }

const (
	maxLeastDepth = 200
	fewWords      = 16 // that are looked at
)

func (d *deriver) leastWithin(x term, depth int) int32 {
	t := d.terms
	n := t.nodes[x]
	if n.flags&flagNullable != 0 || depth == 0 {
		return 0
	}
	if n.kind == kindClass {
		return 1
	}
	if n.kind == kindLiteral {
		return int32(utf8.RuneCount(t.texts[n.a : n.a+n.b]))
	}
	if int(x) < len(d.leasts) && d.leasts[x] != 0 {
		return d.leasts[x] - 1
	}
	least := int32(0)
	switch n.kind {
	case kindWords:
		if least = 1; n.c-n.b > fewWords {
			break
		}
		least = endless
		for _, w := range t.words[n.a][n.b:n.c] {
			least = min(least, int32(utf8.RuneCount(t.text(w)[n.d:])))
		}
	case kindConcat:
		least = min(endless, d.leastWithin(term(n.a), depth-1)+d.leastWithin(term(n.b), depth-1))
	case kindUnion:
		least = endless
		for _, y := range t.operands(n) {
			least = min(least, d.leastWithin(y, depth-1))
		}
	case kindIntersect:
		for _, y := range t.operands(n) {
			least = max(least, d.leastWithin(y, depth-1))
		}
	case kindRepeat:
		least = int32(min(endless, int64(n.b)*int64(d.leastWithin(term(n.a), depth-1))))
	case kindString:
		least = min(endless, 2+d.leastWithin(term(n.a), depth-1))
	case kindBody, kindEscape, kindHex:
		least = min(endless, 1+d.leastWithin(term(n.a), depth-1))
	case kindNot: // the empty text is in what it is not
		least = 1
	}
	if int(x) >= len(d.leasts) {
		d.leasts = append(d.leasts, make([]int32, len(t.nodes)-len(d.leasts))...)
	}
	d.leasts[x] = least + 1
	return least
}
