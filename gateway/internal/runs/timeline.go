package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// MaxTimeline bounds the operations that one answer of Timeline is made of.
const MaxTimeline = 1000

// CycleSpan is what one clock cycle ran of one run.
type CycleSpan struct {
	Cycle      int64
	Begin, End time.Time // from the beginning of its first operation to the end of its last; others' may lie between
	// SamplingTurns is how often the sampler had the device meanwhile, and Sampling how long in all.
	SamplingTurns int
	Sampling      time.Duration
	Operations    []CycleOperation // in the order in which the client sent them
}

// CycleOperation is a training operation in a clock cycle.
type CycleOperation struct {
	Seq        int64
	Kind       OperationKind
	Begin, End time.Time     // on the device
	Queued     time.Duration // from its acceptance to Begin; 0 where that is not known, as for one that failed
	Tokens     int64         // of a pass
	Failed     bool
}

// Timeline tells in which clock cycles the newest operations of a run ran, oldest first: of at most so many operations (1 … MaxTimeline). What ended without running in a cycle is left out. Results are kept while a
// session is live and a while after; without them there are no cycles.
func (c *Core) Timeline(ctx context.Context, v Viewer, runID string, operations int) ([]CycleSpan, error) {
	if operations < 1 || operations > MaxTimeline {
		return nil, invalidf("operations: is %d, must be in 1 … %d", operations, MaxTimeline)
	}
	if err := c.recall(ctx, runID); err != nil {
		return nil, err
	}
	r, err := c.visible(v, runID)
	if err != nil {
		return nil, err
	}
	heads, err := c.heads(ctx, runID)
	if err != nil {
		return nil, err
	}
	last := int64(0)
	if fold, err := history.DecodeFold(heads[training].State); err == nil {
		last = fold.UpTo
	}
	c.mu.Lock()
	c.fold(r)
	last = max(last, r.series.fold.UpTo)
	c.mu.Unlock()
	results, err := c.cfg.Store.List(ctx, inResults, runID, store.Range{From: max(last-int64(operations)+1, 0), To: unloadSeq}, 0)
	if err = c.others(err); err != nil {
		return nil, fmt.Errorf("read the timeline: %w", err)
	}
	results = results[max(len(results)-operations, 0):]
	var spans []CycleSpan
	for _, rec := range results {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var res resultRecord
		if json.Unmarshal(rec.Value, &res) != nil || res.Ran == nil {
			continue
		}
		spans = addToTimeline(spans, rec.Rank, &res)
	}
	slices.SortStableFunc(spans, func(a, b CycleSpan) int { return a.Begin.Compare(b.Begin) })
	return spans, nil
}

// addToTimeline adds an operation to its cycle, which is one of the last if it is there.
func addToTimeline(spans []CycleSpan, seq int64, res *resultRecord) []CycleSpan {
	ran := res.Ran
	op := CycleOperation{Seq: seq, Kind: res.Kind, Begin: ran.Begin, End: ran.End, Failed: res.Failure != nil}
	if x, err := eventOf(res); err == nil && x != nil && x.Begin != 0 {
		op.Queued, op.Tokens = time.Duration(x.Queued), x.Tokens
	}
	i := len(spans) - 1
	for ; i >= 0 && spans[i].Cycle != ran.Cycle; i-- {
	}
	if i < 0 {
		i = len(spans)
		spans = append(spans, CycleSpan{Cycle: ran.Cycle, Begin: ran.Begin, End: ran.End})
	}
	s := &spans[i]
	if ran.Begin.Before(s.Begin) {
		s.Begin = ran.Begin
	}
	if ran.End.After(s.End) {
		s.End = ran.End
	}
	s.SamplingTurns += ran.SamplingTurns
	s.Sampling += ran.Sampling
	s.Operations = append(s.Operations, op)
	return spans
}
