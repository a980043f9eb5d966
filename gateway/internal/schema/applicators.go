package schema

import (
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

// anyOf is the values of s that satisfy at least one of the schemas. Where somebody asks what schemas have looked at, each way to satisfy several is
// a way of its own.
func (c *compiler) anyOf(s shape, n *node) shape {
	branches := make([]shape, 0, len(n.anyOf))
	looks := false
	for _, sub := range n.anyOf {
		branch := c.nodeShape(sub)
		looks = looks || c.looks(&branch)
		branches = append(branches, branch)
	}
	if !c.document.tracked || !looks {
		return c.intersect(s, c.unite(branches...))
	}
	if len(branches) > 5 {
		return c.forget(c.intersect(s, c.unite(branches...)))
	}
	var ways []shape
	for subset := 1; subset < 1<<len(branches); subset++ {
		way := s
		for i := range branches {
			if subset&(1<<i) != 0 {
				way = c.intersect(way, branches[i])
			}
		}
		ways = append(ways, way)
	}
	return c.unite(ways...)
}

// looks tells whether the schemas of a shape have looked at any member or item.
func (c *compiler) looks(s *shape) bool {
	return slices.ContainsFunc(s.objects, func(o objectSet) bool { return o.seenAll || o.seenUnknown || len(o.seenNames)+len(o.seenKeys) > 0 }) ||
		slices.ContainsFunc(s.arrays, func(a arraySet) bool { return a.seenAll || a.seenUnknown || a.seenFirst > 0 || len(a.seenContains) > 0 })
}

// forget says of a shape that nobody knows all that was looked at.
func (c *compiler) forget(s shape) shape {
	s.all = false
	s.objects, s.arrays = slices.Clone(s.objects), slices.Clone(s.arrays)
	for i := range s.objects {
		s.objects[i].seenUnknown = true
	}
	for i := range s.arrays {
		s.arrays[i].seenUnknown = true
	}
	return s
}

// conditional is if, then and else.
func (c *compiler) conditional(s shape, n *node) shape {
	cause := Relaxed{n.pointer, "if", "the condition is too involved"}
	branch := func(s shape, sub *node) shape {
		if sub == nil {
			return s
		}
		return c.intersect(s, c.nodeShape(sub))
	}
	before := c.cause
	c.cause = cause
	defer func() { c.cause = before }()
	var failed kinds
	out, ok := c.attempt(func() (shape, bool) {
		condition := c.nodeShape(n.when)
		if condition.losses != nil {
			failed |= condition.lost()
		}
		opposite := c.oppositeNode(n.when)
		failed |= opposite.failed
		return c.unite(branch(c.intersect(s, condition), n.whenTrue), branch(c.intersect(s, opposite.shape), n.whenNot)), true
	})
	if ok && failed&c.kinds(&out) == 0 {
		return out
	}
	if c.stopped() {
		return s
	}
	out, ok = c.attempt(func() (shape, bool) { return c.unite(branch(s, n.whenTrue), branch(s, n.whenNot)), true })
	if !ok {
		if c.stopped() {
			return s
		}
		out = s
	}
	return c.lose(c.forget(out), cause, c.kinds(&out))
}

// dependent is a schema that holds where a key is there.
func (c *compiler) dependent(s shape, n *node, dep dependency) shape {
	out, ok := c.attempt(func() (shape, bool) {
		absent, present := c.anyObject(), c.anyObject()
		c.require(&absent, dep.key, nothingAtAll, false)
		c.require(&present, dep.key, anything, true)
		sub := c.nodeShape(dep.schema)
		out := s
		out.all = false
		out.objects = append(c.intersectObjects(s.objects, []objectSet{absent}), c.intersectObjects(c.intersectObjects(s.objects, []objectSet{present}),
			sub.objects)...)
		out.losses = append(slices.Clip(out.losses), c.restrict(sub, only(jsonvalue.Object)).losses...)
		c.checkAlternatives(&out)
		return c.settle(out), true
	})
	if ok {
		return out
	}
	if c.stopped() {
		return s
	}
	return c.lose(c.forget(s), Relaxed{n.pointer, dep.keyword, "the schemas of " + quoted(dep.key) + " and others together are too involved"},
		only(jsonvalue.Object))
}

// unevaluatedItems puts a schema on the items that no other has looked at.
func (c *compiler) unevaluatedItems(s shape, n *node) shape {
	sub := c.single(n.unevaluatedItems)
	s.all = false
	lost := false
	var arrays []arraySet
	for _, set := range s.arrays {
		if set.seenUnknown {
			lost = true
		} else if !set.seenAll {
			rest := anyArray()
			rest.prefix = slices.Repeat([]schemas{anything}, set.seenFirst)
			rest.rest = sub
			if len(set.seenContains) > 0 {
				rest.rest = c.any(append(slices.Clone(set.seenContains), sub))
			}
			both, ok := c.intersectArray(&set, &rest)
			if !ok {
				continue
			}
			set = both
		}
		set.seenAll = true
		arrays = append(arrays, set)
	}
	s.arrays = arrays
	if lost {
		s = c.lose(s, Relaxed{n.pointer, "unevaluatedItems", "what the other schemas look at is too involved"}, only(jsonvalue.Array))
	}
	return c.settle(s)
}

// unevaluatedProperties puts a schema on the members that no other has looked at.
func (c *compiler) unevaluatedProperties(s shape, n *node) shape {
	sub := c.single(n.unevaluatedProperties)
	s.all = false
	lost := false
	var objects []objectSet
	for _, set := range s.objects {
		if set.seenUnknown {
			lost = true
		} else if !set.seenAll {
			rest := objectSet{maximum: -1}
			known := make(map[string]bool, len(set.seenNames))
			for _, name := range set.seenNames {
				if !known[name] {
					known[name] = true
					rest.properties = append(rest.properties, property{name: name, value: anything})
				}
			}
			seen := c.b.Union(set.seenKeys...)
			if seen != c.b.Nothing() {
				rest.classes = append(rest.classes, keyClass{seen, anything})
			}
			if others := c.b.Not(seen); sub != nothingAtAll && !c.nothing(others) {
				rest.classes = append(rest.classes, keyClass{others, sub})
			}
			both, ok := c.intersectObject(&set, &rest)
			if !ok {
				continue
			}
			set = both
		}
		set.seenAll = true
		objects = append(objects, set)
	}
	s.objects = objects
	if lost {
		s = c.lose(s, Relaxed{n.pointer, "unevaluatedProperties", "what the other schemas look at is too involved"}, only(jsonvalue.Object))
	}
	return c.settle(s)
}
