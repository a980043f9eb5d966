package jinja

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// getAttr is object.name: the Python attribute first, then the element. So message.items is the method even where there is a key "items".
func (r *run) getAttr(object Value, name string) Value {
	if u, ok := object.(*undefined); ok {
		if slices.Contains(pythonAttributes, name) {
			return unsafe(object, name)
		}
		u.fail()
	}
	if v, ok := r.attribute(object, name); ok {
		return v
	}
	if v, ok := r.element(object, Str(name)); ok {
		return v
	}
	r.alloc(2 * objectBytes)
	return undefinedElement(object, Str(name))
}

// getItem is object[key]: the element first, then, for a string, the attribute.
func (r *run) getItem(object, key Value) Value {
	if u, ok := object.(*undefined); ok {
		u.fail()
	}
	if v, ok := r.element(object, key); ok {
		return v
	}
	if name, ok := text(key); ok {
		if v, ok := r.attribute(object, name); ok {
			return v
		}
	}
	r.alloc(2 * objectBytes)
	return undefinedElement(object, key)
}

// element is Python's object[key]; ok is false for a missing or impossible one.
func (r *run) element(object, key Value) (v Value, ok bool) {
	switch o := object.(type) {
	case *Dict:
		if !r.hashable(key, 0) {
			return nil, false
		}
		return o.get(r, key)
	case *rangeValue:
		if i, ok := elementIndex(key, o.length()); ok {
			return o.at(i), true
		}
	case *List:
		if i, ok := elementIndex(key, len(o.Items)); ok {
			return o.Items[i], true
		}
	case Tuple:
		if i, ok := elementIndex(key, len(o)); ok {
			return o[i], true
		}
	case *groupTuple:
		return r.element(o.pair(), key)
	case Str:
		if c, ok := r.character(string(o), key); ok {
			return Str(c), true
		}
	case markup:
		if c, ok := r.character(string(o), key); ok {
			return markup(c), true
		}
	}
	return nil, false
}

func (r *run) hashable(v Value, depth int) bool {
	r.work(1)
	if depth > maxValueDepth {
		throw("RecursionError", "value nests deeper than %d", maxValueDepth)
	}
	switch v := v.(type) {
	case *List, *Dict, *sliceValue:
		return false
	case Tuple:
		return !slices.ContainsFunc(v, func(item Value) bool { return !r.hashable(item, depth+1) })
	}
	return true
}

func elementIndex(key Value, n int) (int, bool) {
	i64, ok := smallInt(key)
	if !ok {
		return 0, false
	}
	if i64 < 0 {
		i64 += int64(n)
	}
	return int(i64), i64 >= 0 && i64 < int64(n)
}

// character is the code point of s at an index.
func (r *run) character(s string, key Value) (string, bool) {
	i, ok := smallInt(key)
	if !ok {
		return "", false
	}
	r.scan(len(s))
	n := utf8.RuneCountInString(s)
	at, ok := elementIndex(Int(i), n)
	if !ok {
		return "", false
	}
	if n != len(s) {
		r.work(2 * at)
	}
	start := byteOffset(s, at, n)
	_, size := utf8.DecodeRuneInString(s[start:])
	return s[start : start+size], true
}

// byteOffset is where the i-th of s's n code points starts.
func byteOffset(s string, i, n int) int {
	if n == len(s) {
		return i
	}
	offset := 0
	for ; i > 0; i-- {
		_, size := utf8.DecodeRuneInString(s[offset:])
		offset += size
	}
	return offset
}

// sliceValue is the key of object[a:b] and object[a:b:c]; Python passes the same object when it stands in a tuple.
type sliceValue struct{ start, stop, step Value }

func (*sliceValue) TypeName() string { return "slice" }

// slice is object[start:stop:step].
func (r *run) slice(object Value, s *sliceValue) Value {
	switch o := object.(type) {
	case *undefined:
		o.fail()
	case Str:
		return Str(r.sliceText(string(o), s))
	case markup:
		return markup(r.sliceText(string(o), s))
	case *List:
		return &List{r.sliceItems(o.Items, s)}
	case Tuple:
		return Tuple(r.sliceItems(o, s))
	case *rangeValue:
		start, step, n := sliceBounds(s, o.length())
		out := &rangeValue{start: o.start + int64(start)*o.step, step: o.step * int64(step)}
		out.stop = out.start + int64(n)*out.step
		return out
	case *Dict:
		throw(typeError, "unhashable type: 'slice'")
	}
	throw(typeError, "'%s' object is not subscriptable", object.TypeName())
	return nil
}

func (r *run) sliceText(s string, by *sliceValue) string {
	r.scan(len(s))
	length := utf8.RuneCountInString(s)
	start, step, n := sliceBounds(by, length)
	if n == 0 {
		return ""
	}
	if step == 1 {
		if length != len(s) {
			r.work(2 * (start + n))
		}
		from := byteOffset(s, start, length)
		rest := s[from:]
		return rest[:byteOffset(rest, n, length-start)]
	}
	r.allocEach(length, 8)
	runes := []rune(s)
	r.work(length)
	var b strings.Builder
	for i := range n {
		b.WriteRune(runes[start+i*step])
	}
	return b.String()
}

func (r *run) sliceItems(items []Value, s *sliceValue) []Value {
	start, step, n := sliceBounds(s, len(items))
	out := r.room(n)
	for i := range n {
		out = append(out, items[start+i*step])
	}
	return out
}

// sliceBounds is Python's slice.indices: the first index, the step and how many items there are.
func sliceBounds(s *sliceValue, length int) (start, step, n int) {
	part := func(v Value, otherwise int) int {
		switch v := v.(type) {
		case none:
			return otherwise
		case *BigInt:
			return v.Big.Sign() * math.MaxInt32
		}
		i, ok := smallInt(v)
		if !ok {
			throw(typeError, "slice indices must be integers or None or have an __index__ method")
		}
		return int(min(max(i, -math.MaxInt32), math.MaxInt32))
	}
	step = part(s.step, 1)
	if step == 0 {
		throw(valueError, "slice step cannot be zero")
	}
	low, high := 0, length
	if step < 0 {
		low, high = -1, length-1
	}
	clamp := func(v Value, otherwise int) int {
		if v == None {
			return otherwise
		}
		i := part(v, 0)
		if i < 0 {
			i += length
		}
		return min(max(i, low), high)
	}
	var stop int
	if step > 0 {
		start, stop = clamp(s.start, low), clamp(s.stop, high)
		n = (stop - start + step - 1) / step
	} else {
		start, stop = clamp(s.start, high), clamp(s.stop, low)
		n = (start - stop - step - 1) / -step
	}
	return start, step, max(n, 0)
}

// pythonAttributes exist on every Python object; the sandbox refuses them.
var pythonAttributes = []string{
	"__class__", "__doc__", "__init__", "__eq__", "__hash__", "__str__", "__repr__", "__dir__", "__getattribute__", "__subclasshook__", "__reduce__",
	"__reduce_ex__", "__new__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__format__", "__sizeof__", "__setattr__", "__delattr__", "__init_subclass__",
}

// mutators are the methods that would change a list or dictionary: the sandbox refuses them.
var mutators = map[string][]string{
	"list": {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"},
	"dict": {"clear", "pop", "popitem", "setdefault", "update"},
}

// attribute is Python's getattr(object, name) behind the sandbox.
func (r *run) attribute(object Value, name string) (Value, bool) {
	if strings.HasPrefix(name, "__") && slices.Contains(pythonAttributes, name) {
		return unsafe(object, name), true
	}
	r.alloc(objectBytes)
	if slices.Contains(mutators[object.TypeName()], name) {
		return unsafe(object, name), true
	}
	switch o := object.(type) {
	case Str, markup:
		return r.stringAttribute(object, name)
	case *Dict:
		return dictAttribute(o, name)
	case *List:
		if name == "copy" {
			return method(name, func(r *run, a callArgs) Value {
				a.positional(name, 0)
				return &List{append(r.room(len(o.Items)), o.Items...)}
			}), true
		}
		return sequenceAttribute(o.Items, o.TypeName(), name)
	case Tuple:
		return sequenceAttribute(o, o.TypeName(), name)
	case *rangeValue:
		switch name {
		case "start":
			return Int(o.start), true
		case "stop":
			return Int(o.stop), true
		case "step":
			return Int(o.step), true
		}
		return sequenceAttribute(r.items(o), o.TypeName(), name)
	case Int, Bool, *BigInt, Float:
		return numberAttribute(object, name)
	case *namespace:
		return o.attrs.Get(name)
	case *loopContext:
		return o.attr(name)
	case *macro:
		return o.attr(name)
	case *cycler:
		return o.attr(name)
	case *groupTuple:
		return o.attr(name)
	case *builtin:
		v, ok := o.attrs[name]
		return v, ok
	}
	return nil, false
}

func method(name string, call func(r *run, a callArgs) Value) *builtin {
	return &builtin{name: name, call: call}
}

func dictAttribute(d *Dict, name string) (Value, bool) {
	switch name {
	case "keys", "values", "items":
		return method(name, func(r *run, a callArgs) Value {
			a.positional(name, 0)
			r.alloc(objectBytes)
			return &dictView{d, name}
		}), true
	case "get":
		return method(name, func(r *run, a callArgs) Value {
			args := a.positional(name, 2)
			if len(args) == 0 {
				throw(typeError, "get expected at least 1 argument, got 0")
			}
			if v, ok := d.get(r, args[0]); ok {
				return v
			}
			if len(args) == 2 {
				return args[1]
			}
			return None
		}), true
	case "copy":
		return method(name, func(r *run, a callArgs) Value {
			a.positional(name, 0)
			r.allocEach(d.Len(), entryBytes)
			return d.Clone()
		}), true
	case "fromkeys":
		return dictFromKeys, true
	}
	return nil, false
}

var dictFromKeys = method("fromkeys", func(r *run, a callArgs) Value {
	args := a.positional("fromkeys", 2)
	if len(args) == 0 {
		throw(typeError, "fromkeys expected at least 1 argument, got 0")
	}
	d := &Dict{}
	for _, key := range r.items(args[0]) {
		value := None
		if len(args) == 2 {
			value = args[1]
		}
		r.alloc(entryBytes)
		d.set(r, key, value)
	}
	return d
})

func sequenceAttribute(items []Value, typeName, name string) (Value, bool) {
	switch name {
	case "count":
		return method(name, func(r *run, a callArgs) Value {
			want := a.bind("count", 1, "value")[0]
			n := 0
			for _, item := range items {
				if r.equal(item, want) {
					n++
				}
			}
			return Int(n)
		}), true
	case "index":
		return method(name, func(r *run, a callArgs) Value {
			args := a.positional(name, 3)
			if len(args) == 0 {
				throw(typeError, "index expected at least 1 argument, got 0")
			}
			bounds := &sliceValue{None, None, None}
			if len(args) > 1 {
				bounds.start = args[1]
			}
			if len(args) > 2 {
				bounds.stop = args[2]
			}
			start, _, n := sliceBounds(bounds, len(items))
			for i := range n {
				if r.equal(items[start+i], args[0]) {
					return Int(start + i)
				}
			}
			throw(valueError, "%s is not in %s", reprValue(args[0]), typeName)
			return nil
		}), true
	}
	return nil, false
}

func numberAttribute(v Value, name string) (Value, bool) {
	nullary := func(result func() Value) (Value, bool) {
		return method(name, func(_ *run, a callArgs) Value {
			a.positional(name, 0)
			return result()
		}), true
	}
	asInt := func(v Value) Value {
		i, _ := integer(v)
		return normalInt(i)
	}
	f, isFloat := v.(Float)
	if isFloat {
		switch name {
		case "real":
			return v, true
		case "imag":
			return Float(0), true
		case "conjugate":
			return nullary(func() Value { return v })
		case "is_integer":
			return nullary(func() Value { return Bool(float64(f) == math.Trunc(float64(f)) && !math.IsInf(float64(f), 0)) })
		}
		return nil, false
	}
	switch name {
	case "real", "numerator":
		return asInt(v), true
	case "imag":
		return Int(0), true
	case "denominator":
		return Int(1), true
	case "conjugate":
		return nullary(func() Value { return asInt(v) })
	case "bit_length", "bit_count":
		return nullary(func() Value {
			i, _ := integer(v)
			if name == "bit_length" {
				return Int(i.BitLen())
			}
			n := 0
			abs := new(big.Int).Abs(i)
			for bit := range abs.BitLen() {
				n += int(abs.Bit(bit))
			}
			return Int(n)
		})
	}
	return nil, false
}
