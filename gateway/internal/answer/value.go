package answer

import (
	"encoding/json"
	"strings"
)

// valueWriter turns the text of a parameter, which has no type of its own, into JSON. What the tool's schema says of the parameter decides. A string is given
// out while it comes, everything else when it has ended.
type valueWriter struct {
	types  types
	give   func(text string)
	prefix string // given out before the value: the key

	text  []byte // held until the type is known
	begun bool   // it is a string, and is given out as it comes
}

// add takes more of the value's text.
func (v *valueWriter) add(text []byte) {
	if v.begun {
		v.give(escape(text))
		return
	}
	v.text = append(v.text, text...)
	if len(v.text) > 0 && v.types.onlyString(v.text) {
		v.begin()
	}
}

// begin begins a string.
func (v *valueWriter) begin() {
	v.begun = true
	v.give(v.prefix + `"` + escape(v.text))
	v.text = nil
}

// end is the value's end.
func (v *valueWriter) end() {
	if !v.begun {
		if value, ok := v.types.value(string(v.text)); ok {
			v.give(v.prefix + value)
			return
		}
		v.begin()
	}
	v.give(`"`)
}

// escape writes text as the inside of a JSON string. It takes the bytes of a character one by one, too.
func escape(text []byte) string {
	var out strings.Builder
	for _, b := range text {
		switch {
		case b == '"' || b == '\\':
			out.WriteByte('\\')
			out.WriteByte(b)
		case b == '\n':
			out.WriteString(`\n`)
		case b == '\r':
			out.WriteString(`\r`)
		case b == '\t':
			out.WriteString(`\t`)
		case b < 0x20:
			out.WriteString(`\u00` + string("0123456789abcdef"[b>>4]) + string("0123456789abcdef"[b&15]))
		default:
			out.WriteByte(b)
		}
	}
	return out.String()
}

// value gives the JSON of a whole text, or false if it is a string.
func (t types) value(text string) (string, bool) {
	trimmed := strings.Trim(text, whiteSpace)
	switch t {
	case anyJSON:
		return text, json.Valid([]byte(text))
	case unknownType:
		return text, isContainer(trimmed, '{') || isContainer(trimmed, '[')
	}
	if t&nullType != 0 && (trimmed == "null" || trimmed == "None") {
		return "null", true
	}
	switch {
	case t&integerType != 0 && isNumber(trimmed) && isIntegral(trimmed), t&numberType != 0 && isNumber(trimmed):
		return trimmed, true
	case t&booleanType != 0 && (trimmed == "true" || trimmed == "True"):
		return "true", true
	case t&booleanType != 0 && (trimmed == "false" || trimmed == "False"):
		return "false", true
	case t&objectType != 0 && isContainer(trimmed, '{'), t&arrayType != 0 && isContainer(trimmed, '['):
		return text, true
	}
	return "", false
}

// onlyString says whether a value that begins with text can be nothing but a string.
func (t types) onlyString(text []byte) bool {
	switch t {
	case stringType:
		return true
	case unknownType:
		first := strings.TrimLeft(string(text[:min(len(text), 64)]), whiteSpace)
		return first != "" && first[0] != '{' && first[0] != '['
	case stringType | nullType:
		word := strings.Trim(string(text[:min(len(text), 64)]), whiteSpace)
		return !strings.HasPrefix("null", word) && !strings.HasPrefix("None", word)
	}
	return false
}

// isContainer says whether text is a JSON object or list.
func isContainer(text string, opening byte) bool {
	return text != "" && text[0] == opening && json.Valid([]byte(text))
}

// isNumber says whether text is a JSON number.
func isNumber(text string) bool {
	return text != "" && (text[0] == '-' || text[0] >= '0' && text[0] <= '9') && json.Valid([]byte(text))
}

// isIntegral says whether a JSON number is written as an integer, or with a fraction of zeros.
func isIntegral(text string) bool {
	if i := strings.IndexAny(text, ".eE"); i >= 0 {
		return text[i] == '.' && strings.Trim(text[i+1:], "0") == ""
	}
	return true
}
