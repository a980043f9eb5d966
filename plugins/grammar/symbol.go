package grammar

import "fmt"

// Symbol is a context-free language: a set of texts, in which single special tokens (see Tag) may stand too. It belongs to the Builder that made it.
type Symbol int32

// Rule is a name for a Symbol, through which symbols may be recursive in any way; left recursion and loops without text are no error.
type Rule int32

type symbolKind uint8

const (
	symbolTerminal symbolKind = iota // a = term
	symbolTag                        // a = its text's term
	symbolSeq                        // parts
	symbolChoice                     // parts
	symbolList                       // parts[0] with parts[1] between, low to high times
	symbolRef                        // a = rule
	symbolNetwork                    // a = index in networks
)

// symbol is small, because there are very many.
type symbol struct {
	kind      symbolKind
	a         int32
	low, high int32
	parts     []Symbol
}

type network struct {
	start, states int32
	accept        []int32
	edges         []Edge
}

type ruleDefinition struct {
	name    string
	defined bool
	symbol  Symbol
}

type symbolTable struct {
	list     []symbol
	networks []network
	rules    []ruleDefinition
	count    int // edges, for Limits.States
}

// Edge leads from one state of a Network to another by a text of Symbol. Seq() is an edge without text.
type Edge struct {
	From, To int
	Symbol   Symbol
}

func (b *Builder) addSymbol(s symbol, size int) Symbol {
	if b.symbols.count += size; b.symbols.count > b.limits.States {
		b.fail(&LimitError{"states", b.symbols.count, b.limits.States})
	}
	if b.err != nil {
		return 0
	}
	b.symbols.list = append(b.symbols.list, s)
	return Symbol(len(b.symbols.list) - 1)
}

func (b *Builder) checkSymbols(list ...Symbol) bool {
	if b.err != nil {
		return false
	}
	for _, s := range list {
		if s < 0 || int(s) >= len(b.symbols.list) {
			b.fail(fmt.Errorf("symbol %d is not of this builder, which has made %d", s, len(b.symbols.list)))
			return false
		}
	}
	return true
}

// Terminal is the texts of an expression.
func (b *Builder) Terminal(e Expr) Symbol {
	in, ok := b.operands(e)
	if !ok {
		return 0
	}
	return b.addSymbol(symbol{kind: symbolTerminal, a: int32(in[0])}, 1)
}

// Text is one text: Terminal(Literal(text)).
func (b *Builder) Text(text string) Symbol { return b.Terminal(b.Literal(text)) }

// Tag is a text that is one special token of the vocabulary, such as <tool_call>. Where the vocabulary has a special token with this very text, only that
// token stands for it; where it has none, the text does, as ordinary text. Special tokens stand for nothing else.
func (b *Builder) Tag(text string) Symbol {
	e := b.Literal(text)
	if b.err != nil {
		return 0
	}
	if text == "" {
		b.fail(fmt.Errorf("a tag without text"))
		return 0
	}
	return b.addSymbol(symbol{kind: symbolTag, a: int32(e)}, 1)
}

// Seq is one text of each in order. Of none it is the empty text.
func (b *Builder) Seq(list ...Symbol) Symbol {
	if !b.checkSymbols(list...) {
		return 0
	}
	if len(list) == 1 {
		return list[0]
	}
	return b.addSymbol(symbol{kind: symbolSeq, parts: append([]Symbol(nil), list...)}, len(list)+1)
}

// Choice is the texts of any. Of none it is no text.
func (b *Builder) Choice(list ...Symbol) Symbol {
	if !b.checkSymbols(list...) {
		return 0
	}
	if len(list) == 1 {
		return list[0]
	}
	return b.addSymbol(symbol{kind: symbolChoice, parts: append([]Symbol(nil), list...)}, len(list)+1)
}

// Optional is a text of s or the empty text.
func (b *Builder) Optional(s Symbol) Symbol { return b.Choice(s, b.Seq()) }

// List is from low up to high texts of item, with a text of separator between each two of them; high < 0 is any number from low on. Seq() as a separator is
// none. It is kept as a counter: the price does not grow with the counts.
func (b *Builder) List(item, separator Symbol, low, high int) Symbol {
	if !b.checkSymbols(item, separator) || !b.checkCounts(low, high) {
		return 0
	}
	if high >= 0 && low > high {
		return b.Choice()
	}
	return b.addSymbol(symbol{kind: symbolList, parts: []Symbol{item, separator}, low: int32(low), high: int32(max(high, unbounded))}, 4)
}

// NewRule gives a rule to be defined. The name is for errors only.
func (b *Builder) NewRule(name string) Rule {
	if len(b.symbols.rules) >= b.limits.Rules {
		b.fail(&LimitError{"rules", len(b.symbols.rules) + 1, b.limits.Rules})
	}
	if b.err != nil {
		return 0
	}
	b.symbols.rules = append(b.symbols.rules, ruleDefinition{name: name})
	return Rule(len(b.symbols.rules) - 1)
}

// Define says what a rule is, once.
func (b *Builder) Define(r Rule, s Symbol) {
	if !b.checkSymbols(s) || !b.checkRule(r) {
		return
	}
	d := &b.symbols.rules[r]
	if d.defined {
		b.fail(fmt.Errorf("rule %q is defined twice", d.name))
		return
	}
	d.defined, d.symbol = true, s
}

// Ref is the texts of a rule, which may be defined later.
func (b *Builder) Ref(r Rule) Symbol {
	if !b.checkRule(r) {
		return 0
	}
	return b.addSymbol(symbol{kind: symbolRef, a: int32(r)}, 1)
}

func (b *Builder) checkRule(r Rule) bool {
	if b.err == nil && (r < 0 || int(r) >= len(b.symbols.rules)) {
		b.fail(fmt.Errorf("rule %d is not of this builder, which has made %d", r, len(b.symbols.rules)))
	}
	return b.err == nil
}

// Network is the texts along the ways from the state start to one of accept, over edges each of which is a symbol. States are the numbers below states. What
// it costs is linear in states and edges: it is for languages that rules would have to spell out, such as the members of an object of which some may be left
// out and others may not.
func (b *Builder) Network(states, start int, accept []int, edges []Edge) Symbol {
	if b.err != nil {
		return 0
	}
	if states > b.limits.States {
		b.fail(&LimitError{"states", states, b.limits.States})
		return 0
	}
	inside := func(s int) bool { return s >= 0 && s < states }
	if !inside(start) {
		b.fail(fmt.Errorf("a network of %d states starts in state %d", states, start))
		return 0
	}
	n := network{start: int32(start), states: int32(states), edges: append([]Edge(nil), edges...)}
	for _, a := range accept {
		if !inside(a) {
			b.fail(fmt.Errorf("a network of %d states accepts in state %d", states, a))
			return 0
		}
		n.accept = append(n.accept, int32(a))
	}
	for _, e := range edges {
		if !inside(e.From) || !inside(e.To) {
			b.fail(fmt.Errorf("a network of %d states has an edge from %d to %d", states, e.From, e.To))
			return 0
		}
		if !b.checkSymbols(e.Symbol) {
			return 0
		}
	}
	out := b.addSymbol(symbol{kind: symbolNetwork, a: int32(len(b.symbols.networks))}, states+len(edges))
	if b.err == nil {
		b.symbols.networks = append(b.symbols.networks, n)
	}
	return out
}
