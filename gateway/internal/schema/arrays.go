package schema

import (
	"fmt"
	"slices"
	"strings"
)

// count demands how many items of an array satisfy a schema.
type count struct {
	schema           schemas
	from             int // items before this one do not count
	minimum, maximum int // maximum -1 is none
	origin           Relaxed
}

// arraySet is a set of arrays: those that satisfy all of its parts.
type arraySet struct {
	prefix           []schemas
	rest             schemas // of the items behind prefix; never: there are none
	minimum, maximum int     // maximum -1 is none
	counts           []count
	unique           bool
	origin           Relaxed // of unique

	// What schemas have looked at, for unevaluatedItems.
	seenFirst    int
	seenAll      bool
	seenContains []schemas
	seenUnknown  bool // there may be more
}

func anyArray() arraySet { return arraySet{rest: anything, maximum: -1} }

func (s arraySet) key() string {
	var b strings.Builder
	fmt.Fprint(&b, s.prefix, s.rest, s.minimum, s.maximum, s.unique, s.seenFirst, s.seenAll, s.seenContains, s.seenUnknown)
	for _, n := range s.counts {
		fmt.Fprint(&b, n.schema, n.from, n.minimum, n.maximum)
	}
	return b.String()
}

// at is the schemas of an item.
func (s *arraySet) at(i int) schemas {
	if i < len(s.prefix) {
		return s.prefix[i]
	}
	return s.rest
}

func (c *compiler) intersectArrays(list, others []arraySet) []arraySet {
	var out []arraySet
	for i := range list {
		for j := range others {
			if !c.step() {
				return out
			}
			if set, ok := c.intersectArray(&list[i], &others[j]); ok {
				out = append(out, set)
			}
		}
	}
	return distinct(out, arraySet.key)
}

func (c *compiler) intersectArray(a, b *arraySet) (arraySet, bool) {
	out := *a
	switch {
	case len(b.prefix) == 0 && b.rest == anything:
	case len(a.prefix) == 0 && a.rest == anything:
		out.prefix, out.rest = b.prefix, b.rest
	default:
		out.prefix = nil
		for i := range max(len(a.prefix), len(b.prefix)) {
			out.prefix = append(out.prefix, c.and(a.at(i), b.at(i)))
		}
		c.spend(len(out.prefix) / 8)
		out.rest = c.and(a.rest, b.rest)
	}
	out.minimum = max(a.minimum, b.minimum)
	if out.maximum < 0 || b.maximum >= 0 && b.maximum < out.maximum {
		out.maximum = b.maximum
	}
	out.counts = slices.Concat(a.counts, b.counts)
	if b.unique && !a.unique {
		out.unique, out.origin = true, b.origin
	}
	out.seenFirst = max(a.seenFirst, b.seenFirst)
	out.seenAll = a.seenAll || b.seenAll
	out.seenUnknown = a.seenUnknown || b.seenUnknown
	out.seenContains = slices.Concat(a.seenContains, b.seenContains)
	return c.tidyArray(out)
}

// tidyArray takes the ends of arrays into their maximum. ok is false where there is no such array.
func (c *compiler) tidyArray(s arraySet) (arraySet, bool) {
	for i, item := range s.prefix {
		if c.hopeless(item) {
			s.prefix = s.prefix[:i]
			s.rest = nothingAtAll
			break
		}
	}
	if c.hopeless(s.rest) && (s.maximum < 0 || s.maximum > len(s.prefix)) {
		s.maximum = len(s.prefix)
	}
	return s, s.maximum < 0 || s.minimum <= s.maximum
}

// oppositeArray is the arrays that are not in the set, as a union; ok is false where nobody can say.
func (c *compiler) oppositeArray(s *arraySet) (out []arraySet, ok bool) {
	if s.unique {
		return nil, false
	}
	add := func(change func(*arraySet)) {
		set := anyArray()
		change(&set)
		out = append(out, set)
	}
	if s.minimum > 0 {
		add(func(set *arraySet) { set.maximum = s.minimum - 1 })
	}
	if s.maximum >= 0 {
		add(func(set *arraySet) { set.minimum = s.maximum + 1 })
	}
	for i, item := range s.prefix {
		for _, violation := range c.violations(item) {
			add(func(set *arraySet) {
				set.prefix = slices.Repeat([]schemas{anything}, i+1)
				set.prefix[i] = violation
				set.minimum = i + 1
			})
		}
	}
	if s.rest == nothingAtAll {
		add(func(set *arraySet) { set.minimum = len(s.prefix) + 1 })
	} else {
		for _, violation := range c.violations(s.rest) {
			add(func(set *arraySet) {
				set.counts = []count{{schema: violation, from: len(s.prefix), minimum: 1, maximum: -1, origin: c.cause}}
			})
		}
	}
	for _, n := range s.counts {
		if n.minimum == 1 {
			violations := c.violations(n.schema)
			if len(violations) > 1 {
				return nil, false
			}
			add(func(set *arraySet) {
				set.prefix = slices.Repeat([]schemas{anything}, n.from)
				if len(violations) == 1 {
					set.rest = violations[0]
				} else {
					set.rest, set.maximum = nothingAtAll, n.from
				}
			})
		} else if n.minimum > 1 {
			add(func(set *arraySet) {
				set.counts = []count{{schema: n.schema, from: n.from, maximum: n.minimum - 1, origin: c.cause}}
			})
		}
		if n.maximum >= 0 {
			add(func(set *arraySet) {
				set.counts = []count{{schema: n.schema, from: n.from, minimum: n.maximum + 1, maximum: -1, origin: c.cause}}
			})
		}
	}
	return out, true
}
