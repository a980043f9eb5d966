package grammar

import (
	"context"
	"crypto/sha256"
)

// Grammar is a context-free language of texts. It is immutable and safe for concurrent use.
type Grammar struct {
	terms     *terms
	terminals []terminal
	rules     []rule
	root      int32
	states    []state
	edges     []edge
	encoded   []byte
	hash      [sha256.Size]byte
}

// rule is an automaton over states. A counted one has a number in its items.
type rule struct {
	start     int32
	low, high int32 // counted: accepted from low on, entered below high; high < 0 is without bound
	counted   bool
	nullable  bool // has the empty text
}

type state struct {
	rule     int32
	from, to int32 // edges
	accept   bool  // a rule may end here; a counted one only from low on
}

type edge struct {
	label    label
	to       int32
	counts   bool // adds one
	below    bool // only below high
	nonempty bool // not by the empty text, though the label has it
}

// Hash is the SHA-256 of the canonical bytes.
func (g *Grammar) Hash() [sha256.Size]byte { return g.hash }

// finish makes a Grammar of a draft: without what derives no finite text or is not reached, numbered in the order in which it is reached. steps are
// derivatives that were taken, at most budget.
func (d *draft) finish(ctx context.Context, limits Limits, budget int) (g *Grammar, steps int, err error) {
	live, steps, err := d.liveTerminals(ctx, budget)
	if err != nil {
		return nil, steps, err
	}
	d.trim(d.productive(live), live)
	if len(d.rules[0].states) == 0 && !d.rules[0].list {
		return nil, steps, ErrNoText
	}
	if d = d.renumber(); len(d.rules) > limits.Rules {
		return nil, steps, &LimitError{"rules", len(d.rules), limits.Rules}
	}
	if depth := d.terms.depth(); depth > maxTermDepth {
		return nil, steps, &LimitError{"expressions inside each other", depth, maxTermDepth}
	}
	g = d.build()
	g.encoded = d.encode()
	if len(g.encoded) > limits.Encoding {
		return nil, steps, &LimitError{"bytes", len(g.encoded), limits.Encoding}
	}
	g.hash = sha256.Sum256(g.encoded)
	return g, steps, nil
}

// maxTermDepth is how deep expressions may stand inside each other.
const maxTermDepth = 50_000

// liveTerminals says of each terminal whether it has any text.
func (d *draft) liveTerminals(ctx context.Context, budget int) ([]bool, int, error) {
	live := make([]bool, len(d.terminals))
	var roots []term
	for i, t := range d.terminals {
		if live[i] = t.x != nothing; d.terms.uncertain(t.x) {
			roots = append(roots, t.x)
		}
	}
	if len(roots) == 0 {
		return live, 0, nil
	}
	sub, at := d.terms.extract(roots...)
	v := newDeriver(sub, budget)
	v.ctx, v.weigh = ctx, true
	v.steps = v.part.work / rangesPerStep
	for i, t := range d.terminals {
		if d.terms.uncertain(t.x) {
			live[i] = v.live(at[t.x])
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, v.steps, err
	}
	if v.exhausted() {
		return nil, v.steps, &LimitError{"steps to find whether expressions are empty", v.steps, budget}
	}
	return live, v.steps, nil
}

// productive says of each rule whether a finite text is derived from it.
func (d *draft) productive(live []bool) []bool {
	return d.derive(func(terminal int32) bool { return live[terminal] })
}

// nullable says of each rule whether it has the empty text.
func (d *draft) nullable() []bool {
	return d.derive(func(terminal int32) bool { return d.terms.nullable(d.terminals[terminal].x) })
}

// place is a state of a rule's automaton.
type place struct{ rule, state int32 }

// derive says of each rule whether it has a text of terminals that are ok. Every edge is looked at once or twice, however rules use each other: a state behind a rule
// waits for that rule's answer.
func (d *draft) derive(ok func(terminal int32) bool) []bool {
	out := make([]bool, len(d.rules))
	waiting := make([][]place, len(d.rules))
	reached := make([][]bool, len(d.rules))
	var stack []place
	enter := func(p place) {
		if !reached[p.rule][p.state] {
			reached[p.rule][p.state] = true
			stack = append(stack, p)
		}
	}
	for i := range d.rules {
		if n := d.rules[i].stateCount(); n > 0 {
			reached[i] = make([]bool, n)
			enter(place{int32(i), 0})
		}
	}
	for len(stack) > 0 {
		p := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if out[p.rule] {
			continue
		}
		state := d.rules[p.rule].state(p.state)
		if state.accept {
			out[p.rule] = true
			for _, w := range waiting[p.rule] {
				enter(w)
			}
			waiting[p.rule] = nil
			continue
		}
		for _, e := range state.edges {
			to := place{p.rule, e.to}
			switch l := e.label; {
			case l.kind == labelRule && !out[l.n]:
				waiting[l.n] = append(waiting[l.n], to)
			case l.kind != labelTerminal || ok(l.n):
				enter(to)
			}
		}
	}
	return out
}

// stateCount is the number of a rule's states. A counted list is seen as the automaton of its shortest text: an item, and a separator before it is repeated.
func (r *draftRule) stateCount() int {
	if r.list {
		return 3
	}
	return len(r.states)
}

func (r *draftRule) state(i int32) draftState {
	switch {
	case !r.list:
		return r.states[i]
	case int(i) >= int(min(r.low, 2)):
		return draftState{accept: true}
	case i == 0:
		return draftState{edges: []draftEdge{{r.item, 1}}}
	}
	return draftState{edges: []draftEdge{{r.sep, 2}}}
}

// reach says which states are reached from the start by labels that are ok.
func (r *draftRule) reach(ok func(label) bool) []bool {
	reached := make([]bool, len(r.states))
	reached[0] = true
	stack := []int32{0}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, e := range r.states[s].edges {
			if !reached[e.to] && ok(e.label) {
				reached[e.to] = true
				stack = append(stack, e.to)
			}
		}
	}
	return reached
}

// trim leaves out labels without text and, of each automaton, states that are on no way from the start to an end. A rule without text has no states then.
func (d *draft) trim(good, live []bool) {
	ok := func(l label) bool {
		return l.kind == labelNone || l.kind == labelTerminal && live[l.n] || l.kind == labelRule && good[l.n]
	}
	single := []draftState{{accept: true}}
	for i := range d.rules {
		r := &d.rules[i]
		switch {
		case !good[i]:
			*r = draftRule{}
		case r.list && (!ok(r.item) || r.high == 0):
			*r = draftRule{states: single}
		case r.list:
			if !ok(r.sep) {
				r.high, r.sep = 1, label{}
			}
		default:
			r.trim(ok)
		}
	}
}

func (r *draftRule) trim(ok func(label) bool) {
	reached := r.reach(ok)
	back := make([][]int32, len(r.states))
	useful := make([]bool, len(r.states))
	var stack []int32
	for i, s := range r.states {
		if !reached[i] {
			continue
		}
		for _, e := range s.edges {
			if ok(e.label) {
				back[e.to] = append(back[e.to], int32(i))
			}
		}
		if s.accept {
			useful[i] = true
			stack = append(stack, int32(i))
		}
	}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, b := range back[s] {
			if !useful[b] {
				useful[b] = true
				stack = append(stack, b)
			}
		}
	}
	// Numbered breadth first from the start.
	number := make([]int32, len(r.states))
	for i := range number {
		number[i] = -1
	}
	order := make([]int32, 1, len(r.states))
	number[0] = 0
	states := make([]draftState, 0, len(r.states))
	for i := 0; i < len(order); i++ {
		s := r.states[order[i]]
		kept := draftState{accept: s.accept, edges: make([]draftEdge, 0, len(s.edges))}
		for _, e := range s.edges {
			if !useful[e.to] || !ok(e.label) || e.label.kind == labelNone && e.to == order[i] {
				continue
			}
			if number[e.to] < 0 {
				number[e.to] = int32(len(order))
				order = append(order, e.to)
			}
			k := draftEdge{e.label, number[e.to]}
			if !containsEdge(kept.edges, k) {
				kept.edges = append(kept.edges, k)
			}
		}
		states = append(states, kept)
	}
	r.states = states
}

// containsEdge looks among the few edges before; of many, an edge that is there twice does no harm.
func containsEdge(list []draftEdge, e draftEdge) bool {
	for i := max(0, len(list)-8); i < len(list); i++ {
		if list[i] == e {
			return true
		}
	}
	return false
}

// renumber keeps what is reached from the root, in the order in which it is reached, so that how a grammar was built does not show in its bytes more than it
// must.
func (d *draft) renumber() *draft {
	rules := make([]int32, len(d.rules))
	terminals := make([]int32, len(d.terminals))
	for i := range rules {
		rules[i] = -1
	}
	for i := range terminals {
		terminals[i] = -1
	}
	out := &draft{}
	order := []int32{0}
	rules[0] = 0
	var roots []term
	move := func(l label) label {
		switch l.kind {
		case labelTerminal:
			if terminals[l.n] < 0 {
				terminals[l.n] = int32(len(out.terminals))
				out.terminals = append(out.terminals, d.terminals[l.n])
				roots = append(roots, d.terminals[l.n].x)
			}
			l.n = terminals[l.n]
		case labelRule:
			if rules[l.n] < 0 {
				rules[l.n] = int32(len(order))
				order = append(order, l.n)
			}
			l.n = rules[l.n]
		}
		return l
	}
	for i := 0; i < len(order); i++ {
		r := d.rules[order[i]]
		if r.list {
			r.item, r.sep = move(r.item), move(r.sep)
		} else {
			states := make([]draftState, len(r.states))
			for s, old := range r.states {
				states[s] = draftState{accept: old.accept, edges: make([]draftEdge, 0, len(old.edges))}
				for _, e := range old.edges {
					states[s].edges = append(states[s].edges, draftEdge{move(e.label), e.to})
				}
			}
			r.states = states
		}
		out.rules = append(out.rules, r)
	}
	var at map[term]term
	out.terms, at = d.terms.extract(roots...)
	for i := range out.terminals {
		out.terminals[i].x = at[out.terminals[i].x]
	}
	return out
}

// build lays a draft out in flat tables.
func (d *draft) build() *Grammar {
	g := &Grammar{terms: d.terms, terminals: d.terminals, rules: make([]rule, len(d.rules))}
	states, edges := 0, 0
	for _, r := range d.rules {
		states += max(len(r.states), 3)
		for _, s := range r.states {
			edges += len(s.edges)
		}
	}
	g.states, g.edges = make([]state, 0, states), make([]edge, 0, edges)
	nullable := d.nullable()
	empties := func(l label) bool {
		return l.kind == labelNone || l.kind == labelTerminal && d.terms.nullable(d.terminals[l.n].x) || l.kind == labelRule && nullable[l.n]
	}
	for i, r := range d.rules {
		first := int32(len(g.states))
		g.rules[i] = rule{start: first, nullable: nullable[i]}
		add := func(accept bool, edges ...edge) {
			from := int32(len(g.edges))
			g.edges = append(g.edges, edges...)
			g.states = append(g.states, state{rule: int32(i), from: from, to: int32(len(g.edges)), accept: accept})
		}
		if !r.list {
			for _, s := range r.states {
				edges := make([]edge, len(s.edges))
				for k, e := range s.edges {
					edges[k] = edge{label: e.label, to: first + e.to}
				}
				add(s.accept, edges...)
			}
			continue
		}
		low := r.low
		if empties(r.item) && empties(r.sep) {
			low = 0 // empty items make up the number
		}
		g.rules[i].counted, g.rules[i].low, g.rules[i].high = true, low, r.high
		// Before the first item; behind an item; behind a separator. Where items and separators may both be empty, going round without text would count for
		// ever: one that is empty must follow one that is not.
		begin, after, between := first, first+1, first+2
		_ = begin
		add(true, edge{label: r.item, to: after, counts: true, below: true})
		var edges []edge
		if empties(r.sep) {
			edges = append(edges, edge{label: r.item, to: after, counts: true, below: true, nonempty: true})
		}
		if r.sep.kind != labelNone {
			edges = append(edges, edge{label: r.sep, to: between, below: true, nonempty: true})
		}
		add(true, edges...)
		add(false, edge{label: r.item, to: after, counts: true})
	}
	return g
}
