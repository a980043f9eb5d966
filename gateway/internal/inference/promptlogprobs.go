package inference

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/plugins"
)

// NoPromptLogprobs is what [Parameters.PromptLogprobs] gives for a request that wants none.
const NoPromptLogprobs = -1

// PromptLogprobs is how many alternatives each token of the prompt is to be told of with, beside its own log-probability.
func (f *Parameters) PromptLogprobs() (int, error) {
	const field = "prompt_logprobs"
	raw := f.PromptScores
	if !Given(raw) || string(raw) == "false" {
		return NoPromptLogprobs, nil
	}
	k, err := strconv.Atoi(string(raw[:min(len(raw), 40)]))
	switch {
	case err != nil || k < 0 || k > MaxTopLogprobs:
		return 0, Invalid(field, "%.40s is not an integer between 0 and %d", raw, MaxTopLogprobs)
	case f.Stream && k == 0: // as vLLM has it
		return NoPromptLogprobs, nil
	case f.Stream:
		return 0, Unsupported(field, "are not told of in a stream: leave out stream")
	}
	return k, nil
}

// ScorePrompt has the prompt's tokens scored, with so many alternatives; with [NoPromptLogprobs] nothing changes.
func (g *Generation) ScorePrompt(alternatives int) {
	if alternatives > NoPromptLogprobs {
		g.Request.PromptLogprobs = true
		g.Request.TopKPromptLogprobs = max(g.Request.TopKPromptLogprobs, alternatives)
	}
}

// PromptLogprobs are the log-probabilities of a prompt's tokens in vLLM's form; the first token has none.
type PromptLogprobs []PromptToken

// PromptToken is a token of a prompt and the likeliest ones in its place.
type PromptToken []scoredToken

type scoredToken struct {
	ID      int32   `json:"-"`
	Logprob float32 `json:"logprob"`
	// Rank counts the likelier ones and itself; nil where it is not among those that were asked for.
	Rank *int   `json:"rank"`
	Text string `json:"decoded_token"`
}

// NewPromptLogprobs makes the list of a prompt, with so many alternatives of those that were scored.
func NewPromptLogprobs(m *catalog.Model, prompt []int32, scores *plugins.PromptScores, alternatives int) PromptLogprobs {
	out := make(PromptLogprobs, len(prompt))
	for i := 1; i < len(prompt) && i < len(scores.Logprobs); i++ {
		own := scoredToken{ID: prompt[i], Logprob: Score(scores.Logprobs[i])}
		token := PromptToken{own}
		for j := range min(alternatives, scores.Top.K) {
			rank := j + 1
			one := scoredToken{ID: scores.Top.IDs[i*scores.Top.K+j], Logprob: Score(scores.Top.Logprobs[i*scores.Top.K+j]), Rank: &rank}
			if one.ID == own.ID {
				token[0].Rank = &rank
				continue
			}
			token = append(token, one)
		}
		for j := range token {
			token[j].Text, _ = m.TokenText(token[j].ID)
		}
		out[i] = token
	}
	return out
}

// Scores is how many log-probabilities a prompt's tokens have with so many alternatives.
func (g *Generation) Scores(alternatives int) int { return len(g.Request.Prompt) * (1 + alternatives) }

// MarshalJSON writes an object by token ids, the prompt's own first; null for a token without a score.
func (t PromptToken) MarshalJSON() ([]byte, error) {
	if t == nil {
		return []byte("null"), nil
	}
	var out bytes.Buffer
	for i, one := range t {
		separator := byte(',')
		if i == 0 {
			separator = '{'
		}
		value, err := json.Marshal(one)
		if err != nil {
			return nil, err
		}
		out.WriteByte(separator)
		out.WriteString(strconv.Quote(strconv.Itoa(int(one.ID))))
		out.WriteByte(':')
		out.Write(value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}
