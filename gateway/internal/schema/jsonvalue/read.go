package jsonvalue

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits bound what Read takes.
type Limits struct {
	Bytes      int  // of the text
	Depth      int  // of arrays and objects in each other
	RepeatKeys bool // a key may stand twice in an object, and its last value counts; else that is an error
}

// ErrTooLarge is wrapped by the errors that say that a text exceeds a limit.
var ErrTooLarge = errors.New("too large")

// Read reads a text that is one JSON value, with white space around it. The error says at which byte the text is wrong.
func Read(text []byte, limits Limits) (*Value, error) {
	if len(text) > limits.Bytes {
		return nil, fmt.Errorf("%w: %d bytes > %d", ErrTooLarge, len(text), limits.Bytes)
	}
	r := reader{text: text, limits: limits}
	value, err := r.read()
	if err != nil {
		return nil, fmt.Errorf("at byte %d: %w", r.at, err)
	}
	return value, nil
}

type reader struct {
	text   []byte
	at     int
	limits Limits
	open   []*Value // arrays and objects that are not closed yet
	key    []string // of each open object: the key whose value comes next
}

func (r *reader) space() {
	for r.at < len(r.text) {
		switch r.text[r.at] {
		case ' ', '\t', '\n', '\r':
			r.at++
		default:
			return
		}
	}
}

// peek is the next byte, 0 at the end. No JSON token begins with 0.
func (r *reader) peek() byte {
	if r.at < len(r.text) {
		return r.text[r.at]
	}
	return 0
}

func (r *reader) read() (*Value, error) {
	for {
		r.space()
		value, err := r.begin()
		if err != nil {
			return nil, err
		}
		if value.Kind == Array || value.Kind == Object {
			closed, err := r.descend(value)
			if err != nil {
				return nil, err
			}
			if !closed {
				continue
			}
		}
		done, err := r.finish(value)
		if err != nil || done != nil {
			return done, err
		}
	}
}

// descend opens an array or object; true says that it is empty and closed already.
func (r *reader) descend(value *Value) (bool, error) {
	if len(r.open) >= r.limits.Depth {
		return false, fmt.Errorf("%w: nesting > %d", ErrTooLarge, r.limits.Depth)
	}
	r.space()
	closing := byte(']')
	if value.Kind == Object {
		closing = '}'
	}
	if r.peek() == closing {
		r.at++
		return true, nil
	}
	r.open = append(r.open, value)
	r.key = append(r.key, "")
	if value.Kind == Object {
		return false, r.readKey(value)
	}
	return false, nil
}

// finish puts a whole value into what is open, and closes what ends behind it. The outermost value is returned when its text has ended.
func (r *reader) finish(value *Value) (*Value, error) {
	for {
		if len(r.open) == 0 {
			r.space()
			if r.at < len(r.text) {
				return nil, errors.New("text after the value")
			}
			return value, nil
		}
		parent := r.open[len(r.open)-1]
		if err := r.put(parent, value); err != nil {
			return nil, err
		}
		r.space()
		c := r.peek()
		switch {
		case c == ',' && parent.Kind == Array:
			r.at++
			return nil, nil
		case c == ',':
			r.at++
			return nil, r.readKey(parent)
		case c == ']' && parent.Kind == Array, c == '}' && parent.Kind == Object:
			r.at++
			r.open, r.key = r.open[:len(r.open)-1], r.key[:len(r.key)-1]
			value = parent
		case parent.Kind == Array:
			return nil, errors.New("want ',' or ']'")
		default:
			return nil, errors.New("want ',' or '}'")
		}
	}
}

// indexedMembers is from how many members on an object has an index.
const indexedMembers = 8

func (r *reader) put(parent, value *Value) error {
	if parent.Kind == Array {
		parent.Items = append(parent.Items, value)
		return nil
	}
	key := r.key[len(r.key)-1]
	if parent.Get(key) != nil {
		if !r.limits.RepeatKeys {
			return fmt.Errorf("key %q stands twice in one object", shorten(key))
		}
		for i := range parent.Members {
			if parent.Members[i].Key == key {
				parent.Members[i].Value = value
			}
		}
		if parent.index != nil {
			parent.index[key] = value
		}
		return nil
	}
	parent.Members = append(parent.Members, Member{Key: key, Value: value})
	if parent.index != nil {
		parent.index[key] = value
	} else if len(parent.Members) >= indexedMembers {
		parent.index = make(map[string]*Value, 2*indexedMembers)
		for _, member := range parent.Members {
			parent.index[member.Key] = member.Value
		}
	}
	return nil
}

func shorten(text string) string {
	if len(text) <= 64 {
		return text
	}
	cut := 64
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

func (r *reader) readKey(_ *Value) error {
	r.space()
	if r.peek() != '"' {
		return errors.New("want a key in quotes")
	}
	key, err := r.readString()
	if err != nil {
		return err
	}
	r.space()
	if r.peek() != ':' {
		return errors.New("want ':' after a key")
	}
	r.at++
	r.key[len(r.key)-1] = key
	return nil
}

// begin reads a scalar, or the bracket that opens an array or object.
func (r *reader) begin() (*Value, error) {
	switch c := r.peek(); {
	case c == '{':
		r.at++
		return &Value{Kind: Object}, nil
	case c == '[':
		r.at++
		return &Value{Kind: Array}, nil
	case c == '"':
		text, err := r.readString()
		return &Value{Kind: String, Text: text}, err
	case c == '-' || c >= '0' && c <= '9':
		text, err := r.readNumber()
		return &Value{Kind: Number, Text: text}, err
	case c == 't':
		return &Value{Kind: Boolean, Boolean: true}, r.word("true")
	case c == 'f':
		return &Value{Kind: Boolean}, r.word("false")
	case c == 'n':
		return &Value{Kind: Null}, r.word("null")
	case c == 0 && r.at >= len(r.text):
		return nil, errors.New("the text ends where a value is wanted")
	}
	return nil, errors.New("want a JSON value")
}

func (r *reader) word(word string) error {
	if !strings.HasPrefix(string(r.text[r.at:min(len(r.text), r.at+len(word))]), word) {
		return errors.New("want a JSON value")
	}
	r.at += len(word)
	return nil
}

func (r *reader) digits() bool {
	start := r.at
	for r.at < len(r.text) && r.text[r.at] >= '0' && r.text[r.at] <= '9' {
		r.at++
	}
	return r.at > start
}

func (r *reader) readNumber() (string, error) {
	start := r.at
	if r.peek() == '-' {
		r.at++
	}
	if r.peek() == '0' {
		r.at++
	} else if !r.digits() {
		return "", errors.New("want a digit")
	}
	if r.peek() == '.' {
		r.at++
		if !r.digits() {
			return "", errors.New("want a digit after '.'")
		}
	}
	if c := r.peek(); c == 'e' || c == 'E' {
		r.at++
		if c := r.peek(); c == '+' || c == '-' {
			r.at++
		}
		if !r.digits() {
			return "", errors.New("want a digit in the exponent")
		}
	}
	return string(r.text[start:r.at]), nil
}

func (r *reader) readString() (string, error) {
	r.at++
	start := r.at
	for r.at < len(r.text) { // most strings have no escape
		c := r.text[r.at]
		if c == '"' {
			text := r.text[start:r.at]
			r.at++
			return strings.ToValidUTF8(string(text), "\ufffd"), nil
		}
		if c == '\\' {
			break
		}
		if c < 0x20 {
			return "", errors.New("a control character in a string must be escaped")
		}
		r.at++
	}
	out := append([]byte(nil), r.text[start:r.at]...)
	for r.at < len(r.text) {
		c := r.text[r.at]
		switch {
		case c == '"':
			r.at++
			return strings.ToValidUTF8(string(out), "\ufffd"), nil
		case c == '\\':
			var err error
			if out, err = r.escape(out); err != nil {
				return "", err
			}
		case c < 0x20:
			return "", errors.New("a control character in a string must be escaped")
		default:
			out = append(out, c)
			r.at++
		}
	}
	return "", errors.New("the text ends inside a string")
}

func (r *reader) escape(out []byte) ([]byte, error) {
	if r.at+1 >= len(r.text) {
		return nil, errors.New("the text ends inside a string")
	}
	c := r.text[r.at+1]
	r.at += 2
	switch c {
	case '"', '\\', '/':
		return append(out, c), nil
	case 'b':
		return append(out, '\b'), nil
	case 'f':
		return append(out, '\f'), nil
	case 'n':
		return append(out, '\n'), nil
	case 'r':
		return append(out, '\r'), nil
	case 't':
		return append(out, '\t'), nil
	case 'u':
		unit, ok := r.hex4(r.at)
		if !ok {
			return nil, errors.New(`want four hexadecimal digits after \u`)
		}
		r.at += 4
		char := rune(unit)
		if utf16.IsSurrogate(char) {
			char = utf8.RuneError // a lone half is no character
			if r.at+1 < len(r.text) && r.text[r.at] == '\\' && r.text[r.at+1] == 'u' {
				if low, ok := r.hex4(r.at + 2); ok {
					if pair := utf16.DecodeRune(rune(unit), rune(low)); pair != utf8.RuneError {
						char = pair
						r.at += 6
					}
				}
			}
		}
		return utf8.AppendRune(out, char), nil
	}
	return nil, errors.New("unknown escape in a string")
}

func (r *reader) hex4(at int) (uint16, bool) {
	if at+4 > len(r.text) {
		return 0, false
	}
	var unit uint16
	for _, c := range r.text[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			unit = unit<<4 | uint16(c-'0')
		case c >= 'a' && c <= 'f':
			unit = unit<<4 | uint16(c-'a'+10)
		case c >= 'A' && c <= 'F':
			unit = unit<<4 | uint16(c-'A'+10)
		default:
			return 0, false
		}
	}
	return unit, true
}
