package schema

import (
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

// hopeless tells whether no value is seen to satisfy a set of schemas, by their types and lists alone. It may be false of sets that nothing satisfies.
func (c *compiler) hopeless(s schemas) bool {
	if s <= nothingAtAll {
		return s == nothingAtAll
	}
	if known, ok := c.lost[s]; ok {
		return known
	}
	list := c.sets[s]
	all := allKinds
	var values []*jsonvalue.Value
	listed := false
	for _, l := range list {
		if l.negated {
			continue
		}
		all &= c.possibleKinds(l.schema)
		if !listed {
			found := c.candidates(l.schema)
			values, listed = found.values, found.ok
		}
	}
	hopeless := all == 0
	if listed && !hopeless && len(list) > 1 {
		hopeless = !slices.ContainsFunc(values, func(v *jsonvalue.Value) bool { return c.satisfies(s, v) })
	}
	c.lost[s] = hopeless
	return hopeless
}

// satisfies tells whether a value may satisfy a set of schemas: true where finding out takes too long.
func (c *compiler) satisfies(s schemas, v *jsonvalue.Value) bool {
	for _, l := range c.sets[s] {
		if yes, ok := c.checker.satisfies(l.schema, v); ok && yes == l.negated {
			return false
		}
	}
	return true
}

// listing is what is known about the values of a schema.
type listing struct {
	values []*jsonvalue.Value // every value is one of these
	ok     bool               // there is such a list
	exact  bool               // and each of them satisfies the schema
}

// possibleKinds are those of which a schema may have values. Each schema is looked at once, however many refer to it.
func (c *compiler) possibleKinds(n *node) kinds {
	if known, ok := c.possibilities[n]; ok {
		return known
	}
	k := n.types
	if n.listed {
		var listed kinds
		for _, v := range n.values {
			listed |= only(v.Kind)
		}
		k &= listed
	}
	for _, list := range [][]*node{n.references, n.allOf} {
		for _, sub := range list {
			k &= c.possibleKinds(sub)
		}
	}
	for _, list := range [][]*node{n.anyOf, n.oneOf} {
		if list == nil {
			continue
		}
		var some kinds
		for _, sub := range list {
			some |= c.possibleKinds(sub)
		}
		k &= some
	}
	if n.nullable {
		k |= only(jsonvalue.Null)
	}
	c.possibilities[n] = k
	return k
}

// candidates is the listing of a schema. Each schema is looked at once, however many refer to it.
func (c *compiler) candidates(n *node) listing {
	if known, ok := c.listings[n]; ok {
		return known
	}
	found := c.findCandidates(n)
	c.listings[n] = found
	return found
}

func (c *compiler) findCandidates(n *node) listing {
	switch {
	case n.nullable:
		return listing{}
	case n.listed:
		return listing{values: n.values, ok: true, exact: n.listsOnly()}
	case n.types&^(only(jsonvalue.Null)|only(jsonvalue.Boolean)) == 0:
		return listing{values: simpleValues(n.types), ok: true}
	}
	for _, list := range [][]*node{n.references, n.allOf} {
		for _, sub := range list {
			if found := c.candidates(sub); found.ok {
				found.exact = false
				return found
			}
		}
	}
	for _, list := range [][]*node{n.anyOf, n.oneOf} {
		if len(list) == 0 {
			continue
		}
		all := listing{ok: true, exact: true}
		for _, sub := range list {
			some := c.candidates(sub)
			all.ok = all.ok && some.ok && len(all.values)+len(some.values) <= MaxEnumValues
			if !all.ok {
				break
			}
			all.exact = all.exact && some.exact
			all.values = append(all.values, some.values...)
		}
		if all.ok {
			rest := *n
			rest.anyOf = nil
			all.exact = all.exact && len(n.references) == 0 && rest.bare()
			return all
		}
	}
	return listing{}
}

// simpleValues are null and the booleans, of those kinds that are asked for.
func simpleValues(of kinds) []*jsonvalue.Value {
	var values []*jsonvalue.Value
	if of.has(jsonvalue.Null) {
		values = append(values, &jsonvalue.Value{Kind: jsonvalue.Null})
	}
	if of.has(jsonvalue.Boolean) {
		values = append(values, &jsonvalue.Value{Kind: jsonvalue.Boolean, Boolean: true}, &jsonvalue.Value{Kind: jsonvalue.Boolean})
	}
	return values
}

func quoted(name string) string { return fmt.Sprintf("%q", shorten(name)) }
