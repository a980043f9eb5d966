package inference

import (
	"context"
	"fmt"
	"net/http"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// Generation is a validated request for one prompt.
type Generation struct {
	runs.Generation
	// KeepEnds lists end tokens among the tokens, though they are no text.
	KeepEnds bool
	// KeepAll lists all tokens that were sampled, also those whose text a stop string has cut off.
	KeepAll bool
	// AfterPrompt says that the text goes on after the prompt's: decoders of the SentencePiece kind drop the space at a text's beginning.
	AfterPrompt bool
	// Reading has the text read as thoughts, content and tool calls; nil leaves it as it is.
	Reading *answer.Options

	ignoreEnds  bool // end tokens do not end a sequence
	includeStop bool
	skipSpecial bool
	ends        map[int32]bool // tokens that end a sequence and are no text
}

// Why a sequence ended.
const (
	FinishStop   = "stop"
	FinishLength = "length"
	FinishCalls  = "tool_calls"
)

// Ends tells whether a token ends a sequence and is no text of it.
func (g *Generation) Ends(id int32) bool { return g.ends[id] && !g.includeStop }

// Part is the next part of one sequence.
type Part struct {
	Sequence int
	// Text is what is certain, where the text is not read; else Events are.
	Text   string
	Events []answer.Event
	// Tokens are those that begin in it; of all that have come Thoughts are thoughts, as far as that is certain.
	Tokens   []Token
	Thoughts int
	// Reason is why the sequence ended, in its last part; Stop what ended it then: a stop string, the id of an end token (int32), or nil.
	Reason string
	Stop   any
}

// empty tells whether there is nothing to tell of.
func (p *Part) empty() bool { return p.Text == "" && len(p.Events) == 0 && len(p.Tokens) == 0 }

// sequence is one sequence in the making.
type sequence struct {
	*assembler
	reader *answer.Reader // nil: the text is not read
	begun  []int          // tokens, with every piece that the reader was given
	at     int            // bytes of text that the reader was given
	ended  bool           // by us, before its end
}

func (g *Generation) newSequence(m *catalog.Model) *sequence {
	s := &sequence{assembler: g.newAssembler(m.Tokenizer)}
	if g.Reading != nil {
		s.reader = answer.NewReader(*g.Reading)
	}
	return s
}

// read makes a part of a piece. The reader gets it cut where tokens begin, so that tokens of thoughts can be counted.
func (s *sequence) read(p piece) Part {
	if s.reader == nil {
		return Part{Text: p.text, Tokens: p.tokens}
	}
	out := Part{Tokens: p.tokens}
	begun := 0
	if n := len(s.begun); n > 0 {
		begun = s.begun[n-1]
	}
	later := p.tokens
	for _, r := range p.runs {
		for r.text != "" {
			for len(later) > 0 && later[0].at <= s.at {
				begun, later = begun+1, later[1:]
			}
			end := len(r.text)
			if len(later) > 0 {
				end = min(end, later[0].at-s.at)
			}
			out.Events = append(out.Events, s.reader.Push(r.text[:end], r.special)...)
			s.begun = append(s.begun, begun)
			r.text = r.text[end:]
			s.at += end
		}
	}
	return out
}

// end gives the rest of a sequence that has ended for a reason.
func (s *sequence) end(reason string) Part {
	p := s.read(s.finish())
	p.Reason, p.Stop = reason, s.stop
	if s.reader == nil {
		return p
	}
	cut := reason == FinishLength || s.stopped
	inCall := cut && s.reader.Open()
	p.Events = append(p.Events, s.reader.Finish(cut)...)
	if reason == FinishStop && s.reader.Calls() > 0 && !inCall {
		p.Reason = FinishCalls
	}
	return p
}

// thoughts is how many tokens are thoughts.
func (s *sequence) thoughts() int {
	if s.reader == nil || len(s.begun) == 0 || s.reader.ReasoningPieces() == 0 {
		return 0
	}
	return s.begun[min(s.reader.ReasoningPieces(), len(s.begun))-1]
}

// Generate samples and hands on text. prompt is called once, before everything else; emit then, one call at a time, with every part that has something in it, and with the last of
// each sequence. It counts into use.
func (s *Service) Generate(ctx context.Context, target runs.Target, m *catalog.Model, g *Generation, use *Usage, prompt func(*plugins.PromptScores) error, emit func(Part) error) error {
	sequences := make([]*sequence, g.Request.NumSamples)
	for i := range sequences {
		sequences[i] = g.newSequence(m)
	}
	unfinished := len(sequences)
	known := func(i int) (*sequence, error) {
		if i < 0 || i >= len(sequences) {
			return nil, fmt.Errorf("the backend tells of sequence %d of %d", i, len(sequences))
		}
		return sequences[i], nil
	}
	err := s.Core.Generate(ctx, target, g.Generation, func(e plugins.SampleEvent) error {
		switch {
		case e.Prompt != nil:
			use.Add(len(g.Request.Prompt), e.Prompt.CachedTokens, 0)
			return prompt(e.Prompt)
		case e.Tokens != nil:
			q, err := known(e.Tokens.Sequence)
			if err != nil {
				return err
			}
			use.Add(0, 0, len(e.Tokens.Tokens))
			p := q.read(q.push(e.Tokens))
			p.Sequence, p.Thoughts = e.Tokens.Sequence, q.thoughts()
			if !p.empty() {
				if err := emit(p); err != nil {
					return err
				}
			}
			if q.reader != nil && q.reader.Done() && !q.ended {
				q.ended = true
				return runs.ErrEndSequence
			}
			return nil
		case e.Finished != nil:
			reason, err := finishReason(e.Finished.Reason)
			if err != nil {
				return err
			}
			q, err := known(e.Finished.Sequence)
			if err != nil {
				return err
			}
			unfinished--
			p := q.end(reason)
			p.Sequence, p.Thoughts = e.Finished.Sequence, q.thoughts()
			use.CompletionDetails.ReasoningTokens += p.Thoughts
			return emit(p)
		}
		return nil
	})
	if err == nil && unfinished > 0 {
		err = fmt.Errorf("the backend left %d of %d sequences unfinished", unfinished, len(sequences))
	}
	return err
}

// finishReason translates why a sequence ended. A sequence that was cancelled is no answer: what we cancel ourselves does not come here.
func finishReason(r plugins.StopReason) (string, error) {
	switch r {
	case plugins.StopToken, plugins.StopComplete:
		return FinishStop, nil
	case plugins.StopLength:
		return FinishLength, nil
	}
	return "", &Error{Status: http.StatusServiceUnavailable, Message: "the backend gave up the generation: its weights were unloaded, or it is shutting down", Type: "server_error"}
}

// Usage counts tokens.
type Usage struct {
	PromptTokens      int               `json:"prompt_tokens"`
	CompletionTokens  int               `json:"completion_tokens"`
	TotalTokens       int               `json:"total_tokens"`
	PromptDetails     PromptDetails     `json:"prompt_tokens_details"`
	CompletionDetails CompletionDetails `json:"completion_tokens_details"`
}

// PromptDetails tell of a prompt's tokens.
type PromptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// CompletionDetails tell of an answer's tokens: those of thoughts are counted up to and with what ends them.
type CompletionDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// Add counts further tokens.
func (u *Usage) Add(prompt, cached, completion int) {
	u.PromptTokens += prompt
	u.PromptDetails.CachedTokens += cached
	u.CompletionTokens += completion
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
}

// leastLogprob is what OpenAI's API reports for tokens that are very unlikely; JSON has no minus infinity, which low temperatures come to.
const leastLogprob = -9999

// Score is a log-probability as JSON can hold it.
func Score(logprob float32) float32 { return max(logprob, leastLogprob) }
