package answer

import "strings"

// GLM is <tool_call>N<arg_key>P</arg_key><arg_value>VALUE</arg_value></tool_call>, with or without newlines between.
const GLM Format = "glm"

const (
	argKey      = "<arg_key>"
	argKeyEnd   = "</arg_key>"
	argValue    = "<arg_value>"
	argValueEnd = "</arg_value>"
)

// glm is the format of GLM 4.5 and later, Laguna, Ling 3 and Spark 2.5. Some of them write JSON behind the name, or hermes' objects.
var glm = definition{
	format:  GLM,
	signs:   func(template string) bool { return strings.Contains(template, argKey) },
	openers: []opener{{text: callTag}},
	open:    func(_ int, c *calls) machine { return &pairedCalls{calls: c} },
}

// pairedCalls reads a call that is written as a name with keys and values.
type pairedCalls struct {
	calls *calls

	state     pairState
	name      []byte
	in        matcher // looks for tags
	arguments parameters
	key       []byte
	value     *valueWriter   // nil: the key was given before, or there is none
	object    *jsonArguments // arguments that are JSON
	objects   *jsonCalls     // hermes' objects
}

type pairState uint8

const (
	inPairName pairState = iota
	inPairs
	inPairKey
	inPairValue
	inPairObject
)

func (p *pairedCalls) feed(b byte) (progress, int) {
	switch {
	case p.objects != nil:
		return p.objects.feed(b)
	case p.state == inPairName:
		return p.inName(b)
	case p.state == inPairObject:
		return p.inObject(b)
	}
	if p.state == inPairs && p.arguments.seen == nil && len(p.in.held) == 0 && b == '{' {
		return p.inObject(b)
	}
	free, found := p.in.feed(b)
	switch p.state {
	case inPairKey:
		p.key = append(p.key, free...)
		if len(p.key) > maxName {
			p.expect(inPairs, argKey, argValue, callEnd, callTag)
		}
	case inPairValue:
		if p.value != nil && len(free) > 0 {
			p.value.add(free)
		}
	}
	return p.tag(found)
}

// expect goes on in a state, looking for tags.
func (p *pairedCalls) expect(s pairState, tags ...string) {
	p.state, p.in = s, matcher{texts: tags}
}

// inName takes a byte of the name, which ends with its line, a key, or the call.
func (p *pairedCalls) inName(b byte) (progress, int) {
	switch {
	case len(p.name) == 0 && isSpace(b):
		return hold, 0
	case len(p.name) == 0 && b == '{':
		p.objects = &jsonCalls{calls: p.calls, opening: callTag, closing: callEnd, lists: true}
		return p.objects.feed(b)
	case len(p.in.held) == 0 && b != '<':
		switch {
		case b != '\n' && b != '{' && len(p.name) < maxName:
			p.name = append(p.name, b)
			return hold, 0
		case !p.begin():
			return done, 1
		case b == '{':
			return p.inObject(b)
		}
		return take, 0
	}
	p.in.texts = []string{argKey, callEnd}
	free, found := p.in.feed(b)
	switch {
	case len(free) > 0: // another tag
		return done, len(free) + len(p.in.held)
	case found == "":
		return hold, 0
	case !p.begin():
		return done, len(found)
	}
	return p.tag(found)
}

// begin begins the call, if the name is one.
func (p *pairedCalls) begin() bool {
	name := strings.Trim(string(p.name), whiteSpace)
	if name == "" || strings.ContainsAny(name, whiteSpace+"{") {
		return false
	}
	p.calls.begin(name, "")
	p.arguments = parameters{calls: p.calls, schema: p.calls.schema(name)}
	p.expect(inPairs, argKey, argValue, callEnd, callTag)
	return true
}

// tag acts on a tag, or "".
func (p *pairedCalls) tag(t string) (progress, int) {
	if t != "" && p.state == inPairValue && p.value != nil {
		p.value.end()
		p.value = nil
	}
	switch t {
	case argKey:
		p.key = p.key[:0]
		p.expect(inPairKey, argKeyEnd, argValue, callEnd)
	case argValue:
		p.value = p.arguments.begin(strings.Trim(string(p.key), whiteSpace))
		p.expect(inPairValue, argValueEnd, argKey, callEnd)
	case argKeyEnd, argValueEnd:
		p.expect(inPairs, argKey, argValue, callEnd, callTag)
	case callEnd:
		p.arguments.end()
		return takeDone, 0
	case callTag:
		p.arguments.end()
		p.state, p.name, p.in = inPairName, p.name[:0], matcher{}
	}
	return take, 0
}

// inObject takes a byte of arguments that are JSON.
func (p *pairedCalls) inObject(b byte) (progress, int) {
	if p.object == nil {
		p.state = inPairObject
		p.object = &jsonArguments{calls: p.calls, stops: matcher{texts: []string{callEnd, callTag}}}
		p.object.begin()
	}
	if p.object.whole {
		free, found := p.in.feed(b)
		switch {
		case found == callEnd:
			return takeDone, 0
		case len(free) == 0:
			return hold, 0
		case len(p.in.held) == 0 && len(free) == 1 && (isSpace(b) || b == '}'):
			return take, 0
		}
		return done, len(free) + len(p.in.held)
	}
	switch p.object.feed(b) {
	case lastOfArguments:
		p.in = matcher{texts: []string{callEnd}}
	case argumentsAtTag:
		if p.object.stopped == callEnd {
			return takeDone, 0
		}
		*p = pairedCalls{calls: p.calls}
	}
	return take, 0
}

func (p *pairedCalls) finish(cut bool) (text bool) {
	switch {
	case p.objects != nil:
		return p.objects.finish(cut)
	case p.state == inPairName:
		return true
	case p.state == inPairObject:
		if !p.object.whole {
			p.object.finish()
		}
		return false
	case cut:
		return false
	}
	if p.state == inPairValue && p.value != nil {
		p.value.add(p.in.held)
		p.value.end()
	}
	p.arguments.end()
	return false
}
