package jsonvalue

import (
	"slices"
	"strconv"
	"strings"
)

// Text is a value as JSON without white space, its keys in the order in which they were written. A value that was read nests no deeper than its limits let it.
func Text(v *Value) string {
	var b strings.Builder
	write(&b, v, false)
	return b.String()
}

// Canonical is a text that equal values share: compact, keys sorted by their bytes, numbers by value.
func Canonical(v *Value) string {
	var b strings.Builder
	write(&b, v, true)
	return b.String()
}

// write goes down at most as deep as the reader let the value be.
func write(b *strings.Builder, v *Value, canonical bool) {
	switch v.Kind {
	case Null:
		b.WriteString("null")
	case Boolean:
		b.WriteString(strconv.FormatBool(v.Boolean))
	case Number:
		number := v.Text
		if canonical {
			number = ParseDecimal(number).String()
		}
		b.WriteString(number)
	case String:
		Quote(b, v.Text)
	case Array:
		b.WriteByte('[')
		for i, item := range v.Items {
			if i > 0 {
				b.WriteByte(',')
			}
			write(b, item, canonical)
		}
		b.WriteByte(']')
	case Object:
		members := v.Members
		if canonical {
			members = slices.Clone(members)
			slices.SortFunc(members, func(x, y Member) int { return strings.Compare(x.Key, y.Key) })
		}
		b.WriteByte('{')
		for i, m := range members {
			if i > 0 {
				b.WriteByte(',')
			}
			Quote(b, m.Key)
			b.WriteByte(':')
			write(b, m.Value, canonical)
		}
		b.WriteByte('}')
	}
}
