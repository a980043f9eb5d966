package jinja

import (
	"slices"
	"strings"
)

// Filters that compare the items of sequences: to order, to group, to find those that differ.

// foldCase lowers text, so that sorting and comparing ignore case.
func (r *run) foldCase(v Value) Value {
	if s, ok := text(v); ok {
		return Str(r.mapped(lower, s))
	}
	return v
}

// keyed is getter, with case ignored unless it matters.
func (r *run) keyed(attribute, caseSensitive, otherwise Value) func(Value) Value {
	get := r.getter(r.attributePath(attribute), otherwise)
	if caseSensitive != nil && truth(caseSensitive) {
		return get
	}
	return func(item Value) Value { return r.foldCase(get(item)) }
}

// sortOrder orders two values by "<" as Python's sort does.
func (r *run) sortOrder(a, b Value) int {
	switch {
	case r.order("<", a, b):
		return -1
	case r.order("<", b, a):
		return 1
	}
	return 0
}

// sortBy is a stable sort by key; reversed keeps equal items in their order, as Python does.
func (r *run) sortBy(items []Value, key func(Value) Value, reversed bool) []Value {
	type pair struct{ key, item Value }
	r.allocEach(len(items), 2*valueBytes)
	pairs := make([]pair, len(items))
	for i, item := range items {
		pairs[i] = pair{key(item), item}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int {
		if reversed {
			return r.sortOrder(b.key, a.key)
		}
		return r.sortOrder(a.key, b.key)
	})
	out := r.room(len(items))
	for _, p := range pairs {
		out = append(out, p.item)
	}
	return out
}

func filterSort(r *run, v Value, a callArgs) Value {
	args := a.bind("sort", 0, "reverse", "case_sensitive", "attribute")
	attributes := []Value{optional(args[2], None)}
	if s, ok := text(attributes[0]); ok {
		attributes = nil
		for _, part := range strings.Split(s, ",") {
			attributes = append(attributes, Str(part))
		}
	}
	var getters []func(Value) Value
	r.allocEach(len(attributes), objectBytes)
	for _, attribute := range attributes {
		getters = append(getters, r.keyed(attribute, args[1], nil))
	}
	key := func(item Value) Value {
		r.allocEach(len(getters)+1, valueBytes)
		out := make(Tuple, len(getters))
		for i, get := range getters {
			out[i] = get(item)
		}
		return out
	}
	return &List{r.sortBy(r.items(v), key, args[0] != nil && truth(args[0]))}
}

func filterDictSort(r *run, v Value, a callArgs) Value {
	args := a.bind("dictsort", 0, "case_sensitive", "by", "reverse")
	at := 0
	switch by, _ := text(optional(args[1], Str("key"))); by {
	case "key":
	case "value":
		at = 1
	default:
		throw(argumentError, `you can only sort by either "key" or "value"`)
	}
	d, ok := v.(*Dict)
	if !ok {
		if u, isUndef := v.(*undefined); isUndef {
			u.fail()
		}
		throw("AttributeError", "'%s' object has no attribute 'items'", v.TypeName())
	}
	key := func(item Value) Value {
		part := item.(Tuple)[at]
		if args[0] == nil || !truth(args[0]) {
			part = r.foldCase(part)
		}
		return part
	}
	return &List{r.sortBy(r.items(&dictView{d, "items"}), key, args[2] != nil && truth(args[2]))}
}

func filterUnique(r *run, v Value, a callArgs) Value {
	args := a.bind("unique", 0, "case_sensitive", "attribute")
	return r.lazy("generator", func() func() (Value, bool) {
		key := r.keyed(args[1], args[0], nil)
		seen := map[any]bool{}
		next := r.iterate(v)
		return func() (Value, bool) {
			for item, ok := next(); ok; item, ok = next() {
				if hash := r.hashKey(key(item)); !seen[hash] {
					r.alloc(entryBytes)
					seen[hash] = true
					return item, true
				}
			}
			return nil, false
		}
	})
}

func extremeFilter(op string) filterFunc {
	return func(r *run, v Value, a callArgs) Value {
		args := a.bind("min", 0, "case_sensitive", "attribute")
		key := r.keyed(args[1], args[0], nil)
		next := r.iterate(v)
		best, ok := next()
		if !ok {
			return undefinedHint("No aggregated item, sequence was empty.")
		}
		bestKey := key(best)
		for item, ok := next(); ok; item, ok = next() {
			if k := key(item); r.order(op, k, bestKey) {
				best, bestKey = item, k
			}
		}
		return best
	}
}

// groupTuple is one group of groupby: a pair whose parts also have names.
type groupTuple struct {
	key  Value
	list *List
}

func (*groupTuple) TypeName() string { return "_GroupTuple" }

func (g *groupTuple) pair() Tuple { return Tuple{g.key, g.list} }

func (g *groupTuple) attr(name string) (Value, bool) {
	switch name {
	case "grouper":
		return g.key, true
	case "list":
		return g.list, true
	}
	return nil, false
}

func filterGroupBy(r *run, v Value, a callArgs) Value {
	args := a.bind("groupby", 1, "attribute", "default", "case_sensitive")
	if args[1] == None {
		args[1] = nil
	}
	key := r.keyed(args[0], args[2], args[1])
	exact := r.getter(r.attributePath(args[0]), args[1])
	var groups []Value
	var last *groupTuple
	for _, item := range r.sortBy(r.items(v), key, false) {
		k := key(item)
		if last == nil || !r.equal(last.key, k) {
			r.alloc(2 * entryBytes)
			last = &groupTuple{k, &List{}}
			groups = append(groups, last)
		}
		r.alloc(valueBytes)
		last.list.Items = append(last.list.Items, item)
	}
	if args[2] == nil || !truth(args[2]) {
		for _, g := range groups {
			g := g.(*groupTuple)
			g.key = exact(g.list.Items[0])
		}
	}
	return &List{groups}
}
