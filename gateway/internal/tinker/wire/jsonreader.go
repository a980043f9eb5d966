package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"unicode/utf8"
)

// jsonReader goes once through a JSON document that json.Valid has accepted, without making values of what it passes: most of a document are numbers, which go where they belong at once.
type jsonReader struct {
	rest []byte // of the document, at a value
}

// kind is the first byte of the next value: one of { [ " t f n - or a digit.
func (r *jsonReader) kind() byte {
	r.rest = bytes.TrimLeft(r.rest, " \t\r\n")
	return r.rest[0]
}

// raw takes the next value as its text.
func (r *jsonReader) raw() []byte {
	var n int
	switch first := r.kind(); first {
	case '{', '[':
		n = compositeLength(r.rest)
	case '"':
		n = textLength(r.rest)
	default:
		n = bytes.IndexAny(r.rest, ",]} \t\r\n")
		if n < 0 {
			n = len(r.rest)
		}
	}
	value := r.rest[:n]
	r.rest = r.rest[n:]
	return value
}

// textLength is that of the text at the beginning of b, with its quotes.
func textLength(b []byte) int {
	for i := 1; ; i += 2 { // over an escape
		i += bytes.IndexAny(b[i:], `"\`)
		if b[i] == '"' {
			return i + 1
		}
	}
}

// compositeLength is that of the object or list at the beginning of b.
func compositeLength(b []byte) int {
	depth := 0
	for i := 0; ; i++ {
		switch b[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"':
			i += textLength(b[i:]) - 1
		}
	}
}

// expect takes one value that begins with one of the bytes; the error says what it should be.
func (r *jsonReader) expect(field, begins, expected string) ([]byte, error) {
	kind := r.kind()
	if bytes.IndexByte([]byte(begins), kind) < 0 {
		return nil, fieldErrorf(field, "a JSON %s is not allowed here, expected %s", jsonKind(kind), expected)
	}
	return r.raw(), nil
}

func jsonKind(first byte) string {
	switch first {
	case '{':
		return "object"
	case '[':
		return "list"
	case '"':
		return "text"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

const jsonNumbers = "-0123456789"

// text takes a text.
func (r *jsonReader) text(field string) (string, error) {
	value, err := r.expect(field, `"`, "a text")
	if err != nil {
		return "", err
	}
	return unquote(value), nil
}

func unquote(quoted []byte) string {
	plain := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(plain, '\\') < 0 && utf8.Valid(plain) {
		return string(plain)
	}
	var out string
	_ = json.Unmarshal(quoted, &out) // it is valid
	return out
}

// object gives each member to visit, which must take its value.
func (r *jsonReader) object(field string, visit func(name string) error) error {
	if kind := r.kind(); kind != '{' {
		return fieldErrorf(field, "a JSON %s is not allowed here, expected an object", jsonKind(kind))
	}
	r.rest = r.rest[1:]
	for {
		switch r.kind() {
		case '}':
			r.rest = r.rest[1:]
			return nil
		case ',':
			r.rest = r.rest[1:]
			r.kind()
		}
		name := unquote(r.raw())
		r.kind()
		r.rest = r.rest[1:] // the colon
		if err := visit(name); err != nil {
			return err
		}
	}
}

// list gives the number of each element to visit, which must take it.
func (r *jsonReader) list(field string, visit func(i int) error) error {
	if kind := r.kind(); kind != '[' {
		return fieldErrorf(field, "a JSON %s is not allowed here, expected a list", jsonKind(kind))
	}
	r.rest = r.rest[1:]
	for i := 0; ; i++ {
		switch r.kind() {
		case ']':
			r.rest = r.rest[1:]
			return nil
		case ',':
			r.rest = r.rest[1:]
			r.kind()
		}
		if err := visit(i); err != nil {
			return err
		}
	}
}

// null takes a null, if that is next.
func (r *jsonReader) null() bool {
	if r.kind() != 'n' {
		return false
	}
	r.raw()
	return true
}

// integers takes a list of whole numbers from least to most.
func (r *jsonReader) integers(field string, least, most int64, each func(int64)) error {
	return r.list(field, func(i int) error {
		v, err := r.integer(least, most)
		if err != nil {
			return at(err, field, i)
		}
		each(v)
		return nil
	})
}

// integer takes a whole number; the field of the error is left to the caller.
func (r *jsonReader) integer(least, most int64) (int64, error) {
	text, err := r.expect("", jsonNumbers, "a whole number")
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || v < least || v > most {
		return 0, fieldErrorf("", "%.40s is not a whole number from %d to %d", text, least, most)
	}
	return v, nil
}

// float takes a number; the field of the error is left to the caller. JSON has no NaN and no infinity, and what some write instead is refused: null is no number.
func (r *jsonReader) float() (float64, error) {
	text, err := r.expect("", jsonNumbers, "a finite number")
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0, fieldErrorf("", "%.40s is too large for a number", text)
	}
	return v, nil
}

// float32s takes a list of numbers. They are rounded as NumPy rounds a list of Python's: to float64, then to float32.
func (r *jsonReader) float32s(field string, each func(float32)) error {
	return r.list(field, func(i int) error {
		v, err := r.float()
		if err != nil {
			return at(err, field, i)
		}
		single := float32(v)
		if math.IsInf(float64(single), 0) {
			return at(fieldErrorf("", "%v is too large for a float32", v), field, i)
		}
		each(single)
		return nil
	})
}

// at names the element that an error is about.
func at(err error, field string, i int) error {
	return in(err, field+"["+strconv.Itoa(i)+"]")
}

// in names the field that an error is about.
func in(err error, field string) error {
	var wrong *FieldError
	if errors.As(err, &wrong) && wrong.Field == "" {
		return &FieldError{field, wrong.Message}
	}
	return err
}
