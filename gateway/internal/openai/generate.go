package openai

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// generateRequest is the body of vLLM's /inference/v1/generate: tokens in, tokens out. verifiers' training client asks so.
type generateRequest struct {
	RequestID     string                   `json:"request_id"`
	Model         string                   `json:"model"`
	TokenIDs      json.RawMessage          `json:"token_ids"`
	Sampling      json.RawMessage          `json:"sampling_params"`
	Stream        bool                     `json:"stream"`
	StreamOptions *inference.StreamOptions `json:"stream_options"`

	// Not served; refused unless they ask for nothing.
	Features     json.RawMessage `json:"features"`
	ContentParts json.RawMessage `json:"content_parts"`
	KVTransfer   json.RawMessage `json:"kv_transfer_params"`
}

// samplingParams are vLLM's, of which logprobs is a number here.
type samplingParams struct {
	inference.Parameters
	MaxTokens         *int            `json:"max_tokens"`
	Logprobs          *int            `json:"logprobs"`
	StructuredOutputs json.RawMessage `json:"structured_outputs"`
	ThinkingBudget    json.RawMessage `json:"thinking_token_budget"`
}

const (
	samplingField   = "sampling_params"
	maxRequestID    = 256
	generateHead    = "generate-tokens-"
	noLogprobs      = -1
	generatedTokens = 64 // bytes that a token of an answer takes
)

// refuseUnserved names the first field that asks for something that this server does not do.
func (r *generateRequest) refuseUnserved() error {
	for _, f := range []struct {
		name  string
		value json.RawMessage
	}{{"features", r.Features}, {"content_parts", r.ContentParts}} {
		if !inference.AsksNothing(f.value) {
			return inference.Unsupported(f.name, "only text is supported")
		}
	}
	if !inference.AsksNothing(r.KVTransfer) {
		return inference.Unsupported("kv_transfer_params", "is not supported")
	}
	if len(r.RequestID) > maxRequestID {
		return inference.Invalid("request_id", "%d bytes are more than %d", len(r.RequestID), maxRequestID)
	}
	return nil
}

// params reads sampling_params.
func (r *generateRequest) params() (*samplingParams, error) {
	p := &samplingParams{}
	if inference.KindOf(r.Sampling) != '{' {
		return nil, inference.Invalid(samplingField, "is required: an object")
	}
	if err := inference.DecodePart(samplingField, r.Sampling, p); err != nil {
		return nil, err
	}
	p.Stream, p.StreamOptions, p.TokensAsIDs, p.Plain = r.Stream, r.StreamOptions, true, true
	switch {
	case !inference.AsksNothing(p.ThinkingBudget):
		return nil, inference.Unsupported("thinking_token_budget", "is served by /v1/chat/completions")
	case !inference.AsksNothing(p.ReturnDatum):
		return nil, inference.Unsupported("return_datum", "is served by /v1/chat/completions")
	case p.Logprobs != nil && (*p.Logprobs < 0 || *p.Logprobs > inference.MaxTopLogprobs):
		return nil, inference.Invalid("logprobs", "%d is not between 0 and %d", *p.Logprobs, inference.MaxTopLogprobs)
	}
	return p, p.Refuse()
}

// ofSampling says of an error about a field that it is one of sampling_params.
func ofSampling(err error) error {
	var told *inference.Error
	if errors.As(err, &told) && told.Param != "" && !strings.HasPrefix(told.Param, samplingField) {
		named := *told
		named.Param = samplingField + "." + told.Param
		return &named
	}
	return err
}

func (s *Service) generate(c inference.Call) error {
	var r generateRequest
	if err := c.Decode(&r); err != nil {
		return err
	}
	if err := r.refuseUnserved(); err != nil {
		return err
	}
	if r.Model == "" {
		m, err := s.textModel(c, "")
		if err != nil {
			return err
		}
		r.Model = m.Name
	}
	target, m, err := s.Model(c, r.Model)
	if err != nil {
		return err
	}
	p, err := r.params()
	if err != nil {
		return ofSampling(err)
	}
	info, err := s.Core.ModelInfo(c.Request.Context(), m.Name)
	if err != nil {
		return err
	}
	prompt, err := inference.TokenIDs(r.TokenIDs, info.VocabSize)
	if err == nil && len(prompt) == 0 {
		err = errors.New("must hold at least one token id")
	}
	if err != nil {
		return inference.Invalid("token_ids", "%v", err)
	}
	r.TokenIDs = nil
	c.Claim.Release()
	if err := c.Claim.Take(tokenBytes([][]int32{prompt})); err != nil {
		return err
	}
	a := &generated{service: s, model: m, target: target, params: p, logprobs: noLogprobs, head: newHead(generateHead, "", r.Model)}
	if a.head.RequestID = r.RequestID; r.RequestID == "" {
		a.head.RequestID = generateHead + rand.Text()
	}
	if p.Logprobs != nil {
		a.logprobs = *p.Logprobs
	}
	if err := a.build(c, info, prompt); err != nil {
		return ofSampling(err)
	}
	if r.Stream {
		return a.stream(c)
	}
	return a.whole(c)
}

// generated is one answer in the making.
type generated struct {
	service    *Service
	model      *catalog.Model
	target     runs.Target
	params     *samplingParams
	generation *inference.Generation
	head       head
	logprobs   int // alternatives of each token, noLogprobs for no log-probabilities
	scored     int // the same of the prompt's tokens
	held       *inference.Held
	usage      inference.Usage

	version int64
	prompt  inference.PromptLogprobs
}

// build validates the sampling parameters for a prompt.
func (a *generated) build(c inference.Call, info plugins.ModelInfo, prompt []int32) error {
	g, err := a.params.Build(c.Owner, a.model, info, prompt, inference.Limit{Field: "max_tokens", Tokens: a.params.MaxTokens})
	if err != nil {
		return err
	}
	if a.scored, err = a.params.PromptLogprobs(); err != nil {
		return err
	}
	g.ScorePrompt(a.scored)
	g.AfterPrompt, g.KeepAll, g.KeepEnds = true, true, true
	g.Request.TopKSampledLogprobs = max(a.logprobs, 0)
	a.generation = g
	if !inference.Given(a.params.StructuredOutputs) {
		return nil
	}
	form, err := structuredOutputs("structured_outputs", a.params.StructuredOutputs)
	if err != nil {
		return err
	}
	if a.held, err = a.service.HoldText(c, a.model, form, g); err != nil {
		return err
	}
	if relaxed := a.held.Relaxed(); relaxed != "" {
		c.Header(inference.RelaxedHeader, relaxed)
	}
	return nil
}

// generatedChoice is a choice, or a streamed part of one.
type generatedChoice struct {
	Index        int     `json:"index"`
	Logprobs     any     `json:"logprobs"`
	FinishReason *string `json:"finish_reason"`
	StopReason   any     `json:"stop_reason,omitempty"`
	TokenIDs     []int32 `json:"token_ids"`
}

// run samples.
func (a *generated) run(c inference.Call, emit func(inference.Part) error) error {
	prompted := func(scores *plugins.PromptScores) error {
		a.version = scores.Version
		if a.scored > inference.NoPromptLogprobs {
			a.prompt = inference.NewPromptLogprobs(a.model, a.generation.Request.Prompt, scores, a.scored)
		}
		return nil
	}
	return a.service.Generate(c.Request.Context(), a.target, a.model, a.generation, &a.usage, prompted, emit)
}

// choice makes a choice, or a part of one, of tokens and of how it ended.
func (a *generated) choice(index int, tokens []inference.Token, end inference.Part) generatedChoice {
	out := generatedChoice{Index: index, TokenIDs: inference.IDs(tokens), StopReason: end.Stop}
	if a.logprobs != noLogprobs {
		out.Logprobs = struct {
			Content []chatLogprob `json:"content"`
		}{logprobsOf(a.model, tokens, true)}
	}
	if end.Reason != "" {
		out.FinishReason = &end.Reason
	}
	return out
}

func (a *generated) whole(c inference.Call) error {
	n := a.generation.Request.NumSamples
	tokens, ends := make([][]inference.Token, n), make([]inference.Part, n)
	kept := a.service.Allow(c, false)
	if err := kept.Take(0, a.generation.Scores(a.scored)); err != nil {
		return err
	}
	err := a.run(c, func(p inference.Part) error {
		if err := kept.Take(generatedTokens*len(p.Tokens), len(p.Tokens)*(1+a.logprobs)); err != nil {
			return err
		}
		tokens[p.Sequence] = append(tokens[p.Sequence], p.Tokens...)
		ends[p.Sequence] = inference.Part{Reason: p.Reason, Stop: p.Stop}
		return nil
	})
	if err != nil {
		return err
	}
	out := completion[generatedChoice]{head: a.head, Usage: &a.usage, PromptLogprobs: a.prompt}
	for i := range n {
		out.Choices = append(out.Choices, a.choice(i, tokens[i], ends[i]))
	}
	return c.Send(http.StatusOK, struct {
		completion[generatedChoice]
		inference.Weights
	}{out, inference.WeightsOf(a.target, a.version)})
}

func (a *generated) stream(c inference.Call) error {
	return stream(c, a.head, &a.params.Parameters, &a.usage, nil, func(accepted func(), emit func(generatedChoice) error) error {
		a.generation.Accepted = accepted
		return a.run(c, func(p inference.Part) error { return emit(a.choice(p.Sequence, p.Tokens, p)) })
	})
}
