package schema

import (
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// oneOf is the values of s that satisfy exactly one of the schemas. Of kinds where that is too involved it is those that satisfy at least one, and
// that is said.
func (c *compiler) oneOf(s shape, n *node) shape {
	cause := Relaxed{n.pointer, "oneOf", "the alternatives overlap in ways that are too involved"}
	before := c.cause
	c.cause = cause
	defer func() { c.cause = before }()
	branches := make([]shape, 0, len(n.oneOf))
	alone := make([]shape, 0, len(n.oneOf))
	for _, sub := range n.oneOf {
		branch := c.nodeShape(sub)
		alone = append(alone, branch)
		branches = append(branches, c.intersect(s, branch))
	}
	out := c.unite(branches...)
	if c.stopped() {
		return out
	}
	if c.loose { // the opposite of what has too many values has too few
		if c.document.tracked {
			out = c.forget(out)
		}
		return c.lose(out, cause, c.kinds(&out))
	}
	var lost kinds
	for i := range branches {
		lost |= branches[i].lost()
	}
	var failed kinds
	note := func(kind jsonvalue.Kind, ok bool) {
		if !ok {
			failed |= only(kind)
		}
	}
	null, booleans := 0, [2]int{}
	for i := range branches {
		if branches[i].null {
			null++
		}
		for bit := range booleans {
			booleans[bit] += int(branches[i].booleans >> bit & 1)
		}
	}
	note(jsonvalue.Null, null < 2 || !lost.has(jsonvalue.Null))
	note(jsonvalue.Boolean, booleans[0] < 2 && booleans[1] < 2 || !lost.has(jsonvalue.Boolean))
	if !failed.has(jsonvalue.Null) {
		out.null = null == 1
	}
	for bit := range booleans {
		if booleans[bit] != 1 && !failed.has(jsonvalue.Boolean) {
			out.booleans &^= 1 << bit
		}
	}
	strings, ok := c.exactlyOne(branches, lost.has(jsonvalue.String))
	if ok = ok && !(c.coarse && !c.nothing(strings) && c.undecided[strings]); ok {
		out.strings = strings
	}
	note(jsonvalue.String, ok)
	never := func() bool { return false }
	numbers, ok := oneSet(c, branches, lost.has(jsonvalue.Number), func(s *shape) []numberSet { return s.numbers }, c.intersectNumbers,
		func(i int) ([]numberSet, bool) {
			return c.oppositeNumbers(alone[i].numbers), true
		}, never)
	note(jsonvalue.Number, ok)
	if ok {
		out.numbers = numbers
	}
	arrays, ok := oneSet(c, branches, lost.has(jsonvalue.Array), func(s *shape) []arraySet { return s.arrays }, c.intersectArrays, func(i int) ([]arraySet, bool) {
		return c.oppositeArrays(alone[i].arrays)
	}, never)
	note(jsonvalue.Array, ok)
	if ok {
		out.arrays = arrays
	}
	objects, ok := oneSet(c, branches, lost.has(jsonvalue.Object), func(s *shape) []objectSet { return s.objects }, c.intersectObjects,
		func(i int) ([]objectSet, bool) {
			return c.oppositeObjects(alone[i].objects)
		}, func() bool { return c.discriminated(branches) })
	note(jsonvalue.Object, ok)
	if ok {
		out.objects = objects
	}
	if failed != 0 && c.document.tracked {
		out = c.forget(out)
	}
	return c.lose(out, cause, failed)
}

// exactlyOne is the strings that are in one branch only.
func (c *compiler) exactlyOne(branches []shape, lost bool) (grammar.Expr, bool) {
	var list []grammar.Expr
	for i := range branches {
		if branches[i].strings != c.b.Nothing() {
			list = append(list, branches[i].strings)
		}
	}
	if len(list) < 2 {
		return c.b.Union(list...), true
	}
	// What stands before and behind each, joined, so that the work is linear in the branches.
	behind := make([]grammar.Expr, len(list)+1)
	behind[len(list)] = c.b.Nothing()
	for i := len(list) - 1; i >= 0; i-- {
		behind[i] = c.b.Union(list[i], behind[i+1])
	}
	before := c.b.Nothing()
	parts := make([]grammar.Expr, 0, len(list))
	for i, e := range list {
		others := c.b.Union(before, behind[i+1])
		if overlap := c.both(e, others); overlap != c.b.Nothing() {
			if lost {
				return 0, false
			}
			e = c.both(e, c.b.Not(others))
		}
		parts = append(parts, e)
		before = c.b.Union(before, list[i])
	}
	return c.b.Union(parts...), true
}

// oneSet is the values of one kind that are in one branch only. Branches that are seen to be disjoint need no complement.
func oneSet[S any](c *compiler, branches []shape, lost bool, of func(*shape) []S, intersect func(a, b []S) []S, opposite func(i int) ([]S, bool),
	disjoint func() bool) (out []S, ok bool) {
	var at []int
	for i := range branches {
		if len(of(&branches[i])) > 0 {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return nil, true
	}
	if len(at) == 1 {
		return of(&branches[at[0]]), true
	}
	if disjoint() {
		for _, i := range at {
			out = append(out, of(&branches[i])...)
		}
		return out, true
	}
	overlaps := make([][]int, len(branches))
	_, ok = c.attempt(func() (shape, bool) {
		for x, i := range at {
			for _, j := range at[x+1:] {
				if c.stopped() {
					return shape{}, false
				}
				if len(intersect(of(&branches[i]), of(&branches[j]))) > 0 {
					overlaps[i] = append(overlaps[i], j)
					overlaps[j] = append(overlaps[j], i)
				}
			}
		}
		return shape{}, true
	})
	if !ok {
		return nil, false
	}
	_, ok = c.attempt(func() (shape, bool) {
		for _, i := range at {
			set := of(&branches[i])
			for _, j := range overlaps[i] {
				others, ok := opposite(j)
				if !ok || lost {
					return shape{}, false
				}
				if set = intersect(set, others); len(set) > attemptAlternatives {
					return shape{}, false
				}
			}
			if out = slices.Concat(out, set); len(out) > max(attemptAlternatives, 2*len(at)) {
				return shape{}, false
			}
		}
		return shape{}, true
	})
	return out, ok
}

// discriminated tells whether there is a property that all objects must have and that has other values in each branch. It is quick, however many
// branches there are.
func (c *compiler) discriminated(branches []shape) bool {
	var first *objectSet
	for i := range branches {
		if len(branches[i].objects) > 0 {
			first = &branches[i].objects[0]
			break
		}
	}
	for _, p := range first.properties {
		if p.required && c.tellsApart(p.name, branches) {
			return true
		}
	}
	return false
}

func (c *compiler) tellsApart(name string, branches []shape) bool {
	owner := map[string]int{}
	for i := range branches {
		for j := range branches[i].objects {
			at := slices.IndexFunc(branches[i].objects[j].properties, func(p property) bool { return p.name == name && p.required })
			if at < 0 {
				return false
			}
			values, ok := c.candidatesOf(branches[i].objects[j].properties[at].value)
			if !ok {
				return false
			}
			for _, v := range values {
				text := jsonvalue.Canonical(v)
				if other, known := owner[text]; known && other != i {
					return false
				}
				owner[text] = i
			}
		}
	}
	return true
}

// candidatesOf are values of which every value of a set is one; ok is false where there is no list of them.
func (c *compiler) candidatesOf(s schemas) ([]*jsonvalue.Value, bool) {
	for _, l := range c.sets[s] {
		if !l.negated {
			if found := c.candidates(l.schema); found.ok {
				return found.values, true
			}
		}
	}
	return nil, false
}

func (c *compiler) intersectNumbers(list, others []numberSet) []numberSet {
	var out []numberSet
	for _, a := range list {
		for _, b := range others {
			if !c.step() {
				return out
			}
			if set, ok := a.intersect(b); ok {
				out = append(out, set)
			}
		}
	}
	return out
}

func (c *compiler) oppositeNumbers(sets []numberSet) []numberSet {
	out := []numberSet{{}}
	for _, set := range sets {
		out = c.intersectNumbers(out, set.opposite())
	}
	return out
}

func (c *compiler) oppositeArrays(sets []arraySet) ([]arraySet, bool) {
	out := []arraySet{anyArray()}
	for i := range sets {
		opposites, ok := c.oppositeArray(&sets[i])
		if !ok {
			return nil, false
		}
		out = c.intersectArrays(out, opposites)
		if len(out) > c.alternatives {
			return nil, false
		}
	}
	return out, true
}

func (c *compiler) oppositeObjects(sets []objectSet) ([]objectSet, bool) {
	out := []objectSet{c.anyObject()}
	for i := range sets {
		opposites, ok := c.oppositeObject(&sets[i])
		if !ok {
			return nil, false
		}
		out = c.intersectObjects(out, opposites)
		if len(out) > c.alternatives {
			return nil, false
		}
	}
	return out, true
}
