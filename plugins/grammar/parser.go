package grammar

import (
	"cmp"
	"slices"
)

// rowID is a row: what the parser knows at one place of the text, an index into parser.rows. Rows that say the same are one row, wherever in the text they
// stand, so that they may be remembered by number: the rows of a text are a graph, not a list.
type rowID int32

const (
	self rowID = -1 // as an origin: the row in which it stands
	root rowID = -2 // as an origin: of the root rule
)

// wait is an item that waits for a terminal or a rule: when that ends, its rule goes on in state to.
type wait struct {
	label  int32 // of a terminal or of a rule
	to     int32 // state
	count  int32 // of a counted rule, behind the label
	origin rowID // where its rule began
}

func compareWaits(a, b wait) int {
	return cmp.Or(cmp.Compare(a.label, b.label), cmp.Compare(a.to, b.to), cmp.Compare(a.count, b.count), cmp.Compare(a.origin, b.origin))
}

type row struct {
	from, rules, to int32    // in waits: those for terminals, then those for rules, each ascending
	start           lexState // before any of its terminals, tags left out
	ends            bool     // the text may end here
	tags            bool     // some of its terminals are special tokens
}

// item is a rule under way: in a state, with a number of items if it is counted, begun in a row.
type item struct {
	state  int32
	count  int32
	origin rowID
}

// parser is Earley's, over terminals that the lexer reads, with automata for rules. It keeps rows as long as it lives.
type parser struct {
	g      *Grammar
	lexer  *lexer
	tags   []int32 // of each terminal the special token it is, or -1
	limits *Limits
	rows   []row
	waits  []wait
	index  intern
	after  map[rowAccept]rowID

	// scratch of one closure
	queue     []item
	seen      map[item]struct{}
	terminals []wait
	rules     []wait
	ends      bool
	starts    []int32
	expanding []int32
	expanded  map[int32][]wait
}

type rowAccept struct {
	row    rowID
	accept acceptSet
}

func newParser(g *Grammar, l *lexer, tags []int32, limits *Limits) *parser {
	return &parser{
		g: g, lexer: l, tags: tags, limits: limits,
		after: make(map[rowAccept]rowID), seen: make(map[item]struct{}), expanded: make(map[int32][]wait),
	}
}

// first is the row before the text.
func (p *parser) first() rowID {
	return p.close([]item{{p.g.rules[p.g.root].start, 0, root}})
}

// advance is the row behind the end of some terminals that began in r.
func (p *parser) advance(r rowID, accept acceptSet) rowID {
	key := rowAccept{r, accept}
	if next, ok := p.after[key]; ok {
		return next
	}
	next := p.close(p.shift(nil, r, p.lexer.accepts[accept]))
	p.after[key] = next
	return next
}

// shift adds the items of r behind the end of some terminals, which are ascending.
func (p *parser) shift(items []item, r rowID, terminals []int32) []item {
	n := p.rows[r]
	waits := p.waits[n.from:n.rules]
	for _, t := range terminals {
		i, _ := slices.BinarySearchFunc(waits, t, func(w wait, t int32) int { return cmp.Compare(w.label, t) })
		for ; i < len(waits) && waits[i].label == t; i++ {
			items = append(items, resolve(waits[i], r))
		}
		waits = waits[i:]
	}
	return items
}

// resolve is the item that a wait of a row becomes.
func resolve(w wait, in rowID) item {
	if w.origin == self {
		w.origin = in
	}
	return item{w.to, w.count, w.origin}
}

// waitsFor is what waits in a row for a rule.
func (p *parser) waitsFor(r rowID, rule int32) []wait {
	n := p.rows[r]
	waits := p.waits[n.rules:n.to]
	i, _ := slices.BinarySearchFunc(waits, rule, func(w wait, t int32) int { return cmp.Compare(w.label, t) })
	j := i
	for j < len(waits) && waits[j].label == rule {
		j++
	}
	return waits[i:j]
}

// close gives the row that follows from items: what they predict, and what ends with them.
func (p *parser) close(kernel []item) rowID {
	p.queue, p.terminals, p.rules, p.ends = p.queue[:0], p.terminals[:0], p.rules[:0], false
	clear(p.seen)
	p.expanding = p.expanding[:0]
	for _, it := range kernel {
		p.enqueue(it)
	}
	for i := 0; i < len(p.queue); i++ {
		p.visit(p.queue[i])
	}
	p.lexer.d.steps += len(p.queue) / 8
	p.shorten()
	return p.row()
}

func (p *parser) enqueue(it item) {
	if _, ok := p.seen[it]; ok {
		return
	}
	if len(p.queue) >= p.limits.Items {
		panic(&LimitError{"items of the parser at one place", len(p.queue) + 1, p.limits.Items})
	}
	p.seen[it] = struct{}{}
	p.queue = append(p.queue, it)
}

// accepting says whether a rule may end with an item.
func (p *parser) accepting(it item) bool {
	s := p.g.states[it.state]
	return s.accept && (!p.g.rules[s.rule].counted || it.count >= p.g.rules[s.rule].low)
}

// open says whether an edge may be taken by an item.
func (p *parser) open(it item, e edge) bool {
	high := p.g.rules[p.g.states[it.state].rule].high
	return !e.below || high < 0 || it.count < high
}

func (p *parser) visit(it item) {
	g := p.g
	s := g.states[it.state]
	// A rule that began here has ended without text; whoever predicted it has gone on already.
	if p.accepting(it) && it.origin != self {
		if it.origin == root {
			p.ends = true
		} else {
			for _, w := range p.waitsFor(it.origin, s.rule) {
				p.enqueue(resolve(w, it.origin))
			}
		}
	}
	for _, e := range g.edges[s.from:s.to] {
		if !p.open(it, e) {
			continue
		}
		next := item{e.to, it.count, it.origin}
		if e.counts {
			// Without an upper bound, what is above the lower one makes no difference.
			if r := g.rules[s.rule]; r.high >= 0 || next.count < r.low {
				next.count++
			}
		}
		switch e.label.kind {
		case labelNone:
			p.enqueue(next)
		case labelTerminal:
			p.terminals = append(p.terminals, wait{e.label.n, next.state, next.count, next.origin})
			if !e.nonempty && g.terms.nullable(g.terminals[e.label.n].x) {
				p.enqueue(next)
			}
		case labelRule:
			p.rules = append(p.rules, wait{e.label.n, next.state, next.count, next.origin})
			p.enqueue(item{g.rules[e.label.n].start, 0, self})
			if !e.nonempty && g.rules[e.label.n].nullable {
				p.enqueue(next)
			}
		}
	}
}

// shortenTo is how many waits one may be replaced by.
const shortenTo = 4

// shorten replaces waits for a rule with which nothing is left but to end their own rule by the waits for that one: what calls at its end takes no place, so
// that right recursion and the ends of nested rules are no work and leave the same rows behind.
func (p *parser) shorten() {
	slices.SortFunc(p.rules, compareWaits)
	p.rules = slices.Compact(p.rules)
	clear(p.expanded)
	out := make([]wait, 0, len(p.rules))
	for i := 0; i < len(p.rules); {
		rule := p.rules[i].label
		out = append(out, p.expand(rule)...)
		for i < len(p.rules) && p.rules[i].label == rule {
			i++
		}
	}
	slices.SortFunc(out, compareWaits)
	p.rules = slices.Compact(out)
}

// final says whether an item can only end its rule.
func (p *parser) final(it item) bool {
	if !p.accepting(it) {
		return false
	}
	s := p.g.states[it.state]
	for _, e := range p.g.edges[s.from:s.to] {
		if p.open(it, e) {
			return false
		}
	}
	return true
}

// expand gives the waits of this row for a rule, shortened.
func (p *parser) expand(rule int32) []wait {
	if out, ok := p.expanded[rule]; ok {
		return out
	}
	i, _ := slices.BinarySearchFunc(p.rules, rule, func(w wait, t int32) int { return cmp.Compare(w.label, t) })
	p.expanding = append(p.expanding, rule)
	var out []wait
	for ; i < len(p.rules) && p.rules[i].label == rule; i++ {
		w := p.rules[i]
		if w.origin == root || !p.final(item{w.to, w.count, w.origin}) {
			out = append(out, w)
			continue
		}
		var parents []wait
		parent := p.g.states[w.to].rule
		switch {
		case w.origin != self:
			for _, q := range p.waitsFor(w.origin, parent) {
				it := resolve(q, w.origin)
				parents = append(parents, wait{rule, it.state, it.count, it.origin})
			}
		case slices.Contains(p.expanding, parent) || len(p.expanding) > 100:
			parents = nil
		default:
			for _, q := range p.expand(parent) {
				q.label = rule
				parents = append(parents, q)
			}
		}
		if len(parents) == 0 || len(parents) > shortenTo {
			out = append(out, w)
			continue
		}
		out = append(out, parents...)
	}
	p.expanding = p.expanding[:len(p.expanding)-1]
	p.expanded[rule] = out
	return out
}

// row gives the number of the row that the last closure found.
func (p *parser) row() rowID {
	slices.SortFunc(p.terminals, compareWaits)
	p.terminals = slices.Compact(p.terminals)
	h := newHash()
	for _, list := range [2][]wait{p.terminals, p.rules} {
		h.add(uint64(len(list)))
		for _, w := range list {
			h.add(uint64(uint32(w.label))<<32 | uint64(uint32(w.to)))
			h.add(uint64(uint32(w.count))<<32 | uint64(uint32(w.origin)))
		}
	}
	if p.ends {
		h.add(1)
	}
	at := p.index.find(h, func(i int32) bool {
		r := p.rows[i]
		return r.ends == p.ends && slices.Equal(p.waits[r.from:r.rules], p.terminals) && slices.Equal(p.waits[r.rules:r.to], p.rules)
	})
	if at >= 0 {
		return rowID(at)
	}
	r := row{from: int32(len(p.waits)), ends: p.ends}
	p.starts = p.starts[:0]
	for _, w := range p.terminals {
		if p.tags[w.label] >= 0 {
			r.tags = true
		} else if n := len(p.starts); n == 0 || p.starts[n-1] != w.label {
			p.starts = append(p.starts, w.label)
		}
	}
	r.start = p.lexer.start(p.starts, p.g.terminals)
	p.waits = append(p.waits, p.terminals...)
	r.rules = int32(len(p.waits))
	p.waits = append(p.waits, p.rules...)
	r.to = int32(len(p.waits))
	p.rows = append(p.rows, r)
	p.index.put(h, int32(len(p.rows)-1))
	return rowID(len(p.rows) - 1)
}

func (p *parser) size() int {
	return 24*len(p.rows) + 16*len(p.waits) + p.index.size() + 40*len(p.after)
}
