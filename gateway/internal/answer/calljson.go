package answer

import "encoding/json"

// callObject reads one JSON object that may be a call: {"name": N, "arguments": {…}}, or with "parameters". What stands before the certainty is read
// strictly, the arguments as they come. It is fed from the byte behind the opening brace.
type callObject struct {
	calls *calls
	stops []string // tags that end the arguments where they stand outside of strings
	takes bool     // an id before the arguments is the call's

	state     objectState
	key       []byte
	value     scanner // of a key, a name, or a value that is of no use
	literal   []byte  // of the name
	text      *string // where the literal goes: the name or the id
	name, id  string
	wrong     bool           // the name is none: the object is no call
	arguments *jsonArguments // the first ones
	begun     bool
	stopped   string // the stop that was found
}

// objectState is where a callObject stands.
type objectState uint8

const (
	beforeKey objectState = iota // behind '{' or ','
	inKey
	beforeColon
	beforeValue
	inText // the name or the id
	inArguments
	inOther
	afterPair
)

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
	case inKey:
		o.key = append(o.key, b)
		return o.scan(b, beforeColon)
	case inText:
		o.literal = append(o.literal, b)
		result := o.scan(b, afterPair)
		if o.state == afterPair {
			o.endText()
		}
		return result
	case inOther:
		return o.scan(b, afterPair)
	case inArguments:
		return o.argument(b)
	}
	if isSpace(b) {
		return goesOn
	}
	switch {
	case o.state == beforeKey && b == '"':
		o.state, o.key = inKey, append(o.key[:0], b)
		o.value = scanner{strict: true, kind: '"', quoted: true}
	case o.state == beforeColon && b == ':':
		o.state = beforeValue
	case o.state == beforeValue:
		return o.beginValue(b)
	case o.state == afterPair && b == ',':
		o.state = beforeKey
	case (o.state == beforeKey || o.state == afterPair) && b == '}':
		return o.close()
	default:
		return broken
	}
	return goesOn
}

// scan takes a byte of a value that is read strictly; behind it the state is next.
func (o *callObject) scan(b byte, next objectState) objectResult {
	switch o.value.feed(b) {
	case ended:
		o.state = next
	case before:
		o.state = next
		return o.feed(b)
	case invalid:
		return broken
	}
	return goesOn
}

// beginValue takes the first byte of a value.
func (o *callObject) beginValue(b byte) objectResult {
	key := decoded(o.key)
	switch {
	case o.begun:
	case key == "name" && b == '"':
		return o.beginText(&o.name)
	case key == "name":
		o.wrong = true
	case key == "id" && b == '"' && o.takes:
		return o.beginText(&o.id)
	case (key == "arguments" || key == "parameters") && o.arguments == nil:
		o.state = inArguments
		o.arguments = &jsonArguments{calls: o.calls, stops: matcher{texts: o.stops}}
		o.beginCall()
		return o.argument(b)
	}
	o.state, o.value = inOther, scanner{strict: true}
	return o.scan(b, afterPair)
}

// beginText begins a string that is read into text.
func (o *callObject) beginText(text *string) objectResult {
	o.state, o.text, o.literal = inText, text, append(o.literal[:0], '"')
	o.value = scanner{strict: true, kind: '"', quoted: true}
	return goesOn
}

// endText ends the name or the id.
func (o *callObject) endText() {
	*o.text = decoded(o.literal)
	if o.text != &o.name {
		return
	}
	o.wrong = o.name == ""
	if o.arguments != nil {
		o.beginCall()
	}
}

// beginCall begins the call, if its name is known.
func (o *callObject) beginCall() {
	if o.wrong || o.name == "" {
		return
	}
	o.begun = true
	o.calls.begin(o.name, o.id)
	o.arguments.begin()
}

// argument takes a byte of the arguments.
func (o *callObject) argument(b byte) objectResult {
	switch o.arguments.feed(b) {
	case lastOfArguments:
		o.state = afterPair
	case behindArguments:
		o.state = afterPair
		return o.feed(b)
	case argumentsAtTag:
		o.stopped = o.arguments.stopped
		return atStop
	}
	return goesOn
}

// close is the object's end: one that has a name and nothing else is a call too.
func (o *callObject) close() objectResult {
	if !o.begun {
		if o.arguments == nil {
			o.arguments = &jsonArguments{calls: o.calls, whole: true}
		}
		o.beginCall()
	}
	return closed
}

// atTag says whether the last bytes may be a tag that ends the arguments.
func (o *callObject) atTag() bool { return o.state == inArguments && len(o.arguments.stops.held) > 0 }

// finish is the end of the text in the middle of the object.
func (o *callObject) finish() {
	if o.begun && o.state == inArguments {
		o.arguments.finish()
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
