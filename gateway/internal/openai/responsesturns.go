package openai

import (
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// turns makes the messages that templates read of items. What the assistant has thought, said and called without anything in between is one message.
func turns(items []item) []*jinja.Dict {
	var out []*jinja.Dict
	var open *assistantTurn
	for _, i := range items {
		switch i.Type {
		case itemReasoning, itemCall, itemCustomCall:
		case itemMessage:
			if i.Role == "assistant" {
				break
			}
			fallthrough
		default:
			if open != nil {
				out, open = append(out, open.message()), nil
			}
			out = append(out, otherTurn(&i))
			continue
		}
		if open == nil {
			open = &assistantTurn{}
		}
		open.add(&i)
	}
	if open != nil {
		out = append(out, open.message())
	}
	return out
}

// otherTurn is the message of an item that is not the assistant's.
func otherTurn(i *item) *jinja.Dict {
	out := &jinja.Dict{}
	if i.Type != itemMessage {
		out.Set("role", jinja.Str("tool"))
		out.Set("tool_call_id", jinja.Str(i.CallID))
		out.Set("content", jinja.Str(joined(i.Output)))
		return out
	}
	out.Set("role", jinja.Str(roles[i.Role]))
	out.Set("content", jinja.Str(joined(i.Content)))
	return out
}

// assistantTurn is a message of the assistant in the making.
type assistantTurn struct {
	thoughts []string
	content  strings.Builder
	last     string // the answer that the last of the content comes from
	calls    *jinja.List
}

func (t *assistantTurn) add(i *item) {
	switch i.Type {
	case itemReasoning:
		text := joined(i.Content)
		if len(i.Content) == 0 {
			text = joined(i.Summary)
		}
		t.thoughts = append(t.thoughts, text)
	case itemMessage:
		// What one answer has said before and after its calls was one text.
		answer, text := answerOf(i.ID), joined(i.Content)
		if t.content.Len() > 0 && text != "" && (answer == "" || answer != t.last) {
			t.content.WriteString("\n\n")
		}
		t.last = answer
		t.content.WriteString(text)
	default:
		arguments := inference.Arguments(i.Text)
		if i.Type == itemCustomCall {
			input := &jinja.Dict{}
			input.Set(customInput, jinja.Str(i.Text))
			arguments = input
		}
		function := &jinja.Dict{}
		function.Set("name", jinja.Str(i.Name))
		function.Set("arguments", arguments)
		call := &jinja.Dict{}
		call.Set("id", jinja.Str(i.CallID))
		call.Set("type", jinja.Str("function"))
		call.Set("function", function)
		if t.calls == nil {
			t.calls = &jinja.List{}
		}
		t.calls.Items = append(t.calls.Items, call)
	}
}

func (t *assistantTurn) message() *jinja.Dict {
	out := &jinja.Dict{}
	out.Set("role", jinja.Str("assistant"))
	out.Set("content", jinja.Str(t.content.String()))
	if len(t.thoughts) > 0 {
		out.Set("reasoning_content", jinja.Str(strings.Join(t.thoughts, "\n")))
	}
	if t.calls != nil {
		out.Set("tool_calls", t.calls)
	}
	return out
}
