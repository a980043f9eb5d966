package jinja

import (
	"unicode/utf8"
)

// iterator returns a function that gives v's items one after the other, and whether v can be iterated at all.
func (r *run) iterator(v Value) (func() (Value, bool), bool) {
	r.alloc(2 * objectBytes)
	i := 0
	indexed := func(n int, at func(int) Value) func() (Value, bool) {
		return func() (Value, bool) {
			if i >= n {
				return nil, false
			}
			r.step()
			i++
			return at(i - 1), true
		}
	}
	switch v := v.(type) {
	case *List:
		return indexed(len(v.Items), func(i int) Value { return v.Items[i] }), true
	case Tuple:
		return indexed(len(v), func(i int) Value { return v[i] }), true
	case *groupTuple:
		return r.iterator(v.pair())
	case *Dict:
		return indexed(v.Len(), func(i int) Value { return v.keys[i] }), true
	case *dictView:
		return indexed(v.dict.Len(), func(i int) Value { return v.item(r, i) }), true
	case *rangeValue:
		return indexed(v.length(), v.at), true
	case Str, markup:
		s, _ := text(v)
		return func() (Value, bool) {
			if i >= len(s) {
				return nil, false
			}
			r.step()
			_, size := utf8.DecodeRuneInString(s[i:])
			i += size
			return Str(s[i-size : i]), true
		}, true
	case *undefined:
		return func() (Value, bool) { return nil, false }, true
	case *generator:
		return func() (Value, bool) {
			r.step()
			r.descend()
			item, ok := v.next()
			r.ascend()
			return item, ok
		}, true
	case *loopContext:
		return func() (Value, bool) {
			r.step()
			r.descend()
			item, ok := v.advance()
			r.ascend()
			r.alloc(2 * valueBytes)
			return Tuple{item, v}, ok
		}, true
	}
	return nil, false
}

// iterate is iterator, raising TypeError where v cannot be iterated.
func (r *run) iterate(v Value) func() (Value, bool) {
	next, ok := r.iterator(v)
	if !ok {
		throw(typeError, "'%s' object is not iterable", v.TypeName())
	}
	return next
}

// items collects everything that iterating v gives.
func (r *run) items(v Value) []Value {
	next := r.iterate(v)
	var out []Value
	for item, ok := next(); ok; item, ok = next() {
		r.alloc(valueBytes)
		out = append(out, item)
	}
	return out
}

// reversed is Python's reversed(v): ok is false where v has no order to reverse.
func (r *run) reversed(v Value) (func() (Value, bool), bool) {
	var items []Value
	switch v.(type) {
	case Str, markup, *undefined, *Dict, *dictView, *rangeValue, *List, Tuple, *groupTuple:
		items = r.items(v)
	default:
		return nil, false
	}
	i := len(items)
	return func() (Value, bool) {
		if i == 0 {
			return nil, false
		}
		i--
		return items[i], true
	}, true
}

// lengthOf is the function of that name, counted.
func (r *run) lengthOf(v Value) (n int, ok bool) {
	if s, isText := text(v); isText {
		r.scan(len(s))
	}
	return lengthOf(v)
}

// lengthOf is Python's len(v); ok is false where v has none.
func lengthOf(v Value) (n int, ok bool) {
	switch v := v.(type) {
	case Str:
		return utf8.RuneCountInString(string(v)), true
	case markup:
		return utf8.RuneCountInString(string(v)), true
	case *List:
		return len(v.Items), true
	case Tuple:
		return len(v), true
	case *Dict:
		return v.Len(), true
	case *dictView:
		return v.dict.Len(), true
	case *rangeValue:
		return v.length(), true
	case *groupTuple:
		return 2, true
	case *undefined:
		return 0, true
	case *loopContext:
		return v.length(), true
	}
	return 0, false
}

// loopContext is the loop variable of a for loop.
type loopContext struct {
	r        *run
	iterable Value
	next     func() (Value, bool)
	index    int // of the current item; -1 before the first
	known    int // length, -1 until it is known
	depth0   int

	before, current Value
	// after is the item behind the current one once somebody has looked; peeked tells that somebody has, ended that there is none.
	after         Value
	peeked, ended bool
	lastChanged   Tuple
	hasChanged    bool
	recurse       func(items Value, depth0 int) Value
}

func (*loopContext) TypeName() string { return "LoopContext" }

// advance moves to the next item.
func (l *loopContext) advance() (Value, bool) {
	item, ok := l.peek()
	if !ok {
		return nil, false
	}
	l.after, l.peeked = nil, false
	l.index++
	l.before, l.current = l.current, item
	return item, true
}

func (l *loopContext) peek() (Value, bool) {
	if !l.peeked && !l.ended {
		item, ok := l.next()
		l.after, l.peeked, l.ended = item, ok, !ok
	}
	return l.after, l.peeked
}

// length counts the items; an iterator without a length is read to its end for it, which the loop then continues from.
func (l *loopContext) length() int {
	if l.known >= 0 {
		return l.known
	}
	if n, ok := lengthOf(l.iterable); ok {
		l.known = n
		return n
	}
	var rest []Value
	for item, ok := l.next(); ok; item, ok = l.next() {
		l.r.alloc(valueBytes)
		rest = append(rest, item)
	}
	l.known = len(rest) + l.index + 1
	if l.peeked {
		l.known++
	}
	l.next = l.r.iterate(&List{rest})
	return l.known
}

// attr is an attribute of the loop variable.
func (l *loopContext) attr(name string) (Value, bool) {
	switch name {
	case "index":
		return Int(l.index + 1), true
	case "index0":
		return Int(l.index), true
	case "revindex":
		return Int(l.length() - l.index), true
	case "revindex0":
		return Int(l.length() - l.index - 1), true
	case "first":
		return Bool(l.index == 0), true
	case "last":
		_, ok := l.peek()
		return Bool(!ok), true
	case "length":
		return Int(l.length()), true
	case "depth":
		return Int(l.depth0 + 1), true
	case "depth0":
		return Int(l.depth0), true
	case "previtem":
		if l.index == 0 {
			return undefinedHint("there is no previous item"), true
		}
		return l.before, true
	case "nextitem":
		item, ok := l.peek()
		if !ok {
			return undefinedHint("there is no next item"), true
		}
		return item, true
	case "cycle":
		return &builtin{name: "cycle", call: func(_ *run, a callArgs) Value {
			items := a.positional("cycle", -1)
			if len(items) == 0 {
				throw(typeError, "no items for cycling given")
			}
			return items[l.index%len(items)]
		}}, true
	case "changed":
		return &builtin{name: "changed", call: func(r *run, a callArgs) Value {
			now := Tuple(a.positional("changed", -1))
			if l.hasChanged && r.equal(l.lastChanged, now) {
				return Bool(false)
			}
			l.lastChanged, l.hasChanged = now, true
			return Bool(true)
		}}, true
	}
	return nil, false
}
