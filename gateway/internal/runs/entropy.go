package runs

import (
	"context"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// Where a client asks for the likeliest tokens of what it samples or of a prompt, the entropy of the policy is nearly known. Passes that train do not have it: their answers are of the targets alone. So it is
// summed over what is sampled of a run's weights, whichever version they are of, and the run's next optimizer step takes it into its event.
//
// What a sample tells becomes durable with its result, as a record of its own, and a step's result becomes durable with the deletion of the records that
// it has taken: whenever the server is killed, each sample counts once. A sample that finds many records of others takes them over, so that a run which
// is only sampled has few.

// untaken are the entropies of a run that no step has taken. mu of the core guards them.
type untaken struct {
	sum  history.Entropies
	keys []string // of the records that it is the sum of
}

// joinAt is from how many records on a sample takes those of others over.
const joinAt = 64

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

// addEntropies takes what one event of a sample tells.
func addEntropies(e *history.Entropies, x plugins.SampleEvent) {
	switch {
	case x.Prompt != nil:
		e.Prompt.Join(entropyOf(x.Prompt.Top))
	case x.Tokens != nil:
		e.Sampled.Join(entropyOf(x.Tokens.Top))
	}
}

// entropies are what a whole sample tells.
func (r *SampleResult) entropies() history.Entropies {
	e := history.Entropies{Prompt: entropyOf(r.Prompt.Top)}
	for i := range r.Sequences {
		e.Sampled.Join(entropyOf(r.Sequences[i].Top))
	}
	return e
}

// sampledOf adds to a batch what a sample of a run's weights has told, under a key that no other has; nothing for the base model, and where the run
// takes no steps any more. stored, for which mu is held, is called when the batch is durable.
func (c *Core) sampledOf(runID, key string, e history.Entropies, batch *store.Batch) (stored func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.runs[runID]
	if r == nil || !r.usable() || !e.Any() {
		return func() {}
	}
	if have := &r.untaken; len(have.keys) >= joinAt { // until this one is durable no step takes them
		for _, k := range have.keys {
			batch.Delete = append(batch.Delete, store.RecordKey{Collection: inEntropies, Key: k})
		}
		e.Join(have.sum)
		*have = untaken{}
	}
	batch.Put = append(batch.Put, store.Record{Collection: inEntropies, Key: key, Parent: runID, Value: e.Encode()})
	return func() {
		r.untaken.sum.Join(e)
		r.untaken.keys = append(r.untaken.keys, key)
		if !r.usable() { // it has ended meanwhile
			c.start(func(ctx context.Context) {
				c.logged("what samples told could not be deleted", c.dropEntropies(context.WithoutCancel(ctx), r), "run", r.ID)
			})
		}
	}
}

// takeEntropies gives what was sampled of a run since it was called last, and adds to a batch that it is taken.
func (c *Core) takeEntropies(r *run, batch *store.Batch) history.Entropies {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := r.untaken
	r.untaken = untaken{}
	for _, key := range have.keys {
		batch.Delete = append(batch.Delete, store.RecordKey{Collection: inEntropies, Key: key})
	}
	return have.sum
}

// loadEntropies takes up what no step of an earlier process has taken.
func (c *Core) loadEntropies(ctx context.Context) error {
	err := c.cfg.Store.All(ctx, inEntropies, func(rec store.Record) error {
		r := c.runs[rec.Parent]
		if r == nil || !r.usable() {
			return nil
		}
		e, err := history.DecodeEntropies(rec.Value)
		if err != nil {
			c.log.Error("what a sample told for the series of its run cannot be read", "run", rec.Parent, "error", err)
		} else {
			r.untaken.sum.Join(e)
		}
		r.untaken.keys = append(r.untaken.keys, rec.Key)
		return nil
	})
	if err = c.others(err); err != nil {
		return fmt.Errorf("load entropies: %w", err)
	}
	return nil
}

// dropEntropies deletes what no step will take.
func (c *Core) dropEntropies(ctx context.Context, r *run) error {
	c.mu.Lock()
	none := len(r.untaken.keys) == 0
	r.untaken = untaken{}
	c.mu.Unlock()
	if none {
		return nil
	}
	return c.cfg.Store.Commit(ctx, store.Batch{DeleteUnder: []store.ParentKey{{Collection: inEntropies, Parent: r.ID}}})
}
