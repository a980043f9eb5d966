package jinja

import (
	"math"
	"strings"
)

// newGlobals makes the functions that a template finds without being given them.
func newGlobals(clock Clock) *Dict {
	d := &Dict{}
	add := func(name string, call func(r *run, a callArgs) Value) *builtin {
		b := &builtin{name: name, call: call}
		d.Set(name, b)
		return b
	}
	add("range", func(_ *run, a callArgs) Value { return newRange(a.positional("range", 3)) })
	add("dict", func(r *run, a callArgs) Value { return r.newDict("dict", a) }).attrs = map[string]Value{"fromkeys": dictFromKeys}
	add("namespace", func(r *run, a callArgs) Value {
		ns := &namespace{&Dict{}}
		attrs := r.newDict("namespace", a)
		r.allocEach(attrs.Len()+1, entryBytes)
		for i := range attrs.Len() {
			key, value := attrs.At(i)
			if name, ok := text(key); ok {
				ns.set(name, value)
			}
		}
		return ns
	})
	add("cycler", func(r *run, a callArgs) Value {
		items := a.positional("cycler", -1)
		if len(items) == 0 {
			throw("RuntimeError", "at least one item has to be provided")
		}
		r.alloc(objectBytes)
		return &cycler{items: items}
	})
	add("joiner", func(r *run, a callArgs) Value {
		r.alloc(objectBytes)
		return &joiner{separator: optional(a.bind("joiner", 0, "sep")[0], Str(", "))}
	})
	add("raise_exception", func(r *run, a callArgs) Value {
		panic(&raised{r.toStr(a.bind("raise_exception", 1, "message")[0])})
	})
	if clock != nil {
		add("strftime_now", func(r *run, a callArgs) Value {
			format := textArg(a.bind("strftime_now", 1, "format")[0])
			r.allocEach(len(format), 16) // %c is the longest
			r.work(32 * len(format))
			return Str(strftime(clock(), format))
		})
	}
	return d
}

func newRange(args []Value) Value {
	bounds := make([]int64, len(args))
	for i, arg := range args {
		if u, ok := arg.(*undefined); ok {
			throw(typeError, "'%s' object cannot be interpreted as an integer", u.TypeName())
		}
		if f, ok := arg.(Float); ok {
			throw(typeError, "'%s' object cannot be interpreted as an integer", f.TypeName())
		}
		i64 := indexArg(arg)
		if i64 > math.MaxInt64/2 || i64 < math.MinInt64/2 {
			throw(overflowError, "range bound is too big")
		}
		bounds[i] = int64(i64)
	}
	v := &rangeValue{step: 1}
	switch len(bounds) {
	case 0:
		throw(typeError, "range expected at least 1 argument, got 0")
	case 1:
		v.stop = bounds[0]
	case 3:
		v.step = bounds[2]
		fallthrough
	case 2:
		v.start, v.stop = bounds[0], bounds[1]
	}
	if v.step == 0 {
		throw(valueError, "range() arg 3 must not be zero")
	}
	if v.length() > maxRange {
		throw(overflowError, "range too big: the sandbox blocks ranges larger than %d", maxRange)
	}
	return v
}

// newDict is Python's dict(): a mapping or pairs, then keywords.
func (r *run) newDict(function string, a callArgs) *Dict {
	if len(a.args) > 1 {
		throw(typeError, "%s expected at most 1 argument, got %d", function, len(a.args))
	}
	d := &Dict{}
	if len(a.args) == 1 {
		if from, ok := a.args[0].(*Dict); ok {
			r.allocEach(from.Len(), entryBytes)
			d = from.Clone()
		} else {
			for i, pair := range r.items(a.args[0]) {
				next, ok := r.iterator(pair)
				if !ok {
					throw(typeError, "cannot convert dictionary update sequence element #%d to a sequence", i)
				}
				key, hasKey := next()
				value, hasValue := next()
				if _, more := next(); !hasKey || !hasValue || more {
					throw(valueError, "dictionary update sequence element #%d does not have length 2", i)
				}
				r.alloc(entryBytes)
				d.set(r, key, value)
			}
		}
	}
	r.allocEach(len(a.named), entryBytes)
	for _, k := range a.named {
		d.Set(k.name, k.value)
	}
	return d
}

// set changes an attribute. Names with an underscore in front are refused, as transformers does.
func (ns *namespace) set(name string, v Value) {
	if strings.HasPrefix(name, "_") {
		throw(securityError, "chat templates cannot store underscore-prefixed attributes on a namespace, but got %s", reprString(name))
	}
	ns.attrs.Set(name, v)
}

// cycler is cycler(): it gives its items in turn.
type cycler struct {
	items []Value
	pos   int
}

func (*cycler) TypeName() string { return "Cycler" }

func (c *cycler) attr(name string) (Value, bool) {
	switch name {
	case "current":
		return c.items[c.pos], true
	case "pos":
		return Int(c.pos), true
	case "items":
		return Tuple(c.items), true
	case "next":
		return method(name, func(_ *run, a callArgs) Value {
			a.positional(name, 0)
			v := c.items[c.pos]
			c.pos = (c.pos + 1) % len(c.items)
			return v
		}), true
	case "reset":
		return method(name, func(_ *run, a callArgs) Value {
			a.positional(name, 0)
			c.pos = 0
			return None
		}), true
	}
	return nil, false
}

// joiner is joiner(): empty at its first call, the separator after that.
type joiner struct {
	separator Value
	used      bool
}

func (*joiner) TypeName() string { return "Joiner" }

func (j *joiner) call() Value {
	if j.used {
		return j.separator
	}
	j.used = true
	return Str("")
}
