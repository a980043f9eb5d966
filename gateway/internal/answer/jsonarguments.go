package answer

import (
	"bytes"
	"encoding/json"
	"strings"
)

// jsonArguments reads the arguments of a call as one JSON value and gives them out as they come: the bytes that the model wrote. A string is held until it
// ends, since it may hold the arguments' text, and so is what may be null. Malformed values are read on by counting brackets.
type jsonArguments struct {
	calls *calls
	stops matcher // tags that end the arguments where they stand outside of strings

	value     scanner
	begun     bool   // the call is certain: before, everything is held
	literal   []byte // what is held
	streaming bool
	given     bool
	whole     bool   // the value has ended
	stopped   string // the tag that was found
}

// argumentsResult says what became of a byte.
type argumentsResult uint8

const (
	moreArguments argumentsResult = iota
	lastOfArguments
	behindArguments // the value ended before this byte
	argumentsAtTag  // a tag of stops ended with this byte
)

// feed takes the next byte. The first one is no white space.
func (a *jsonArguments) feed(b byte) argumentsResult {
	if !a.value.outside() || len(a.stops.held) == 0 && b != '<' {
		return a.byte(b)
	}
	free, found := a.stops.feed(b)
	if found != "" {
		a.stopped = found
		a.end()
		return argumentsAtTag
	}
	for _, c := range free { // those before the last one are in no string and no brackets
		if result := a.byte(c); result != moreArguments {
			return result
		}
	}
	return moreArguments
}

// byte takes a byte that begins no tag.
func (a *jsonArguments) byte(b byte) argumentsResult {
	switch a.value.feed(b) {
	case ended:
		a.keep(b)
		a.end()
		return lastOfArguments
	case before, invalid:
		a.end()
		return behindArguments
	}
	a.keep(b)
	return moreArguments
}

// keep gives a byte out, or holds it.
func (a *jsonArguments) keep(b byte) {
	if a.streaming {
		a.calls.argumentByte(b)
		return
	}
	a.literal = append(a.literal, b)
	if !a.begun || a.value.kind == '"' || a.value.kind == 's' && len(a.literal) <= len("null") {
		return
	}
	a.give(string(a.literal))
	a.literal, a.streaming = nil, true
}

func (a *jsonArguments) give(text string) {
	a.calls.arguments(text)
	a.given = a.given || text != ""
}

// end is the end of the value, and of the call if that is certain.
func (a *jsonArguments) end() {
	text := argumentsOf(a.literal)
	a.literal, a.whole = nil, true
	if !a.begun {
		a.literal = text
		return
	}
	a.give(string(text))
	a.endCall()
}

// begin says that the call is certain. Arguments that are whole already are given out.
func (a *jsonArguments) begin() {
	a.begun = true
	if a.whole {
		a.give(string(a.literal))
		a.literal = nil
		a.endCall()
	}
}

// endCall ends the call. It has at least {}.
func (a *jsonArguments) endCall() {
	if !a.given {
		a.give("{}")
	}
	a.streaming = false
	a.calls.end()
}

// finish is the end of the text in the middle of the value.
func (a *jsonArguments) finish() {
	if a.begun {
		a.calls.arguments(string(a.literal) + string(a.stops.held))
	}
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
