package grammar

import "fmt"

// draft is a grammar as it comes from a Builder or from bytes: rules turned into automata, with what derives nothing still in it.
type draft struct {
	terms     *terms
	terminals []terminal
	rules     []draftRule // the first is the root
}

// terminal is a language that the lexer reads, or a special token.
type terminal struct {
	x   term
	tag bool // x is a literal: the text of a special token, where the vocabulary has it
}

// draftRule is an automaton, or a counted list.
type draftRule struct {
	list      bool
	item, sep label // of a list
	low, high int32
	states    []draftState // of an automaton; the first is the start
}

type draftState struct {
	accept bool
	edges  []draftEdge
}

type draftEdge struct {
	label label
	to    int32
}

// label is what stands on an edge.
type label struct {
	kind labelKind
	n    int32 // of a terminal or a rule
}

type labelKind uint8

const (
	labelNone     labelKind = iota // no text
	labelTerminal                  // terminals[n]
	labelRule                      // rules[n]
)

// flattener turns symbols into a draft. A symbol that stands in several places becomes a rule of its own, so that the draft is not longer than the symbols.
type flattener struct {
	b         *Builder
	d         *draft
	uses      []int32          // of each symbol, from reachable symbols
	rules     map[Symbol]int32 // rules made of symbols
	named     map[Rule]int32
	pending   []func() // bodies of rules that were referred to
	terminals map[terminal]int32
	states    int
}

// Grammar gives the language of root, without what derives no finite text. If nothing is left the error wraps ErrNoText; if something was wrong before it is
// Err's. A rule that is referred to and not defined is an error.
func (b *Builder) Grammar(root Symbol) (*Grammar, error) {
	if !b.checkSymbols(root) {
		return nil, b.err
	}
	f := &flattener{b: b, d: &draft{terms: b.terms}, rules: map[Symbol]int32{}, named: map[Rule]int32{}, terminals: map[terminal]int32{}}
	if err := f.countUses(root); err != nil {
		return nil, err
	}
	f.newRule(func(r *draftRule) { f.automaton(r, root) })
	for len(f.pending) > 0 {
		body := f.pending[0]
		f.pending = f.pending[1:]
		body()
		if len(f.d.rules) > b.limits.Rules {
			return nil, &LimitError{"rules", len(f.d.rules), b.limits.Rules}
		}
		if f.states > b.limits.States {
			return nil, &LimitError{"states", f.states, b.limits.States}
		}
	}
	g, steps, err := f.d.finish(b.ctx, b.limits, b.limits.Steps-b.steps)
	b.steps += steps
	return g, err
}

// countUses counts from how many places each symbol is referred to.
func (f *flattener) countUses(root Symbol) error {
	table := f.b.symbols
	f.uses = make([]int32, len(table.list))
	stack := []Symbol{root}
	use := func(s Symbol) {
		if f.uses[s]++; f.uses[s] == 1 {
			stack = append(stack, s)
		}
	}
	f.uses[root] = 1
	for len(stack) > 0 {
		s := table.list[stack[len(stack)-1]]
		stack = stack[:len(stack)-1]
		for _, p := range s.parts {
			use(p)
		}
		if s.kind == symbolNetwork {
			for _, e := range table.networks[s.a].edges {
				use(e.Symbol)
			}
		}
		if s.kind == symbolRef {
			r := table.rules[s.a]
			if !r.defined {
				return fmt.Errorf("rule %q is referred to and not defined", r.name)
			}
			use(r.symbol)
		}
	}
	return nil
}

func (f *flattener) newRule(body func(*draftRule)) int32 {
	n := int32(len(f.d.rules))
	f.d.rules = append(f.d.rules, draftRule{})
	f.pending = append(f.pending, func() {
		var r draftRule
		body(&r)
		f.d.rules[n] = r
	})
	return n
}

func (f *flattener) newState(r *draftRule) int32 {
	r.states = append(r.states, draftState{})
	f.states++
	return int32(len(r.states) - 1)
}

func (f *flattener) edge(r *draftRule, from, to int32, l label) {
	r.states[from].edges = append(r.states[from].edges, draftEdge{l, to})
	f.states++
}

func (f *flattener) automaton(r *draftRule, s Symbol) {
	start, end := f.newState(r), f.newState(r)
	r.states[end].accept = true
	f.expand(r, s, start, end)
}

// single gives a label that stands for a whole symbol. Its second result is false if the symbol has no text at all.
func (f *flattener) single(s Symbol) (label, bool) {
	sym := f.b.symbols.list[s]
	switch sym.kind {
	case symbolTerminal:
		switch x := term(sym.a); x {
		case nothing:
			return label{}, false
		case empty:
			return label{}, true
		default:
			return f.terminal(terminal{x: x}), true
		}
	case symbolTag:
		return f.terminal(terminal{x: term(sym.a), tag: true}), true
	case symbolRef:
		rule := Rule(sym.a)
		n, ok := f.named[rule]
		if !ok {
			n = f.newRule(func(r *draftRule) { f.automaton(r, f.b.symbols.rules[rule].symbol) })
			f.named[rule] = n
		}
		return label{labelRule, n}, true
	case symbolSeq:
		if len(sym.parts) == 0 {
			return label{}, true
		}
	case symbolChoice:
		if len(sym.parts) == 0 {
			return label{}, false
		}
	}
	n, ok := f.rules[s]
	if !ok {
		n = f.newRule(func(r *draftRule) {
			if sym.kind == symbolList {
				f.list(r, sym)
			} else {
				start, end := f.newState(r), f.newState(r)
				r.states[end].accept = true
				f.inline(r, s, start, end)
			}
		})
		f.rules[s] = n
	}
	return label{labelRule, n}, true
}

func (f *flattener) terminal(t terminal) label {
	n, ok := f.terminals[t]
	if !ok {
		n = int32(len(f.d.terminals))
		f.d.terminals = append(f.d.terminals, t)
		f.terminals[t] = n
	}
	return label{labelTerminal, n}
}

// expand puts a symbol between two states: as what it consists of if this is its only place, as a rule otherwise.
func (f *flattener) expand(r *draftRule, s Symbol, from, to int32) {
	sym := f.b.symbols.list[s]
	composite := sym.kind == symbolSeq || sym.kind == symbolChoice || sym.kind == symbolNetwork || sym.kind == symbolList && !counts(sym)
	if composite && f.uses[s] == 1 {
		f.inline(r, s, from, to)
		return
	}
	if l, ok := f.single(s); ok {
		f.edge(r, from, to, l)
	}
}

// counts says whether a list needs a counter.
func counts(s symbol) bool {
	return !(s.high == unbounded && s.low <= 1 || s.high == 1)
}

func (f *flattener) inline(r *draftRule, s Symbol, from, to int32) {
	sym := f.b.symbols.list[s]
	switch sym.kind {
	case symbolSeq:
		for i, p := range sym.parts {
			next := to
			if i < len(sym.parts)-1 {
				next = f.newState(r)
			}
			f.expand(r, p, from, next)
			from = next
		}
		if len(sym.parts) == 0 {
			f.edge(r, from, to, label{})
		}
	case symbolChoice:
		for _, p := range sym.parts {
			f.expand(r, p, from, to)
		}
	case symbolNetwork:
		first := int32(len(r.states))
		n := f.b.symbols.networks[sym.a]
		for range n.states {
			f.newState(r)
		}
		f.edge(r, from, first+n.start, label{})
		for _, a := range n.accept {
			f.edge(r, first+a, to, label{})
		}
		for _, e := range n.edges {
			f.expand(r, e.Symbol, first+int32(e.From), first+int32(e.To))
		}
	case symbolList:
		f.loop(r, sym, from, to)
	}
}

// loop is a list without a counter: at most once, any number of times, or at least once.
func (f *flattener) loop(r *draftRule, sym symbol, from, to int32) {
	if sym.low == 0 {
		f.edge(r, from, to, label{})
	}
	before, after := f.newState(r), f.newState(r)
	f.edge(r, from, before, label{})
	f.expand(r, sym.parts[0], before, after)
	f.edge(r, after, to, label{})
	if sym.high == unbounded {
		f.expand(r, sym.parts[1], after, before)
	}
}

func (f *flattener) list(r *draftRule, sym symbol) {
	if !counts(sym) {
		start, end := f.newState(r), f.newState(r)
		r.states[end].accept = true
		f.loop(r, sym, start, end)
		return
	}
	item, ok := f.single(sym.parts[0])
	if !ok || sym.high == 0 {
		if !ok && sym.low > 0 {
			f.newState(r) // a state that accepts nothing
			return
		}
		start := f.newState(r)
		r.states[start].accept = true
		return
	}
	sep, ok := f.single(sym.parts[1])
	high := sym.high
	if !ok {
		if high = 1; sym.low > 1 {
			f.newState(r)
			return
		}
	}
	f.states += 3
	*r = draftRule{list: true, item: item, sep: sep, low: sym.low, high: high}
}
