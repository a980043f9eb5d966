package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/chat"
	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// renderChat turns messages into the prompt's tokens by the model's chat template.
func (s *Service) renderChat(c call, m *catalog.Model, r *chatRequest) ([]int32, error) {
	if m.Tokenizer == nil {
		return nil, invalid("model", "%s has no tokenizer: use the Tinker API with token ids", m.Name)
	}
	if m.Template == nil {
		return nil, invalid("model", "%s has no chat template: use /v1/completions", m.Name)
	}
	if len(r.Messages) == 0 {
		return nil, invalid("messages", "must hold at least one message")
	}
	size := 0
	for _, raw := range r.Messages {
		size += len(raw)
	}
	if err := s.bound(c, m, "messages", size); err != nil {
		return nil, err
	}
	conversation := chat.Conversation{AddGenerationPrompt: !r.ContinueFinal, ContinueFinalMessage: r.ContinueFinal, Now: time.Now()}
	if r.AddGenerationPrompt != nil {
		conversation.AddGenerationPrompt = *r.AddGenerationPrompt
	}
	for i, raw := range r.Messages {
		message, err := parseMessage(fmt.Sprintf("messages[%d]", i), raw)
		if err != nil {
			return nil, err
		}
		conversation.Messages = append(conversation.Messages, message)
	}
	var err error
	if conversation.Kwargs, err = templateKwargs(m, r); err != nil {
		return nil, err
	}
	ctx := c.Request.Context()
	b := budget.For(ctx, c.owner, budget.Limits{})
	defer b.End()
	b.On(size)
	text, err := m.Template.RenderWithin(ctx, b, conversation)
	if err != nil {
		return nil, renderError(err)
	}
	b.Renew(budget.Limits{})
	ids, err := m.Tokenizer.EncodeWithin(b, text, false)
	if err != nil {
		return nil, tokenizeError(ctx, "messages", err)
	}
	return ids, nil
}

// tokenizeError says that a field's text is none for the model's tokenizer. That the request has ended, or that it must wait, is no fault of the text.
func tokenizeError(ctx context.Context, field string, err error) error {
	if ctx.Err() != nil || errors.Is(err, budget.ErrBusy) {
		return err
	}
	return invalid(field, "cannot be tokenized: %v", err)
}

// renderError says what is wrong with the conversation.
func renderError(err error) error {
	var conversation *chat.ConversationError
	var raised *jinja.RaisedError
	var fault *jinja.Error
	switch {
	case errors.As(err, &conversation):
		return invalid(conversation.Field, "%s", conversation.Reason)
	case errors.As(err, &raised):
		return invalid("messages", "the model's chat template refuses them: %s", raised.Message)
	case errors.As(err, &fault):
		return invalid("messages", "the model's chat template cannot render them: line %d: %s", fault.Line, fault.Described())
	}
	return err
}

// roles that a message may have. A developer's message is a system message to every template that we know.
var roles = map[string]string{"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

// parseMessage checks one message and brings it into the form that templates expect: text content, tool arguments as objects.
func parseMessage(field string, raw json.RawMessage) (*jinja.Dict, error) {
	value, err := jinja.FromJSON(raw)
	if err != nil {
		return nil, invalid(field, "%v", err)
	}
	message, ok := value.(*jinja.Dict)
	if !ok {
		return nil, invalid(field, "must be an object")
	}
	message = message.Clone()
	role, ok := message.Get("role")
	name, isText := role.(jinja.Str)
	if !ok || !isText || roles[string(name)] == "" {
		return nil, invalid(field+".role", "%.40q is not one of system, developer, user, assistant, tool", string(name))
	}
	message.Set("role", jinja.Str(roles[string(name)]))
	content, ok := message.Get("content")
	calls, hasCalls := message.Get("tool_calls")
	hasCalls = hasCalls && calls != jinja.None
	switch {
	case !ok || content == jinja.None:
		if name != "assistant" || !hasCalls {
			return nil, invalid(field+".content", "is required")
		}
		message.Set("content", jinja.Str(""))
	default:
		text, err := contentText(field+".content", content)
		if err != nil {
			return nil, err
		}
		message.Set("content", jinja.Str(text))
	}
	if hasCalls {
		parsed, err := toolCalls(field+".tool_calls", calls)
		if err != nil {
			return nil, err
		}
		message.Set("tool_calls", parsed)
	}
	return message, nil
}

// contentText joins a list of text parts; other kinds of parts are refused.
func contentText(field string, content jinja.Value) (string, error) {
	switch c := content.(type) {
	case jinja.Str:
		return string(c), nil
	case *jinja.List:
		texts := make([]string, 0, len(c.Items))
		for i, item := range c.Items {
			part, ok := item.(*jinja.Dict)
			if !ok {
				return "", invalid(fmt.Sprintf("%s[%d]", field, i), "must be an object with a type")
			}
			kind, _ := part.Get("type")
			if kind != jinja.Value(jinja.Str("text")) {
				return "", invalid(fmt.Sprintf("%s[%d].type", field, i), "only text parts are supported: the served models read text")
			}
			text, _ := part.Get("text")
			s, ok := text.(jinja.Str)
			if !ok {
				return "", invalid(fmt.Sprintf("%s[%d].text", field, i), "must be a string")
			}
			texts = append(texts, string(s))
		}
		return strings.Join(texts, "\n"), nil
	}
	return "", invalid(field, "must be a string or a list of text parts")
}

// toolCalls parses the arguments of earlier tool calls, which clients send as JSON in a string and templates print as objects.
func toolCalls(field string, calls jinja.Value) (jinja.Value, error) {
	list, ok := calls.(*jinja.List)
	if !ok {
		return nil, invalid(field, "must be a list")
	}
	out := &jinja.List{Items: make([]jinja.Value, len(list.Items))}
	for i, item := range list.Items {
		at := fmt.Sprintf("%s[%d]", field, i)
		one, ok := item.(*jinja.Dict)
		if !ok {
			return nil, invalid(at, "must be an object")
		}
		one = one.Clone()
		function, _ := one.Get("function")
		f, ok := function.(*jinja.Dict)
		if !ok {
			return nil, invalid(at+".function", "is required")
		}
		f = f.Clone()
		arguments, _ := f.Get("arguments")
		if text, ok := arguments.(jinja.Str); ok {
			parsed, err := jinja.FromJSON([]byte(text))
			if err != nil {
				return nil, invalid(at+".function.arguments", "is not valid JSON: %v", err)
			}
			f.Set("arguments", parsed)
		}
		one.Set("function", f)
		out.Items[i] = one
	}
	return out, nil
}

// templateKwargs are the variables that the request adds for the template. What the template does not read is refused, not dropped.
func templateKwargs(m *catalog.Model, r *chatRequest) (*jinja.Dict, error) {
	if len(r.TemplateKwargs) == 0 && r.ReasoningEffort == nil {
		return nil, nil
	}
	source := m.Tokenizer.ChatTemplate()
	out := &jinja.Dict{}
	names := make([]string, 0, len(r.TemplateKwargs))
	for name := range r.TemplateKwargs {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if !strings.Contains(source, name) {
			return nil, invalid("chat_template_kwargs."+name, "the model's chat template does not use it")
		}
		value, err := jinja.FromJSON(r.TemplateKwargs[name])
		if err != nil {
			return nil, invalid("chat_template_kwargs."+name, "%v", err)
		}
		out.Set(name, value)
	}
	if r.ReasoningEffort != nil {
		effort := *r.ReasoningEffort
		switch effort {
		case "none", "minimal", "low", "medium", "high", "xhigh":
		default:
			return nil, invalid("reasoning_effort", "%.40q is not one of none, minimal, low, medium, high, xhigh", effort)
		}
		switch {
		case strings.Contains(source, "reasoning_effort"):
			out.Set("reasoning_effort", jinja.Str(effort))
		case strings.Contains(source, "enable_thinking"):
			if _, given := out.Get("enable_thinking"); !given {
				out.Set("enable_thinking", jinja.Bool(effort != "none" && effort != "minimal"))
			}
		default:
			return nil, unsupported("reasoning_effort", "the model's chat template has no setting for it")
		}
	}
	return out, nil
}
