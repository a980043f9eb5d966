package anthropic

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// messagesRequest is the body of /messages. Of the shared fields, those that this API does not have are taken as /v1/chat/completions takes them. What is about Anthropic's own machines
// is left alone: metadata, service_tier, inference_geo, container, context_management, diagnostics, cache_control and the like.
type messagesRequest struct {
	inference.Parameters
	Messages      []json.RawMessage `json:"messages"`
	System        json.RawMessage   `json:"system"`
	MaxTokens     *int              `json:"max_tokens"`
	StopSequences json.RawMessage   `json:"stop_sequences"`
	Tools         []json.RawMessage `json:"tools"`
	ToolChoice    json.RawMessage   `json:"tool_choice"`
	Thinking      *thinkingConfig   `json:"thinking"`
	OutputConfig  *outputConfig     `json:"output_config"`
	OutputFormat  *outputFormat     `json:"output_format"` // an older name of output_config.format
	MCPServers    json.RawMessage   `json:"mcp_servers"`

	TemplateKwargs map[string]json.RawMessage `json:"chat_template_kwargs"`
	SessionID      string                     `json:"session_id"`
}

// outputConfig says what the answer is to be.
type outputConfig struct {
	Effort *string       `json:"effort"`
	Format *outputFormat `json:"format"`
}

// outputFormat is a form that the answer is held to.
type outputFormat struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

// form checks one.
func (f *outputFormat) form(field string) (inference.AnswerForm, error) {
	if f.Type != "json_schema" {
		return inference.AnswerForm{}, inference.Invalid(field+".type", "%.40q is not json_schema", f.Type)
	}
	if k := inference.KindOf(f.Schema); k != '{' {
		return inference.AnswerForm{}, inference.Invalid(field+".schema", "must be an object: a JSON schema")
	}
	return inference.AnswerForm{Field: field, Schema: f.Schema, Strict: true}, nil
}

// asked is a request that was read.
type asked struct {
	*inference.Request
	tools   *toolSet
	omitted bool // thoughts are told of by their signature only
}

// request reads what is asked for.
func (s *Service) request(c inference.Call, r *messagesRequest) (*asked, error) {
	if r.MaxTokens == nil {
		return nil, inference.Invalid("max_tokens", "is required")
	}
	if *r.MaxTokens < 1 {
		return nil, inference.Invalid("max_tokens", "%d is not at least 1", *r.MaxTokens)
	}
	out, err := s.prompt(c, r)
	if err != nil {
		return nil, err
	}
	out.TopLogprobs = -1
	out.Limit, out.CutLimit = inference.Limit{Field: "max_tokens", Tokens: r.MaxTokens}, true // the model's context is nothing that these clients can be told of
	return out, nil
}

// prompt reads what the model is asked, without how it is to answer.
func (s *Service) prompt(c inference.Call, r *messagesRequest) (*asked, error) {
	if r.N != nil && *r.N != 1 {
		return nil, inference.Unsupported("n", "an answer is one message: only 1 is allowed")
	}
	if inference.Given(r.StopSequences) {
		if inference.Given(r.Stop) {
			return nil, inference.Invalid("stop", "cannot be given together with stop_sequences, which is this API's name of it")
		}
		if inference.KindOf(r.StopSequences) != '[' {
			return nil, inference.Invalid("stop_sequences", "must be a list of strings")
		}
		r.Stop, r.StopField = r.StopSequences, "stop_sequences"
	}
	if inference.Given(r.MCPServers) && !inference.AsksNothing(r.MCPServers) {
		return nil, inference.Unsupported("mcp_servers", "this server calls no others: give the tools as tools, and call them yourself")
	}
	target, m, err := s.Model(c, r.Model)
	if err != nil {
		return nil, err
	}
	out := &asked{Request: &inference.Request{Model: m, Target: target, Session: cmp.Or(r.SessionID, c.GetHeader("X-Session-Id"))}}
	if out.Thinking, out.omitted, err = r.thinking(); err != nil {
		return nil, err
	}
	if out.Form, err = r.form(); err != nil {
		return nil, err
	}
	if out.tools, err = r.toolSet(eagerBeta(c)); err != nil {
		return nil, err
	}
	if out.Choice, err = r.choice(out.tools); err != nil {
		return nil, err
	}
	out.Conversation, err = s.conversation(c, m, r, out)
	return out, err
}

// form is what the answer is held to.
func (r *messagesRequest) form() (inference.AnswerForm, error) {
	switch {
	case r.OutputConfig != nil && r.OutputConfig.Format != nil && r.OutputFormat != nil:
		return inference.AnswerForm{}, inference.Invalid("output_format", "cannot be given together with output_config.format, which is the newer name of it")
	case r.OutputConfig != nil && r.OutputConfig.Format != nil:
		return r.OutputConfig.Format.form("output_config.format")
	case r.OutputFormat != nil:
		return r.OutputFormat.form("output_format")
	}
	return inference.AnswerForm{}, nil
}

// conversation is what the model is to go on with.
func (s *Service) conversation(c inference.Call, m *catalog.Model, r *messagesRequest, a *asked) (out inference.Conversation, err error) {
	if len(r.Messages) == 0 {
		return out, inference.Invalid("messages", "must hold at least one message")
	}
	size := len(r.System)
	for _, raw := range r.Messages {
		size += len(raw)
	}
	if err := s.Bound(c, m, "messages", size); err != nil {
		return out, err
	}
	extras, err := s.BoundExtras(c, m, nil, r.TemplateKwargs)
	if err != nil {
		return out, err
	}
	out = inference.Conversation{Tools: a.tools.Tools, Size: size + a.tools.Size + extras}
	var t turns
	if err := t.system(r.System); err != nil {
		return out, err
	}
	for i, raw := range r.Messages {
		if err := t.add(fmt.Sprintf("messages[%d]", i), raw); err != nil {
			return out, err
		}
	}
	if out.ContinueFinal, err = t.continued(); err != nil {
		return out, err
	}
	out.Messages, out.AddGenerationPrompt = t.messages, !out.ContinueFinal
	out.Kwargs, err = inference.TemplateKwargs(m, r.TemplateKwargs, a.Thinking)
	return out, err
}
