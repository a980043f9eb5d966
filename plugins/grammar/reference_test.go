package grammar

import (
	"math/rand/v2"
	"slices"
	"strconv"
)

// The reference says what languages are from their definitions, by sets of pairs of places of a text: no derivatives, no automata, none of the constructors'
// laws.

// pairs has, for places i ≤ j of a text of fewer than 64 characters, whether text[i:j] is in a language: bit j of the i-th number.
type pairs []uint64

func newPairs(n int, f func(i, j int) bool) pairs {
	p := make(pairs, n+1)
	for i := range p {
		for j := i; j <= n; j++ {
			if f(i, j) {
				p[i] |= 1 << j
			}
		}
	}
	return p
}

func (p pairs) has(i, j int) bool { return p[i]>>j&1 != 0 }

func (p pairs) then(q pairs) pairs {
	out := make(pairs, len(p))
	for i, ends := range p {
		for k := i; k < len(p); k++ {
			if ends>>k&1 != 0 {
				out[i] |= q[k]
			}
		}
	}
	return out
}

func (p pairs) or(q pairs) pairs {
	out := make(pairs, len(p))
	for i := range p {
		out[i] = p[i] | q[i]
	}
	return out
}

func (p pairs) equal(q pairs) bool { return slices.Equal(p, q) }

func identity(n int) pairs { return newPairs(n, func(i, j int) bool { return i == j }) }

// times is from low up to high of item with sep between.
func times(n int, item, sep pairs, low, high int) pairs {
	out := make(pairs, n+1)
	if low == 0 {
		out = identity(n)
	}
	run := item
	// Of many items most are empty, so that the sets repeat themselves.
	for k := 1; (high < 0 || k <= high) && k <= low+3*n+3; k++ {
		if k >= low {
			out = out.or(run)
		}
		run = run.then(sep).then(item)
	}
	return out
}

// expr is an expression as a test writes it.
type expr struct {
	op        string
	list      []*expr
	text      string
	ranges    []RuneRange
	low, high int
}

func (e *expr) build(b *Builder) Expr {
	var list []Expr
	for _, x := range e.list {
		list = append(list, x.build(b))
	}
	switch e.op {
	case "literal":
		return b.Literal(e.text)
	case "class":
		return b.Class(e.ranges...)
	case "concat":
		return b.Concat(list...)
	case "union":
		return b.Union(list...)
	case "intersect":
		return b.Intersect(list...)
	case "not":
		return b.Not(list[0])
	case "repeat":
		return b.Repeat(list[0], e.low, e.high)
	case "string":
		return b.JSONString(list[0])
	case "any":
		return b.Repeat(b.AnyChar(), e.low, e.high)
	}
	panic(e.op)
}

func (e *expr) pairs(text []rune) pairs {
	n := len(text)
	switch e.op {
	case "literal":
		return newPairs(n, func(i, j int) bool { return string(text[i:j]) == e.text })
	case "class":
		return newPairs(n, func(i, j int) bool {
			if j != i+1 {
				return false
			}
			for _, r := range e.ranges {
				if r.Lo <= text[i] && text[i] <= r.Hi {
					return true
				}
			}
			return false
		})
	case "concat":
		out := identity(n)
		for _, x := range e.list {
			out = out.then(x.pairs(text))
		}
		return out
	case "union":
		out := newPairs(n, func(i, j int) bool { return false })
		for _, x := range e.list {
			out = out.or(x.pairs(text))
		}
		return out
	case "intersect":
		out := newPairs(n, func(i, j int) bool { return true })
		for _, x := range e.list {
			p := x.pairs(text)
			old := out
			out = newPairs(n, func(i, j int) bool { return old.has(i, j) && p.has(i, j) })
		}
		return out
	case "not":
		p := e.list[0].pairs(text)
		return newPairs(n, func(i, j int) bool { return !p.has(i, j) })
	case "repeat":
		return times(n, e.list[0].pairs(text), identity(n), e.low, e.high)
	case "any":
		return newPairs(n, func(i, j int) bool { return j-i >= e.low && (e.high < 0 || j-i <= e.high) })
	case "string":
		return newPairs(n, func(i, j int) bool {
			value, ok := referenceUnquote(text[i:j])
			return ok && e.list[0].pairs(value).has(0, len(value))
		})
	}
	panic(e.op)
}

func (e *expr) matches(text string) bool {
	r := []rune(text)
	return e.pairs(r).has(0, len(r))
}

// referenceUnquote reads a JSON string as this package lets one be written.
func referenceUnquote(s []rune) ([]rune, bool) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return nil, false
	}
	s = s[1 : len(s)-1]
	out := []rune{}
	for len(s) > 0 {
		switch {
		case s[0] == '"' || s[0] < 0x20:
			return nil, false
		case s[0] != '\\':
			out = append(out, s[0])
			s = s[1:]
		case len(s) == 1:
			return nil, false
		case s[1] == 'u':
			if len(s) < 6 {
				return nil, false
			}
			v, err := strconv.ParseUint(string(s[2:6]), 16, 16)
			if err != nil || v >= 0x20 && v != 0x7f {
				return nil, false
			}
			out = append(out, rune(v))
			s = s[6:]
		default:
			v, ok := shortEscapes[s[1]]
			if !ok {
				return nil, false
			}
			out = append(out, v)
			s = s[2:]
		}
	}
	return out, true
}

// randomExpr makes an expression over few characters.
func randomExpr(r *rand.Rand, depth int, letters []string) *expr {
	letter := func() string { return letters[r.IntN(len(letters))] }
	if depth == 0 {
		switch r.IntN(6) {
		case 0:
			return &expr{op: "literal", text: letter() + letter()}
		case 4:
			return &expr{op: "any", low: r.IntN(3) / 2, high: []int{-1, 1, 3, 30}[r.IntN(4)]}
		case 1:
			return &expr{op: "class", ranges: []RuneRange{{0, 'a'}, {'c', maxRune}}}
		case 2:
			a := []rune(letter())[0]
			b := []rune(letter())[0]
			return &expr{op: "class", ranges: []RuneRange{{a, a}, {b, b}}}
		case 3:
			return &expr{op: "literal"}
		}
		return &expr{op: "literal", text: letter()}
	}
	list := func() []*expr {
		var out []*expr
		for range 1 + r.IntN(3) {
			out = append(out, randomExpr(r, depth-1, letters))
		}
		return out
	}
	switch r.IntN(9) {
	case 0, 1:
		return &expr{op: "concat", list: list()}
	case 2, 3:
		return &expr{op: "union", list: list()}
	case 4:
		return &expr{op: "intersect", list: list()}
	case 5:
		return &expr{op: "not", list: list()[:1]}
	case 6, 7:
		e := &expr{op: "repeat", list: list()[:1], low: r.IntN(3), high: -1}
		if r.IntN(2) == 0 {
			e.high = e.low + r.IntN(4)
		}
		return e
	}
	return &expr{op: "string", list: list()[:1]}
}

// symbolTree is a symbol as a test writes it.
type symbolTree struct {
	op        string
	list      []*symbolTree
	expr      *expr
	rule      int
	low, high int
	text      string
	states    int
	accept    []int
	edges     [][2]int // of a network; list has their symbols
}

func (s *symbolTree) build(b *Builder, rules []Rule) Symbol {
	var list []Symbol
	for _, x := range s.list {
		list = append(list, x.build(b, rules))
	}
	switch s.op {
	case "terminal":
		return b.Terminal(s.expr.build(b))
	case "tag":
		return b.Tag(s.text)
	case "seq":
		return b.Seq(list...)
	case "choice":
		return b.Choice(list...)
	case "list":
		return b.List(list[0], list[1], s.low, s.high)
	case "ref":
		return b.Ref(rules[s.rule])
	case "network":
		var edges []Edge
		for i, e := range s.edges {
			edges = append(edges, Edge{e[0], e[1], list[i]})
		}
		return b.Network(s.states, 0, s.accept, edges)
	}
	panic(s.op)
}

// tagRune stands for a special token in the texts of the reference. Nothing that a test asks for makes the character itself likely.
const tagRune = '\U0010ffff'

func (s *symbolTree) pairs(text []rune, rules []pairs) pairs {
	n := len(text)
	none := newPairs(n, func(i, j int) bool { return false })
	switch s.op {
	case "terminal":
		p := s.expr.pairs(text)
		return newPairs(n, func(i, j int) bool {
			for _, r := range text[i:j] {
				if r == tagRune {
					return false
				}
			}
			return p.has(i, j)
		})
	case "tag":
		return newPairs(n, func(i, j int) bool { return j == i+1 && text[i] == tagRune })
	case "seq":
		out := identity(n)
		for _, x := range s.list {
			out = out.then(x.pairs(text, rules))
		}
		return out
	case "choice":
		out := none
		for _, x := range s.list {
			out = out.or(x.pairs(text, rules))
		}
		return out
	case "list":
		return times(n, s.list[0].pairs(text, rules), s.list[1].pairs(text, rules), s.low, s.high)
	case "ref":
		return rules[s.rule]
	case "network":
		// from[i] are the texts that lead from the start to state i.
		from := make([]pairs, s.states)
		for i := range from {
			from[i] = none
		}
		from[0] = identity(n)
		for again := true; again; {
			again = false
			for i, e := range s.edges {
				next := from[e[1]].or(from[e[0]].then(s.list[i].pairs(text, rules)))
				if !next.equal(from[e[1]]) {
					from[e[1]], again = next, true
				}
			}
		}
		out := none
		for _, a := range s.accept {
			out = out.or(from[a])
		}
		return out
	}
	panic(s.op)
}

// grammarTree is a grammar as a test writes it; the first rule is its root.
type grammarTree []*symbolTree

func (g grammarTree) build(b *Builder) (*Grammar, error) {
	rules := make([]Rule, len(g))
	for i := range rules {
		rules[i] = b.NewRule(strconv.Itoa(i))
	}
	for i, s := range g {
		b.Define(rules[i], s.build(b, rules))
	}
	return b.Grammar(b.Ref(rules[0]))
}

func (g grammarTree) matches(text string) bool {
	r := []rune(text)
	n := len(r)
	rules := make([]pairs, len(g))
	for i := range rules {
		rules[i] = newPairs(n, func(i, j int) bool { return false })
	}
	for again := true; again; {
		again = false
		for i, s := range g {
			if next := s.pairs(r, rules); !next.equal(rules[i]) {
				rules[i], again = next, true
			}
		}
	}
	return rules[0].has(0, n)
}

func randomSymbol(r *rand.Rand, depth, rules int, letters []string) *symbolTree {
	if depth == 0 {
		switch r.IntN(8) {
		case 0:
			return &symbolTree{op: "tag", text: "<t>"}
		case 1, 2:
			return &symbolTree{op: "ref", rule: r.IntN(rules)}
		case 3:
			return &symbolTree{op: "seq"}
		}
		return &symbolTree{op: "terminal", expr: randomExpr(r, r.IntN(3), letters)}
	}
	list := func(n int) []*symbolTree {
		var out []*symbolTree
		for range n {
			out = append(out, randomSymbol(r, r.IntN(depth), rules, letters))
		}
		return out
	}
	switch r.IntN(6) {
	case 0, 1:
		return &symbolTree{op: "seq", list: list(1 + r.IntN(3))}
	case 2:
		return &symbolTree{op: "choice", list: list(1 + r.IntN(3))}
	case 3, 4:
		s := &symbolTree{op: "list", list: list(2), low: r.IntN(3), high: -1}
		if r.IntN(2) == 0 {
			s.list[1] = &symbolTree{op: "seq"}
		}
		if r.IntN(2) == 0 {
			s.high = s.low + r.IntN(3)
		}
		return s
	}
	s := &symbolTree{op: "network", states: 2 + r.IntN(3)}
	for range 1 + r.IntN(5) {
		s.edges = append(s.edges, [2]int{r.IntN(s.states), r.IntN(s.states)})
	}
	s.list = list(len(s.edges))
	s.accept = append(s.accept, r.IntN(s.states))
	return s
}

func randomGrammar(r *rand.Rand, letters []string) grammarTree {
	g := make(grammarTree, 1+r.IntN(3))
	for i := range g {
		g[i] = randomSymbol(r, 1+r.IntN(3), len(g), letters)
	}
	return g
}

// allTexts lists the texts of up to n letters.
func allTexts(letters []string, n int) []string {
	out := []string{""}
	last := out
	for range n {
		var next []string
		for _, t := range last {
			for _, l := range letters {
				next = append(next, t+l)
			}
		}
		out = append(out, next...)
		last = next
	}
	return out
}
