package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// property is a member under a name.
type property struct {
	name     string
	value    schemas // nothingAtAll: the name is not allowed
	required bool
	source   int // which schema has it under properties; 0: none, it is only named, and stands behind those that are listed
}

// keyClass is members whose key is in an expression and is not the name of a property.
type keyClass struct {
	keys  grammar.Expr
	value schemas
}

// demand asks for a member: its key is in keys, its value satisfies value.
type demand struct {
	keys   grammar.Expr
	value  schemas
	origin Relaxed
}

func (d demand) key() string { return fmt.Sprint(d.keys, d.value) }

// keyDependency asks for other members where one is.
type keyDependency struct {
	key      string
	required []string
	origin   Relaxed
}

// objectSet is a set of objects: those that satisfy all of its parts.
type objectSet struct {
	properties       []property
	classes          []keyClass // no key is in two; a key in none that names no property is not allowed
	minimum, maximum int        // maximum -1 is none
	origin           Relaxed    // of minimum and maximum
	demands          []demand
	dependencies     []keyDependency

	// What schemas have looked at, for unevaluatedProperties.
	seenNames   []string
	seenKeys    []grammar.Expr
	seenAll     bool
	seenUnknown bool // there may be more
}

func (c *compiler) anyObject() objectSet {
	return objectSet{classes: []keyClass{{c.b.AnyText(), anything}}, maximum: -1}
}

func (s objectSet) key() string {
	var b strings.Builder
	fmt.Fprint(&b, s.properties, s.classes, s.minimum, s.maximum, s.seenNames, s.seenKeys, s.seenAll, s.seenUnknown)
	for _, d := range s.demands {
		fmt.Fprint(&b, "|", d.keys, d.value)
	}
	for _, d := range s.dependencies {
		fmt.Fprintf(&b, "|%q%q", d.key, d.required)
	}
	return b.String()
}

// bare tells whether the set says nothing about any key.
func (c *compiler) bare(s *objectSet) bool {
	return len(s.properties) == 0 && len(s.classes) == 1 && s.classes[0].value == anything && s.classes[0].keys == c.b.AnyText()
}

// otherKey is the schemas of a member whose key is no property's name.
func (c *compiler) otherKey(s *objectSet, name string) schemas {
	for _, class := range s.classes {
		if class.keys == c.b.AnyText() || c.contains(class.keys, name) {
			return class.value
		}
	}
	return nothingAtAll
}

func (c *compiler) intersectObjects(list, others []objectSet) []objectSet {
	var out []objectSet
	for i := range list {
		for j := range others {
			if !c.step() {
				return out
			}
			if set, ok := c.intersectObject(&list[i], &others[j]); ok {
				out = append(out, set)
			}
		}
	}
	return distinct(out, objectSet.key)
}

func (c *compiler) intersectObject(a, b *objectSet) (objectSet, bool) {
	out := *a
	switch {
	case c.bare(b):
	case c.bare(a):
		out.properties, out.classes = b.properties, b.classes
	default:
		out.properties = c.intersectProperties(a, b)
		out.classes = c.intersectClasses(a.classes, b.classes)
	}
	out.minimum = max(a.minimum, b.minimum)
	if a.minimum == 0 && a.maximum < 0 {
		out.origin = b.origin
	}
	if out.maximum < 0 || b.maximum >= 0 && b.maximum < out.maximum {
		out.maximum = b.maximum
	}
	out.demands = slices.Concat(a.demands, b.demands)
	out.dependencies = slices.Concat(a.dependencies, b.dependencies)
	out.seenNames = slices.Concat(a.seenNames, b.seenNames)
	out.seenKeys = slices.Concat(a.seenKeys, b.seenKeys)
	out.seenAll = a.seenAll || b.seenAll
	out.seenUnknown = a.seenUnknown || b.seenUnknown
	return out, c.possible(&out)
}

func (c *compiler) intersectProperties(a, b *objectSet) []property {
	at := make(map[string]int, len(b.properties))
	for i, p := range b.properties {
		at[p.name] = i
	}
	merged := make(map[string]bool, len(b.properties))
	all := make([]property, 0, len(a.properties)+len(b.properties))
	moved := make([]property, len(b.properties)) // what b lists and a only names, in b's place
	for _, p := range a.properties {
		i, ok := at[p.name]
		if !ok {
			p.value = c.and(p.value, c.otherKey(b, p.name))
			all = append(all, p)
			continue
		}
		q := b.properties[i]
		merged[p.name] = true
		both := property{p.name, c.and(p.value, q.value), p.required || q.required, p.source}
		if q.source != 0 && p.source == 0 {
			both.source = q.source
			moved[i] = both
		} else {
			all = append(all, both)
		}
	}
	for i, p := range b.properties {
		switch {
		case moved[i].source != 0:
			all = append(all, moved[i])
		case !merged[p.name]:
			p.value = c.and(p.value, c.otherKey(a, p.name))
			all = append(all, p)
		}
	}
	c.spend(len(all) / 8)
	return listedFirst(all)
}

// listedFirst puts what schemas list in front of what they only name.
func listedFirst(all []property) []property {
	out := make([]property, 0, len(all))
	for _, listed := range []bool{true, false} {
		for _, p := range all {
			if (p.source != 0) == listed {
				out = append(out, p)
			}
		}
	}
	return out
}

func (c *compiler) intersectClasses(list, others []keyClass) []keyClass {
	var out []keyClass
	for _, a := range list {
		for _, b := range others {
			value := c.and(a.value, b.value)
			if value == nothingAtAll || !c.step() {
				continue
			}
			keys := c.both(a.keys, b.keys)
			if c.coarse && c.undecided[keys] {
				c.loose = true
				c.relax(Relaxed{c.at, "patternProperties", tooInvolved})
				return []keyClass{{c.b.AnyText(), anything}}
			}
			if keys != c.b.Nothing() {
				out = append(out, keyClass{keys, value})
			}
		}
	}
	if len(out) > maxOverlaps {
		c.exceed("classes of keys", len(out), maxOverlaps)
	}
	return out
}

// possible is false where the set is seen to be empty.
func (c *compiler) possible(s *objectSet) bool {
	required, allowed := 0, 0
	for _, p := range s.properties {
		impossible := p.value == nothingAtAll
		if p.required {
			required++
			impossible = impossible || c.hopeless(p.value)
			if impossible {
				return false
			}
		}
		if !impossible {
			allowed++
		}
	}
	if s.maximum >= 0 && (required > s.maximum || s.minimum > s.maximum) {
		return false
	}
	return len(s.classes) > 0 || allowed >= s.minimum
}

// require makes sure that a name is a property, and that it must be there or must not.
func (c *compiler) require(s *objectSet, name string, value schemas, required bool) {
	for i, p := range s.properties {
		if p.name == name {
			s.properties = slices.Clone(s.properties)
			s.properties[i] = property{name, c.and(p.value, value), p.required || required, p.source}
			return
		}
	}
	s.properties = append(slices.Clip(s.properties), property{name, c.and(c.otherKey(s, name), value), required, 0})
}

// oppositeObject is the objects that are not in the set, as a union; ok is false where nobody can say.
func (c *compiler) oppositeObject(s *objectSet) (out []objectSet, ok bool) {
	add := func(change func(*objectSet)) {
		set := c.anyObject()
		change(&set)
		out = append(out, set)
	}
	names := make([]grammar.Expr, 0, len(s.properties))
	for _, p := range s.properties {
		names = append(names, c.b.Literal(p.name))
		if p.required {
			add(func(set *objectSet) { c.require(set, p.name, nothingAtAll, false) })
		}
		for _, violation := range c.violations(p.value) {
			add(func(set *objectSet) { c.require(set, p.name, violation, true) })
		}
	}
	others := c.b.Not(c.b.Union(names...))
	covered := make([]grammar.Expr, 0, len(s.classes))
	for _, class := range s.classes {
		covered = append(covered, class.keys)
		for _, violation := range c.violations(class.value) {
			if keys := c.both(class.keys, others); keys != c.b.Nothing() {
				add(func(set *objectSet) { set.demands = []demand{{keys: keys, value: violation, origin: c.cause}} })
			}
		}
	}
	if rest := c.both(c.b.Not(c.b.Union(covered...)), others); !c.nothing(rest) {
		add(func(set *objectSet) { set.demands = []demand{{keys: rest, value: anything, origin: c.cause}} })
	}
	if s.minimum > 0 {
		add(func(set *objectSet) { set.maximum, set.origin = s.minimum-1, c.cause })
	}
	if s.maximum >= 0 {
		add(func(set *objectSet) { set.minimum, set.origin = s.maximum+1, c.cause })
	}
	for _, d := range s.dependencies {
		for _, name := range d.required {
			add(func(set *objectSet) {
				c.require(set, d.key, anything, true)
				c.require(set, name, nothingAtAll, false)
			})
		}
	}
	for _, d := range s.demands {
		violations := c.violations(d.value)
		if len(violations) > 1 {
			return nil, false
		}
		add(func(set *objectSet) {
			set.classes = nil
			if len(violations) == 1 {
				set.classes = append(set.classes, keyClass{d.keys, violations[0]})
			}
			if rest := c.b.Not(d.keys); !c.nothing(rest) {
				set.classes = append(set.classes, keyClass{rest, anything})
			}
		})
	}
	return out, true
}
