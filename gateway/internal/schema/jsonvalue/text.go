package jsonvalue

import (
	"strconv"
	"strings"
)

// Text is a value as JSON without white space, its keys in the order in which they were written. A value that was read nests no deeper than its limits let it.
func Text(v *Value) string {
	var b strings.Builder
	writeText(&b, v)
	return b.String()
}

func writeText(b *strings.Builder, v *Value) {
	switch v.Kind {
	case Null:
		b.WriteString("null")
	case Boolean:
		b.WriteString(strconv.FormatBool(v.Boolean))
	case Number:
		b.WriteString(v.Text)
	case String:
		Quote(b, v.Text)
	case Array:
		b.WriteByte('[')
		for i, item := range v.Items {
			if i > 0 {
				b.WriteByte(',')
			}
			writeText(b, item)
		}
		b.WriteByte(']')
	case Object:
		b.WriteByte('{')
		for i, m := range v.Members {
			if i > 0 {
				b.WriteByte(',')
			}
			Quote(b, m.Key)
			b.WriteByte(':')
			writeText(b, m.Value)
		}
		b.WriteByte('}')
	}
}
