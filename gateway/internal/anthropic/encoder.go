package anthropic

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"hash"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
)

// event is one event of a stream that tells of a block.
type event struct {
	Type  string        `json:"type"`
	Index int           `json:"index"`
	Block *contentBlock `json:"content_block,omitempty"`
	Delta *delta        `json:"delta,omitempty"`
	*exactTokens
}

// contentBlock is a block of an answer. Those of one type have the same fields always.
type contentBlock struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
}

// delta is what an event adds to a block.
type delta struct {
	Type        string  `json:"type"`
	Text        *string `json:"text,omitempty"`
	Thinking    *string `json:"thinking,omitempty"`
	Signature   *string `json:"signature,omitempty"`
	PartialJSON *string `json:"partial_json,omitempty"`
}

// The types of blocks and of the events that tell of them.
const (
	textBlock     = "text"
	thinkingBlock = "thinking"
	toolBlock     = "tool_use"

	blockStart = "content_block_start"
	blockDelta = "content_block_delta"
	blockStop  = "content_block_stop"
)

// rawArguments is the only key of the input of a call whose arguments are no JSON object. Its value is what the model wrote.
const rawArguments = "_raw_arguments"

// encoder makes blocks of what the reader finds in an answer, one after the other. A whole answer is what its events come to.
type encoder struct {
	// omitted has thoughts told of by their signature only.
	omitted bool
	// eager tells of which tools the input is given out as it comes, though it may turn out to be no JSON. Else it is given out when it is whole, as JSON always.
	eager map[string]bool

	open      string // the type of the block that is open, "" for none
	index     int    // of the open block, or of the next one
	thoughts  strings.Builder
	hash      hash.Hash // of thoughts that are shown
	arguments strings.Builder
	asItComes bool // the open call's input is given out as it comes
}

// push gives the events that tell of something that was read.
func (e *encoder) push(read answer.Event) (out []event) {
	text := read.Text
	switch read.Kind {
	case answer.Reasoning:
		out = e.begin(thinkingBlock)
		if e.omitted {
			e.thoughts.WriteString(text)
			return out
		}
		e.hash.Write([]byte(text))
		return append(out, e.delta(delta{Type: "thinking_delta", Thinking: &text}))
	case answer.Content:
		out = e.begin(textBlock)
		return append(out, e.delta(delta{Type: "text_delta", Text: &text}))
	case answer.CallBegin:
		out = e.end()
		e.open, e.asItComes = toolBlock, e.eager[read.Name]
		e.arguments.Reset()
		return append(out, event{Type: blockStart, Index: e.index, Block: &contentBlock{Type: toolBlock, ID: read.ID, Name: read.Name, Input: json.RawMessage("{}")}})
	case answer.CallArguments:
		if e.asItComes {
			return []event{e.delta(delta{Type: "input_json_delta", PartialJSON: &text})}
		}
		e.arguments.WriteString(text)
	case answer.CallEnd:
		return e.end()
	}
	return nil
}

// finish gives the last events. An answer without anything has an empty text.
func (e *encoder) finish() (out []event) {
	if e.index == 0 && e.open == "" {
		out = e.begin(textBlock)
	}
	return append(out, e.end()...)
}

// begin opens a block of a type, unless one is open.
func (e *encoder) begin(kind string) (out []event) {
	if e.open == kind {
		return nil
	}
	out = e.end()
	e.open = kind
	empty, unsigned := "", ""
	block := &contentBlock{Type: kind, Text: &empty}
	if kind == thinkingBlock {
		e.hash = sha256.New()
		e.thoughts.Reset()
		block = &contentBlock{Type: kind, Thinking: &empty, Signature: &unsigned}
	}
	return append(out, event{Type: blockStart, Index: e.index, Block: block})
}

func (e *encoder) delta(d delta) event { return event{Type: blockDelta, Index: e.index, Delta: &d} }

// end closes the open block.
func (e *encoder) end() (out []event) {
	switch {
	case e.open == "":
		return nil
	case e.open == thinkingBlock:
		signed := enclosed(e.thoughts.String())
		if !e.omitted {
			signed = signature([sha256.Size]byte(e.hash.Sum(nil)))
		}
		out = append(out, e.delta(delta{Type: "signature_delta", Signature: &signed}))
	case e.open == toolBlock && !e.asItComes:
		if input := inputOf(e.arguments.String()); input != "" {
			out = append(out, e.delta(delta{Type: "input_json_delta", PartialJSON: &input}))
		}
	}
	out = append(out, event{Type: blockStop, Index: e.index})
	e.open = ""
	e.index++
	return out
}

// inputOf makes JSON objects of arguments, "" of none.
func inputOf(arguments string) string {
	text := []byte(arguments)
	if trimmed := bytes.TrimSpace(text); len(trimmed) == 0 {
		return ""
	} else if trimmed[0] == '{' && json.Valid(trimmed) {
		return arguments
	}
	b, err := json.Marshal(map[string]string{rawArguments: arguments})
	if err != nil { // of two strings there is none
		panic(err)
	}
	return string(b)
}

// collector puts the events of an answer together, as a client of a stream does. The zero value is ready.
type collector struct{ blocks []*collected }

// collected is a block in the making; texts are what its deltas add up to.
type collected struct {
	*contentBlock
	text, signature, input strings.Builder
}

func (c *collector) add(events []event) {
	for _, e := range events {
		switch e.Type {
		case blockStart:
			c.blocks = append(c.blocks, &collected{contentBlock: e.Block})
		case blockDelta:
			b := c.blocks[e.Index]
			for _, part := range []struct {
				text *string
				into *strings.Builder
			}{{e.Delta.Text, &b.text}, {e.Delta.Thinking, &b.text}, {e.Delta.Signature, &b.signature}, {e.Delta.PartialJSON, &b.input}} {
				if part.text != nil {
					part.into.WriteString(*part.text)
				}
			}
		}
	}
}

// content are the blocks.
func (c *collector) content() []contentBlock {
	out := make([]contentBlock, len(c.blocks))
	for i, b := range c.blocks {
		text, signed := b.text.String(), b.signature.String()
		out[i] = *b.contentBlock
		switch b.Type {
		case textBlock:
			out[i].Text = &text
		case thinkingBlock:
			out[i].Thinking, out[i].Signature = &text, &signed
		case toolBlock:
			if b.input.Len() > 0 {
				out[i].Input = json.RawMessage(b.input.String())
			}
		}
	}
	return out
}
