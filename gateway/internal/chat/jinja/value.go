package jinja

import (
	"math/big"
)

// Value is a value of the template language, with Python's types and semantics: [None], [Bool], [Int], *[BigInt], [Float], [Str], [Tuple], *[List],
// *[Dict], and what only templates make (undefined values, functions, iterators, namespaces). Templates never change a value that they were given,
// so values may be shared between concurrent renderings.
type Value interface {
	// TypeName is the name of the Python type, as error messages print it.
	TypeName() string
}

type (
	none struct{}
	// Bool is Python's bool; in arithmetic it is 0 or 1.
	Bool bool
	// Int is an integer that fits 64 bits.
	Int int64
	// BigInt is an integer that does not fit [Int]; normalInt makes sure of that.
	BigInt struct{ Big *big.Int }
	// Float is Python's float.
	Float float64
	// Str is text in UTF-8. Indexes and lengths count code points.
	Str string
	// markup is text that the filters escape and safe have marked; it differs from Str in + and %, which escape the other side.
	markup string
	// List is Python's list.
	List struct{ Items []Value }
	// Tuple is Python's tuple.
	Tuple []Value
)

// None is Python's None, JSON's null.
var None Value = none{}

// TypeName implements Value.
func (none) TypeName() string { return "NoneType" }

// TypeName implements Value.
func (Bool) TypeName() string { return "bool" }

// TypeName implements Value.
func (Int) TypeName() string { return "int" }

// TypeName implements Value.
func (*BigInt) TypeName() string { return "int" }

// TypeName implements Value.
func (Float) TypeName() string { return "float" }

// TypeName implements Value.
func (Str) TypeName() string { return "str" }

func (markup) TypeName() string { return "Markup" }

// TypeName implements Value.
func (*List) TypeName() string { return "list" }

// TypeName implements Value.
func (Tuple) TypeName() string { return "tuple" }

// undefined is what a missing name, attribute or element is. Printing it, iterating it or testing it is allowed; anything else raises its message.
type undefined struct {
	// hint is the whole message where it is set.
	hint string
	// object has no element or attribute name; a nil object means that name is a missing variable.
	object, name Value
	// class is the exception raised on use.
	class string
}

func (*undefined) TypeName() string { return "Undefined" }

func undefinedName(name string) *undefined {
	return &undefined{name: Str(name), class: undefinedError}
}

func undefinedHint(hint string) *undefined { return &undefined{hint: hint, class: undefinedError} }

func undefinedElement(object, name Value) *undefined {
	return &undefined{object: object, name: name, class: undefinedError}
}

// unsafe is what an attribute that the sandbox refuses becomes.
func unsafe(object Value, attr string) *undefined {
	return &undefined{hint: "access to attribute " + reprString(attr) + " of " + reprString(object.TypeName()) + " object is unsafe.", class: securityError}
}

func (u *undefined) fail() {
	if u.hint != "" {
		throw(u.class, "%s", u.hint)
	}
	if u.object == nil {
		throw(u.class, "%s is undefined", reprValue(u.name))
	}
	owner := u.object.TypeName() + " object"
	if u.object == None {
		owner = "None"
	}
	if name, ok := text(u.name); ok {
		throw(u.class, "'%s' has no attribute %s", owner, reprString(name))
	}
	throw(u.class, "%s has no element %s", owner, reprValue(u.name))
}

// text returns the string in v, marked or not.
func text(v Value) (string, bool) {
	switch v := v.(type) {
	case Str:
		return string(v), true
	case markup:
		return string(v), true
	}
	return "", false
}

func isUndefined(v Value) bool {
	_, ok := v.(*undefined)
	return ok
}

// truth is Python's truth value.
func truth(v Value) bool {
	switch v := v.(type) {
	case none:
		return false
	case Bool:
		return bool(v)
	case Int:
		return v != 0
	case Float:
		return v != 0
	case Str:
		return v != ""
	case markup:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case Tuple:
		return len(v) > 0
	case *Dict:
		return v.Len() > 0
	case *undefined:
		return false
	case *rangeValue:
		return v.length() > 0
	case *dictView:
		return v.dict.Len() > 0
	case *loopContext:
		return v.length() > 0
	}
	return true
}

// namespace is what namespace() makes: the only value that a template can change.
type namespace struct{ attrs *Dict }

func (*namespace) TypeName() string { return "Namespace" }

// dictView is the result of a dictionary's keys, values or items.
type dictView struct {
	dict *Dict
	kind string
}

func (d *dictView) TypeName() string { return "dict_" + d.kind }

// item is at, with what is made for it counted.
func (d *dictView) item(r *run, i int) Value {
	if d.kind == "items" {
		r.alloc(2*valueBytes + objectBytes)
	}
	return d.at(i)
}

func (d *dictView) at(i int) Value {
	key, value := d.dict.At(i)
	switch d.kind {
	case "keys":
		return key
	case "values":
		return value
	}
	return Tuple{key, value}
}

// rangeValue is Python's range.
type rangeValue struct{ start, stop, step int64 }

func (*rangeValue) TypeName() string { return "range" }

func (v *rangeValue) length() int {
	const small = 1 << 40
	if v.start < small && v.start > -small && v.stop < small && v.stop > -small && v.step < small && v.step > -small {
		switch {
		case v.step > 0 && v.stop > v.start:
			return int(min((v.stop-v.start+v.step-1)/v.step, maxRange+1))
		case v.step < 0 && v.stop < v.start:
			return int(min((v.start-v.stop-v.step-1)/-v.step, maxRange+1))
		}
		return 0
	}
	span := new(big.Int).Sub(big.NewInt(v.stop), big.NewInt(v.start))
	step := big.NewInt(v.step)
	if span.Sign() == 0 || span.Sign() != step.Sign() {
		return 0
	}
	span.Abs(span)
	step.Abs(step)
	span.Add(span, step).Sub(span, big.NewInt(1)).Div(span, step)
	if !span.IsInt64() || span.Int64() > maxRange {
		return maxRange + 1
	}
	return int(span.Int64())
}

func (v *rangeValue) at(i int) Value { return Int(v.start + int64(i)*v.step) }

// generator is an iterator that a filter made: it can be walked once.
type generator struct {
	name string
	next func() (Value, bool)
}

func (g *generator) TypeName() string { return g.name }

// builtin is a function of the environment or a method bound to its object.
type builtin struct {
	name string
	call func(r *run, a callArgs) Value
	// attrs are attributes of the function itself, such as dict.fromkeys.
	attrs map[string]Value
}

func (*builtin) TypeName() string { return "builtin_function_or_method" }
