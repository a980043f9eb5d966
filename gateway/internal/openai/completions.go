package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

const (
	defaultCompletionTokens = 16 // OpenAI's default of max_tokens here
	maxPrompts              = 2048
	smallPrompts            = 16 << 10 // bytes of tokens
	maxSequences            = 4096     // prompts × n
	promptsAtOnce           = 16       // of one request, so that it leaves places to others

	// A prompt that finds all places taken tries again. A request that has got no place at all in busyPatience is refused, so that its client may go elsewhere.
	busyWait     = 100 * time.Millisecond
	busyPatience = 2 * time.Second
)

// completionRequest is the body of /completions.
type completionRequest struct {
	inference.Parameters
	formFields
	Prompt           json.RawMessage `json:"prompt"`
	MaxTokens        *int            `json:"max_tokens"`
	Echo             bool            `json:"echo"`
	Logprobs         alternatives    `json:"logprobs"`
	BestOf           *int            `json:"best_of"`
	Suffix           *string         `json:"suffix"`
	AddSpecialTokens *bool           `json:"add_special_tokens"` // to text, as /tokenize does; true unless it is given
}

// alternatives is how many of the likeliest tokens are listed beside each token. true, which is what the other endpoint takes, means 1.
type alternatives struct {
	asked bool
	n     int
}

// UnmarshalJSON reads a number, true, or false and null, with which none are asked for.
func (a *alternatives) UnmarshalJSON(raw []byte) error {
	switch string(raw) {
	case "null", "false":
		*a = alternatives{}
		return nil
	case "true":
		*a = alternatives{asked: true, n: 1}
		return nil
	}
	a.asked = true
	return json.Unmarshal(raw, &a.n)
}

// prompts reads the four forms of prompt: a string, a list of strings, a list of token ids, a list of such lists.
func (r *completionRequest) prompts(ctx context.Context, owner string, m *catalog.Model, info plugins.ModelInfo) ([][]int32, error) {
	const forms = "a string, a list of strings, a list of token ids, or a list of lists of token ids is allowed"
	list := []json.RawMessage{r.Prompt}
	switch inference.KindOf(r.Prompt) {
	case 0, 'n':
		return nil, inference.Invalid("prompt", "is required")
	case '"':
	case '[':
		if first := inference.KindOf(r.Prompt[1:]); first != '"' && first != '[' {
			break // token ids
		}
		var err error
		if list, err = inference.Elements(r.Prompt, maxPrompts); err != nil {
			return nil, inference.Invalid("prompt", "%v", err)
		}
	default:
		return nil, inference.Invalid("prompt", forms)
	}
	b := budget.For(ctx, owner, budget.Limits{}) // for all of them
	defer b.End()
	out := make([][]int32, len(list))
	for i, one := range list {
		var err error
		switch {
		case inference.KindOf(one) != '"':
			out[i], err = inference.TokenIDs(one, info.VocabSize)
		case len(one) > inference.TextLimit(info):
			return nil, inference.TooLong("prompt", len(one), info)
		default:
			out[i], err = encode(b, m, one, r.AddSpecialTokens == nil || *r.AddSpecialTokens)
		}
		switch {
		case errors.Is(err, budget.ErrBusy), err != nil && ctx.Err() != nil:
			return nil, err
		case err != nil && len(list) > 1:
			return nil, inference.Invalid("prompt", "prompt %d: %v", i, err)
		case err != nil:
			return nil, inference.Invalid("prompt", "%v", err)
		}
	}
	return out, nil
}

// tokenBytes is the memory of prompts that are worth counting.
func tokenBytes(prompts [][]int32) int64 {
	total := 0
	for _, p := range prompts {
		total += 4 * len(p)
	}
	if total <= smallPrompts {
		return 0
	}
	return int64(total)
}

func encode(b *budget.Budget, m *catalog.Model, raw json.RawMessage, special bool) ([]int32, error) {
	text, err := inference.StringOf(raw)
	if err != nil {
		return nil, err
	}
	return m.Tokenizer.EncodeWithin(b, text, special)
}

func (s *Service) completions(c inference.Call) error {
	var r completionRequest
	if err := c.Decode(&r); err != nil {
		return err
	}
	if err := r.Unserved.Refuse(); err != nil {
		return err
	}
	if !inference.AsksNothing(r.ReturnDatum) {
		return inference.Unsupported("return_datum", "is served by /v1/chat/completions")
	}
	if r.Suffix != nil && *r.Suffix != "" {
		return inference.Unsupported("suffix", "insertion is not supported")
	}
	if r.BestOf != nil && (r.N == nil && *r.BestOf != 1 || r.N != nil && *r.BestOf != *r.N) {
		return inference.Unsupported("best_of", "other values than n are not supported")
	}
	if r.Logprobs.n < 0 || r.Logprobs.n > inference.MaxTopLogprobs {
		return inference.Invalid("logprobs", "%d is not between 0 and %d", r.Logprobs.n, inference.MaxTopLogprobs)
	}
	if r.MaxTokens == nil {
		n := defaultCompletionTokens
		r.MaxTokens = &n
	}
	form, err := r.form()
	if err != nil {
		return err
	}
	scored, err := r.PromptLogprobs()
	if err != nil {
		return err
	}
	target, m, err := s.Model(c, r.Model)
	if err != nil {
		return err
	}
	if m.Tokenizer == nil {
		return inference.Invalid("model", "this model has no tokenizer: its text cannot be given")
	}
	info, err := s.Core.ModelInfo(c.Request.Context(), m.Name)
	if err != nil {
		return err
	}
	if len(r.Prompt) > inference.SmallTextBytes {
		if err := c.Claim.Take(inference.TextCopies * int64(min(len(r.Prompt), inference.TextLimit(info)))); err != nil { // one prompt at a time
			return err
		}
	}
	prompts, err := r.prompts(c.Request.Context(), c.Owner, m, info)
	if err != nil {
		return err
	}
	r.Prompt = nil // from here on there are its tokens
	c.Claim.Release()
	if err := c.Claim.Take(tokenBytes(prompts)); err != nil {
		return err
	}
	if r.N != nil && *r.N > 0 && len(prompts) > maxSequences / *r.N {
		return inference.Invalid("n", "%d prompts with %d choices each are more than %d choices", len(prompts), *r.N, maxSequences)
	}
	a := &completionAnswer{service: s, model: m, request: &r, target: target, scored: scored, head: newHead("cmpl-", "text_completion", r.Model)}
	for _, prompt := range prompts {
		g, err := r.Build(c.Owner, m, info, prompt, inference.Limit{Field: "max_tokens", Tokens: r.MaxTokens})
		if err != nil {
			return err
		}
		g.AfterPrompt = true
		g.KeepAll = r.ReturnTokenIDs
		g.KeepEnds = true // evaluation tools count on one entry for every token
		if r.Logprobs.asked {
			g.Request.TopKSampledLogprobs = r.Logprobs.n
			if r.Echo {
				g.ScorePrompt(r.Logprobs.n)
			}
		}
		g.ScorePrompt(scored)
		if len(a.generations) > 0 { // all of them have one form
			g.Request.Constraint = a.generations[0].Request.Constraint
		} else if a.held, err = s.HoldText(c, a.model, form, g); err != nil {
			return err
		}
		a.generations = append(a.generations, g)
	}
	if relaxed := a.held.Relaxed(); relaxed != "" {
		c.Header(inference.RelaxedHeader, relaxed)
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
	generations []*inference.Generation
	head        head
	held        *inference.Held // what all texts are held to
	scored      int             // alternatives of the prompts' tokens; inference.NoPromptLogprobs: they are not told of

	admitted atomic.Bool // some prompt has got a place
	mu       sync.Mutex  // guards usage and orders emit
	usage    inference.Usage
}

// completionChoice is a choice, or a streamed part of one.
type completionChoice struct {
	Text         string              `json:"text"`
	Index        int                 `json:"index"`
	Logprobs     *completionLogprobs `json:"logprobs"`
	FinishReason *string             `json:"finish_reason"`
	*exactCompletion
	PromptLogprobs inference.PromptLogprobs `json:"prompt_logprobs,omitempty"`
	SchemaErrors   []inference.SchemaError  `json:"schema_errors,omitempty"`
}

// exactCompletion is what a choice tells of its tokens. The prompt's come with its first part.
type exactCompletion struct {
	PromptTokenIDs []int32 `json:"prompt_token_ids,omitempty"`
	TokenIDs       []int32 `json:"token_ids"`
}

// completionLogprobs are parallel lists over tokens.
type completionLogprobs struct {
	TextOffset    []int                `json:"text_offset"`
	TokenLogprobs []*float32           `json:"token_logprobs"`
	Tokens        []string             `json:"tokens"`
	TopLogprobs   []map[string]float32 `json:"top_logprobs"`
}

// scores is how many log-probabilities there are.
func (l *completionLogprobs) scores() (n int) {
	if l == nil {
		return 0
	}
	for _, top := range l.TopLogprobs {
		n += 1 + len(top)
	}
	return n
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
		group.Go(func() error {
			for start := time.Now(); ; {
				err := a.runPrompt(ctx, i*g.Request.NumSamples, g, emit)
				if runs.KindOf(err) != runs.KindBusy || !a.admitted.Load() && time.Since(start) > busyPatience {
					return err
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(busyWait):
				}
			}
		})
	}
	return group.Wait()
}

func (a *completionAnswer) runPrompt(ctx context.Context, first int, g *inference.Generation, emit func(completionChoice) error) error {
	base := 0 // characters of the echoed prompt before the text
	begun, texts := make([]bool, g.Request.NumSamples), make([]strings.Builder, g.Request.NumSamples)
	var use inference.Usage
	err := a.service.Generate(ctx, a.target, a.model, g, &use, func(scores *plugins.PromptScores) error {
		a.admitted.Store(true)
		var echo completionChoice
		if a.request.Echo {
			var err error
			if echo, err = a.echo(g, scores); err != nil {
				return err
			}
			base = utf8.RuneCountInString(echo.Text)
		}
		if a.scored > inference.NoPromptLogprobs {
			echo.PromptLogprobs = inference.NewPromptLogprobs(a.model, g.Request.Prompt, scores, a.scored)
		} else if !a.request.Echo {
			return nil
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		for i := range g.Request.NumSamples {
			echo.Index = first + i
			if err := emit(echo); err != nil {
				return err
			}
		}
		return nil
	}, func(p inference.Part) error {
		out := completionChoice{Text: p.Text, Index: first + p.Sequence, Logprobs: a.logprobs(p.Tokens, base)}
		if a.held.Checks() {
			texts[p.Sequence].WriteString(p.Text)
		}
		if p.Reason != "" {
			out.FinishReason = &p.Reason
			out.SchemaErrors = a.service.Checked(ctx, a.model, a.held, p.Reason, a.held.CheckText(texts[p.Sequence].String(), p.Reason))
		}
		if a.request.ReturnTokenIDs {
			out.exactCompletion = &exactCompletion{TokenIDs: inference.IDs(p.Tokens)}
			if !begun[p.Sequence] {
				begun[p.Sequence], out.PromptTokenIDs = true, g.Request.Prompt
			}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		return emit(out)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.usage.Add(use.PromptTokens, use.PromptDetails.CachedTokens, use.CompletionTokens)
	return err
}

// echo is the prompt as the beginning of the text, with its log-probabilities; the first token has none. Bytes at its end that are no character yet are left to the text after it.
func (a *completionAnswer) echo(g *inference.Generation, scores *plugins.PromptScores) (completionChoice, error) {
	var text strings.Builder
	chars := 0
	stream := a.model.Tokenizer.NewStream(false)
	tokens := make([]inference.Token, len(g.Request.Prompt))
	for i, id := range g.Request.Prompt {
		tokens[i] = inference.Token{ID: id, Offset: chars, Logprob: float32(math.NaN())}
		if scores.Logprobs != nil {
			tokens[i].Logprob = scores.Logprobs[i]
		}
		if i > 0 && scores.Top.K > 0 {
			tokens[i].Top = inference.TopRow(scores.Top, i)[:min(a.request.Logprobs.n, scores.Top.K)] // more of them may be for prompt_logprobs
		}
		more := stream.Push(id)
		chars += utf8.RuneCountInString(more)
		text.WriteString(more)
		if text.Len() > budget.Most.Bytes {
			return completionChoice{}, inference.Invalid("echo", "the prompt's tokens make more than %d bytes of text", budget.Most.Bytes)
		}
	}
	return completionChoice{Text: text.String(), Logprobs: a.logprobs(tokens, 0)}, nil
}

// logprobs gives the lists for some tokens; nil unless asked. Offsets count from the beginning of the choice's text.
func (a *completionAnswer) logprobs(tokens []inference.Token, base int) *completionLogprobs {
	if !a.request.Logprobs.asked {
		return nil
	}
	out := &completionLogprobs{TextOffset: []int{}, TokenLogprobs: []*float32{}, Tokens: []string{}, TopLogprobs: []map[string]float32{}}
	for _, t := range tokens {
		text := a.tokenName(t.ID)
		out.TextOffset = append(out.TextOffset, base+t.Offset)
		out.Tokens = append(out.Tokens, text)
		if t.Logprob != t.Logprob { // the first token of a prompt
			out.TokenLogprobs = append(out.TokenLogprobs, nil)
			out.TopLogprobs = append(out.TopLogprobs, nil)
			continue
		}
		logprob := inference.Score(t.Logprob)
		out.TokenLogprobs = append(out.TokenLogprobs, &logprob)
		top := map[string]float32{text: logprob}
		for _, alternative := range t.Top {
			name := a.tokenName(alternative.ID)
			if l, taken := top[name]; !taken || l < alternative.Logprob { // of tokens with equal text the likeliest stands for it
				top[name] = inference.Score(alternative.Logprob)
			}
		}
		out.TopLogprobs = append(out.TopLogprobs, top)
	}
	return out
}

// tokenName is a token's text. A token that is a part of a character is written as its bytes, as OpenAI does here, so that different tokens have different names.
func (a *completionAnswer) tokenName(id int32) string {
	if a.request.TokensAsIDs {
		return tokenIDText(id)
	}
	raw := a.model.Tokenizer.TokenBytes(id)
	if utf8.Valid(raw) {
		return string(raw)
	}
	var out strings.Builder
	out.WriteString("bytes:")
	for _, b := range raw {
		fmt.Fprintf(&out, "\\x%02x", b)
	}
	return out.String()
}

func (a *completionAnswer) whole(c inference.Call) error {
	n := len(a.generations) * a.generations[0].Request.NumSamples
	choices := make([]completionChoice, n)
	texts := make([]strings.Builder, n)
	for i := range choices {
		choices[i].Index = i
		if a.request.Logprobs.asked {
			choices[i].Logprobs = a.logprobs(nil, 0)
		}
	}
	kept := a.service.Allow(c, false)
	err := a.run(c.Request.Context(), func(part completionChoice) error {
		if err := kept.Take(len(part.Text), part.Logprobs.scores()); err != nil {
			return err
		}
		texts[part.Index].WriteString(part.Text)
		if part.Logprobs != nil {
			choices[part.Index].Logprobs.add(part.Logprobs)
		}
		if part.PromptLogprobs != nil {
			if err := kept.Take(0, len(part.PromptLogprobs)*(1+a.scored)); err != nil {
				return err
			}
			choices[part.Index].PromptLogprobs = part.PromptLogprobs
		}
		if exact := part.exactCompletion; exact != nil {
			if err := kept.Take(64*(len(exact.TokenIDs)+len(exact.PromptTokenIDs)), 0); err != nil {
				return err
			}
			if whole := choices[part.Index].exactCompletion; whole == nil {
				choices[part.Index].exactCompletion = exact
			} else {
				whole.TokenIDs = append(whole.TokenIDs, exact.TokenIDs...)
			}
		}
		if part.FinishReason != nil {
			choices[part.Index].FinishReason, choices[part.Index].SchemaErrors = part.FinishReason, part.SchemaErrors
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range choices {
		choices[i].Text = texts[i].String()
	}
	return c.Send(http.StatusOK, completion[completionChoice]{head: a.head, Choices: choices, Usage: &a.usage})
}

func (a *completionAnswer) stream(c inference.Call) error {
	return stream(c, a.head, &a.request.Parameters, &a.usage, nil, func(accepted func(), emit func(completionChoice) error) error {
		for _, g := range a.generations {
			g.Accepted = accepted
		}
		return a.run(c.Request.Context(), emit)
	})
}
