package openai

import (
	"context"
	"fmt"
	"net/http"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// generation is a validated request for one prompt.
type generation struct {
	runs.Generation
	includeStop bool
	skipSpecial bool
	ends        map[int32]bool // tokens that end a sequence and are no text
	keepEnds    bool           // but are listed with their log-probabilities
	afterPrompt bool           // the text goes on after the prompt's
}

// part is the next part of one sequence; reason is set in the last one.
type part struct {
	sequence int
	piece
	reason string
}

// generate samples and hands on text. prompt is called once, before everything else; emit then, one call at a time, with every part that has text or tokens, and with the last of
// each sequence. It counts into use.
func (s *Service) generate(ctx context.Context, target runs.Target, m *catalog.Model, g *generation, use *usage, prompt func(*plugins.PromptScores) error, emit func(part) error) error {
	assemblers := make([]*assembler, g.Request.NumSamples)
	for i := range assemblers {
		assemblers[i] = g.newAssembler(m.Tokenizer)
	}
	unfinished := len(assemblers)
	known := func(sequence int) error {
		if sequence < 0 || sequence >= len(assemblers) {
			return fmt.Errorf("the backend tells of sequence %d of %d", sequence, len(assemblers))
		}
		return nil
	}
	err := s.core.Generate(ctx, target, g.Generation, func(e plugins.SampleEvent) error {
		switch {
		case e.Prompt != nil:
			use.add(len(g.Request.Prompt), e.Prompt.CachedTokens, 0)
			return prompt(e.Prompt)
		case e.Tokens != nil:
			if err := known(e.Tokens.Sequence); err != nil {
				return err
			}
			use.add(0, 0, len(e.Tokens.Tokens))
			p := assemblers[e.Tokens.Sequence].push(e.Tokens)
			if p.text == "" && len(p.tokens) == 0 {
				return nil
			}
			return emit(part{e.Tokens.Sequence, p, ""})
		case e.Finished != nil:
			reason, err := finishReason(e.Finished.Reason)
			if err == nil {
				err = known(e.Finished.Sequence)
			}
			if err != nil {
				return err
			}
			unfinished--
			return emit(part{e.Finished.Sequence, assemblers[e.Finished.Sequence].finish(), reason})
		}
		return nil
	})
	if err == nil && unfinished > 0 {
		err = fmt.Errorf("the backend left %d of %d sequences unfinished", unfinished, len(assemblers))
	}
	return err
}

// finishReason translates why a sequence ended. A sequence that was cancelled is no answer: what we cancel ourselves does not come here.
func finishReason(r plugins.StopReason) (string, error) {
	switch r {
	case plugins.StopToken:
		return "stop", nil
	case plugins.StopLength:
		return "length", nil
	}
	return "", &apiError{Status: http.StatusServiceUnavailable, Message: "the backend gave up the generation: its weights were unloaded, or it is shutting down", Type: "server_error"}
}

// usage counts tokens.
type usage struct {
	PromptTokens      int               `json:"prompt_tokens"`
	CompletionTokens  int               `json:"completion_tokens"`
	TotalTokens       int               `json:"total_tokens"`
	PromptDetails     promptDetails     `json:"prompt_tokens_details"`
	CompletionDetails completionDetails `json:"completion_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// completionDetails: thoughts are ordinary text here, so none are counted apart.
type completionDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

func (u *usage) add(prompt, cached, completion int) {
	u.PromptTokens += prompt
	u.PromptDetails.CachedTokens += cached
	u.CompletionTokens += completion
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
}

// leastLogprob is what OpenAI's API reports for tokens that are very unlikely; JSON has no minus infinity, which low temperatures come to.
const leastLogprob = -9999

func score(logprob float32) float32 { return max(logprob, leastLogprob) }
