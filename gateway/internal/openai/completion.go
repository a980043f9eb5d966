package openai

import (
	"crypto/rand"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
)

// head is what every answer begins with, and every event of a streamed one: the same in all events of an answer.
type head struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

// newHead is that of a new answer to a request that named model; its id is prefix and something random.
func newHead(prefix, object, model string) head {
	return head{prefix + rand.Text(), object, time.Now().Unix(), model}
}

// completion is an answer, or one event of a streamed answer.
type completion[Choice any] struct {
	head
	Choices []Choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

// wholeBytes is about how much memory an answer may take that is sent when it is whole, and scoreBytes what one log-probability with its token takes of it, made into JSON.
const (
	wholeBytes = 256 << 20
	scoreBytes = 200
)

// answerStep is by how much at a time an answer in the making claims memory; as much it has for nothing.
const answerStep = 64 << 10

// allowance bounds the memory of an answer in the making.
type allowance struct {
	whole, taken int
	claim        *body.Claim
	claimed      int
}

// take accounts for a part of the answer, before it is kept.
func (a *allowance) take(text string, scores int) error {
	if a.taken > a.claimed+answerStep {
		n := a.taken - a.claimed
		if err := a.claim.Take(int64(n)); err != nil {
			return err
		}
		a.claimed += n
	}
	if a.taken += len(text) + scores*scoreBytes; a.taken > a.whole {
		return invalid("stream", "the answer is longer than what is kept until it is whole, which is about %d KiB: stream it, or ask for fewer choices, tokens or log-probabilities", a.whole>>10)
	}
	return nil
}

// stream answers with events: one for each choice that run emits, then one with the usage if the client asked for it. run is over, and usage complete, when it returns.
func stream[Choice any](c call, h head, fields *samplingFields, total *usage, run func(emit func(Choice) error) error) error {
	events := newEventStream(c.Context)
	defer events.close()
	err := run(func(choice Choice) error { return events.send(completion[Choice]{h, []Choice{choice}, nil}) })
	if err == nil && fields.StreamOptions != nil && fields.StreamOptions.IncludeUsage {
		err = events.send(completion[Choice]{h, []Choice{}, total})
	}
	return events.end(err)
}
