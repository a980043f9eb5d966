package openai

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// chatRequest is the body of /chat/completions.
type chatRequest struct {
	inference.Parameters
	thinkingFields
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
	ResponseFormat *struct {
		Type string `json:"type"`
	} `json:"response_format"`
	Modalities       []string        `json:"modalities"`
	Audio            json.RawMessage `json:"audio"`
	Prediction       json.RawMessage `json:"prediction"`
	WebSearchOptions json.RawMessage `json:"web_search_options"`
	ChatTemplate     json.RawMessage `json:"chat_template"`
	Echo             json.RawMessage `json:"echo"`
}

// refuseUnserved names the first field that asks for something that this server does not do.
func (r *chatRequest) refuseUnserved() error {
	if err := r.Unserved.Refuse(); err != nil {
		return err
	}
	switch {
	case r.ResponseFormat != nil && r.ResponseFormat.Type != "text":
		return inference.Unsupported("response_format", "type "+quoted(r.ResponseFormat.Type)+" is not supported yet; allowed is text")
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

// conversation is what a request asks the model to go on with.
func (r *chatRequest) conversation(m *catalog.Model, tools *toolList, thinking inference.Thinking) (inference.Conversation, error) {
	out := inference.Conversation{AddGenerationPrompt: !r.ContinueFinal, ContinueFinal: r.ContinueFinal, Tools: tools.tools}
	if r.AddGenerationPrompt != nil {
		out.AddGenerationPrompt = *r.AddGenerationPrompt
	}
	var err error
	if out.Messages, out.Size, err = parseMessages("messages", r.Messages); err != nil {
		return out, err
	}
	out.Size += tools.size
	if out.Documents, err = parseDocuments(r.Documents, &out.Size); err != nil {
		return out, err
	}
	out.Kwargs, err = inference.TemplateKwargs(m, r.TemplateKwargs, thinking)
	return out, err
}

// prompt renders what a request asks the model to go on with.
func (s *Service) prompt(c inference.Call, m *catalog.Model, r *chatRequest, tools *toolList, thinking inference.Thinking) (inference.Prompt, error) {
	if inference.Given(r.PromptTokenIDs) {
		return s.promptOfTokens(c, m, r)
	}
	if err := s.BoundMessages(c, m, r.Messages); err != nil {
		return inference.Prompt{}, err
	}
	conversation, err := r.conversation(m, tools, thinking)
	if err != nil {
		return inference.Prompt{}, err
	}
	if session := r.session(c); session != "" {
		if len(session) > inference.MaxSessionName {
			return inference.Prompt{}, inference.Invalid("session_id", "%d bytes are more than %d", len(session), inference.MaxSessionName)
		}
		return s.Recall(c, m, session, r.Model, conversation)
	}
	return s.Render(c, m, conversation)
}

// promptOfTokens is a prompt that a client has made itself.
func (s *Service) promptOfTokens(c inference.Call, m *catalog.Model, r *chatRequest) (inference.Prompt, error) {
	if r.session(c) != "" {
		return inference.Prompt{}, inference.Invalid("session_id", "cannot be combined with a prompt of tokens")
	}
	info, err := s.Core.ModelInfo(c.Request.Context(), m.Name)
	if err != nil {
		return inference.Prompt{}, err
	}
	ids, err := inference.TokenIDs(r.PromptTokenIDs, info.VocabSize)
	if err != nil {
		return inference.Prompt{}, inference.Invalid(r.tokensField, "%v", err)
	}
	return s.OfTokens(c, m, ids)
}

// session is the name of the session that a request belongs to, "" for none.
func (r *chatRequest) session(c inference.Call) string {
	if r.SessionID != nil && *r.SessionID != "" {
		return *r.SessionID
	}
	return c.GetHeader("X-Session-Id")
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
	if err := r.refuseUnserved(); err != nil {
		return err
	}
	target, m, err := s.Model(c, r.Model)
	if err != nil {
		return err
	}
	most, err := r.limit()
	if err != nil {
		return err
	}
	loss, err := inference.DatumLoss("return_datum", r.ReturnDatum)
	if err != nil {
		return err
	}
	r.Logprobs = r.Logprobs || loss != ""
	top, err := r.topLogprobs()
	if err != nil {
		return err
	}
	thinking, err := r.thinkingFields.thinking()
	if err != nil {
		return err
	}
	tools, err := r.chatTools()
	if err != nil {
		return err
	}
	choice, err := r.choice(tools.tools)
	if err != nil {
		return err
	}
	prompt, err := s.prompt(c, m, r, tools, thinking)
	if err != nil {
		return err
	}
	r.Messages = nil // a stream may be long, and needs none of this
	c.Claim.Release()
	info, err := s.Core.ModelInfo(c.Request.Context(), m.Name)
	if err != nil {
		return err
	}
	g, err := r.Build(c.Owner, m, info, prompt.Tokens, most)
	if err != nil {
		return err
	}
	g.Request.TopKSampledLogprobs = max(top, 0)
	exact := r.ReturnTokenIDs || loss != "" || prompt.Prefix() != nil
	g.AfterPrompt, g.KeepAll = r.ContinueFinal, exact
	if r.ParseToolCalls != nil && !*r.ParseToolCalls {
		choice.Mode = inference.ChooseNone
	}
	g.Read(m, prompt, tools.tools, choice, thinking)
	answer := &chatAnswer{
		service: s, model: m, request: r, prompt: prompt, generation: g, target: target, logprobs: top >= 0, hidden: thinking.Hidden, legacy: len(r.Functions) > 0,
		begun: make([]bool, g.Request.NumSamples), exact: exact, loss: loss, sampled: make([]inference.Sampled, g.Request.NumSamples), said: make([]answer.Collector, g.Request.NumSamples),
	}
	if r.Stream {
		return answer.stream(c)
	}
	return answer.whole(c)
}

// chatAnswer is one answer in the making.
type chatAnswer struct {
	service    *Service
	model      *catalog.Model
	request    *chatRequest
	generation *inference.Generation
	prompt     inference.Prompt
	target     runs.Target
	logprobs   bool
	exact      bool   // tokens are told of
	loss       string // of the Datum that the answer is made; "": none is
	hidden     bool   // thoughts are not given out
	legacy     bool   // calls are told of in the form of functions

	usage   inference.Usage
	version int64               // of the adapter
	begun   []bool              // the role of a choice has been given out
	sampled []inference.Sampled // by choice, for a Datum
	said    []answer.Collector  // by choice, for a session
}

// run samples and hands on the answer's parts.
func (a *chatAnswer) run(ctx context.Context, emit func(inference.Part) error) error {
	prompted := func(p *plugins.PromptScores) error {
		a.version = p.Version
		return nil
	}
	return a.service.Generate(ctx, a.target, a.model, a.generation, &a.usage, prompted, func(p inference.Part) error {
		if err := a.remember(p); err != nil {
			return err
		}
		return emit(p)
	})
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
	n := a.generation.Request.NumSamples
	collectors, logprobs := make([]answer.Collector, n), make([][]chatLogprob, n)
	ends := make([]inference.Part, n)
	kept := a.service.Allow(c)
	err := a.run(c.Request.Context(), func(p inference.Part) error {
		size := 0
		for _, e := range p.Events {
			size += len(e.Text) + len(e.Name) + len(e.ID)
		}
		if err := kept.Take(size+a.exactBytes(p.Tokens), a.scores(p.Tokens)); err != nil {
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
	}
	choices := make([]choice, n)
	for i := range choices {
		exact, err := a.exactChoice(i)
		if err != nil {
			return err
		}
		choices[i] = choice{i, a.message(collectors[i].Answer()), a.logprobsObject(logprobs[i]), a.reason(ends[i].Reason), ends[i].Stop, exact}
	}
	return c.Send(http.StatusOK, completion[choice]{a.head("chat.completion"), a.exactPrompt(), choices, &a.usage})
}

func (a *chatAnswer) head(object string) head { return newHead("chatcmpl-", object, a.request.Model) }
