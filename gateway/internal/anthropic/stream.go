package anthropic

import (
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/sse"
)

// messageStart is the first event of a stream.
type messageStart struct {
	Type    string  `json:"type"`
	Message message `json:"message"`
	*inference.Exact
}

// messageDelta is the last event but one.
type messageDelta struct {
	Type  string `json:"type"`
	Delta struct {
		StopReason   string  `json:"stop_reason"`
		StopSequence *string `json:"stop_sequence"`
	} `json:"delta"`
	Usage usage `json:"usage"`
	*exactTokens
	SchemaErrors []inference.SchemaError `json:"schema_errors,omitempty"`
}

// stream answers with events. Every one has a name: clients pass over those without.
func (a *reply) stream(c inference.Call) error {
	events := sse.New(c.Context, ping)
	defer events.Close()
	a.Generation.Accepted = events.Accept
	begun, pinged := false, false
	err := a.Run(c.Request.Context(), func(p inference.Part) error {
		if !begun {
			begun = true
			start := messageStart{Type: "message_start", Message: a.head(), Exact: a.ExactPrompt()}
			start.Message.Usage = a.used()
			start.Message.Usage.Output = 1 // as this API has it; the last event tells
			if err := events.Send(start.Type, start); err != nil {
				return err
			}
		}
		if a.Exact {
			a.pending = append(a.pending, p.Tokens...)
		}
		made := a.events(p)
		for i, e := range made {
			if a.Exact {
				e.exactTokens = &exactTokens{TokenIDs: []int32{}}
				if i == len(made)-1 { // what was said before stands with the tokens that said it
					e.TokenIDs, a.pending = inference.IDs(a.pending), nil
				}
			}
			if err := events.Send(e.Type, e); err != nil {
				return err
			}
			if !pinged {
				pinged = true
				if err := events.Write(ping); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil {
		err = a.endStream(events)
	}
	return events.End(err, func(err error) error {
		if err != nil {
			_, value := errorBody(c.Context, inference.Told(c.Context, err, "stream failed"))
			return events.Send("error", value)
		}
		return events.Send("message_stop", struct {
			Type string `json:"type"`
		}{"message_stop"})
	})
}

// endStream tells how the answer ended.
func (a *reply) endStream(events *sse.Stream) error {
	end := messageDelta{Type: "message_delta", Usage: a.used(), SchemaErrors: a.SchemaErrors(0)}
	end.Delta.StopReason, end.Delta.StopSequence = a.stop()
	if a.Exact {
		end.exactTokens = &exactTokens{TokenIDs: inference.IDs(a.pending), SequenceID: a.SequenceID(0)}
		var err error
		if end.Datum, err = a.Datum(0); err != nil {
			return err
		}
	}
	return events.Send(end.Type, end)
}
