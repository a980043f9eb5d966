// Package chat turns messages into text for a model: its chat template, as transformers' apply_chat_template renders it. It knows no HTTP and no
// tokenizer; the template language is in package jinja.
package chat

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// Template is a model's chat template with its special tokens. It is immutable and may be used concurrently.
type Template struct {
	template *jinja.Template
	specials *jinja.Dict
	// mentionsContent: a template that never says "content" cannot show a message to be continued.
	mentionsContent bool
}

// NewTemplate parses a chat template. specials are the special tokens by the names that templates use for them: bos_token, eos_token, pad_token and
// so on. A source that is not a valid template gives a *[jinja.Error] with the line.
func NewTemplate(source string, specials map[string]string) (*Template, error) {
	template, err := jinja.Parse("chat_template", source)
	if err != nil {
		return nil, fmt.Errorf("parse chat template: %w", err)
	}
	t := &Template{template: template, specials: &jinja.Dict{}, mentionsContent: strings.Contains(source, contentKey)}
	for name, token := range specials {
		t.specials.Set(name, jinja.Str(token))
	}
	return t, nil
}

// Conversation is the input of one rendering. Nothing in it is changed.
type Conversation struct {
	// Messages in order. What a message may hold is between the client and the template; keys keep the order of the client's JSON.
	Messages []*jinja.Dict
	// Tools are JSON schemas of functions; nil means none, and the template sees None.
	Tools []*jinja.Dict
	// Documents for templates that quote them; nil as for Tools.
	Documents []*jinja.Dict
	// AddGenerationPrompt ends the text with the opening of an assistant's turn.
	AddGenerationPrompt bool
	// ContinueFinalMessage ends the text where the last message's content ends, so that the model goes on with it. Not with AddGenerationPrompt.
	ContinueFinalMessage bool
	// Kwargs are further variables, such as enable_thinking or date_string; nil for none. They hide special tokens of the same name.
	Kwargs *jinja.Dict
	// Now is what strftime_now prints, in its own location. It must be set.
	Now time.Time
}

// ConversationError is a conversation that no template could render as asked.
type ConversationError struct {
	// Field is the part of the conversation at fault, as the request names it.
	Field string
	// Reason says what is wrong and what is allowed.
	Reason string
}

// Error implements error.
func (e *ConversationError) Error() string { return e.Field + ": " + e.Reason }

const (
	contentKey = "content"
	// continueTag marks the end of the message to be continued. Its last character is a space so that a template that trims content shows.
	continueTag = "CONTINUE_FINAL_MESSAGE_TAG "
)

// reasoningKeys are the names under which clients send a message's reasoning, the one that templates read first.
var reasoningKeys = []string{"reasoning_content", "thinking", "reasoning"}

// Render renders the conversation. Errors are a *[ConversationError], the template's own refusal as a *[jinja.RaisedError] whose message is meant for
// the client, another fault of template and messages together as a *[jinja.Error], which more work or memory than is allowed is too, or the cause of an
// ended context or [budget.ErrBusy]; all but the last two say that this conversation cannot be sent to this model.
func (t *Template) Render(ctx context.Context, c Conversation) (string, error) {
	b := budget.New(ctx, budget.Limits{})
	defer b.End()
	return t.RenderWithin(ctx, b, c)
}

// RenderWithin is Render with a budget of the caller's, which is renewed before.
func (t *Template) RenderWithin(ctx context.Context, b *budget.Budget, c Conversation) (string, error) {
	if c.Now.IsZero() {
		return "", errors.New("render chat template: no time given for strftime_now")
	}
	if c.ContinueFinalMessage && c.AddGenerationPrompt {
		return "", &ConversationError{"continue_final_message", "cannot be combined with add_generation_prompt: set one of them to false"}
	}
	messages := make([]jinja.Value, len(c.Messages))
	for i, message := range c.Messages {
		messages[i] = aliasReasoning(message)
	}
	final := ""
	if c.ContinueFinalMessage {
		var err error
		if final, err = t.markFinal(messages); err != nil {
			return "", err
		}
	}
	vars := t.specials.Clone()
	if c.Kwargs != nil {
		for i := range c.Kwargs.Len() {
			key, value := c.Kwargs.At(i)
			name, ok := key.(jinja.Str)
			if !ok {
				return "", &ConversationError{"chat_template_kwargs", "names must be strings"}
			}
			vars.Set(string(name), value)
		}
	}
	for _, own := range []struct {
		name  string
		value jinja.Value
	}{
		{"messages", &jinja.List{Items: messages}},
		{"tools", listOrNone(c.Tools)},
		{"documents", listOrNone(c.Documents)},
		{"add_generation_prompt", jinja.Bool(c.AddGenerationPrompt)},
	} {
		if _, ok := c.Kwargs.Get(own.name); ok {
			return "", &ConversationError{"chat_template_kwargs." + own.name, "is set by the request itself and cannot be given twice"}
		}
		vars.Set(own.name, own.value)
	}
	out, err := t.template.Render(ctx, vars, jinja.Options{Budget: b, Clock: func() time.Time { return c.Now }})
	if err != nil {
		return "", fmt.Errorf("render chat template: %w", err)
	}
	if c.ContinueFinalMessage {
		return cutFinal(out, final)
	}
	return out, nil
}

func listOrNone(dicts []*jinja.Dict) jinja.Value {
	if dicts == nil {
		return jinja.None
	}
	list := &jinja.List{Items: make([]jinja.Value, len(dicts))}
	for i, d := range dicts {
		list.Items[i] = d
	}
	return list
}

// aliasReasoning gives a message with reasoning under any name the two names that templates read.
func aliasReasoning(message *jinja.Dict) *jinja.Dict {
	for _, key := range reasoningKeys {
		reasoning, ok := message.Get(key)
		if !ok || reasoning == jinja.None {
			continue
		}
		out := &jinja.Dict{}
		out.Set("thinking", reasoning)
		out.Update(message)
		out.Set("reasoning_content", reasoning)
		return out
	}
	return message
}

// markFinal replaces the last message by one whose content ends in continueTag, and returns that content without it.
func (t *Template) markFinal(messages []jinja.Value) (string, error) {
	const field = "continue_final_message"
	if len(messages) == 0 {
		return "", &ConversationError{field, "the conversation is empty"}
	}
	if !t.mentionsContent {
		return "", &ConversationError{field, "the model's chat template does not use the content of messages"}
	}
	last := messages[len(messages)-1].(*jinja.Dict).Clone()
	messages[len(messages)-1] = last
	content, _ := last.Get(contentKey)
	switch content := content.(type) {
	case jinja.Str:
		last.Set(contentKey, content+continueTag)
		return string(content), nil
	case *jinja.List:
		parts := append([]jinja.Value{}, content.Items...)
		for i := len(parts) - 1; i >= 0; i-- {
			if _, isText := parts[i].(jinja.Str); isText {
				continue
			}
			part, ok := parts[i].(*jinja.Dict)
			if !ok {
				return "", &ConversationError{field, "the final message has a part that is neither an object nor a string"}
			}
			text, ok := part.Get("text")
			if !ok {
				continue
			}
			s, ok := text.(jinja.Str)
			if !ok {
				return "", &ConversationError{field, "the last text part of the final message is not a string"}
			}
			part = part.Clone()
			part.Set("text", s+continueTag)
			parts[i] = part
			last.Set(contentKey, &jinja.List{Items: parts})
			return string(s), nil
		}
		return "", &ConversationError{field, "the final message has no text part to continue"}
	}
	return "", &ConversationError{field, "the final message has no content to continue; it must be a string or a list of parts"}
}

// cutFinal ends the rendered text where the marked message ends.
func cutFinal(out, final string) (string, error) {
	at := strings.LastIndex(out, strings.TrimSpace(continueTag))
	if at < 0 || !strings.Contains(out, strings.TrimFunc(final, isSpace)) {
		return "", &ConversationError{"continue_final_message", "the chat template does not print the final message as it is"}
	}
	if strings.HasPrefix(out[at:], continueTag) {
		return out[:at], nil
	}
	// The template trims messages, so the end of this one would have been trimmed as well.
	return strings.TrimRightFunc(out[:at], isSpace), nil
}

// isSpace is what Python's str.strip cuts.
func isSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }
