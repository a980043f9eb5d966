package jinja

import (
	"cmp"
	"math"
	"math/big"
	"strings"
)

// equal is Python's ==.
func (r *run) equal(a, b Value) bool { return r.equalAt(a, b, 0) }

func (r *run) equalAt(a, b Value, depth int) bool {
	if depth > maxValueDepth {
		throw("RecursionError", "value nests deeper than %d", maxValueDepth)
	}
	r.step()
	if x, ok := text(a); ok {
		y, ok := text(b)
		r.work(min(len(x), len(y)) >> 6)
		return ok && x == y
	}
	if isNumber(a) {
		return isNumber(b) && r.numberCompare(a, b) == 0
	}
	switch x := a.(type) {
	case *List:
		y, ok := b.(*List)
		return ok && r.equalItems(x.Items, y.Items, depth)
	case Tuple:
		y, ok := b.(Tuple)
		return ok && r.equalItems(x, y, depth)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false
		}
		for i := range x.Len() {
			key, value := x.At(i)
			other, ok := y.get(r, key)
			if !ok || !r.equalAt(value, other, depth+1) {
				return false
			}
		}
		return true
	case *undefined:
		return isUndefined(b)
	case *rangeValue:
		y, ok := b.(*rangeValue)
		if !ok {
			return false
		}
		n := x.length()
		return n == y.length() && (n == 0 || x.start == y.start && (n == 1 || x.step == y.step))
	case *dictView:
		y, ok := b.(*dictView)
		if !ok || x.kind == "values" || y.kind == "values" || x.dict.Len() != y.dict.Len() {
			return a == b
		}
		for i := range x.dict.Len() {
			if !r.contains(y, x.at(i)) {
				return false
			}
		}
		return true
	}
	return a == b
}

func (r *run) equalItems(a, b []Value, depth int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !r.equalAt(a[i], b[i], depth+1) {
			return false
		}
	}
	return true
}

// unordered is what numberCompare gives when one side is not a number.
const unordered = 2

// numberCompare is the function of that name, counted where numbers of any size are made for it.
func (r *run) numberCompare(a, b Value) int {
	r.chargeBig(words(a) + words(b))
	return numberCompare(a, b)
}

// numberCompare compares two numbers exactly, whatever their types.
func numberCompare(a, b Value) int {
	x, xFloat := a.(Float)
	y, yFloat := b.(Float)
	if math.IsNaN(float64(x)) || math.IsNaN(float64(y)) {
		return unordered
	}
	if xFloat && yFloat {
		return cmp.Compare(x, y)
	}
	if i, ok := smallInt(a); ok {
		if j, ok := smallInt(b); ok {
			return cmp.Compare(i, j)
		}
	}
	const exact = 1 << 53 // integers up to here are floats too
	if i, ok := smallInt(a); ok && yFloat && i <= exact && i >= -exact {
		return cmp.Compare(Float(i), y)
	}
	if j, ok := smallInt(b); ok && xFloat && j <= exact && j >= -exact {
		return cmp.Compare(x, Float(j))
	}
	return exactFloat(a).Cmp(exactFloat(b))
}

func exactFloat(v Value) *big.Float {
	if f, ok := v.(Float); ok {
		return big.NewFloat(float64(f))
	}
	i, _ := integer(v)
	return new(big.Float).SetPrec(uint(i.BitLen() + 64)).SetInt(i)
}

// order applies <, <=, > or >=.
func (r *run) order(op string, a, b Value) bool { return r.orderAt(op, a, b, 0) }

func (r *run) orderAt(op string, a, b Value, depth int) bool {
	if depth > maxValueDepth {
		throw("RecursionError", "value nests deeper than %d", maxValueDepth)
	}
	r.step()
	for _, v := range []Value{a, b} {
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
	}
	if x, ok := text(a); ok {
		if y, ok := text(b); ok {
			r.work(min(len(x), len(y)) >> 6)
			// UTF-8 keeps the order of code points.
			return holds(op, strings.Compare(x, y))
		}
	}
	if isNumber(a) && isNumber(b) {
		return holds(op, r.numberCompare(a, b))
	}
	x, y, ok := sequencePair(a, b)
	if !ok {
		throw(typeError, "'%s' not supported between instances of '%s' and '%s'", op, a.TypeName(), b.TypeName())
	}
	for i := range min(len(x), len(y)) {
		if !r.equalAt(x[i], y[i], depth+1) {
			return r.orderAt(op, x[i], y[i], depth+1)
		}
	}
	return holds(op, cmp.Compare(len(x), len(y)))
}

func holds(op string, c int) bool {
	if c == unordered {
		return false
	}
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

func sequencePair(a, b Value) (x, y []Value, ok bool) {
	switch a := a.(type) {
	case *List:
		if b, ok := b.(*List); ok {
			return a.Items, b.Items, true
		}
	case Tuple:
		if b, ok := b.(Tuple); ok {
			return a, b, true
		}
	}
	return nil, nil, false
}

// compare applies any comparison operator of the grammar.
func (r *run) compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	return r.order(op, a, b)
}

// contains is Python's "item in container".
func (r *run) contains(container, item Value) bool {
	if s, ok := text(container); ok {
		part, ok := text(item)
		if !ok {
			throw(typeError, "'in <string>' requires string as left operand, not %s", item.TypeName())
		}
		r.scan(len(s))
		return strings.Contains(s, part)
	}
	switch c := container.(type) {
	case *Dict:
		_, ok := c.get(r, item)
		return ok
	case *dictView:
		switch c.kind {
		case "keys":
			_, ok := c.dict.get(r, item)
			return ok
		case "items":
			pair, ok := item.(Tuple)
			if !ok || len(pair) != 2 {
				return false
			}
			value, ok := c.dict.get(r, pair[0])
			return ok && r.equal(value, pair[1])
		}
	case *rangeValue:
		if f, ok := item.(Float); ok && float64(f) == math.Trunc(float64(f)) && !math.IsInf(float64(f), 0) {
			item = floatToInt(float64(f))
		}
		i, ok := smallInt(item)
		if !ok {
			return false
		}
		n := int64(c.length())
		return n > 0 && (i-c.start)%c.step == 0 && (i-c.start)/c.step >= 0 && (i-c.start)/c.step < n
	}
	next, ok := r.iterator(container)
	if !ok {
		throw(typeError, "argument of type '%s' is not iterable", container.TypeName())
	}
	for v, ok := next(); ok; v, ok = next() {
		if r.equal(v, item) {
			return true
		}
	}
	return false
}

// same is Python's "is" as far as a template can tell: identity for containers, type and value for scalars.
func same(a, b Value) bool {
	switch a := a.(type) {
	case Tuple:
		b, ok := b.(Tuple)
		return ok && len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
	}
	if _, ok := b.(Tuple); ok {
		return false
	}
	return a == b
}
