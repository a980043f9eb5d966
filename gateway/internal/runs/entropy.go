package runs

import (
	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/plugins"
)

// Where a client asks for the likeliest tokens of what it samples or of a prompt, the entropy of the policy is nearly known. Passes that train do not have it: their answers are of the targets alone. So it is
// summed over what is sampled of a run's weights, whichever version they are of, and the run's next optimizer step takes it into its event.

// entropies are what was not taken by a step yet.
type entropies struct{ sampled, prompt history.Entropy }

// unscoredLogprob stands in PromptScores.Top at positions that were not asked for.
const unscoredLogprob = -99999

// entropyOf sums over the positions of which the likeliest tokens are known.
func entropyOf(top plugins.TopLogprobs) (e history.Entropy) {
	if top.K < 1 {
		return e
	}
	for rows := top.Logprobs; len(rows) >= top.K; rows = rows[top.K:] {
		if rows[0] != unscoredLogprob {
			e.Add(rows[:top.K])
		}
	}
	return e
}

// event takes what one event of a sample tells.
func (e *entropies) event(x plugins.SampleEvent) {
	switch {
	case x.Prompt != nil:
		e.prompt.Join(entropyOf(x.Prompt.Top))
	case x.Tokens != nil:
		e.sampled.Join(entropyOf(x.Tokens.Top))
	}
}

// entropies are what a whole sample tells.
func (r *SampleResult) entropies() entropies {
	e := entropies{prompt: entropyOf(r.Prompt.Top)}
	for i := range r.Sequences {
		e.sampled.Join(entropyOf(r.Sequences[i].Top))
	}
	return e
}

// sampledOf notes what samples of a run's weights have told; none where the run is not in memory, or for the base model.
func (c *Core) sampledOf(runID string, e entropies) {
	if runID == "" || e.sampled.Count+e.prompt.Count == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.runs[runID]; r != nil {
		r.entropies.sampled.Join(e.sampled)
		r.entropies.prompt.Join(e.prompt)
	}
}

// takeEntropies gives what was sampled of a run since it was called last.
func (c *Core) takeEntropies(r *run) entropies {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := r.entropies
	r.entropies = entropies{}
	return e
}
