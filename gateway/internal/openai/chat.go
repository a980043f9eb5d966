package openai

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// chatRequest is the body of /chat/completions.
type chatRequest struct {
	samplingFields
	Messages            []json.RawMessage          `json:"messages"`
	MaxTokens           *int                       `json:"max_tokens"`
	MaxCompletionTokens *int                       `json:"max_completion_tokens"`
	Logprobs            bool                       `json:"logprobs"`
	TopLogprobs         *int                       `json:"top_logprobs"`
	TemplateKwargs      map[string]json.RawMessage `json:"chat_template_kwargs"`
	ReasoningEffort     *string                    `json:"reasoning_effort"`
	AddGenerationPrompt *bool                      `json:"add_generation_prompt"`
	ContinueFinal       bool                       `json:"continue_final_message"`

	// Not served yet; refused unless they ask for nothing.
	Tools          []json.RawMessage `json:"tools"`
	ToolChoice     json.RawMessage   `json:"tool_choice"`
	Functions      []json.RawMessage `json:"functions"`
	FunctionCall   json.RawMessage   `json:"function_call"`
	ResponseFormat *struct {
		Type string `json:"type"`
	} `json:"response_format"`
	Modalities       []string        `json:"modalities"`
	Audio            json.RawMessage `json:"audio"`
	Prediction       json.RawMessage `json:"prediction"`
	WebSearchOptions json.RawMessage `json:"web_search_options"`
}

// refuseUnserved names the first field that asks for something that this server does not do.
func (r *chatRequest) refuseUnserved() error {
	const noTools = "tool calls are not supported yet"
	if err := r.unserved.refuse(); err != nil {
		return err
	}
	switch {
	case len(r.Tools) > 0:
		return unsupported("tools", noTools)
	case given(r.ToolChoice) && !isText(r.ToolChoice, "none", "auto"):
		return unsupported("tool_choice", noTools)
	case len(r.Functions) > 0:
		return unsupported("functions", noTools)
	case given(r.FunctionCall) && !isText(r.FunctionCall, "none", "auto"):
		return unsupported("function_call", noTools)
	case r.ResponseFormat != nil && r.ResponseFormat.Type != "text":
		return unsupported("response_format", fmt.Sprintf("type %.40q is not supported yet; allowed is text", r.ResponseFormat.Type))
	case len(r.Modalities) > 0 && (len(r.Modalities) > 1 || r.Modalities[0] != "text"):
		return unsupported("modalities", "only text is supported")
	case given(r.Audio):
		return unsupported("audio", "only text is supported")
	case given(r.Prediction):
		return unsupported("prediction", "predicted outputs are not supported")
	case given(r.WebSearchOptions):
		return unsupported("web_search_options", "web search is not supported")
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
		return 0, invalid("top_logprobs", "needs logprobs to be true")
	case *r.TopLogprobs < 0 || *r.TopLogprobs > maxTopLogprobs:
		return 0, invalid("top_logprobs", "%d is not between 0 and %d", *r.TopLogprobs, maxTopLogprobs)
	}
	return *r.TopLogprobs, nil
}

// limit gives max_tokens under either of its names.
func (r *chatRequest) limit() (limit, error) {
	if r.MaxCompletionTokens == nil {
		return limit{"max_tokens", r.MaxTokens}, nil
	}
	if r.MaxTokens != nil && *r.MaxTokens != *r.MaxCompletionTokens {
		return limit{}, invalid("max_tokens", "differs from max_completion_tokens: give one of them")
	}
	return limit{"max_completion_tokens", r.MaxCompletionTokens}, nil
}

func (s *Service) chatCompletions(c call) error {
	var r chatRequest
	if err := decode(c, &r); err != nil {
		return err
	}
	if err := r.refuseUnserved(); err != nil {
		return err
	}
	target, m, err := s.model(c, r.Model)
	if err != nil {
		return err
	}
	top, err := r.topLogprobs()
	if err != nil {
		return err
	}
	most, err := r.limit()
	if err != nil {
		return err
	}
	prompt, err := s.renderChat(c, m, &r)
	if err != nil {
		return err
	}
	r.Messages = nil // a stream may be long, and needs none of this
	c.claim.Release()
	info, err := s.core.ModelInfo(c.Request.Context(), m.Name)
	if err != nil {
		return err
	}
	g, err := r.build(c.owner, m, info, prompt, most)
	if err != nil {
		return err
	}
	g.Request.TopKSampledLogprobs = max(top, 0)
	g.afterPrompt = r.ContinueFinal
	answer := &chatAnswer{service: s, model: m, request: &r, generation: g, target: target, logprobs: top >= 0}
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
	generation *generation
	target     runs.Target
	logprobs   bool

	usage usage
}

// chatLogprob is one entry of logprobs.content.
type chatLogprob struct {
	Token   string           `json:"token"`
	Logprob float32          `json:"logprob"`
	Bytes   []int            `json:"bytes"`
	Top     []chatTopLogprob `json:"top_logprobs"`
}

type chatTopLogprob struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// run samples and hands on the text.
func (a *chatAnswer) run(ctx context.Context, emit func(part) error) error {
	noScores := func(*plugins.PromptScores) error { return nil }
	return a.service.generate(ctx, a.target, a.model, a.generation, &a.usage, noScores, emit)
}

func (a *chatAnswer) whole(c call) error {
	n := a.generation.Request.NumSamples
	contents, logprobs, reasons := make([]strings.Builder, n), make([][]chatLogprob, n), make([]string, n)
	kept := allowance{whole: a.service.wholeBytes, claim: c.claim}
	err := a.run(c.Request.Context(), func(p part) error {
		if err := kept.take(p.text, a.scores(p.tokens)); err != nil {
			return err
		}
		contents[p.sequence].WriteString(p.text)
		logprobs[p.sequence] = append(logprobs[p.sequence], a.logprobsOf(p.tokens)...)
		reasons[p.sequence] = p.reason
		return nil
	})
	if err != nil {
		return err
	}
	type message struct {
		Role    string  `json:"role"`
		Content string  `json:"content"`
		Refusal *string `json:"refusal"`
	}
	type choice struct {
		Index        int     `json:"index"`
		Message      message `json:"message"`
		Logprobs     any     `json:"logprobs"`
		FinishReason string  `json:"finish_reason"`
	}
	choices := make([]choice, n)
	for i := range choices {
		choices[i] = choice{i, message{"assistant", contents[i].String(), nil}, a.logprobsObject(logprobs[i]), reasons[i]}
	}
	return sendJSON(c, http.StatusOK, completion[choice]{a.head("chat.completion"), choices, &a.usage})
}

// chatDelta is the new part of a streamed choice.
type chatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatChunkChoice struct {
	Index        int       `json:"index"`
	Delta        chatDelta `json:"delta"`
	Logprobs     any       `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
}

func (a *chatAnswer) head(object string) head { return newHead("chatcmpl-", object, a.request.Model) }

func (a *chatAnswer) stream(c call) error {
	begun := make([]bool, a.generation.Request.NumSamples) // the role has been sent
	return stream(c, a.head("chat.completion.chunk"), &a.request.samplingFields, &a.usage, func(emit func(chatChunkChoice) error) error {
		return a.run(c.Request.Context(), func(p part) error {
			if !begun[p.sequence] {
				begun[p.sequence] = true
				empty := ""
				if err := emit(chatChunkChoice{Index: p.sequence, Delta: chatDelta{Role: "assistant", Content: &empty}}); err != nil {
					return err
				}
			}
			if p.text != "" || len(p.tokens) > 0 && a.logprobs {
				if err := emit(chatChunkChoice{Index: p.sequence, Delta: chatDelta{Content: &p.text}, Logprobs: a.logprobsObject(a.logprobsOf(p.tokens))}); err != nil {
					return err
				}
			}
			if p.reason == "" {
				return nil
			}
			return emit(chatChunkChoice{Index: p.sequence, FinishReason: &p.reason})
		})
	})
}

// logprobsObject is the value of a choice's logprobs: null unless asked.
func (a *chatAnswer) logprobsObject(content []chatLogprob) any {
	if !a.logprobs {
		return nil
	}
	if content == nil {
		content = []chatLogprob{}
	}
	return struct {
		Content []chatLogprob `json:"content"`
		Refusal *string       `json:"refusal"`
	}{content, nil}
}

// scores is how many log-probabilities logprobsOf gives.
func (a *chatAnswer) scores(tokens []token) int {
	if !a.logprobs {
		return 0
	}
	return len(tokens) * (1 + a.generation.Request.TopKSampledLogprobs)
}

func (a *chatAnswer) logprobsOf(tokens []token) []chatLogprob {
	if !a.logprobs {
		return nil
	}
	out := make([]chatLogprob, 0, len(tokens))
	for _, t := range tokens {
		text, raw := a.model.TokenText(t.id)
		entry := chatLogprob{text, score(t.logprob), raw, make([]chatTopLogprob, 0, len(t.top))}
		for _, alternative := range t.top {
			text, raw := a.model.TokenText(alternative.id)
			entry.Top = append(entry.Top, chatTopLogprob{text, score(alternative.logprob), raw})
		}
		out = append(out, entry)
	}
	return out
}
