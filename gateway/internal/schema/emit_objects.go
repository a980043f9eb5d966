package schema

import (
	"math/bits"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// objectPlace is how far an object's text has come: which listed properties are past, which others are there, how many members there are, and which
// demands and keys have been met.
// Members are counted as far as it matters, at least whether there are any.
type objectPlace struct {
	past    int // of each group how many are past, as one number
	named   uint32
	members int
	bits    uint32
}

// objectWriter makes the network of one object.
type objectWriter struct {
	*compiler
	set          *objectSet
	properties   []property
	groups       [][]property // listed properties: those of one schema in its order, those of different schemas in any
	named        []property   // properties that no schema lists: in any order, behind the listed
	ways         int          // values of objectPlace.past
	tail         []keyClass
	counted      bool // members are counted beyond the first
	demands      []demand
	dependencies []keyDependency
	keys         map[string]int // bit of each key of dependencies
	minimum      int
	maximum      int
	form         objectForm

	network network
	states  map[objectPlace]int
	queue   []objectPlace
	end     int
}

// objectForm is how the members of an object are written.
type objectForm struct {
	open, close, empty grammar.Symbol
	member             func(keys grammar.Expr, comma bool, value schemas) grammar.Symbol
}

// jsonForm is that of JSON.
func (c *compiler) jsonForm() objectForm {
	return objectForm{c.symbols.openObject, c.symbols.closeObject, c.symbols.emptyObject, func(keys grammar.Expr, comma bool, value schemas) grammar.Symbol {
		return c.b.Seq(c.key(keys, comma), c.symbol(value))
	}}
}

// object is the texts of an object: the properties in order, then the other members in any.
func (c *compiler) object(s *objectSet, form objectForm) grammar.Symbol {
	w := &objectWriter{compiler: c, set: s, form: form, demands: distinct(s.demands, demand.key), dependencies: s.dependencies, minimum: s.minimum,
		maximum: s.maximum}
	names := make([]grammar.Expr, 0, len(s.properties))
	required := 0
	for _, p := range s.properties {
		names = append(names, c.b.Literal(p.name))
		if c.hopeless(p.value) {
			if p.required {
				return c.b.Choice()
			}
			continue
		}
		if p.required {
			required++
		}
		w.properties = append(w.properties, p)
	}
	others := c.b.Not(c.b.Union(names...))
	for _, class := range s.classes {
		if c.hopeless(class.value) {
			continue
		}
		keys := class.keys
		if len(names) > 0 {
			keys = c.b.Intersect(keys, others)
		}
		if !c.nothing(keys) {
			w.tail = append(w.tail, keyClass{keys, class.value})
		}
	}
	if w.minimum <= required {
		w.minimum = 0
	}
	w.nameFew()
	w.repeats(required)
	if w.maximum >= len(w.properties) && len(w.tail) == 0 {
		w.maximum = -1
	}
	w.counted = w.minimum > 1 || w.maximum >= 0
	w.group()
	if symbol, ok := w.write(); ok {
		return symbol
	}
	if w.counted {
		c.relax(s.origin)
		w.minimum, w.maximum, w.counted = min(w.minimum, 1), -1, false
		if symbol, ok := w.write(); ok {
			return symbol
		}
	}
	for _, d := range w.dependencies {
		c.relax(d.origin)
	}
	for _, d := range w.demands {
		c.relax(d.origin)
	}
	w.dependencies, w.demands = nil, nil
	symbol, _ := w.write()
	return symbol
}

// nameFew makes properties of the keys that no schema names where there are only a few, if it matters that none of them stands twice.
func (w *objectWriter) nameFew() {
	if len(w.demands) == 0 && w.minimum <= 1 {
		return
	}
	named := 0
	for _, p := range w.properties {
		if p.source == 0 {
			named++
		}
	}
	var few []property
	for _, class := range w.tail {
		texts, ok := w.b.Texts(class.keys, maxNamed)
		if !ok || named+len(few)+len(texts) > maxNamed {
			return
		}
		for _, text := range texts {
			few = append(few, property{name: text, value: class.value})
		}
	}
	w.properties, w.tail = append(w.properties, few...), nil
}

// keysRepeat is why something about keys that no schema names is not in the mask.
const keysRepeat = "keys that no schema names may stand twice, and then only the last counts"

// repeats says what the mask cannot hold to because a key that no schema names may stand twice: the last counts, so there are fewer members than were
// written, and what one of them had may be gone. A member of theirs is one more than the required at least.
func (w *objectWriter) repeats(required int) {
	if len(w.tail) == 0 {
		return
	}
	if w.minimum > required+1 {
		w.relax(Relaxed{w.set.origin.Pointer, w.set.origin.Keyword, keysRepeat})
	}
	for _, d := range w.demands {
		if d.value != anything {
			w.relax(Relaxed{d.origin.Pointer, d.origin.Keyword, keysRepeat})
		}
	}
}

// Bounds of what may stand in any order.
const (
	maxInterleavings = 128
	maxNamed         = 5
)

// group sorts the properties by who lists them. Where that would make too many places, all stand in one order.
func (w *objectWriter) group() {
	at := map[int]int{}
	for _, p := range w.properties {
		if p.source == 0 {
			w.named = append(w.named, p)
			continue
		}
		i, ok := at[p.source]
		if !ok {
			i = len(w.groups)
			at[p.source] = i
			w.groups = append(w.groups, nil)
		}
		w.groups[i] = append(w.groups[i], p)
	}
	if len(w.named) > maxNamed {
		w.groups, w.named = [][]property{w.properties}, nil
	}
	w.ways = 1
	for _, group := range w.groups {
		w.ways *= len(group) + 1
		if len(w.groups) > 1 && w.ways > maxInterleavings {
			w.groups, w.ways = [][]property{w.properties[:len(w.properties)-len(w.named)]}, len(w.properties)-len(w.named)+1
			break
		}
	}
}

// write is false where it takes too many states.
func (w *objectWriter) write() (grammar.Symbol, bool) {
	w.network = network{}
	w.end = w.network.state()
	w.network.accept = []int{w.end}
	places := 2 * min(w.ways, maxStates)
	if !w.counted {
		places = 2 * w.ways
	}
	w.states = make(map[objectPlace]int, places)
	w.network.edges = make([]grammar.Edge, 0, 2*places)
	w.queue = nil
	w.keys = map[string]int{}
	for _, d := range w.dependencies {
		for _, key := range append([]string{d.key}, d.required...) {
			if _, ok := w.keys[key]; !ok {
				w.keys[key] = len(w.demands) + len(w.keys)
			}
		}
	}
	if len(w.keys) > maxDependent || len(w.demands) > maxDemands {
		return 0, false
	}
	allowed := maxStates
	if !w.counted && len(w.keys) == 0 && len(w.demands) == 0 {
		allowed = 3*w.ways + 2<<len(w.named) + 8
	}
	start := w.place(objectPlace{})
	for len(w.queue) > 0 {
		at := w.queue[0]
		w.queue = w.queue[1:]
		if at.past < w.ways-1 {
			w.listed(at)
		} else {
			w.others(at)
		}
		if w.network.states > allowed {
			return 0, false
		}
	}
	w.compiler.places(w.network.states)
	return w.b.Seq(w.form.open, w.b.Network(w.network.states, start, w.network.accept, w.network.edges)), true
}

func (w *objectWriter) place(p objectPlace) int {
	if state, ok := w.states[p]; ok {
		return state
	}
	state := w.network.state()
	w.states[p] = state
	w.queue = append(w.queue, p)
	return state
}

// more is the number of members after one more, as far as it matters.
func (w *objectWriter) more(members int) int {
	if !w.counted {
		return 1
	}
	return min(members+1, max(w.minimum, w.maximum, 1))
}

// listed leaves the next property of each group out or takes it.
func (w *objectWriter) listed(at objectPlace) {
	unit, rest := 1, at.past
	for _, group := range w.groups {
		position := rest % (len(group) + 1)
		rest /= len(group) + 1
		if position < len(group) {
			next := at
			next.past += unit
			if !group[position].required {
				w.network.edge(w.states[at], w.place(next), w.symbols.none)
			}
			w.take(at, next, group[position])
		}
		unit *= len(group) + 1
	}
}

// take writes a property that leads from one place to another.
func (w *objectWriter) take(at, next objectPlace, p property) {
	if w.maximum >= 0 && at.members >= w.maximum {
		return
	}
	from := w.states[at]
	next.members = w.more(at.members)
	if bit, ok := w.keys[p.name]; ok {
		next.bits |= 1 << bit
	}
	keys, comma := w.b.Literal(p.name), at.members > 0
	w.network.edge(from, w.place(next), w.form.member(keys, comma, p.value))
	w.meet(at.bits, func(i int) bool { return w.contains(w.demands[i].keys, p.name) }, func(met uint32) {
		value := p.value
		for i, d := range w.demands {
			if met&(1<<i) != 0 {
				value = w.and(value, d.value)
			}
		}
		w.meeting(from, next, met, keys, comma, value)
	})
}

// meet goes through the sets of open demands that one member may meet, the empty set left out.
func (w *objectWriter) meet(met uint32, may func(demand int) bool, each func(demands uint32)) {
	var open uint32
	for i := range w.demands {
		if met&(1<<i) == 0 && may(i) {
			open |= 1 << i
		}
	}
	for subset := open; subset != 0; subset = (subset - 1) & open {
		each(subset)
	}
}

// meeting takes a member that meets demands.
func (w *objectWriter) meeting(from int, to objectPlace, met uint32, keys grammar.Expr, comma bool, value schemas) {
	if w.hopeless(value) {
		return
	}
	to.bits |= met
	w.network.edge(from, w.place(to), w.form.member(keys, comma, value))
}

// key is the text of a key with what stands around it.
func (c *compiler) key(keys grammar.Expr, comma bool) grammar.Symbol {
	b, ws := c.b, c.space.between
	c.decided(keys)
	if comma {
		return c.terminal(b.Concat(ws, b.Literal(","), ws, b.JSONString(keys), ws, b.Literal(":"), ws))
	}
	return c.terminal(b.Concat(b.JSONString(keys), ws, b.Literal(":"), ws))
}

// others writes the members behind the listed properties, and the end.
func (w *objectWriter) others(at objectPlace) {
	from := w.states[at]
	open, complete := 0, w.satisfied(at.bits)
	for i, p := range w.named {
		if at.named&(1<<i) == 0 {
			open++
			complete = complete && !p.required
			next := at
			next.named |= 1 << i
			w.take(at, next, p)
		}
	}
	met := bits.OnesCount32(at.bits&(1<<len(w.demands)-1)) == len(w.demands)
	if complete && met && at.members >= w.minimum {
		closing := w.form.close
		if at.members == 0 {
			closing = w.form.empty
		}
		w.network.edge(from, w.end, closing)
	}
	if len(w.tail) == 0 || w.maximum >= 0 && at.members >= w.maximum {
		return
	}
	if !met || open > 0 {
		w.another(at)
		return
	}
	if !complete {
		return // what is missing can come no more
	}
	low, high := max(w.minimum-at.members, 1), -1
	if w.maximum >= 0 {
		high = w.maximum - at.members
	}
	members := w.b.List(w.member(true), w.symbols.none, low, high)
	if at.members == 0 {
		if high >= 0 {
			high--
		}
		members = w.b.Seq(w.member(false), w.b.List(w.member(true), w.symbols.none, low-1, high))
	}
	w.network.edge(from, w.end, w.b.Seq(members, w.form.close))
}

func (w *objectWriter) member(comma bool) grammar.Symbol {
	ways := make([]grammar.Symbol, 0, len(w.tail))
	for _, class := range w.tail {
		ways = append(ways, w.form.member(class.keys, comma, class.value))
	}
	return w.b.Choice(ways...)
}

// another writes one more member whose key no schema names, where something else may or must still come.
func (w *objectWriter) another(at objectPlace) {
	from := w.states[at]
	to := at
	to.members = w.more(at.members)
	for _, class := range w.tail {
		w.network.edge(from, w.place(to), w.form.member(class.keys, at.members > 0, class.value))
		w.meet(at.bits, func(int) bool { return true }, func(met uint32) {
			keys, value := class.keys, class.value
			for i, d := range w.demands {
				if met&(1<<i) != 0 {
					keys, value = w.both(keys, d.keys), w.and(value, d.value)
				}
			}
			if keys != w.b.Nothing() {
				w.meeting(from, to, met, keys, at.members > 0, value)
			}
		})
	}
}

// satisfied tells whether the keys that are there have those beside them that they need.
func (w *objectWriter) satisfied(met uint32) bool {
	for _, d := range w.dependencies {
		if met&(1<<w.keys[d.key]) == 0 {
			continue
		}
		for _, name := range d.required {
			if met&(1<<w.keys[name]) == 0 {
				return false
			}
		}
	}
	return true
}
