package anthropic

import (
	"net/http"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// ping is an event that keeps a stream open.
const ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n"

// message is an answer, or the beginning of one.
type message struct {
	ID           string         `json:"id"`
	Type         string         `json:"type"`
	Role         string         `json:"role"`
	Model        string         `json:"model"`
	Content      []contentBlock `json:"content"`
	StopReason   *string        `json:"stop_reason"`
	StopSequence *string        `json:"stop_sequence"`
	Usage        usage          `json:"usage"`
}

// usage counts tokens: those of the prompt that were computed, and beside them those that were remembered.
type usage struct {
	Input         int `json:"input_tokens"`
	CacheCreation int `json:"cache_creation_input_tokens"`
	CacheRead     int `json:"cache_read_input_tokens"`
	Output        int `json:"output_tokens"`
	// Details are there if the model has thought.
	Details *outputDetails `json:"output_tokens_details,omitempty"`
}

type outputDetails struct {
	Thinking int `json:"thinking_tokens"`
}

// exactTokens is what an event, or a whole answer, tells of its tokens.
type exactTokens struct {
	TokenIDs   []int32          `json:"token_ids"`
	Datum      *inference.Datum `json:"datum,omitempty"`
	SequenceID string           `json:"sequence_id,omitempty"`
}

func (s *Service) messages(c inference.Call) error {
	var r messagesRequest
	if err := c.Decode(&r); err != nil {
		return err
	}
	request, err := s.request(c, &r)
	if err != nil {
		return err
	}
	job, err := s.Prepare(c, &r.Parameters, request.Request)
	if err != nil {
		return err
	}
	job.Generation.Reading.NewID = func() string { return "toolu_" + strings.TrimPrefix(answer.NewID(), "call_") }
	tellDropped(c, request.tools)
	a := &reply{Job: job, encoder: encoder{omitted: request.omitted}, model: r.Model}
	if r.Stream {
		a.encoder.eager = request.tools.eager
		r = messagesRequest{} // a stream may be long, and needs none of it
		return a.stream(c)
	}
	return a.whole(c, s.Allow(c, false))
}

// tellDropped names the tools that were left out.
func tellDropped(c inference.Call, tools *toolSet) {
	if tools.dropped != nil {
		c.Header(inference.DroppedHeader, strings.Join(tools.dropped, ", "))
	}
}

// countTokens counts what a prompt comes to, by making it.
func (s *Service) countTokens(c inference.Call) error {
	var r messagesRequest
	if err := c.Decode(&r); err != nil {
		return err
	}
	request, err := s.prompt(c, &r)
	if err != nil {
		return err
	}
	n, err := s.Count(c, &r.Parameters, request.Request)
	if err != nil {
		return err
	}
	tellDropped(c, request.tools)
	return c.Send(http.StatusOK, struct {
		Input int `json:"input_tokens"`
	}{n})
}

// reply is one answer in the making.
type reply struct {
	*inference.Job
	encoder encoder
	model   string

	last    inference.Part    // what ended the answer
	pending []inference.Token // that no event has told of yet
}

// head is the message without what is known at its end.
func (a *reply) head() message {
	return message{ID: "msg_" + strings.TrimPrefix(answer.NewID(), "call_"), Type: "message", Role: "assistant", Model: a.model, Content: []contentBlock{}}
}

// used are the counts so far.
func (a *reply) used() usage {
	u := a.Usage
	out := usage{Input: u.PromptTokens - u.PromptDetails.CachedTokens, CacheRead: u.PromptDetails.CachedTokens, Output: u.CompletionTokens}
	if n := u.CompletionDetails.ReasoningTokens; n > 0 {
		out.Details = &outputDetails{n}
	}
	return out
}

// stop is why the answer ended, and the stop string that ended it.
func (a *reply) stop() (reason string, sequence *string) {
	switch a.last.Reason {
	case inference.FinishLength:
		return "max_tokens", nil
	case inference.FinishCalls:
		return "tool_use", nil
	}
	if text, ok := a.last.Stop.(string); ok {
		return "stop_sequence", &text
	}
	return "end_turn", nil
}

// events are those of a part.
func (a *reply) events(p inference.Part) (out []event) {
	for _, e := range p.Events {
		out = append(out, a.encoder.push(e)...)
	}
	if p.Reason != "" {
		a.last = inference.Part{Reason: p.Reason, Stop: p.Stop}
		out = append(out, a.encoder.finish()...)
	}
	return out
}

func (a *reply) whole(c inference.Call, kept *inference.Allowance) error {
	var content collector
	err := a.Run(c.Request.Context(), func(p inference.Part) error {
		if err := kept.Take(a.Weigh(p), 0); err != nil {
			return err
		}
		content.add(a.events(p))
		return nil
	})
	if err != nil {
		return err
	}
	out := struct {
		message
		*inference.Exact
		*exactTokens
		SchemaErrors []inference.SchemaError `json:"schema_errors,omitempty"`
	}{message: a.head(), Exact: a.ExactPrompt(), SchemaErrors: a.SchemaErrors(0)}
	out.Content, out.Usage = content.content(), a.used()
	reason, sequence := a.stop()
	out.StopReason, out.StopSequence = &reason, sequence
	if a.Exact {
		out.exactTokens = &exactTokens{TokenIDs: a.TokenIDs(0), SequenceID: a.SequenceID(0)}
		if out.Datum, err = a.Datum(0); err != nil {
			return err
		}
	}
	return c.Send(http.StatusOK, out)
}
