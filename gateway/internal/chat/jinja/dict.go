package jinja

import (
	"fmt"
	"math"
	"strings"
)

// Dict is Python's dict: keys keep the order in which they were first set, and 1, 1.0 and True are the same key.
// The zero value is empty and ready. A Dict must not be changed while a rendering uses it.
type Dict struct {
	keys   []Value
	values []Value
	index  map[any]int
}

// TypeName implements Value.
func (*Dict) TypeName() string { return "dict" }

// Len returns the number of keys.
func (d *Dict) Len() int {
	if d == nil {
		return 0
	}
	return len(d.keys)
}

// At returns the i-th key and its value.
func (d *Dict) At(i int) (key, value Value) { return d.keys[i], d.values[i] }

// Get returns the value of a text key.
func (d *Dict) Get(key string) (Value, bool) {
	if d == nil {
		return nil, false
	}
	i, ok := d.index[key]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// Set sets a text key; a new key goes to the end.
func (d *Dict) Set(key string, value Value) { d.put(key, Str(key), value) }

// Clone copies d; the values are shared.
func (d *Dict) Clone() *Dict {
	c := &Dict{}
	c.Update(d)
	return c
}

// Update sets everything that other holds.
func (d *Dict) Update(other *Dict) {
	if other == nil {
		return
	}
	hashes := make([]any, len(other.keys))
	for hash, i := range other.index {
		hashes[i] = hash
	}
	for i, hash := range hashes {
		d.put(hash, other.keys[i], other.values[i])
	}
}

func (d *Dict) put(hash any, key, value Value) {
	if i, ok := d.index[hash]; ok {
		d.values[i] = value
		return
	}
	if d.index == nil {
		d.index = map[any]int{}
	}
	d.index[hash] = len(d.keys)
	d.keys = append(d.keys, key)
	d.values = append(d.values, value)
}

// set sets any hashable key; others raise TypeError. Callers count the entry.
func (d *Dict) set(r *run, key, value Value) { d.put(r.hashKey(key), key, value) }

// get looks up any hashable key; others raise TypeError.
func (d *Dict) get(r *run, key Value) (Value, bool) {
	i, ok := d.index[r.hashKey(key)]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

type (
	noneKey      struct{}
	undefinedKey struct{}
	bigKey       string
	tupleKey     string
)

// hashKey maps a value to a comparable Go value such that Python's equal keys map to equal ones: strings to string, whole numbers to int64.
func (r *run) hashKey(v Value) any {
	items := maxKeyItems
	return r.hashAt(v, 0, &items)
}

// maxKeyItems bounds the items of nested tuples that serve as one key; a tuple that holds another twice, and so on, has exponentially many.
const maxKeyItems = 10000

func (r *run) hashAt(v Value, depth int, items *int) any {
	if depth > maxValueDepth {
		throw("RecursionError", "value nests deeper than %d", maxValueDepth)
	}
	if *items--; *items < 0 {
		throw(limitError, "key of more than %d items", maxKeyItems)
	}
	switch v := v.(type) {
	case Str:
		r.work(len(v) >> 6)
		return string(v)
	case markup:
		r.work(len(v) >> 6)
		return string(v)
	case none:
		return noneKey{}
	case Bool:
		if v {
			return int64(1)
		}
		return int64(0)
	case Int:
		return int64(v)
	case *BigInt:
		r.chargeBig(words(v))
		return bigKey(v.Big.String())
	case Float:
		if f := float64(v); f == math.Trunc(f) && math.Abs(f) < 1<<63 {
			return int64(f)
		}
		if f := float64(v); f == math.Trunc(f) && !math.IsInf(f, 0) {
			return bigKey(floatToInt(f).(*BigInt).Big.String())
		}
		return float64(v)
	case *undefined:
		return undefinedKey{}
	case Tuple:
		var b strings.Builder
		for _, item := range v {
			r.work(4 * evaluationSteps)
			hash := r.hashAt(item, depth+1, items)
			if s, ok := text(item); ok {
				r.alloc(2 * len(s))
			}
			if s, ok := hash.(tupleKey); ok {
				r.alloc(2 * len(s))
			}
			key := fmt.Sprintf("%T %v", hash, hash)
			r.alloc(2*len(key) + objectBytes)
			fmt.Fprintf(&b, "%d:%s", len(key), key)
		}
		return tupleKey(b.String())
	case *List, *Dict:
		throw(typeError, "unhashable type: '%s'", v.TypeName())
	case *dictView:
		if v.kind != "values" {
			throw(typeError, "unhashable type: '%s'", v.TypeName())
		}
	case *rangeValue:
		return *v
	}
	return v
}
