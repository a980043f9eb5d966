package runs

import (
	"context"
	"fmt"
)

// Sequences of direct sampling that a client may train on with their provenance, as on those of a sampling session. They are kept as long as those are after their session.

// directPrefix is what their ids begin with; no session's id does.
const directPrefix = "direct:"

func (c *Core) directSequences() shelf {
	return shelf{what: "sequence", records: inSequences, bytes: inSequenceBytes, kept: c.cfg.SamplesKept, most: c.cfg.MaxSequenceBytes}
}

// KeepSequence records what was sampled directly, and gives the id under which spans of a Datum may name it.
func (c *Core) KeepSequence(ctx context.Context, owner string, s SampledSequence) (id string, err error) {
	id = directPrefix + c.newID("", "", "")
	s.StoppedByLength = false // nobody asks
	return id, c.shelve(ctx, c.directSequences(), owner, id, encodeRecordedSample(&SampleResult{Sequences: []SampledSequence{s}}))
}

// directSequence finds one by its id, as a result that has nothing else.
func (c *Core) directSequence(ctx context.Context, owner, id string) (*SampleResult, error) {
	content, err := c.fromShelf(ctx, c.directSequences(), owner, id, func(int64) error { return nil })
	if KindOf(err) == KindNotFound {
		return nil, invalidf("no sequence %s is recorded", quote(id))
	}
	if err != nil {
		return nil, err
	}
	result, err := decodeSampleResult(content)
	if err == nil && len(result.Sequences) != 1 {
		err = fmt.Errorf("record of sequence %s: has %d", quote(id), len(result.Sequences))
	}
	return result, err
}
