package schema

import (
	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// network collects what Builder.Network wants.
type network struct {
	states int
	accept []int
	edges  []grammar.Edge
}

func (n *network) state() int {
	n.states++
	return n.states - 1
}

func (n *network) edge(from, to int, symbol grammar.Symbol) {
	n.edges = append(n.edges, grammar.Edge{From: from, To: to, Symbol: symbol})
}

// array is the texts of an array.
func (c *compiler) array(s *arraySet) grammar.Symbol {
	if s.unique && s.maximum != 0 && s.maximum != 1 {
		if symbol, ok := c.distinctItems(s); ok {
			return symbol
		}
		c.relax(s.origin)
	}
	if len(s.counts) > 0 {
		if symbol, ok := c.countedItems(s); ok {
			return symbol
		}
		for _, n := range s.counts {
			c.relax(n.origin)
		}
	}
	if len(s.prefix) == 0 {
		return c.list(s)
	}
	b, y := c.b, &c.symbols
	var n network
	end, start := n.state(), n.state()
	n.accept = []int{end}
	at := start
	last := len(s.prefix)
	if s.maximum >= 0 {
		last = min(last, s.maximum)
	}
	c.places(last)
	for i := range last + 1 {
		if i >= s.minimum {
			n.edge(at, end, c.closing(i))
		}
		if i == last {
			break
		}
		next := n.state()
		n.edge(at, next, c.item(i, s.prefix[i]))
		at = next
	}
	if last == len(s.prefix) && s.rest != nothingAtAll && (s.maximum < 0 || s.maximum > last) {
		high := -1
		if s.maximum >= 0 {
			high = s.maximum - last
		}
		n.edge(at, end, b.Seq(b.List(b.Seq(y.comma, c.symbol(s.rest)), y.none, max(s.minimum-last, 1), high), y.closeArray))
	}
	return b.Seq(y.openArray, b.Network(n.states, start, n.accept, n.edges))
}

// closing is what ends an array of i items.
func (c *compiler) closing(i int) grammar.Symbol {
	if i == 0 {
		return c.symbols.emptyArray
	}
	return c.symbols.closeArray
}

// item is item i with the comma before it.
func (c *compiler) item(i int, s schemas) grammar.Symbol {
	if i == 0 {
		return c.symbol(s)
	}
	return c.b.Seq(c.symbols.comma, c.symbol(s))
}

// list is an array whose items are all alike.
func (c *compiler) list(s *arraySet) grammar.Symbol {
	b, y := c.b, &c.symbols
	var ways []grammar.Symbol
	if s.minimum == 0 {
		ways = append(ways, y.emptyArray)
	}
	if s.maximum != 0 && s.rest != nothingAtAll {
		ways = append(ways, b.Seq(b.List(c.symbol(s.rest), y.comma, max(s.minimum, 1), s.maximum), y.closeArray))
	}
	return b.Seq(y.openArray, b.Choice(ways...))
}

// countedItems is an array some of whose items are counted. A place is how many items there are and how many of each count.
func (c *compiler) countedItems(s *arraySet) (grammar.Symbol, bool) {
	b := c.b
	type place struct {
		items  int
		counts [3]int
	}
	if len(s.counts) > 3 {
		return 0, false
	}
	depth := max(len(s.prefix), s.minimum, s.maximum)
	before := c.cause
	defer func() { c.cause = before }()
	for _, n := range s.counts {
		c.cause = n.origin
		depth = max(depth, n.from)
		if n.maximum >= 0 && len(c.violations(n.schema)) > 1 {
			return 0, false
		}
	}
	if depth > maxStates {
		return 0, false
	}
	var n network
	end := n.state()
	n.accept = []int{end}
	states := map[place]int{{}: n.state()}
	queue := []place{{}}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		from := states[at]
		done := at.items >= s.minimum
		for i, count := range s.counts {
			done = done && at.counts[i] >= count.minimum
		}
		if done {
			n.edge(from, end, c.closing(at.items))
		}
		if s.maximum >= 0 && at.items >= s.maximum {
			continue
		}
		// Each count takes the item or does not.
		for subset := range 1 << len(s.counts) {
			next, value := at, s.at(at.items)
			next.items = min(at.items+1, max(depth, 1))
			possible := true
			for i, count := range s.counts {
				takes := subset&(1<<i) != 0
				limited := count.maximum >= 0
				switch {
				case takes && (at.items < count.from || limited && at.counts[i] >= count.maximum):
					possible = false
				case takes && !limited && at.counts[i] >= count.minimum: // enough, so it is not counted any more
					possible = false
				case takes:
					value = c.and(value, count.schema)
					next.counts[i]++
				case limited && at.items >= count.from:
					violations := c.violations(count.schema)
					if possible = possible && len(violations) == 1; possible {
						value = c.and(value, violations[0])
					}
				}
			}
			if !possible || c.hopeless(value) {
				continue
			}
			to, ok := states[next]
			if !ok {
				if n.states >= maxStates {
					return 0, false
				}
				to = n.state()
				states[next] = to
				queue = append(queue, next)
			}
			n.edge(from, to, c.item(at.items, value))
		}
	}
	c.places(n.states)
	return b.Seq(c.symbols.openArray, b.Network(n.states, 1, n.accept, n.edges)), true
}

// distinctItems is an array no two of whose items are equal, where there are few values that they may have.
func (c *compiler) distinctItems(s *arraySet) (grammar.Symbol, bool) {
	if len(s.counts) > 0 {
		return 0, false
	}
	values, ok := c.fewValues(s.rest)
	index := map[string]int{}
	for i, v := range values {
		index[jsonvalue.Canonical(v)] = i
	}
	allowed := make([][]bool, len(s.prefix)+1)
	for i := range allowed {
		if i < len(s.prefix) {
			some, found := c.fewValues(s.prefix[i])
			ok = ok && found
			for _, v := range some {
				text := jsonvalue.Canonical(v)
				if _, known := index[text]; !known {
					index[text] = len(values)
					values = append(values, v)
				}
				allowed[i] = mark(allowed[i], index[text])
			}
			continue
		}
		rest, _ := c.fewValues(s.rest)
		for _, v := range rest {
			allowed[i] = mark(allowed[i], index[jsonvalue.Canonical(v)])
		}
	}
	if ok && len(values) < s.minimum {
		return c.b.Choice(), true
	}
	if !ok || len(values) > maxUniqueValues {
		return 0, false
	}
	texts := make([]grammar.Symbol, len(values))
	for i, v := range values {
		texts[i] = c.terminal(c.valueText(v))
	}
	var n network
	end := n.state()
	n.accept = []int{end}
	states := map[uint64]int{0: n.state()}
	queue := []uint64{0}
	used := []int{0}
	for len(queue) > 0 {
		at, items := queue[0], used[0]
		queue, used = queue[1:], used[1:]
		if items >= s.minimum {
			n.edge(states[at], end, c.closing(items))
		}
		if s.maximum >= 0 && items >= s.maximum {
			continue
		}
		for i := range values {
			next := at | 1<<i
			if may := allowed[min(items, len(s.prefix))]; next == at || i >= len(may) || !may[i] {
				continue
			}
			to, known := states[next]
			if !known {
				if n.states >= maxStates {
					return 0, false
				}
				to = n.state()
				states[next] = to
				queue, used = append(queue, next), append(used, items+1)
			}
			symbol := texts[i]
			if items > 0 {
				symbol = c.b.Seq(c.symbols.comma, symbol)
			}
			n.edge(states[at], to, symbol)
		}
	}
	c.places(n.states)
	return c.b.Seq(c.symbols.openArray, c.b.Network(n.states, 1, n.accept, n.edges)), true
}

func mark(list []bool, i int) []bool {
	for len(list) <= i {
		list = append(list, false)
	}
	list[i] = true
	return list
}

// fewValues are all values that satisfy a set of schemas, where they are listed.
func (c *compiler) fewValues(s schemas) ([]*jsonvalue.Value, bool) {
	if s == nothingAtAll {
		return nil, true
	}
	if values, ok := c.listed(s); ok {
		return values, true
	}
	shape := c.shape(s)
	if c.stopped() || len(shape.losses)+len(shape.arrays)+len(shape.objects) > 0 || shape.strings != c.b.Nothing() {
		return nil, false
	}
	var of kinds
	if shape.null {
		of |= only(jsonvalue.Null)
	}
	if shape.booleans != 0 {
		of |= only(jsonvalue.Boolean)
	}
	values := simpleValues(of)
	if shape.booleans == 1 || shape.booleans == 2 {
		values = values[:len(values)-2]
		values = append(values, &jsonvalue.Value{Kind: jsonvalue.Boolean, Boolean: shape.booleans == 2})
	}
	for _, set := range shape.numbers {
		if !set.listed {
			return nil, false
		}
		for _, d := range set.values {
			values = append(values, &jsonvalue.Value{Kind: jsonvalue.Number, Text: d.String()})
		}
	}
	return values, true
}
