package openai

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// responsesRequest is the body of /responses.
type responsesRequest struct {
	inference.Parameters
	thinkingFields
	formFields                         // but for response_format
	Input              json.RawMessage `json:"input"`
	Instructions       *string         `json:"instructions"`
	PreviousResponseID *string         `json:"previous_response_id"`
	Store              *bool           `json:"store"`

	MaxOutputTokens *int `json:"max_output_tokens"`
	TopLogprobs     *int `json:"top_logprobs"`
	Text            *struct {
		Format    json.RawMessage `json:"format"`
		Verbosity *string         `json:"verbosity"`
	} `json:"text"`
	Include    []string `json:"include"`
	Truncation *string  `json:"truncation"`

	Tools             []json.RawMessage `json:"tools"`
	ToolChoice        json.RawMessage   `json:"tool_choice"`
	ParallelToolCalls *bool             `json:"parallel_tool_calls"`

	// Told of in the answer, and else without effect.
	Metadata         map[string]string `json:"metadata"`
	User             *string           `json:"user"`
	SafetyIdentifier *string           `json:"safety_identifier"`
	PromptCacheKey   *string           `json:"prompt_cache_key"`
	MaxToolCalls     *int              `json:"max_tool_calls"` // of tools that run at OpenAI

	// Of other servers.
	TemplateKwargs map[string]json.RawMessage `json:"chat_template_kwargs"`
	Documents      []json.RawMessage          `json:"documents"`
	SessionID      *string                    `json:"session_id"`

	// Not served; refused unless they ask for nothing.
	Background          json.RawMessage `json:"background"`
	ConversationID      json.RawMessage `json:"conversation"`
	StoredPrompt        json.RawMessage `json:"prompt"`
	ContextManagement   json.RawMessage `json:"context_management"`
	Moderation          json.RawMessage `json:"moderation"`
	Messages            json.RawMessage `json:"messages"`
	ResponseFormat      json.RawMessage `json:"response_format"`
	MaxTokens           json.RawMessage `json:"max_tokens"`
	MaxCompletionTokens json.RawMessage `json:"max_completion_tokens"`
	Functions           json.RawMessage `json:"functions"`
}

// refuseUnserved names the first field that asks for something that this server does not do, or that belongs to chat completions.
func (r *responsesRequest) refuseUnserved() error {
	for _, f := range []struct {
		name  string
		value json.RawMessage
		why   string
	}{
		{"background", r.Background, "responses are made while the client waits, whole or as a stream"},
		{"conversation", r.ConversationID, "conversations are not kept; previous_response_id goes on from a response"},
		{"prompt", r.StoredPrompt, "prompts are not stored here; send instructions and input"},
		{"context_management", r.ContextManagement, "conversations are not compacted; send what the model is to read"},
		{"moderation", r.Moderation, "is not supported"},
		{"messages", r.Messages, "belongs to /v1/chat/completions; here it is input"},
		{"response_format", r.ResponseFormat, "belongs to /v1/chat/completions; here it is text.format"},
		{"max_tokens", r.MaxTokens, "belongs to /v1/chat/completions; here it is max_output_tokens"},
		{"max_completion_tokens", r.MaxCompletionTokens, "belongs to /v1/chat/completions; here it is max_output_tokens"},
		{"functions", r.Functions, "belongs to /v1/chat/completions; here it is tools"},
	} {
		if !inference.AsksNothing(f.value) {
			return inference.Unsupported(f.name, f.why)
		}
	}
	switch {
	case r.Truncation != nil && *r.Truncation != "disabled" && *r.Truncation != "auto":
		return inference.Invalid("truncation", "%.40q is not one of disabled, auto", *r.Truncation)
	case r.Text != nil && r.Text.Verbosity != nil && !slices.Contains([]string{"low", "medium", "high"}, *r.Text.Verbosity):
		return inference.Invalid("text.verbosity", "%.40q is not one of low, medium, high", *r.Text.Verbosity)
	case r.Reasoning != nil && r.Reasoning.Summary != nil && !slices.Contains([]string{"auto", "concise", "detailed"}, *r.Reasoning.Summary):
		return inference.Invalid("reasoning.summary", "%.40q is not one of auto, concise, detailed", *r.Reasoning.Summary)
	case r.N != nil && *r.N != 1:
		return inference.Unsupported("n", "a response has one answer")
	case r.MaxOutputTokens != nil && *r.MaxOutputTokens < 1:
		return inference.Invalid("max_output_tokens", "%d is less than 1", *r.MaxOutputTokens)
	}
	return r.checkMetadata()
}

// Bounds of metadata, OpenAI's.
const (
	maxMetadata      = 16
	maxMetadataKey   = 64
	maxMetadataValue = 512
)

func (r *responsesRequest) checkMetadata() error {
	if len(r.Metadata) > maxMetadata {
		return inference.Invalid("metadata", "%d keys are more than %d", len(r.Metadata), maxMetadata)
	}
	for key, value := range r.Metadata {
		if len(key) > maxMetadataKey || len(value) > maxMetadataValue {
			return inference.Invalid("metadata", "%.40q has %d bytes and %d of value; keys have %d at most and values %d", key, len(key), len(value), maxMetadataKey, maxMetadataValue)
		}
	}
	return nil
}

func (r *responsesRequest) includes(what string) bool { return slices.Contains(r.Include, what) }

// topLogprobs is k of the log-probabilities that are asked for, -1 for none.
func (r *responsesRequest) topLogprobs() (int, error) {
	k := 0
	if r.TopLogprobs != nil {
		k = *r.TopLogprobs
	}
	switch {
	case k < 0 || k > inference.MaxTopLogprobs:
		return 0, inference.Invalid("top_logprobs", "%d is not between 0 and %d", k, inference.MaxTopLogprobs)
	case k == 0 && !r.includes("message.output_text.logprobs"):
		return -1, nil
	}
	return k, nil
}

// stores tells whether the response is to be stored.
func (s *Service) stores(r *responsesRequest) bool {
	return s.Core.KeepsResponses() && (r.Store == nil || *r.Store)
}

// asked is a request for a response that has been read.
type asked struct {
	*responsesRequest
	request inference.Request
	items   []item // the conversation: what came before, and the input
	tools   *responseTools
	choice  any // as the answer tells of them
	format  toldFormat
	stores  bool
}

// ask reads what a request asks for.
func (s *Service) askResponse(c inference.Call, r *responsesRequest) (*asked, error) {
	if err := r.refuseUnserved(); err != nil {
		return nil, err
	}
	target, m, err := s.Model(c, r.Model)
	if err != nil {
		return nil, err
	}
	out := &asked{responsesRequest: r, stores: s.stores(r)}
	q := &out.request
	*q = inference.Request{Model: m, Target: target, Limit: inference.Limit{Field: "max_output_tokens", Tokens: r.MaxOutputTokens}, Session: sessionOf(c, r.SessionID), Keep: out.stores}
	if q.TopLogprobs, err = r.topLogprobs(); err != nil {
		return nil, err
	}
	if q.Thinking, err = r.thinking(); err != nil {
		return nil, err
	}
	if q.Thinking.Raw {
		return nil, inference.Unsupported("separate_reasoning", "thoughts are items of their own here; include_reasoning leaves them out")
	}
	if out.tools, err = r.responseTools(); err != nil {
		return nil, err
	}
	if q.Choice, out.choice, err = r.choice(out.tools); err != nil {
		return nil, err
	}
	if q.Form, out.format, err = r.form(); err != nil {
		return nil, err
	}
	size, err := s.converse(c, m, out)
	if err != nil {
		return nil, err
	}
	q.Conversation.Tools, q.Conversation.AddGenerationPrompt = out.tools.Tools, true
	extras, err := s.BoundExtras(c, m, r.Documents, r.TemplateKwargs)
	if err != nil {
		return nil, err
	}
	q.Conversation.Size = size + out.tools.Size + extras
	if q.Conversation.Documents, err = parseDocuments(r.Documents); err != nil {
		return nil, err
	}
	q.Conversation.Kwargs, err = inference.TemplateKwargs(m, r.kwargs(m), q.Thinking)
	return out, err
}

// kwargs are the variables that the request has for the template. A verbosity is one where the template knows it.
func (r *responsesRequest) kwargs(m *catalog.Model) map[string]json.RawMessage {
	if r.Text == nil || r.Text.Verbosity == nil || m.Tokenizer == nil || !strings.Contains(m.Tokenizer.ChatTemplate(), "verbosity") {
		return r.TemplateKwargs
	}
	out := map[string]json.RawMessage{"verbosity": json.RawMessage(fmt.Sprintf("%q", *r.Text.Verbosity))}
	for name, value := range r.TemplateKwargs {
		out[name] = value
	}
	return out
}

// converse puts the conversation together: the instructions, what came before, and the input. It gives the bytes of its JSON.
func (s *Service) converse(c inference.Call, m *catalog.Model, a *asked) (size int, err error) {
	stored := s.storedResponses(c)
	var before *storedResponse
	if id := textOr(a.PreviousResponseID, ""); id != "" {
		if before, err = stored.previous(id); err != nil {
			return 0, err
		}
		size = before.size
	}
	instructions := textOr(a.Instructions, "")
	size += len(a.Input) + len(instructions)
	if err := s.Bound(c, m, "input", size); err != nil {
		return 0, err
	}
	if before != nil {
		if a.items, err = before.conversation(); err != nil {
			return 0, err
		}
		a.request.Memory = before.memory
	}
	input, err := parseInput(a.Input, stored)
	if err != nil {
		return 0, err
	}
	if size += stored.referred; stored.referred > 0 {
		if err := s.Bound(c, m, "input", size); err != nil {
			return 0, err
		}
	}
	a.items = append(a.items, input...)
	messages := turns(a.items)
	if instructions != "" {
		system := item{Type: itemMessage, Role: "system", Content: []textPart{{Type: partInput, Text: instructions}}}
		messages = append(turns([]item{system}), messages...)
	}
	if len(messages) == 0 {
		return 0, inference.Invalid("input", "must hold at least one item, unless there are instructions")
	}
	a.request.Conversation.Messages = messages
	return size, nil
}

// parseInput reads input: a text, which is a user's, or items. References are what they refer to.
func parseInput(raw json.RawMessage, stored *storedResponses) ([]item, error) {
	const field = "input"
	switch inference.KindOf(raw) {
	case 0, 'n':
		return nil, nil
	case '"':
		text, err := inference.StringOf(raw)
		if err != nil {
			return nil, inference.Invalid(field, "%v", err)
		}
		return []item{{Type: itemMessage, Role: "user", Status: "completed", Content: []textPart{{Type: partInput, Text: text}}}}, nil
	case '[':
	default:
		return nil, inference.Invalid(field, "must be a string or a list of items")
	}
	list, err := inference.Elements(raw, maxItems)
	if err != nil {
		return nil, inference.Invalid(field, "%v", err)
	}
	out := make([]item, 0, len(list))
	for i, one := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		read, ok, err := parseItem(at, one)
		if err != nil {
			return nil, err
		}
		if ok && read.Type == itemReference {
			if read, err = stored.item(at, read.ID); err != nil {
				return nil, err
			}
		}
		if ok {
			out = append(out, read)
		}
	}
	return out, nil
}

func (s *Service) createResponse(c inference.Call) error {
	var r responsesRequest
	if err := c.Decode(&r); err != nil {
		return err
	}
	asked, err := s.askResponse(c, &r)
	if err != nil {
		return err
	}
	if dropped := asked.tools.dropped; len(dropped) > 0 {
		c.Header(inference.DroppedHeader, strings.Join(dropped, ", "))
		slog.InfoContext(c.Request.Context(), "tools of a response that are not served were left out", "tools", dropped)
	}
	a := &responseAnswer{asked: asked, service: s}
	if err := a.begin(c); err != nil {
		return err
	}
	if r.Stream {
		return a.stream(c)
	}
	return a.whole(c)
}

// countResponse tells how many tokens the prompt of a response would have.
func (s *Service) countResponse(c inference.Call) error {
	var r responsesRequest
	if err := c.Decode(&r); err != nil {
		return err
	}
	asked, err := s.askResponse(c, &r)
	if err != nil {
		return err
	}
	n, err := s.Count(c, &r.Parameters, &asked.request)
	if err != nil {
		return err
	}
	return c.Send(http.StatusOK, struct {
		Object string `json:"object"`
		Tokens int    `json:"input_tokens"`
	}{"response.input_tokens", n})
}
