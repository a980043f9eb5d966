package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// After a restart of the server: what an earlier process accepted and did not finish gets its future back and its place in the queue, and every live run is rebuilt.

// attachSnapshot gives an unnamed sampler of an earlier process its weights: on disk, or in a version that the rebuild of its run pins again. mu is held, or nothing runs yet.
func (c *Core) attachSnapshot(smp *sampler) {
	if !smp.Unnamed {
		return
	}
	r := c.runs[smp.RunID]
	usable := r != nil && r.usable() && smp.session != nil && smp.session.active() && !expired(smp.ExpiresAt, c.cfg.now())
	s := &snapshot{version: smp.Version, seq: smp.Seq, dir: smp.Dir}
	if usable {
		s.run = r
		if known := r.pins[smp.Version]; known != nil {
			known.seq, known.dir = min(known.seq, s.seq), cmp.Or(known.dir, s.dir)
			s = known
		}
		r.pins[smp.Version] = s
	} else if twin := smp.twin(); twin != nil {
		if s = twin.snap; s.dir == "" && smp.Dir != "" { // the twin's record is from before they were written
			s.dir, s.lost = smp.Dir, ""
		}
	} else if s.dir == "" {
		s.lost = "they were only in the memory of a backend that is gone"
	}
	if smp.Removed && s.dir == "" {
		s.removed, s.lost = true, c.removedReason(s, smp.RunID)
	}
	smp.snap = s
	if s.dir != "" && s.bytes == 0 && smp.session != nil && smp.session.active() && !expired(smp.ExpiresAt, c.cfg.now()) {
		c.counted(smp.Owner, s, sizeOf(c.file(s.dir)))
	}
}

// runHistory is what the journal knows of the numbers of a run.
type runHistory struct {
	known   []int64 // journalled, ascending
	skipped []span64
	decided int64         // the highest that has a result and was not skipped
	created *resultRecord // of its creation
	changed time.Time     // when its newest weights were made; zero = as it was created, or not known
	turn    *turn         // of an operation that was refused
	damage  error         // it cannot be read
}

// readHistory reads the numbers of a run.
func (c *Core) readHistory(ctx context.Context, runID string) (runHistory, error) {
	var h runHistory
	var err error
	if h.turn, err = c.readTurn(ctx, runID); err != nil {
		return h, err
	}
	skips, err := c.cfg.Store.List(ctx, inSkips, runID, store.Range{}, 0)
	if err != nil {
		return h, fmt.Errorf("load state: %w", err)
	}
	for _, rec := range skips {
		h.skipped = append(h.skipped, span64{rec.Rank, rec.Count})
	}
	h.skipped = mergeSpans(h.skipped)
	operations, err := c.cfg.Store.List(ctx, inOperations, runID, store.Range{From: 1, To: unloadSeq}, 0)
	if err != nil {
		return h, fmt.Errorf("load state: %w", err)
	}
	for _, rec := range operations {
		h.known = append(h.known, rec.Rank)
	}
	results, err := c.cfg.Store.List(ctx, inResults, runID, store.Range{From: 0, To: unloadSeq}, 0)
	if err != nil {
		return h, fmt.Errorf("load state: %w", err)
	}
	for _, rec := range results {
		if rec.Rank == 0 {
			h.created = &resultRecord{}
			if err := json.Unmarshal(rec.Value, h.created); err != nil {
				return h, fmt.Errorf("result %s: %w", rec.Key, err)
			}
			continue
		}
		if !covers(h.skipped, rec.Rank) {
			h.decided = max(h.decided, rec.Rank)
		}
	}
	for _, rec := range slices.Backward(results) { // of which the last one that changed the weights counts
		var res resultRecord
		if json.Unmarshal(rec.Value, &res) != nil {
			break // the rebuild says what is wrong with it
		}
		if res.Failure == nil && (res.Kind == OpOptimStep || res.Kind == OpLoadWeights) {
			h.changed = res.Done
			break
		}
	}
	return h, nil
}

// mergeSpans sorts spans and joins those that touch.
func mergeSpans(spans []span64) []span64 {
	slices.SortFunc(spans, func(a, b span64) int { return cmp.Compare(a.From, b.From) })
	var out []span64
	for _, s := range spans {
		if n := len(out); n > 0 && s.From <= out[n-1].To {
			out[n-1].To = max(out[n-1].To, s.To)
		} else if s.From < s.To {
			out = append(out, s)
		}
	}
	return out
}

func covers(spans []span64, n int64) bool {
	return slices.ContainsFunc(spans, func(s span64) bool { return s.From <= n && n < s.To })
}

// restore brings a sequencer to where an earlier process left it. What is missing below a number that has a result was skipped; what is missing above is waited for anew.
func (s *sequencer) restore(h runHistory, now time.Time) {
	s.skipped = h.skipped
	for _, n := range h.known {
		if n < s.next || s.wasSkipped(n) {
			continue
		}
		s.passSkipped()
		if n > s.next && n <= h.decided {
			gap := span64{s.next, n}
			s.skipped, s.fresh = mergeSpans(append(s.skipped, gap)), append(s.fresh, gap)
			s.next = n
		}
		if n == s.next {
			s.next++
		} else {
			s.held[n] = now
		}
	}
	s.passSkipped()
}

// passSkipped moves next behind the numbers that were skipped.
func (s *sequencer) passSkipped() {
	for _, gap := range s.skipped {
		if gap.From <= s.next && s.next < gap.To {
			s.next = gap.To
		}
	}
}

// readHistories reads the numbers of all runs that can go on.
func (c *Core) readHistories(ctx context.Context) (map[*run]runHistory, error) {
	all := map[*run]runHistory{}
	for _, r := range c.runs {
		if !r.usable() {
			continue
		}
		h, err := c.readHistory(ctx, r.ID)
		if errors.Is(err, store.ErrCorrupt) {
			h, err = runHistory{damage: err}, nil
		}
		if err != nil {
			return nil, err
		}
		all[r] = h
	}
	return all, nil
}

// resume goes on with what was accepted by an earlier process. mu is held.
func (c *Core) resume(pending []store.Record, histories map[*run]runHistory, known map[string]charges) {
	byRun := map[*run][]*operation{}
	for r := range inOrder(c.runs) {
		if r.usable() {
			c.settleIn(r)
		}
	}
	for _, rec := range pending {
		var head operationRecord
		if err := json.Unmarshal(rec.Value, &head); err != nil {
			c.log.Error("an unfinished operation cannot be read", "request", rec.Key, "error", err)
			continue
		}
		f := c.newFuture(rec.Key, head.Kind, head.Owner, c.sessions[head.Session], nil, head.Hash)
		f.since, f.scores, f.fault = head.Time, head.ForwardOnly, head.Fault
		close(f.accepted)
		if head.Kind == OpSample {
			c.resumeSample(f, rec, known[f.id])
			continue
		}
		r := c.runs[rec.Parent]
		if r == nil {
			c.log.Error("an unfinished operation has no run", "request", rec.Key)
			c.forget(f)
			continue
		}
		r.queue.unfinished++
		c.recount(r)
		r.queue.pending[rec.Rank] = true
		f.model = r.model
		op := revive(r, f, rec, head)
		if op.blame.op, op.blame.what = op, f.id; r.home != nil {
			r.home.charge(&op.blame, known[f.id])
		}
		byRun[r] = append(byRun[r], op)
	}
	c.chargeRebuilds(known)
	for r := range inOrder(c.runs) {
		c.resumeRun(r, byRun[r], histories[r])
	}
}

// revive makes an operation from its entry in the journal.
func revive(r *run, f *future, rec store.Record, head operationRecord) *operation {
	op := &operation{run: r, future: f, kind: head.Kind, seq: rec.Rank, ref: rec, fault: head.Fault, bytes: max(int64(len(rec.Payload)), rec.Ref.Length)}
	if op.fault != nil {
		op.trains = head.Kind == OpForwardBackward && !head.ForwardOnly
		return op
	}
	var body any
	switch head.Kind {
	case OpForwardBackward:
		op.trains = !head.ForwardOnly
		return op
	case OpUnloadRun:
		return op
	case OpOptimStep:
		op.adam = &plugins.AdamParams{}
		body = op.adam
	case OpCreateRun:
		op.create = &createBody{}
		body = op.create
	case OpLoadWeights:
		b := &createBody{}
		body = b
		if op.seq == 0 {
			op.create = b
		} else {
			op.load = b
		}
	default:
		op.save = &saveBody{}
		body = op.save
	}
	if err := json.Unmarshal(rec.Payload, body); err != nil {
		op.fault = &Failure{Message: "the journalled request cannot be read: " + err.Error(), Category: CategoryServer}
	}
	return op
}

// resumeRun puts a run's unfinished operations into their places and has it rebuilt. mu is held.
func (c *Core) resumeRun(r *run, ops []*operation, h runHistory) {
	if !r.usable() || r.model == nil || r.session == nil || !r.session.active() || h.damage != nil {
		reason := cmp.Or(r.Reason, "its session is over")
		if r.usable() && r.model == nil {
			c.loseRun(r, "model "+r.ServedModel+" is not served any more")
			reason = r.Reason
		} else if r.usable() && h.damage != nil && r.session != nil && r.session.active() {
			c.loseRun(r, "its journal is damaged: "+h.damage.Error())
			reason = r.Reason
		} else if r.usable() {
			c.endRun(r, stateEnded, reason, nil)
		}
		r.queue.ready = ops
		c.failQueue(r, &Failure{Message: "the run had ended: " + reason, Category: CategoryServer})
		return
	}
	if r.live.weightsAt = h.changed; h.changed.IsZero() {
		r.live.weightsAt = r.CreatedAt
	}
	q := &r.queue
	q.sequence.restore(h, c.cfg.now())
	c.restoreTurn(r, h.turn)
	creating := false
	for _, op := range ops {
		creating = creating || op.create != nil
		if op.save != nil && op.save.SamplerID != "" {
			r.session.reserve(op.save.SamplerID)
		}
		switch _, held := q.sequence.held[op.seq]; {
		case held:
			q.held[op.seq] = op
		case op.seq > 0 && op.seq < unloadSeq && q.sequence.wasSkipped(op.seq):
			c.complete(op, skippedFailure(op.seq))
		default:
			q.ready = append(q.ready, op)
		}
	}
	if r.State == stateCreating && !creating {
		if h.created != nil && h.created.Failure != nil {
			c.endRun(r, stateFailed, h.created.Failure.Message, h.created.Failure)
			return
		}
		r.State = stateLive // the result became durable, the run's record did not any more
	}
	if r.State == stateLive {
		c.interrupt(r, "the server was restarted")
	}
	c.release(r, nil)
}
