package answer

import "strings"

// Harmony is <|channel|>commentary to=functions.N <|constrain|>json<|message|>{…}<|call|>, with reasoning and content in channels of their own.
const Harmony Format = "harmony"

const (
	harmonyStart   = "<|start|>"
	harmonyChannel = "<|channel|>"
	harmonyMessage = "<|message|>"
	harmonyEnd     = "<|end|>"
	harmonyCall    = "<|call|>"
	harmonyReturn  = "<|return|>"
)

// harmonyTags are what stands around reasoning in an answer of gpt-oss. The reader goes by the channels, and by the tags only knows that reasoning is wanted.
var harmonyTags = Tags{harmonyChannel + "analysis" + harmonyMessage, harmonyEnd}

// harmonyOpeners begin a header. The prompt ends in the middle of the first one.
var harmonyOpeners = []opener{{text: harmonyChannel}, {text: harmonyStart}, {text: "to=", place: atStart}}

// harmony is the format of gpt-oss. An answer is a row of messages, each with a header.
var harmony = definition{
	format: Harmony,
	signs: func(template string) bool {
		return strings.Contains(template, harmonyChannel) && strings.Contains(template, harmonyStart)
	},
	openers:  harmonyOpeners,
	noise:    []string{harmonyEnd, harmonyCall, harmonyReturn},
	channels: true,
	open: func(i int, c *calls) machine {
		m := &harmonyMessages{calls: c}
		m.head = append(m.head, harmonyOpeners[i].text...)
		m.in.texts = []string{harmonyMessage, harmonyEnd}
		return m
	},
}

// harmonyMessages reads a header, and the arguments if it is that of a call.
type harmonyMessages struct {
	calls *calls

	in        matcher
	head      []byte
	called    bool
	arguments *jsonArguments // JSON, else the body is read up to its end
	blank     bool           // no byte of the body but white space
	whole     bool
}

func (m *harmonyMessages) feed(b byte) (progress, int) {
	switch {
	case m.arguments != nil && !m.whole:
		return m.json(b)
	case m.called:
		return m.body(b)
	}
	free, found := m.in.feed(b)
	m.head = append(m.head, free...)
	switch {
	case found == harmonyEnd || len(m.head) > maxHead:
		return done, len(found)
	case found == "":
		return hold, 0
	}
	channel, recipient := harmonyHeader(string(m.head))
	if recipient != "" && m.calls.reader.options.ReadCalls {
		m.calls.begin(strings.TrimPrefix(recipient, "functions."), "")
		m.called, m.blank = true, true
		m.in = matcher{texts: []string{harmonyCall, harmonyEnd, harmonyReturn, harmonyStart}}
		return take, 0
	}
	if !m.calls.channel(channel == "analysis") {
		return done, 0
	}
	return takeDone, 0
}

// harmonyHeader gives the channel of a header, and to whom the message goes if not to the user.
func harmonyHeader(head string) (channel, recipient string) {
	if _, after, ok := strings.Cut(head, harmonyChannel); ok {
		channel, _, _ = strings.Cut(strings.TrimLeft(after, whiteSpace), " ")
		channel, _, _ = strings.Cut(channel, "<")
	}
	if _, after, ok := strings.Cut(head, "to="); ok {
		recipient, _, _ = strings.Cut(after, "<")
		recipient, _, _ = strings.Cut(recipient, " ")
	}
	return strings.Trim(channel, whiteSpace), strings.Trim(recipient, whiteSpace)
}

// body takes a byte of a body that is no JSON, or of what follows JSON, up to its end.
func (m *harmonyMessages) body(b byte) (progress, int) {
	if m.blank && b == '{' && len(m.in.held) == 0 {
		m.arguments = &jsonArguments{calls: m.calls, stops: matcher{texts: m.in.texts}}
		m.arguments.begin()
		return m.json(b)
	}
	free, found := m.in.feed(b)
	m.blank = m.blank && strings.Trim(string(free), whiteSpace) == ""
	if !m.whole && !m.blank {
		m.calls.arguments(string(free))
	}
	if found == "" {
		return take, 0
	}
	return m.end(found)
}

// json takes a byte of arguments that are JSON.
func (m *harmonyMessages) json(b byte) (progress, int) {
	switch m.arguments.feed(b) {
	case lastOfArguments:
		m.whole = true
		m.in = matcher{texts: m.arguments.stops.texts}
	case argumentsAtTag:
		m.whole = true
		return m.end(m.arguments.stopped)
	}
	return take, 0
}

// end ends the call at a tag.
func (m *harmonyMessages) end(tag string) (progress, int) {
	if !m.whole {
		if m.blank {
			m.calls.arguments("{}")
		}
		m.calls.end()
	}
	if tag == harmonyStart {
		*m = harmonyMessages{calls: m.calls, in: matcher{texts: []string{harmonyMessage, harmonyEnd}}}
		return take, 0
	}
	return takeDone, 0
}

func (m *harmonyMessages) finish(cut bool) (text bool) {
	switch {
	case !m.called:
		return true
	case m.arguments != nil:
		if !m.whole {
			m.arguments.finish()
		}
	case !cut:
		m.calls.arguments(string(m.in.held))
		m.end("")
	}
	return false
}
