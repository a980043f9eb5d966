package schema

import (
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// shape is a set of JSON values, kind by kind. What it says about members and items of values are schemas again, not looked into.
// A shape is never changed once it was returned; its slices are shared.
type shape struct {
	null     bool
	booleans uint8        // bit 0: false; bit 1: true
	strings  grammar.Expr // of the strings' characters
	numbers  []numberSet  // a union, as the next two are
	arrays   []arraySet
	objects  []objectSet
	losses   []loss
	all      bool // it is every value
}

// loss is a keyword that a shape leaves out: of those kinds it has more values than the schema.
type loss struct {
	Relaxed
	kinds kinds
}

const bothBooleans = 3

// everything is the shape of all values of some kinds.
func (c *compiler) everything(of kinds) shape {
	s := shape{null: of.has(jsonvalue.Null), all: of == allKinds}
	if of.has(jsonvalue.Boolean) {
		s.booleans = bothBooleans
	}
	if of.has(jsonvalue.Number) {
		s.numbers = []numberSet{{}}
	}
	s.strings = c.b.Nothing()
	if of.has(jsonvalue.String) {
		s.strings = c.b.AnyText()
	}
	if of.has(jsonvalue.Array) {
		s.arrays = []arraySet{anyArray()}
	}
	if of.has(jsonvalue.Object) {
		s.objects = []objectSet{c.anyObject()}
	}
	return s
}

// kinds are those of which the shape may have values.
func (c *compiler) kinds(s *shape) kinds {
	var k kinds
	if s.null {
		k |= only(jsonvalue.Null)
	}
	if s.booleans != 0 {
		k |= only(jsonvalue.Boolean)
	}
	if len(s.numbers) > 0 {
		k |= only(jsonvalue.Number)
	}
	if s.strings != c.b.Nothing() {
		k |= only(jsonvalue.String)
	}
	if len(s.arrays) > 0 {
		k |= only(jsonvalue.Array)
	}
	if len(s.objects) > 0 {
		k |= only(jsonvalue.Object)
	}
	return k
}

// restrict leaves the kinds out that are not in k.
func (c *compiler) restrict(s shape, k kinds) shape {
	s.all = s.all && k == allKinds
	s.null = s.null && k.has(jsonvalue.Null)
	if !k.has(jsonvalue.Boolean) {
		s.booleans = 0
	}
	if !k.has(jsonvalue.Number) {
		s.numbers = nil
	}
	if !k.has(jsonvalue.String) {
		s.strings = c.b.Nothing()
	}
	if !k.has(jsonvalue.Array) {
		s.arrays = nil
	}
	if !k.has(jsonvalue.Object) {
		s.objects = nil
	}
	return c.settle(s)
}

// settle forgets losses that concern nothing that is left.
func (c *compiler) settle(s shape) shape {
	if len(s.losses) == 0 {
		return s
	}
	present := c.kinds(&s)
	var losses []loss
	for _, l := range s.losses {
		if l.kinds &= present; l.kinds != 0 && !slices.ContainsFunc(losses, func(m loss) bool {
			return m.Pointer == l.Pointer && m.Keyword == l.Keyword &&
				l.kinds&^m.kinds == 0
		}) {
			losses = append(losses, l)
		}
	}
	s.losses = losses
	return s
}

// lost are the kinds of which the shape may have too many values.
func (s *shape) lost() kinds {
	var k kinds
	for _, l := range s.losses {
		k |= l.kinds
	}
	return k
}

// intersect is the values in both.
func (c *compiler) intersect(s, t shape) shape {
	if s.all && len(s.losses) == 0 {
		return t
	}
	if t.all && len(t.losses) == 0 || c.stopped() {
		return s
	}
	out := shape{null: s.null && t.null, booleans: s.booleans & t.booleans, strings: c.bothStrings(s.strings, t.strings)}
	out.losses = slices.Concat(s.losses, t.losses)
	out.numbers = c.intersectNumbers(s.numbers, t.numbers)
	out.arrays = c.intersectArrays(s.arrays, t.arrays)
	out.objects = c.intersectObjects(s.objects, t.objects)
	c.checkAlternatives(&out)
	return c.settle(out)
}

// both is the strings in both; expressions that are seen to be empty are Nothing.
func (c *compiler) both(a, b grammar.Expr) grammar.Expr {
	all := c.b.AnyText()
	switch {
	case a == all || a == b:
		return b
	case b == all:
		return a
	}
	e := c.b.Intersect(a, b)
	if c.nothing(e) {
		return c.b.Nothing()
	}
	return e
}

func (c *compiler) checkAlternatives(s *shape) {
	if n := max(len(s.numbers), len(s.arrays), len(s.objects)); n > c.alternatives {
		c.exceed("alternatives of one value", n, c.alternatives)
	}
}

// unite is the values in at least one.
func (c *compiler) unite(list ...shape) shape {
	out := shape{strings: c.b.Nothing()}
	texts := make([]grammar.Expr, 0, len(list))
	c.spend(1 + len(list)/16)
	for _, s := range list {
		out.null = out.null || s.null
		out.booleans |= s.booleans
		texts = append(texts, s.strings)
		out.numbers = append(out.numbers, s.numbers...)
		out.arrays = append(out.arrays, s.arrays...)
		out.objects = append(out.objects, s.objects...)
		out.losses = append(out.losses, s.losses...)
	}
	out.strings = c.b.Union(texts...)
	out.numbers = uniteNumbers(out.numbers)
	out.arrays = distinct(out.arrays, arraySet.key)
	out.objects = distinct(out.objects, objectSet.key)
	c.checkAlternatives(&out)
	return c.settle(out)
}

// uniteNumbers joins lists of numbers, and drops all beside the set of all numbers.
func uniteNumbers(sets []numberSet) []numberSet {
	var out []numberSet
	listed := numberSet{listed: true}
	for _, s := range sets {
		if s.full() {
			return []numberSet{s}
		}
		if s.listed {
			listed.values = append(listed.values, s.values...)
			continue
		}
		out = append(out, s)
	}
	if len(listed.values) > 0 {
		out = append(out, listed)
	}
	return out
}

// distinct drops sets that are there already.
func distinct[S any](sets []S, key func(S) string) []S {
	if len(sets) < 2 {
		return sets
	}
	seen := make(map[string]bool, len(sets))
	out := make([]S, 0, len(sets))
	for _, s := range sets {
		if k := key(s); !seen[k] {
			seen[k] = true
			out = append(out, s)
		}
	}
	return out
}

// opposite is the values that are not in the shape. For the kinds of failed nobody can say; all their values are in the result.
func (c *compiler) opposite(s shape) (out shape, failed kinds) {
	out = shape{null: !s.null, booleans: bothBooleans &^ s.booleans, strings: c.b.Not(s.strings)}
	failed = s.lost()
	if c.nothing(out.strings) {
		out.strings = c.b.Nothing()
	}
	out.numbers = c.oppositeNumbers(s.numbers)
	var ok bool
	if out.arrays, ok = c.oppositeArrays(s.arrays); !ok {
		failed |= only(jsonvalue.Array)
	}
	if out.objects, ok = c.oppositeObjects(s.objects); !ok {
		failed |= only(jsonvalue.Object)
	}
	if failed != 0 {
		all := c.everything(failed)
		kept := c.restrict(out, allKinds&^failed)
		out = c.unite(kept, all)
	}
	c.checkAlternatives(&out)
	return out, failed
}
