package anthropic

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// billing begins a system block in which Claude Code tells what a request belongs to. It is another one in every request, so that no prompt would begin as the one before.
const billing = "x-anthropic-billing-header:"

// turns collects the messages of a conversation in the form that templates read.
type turns struct{ messages []*jinja.Dict }

func (t *turns) put(role, content string) *jinja.Dict {
	m := &jinja.Dict{}
	m.Set("role", jinja.Str(role))
	m.Set("content", jinja.Str(content))
	t.messages = append(t.messages, m)
	return m
}

// system reads what stands before the messages.
func (t *turns) system(raw json.RawMessage) error {
	if !inference.Given(raw) {
		return nil
	}
	blocks, err := readContent("system", raw)
	if err != nil {
		return err
	}
	var texts []string
	for i, b := range blocks {
		if b.Type != "text" {
			return inference.Invalid(b.at+".type", "%.40q is not text", b.Type)
		}
		text, err := blocks[i].text()
		if err != nil {
			return err
		}
		if text != "" && (b.plain || !strings.HasPrefix(text, billing)) {
			texts = append(texts, text)
		}
	}
	if texts != nil {
		t.put("system", strings.Join(texts, "\n"))
	}
	return nil
}

// add reads one message.
func (t *turns) add(at string, raw json.RawMessage) error {
	if inference.KindOf(raw) != '{' {
		return inference.Invalid(at, "must be an object")
	}
	var m struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := inference.DecodePart(at, raw, &m); err != nil {
		return err
	}
	read := t.user
	switch m.Role {
	case "user":
	case "assistant":
		read = t.assistant
	case "system": // of which there are some in the middle
		read = t.reminder
	default:
		return inference.Invalid(at+".role", "%.40q is not one of user, assistant, system", m.Role)
	}
	if !inference.Given(m.Content) {
		return inference.Invalid(at+".content", "is required")
	}
	blocks, err := readContent(at+".content", m.Content)
	if err != nil {
		return err
	}
	return read(blocks)
}

// user reads a user's turn: the results of tools, and then what the user says. What the system says in between stays at its place.
func (t *turns) user(blocks []block) error {
	before := len(t.messages)
	for i := range blocks {
		if blocks[i].Type == "tool_result" {
			if err := t.result(&blocks[i]); err != nil {
				return err
			}
		}
	}
	var texts []string
	say := func() {
		if texts != nil {
			t.put("user", strings.Join(texts, "\n"))
		}
		texts = nil
	}
	for i := range blocks {
		b := &blocks[i]
		switch {
		case b.Type == "tool_result", b.skipped():
		case b.Type == "mid_conv_system":
			say()
			text, err := b.nested()
			if err != nil {
				return err
			}
			t.put("system", text)
		case b.Type == "text":
			text, err := b.text()
			if err != nil {
				return err
			}
			if text != "" {
				texts = append(texts, text)
			}
		default:
			return b.refused("text and tool_result")
		}
	}
	say()
	if len(t.messages) == before {
		t.put("user", "")
	}
	return nil
}

// result reads what a tool has given.
func (t *turns) result(b *block) error {
	text, err := b.nested()
	if err != nil {
		return err
	}
	if b.IsError {
		text = "Error: " + text
	}
	t.put("tool", text).Set("tool_call_id", jinja.Str(b.ToolUseID))
	return nil
}

// assistant reads what the model has said, thought and called.
func (t *turns) assistant(blocks []block) error {
	var said, thought strings.Builder
	calls := &jinja.List{}
	for i := range blocks {
		b := &blocks[i]
		switch {
		case b.skipped():
		case b.Type == "text":
			text, err := b.text()
			if err != nil {
				return err
			}
			said.WriteString(text)
		case b.Type == "thinking":
			thought.WriteString(restored(b.Thinking, b.Signature))
		case b.Type == "tool_use":
			call, err := b.call()
			if err != nil {
				return err
			}
			calls.Items = append(calls.Items, call)
		default:
			return b.refused("text, thinking and tool_use")
		}
	}
	m := t.put("assistant", said.String())
	if thought.Len() > 0 {
		m.Set("reasoning_content", jinja.Str(thought.String()))
	}
	if len(calls.Items) > 0 { // templates ask whether there are any by asking for the key
		m.Set("tool_calls", calls)
	}
	return nil
}

// reminder reads a system message among the others.
func (t *turns) reminder(blocks []block) error {
	var texts []string
	for i := range blocks {
		b := &blocks[i]
		if b.Type != "text" {
			return b.refused("text")
		}
		text, err := b.text()
		if err != nil {
			return err
		}
		if text != "" {
			texts = append(texts, text)
		}
	}
	t.put("system", strings.Join(texts, "\n"))
	return nil
}

// continued tells whether the model is to go on with the last message. One of the assistant that says nothing is taken away.
func (t *turns) continued() (bool, error) {
	last := len(t.messages) - 1
	m := t.messages[last]
	if role, _ := m.Get("role"); role != jinja.Value(jinja.Str("assistant")) {
		return false, nil
	}
	if _, calls := m.Get("tool_calls"); calls {
		return false, inference.Invalid("messages", "the last one calls tools: what they gave must follow it, as tool_result blocks of a user's message")
	}
	_, thinks := m.Get("reasoning_content")
	if content, _ := m.Get("content"); content == jinja.Value(jinja.Str("")) && !thinks {
		if last == 0 {
			return false, inference.Invalid("messages", "must say something")
		}
		t.messages = t.messages[:last]
		return false, nil
	}
	return true, nil
}

// refused says that a block may not stand where it stands.
func (b *block) refused(allowed string) error {
	why := fmt.Sprintf("%.40q is not allowed here: %s are", b.Type, allowed)
	switch b.Type {
	case "image", "document", "search_result", "container_upload", "browser_state":
		return inference.Unsupported(b.at+".type", why+"; the served models read text")
	}
	return inference.Invalid(b.at+".type", "%s", why)
}
