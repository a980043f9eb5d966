package openai

import (
	"crypto/rand"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/sse"
)

// head is what every answer begins with, and every event of a streamed one: the same in all events of an answer.
type head struct {
	ID      string `json:"id"`
	Object  string `json:"object,omitempty"`
	Created int64  `json:"created"`
	Model   string `json:"model"`

	RequestID string `json:"request_id,omitempty"` // of /inference/v1/generate
}

// newHead is that of a new answer to a request that named model; its id is prefix and something random.
func newHead(prefix, object, model string) head {
	return head{ID: prefix + rand.Text(), Object: object, Created: time.Now().Unix(), Model: model}
}

// completion is an answer, or one event of a streamed answer.
type completion[Choice any] struct {
	head
	*inference.Exact                          // nil: left out
	Choices          []Choice                 `json:"choices"`
	Usage            *inference.Usage         `json:"usage,omitempty"`
	PromptLogprobs   inference.PromptLogprobs `json:"prompt_logprobs,omitempty"`
}

// stream answers with events: one for each choice that run emits, then one with the usage if the client asked for it. run is over, and usage complete, when it returns. exact, if it
// is not nil, gives what the first event tells of the prompt's tokens. run calls accepted, if it can, when the request only has to wait.
func stream[Choice any](c inference.Call, h head, fields *inference.Parameters, total *inference.Usage, exact func() *inference.Exact, run func(accepted func(), emit func(Choice) error) error) error {
	events := sse.New(c.Context, sse.Comment)
	defer events.Close()
	with := func() *inference.Usage { // so far
		if fields.StreamOptions == nil || !fields.StreamOptions.ContinuousUsageStats {
			return nil
		}
		now := *total
		return &now
	}
	err := run(events.Accept, func(choice Choice) error {
		event := completion[Choice]{head: h, Choices: []Choice{choice}, Usage: with()}
		if exact != nil {
			event.Exact, exact = exact(), nil
		}
		return events.Send("", event)
	})
	if err == nil && fields.StreamOptions != nil && fields.StreamOptions.IncludeUsage {
		err = events.Send("", completion[Choice]{head: h, Choices: []Choice{}, Usage: total})
	}
	return events.End(err, func(err error) error {
		if err != nil {
			_, value := errorBody(c.Context, inference.Told(c.Context, err, "stream failed"))
			return events.Send("", value.(gin.H))
		}
		return events.Write("data: [DONE]\n\n")
	})
}
