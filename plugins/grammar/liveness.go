package grammar

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
		return d.search(x)
	}
	if live {
		d.setVerdict(x, alive)
	} else {
		d.setVerdict(x, dead)
	}
	return live
}

// search looks for the shortest text of x, which shows that it has one, breadth first so that counted repetitions are not run through to their ends.
func (d *deriver) search(x term) bool {
	type visit struct {
		x    term
		from int
	}
	t := d.terms
	if t.nullable(x) || t.room(x, maxRoomDepth) > 0 {
		d.setVerdict(x, alive)
		return true
	}
	queue := []visit{{x, -1}}
	seen := map[term]bool{x: true}
	found := func(at int) bool {
		for ; at >= 0; at = queue[at].from {
			d.setVerdict(queue[at].x, alive)
		}
		return true
	}
	for i := 0; i < len(queue); i++ {
		y := queue[i].x
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
			if z == nothing || seen[z] {
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
				seen[z] = true
				queue = append(queue, visit{z, i})
			default:
				// Its parts have fewer operators than y, so this ends.
				if d.live(z) {
					return found(i)
				}
			}
		}
	}
	for _, v := range queue {
		d.setVerdict(v.x, dead)
	}
	return false
}
