package anthropic

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// maxBlocks bounds the blocks of one message.
const maxBlocks = 100_000

// block is a part of a message's content, of any type.
type block struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text"`
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
	ToolName  string          `json:"tool_name"`

	at    string // where it stands
	plain bool   // the content was a string
}

// readContent reads a content: a string, or a list of blocks.
func readContent(at string, raw json.RawMessage) ([]block, error) {
	switch inference.KindOf(raw) {
	case '"':
		text, err := inference.StringOf(raw)
		if err != nil {
			return nil, inference.Invalid(at, "%v", err)
		}
		return []block{{Type: "text", Text: &text, at: at, plain: true}}, nil
	case '[':
	default:
		return nil, inference.Invalid(at, "must be a string or a list of blocks")
	}
	list, err := inference.Elements(raw, maxBlocks)
	if err != nil {
		return nil, inference.Invalid(at, "%v", err)
	}
	out := make([]block, len(list))
	for i, one := range list {
		at := fmt.Sprintf("%s[%d]", at, i)
		if inference.KindOf(one) != '{' {
			return nil, inference.Invalid(at, "must be an object with a type")
		}
		if err := readBlock(at, one, &out[i]); err != nil {
			return nil, err
		}
		out[i].at = at
	}
	return out, nil
}

// readBlock reads a block. Of those that are skipped, or refused by their type, the other fields may be anything.
func readBlock(at string, raw json.RawMessage, into *block) error {
	var kind struct {
		Type string `json:"type"`
	}
	if err := inference.DecodePart(at, raw, &kind); err != nil {
		return err
	}
	switch into.Type = kind.Type; kind.Type {
	case "text", "thinking", "tool_use", "tool_result", "mid_conv_system", "tool_reference":
		return inference.DecodePart(at, raw, into)
	}
	return nil
}

// skipped tells whether a block is left out: thoughts that nobody here can read, and what Anthropic's servers have done.
func (b *block) skipped() bool {
	switch b.Type {
	case "redacted_thinking", "server_tool_use", "mcp_tool_use":
		return true
	}
	return strings.HasSuffix(b.Type, "_tool_result")
}

// text is that of a text block.
func (b *block) text() (string, error) {
	if b.Text == nil {
		return "", inference.Invalid(b.at+".text", "is required")
	}
	return *b.Text, nil
}

// nested is the text that a block has inside: its content, or, where it has none, its own.
func (b *block) nested() (string, error) {
	if !inference.Given(b.Content) {
		if b.Text != nil {
			return *b.Text, nil
		}
		return "", nil
	}
	blocks, err := readContent(b.at+".content", b.Content)
	if err != nil {
		return "", err
	}
	var texts []string
	for i := range blocks {
		part := &blocks[i]
		switch part.Type {
		case "text":
			text, err := part.text()
			if err != nil {
				return "", err
			}
			if text != "" {
				texts = append(texts, text)
			}
		case "tool_reference": // which a search for tools has found
			texts = append(texts, part.ToolName)
		default:
			return "", part.refused("text and tool_reference")
		}
	}
	return strings.Join(texts, "\n"), nil
}

// call is a tool call as templates read it.
func (b *block) call() (*jinja.Dict, error) {
	if b.ID == "" {
		return nil, inference.Invalid(b.at+".id", "is required")
	}
	if b.Name == "" {
		return nil, inference.Invalid(b.at+".name", "is required")
	}
	arguments, err := b.arguments()
	if err != nil {
		return nil, err
	}
	function := &jinja.Dict{}
	function.Set("name", jinja.Str(b.Name))
	function.Set("arguments", arguments)
	out := &jinja.Dict{}
	out.Set("id", jinja.Str(b.ID))
	out.Set("type", jinja.Str("function"))
	out.Set("function", function)
	return out, nil
}

// arguments are the input of a call. Those that were no JSON object are what the model wrote: it is to see that again.
func (b *block) arguments() (jinja.Value, error) {
	if !inference.Given(b.Input) {
		return &jinja.Dict{}, nil
	}
	if inference.KindOf(b.Input) != '{' {
		return nil, inference.Invalid(b.at+".input", "must be an object")
	}
	value, err := jinja.FromJSON(b.Input)
	if err != nil {
		return nil, inference.Invalid(b.at+".input", "%v", err)
	}
	if d, ok := value.(*jinja.Dict); ok && d.Len() == 1 {
		raw, _ := d.Get(rawArguments)
		if text, ok := raw.(jinja.Str); ok {
			return text, nil
		}
	}
	return value, nil
}
