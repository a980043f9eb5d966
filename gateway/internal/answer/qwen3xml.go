package answer

import (
	"bytes"
	"slices"
	"strings"
)

// Qwen3XML is <tool_call><function=N><parameter=P>VALUE</parameter></function></tool_call>.
const Qwen3XML Format = "qwen3_xml"

// qwen3XML is the format of Qwen3-Coder, Qwen3.5 and later, and Nemotron 3. The opening tag may be missing where a line begins with the function of a given
// tool.
var qwen3XML = definition{
	format: Qwen3XML,
	signs: func(template string) bool {
		return strings.Contains(template, "<tool_call>") && strings.Contains(template, "<function=") && strings.Contains(template, "<parameter=")
	},
	openers: []opener{{text: "<tool_call>"}, {text: functionTag, place: atLineStart, bare: true}},
	open: func(i int, c *calls) machine {
		x := &functionCalls{calls: c, tagged: i == 0}
		if i == 1 {
			x.state = inFunctionName
		}
		return x
	},
}

const (
	functionTag  = "<function="
	functionEnd  = "</function>"
	parameterTag = "<parameter="
	parameterEnd = "</parameter>"
	callTag      = "<tool_call>"
	callEnd      = "</tool_call>"
)

// maxName bounds the names of functions and parameters, in bytes.
const maxName = 512

// functionCalls reads calls that are written as functions with parameters.
type functionCalls struct {
	calls  *calls
	tagged bool // the opening tag was there

	state     functionState
	partial   []byte // of a tag that is expected
	name      []byte
	arguments parameters
	key       []byte
	value     *valueWriter // nil: the parameter was given before
	first     bool         // no byte of the value has been read
	in        matcher      // looks for tags between parameters, or for the end of a value
}

type functionState uint8

const (
	beforeFunction functionState = iota
	inFunctionName
	inFunction // between parameters
	inParameterName
	inParameter
	afterFunction
)

func (x *functionCalls) feed(b byte) (progress, int) {
	switch x.state {
	case beforeFunction:
		if len(x.partial) == 0 && isSpace(b) {
			return hold, 0
		}
		return x.expect(b, functionTag)
	case inFunctionName:
		return x.functionName(b), 1
	case inFunction:
		_, found := x.in.feed(b)
		return x.tag(found)
	case inParameterName:
		x.parameterName(b)
		return take, 0
	case inParameter:
		free, found := x.in.feed(b)
		x.add(free)
		if found == "" {
			return take, 0
		}
		x.endValue()
		return x.tag(strings.TrimPrefix(found, "\n"))
	}
	if len(x.partial) == 0 && isSpace(b) {
		return take, 0
	}
	if x.tagged {
		return x.expect(b, callEnd, functionEnd, functionTag)
	}
	return x.expect(b, callEnd, functionEnd)
}

// expect takes a byte of one of the tags; any other text ends the machine.
func (x *functionCalls) expect(b byte, tags ...string) (progress, int) {
	x.partial = append(x.partial, b)
	begun := false
	for _, t := range tags {
		if t == string(x.partial) {
			x.partial = x.partial[:0]
			switch t {
			case functionTag:
				x.state, x.name = inFunctionName, x.name[:0]
				return hold, 0
			case callEnd:
				return takeDone, 0
			}
			return take, 0
		}
		begun = begun || strings.HasPrefix(t, string(x.partial))
	}
	if begun {
		return hold, 0
	}
	return done, len(x.partial)
}

// functionName takes a byte of the function's name, up to ">".
func (x *functionCalls) functionName(b byte) progress {
	quoted := len(x.name) > 0 && x.name[0] == '"' // some models quote a name, and then it may have spaces
	switch {
	case b == '>' && len(x.name) > 0 && x.known():
		x.calls.begin(string(x.name), "")
		x.arguments = parameters{calls: x.calls, schema: x.calls.schema(string(x.name))}
		x.between()
		return take
	case b == '>' || b == '<' || isSpace(b) && (b != ' ' || !quoted) || len(x.name) >= maxName:
		return done
	}
	x.name = append(x.name, b)
	return hold
}

// known says whether the function may be called: without the opening tag it must be a given tool.
func (x *functionCalls) known() bool {
	return x.tagged || slices.ContainsFunc(x.calls.tools(), func(t Tool) bool { return t.Name == string(x.name) })
}

// between goes on between parameters.
func (x *functionCalls) between() {
	x.state = inFunction
	x.in = matcher{texts: []string{parameterTag, functionEnd, callEnd, callTag, functionTag}}
}

// tag acts on a tag inside a function, or "".
func (x *functionCalls) tag(t string) (progress, int) {
	switch t {
	case "":
		return take, 0
	case parameterTag:
		x.state, x.key = inParameterName, x.key[:0]
		return take, 0
	case parameterEnd:
		x.between()
		return take, 0
	}
	x.arguments.end()
	switch t {
	case functionEnd:
		x.state = afterFunction
	case callEnd:
		return takeDone, 0
	case callTag:
		x.state, x.tagged = beforeFunction, true
	case functionTag:
		x.state, x.name = inFunctionName, x.name[:0]
	}
	return take, 0
}

// parameterName takes a byte of a parameter's name, up to ">".
func (x *functionCalls) parameterName(b byte) {
	switch {
	case b == '>':
		x.value, x.first = x.arguments.begin(string(x.key)), true
		x.state = inParameter
		x.in = matcher{texts: []string{parameterEnd, "\n" + parameterEnd, "\n" + parameterTag, "\n" + functionEnd, "\n" + callEnd}}
	case b == '\n' || len(x.key) >= maxName:
		x.between()
	case b == '<':
		x.between()
		x.in.feed(b)
	default:
		x.key = append(x.key, b)
	}
}

// add takes bytes of the value; a newline that comes first is none of it.
func (x *functionCalls) add(text []byte) {
	if len(text) > 0 && x.first {
		x.first = false
		text = bytes.TrimPrefix(text, []byte("\n"))
	}
	if x.value != nil && len(text) > 0 {
		x.value.add(text)
	}
}

func (x *functionCalls) endValue() {
	if x.value != nil {
		x.value.end()
	}
	x.value = nil
}

func (x *functionCalls) finish(cut bool) (text bool) {
	if x.state == beforeFunction || x.state == inFunctionName {
		return true
	}
	if x.state == afterFunction || cut {
		return false
	}
	if x.state == inParameter {
		x.add(bytes.TrimSuffix(x.in.held, []byte("\n")))
		x.endValue()
	}
	x.arguments.end()
	return false
}
