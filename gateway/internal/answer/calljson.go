package answer

import (
	"bytes"
	"encoding/json"
	"strings"
)

// objectState is where a callObject stands.
type objectState uint8

const (
	beforeKey objectState = iota // behind '{' or ','
	inKey
	beforeColon
	beforeValue
	inName
	inArguments
	inOther   // a value that is of no use
	afterPair // behind a value
)

// callObject reads one JSON object that may be a call: {"name": N, "arguments": {…}}, or with "parameters". What stands before the certainty is read strictly, the
// arguments as they come. It is fed from the byte behind the opening brace.
type callObject struct {
	calls *calls
	stops matcher // tags that end the arguments where they stand outside of strings

	state     objectState
	key       []byte
	value     scanner
	literal   []byte // of the name, or of arguments that are held
	name      string
	named     bool
	wrong     bool   // the name is no name: the object is no call
	held      []byte // arguments that came before the name
	hasHeld   bool
	id        string
	begun     bool
	given     bool // arguments are given out
	streaming bool
	stopped   string // the stop that was found
}

// objectResult says what a callObject made of a byte.
type objectResult uint8

const (
	goesOn objectResult = iota
	closed              // the object ended with this byte
	broken              // the byte does not belong to it: before begun it is no call
	atStop              // a tag of stops ended with this byte
)

// feed takes the next byte.
func (o *callObject) feed(b byte) objectResult {
	switch o.state {
	case beforeKey:
		switch {
		case isSpace(b):
		case b == '"':
			o.state, o.key = inKey, append(o.key[:0], b)
			o.value = scanner{strict: true, kind: '"', quoted: true}
		case b == '}':
			return o.close()
		default:
			return broken
		}
	case inKey:
		o.key = append(o.key, b)
		switch o.value.feed(b) {
		case ended:
			o.state = beforeColon
		case invalid:
			return broken
		}
	case beforeColon:
		switch {
		case isSpace(b):
		case b == ':':
			o.state = beforeValue
		default:
			return broken
		}
	case beforeValue:
		if isSpace(b) {
			return goesOn
		}
		return o.beginValue(b)
	case inName:
		o.literal = append(o.literal, b)
		switch o.value.feed(b) {
		case ended:
			o.endName()
		case invalid:
			return broken
		}
	case inArguments:
		return o.argument(b)
	case inOther:
		switch o.value.feed(b) {
		case ended:
			o.state = afterPair
		case before:
			o.state = afterPair
			return o.feed(b)
		case invalid:
			return broken
		}
	case afterPair:
		switch {
		case isSpace(b):
		case b == ',':
			o.state = beforeKey
		case b == '}':
			return o.close()
		default:
			return broken
		}
	}
	return goesOn
}

// beginValue takes the first byte of a value.
func (o *callObject) beginValue(b byte) objectResult {
	key := decoded(o.key)
	switch {
	case o.given || o.begun:
		return o.other(b)
	case key == "name":
		if b != '"' {
			o.wrong = true
			return o.other(b)
		}
		o.state, o.literal = inName, append(o.literal[:0], b)
		o.value = scanner{strict: true, kind: '"', quoted: true}
		return goesOn
	case (key == "arguments" || key == "parameters") && !o.hasHeld:
		o.state, o.value, o.literal = inArguments, scanner{}, o.literal[:0]
		o.hasHeld = !o.named
		if o.named && !o.wrong {
			o.begin()
		}
		return o.argument(b)
	}
	return o.other(b)
}

// other skips a value.
func (o *callObject) other(b byte) objectResult {
	o.state, o.value = inOther, scanner{strict: true}
	if o.value.feed(b) == invalid {
		return broken
	}
	return goesOn
}

// endName decodes the name.
func (o *callObject) endName() {
	o.state = afterPair
	o.name = decoded(o.literal)
	o.named, o.wrong = true, o.name == ""
	o.literal = o.literal[:0]
	if !o.wrong && o.hasHeld {
		o.begin()
		o.give(string(o.held))
		o.finishArguments()
	}
}

// begin begins the call.
func (o *callObject) begin() {
	o.begun = true
	o.calls.begin(o.name, o.id)
}

// argument takes a byte of the arguments, and looks for the tags that end them outside of strings.
func (o *callObject) argument(b byte) objectResult {
	if !o.value.outside() || len(o.stops.held) == 0 && b != '<' {
		return o.argumentByte(b)
	}
	free, found := o.stops.feed(b)
	if found != "" {
		o.stopped = found
		o.endArguments()
		return atStop
	}
	for _, c := range free {
		if result := o.argumentByte(c); result != goesOn {
			return result
		}
	}
	return goesOn
}

// argumentByte takes a byte that begins no tag.
func (o *callObject) argumentByte(b byte) objectResult {
	switch o.value.feed(b) {
	case within:
		o.keep(b)
	case ended:
		o.keep(b)
		o.endArguments()
	case before, invalid:
		o.endArguments()
		return o.feed(b)
	}
	return goesOn
}

// keep keeps a byte of the arguments: it is given out, or held where the arguments are a string, may be null, or have no call yet.
func (o *callObject) keep(b byte) {
	if o.streaming {
		o.calls.argumentByte(b)
		return
	}
	o.literal = append(o.literal, b)
	if !o.begun || o.value.kind == '"' || o.value.kind == 's' && len(o.literal) <= 4 {
		return
	}
	o.give(string(o.literal))
	o.literal, o.streaming = nil, true
}

// give gives out arguments.
func (o *callObject) give(text string) {
	o.calls.arguments(text)
	o.given = o.given || text != ""
}

// endArguments is the end of the value of arguments.
func (o *callObject) endArguments() {
	o.state = afterPair
	text := argumentsOf(o.literal)
	o.literal = nil
	if !o.begun {
		o.held = text
		return
	}
	if !o.streaming {
		o.give(string(text))
	}
	o.finishArguments()
}

// finishArguments ends the call; a call has at least {}.
func (o *callObject) finishArguments() {
	if !o.given {
		o.give("{}")
	}
	o.streaming = false
	o.calls.end()
}

// close is the object's end: a call that has a name and nothing else is one too.
func (o *callObject) close() objectResult {
	if o.named && !o.wrong && !o.begun {
		o.begin()
		o.give(string(o.held))
		o.finishArguments()
	}
	return closed
}

// finish is the end of the text in the middle of the object.
func (o *callObject) finish() {
	if o.begun && o.state == inArguments {
		o.calls.arguments(string(o.literal) + string(o.stops.held))
	}
}

// decoded is the text of a string literal, or "".
func decoded(literal []byte) string {
	var s string
	if json.Unmarshal(literal, &s) != nil {
		return ""
	}
	return s
}

// argumentsOf is the text of arguments that were held: a string that holds an object is that object, nothing is nothing, all else is as it was written.
func argumentsOf(literal []byte) []byte {
	if len(literal) == 0 || bytes.Equal(literal, []byte("null")) {
		return nil
	}
	if literal[0] != '"' {
		return literal
	}
	var s string
	if json.Unmarshal(literal, &s) != nil {
		return literal
	}
	switch inner := strings.Trim(s, whiteSpace); {
	case inner == "":
		return nil
	case inner[0] == '{' && json.Valid([]byte(inner)):
		return []byte(s)
	}
	return literal
}
