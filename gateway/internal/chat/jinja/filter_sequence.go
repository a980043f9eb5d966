package jinja

import (
	"slices"
	"strings"
)

// Filters over sequences. Those that Python writes as generators are lazy here too and can be walked once.

func filterLength(r *run, v Value, a callArgs) Value {
	a.positional("length", 0)
	n, ok := r.lengthOf(v)
	if !ok {
		throw(typeError, "object of type '%s' has no len()", v.TypeName())
	}
	return Int(n)
}

func filterList(r *run, v Value, a callArgs) Value {
	a.positional("list", 0)
	return &List{r.items(v)}
}

func filterFirst(r *run, v Value, a callArgs) Value {
	a.positional("first", 0)
	item, ok := r.iterate(v)()
	if !ok {
		return undefinedHint("No first item, sequence was empty.")
	}
	return item
}

func filterLast(r *run, v Value, a callArgs) Value {
	a.positional("last", 0)
	next, ok := r.reversed(v)
	if !ok {
		throw(typeError, "'%s' object is not reversible", v.TypeName())
	}
	item, ok := next()
	if !ok {
		return undefinedHint("No last item, sequence was empty.")
	}
	return item
}

func filterReverse(r *run, v Value, a callArgs) Value {
	a.positional("reverse", 0)
	if s, ok := text(v); ok {
		r.alloc(len(s))
		return likeString(v, r.sliceText(s, &sliceValue{None, None, Int(-1)}))
	}
	if next, ok := r.reversed(v); ok {
		return &generator{name: "list_reverseiterator", next: next}
	}
	if _, ok := r.iterator(v); !ok {
		throw(argumentError, "argument must be iterable")
	}
	items := r.items(v)
	slices.Reverse(items)
	return &List{items}
}

func filterItems(r *run, v Value, a callArgs) Value {
	a.positional("items", 0)
	return r.lazy("generator", func() func() (Value, bool) {
		if isUndefined(v) {
			return func() (Value, bool) { return nil, false }
		}
		d, ok := v.(*Dict)
		if !ok {
			throw(typeError, "Can only get item pairs from a mapping.")
		}
		return r.iterate(&dictView{d, "items"})
	})
}

// lazy makes a generator whose first step is start, so that faults come when it is walked.
func (r *run) lazy(name string, start func() func() (Value, bool)) *generator {
	r.alloc(4 * objectBytes)
	var next func() (Value, bool)
	return &generator{name: name, next: func() (Value, bool) {
		if next == nil {
			next = start()
		}
		return next()
	}}
}

// attributePath is a path of elements such as "function.name" or 0.
func (r *run) attributePath(path Value) []Value {
	s, ok := text(path)
	if !ok {
		if path == None || path == nil {
			return nil
		}
		return []Value{path}
	}
	var out []Value
	r.scan(16 * len(s))
	r.allocEach(strings.Count(s, ".")+1, 2*valueBytes)
	for _, part := range strings.Split(s, ".") {
		if i, ok := parseInt(part, 10); ok && strings.IndexFunc(part, func(c rune) bool { return !isDigit(c) }) < 0 {
			out = append(out, i)
		} else {
			out = append(out, Str(part))
		}
	}
	return out
}

// getter reads a path in an item; a missing part becomes otherwise unless that is nil.
func (r *run) getter(path []Value, otherwise Value) func(Value) Value {
	return func(item Value) Value {
		for _, part := range path {
			r.step()
			item = r.getItem(item, part)
			if otherwise != nil && isUndefined(item) {
				item = otherwise
			}
		}
		return item
	}
}

func filterSum(r *run, v Value, a callArgs) Value {
	args := a.bind("sum", 0, "attribute", "start")
	get := r.getter(r.attributePath(args[0]), nil)
	total := optional(args[1], Int(0))
	if _, ok := text(total); ok {
		throw(typeError, "sum() can't sum strings [use ''.join(seq) instead]")
	}
	next := r.iterate(v)
	for item, ok := next(); ok; item, ok = next() {
		r.step()
		total = r.binary("+", total, get(item))
	}
	return total
}

func filterJoin(r *run, v Value, a callArgs) Value {
	args := a.bind("join", 0, "d", "attribute")
	get := r.getter(r.attributePath(args[1]), nil)
	next := r.iterate(v)
	var parts []string
	for item, ok := next(); ok; item, ok = next() {
		r.alloc(valueBytes)
		parts = append(parts, r.toStr(get(item)))
	}
	return Str(r.join(parts, r.toStr(optional(args[0], Str("")))))
}

func filterBatch(r *run, v Value, a callArgs) Value {
	args := a.bind("batch", 1, "linecount", "fill_with")
	return r.lazy("generator", func() func() (Value, bool) {
		next := r.iterate(v)
		var row []Value
		done := false
		return func() (Value, bool) {
			for !done {
				item, ok := next()
				if !ok {
					done = true
					break
				}
				r.alloc(valueBytes)
				full := r.equal(Int(len(row)), args[0])
				if full {
					out := row
					row = []Value{item}
					return &List{out}, true
				}
				row = append(row, item)
			}
			if len(row) == 0 {
				return nil, false
			}
			if args[1] != nil && args[1] != None && r.order("<", Int(len(row)), args[0]) {
				missing := indexArg(args[0]) - len(row)
				r.allocEach(missing, valueBytes)
				for range missing {
					row = append(row, args[1])
				}
			}
			out := row
			row = nil
			return &List{out}, true
		}
	})
}

func filterSlice(r *run, v Value, a callArgs) Value {
	args := a.bind("slice", 1, "slices", "fill_with")
	return r.lazy("generator", func() func() (Value, bool) {
		items := r.items(v)
		slices := indexArg(args[0])
		if slices == 0 {
			throw(zeroDivision, "integer division or modulo by zero")
		}
		i, offset := 0, 0
		return func() (Value, bool) {
			if i >= slices {
				return nil, false
			}
			r.step()
			each, extra := len(items)/slices, len(items)%slices
			start := offset + i*each
			if i < extra {
				offset++
			}
			row := append(r.room(offset+(i+1)*each-start+1), items[start:offset+(i+1)*each]...)
			if args[1] != nil && args[1] != None && i >= extra {
				row = append(row, args[1])
			}
			i++
			return &List{row}, true
		}
	})
}

func filterAttr(r *run, v Value, a callArgs) Value {
	name := textArg(a.bind("attr", 1, "name")[0])
	if u, ok := v.(*undefined); ok && !strings.HasPrefix(name, "__") {
		u.fail()
	}
	if out, ok := r.attribute(v, name); ok {
		return out
	}
	return undefinedElement(v, Str(name))
}

func filterMap(r *run, v Value, a callArgs) Value {
	return r.lazy("generator", func() func() (Value, bool) {
		if !truth(v) {
			return func() (Value, bool) { return nil, false }
		}
		f := r.mapping(a)
		next := r.iterate(v)
		return func() (Value, bool) {
			item, ok := next()
			if !ok {
				return nil, false
			}
			return f(item), true
		}
	})
}

// mapping is what map does to an item: read an attribute, or apply a filter by name.
func (r *run) mapping(a callArgs) func(Value) Value {
	if len(a.args) == 0 && slices.ContainsFunc(a.named, func(k keyword) bool { return k.name == "attribute" }) {
		args := a.bind("map", 0, "attribute", "default")
		if args[1] == None {
			args[1] = nil
		}
		return r.getter(r.attributePath(args[0]), args[1])
	}
	if len(a.args) == 0 {
		throw(argumentError, "map requires a filter argument")
	}
	name, isText := text(a.args[0])
	filter := filters[name]
	if !isText || filter == nil {
		throw(runtimeError, "no filter named %s", reprValue(a.args[0]))
	}
	rest := callArgs{a.args[1:], a.named}
	return func(item Value) Value { r.step(); return filter(r, item, rest) }
}

// selectFilter makes select, reject, selectattr and rejectattr.
func selectFilter(keep, byAttribute bool) filterFunc {
	return func(r *run, v Value, a callArgs) Value {
		return r.lazy("generator", func() func() (Value, bool) {
			if !truth(v) {
				return func() (Value, bool) { return nil, false }
			}
			holds := r.selection(a, byAttribute)
			next := r.iterate(v)
			return func() (Value, bool) {
				for item, ok := next(); ok; item, ok = next() {
					if holds(item) == keep {
						return item, true
					}
				}
				return nil, false
			}
		})
	}
}

func (r *run) selection(a callArgs, byAttribute bool) func(Value) bool {
	subject := func(item Value) Value { return item }
	args := a.args
	if byAttribute {
		if len(args) == 0 {
			throw(argumentError, "missing parameter for attribute name")
		}
		subject = r.getter(r.attributePath(args[0]), nil)
		args = args[1:]
	}
	if len(args) == 0 {
		return func(item Value) bool { return truth(subject(item)) }
	}
	name, isText := text(args[0])
	test := tests[name]
	if !isText || test == nil {
		throw(runtimeError, "no test named %s", reprValue(args[0]))
	}
	rest := callArgs{args[1:], a.named}
	return func(item Value) bool { r.step(); return test(r, subject(item), rest) }
}
