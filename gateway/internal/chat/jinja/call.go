package jinja

import (
	"strings"
)

// keyword is one named argument.
type keyword struct {
	name  string
	value Value
}

// callArgs are the arguments of one call, in the order in which they were written.
type callArgs struct {
	args  []Value
	named []keyword
}

// positional returns the arguments of a function that takes at most most of them (-1: any number) and no keywords.
func (a callArgs) positional(function string, most int) []Value {
	if len(a.named) > 0 {
		throw(typeError, "%s() takes no keyword arguments, got %q", function, a.named[0].name)
	}
	if most >= 0 && len(a.args) > most {
		throw(typeError, "%s() takes at most %d arguments (%d given)", function, most, len(a.args))
	}
	return a.args
}

// bind puts the arguments into the places of the named parameters; those left out are nil. The first required ones must be there.
func (a callArgs) bind(function string, required int, params ...string) []Value {
	if len(a.args) > len(params) {
		throw(typeError, "%s takes at most %d arguments (%d given)", function, len(params), len(a.args))
	}
	out := make([]Value, len(params))
	copy(out, a.args)
next:
	for _, k := range a.named {
		for i, param := range params {
			if param != k.name {
				continue
			}
			if out[i] != nil {
				throw(typeError, "%s got multiple values for argument %q", function, k.name)
			}
			out[i] = k.value
			continue next
		}
		throw(typeError, "%s got an unexpected keyword argument %q; allowed: %s", function, k.name, strings.Join(params, ", "))
	}
	for i := range required {
		if out[i] == nil {
			throw(typeError, "%s misses its argument %q", function, params[i])
		}
	}
	return out
}

// dict returns the named arguments as a dictionary.
func (a callArgs) dict(r *run) *Dict {
	r.allocEach(len(a.named), entryBytes)
	d := &Dict{}
	for _, k := range a.named {
		d.Set(k.name, k.value)
	}
	return d
}

// call calls any value.
func (r *run) call(function Value, a callArgs) Value {
	r.step()
	switch f := function.(type) {
	case *builtin:
		return f.call(r, a)
	case *macro:
		return f.call(r, a)
	case *undefined:
		f.fail()
	case *loopContext:
		if f.recurse == nil {
			throw(typeError, "the loop must have the 'recursive' marker to be called")
		}
		return f.recurse(a.bind("loop", 1, "iterable")[0], f.depth0+1)
	case *joiner:
		a.positional("joiner", 0)
		return f.call()
	}
	throw(typeError, "'%s' object is not callable", function.TypeName())
	return nil
}

func isCallable(v Value) bool {
	switch v.(type) {
	case *builtin, *macro, *undefined, *loopContext, *joiner:
		return true
	}
	return false
}

// indexArg is an argument that must be an integer.
func indexArg(v Value) int {
	if i, ok := smallInt(v); ok {
		return int(i)
	}
	if b, ok := v.(*BigInt); ok {
		if b.Big.Sign() < 0 {
			return -1 << 62
		}
		return 1 << 62
	}
	throw(typeError, "'%s' object cannot be interpreted as an integer", v.TypeName())
	return 0
}

// textArg is an argument that must be a string.
func textArg(v Value) string {
	s, ok := text(v)
	if !ok {
		throw(typeError, "expected str, got %s", v.TypeName())
	}
	return s
}

// optional returns v, or otherwise where the argument was left out.
func optional(v, otherwise Value) Value {
	if v == nil {
		return otherwise
	}
	return v
}
