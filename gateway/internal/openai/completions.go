package openai

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

const (
	defaultCompletionTokens = 16 // OpenAI's default of max_tokens here
	maxPrompts              = 2048
	promptsAtOnce           = 64 // of one request
)

// completionRequest is the body of /completions.
type completionRequest struct {
	samplingFields
	Prompt    json.RawMessage `json:"prompt"`
	MaxTokens *int            `json:"max_tokens"`
	Echo      bool            `json:"echo"`
	Logprobs  *int            `json:"logprobs"`
	BestOf    *int            `json:"best_of"`
	Suffix    *string         `json:"suffix"`
}

// prompts reads the four forms of prompt: a string, a list of strings, a list of token ids, a list of such lists.
func (r *completionRequest) prompts(m *catalog.Model) ([][]int32, error) {
	var text string
	var texts []string
	var ids []int32
	var lists [][]int32
	switch {
	case !given(r.Prompt):
		return nil, invalid("prompt", "is required")
	case json.Unmarshal(r.Prompt, &text) == nil:
		texts = []string{text}
	case json.Unmarshal(r.Prompt, &ids) == nil:
		return [][]int32{ids}, nil
	case json.Unmarshal(r.Prompt, &lists) == nil:
		if len(lists) > maxPrompts {
			return nil, invalid("prompt", "%d prompts are more than %d", len(lists), maxPrompts)
		}
		return lists, nil
	case json.Unmarshal(r.Prompt, &texts) != nil:
		return nil, invalid("prompt", "must be a string, a list of strings, a list of token ids, or a list of lists of token ids")
	}
	if len(texts) == 0 || len(texts) > maxPrompts {
		return nil, invalid("prompt", "%d prompts are not between 1 and %d", len(texts), maxPrompts)
	}
	if m.Tokenizer == nil {
		return nil, invalid("prompt", "this model has no tokenizer: send token ids")
	}
	out := make([][]int32, len(texts))
	for i, t := range texts {
		encoded, err := m.Tokenizer.Encode(t, true)
		if err != nil {
			return nil, invalid("prompt", "cannot be tokenized: %v", err)
		}
		out[i] = encoded
	}
	return out, nil
}

func (s *Service) completions(c call) error {
	var r completionRequest
	if err := decode(c, &r); err != nil {
		return err
	}
	if r.Suffix != nil && *r.Suffix != "" {
		return unsupported("suffix", "insertion is not supported")
	}
	if r.BestOf != nil && (r.N == nil && *r.BestOf != 1 || r.N != nil && *r.BestOf != *r.N) {
		return unsupported("best_of", "other values than n are not supported")
	}
	if r.Logprobs != nil && (*r.Logprobs < 0 || *r.Logprobs > maxTopLogprobs) {
		return invalid("logprobs", "%d is not between 0 and %d", *r.Logprobs, maxTopLogprobs)
	}
	if r.MaxTokens == nil {
		n := defaultCompletionTokens
		r.MaxTokens = &n
	}
	target, m, err := s.model(c, r.Model)
	if err != nil {
		return err
	}
	prompts, err := r.prompts(m)
	if err != nil {
		return err
	}
	if m.Tokenizer == nil {
		return invalid("model", "this model has no tokenizer: its text cannot be given")
	}
	info, err := s.core.ModelInfo(c.Request.Context(), m.Name)
	if err != nil {
		return err
	}
	a := &completionAnswer{service: s, model: m, request: &r, target: target, id: "cmpl-" + newID(), created: time.Now().Unix()}
	for _, prompt := range prompts {
		g, err := r.build(c.owner, m, info.MaxContextLength, prompt, r.MaxTokens, "max_tokens")
		if err != nil {
			return err
		}
		if r.Logprobs != nil {
			g.Request.TopKSampledLogprobs = *r.Logprobs
			if r.Echo {
				g.Request.PromptLogprobs, g.Request.TopKPromptLogprobs = true, *r.Logprobs
			}
		}
		a.generations = append(a.generations, g)
	}
	if r.Stream {
		return a.stream(c)
	}
	return a.whole(c)
}

// completionAnswer is one answer in the making; choice p·n + i is sample i of prompt p.
type completionAnswer struct {
	service     *Service
	model       *catalog.Model
	request     *completionRequest
	target      runs.Target
	generations []*generation
	id          string
	created     int64

	mu    sync.Mutex // guards usage and orders emit
	usage usage
}

// completionChoice is a choice, or a streamed part of one.
type completionChoice struct {
	Text         string              `json:"text"`
	Index        int                 `json:"index"`
	Logprobs     *completionLogprobs `json:"logprobs"`
	FinishReason *string             `json:"finish_reason"`
}

// completionLogprobs are parallel lists over tokens.
type completionLogprobs struct {
	TextOffset    []int                `json:"text_offset"`
	TokenLogprobs []*float32           `json:"token_logprobs"`
	Tokens        []string             `json:"tokens"`
	TopLogprobs   []map[string]float32 `json:"top_logprobs"`
}

func (l *completionLogprobs) add(more *completionLogprobs) {
	if more != nil {
		l.TextOffset = append(l.TextOffset, more.TextOffset...)
		l.TokenLogprobs = append(l.TokenLogprobs, more.TokenLogprobs...)
		l.Tokens = append(l.Tokens, more.Tokens...)
		l.TopLogprobs = append(l.TopLogprobs, more.TopLogprobs...)
	}
}

// run samples all prompts, some at a time, and calls emit with every part, one call at a time.
func (a *completionAnswer) run(ctx context.Context, emit func(completionChoice) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(promptsAtOnce)
	for i, g := range a.generations {
		group.Go(func() error { return a.runPrompt(ctx, i*g.Request.NumSamples, g, emit) })
	}
	return group.Wait()
}

func (a *completionAnswer) runPrompt(ctx context.Context, first int, g *generation, emit func(completionChoice) error) error {
	assemblers := make([]*assembler, g.Request.NumSamples)
	for i := range assemblers {
		assemblers[i] = g.assembler(a.model.Tokenizer)
	}
	base := 0 // bytes of the echoed prompt before the text
	return a.service.core.Generate(ctx, a.target, g.Generation, func(e plugins.SampleEvent) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch {
		case e.Prompt != nil:
			a.usage.add(len(g.Request.Prompt), e.Prompt.CachedTokens, 0)
			if !a.request.Echo {
				return nil
			}
			echo := a.echo(g, e.Prompt)
			base = len(echo.Text)
			for i := range assemblers {
				part := echo
				part.Index = first + i
				if err := emit(part); err != nil {
					return err
				}
			}
		case e.Tokens != nil:
			a.usage.add(0, 0, len(e.Tokens.Tokens))
			p := assemblers[e.Tokens.Sequence].push(e.Tokens)
			if p.text == "" && len(p.tokens) == 0 {
				return nil
			}
			return emit(completionChoice{Text: p.text, Index: first + e.Tokens.Sequence, Logprobs: a.logprobs(p.tokens, base)})
		case e.Finished != nil:
			as := assemblers[e.Finished.Sequence]
			p := as.finish()
			p.tokens = append(p.tokens, as.rest()...)
			reason := finishReason(e.Finished.Reason)
			return emit(completionChoice{Text: p.text, Index: first + e.Finished.Sequence, Logprobs: a.logprobs(p.tokens, base), FinishReason: &reason})
		}
		return nil
	})
}

// echo is the prompt as the beginning of the text, with its log-probabilities; the first token has none.
func (a *completionAnswer) echo(g *generation, scores *plugins.PromptScores) completionChoice {
	out := completionChoice{}
	var text strings.Builder
	stream := a.model.Tokenizer.NewStream(false)
	tokens := make([]token, len(g.Request.Prompt))
	for i, id := range g.Request.Prompt {
		tokens[i] = token{id: id, offset: text.Len(), logprob: float32(math.NaN())}
		if scores.Logprobs != nil {
			tokens[i].logprob = scores.Logprobs[i]
		}
		if i > 0 && scores.Top.K > 0 {
			tokens[i].top = topRow(scores.Top, i)
		}
		text.WriteString(stream.Push(id))
	}
	text.WriteString(stream.Flush())
	out.Text = text.String()
	out.Logprobs = a.logprobs(tokens, 0)
	return out
}

// logprobs gives the lists for some tokens; nil unless asked. Offsets count from the beginning of the choice's text.
func (a *completionAnswer) logprobs(tokens []token, base int) *completionLogprobs {
	if a.request.Logprobs == nil {
		return nil
	}
	out := &completionLogprobs{TextOffset: []int{}, TokenLogprobs: []*float32{}, Tokens: []string{}, TopLogprobs: []map[string]float32{}}
	for _, t := range tokens {
		text, _ := a.model.TokenText(t.id)
		out.TextOffset = append(out.TextOffset, base+t.offset)
		out.Tokens = append(out.Tokens, text)
		if t.logprob != t.logprob { // the first token of a prompt
			out.TokenLogprobs = append(out.TokenLogprobs, nil)
			out.TopLogprobs = append(out.TopLogprobs, nil)
			continue
		}
		logprob := t.logprob
		out.TokenLogprobs = append(out.TokenLogprobs, &logprob)
		top := map[string]float32{text: logprob}
		for _, alternative := range t.top {
			name, _ := a.model.TokenText(alternative.id)
			if _, taken := top[name]; !taken { // of tokens with equal text the likeliest stands for it
				top[name] = alternative.logprob
			}
		}
		out.TopLogprobs = append(out.TopLogprobs, top)
	}
	return out
}

// completionBody is an answer or a chunk of one.
type completionBody struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   *usage             `json:"usage,omitempty"`
}

func (a *completionAnswer) body(choices ...completionChoice) completionBody {
	return completionBody{a.id, "text_completion", a.created, a.request.Model, append([]completionChoice{}, choices...), nil}
}

func (a *completionAnswer) whole(c call) error {
	n := len(a.generations) * a.generations[0].Request.NumSamples
	choices := make([]completionChoice, n)
	texts := make([]strings.Builder, n)
	for i := range choices {
		choices[i].Index = i
		if a.request.Logprobs != nil {
			choices[i].Logprobs = a.logprobs(nil, 0)
		}
	}
	err := a.run(c.Request.Context(), func(part completionChoice) error {
		texts[part.Index].WriteString(part.Text)
		if part.Logprobs != nil {
			choices[part.Index].Logprobs.add(part.Logprobs)
		}
		if part.FinishReason != nil {
			choices[part.Index].FinishReason = part.FinishReason
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range choices {
		choices[i].Text = texts[i].String()
	}
	out := a.body(choices...)
	out.Usage = &a.usage
	sendJSON(c.Context, 200, out)
	return nil
}

func (a *completionAnswer) stream(c call) error {
	events := newEventStream(c.Context)
	err := a.run(c.Request.Context(), func(part completionChoice) error { return events.send(a.body(part)) })
	if err == nil && a.request.StreamOptions != nil && a.request.StreamOptions.IncludeUsage {
		last := a.body()
		last.Usage = &a.usage
		err = events.send(last)
	}
	return events.end(err)
}
