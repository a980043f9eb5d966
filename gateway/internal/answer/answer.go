// Package answer reads what a model writes: it turns the text of an answer, piece by piece, into reasoning, content and tool calls. It knows text only: no
// HTTP, no tokens, no catalog. What is given out for the pieces of a text, put together, does not depend on how the text was cut; a whole answer is what
// Collect makes of a stream.
package answer

import "encoding/json"

// Kind says what an event is.
type Kind uint8

const (
	// Reasoning is a piece of what the model thinks, without its tags.
	Reasoning Kind = iota + 1
	// Content is a piece of the answer itself.
	Content
	// CallBegin begins call Index, with its ID and Name. The calls of an answer come one after the other: one ends before the next begins.
	CallBegin
	// CallArguments is a piece of the arguments of call Index: JSON text, as the model wrote it.
	CallArguments
	// CallEnd ends call Index: its arguments are whole. It does not come for a call in which the text was cut.
	CallEnd
)

// Event is one step of an answer. Texts are never empty and end at whole characters.
type Event struct {
	Kind  Kind
	Text  string // of Reasoning, Content and CallArguments
	Index int    // of the calls: 0, 1, 2 …
	ID    string // of CallBegin: unique within the answer, see Options.NewID
	Name  string // of CallBegin: as the model wrote it; it may be no tool's
}

// Tool is what the reader has to know of a tool.
type Tool struct {
	Name string
	// Parameters is the JSON Schema of the arguments, or nothing. Formats that write values without their type read it.
	Parameters json.RawMessage
}

// Options say how an answer is read.
type Options struct {
	// Format is how the model writes calls. With "" or None no call is read.
	Format Format
	// ReadCalls false leaves calls in the content: without tools, with tool_choice none, and where the client wants the raw text.
	ReadCalls bool
	// TaggedOnly reads calls only behind the format's opening tag: where the answer itself is JSON, it may look like a call without one.
	TaggedOnly bool
	// HeldCalls reads no calls in reasoning: the answer behind it is held to a form while it is sampled, and reasoning to none, so that a call in it could be any.
	HeldCalls bool
	// Tools are those of the request.
	Tools []Tool
	// MaxCalls ends reading behind so many calls; 0 is no limit. See Reader.Done.
	MaxCalls int
	// Tags enclose reasoning; without them no reasoning is read, the tags stay in the content.
	Tags Tags
	// State is where the rendered prompt ends, from Tags.At.
	State State
	// Lead is given out first, as content: what stands at the prompt's end and belongs to the raw text (Tags.Opening).
	Lead string
	// SkipSpecial leaves special tokens that are no tags out of content and reasoning.
	SkipSpecial bool
	// NewID makes the id of a call; nil is the format's way (see NewID).
	NewID func() string
}

// Call is a tool call of a collected answer.
type Call struct {
	ID, Name  string
	Arguments string // JSON text as the model wrote it, which may be malformed, or unfinished if the text was cut
	Ended     bool
}

// Answer is a collected answer. What is absent is nil, never "".
type Answer struct {
	Content, Reasoning *string
	Calls              []Call
}

// Collect puts the events of a whole stream together.
func Collect(events []Event) Answer {
	var c Collector
	c.Add(events)
	return c.Answer()
}
