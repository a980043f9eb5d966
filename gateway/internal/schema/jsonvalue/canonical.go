package jsonvalue

import (
	"sort"
	"strings"
)

const hexDigits = "0123456789abcdef"

// Quote writes a string as JSON does, with no more escapes than JSON demands.
func Quote(b *strings.Builder, text string) {
	b.WriteByte('"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\r':
			b.WriteString(`\r`)
		case c < 0x20:
			b.WriteString(`\u00`)
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
}

// writeCanonical goes down at most as deep as the reader let the value be.
func writeCanonical(b *strings.Builder, v *Value) {
	switch v.Kind {
	case Null:
		b.WriteString("null")
	case Boolean:
		if v.Boolean {
			b.WriteString("true")
		} else {
			b.WriteString("false")
		}
	case Number:
		b.WriteString(ParseDecimal(v.Text).String())
	case String:
		Quote(b, v.Text)
	case Array:
		b.WriteByte('[')
		for i, item := range v.Items {
			if i > 0 {
				b.WriteByte(',')
			}
			writeCanonical(b, item)
		}
		b.WriteByte(']')
	case Object:
		members := append([]Member(nil), v.Members...)
		sort.Slice(members, func(i, j int) bool { return members[i].Key < members[j].Key })
		b.WriteByte('{')
		for i, member := range members {
			if i > 0 {
				b.WriteByte(',')
			}
			Quote(b, member.Key)
			b.WriteByte(':')
			writeCanonical(b, member.Value)
		}
		b.WriteByte('}')
	}
}
