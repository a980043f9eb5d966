// Package jsonvalue reads JSON texts that strangers wrote. It keeps the order of keys and the text of numbers, holds to bounds of depth and size, and does not
// use the stack of the caller, so no text can overflow it. It knows nothing of schemas.
package jsonvalue

// Kind is one of the six kinds of JSON values.
type Kind uint8

// The kinds, in the order in which schemas list them.
const (
	Null Kind = iota
	Boolean
	Number
	String
	Array
	Object
)

// Kinds is how many kinds there are.
const Kinds = 6

var kindNames = [Kinds]string{"null", "boolean", "number", "string", "array", "object"}

// String is the name that JSON Schema has for the kind.
func (k Kind) String() string { return kindNames[k] }

// Value is one value of a text. It is not changed after it was read.
type Value struct {
	Kind    Kind
	Boolean bool     // of a boolean
	Text    string   // of a string: its characters; of a number: its text as it was written
	Items   []*Value // of an array
	Members []Member // of an object, in the order of the text, no key twice

	index map[string]*Value // of objects with more than a few members
}

// Member is one key of an object with its value.
type Member struct {
	Key   string
	Value *Value
}

// Get is the value of a key, or nil. On what is no object it is nil.
func (v *Value) Get(key string) *Value {
	if v == nil || v.Kind != Object {
		return nil
	}
	if v.index != nil {
		return v.index[key]
	}
	for i := range v.Members {
		if v.Members[i].Key == key {
			return v.Members[i].Value
		}
	}
	return nil
}

// Equal tells whether two values are the same JSON value: numbers by value, objects whatever the order of their keys.
// It is iterative, and its work is at most the size of the smaller value, but for numbers and keys.
func Equal(a, b *Value) bool {
	type pair struct{ a, b *Value }
	stack := []pair{{a, b}}
	for len(stack) > 0 {
		a, b := stack[len(stack)-1].a, stack[len(stack)-1].b
		stack = stack[:len(stack)-1]
		if a.Kind != b.Kind {
			return false
		}
		switch a.Kind {
		case Boolean:
			if a.Boolean != b.Boolean {
				return false
			}
		case Number:
			if ParseDecimal(a.Text).Compare(ParseDecimal(b.Text)) != 0 {
				return false
			}
		case String:
			if a.Text != b.Text {
				return false
			}
		case Array:
			if len(a.Items) != len(b.Items) {
				return false
			}
			for i := range a.Items {
				stack = append(stack, pair{a.Items[i], b.Items[i]})
			}
		case Object:
			if len(a.Members) != len(b.Members) {
				return false
			}
			for _, member := range a.Members {
				other := b.Get(member.Key)
				if other == nil {
					return false
				}
				stack = append(stack, pair{member.Value, other})
			}
		case Null:
		}
	}
	return true
}
