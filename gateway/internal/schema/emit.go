package schema

import (
	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// symbolCache is what many symbols are made of.
type symbolCache struct {
	ready                                bool
	openArray, closeArray, emptyArray    grammar.Symbol
	openObject, closeObject, emptyObject grammar.Symbol
	comma, none                          grammar.Symbol
	terminals                            map[grammar.Expr]grammar.Symbol
	scalars                              map[schemas]grammar.Symbol
	anyNumber, digit, digits             grammar.Expr
}

// space is the white space of the texts.
type space struct {
	between grammar.Expr // at each place where JSON allows white space
}

// defaultSpace is nothing, one space, or a newline with an indentation.
func defaultSpace(b *grammar.Builder) grammar.Expr {
	indent := b.Repeat(b.Class(grammar.RuneRange{Lo: ' ', Hi: ' '}, grammar.RuneRange{Lo: '\t', Hi: '\t'}), 0, spaceWidth)
	return b.Union(b.Empty(), b.Literal(" "), b.Concat(b.Literal("\n"), indent))
}

func (c *compiler) prepare() {
	if c.symbols.ready {
		return
	}
	b := c.b
	ws := c.space.between
	c.symbols = symbolCache{
		ready:       true,
		openArray:   b.Terminal(b.Concat(b.Literal("["), ws)),
		emptyArray:  b.Terminal(b.Literal("]")),
		closeArray:  b.Terminal(b.Concat(ws, b.Literal("]"))),
		openObject:  b.Terminal(b.Concat(b.Literal("{"), ws)),
		emptyObject: b.Terminal(b.Literal("}")),
		closeObject: b.Terminal(b.Concat(ws, b.Literal("}"))),
		comma:       b.Terminal(b.Concat(ws, b.Literal(","), ws)),
		none:        b.Seq(),
		terminals:   map[grammar.Expr]grammar.Symbol{},
		scalars:     map[schemas]grammar.Symbol{},
		digit:       b.Class(grammar.RuneRange{Lo: '0', Hi: '9'}),
	}
	c.symbols.digits = b.Repeat(c.symbols.digit, 1, numberDigits)
	c.symbols.anyNumber = b.Concat(c.decimalTexts(true), b.Union(b.Empty(), b.Concat(
		b.Class(grammar.RuneRange{Lo: 'e', Hi: 'e'}, grammar.RuneRange{Lo: 'E', Hi: 'E'}),
		b.Union(b.Empty(), b.Literal("+"), b.Literal("-")), c.symbols.digits)))
}

func (c *compiler) terminal(e grammar.Expr) grammar.Symbol {
	if s, ok := c.symbols.terminals[e]; ok {
		return s
	}
	s := c.b.Terminal(e)
	c.symbols.terminals[e] = s
	return s
}

// symbol is the texts of the values that satisfy a set of schemas. It may be used before it is made: finish makes what is left.
func (c *compiler) symbol(s schemas) grammar.Symbol {
	c.prepare()
	if rule, ok := c.rules[s]; ok {
		return c.b.Ref(rule)
	}
	if scalar, ok := c.symbols.scalars[s]; ok {
		return scalar
	}
	if s == nothingAtAll {
		return c.b.Choice()
	}
	if scalar, ok := c.scalar(s); ok {
		c.symbols.scalars[s] = scalar
		return scalar
	}
	rule := c.b.NewRule("")
	c.rules[s] = rule
	c.queue = append(c.queue, s)
	return c.b.Ref(rule)
}

// scalar is the terminal of a set that has neither arrays nor objects, or has only listed values.
func (c *compiler) scalar(s schemas) (grammar.Symbol, bool) {
	if values, ok := c.listed(s); ok {
		list := make([]grammar.Expr, 0, len(values))
		texts := make([]grammar.Expr, 0, len(values))
		for _, v := range values {
			if v.Kind == jsonvalue.String {
				texts = append(texts, c.b.Literal(v.Text))
			} else {
				list = append(list, c.valueText(v))
			}
		}
		if len(texts) > 0 {
			list = append(list, c.b.JSONString(c.b.Union(texts...)))
		}
		return c.terminal(c.b.Union(list...)), true
	}
	if c.stopped() {
		return c.b.Choice(), true
	}
	shape := c.shape(s)
	if len(shape.arrays) > 0 || len(shape.objects) > 0 {
		return 0, false
	}
	numbers := c.numbers(shape.numbers)
	c.report(&shape)
	return c.b.Choice(append(numbers, c.terminal(c.simple(&shape)))...), true
}

// listed are the values of a set that are listed somewhere, each checked against the whole set.
func (c *compiler) listed(s schemas) ([]*jsonvalue.Value, bool) {
	for _, l := range c.sets[s] {
		if l.negated {
			continue
		}
		found := c.candidates(l.schema)
		if !found.ok {
			continue
		}
		values := found.values
		if found.exact && len(c.sets[s]) == 1 {
			return values, true
		}
		var out []*jsonvalue.Value
		seen := make(map[string]bool, len(values))
		for _, v := range values {
			if len(values) > 1 {
				text := jsonvalue.Canonical(v)
				if seen[text] {
					continue
				}
				seen[text] = true
			}
			for _, m := range c.sets[s] {
				yes, ok := c.checker.satisfies(m.schema, v)
				if !ok {
					return nil, false
				}
				if yes == m.negated {
					v = nil
					break
				}
			}
			if v != nil {
				out = append(out, v)
			}
		}
		return out, true
	}
	return nil, false
}

// listsOnly tells whether a schema says nothing but which values there are.
func (n *node) listsOnly() bool {
	if !n.listed || len(n.references) > 0 {
		return false
	}
	rest := *n
	rest.listed = false
	return rest.bare()
}

// simple is the texts of the nulls, booleans and strings of a shape.
func (c *compiler) simple(s *shape) grammar.Expr {
	var list []grammar.Expr
	if s.null {
		list = append(list, c.b.Literal("null"))
	}
	if s.booleans&1 != 0 {
		list = append(list, c.b.Literal("false"))
	}
	if s.booleans&2 != 0 {
		list = append(list, c.b.Literal("true"))
	}
	if s.strings != c.b.Nothing() {
		c.decided(s.strings)
		list = append(list, c.b.JSONString(s.strings))
	}
	return c.b.Union(list...)
}

// valueText is the texts of one value: its keys in the order in which it has them.
func (c *compiler) valueText(v *jsonvalue.Value) grammar.Expr {
	b, ws := c.b, c.space.between
	parts := []grammar.Expr{}
	between := func(i int) {
		if i > 0 {
			parts = append(parts, ws, b.Literal(","))
		}
		parts = append(parts, ws)
	}
	switch v.Kind {
	case jsonvalue.Null:
		return b.Literal("null")
	case jsonvalue.Boolean:
		if v.Boolean {
			return b.Literal("true")
		}
		return b.Literal("false")
	case jsonvalue.Number:
		return c.numberText(jsonvalue.ParseDecimal(v.Text))
	case jsonvalue.String:
		return b.JSONString(b.Literal(v.Text))
	case jsonvalue.Array:
		parts = append(parts, b.Literal("["))
		for i, item := range v.Items {
			between(i)
			parts = append(parts, c.valueText(item))
		}
		parts = append(parts, ws, b.Literal("]"))
	case jsonvalue.Object:
		parts = append(parts, b.Literal("{"))
		for i, m := range v.Members {
			between(i)
			parts = append(parts, b.JSONString(b.Literal(m.Key)), ws, b.Literal(":"), ws, c.valueText(m.Value))
		}
		parts = append(parts, ws, b.Literal("}"))
	}
	return b.Concat(parts...)
}

// finish makes the rules that are used and not made.
func (c *compiler) finish() {
	for len(c.queue) > 0 && !c.stopped() {
		s := c.queue[0]
		c.queue = c.queue[1:]
		c.b.Define(c.rules[s], c.body(s))
	}
}

// body is what the rule of a set of schemas says.
func (c *compiler) body(s schemas) grammar.Symbol {
	shape := c.shape(s)
	if c.stopped() {
		return c.b.Choice()
	}
	var list []grammar.Symbol
	if simple := c.simple(&shape); simple != c.b.Nothing() {
		list = append(list, c.terminal(simple))
	}
	list = append(list, c.numbers(shape.numbers)...)
	for i := range shape.arrays {
		list = append(list, c.array(&shape.arrays[i]))
	}
	for i := range shape.objects {
		list = append(list, c.object(&shape.objects[i], c.jsonForm()))
	}
	c.report(&shape)
	return c.b.Choice(list...)
}

func (c *compiler) report(s *shape) {
	for _, l := range s.losses {
		c.relax(l.Relaxed)
	}
}

// relax notes a keyword that is not in the mask.
func (c *compiler) relax(r Relaxed) {
	for _, known := range c.relaxed {
		if known.Pointer == r.Pointer && known.Keyword == r.Keyword {
			return
		}
	}
	c.relaxed = append(c.relaxed, r)
}

// places counts the states of objects and arrays.
func (c *compiler) places(n int) {
	if c.states += n; c.states > maxAllStates {
		c.exceed("places in objects and arrays", c.states, maxAllStates)
	}
}
