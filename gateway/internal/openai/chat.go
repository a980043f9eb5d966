package openai

import (
	"encoding/json"
	"net/http"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// chatRequest is the body of /chat/completions.
type chatRequest struct {
	inference.Parameters
	thinkingFields
	formFields
	Messages            []json.RawMessage          `json:"messages"`
	MaxTokens           *int                       `json:"max_tokens"`
	MaxCompletionTokens *int                       `json:"max_completion_tokens"`
	Logprobs            bool                       `json:"logprobs"`
	TopLogprobs         *int                       `json:"top_logprobs"`
	TemplateKwargs      map[string]json.RawMessage `json:"chat_template_kwargs"`
	Documents           []json.RawMessage          `json:"documents"`
	AddGenerationPrompt *bool                      `json:"add_generation_prompt"`
	ContinueFinal       bool                       `json:"continue_final_message"`

	Tools             []json.RawMessage `json:"tools"`
	ToolChoice        json.RawMessage   `json:"tool_choice"`
	ParallelToolCalls *bool             `json:"parallel_tool_calls"`
	ParseToolCalls    *bool             `json:"parse_tool_calls"` // llama.cpp: false leaves calls in the content
	Functions         []json.RawMessage `json:"functions"`
	FunctionCall      json.RawMessage   `json:"function_call"`

	SessionID      *string         `json:"session_id"`       // of a conversation that is remembered with its tokens
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids"` // the prompt itself: then messages and tools only say how the answer is read
	Tokens         json.RawMessage `json:"tokens"`           // the same on /chat/completions/tokens, as verifiers sends it

	tokensField string

	// Not served; refused unless they ask for nothing.
	Modalities       []string        `json:"modalities"`
	Audio            json.RawMessage `json:"audio"`
	Prediction       json.RawMessage `json:"prediction"`
	WebSearchOptions json.RawMessage `json:"web_search_options"`
	ChatTemplate     json.RawMessage `json:"chat_template"`
	Echo             json.RawMessage `json:"echo"`
}

// refuseUnserved names the first field that asks for something that this server does not do.
func (r *chatRequest) refuseUnserved() error {
	switch {
	case len(r.Modalities) > 0 && (len(r.Modalities) > 1 || r.Modalities[0] != "text"):
		return inference.Unsupported("modalities", "only text is supported")
	case inference.Given(r.Audio):
		return inference.Unsupported("audio", "only text is supported")
	case inference.Given(r.Prediction):
		return inference.Unsupported("prediction", "predicted outputs are not supported")
	case inference.Given(r.WebSearchOptions):
		return inference.Unsupported("web_search_options", "web search is not supported")
	case !inference.AsksNothing(r.ChatTemplate):
		return inference.Unsupported("chat_template", "the model's own template is used")
	case !inference.AsksNothing(r.Echo):
		return inference.Unsupported("echo", "is not supported here; /v1/completions has it")
	}
	return nil
}

// topLogprobs checks logprobs and top_logprobs and gives k, -1 for no log-probabilities.
func (r *chatRequest) topLogprobs() (int, error) {
	switch {
	case r.TopLogprobs == nil && !r.Logprobs:
		return -1, nil
	case r.TopLogprobs == nil:
		return 0, nil
	case !r.Logprobs:
		return 0, inference.Invalid("top_logprobs", "needs logprobs to be true")
	case *r.TopLogprobs < 0 || *r.TopLogprobs > inference.MaxTopLogprobs:
		return 0, inference.Invalid("top_logprobs", "%d is not between 0 and %d", *r.TopLogprobs, inference.MaxTopLogprobs)
	}
	return *r.TopLogprobs, nil
}

// limit gives max_tokens under either of its names.
func (r *chatRequest) limit() (inference.Limit, error) {
	if r.MaxCompletionTokens == nil {
		return inference.Limit{Field: "max_tokens", Tokens: r.MaxTokens}, nil
	}
	if r.MaxTokens != nil && *r.MaxTokens != *r.MaxCompletionTokens {
		return inference.Limit{}, inference.Invalid("max_tokens", "differs from max_completion_tokens: give one of them")
	}
	return inference.Limit{Field: "max_completion_tokens", Tokens: r.MaxCompletionTokens}, nil
}

// request reads what a chat asks for.
func (s *Service) request(c inference.Call, r *chatRequest) (*inference.Request, error) {
	if err := r.refuseUnserved(); err != nil {
		return nil, err
	}
	target, m, err := s.Model(c, r.Model)
	if err != nil {
		return nil, err
	}
	out := &inference.Request{Model: m, Target: target, ScoresPrompt: true, TokensField: r.tokensField, Session: sessionOf(c, r.SessionID), LeaveCalls: r.ParseToolCalls != nil && !*r.ParseToolCalls}
	if !inference.AsksNothing(r.ReturnDatum) {
		r.Logprobs = true
	}
	if out.TopLogprobs, err = r.topLogprobs(); err != nil {
		return nil, err
	}
	if out.Limit, err = r.limit(); err != nil {
		return nil, err
	}
	if out.Thinking, err = r.thinking(); err != nil {
		return nil, err
	}
	if out.Form, err = r.form(); err != nil {
		return nil, err
	}
	tools, err := r.chatTools()
	if err != nil {
		return nil, err
	}
	if out.Choice, err = r.choice(); err != nil {
		return nil, err
	}
	if inference.Given(r.PromptTokenIDs) {
		out.Conversation.Tools = tools.Tools
		if r.SessionID == nil { // a header may come from whatever stands between
			out.Session = ""
		}
		if out.Tokens, err = inference.TokenIDs(r.PromptTokenIDs, 0); err != nil {
			return nil, inference.Invalid(r.tokensField, "%v", err)
		}
		return out, nil
	}
	out.Conversation, err = s.conversation(c, m, r, tools, out.Thinking)
	return out, err
}

// conversation is what a chat asks the model to go on with.
func (s *Service) conversation(c inference.Call, m *catalog.Model, r *chatRequest, tools *inference.ToolList, thinking inference.Thinking) (out inference.Conversation, err error) {
	if err := s.BoundMessages(c, m, r.Messages); err != nil {
		return out, err
	}
	out = inference.Conversation{AddGenerationPrompt: !r.ContinueFinal, ContinueFinal: r.ContinueFinal, Tools: tools.Tools}
	if r.AddGenerationPrompt != nil {
		out.AddGenerationPrompt = *r.AddGenerationPrompt
	}
	if out.Messages, out.Size, err = parseMessages("messages", r.Messages); err != nil {
		return out, err
	}
	extras, err := s.BoundExtras(c, m, r.Documents, r.TemplateKwargs)
	if err != nil {
		return out, err
	}
	out.Size += tools.Size + extras
	if out.Documents, err = parseDocuments(r.Documents); err != nil {
		return out, err
	}
	out.Kwargs, err = inference.TemplateKwargs(m, r.TemplateKwargs, thinking)
	return out, err
}

func (s *Service) chatCompletions(c inference.Call) error {
	var r chatRequest
	if err := c.Decode(&r); err != nil {
		return err
	}
	return s.answerChat(c, &r, "prompt_token_ids")
}

// chatOfTokens is a chat whose prompt are tokens.
func (s *Service) chatOfTokens(c inference.Call) error {
	var r chatRequest
	if err := c.Decode(&r); err != nil {
		return err
	}
	if !inference.Given(r.Tokens) {
		return inference.Invalid("tokens", "is required: the ids of the prompt's tokens")
	}
	r.PromptTokenIDs = r.Tokens
	r.ReturnTokenIDs = true
	return s.answerChat(c, &r, "tokens")
}

// answerChat answers a chat. tokensField is the field that a prompt of tokens comes in.
func (s *Service) answerChat(c inference.Call, r *chatRequest, tokensField string) error {
	r.tokensField = tokensField
	request, err := s.request(c, r)
	if err != nil {
		return err
	}
	job, err := s.Prepare(c, &r.Parameters, request)
	if err != nil {
		return err
	}
	r.Messages, r.Tools = nil, nil // a stream may be long, and needs none of them
	making := &chatAnswer{
		Job: job, service: s, request: r, logprobs: request.TopLogprobs >= 0, hidden: request.Thinking.Hidden, legacy: len(r.Functions) > 0,
		begun: make([]bool, job.Generation.Request.NumSamples),
	}
	if r.Stream {
		return making.stream(c)
	}
	return making.whole(c)
}

// chatAnswer is one answer in the making.
type chatAnswer struct {
	*inference.Job
	service  *Service
	request  *chatRequest
	logprobs bool
	hidden   bool   // thoughts are not given out
	legacy   bool   // calls are told of in the form of functions
	begun    []bool // the role of a choice has been given out
}

// calledTool is a tool call of an answer, or a part of one: then the index says of which, and the name comes with the first part only.
type calledTool struct {
	Index    *int         `json:"index,omitempty"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function calledObject `json:"function"`
}

type calledObject struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// chatMessage is the message of a whole answer. Thoughts have two names, as servers of open models have them.
type chatMessage struct {
	Role             string        `json:"role"`
	Content          *string       `json:"content"`
	Refusal          *string       `json:"refusal"`
	ReasoningContent *string       `json:"reasoning_content,omitempty"`
	Reasoning        *string       `json:"reasoning,omitempty"`
	ToolCalls        []calledTool  `json:"tool_calls,omitempty"`
	FunctionCall     *calledObject `json:"function_call,omitempty"`
}

// message makes the message of an answer.
func (a *chatAnswer) message(parts answer.Answer) chatMessage {
	out := chatMessage{Role: "assistant", Content: parts.Content}
	if parts.Reasoning != nil && !a.hidden {
		out.ReasoningContent, out.Reasoning = parts.Reasoning, parts.Reasoning
	}
	for _, call := range parts.Calls {
		f := calledObject{call.Name, call.Arguments}
		if a.legacy {
			out.FunctionCall = &f
			break
		}
		out.ToolCalls = append(out.ToolCalls, calledTool{ID: call.ID, Type: "function", Function: f})
	}
	if out.Content == nil && len(parts.Calls) == 0 && parts.Reasoning == nil {
		empty := ""
		out.Content = &empty
	}
	return out
}

// reason is a finish_reason.
func (a *chatAnswer) reason(finish string) string {
	if a.legacy && finish == inference.FinishCalls {
		return "function_call"
	}
	return finish
}

func (a *chatAnswer) whole(c inference.Call) error {
	n := a.Generation.Request.NumSamples
	collectors, logprobs := make([]answer.Collector, n), make([][]chatLogprob, n)
	ends := make([]inference.Part, n)
	kept := a.service.Allow(c, false)
	if err := kept.Take(0, a.PromptScores()); err != nil {
		return err
	}
	err := a.Run(c.Request.Context(), func(p inference.Part) error {
		if err := kept.Take(a.Weigh(p), a.scores(p.Tokens)); err != nil {
			return err
		}
		collectors[p.Sequence].Add(p.Events)
		logprobs[p.Sequence] = append(logprobs[p.Sequence], a.logprobsOf(p.Tokens)...)
		ends[p.Sequence] = inference.Part{Reason: p.Reason, Stop: p.Stop}
		return nil
	})
	if err != nil {
		return err
	}
	type choice struct {
		Index        int         `json:"index"`
		Message      chatMessage `json:"message"`
		Logprobs     any         `json:"logprobs"`
		FinishReason string      `json:"finish_reason"`
		StopReason   any         `json:"stop_reason"`
		*exactChoice
		SchemaErrors []inference.SchemaError `json:"schema_errors,omitempty"`
	}
	choices := make([]choice, n)
	for i := range choices {
		if err := kept.Take(a.DatumBytes(i), 0); err != nil {
			return err
		}
		exact, err := a.exactChoice(i)
		if err != nil {
			return err
		}
		message := a.message(collectors[i].Answer())
		choices[i] = choice{i, message, a.logprobsObject(logprobs[i]), a.reason(ends[i].Reason), ends[i].Stop, exact, a.SchemaErrors(i)}
	}
	return c.Send(http.StatusOK, completion[choice]{a.head("chat.completion"), a.ExactPrompt(), choices, &a.Usage, a.PromptLogprobs()})
}

func (a *chatAnswer) head(object string) head { return newHead("chatcmpl-", object, a.request.Model) }
