package inference

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/chat"
	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// Conversation is what the model is to go on with, in the form that templates read.
type Conversation struct {
	// Messages have the roles system, user, assistant and tool, and content that is text. Tool calls of the assistant have their arguments as objects, or as the text that was none.
	Messages []*jinja.Dict
	// Tools are what the model may call.
	Tools []Tool
	// Documents are for templates that quote them.
	Documents []*jinja.Dict
	// Kwargs are further variables of the template; nil for none.
	Kwargs *jinja.Dict
	// AddGenerationPrompt begins an assistant's turn at the end; ContinueFinal leaves the last message open instead.
	AddGenerationPrompt, ContinueFinal bool
	// Size is how many bytes of JSON all of it came from.
	Size int
}

// Prompt is a conversation as the model reads it.
type Prompt struct {
	Text string
	// Turn is the end of Text that is the last message's, for a message that is continued.
	Turn   string
	Tokens []int32

	memory *recollection // nil without a session
}

// Prefix tells what of the prompt a session has remembered; nil without one.
func (p *Prompt) Prefix() *Prefix {
	if p.memory == nil {
		return nil
	}
	return p.memory.prefix
}

// template is a conversation as templates are given it.
func (v *Conversation) template() (chat.Conversation, error) {
	out := chat.Conversation{
		Messages: orderResults(v.Messages), Documents: v.Documents, Kwargs: v.Kwargs, AddGenerationPrompt: v.AddGenerationPrompt, ContinueFinalMessage: v.ContinueFinal, Now: time.Now(),
	}
	for i := range v.Tools {
		tool, err := v.Tools[i].function()
		if err != nil {
			return out, Invalid(fmt.Sprintf("tools[%d].function.parameters", i), "%v", err)
		}
		out.Tools = append(out.Tools, tool)
	}
	return out, nil
}

// renderable refuses a conversation that the model cannot be told.
func renderable(m *catalog.Model, v *Conversation) error {
	switch {
	case m.Tokenizer == nil:
		return Invalid("model", "%s has no tokenizer: use the Tinker API with token ids", m.Name)
	case m.Template == nil:
		return Invalid("model", "%s has no chat template: use /v1/completions", m.Name)
	case len(v.Messages) == 0:
		return Invalid("messages", "must hold at least one message")
	}
	return checkTools(m, v.Tools)
}

// Render turns a conversation into a prompt by the model's chat template.
func (s *Service) Render(c Call, m *catalog.Model, v Conversation) (Prompt, error) {
	if err := renderable(m, &v); err != nil {
		return Prompt{}, err
	}
	whole, err := v.template()
	if err != nil {
		return Prompt{}, err
	}
	ctx := c.Request.Context()
	b := budget.For(ctx, c.Owner, budget.Limits{})
	defer b.End()
	b.On(v.Size)
	text, err := renderAdapted(ctx, b, m.Template, whole)
	if err != nil {
		return Prompt{}, renderError(err)
	}
	b.Renew(budget.Limits{})
	ids, err := m.Tokenizer.EncodeWithin(b, text, false)
	if err != nil {
		return Prompt{}, TokenizeError(ctx, "messages", err)
	}
	out := Prompt{Text: text, Tokens: ids}
	if v.ContinueFinal {
		out.Turn = finalTurn(text, textOf(v.Messages[len(v.Messages)-1], "content"), m.Reasoning.Open)
	}
	return out, nil
}

// finalTurn is the end of a prompt that a message's content makes, with the thoughts before it.
func finalTurn(text, content, open string) string {
	at := strings.LastIndex(text, strings.TrimSpace(content))
	if at < 0 {
		return text
	}
	if open != "" && strings.HasSuffix(strings.TrimSpace(text[:at]), open) {
		return text[strings.LastIndex(text[:at], open):]
	}
	return text[at:]
}

// OfTokens is a prompt that a client has made itself.
func (s *Service) OfTokens(c Call, m *catalog.Model, ids []int32) (Prompt, error) {
	if m.Tokenizer == nil {
		return Prompt{}, Invalid("model", "%s has no tokenizer: use the Tinker API with token ids", m.Name)
	}
	b := budget.For(c.Request.Context(), c.Owner, budget.Limits{})
	defer b.End()
	const end = 64 // tokens tell how the answer begins
	text, err := m.Tokenizer.DecodeWithin(b, ids[max(0, len(ids)-end):], false)
	if err != nil {
		return Prompt{}, TokenizeError(c.Request.Context(), "tokens", err)
	}
	return Prompt{Text: text, Tokens: ids}, nil
}

// renderAdapted renders a conversation as it is. Where the template refuses it, it is told in other ways that mean the same, one after the other. If all are refused the error
// is about the conversation as it was.
func renderAdapted(ctx context.Context, b *budget.Budget, t *chat.Template, c chat.Conversation) (string, error) {
	text, err := t.RenderWithin(ctx, b, c)
	refused := err
	var raised *jinja.RaisedError
	for _, adapt := range adaptations {
		if !errors.As(err, &raised) {
			break
		}
		changed, did := adapt(c.Messages)
		if !did {
			continue
		}
		c.Messages = changed
		text, err = t.RenderWithin(ctx, b, c)
	}
	if err != nil && errors.As(err, &raised) {
		err = refused
	}
	return text, err
}

// TokenizeError says that a field's text is none for the model's tokenizer. That the request has ended, or that it must wait, is no fault of the text.
func TokenizeError(ctx context.Context, field string, err error) error {
	if ctx.Err() != nil || errors.Is(err, budget.ErrBusy) {
		return err
	}
	return Invalid(field, "cannot be tokenized: %v", err)
}

// renderError says what is wrong with the conversation.
func renderError(err error) error {
	var conversation *chat.ConversationError
	var raised *jinja.RaisedError
	var fault *jinja.Error
	switch {
	case errors.As(err, &conversation):
		return Invalid(conversation.Field, "%s", conversation.Reason)
	case errors.As(err, &raised):
		return Invalid("messages", "the model's chat template refuses them: %s", raised.Message)
	case errors.As(err, &fault):
		return Invalid("messages", "the model's chat template cannot render them: line %d: %s", fault.Line, fault.Described())
	}
	return err
}
