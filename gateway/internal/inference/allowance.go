package inference

import "github.com/tinsmith/tinsmith/gateway/internal/body"

// wholeBytes is about how much memory an answer may take that is sent when it is whole, and scoreBytes what one log-probability with its token takes of it, made into JSON.
const (
	wholeBytes = 256 << 20
	scoreBytes = 200
)

// answerStep is by how much at a time an answer in the making claims memory; as much it has for nothing.
const answerStep = 64 << 10

// Allowance bounds the memory of an answer in the making.
type Allowance struct {
	whole, taken int
	advice       string // of what to do against too much
	claim        *body.Claim
	claimed      int
}

// Allow begins the allowance of a call's answer. streams says that it is streamed, and kept for another reason.
func (s *Service) Allow(c Call, streams bool) *Allowance {
	a := &Allowance{whole: s.WholeBytes, claim: c.Claim, advice: "stream it, or ask for fewer choices, tokens or log-probabilities"}
	if streams {
		a.advice = "ask for fewer tokens or log-probabilities"
	}
	return a
}

// Take accounts for a part of the answer, of so many bytes of text and so many log-probabilities, before it is kept.
func (a *Allowance) Take(text, scores int) error {
	if a.taken > a.claimed+answerStep {
		n := a.taken - a.claimed
		if err := a.claim.Take(int64(n)); err != nil {
			return err
		}
		a.claimed += n
	}
	if a.taken += text + scores*scoreBytes; a.taken > a.whole {
		return Invalid("stream", "the answer is longer than what is kept until it is whole, which is about %d KiB: %s", a.whole>>10, a.advice)
	}
	return nil
}
