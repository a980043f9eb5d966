package answer

import (
	"slices"
	"strings"
)

// headedCalls reads calls with their name before the arguments, which are one JSON value: BEGIN head SEPARATOR {…} END, several between an opening text and
// CLOSE.
type headedCalls struct {
	calls      *calls
	begin      string   // begins a head; "" is nothing
	separators []string // end the head
	end        string   // ends a call; "" is nothing
	close      string   // ends the section; "" is nothing
	fence      bool     // a name may stand in the line before the arguments, which may be fenced
	// head makes name and id of a head, and of the line behind the separator if there is one. A call without a name is none.
	head func(head, line string) (name, id string)

	state     headState
	partial   []byte // of a tag that is expected
	text      []byte // the head
	line      []byte // behind the separator, before the arguments
	in        matcher
	arguments *jsonArguments
	any       bool
}

type headState uint8

const (
	beforeHead headState = iota
	inHead
	beforeArguments
	inLine // a name behind the separator
	inHeadedArguments
	afterArguments
)

// maxHead bounds a head, in bytes.
const maxHead = 1024

func (h *headedCalls) feed(b byte) (progress, int) {
	switch h.state {
	case inHead:
		return h.inHead(b)
	case beforeArguments:
		return h.beforeArguments(b)
	case inLine:
		switch {
		case b == '\n':
			h.state = beforeArguments
		case len(h.line) >= maxHead || b == '<':
			return done, 1
		default:
			h.line = append(h.line, b)
		}
		return hold, 0
	case inHeadedArguments:
		return h.argument(b)
	}
	return h.between(b)
}

// inHead takes a byte of the head, up to a separator.
func (h *headedCalls) inHead(b byte) (progress, int) {
	if h.in.texts == nil {
		h.in = matcher{texts: append(slices.Clone(h.separators), h.end, h.begin)}
	}
	free, found := h.in.feed(b)
	h.text = append(h.text, free...)
	switch {
	case found == "" && len(h.text) <= maxHead:
		return hold, 0
	case slices.Contains(h.separators, found):
		h.state, h.line = beforeArguments, nil
		return hold, 0
	}
	return done, len(found) // a tag that does not belong here is read again
}

// beforeArguments takes what stands between a separator and the arguments.
func (h *headedCalls) beforeArguments(b byte) (progress, int) {
	switch {
	case len(h.partial) == 0 && isSpace(b):
		return hold, 0
	case len(h.partial) > 0 || b == '`' && h.fence || h.end != "" && b == h.end[0]:
		h.partial = append(h.partial, b)
		switch partial := string(h.partial); {
		case partial == "```json":
			h.partial = nil
			return hold, 0
		case partial == h.end: // no arguments
			if !h.certain() {
				return done, len(h.partial)
			}
			h.arguments.end()
			h.partial, h.state = nil, afterArguments
			return take, 0
		case strings.HasPrefix("```json", partial), strings.HasPrefix(h.end, partial):
			return hold, 0
		}
		return done, len(h.partial)
	case h.fence && b != '{' && len(h.line) == 0:
		h.state, h.line = inLine, append(h.line, b)
		return hold, 0
	}
	if !h.certain() {
		return done, 1
	}
	h.state = inHeadedArguments
	return h.argument(b)
}

// certain begins the call, if it has a name.
func (h *headedCalls) certain() bool {
	name, id := h.head(strings.Trim(string(h.text), whiteSpace), strings.Trim(string(h.line), whiteSpace))
	if name == "" || strings.ContainsAny(name, whiteSpace) {
		return false
	}
	h.text, h.in, h.any = h.text[:0], matcher{}, true
	h.calls.begin(name, id)
	h.arguments = &jsonArguments{calls: h.calls}
	for _, s := range []string{h.end, h.close, h.begin} {
		if s != "" {
			h.arguments.stops.texts = append(h.arguments.stops.texts, s)
		}
	}
	h.arguments.begin()
	return true
}

// argument takes a byte of the arguments.
func (h *headedCalls) argument(b byte) (progress, int) {
	switch h.arguments.feed(b) {
	case lastOfArguments:
		h.state = afterArguments
		if h.end == "" && h.close == "" && h.calls.full() {
			return takeDone, 0
		}
	case behindArguments:
		h.state = afterArguments
		return h.between(b)
	case argumentsAtTag:
		switch h.arguments.stopped {
		case h.close:
			return takeDone, 0
		case h.begin:
			h.state = inHead
			return hold, 0
		}
		h.state = afterArguments
	}
	if len(h.arguments.stops.held) > 0 {
		return hold, 0
	}
	return take, 0
}

// between takes what stands between calls. Braces and fences too many behind arguments are dropped.
func (h *headedCalls) between(b byte) (progress, int) {
	if len(h.partial) == 0 {
		switch {
		case isSpace(b) && !h.any:
			return hold, 0
		case isSpace(b), h.any && (b == '}' || b == '`' && h.fence):
			return take, 0
		}
	}
	h.partial = append(h.partial, b)
	switch partial := string(h.partial); {
	case partial == h.begin:
		h.partial, h.state = nil, inHead
		return hold, 0
	case h.any && partial == h.close:
		return takeDone, 0
	case h.any && partial == h.end:
		h.partial = nil
		if h.close == "" && h.calls.full() {
			return takeDone, 0
		}
		return take, 0
	case strings.HasPrefix(h.begin, partial), h.any && (strings.HasPrefix(h.close, partial) || strings.HasPrefix(h.end, partial)):
		return hold, 0
	}
	return done, len(h.partial)
}

func (h *headedCalls) finish(bool) (text bool) {
	switch h.state {
	case inHeadedArguments:
		h.arguments.finish()
		return false
	case afterArguments:
		return false
	}
	return true
}
