package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// sweepUntilClosed does what time asks for.
func (c *Core) sweepUntilClosed(ctx context.Context) {
	t := time.NewTicker(c.cfg.SweepEvery)
	defer t.Stop()
	last := c.cfg.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			now := c.cfg.now()
			c.sweep(ctx, now.Sub(last))
			last = now
		}
	}
}

// sweep ends silent sessions, deletes expired checkpoints and old results, writes what could not be written, counts storage, and takes sessions that ended a while ago out of memory. elapsed is the
// time since the sweep before.
func (c *Core) sweep(ctx context.Context, elapsed time.Duration) {
	now := c.cfg.now()
	// A sweep that comes much too late was kept by what stopped this process (a paused container or machine), and nobody could be heard meanwhile.
	unheard := elapsed - c.cfg.SweepEvery
	if unheard <= c.cfg.SweepEvery {
		unheard = 0
	}
	var ended, old, forgotten []*session
	var gone []*checkpoint
	writable := c.cfg.Store.Err() == nil // else another attempt would only take the room that results need
	c.mu.Lock()
	if writable {
		c.writeAgain()
	}
	for _, m := range c.models {
		c.rebalance(m)
	}
	for _, s := range c.sessions {
		if s.active() && unheard > 0 {
			s.seen = earlier(s.seen.Add(unheard), now)
		}
		switch {
		case s.active() && now.Sub(s.seen) > c.patience(s):
			c.endSession(s, SessionStatus{Type: StatusCancelled, Detail: "no heartbeat for " + now.Sub(s.seen).Round(time.Second).String()})
			ended = append(ended, s)
		case s.Retired: // the schedule has it
		case !s.active() && !s.Purged && s.pending == 0 && s.EndedAt != nil && now.Sub(*s.EndedAt) > c.cfg.ResultsKept:
			old = append(old, s)
		case s.Purged && !s.Forgotten && s.EndedAt != nil && now.Sub(*s.EndedAt) > c.cfg.SamplesKept:
			forgotten = append(forgotten, s)
		}
		for _, smp := range s.samplers {
			if s.active() && expired(smp.ExpiresAt, now) {
				c.endSampler(smp, &Failure{Message: "the sampling session has expired", Category: CategoryUser})
			}
		}
	}
	for _, cp := range c.checkpoints {
		if expired(cp.ExpiresAt, now) && !c.replacing[cp.Path] {
			gone = append(gone, cp)
		}
	}
	for id, at := range c.removed {
		if now.Sub(at) > retireAfter {
			delete(c.removed, id)
		}
	}
	for key, at := range c.deleted {
		if now.Sub(at) > time.Hour {
			delete(c.deleted, key)
		}
	}
	c.eraseAgain()
	c.mu.Unlock()
	slices.SortFunc(gone, func(a, b *checkpoint) int { return cmp.Compare(a.Path, b.Path) })
	for _, list := range [][]*session{ended, old, forgotten} {
		slices.SortFunc(list, func(a, b *session) int { return cmp.Compare(a.ID, b.ID) })
	}
	for _, s := range ended {
		c.log.Info("a session has expired", "session", s.ID)
		c.logged("session could not be stored", c.writeSession(ctx, s), "session", s.ID)
	}
	for _, cp := range gone {
		c.logged("an expired checkpoint could not be deleted", c.deleteCheckpoint(ctx, cp, "checkpoint_expired"), "path", cp.Path)
	}
	c.logged("series could not be written", c.writeSeries(ctx)) // before the results go of which they can be made again
	for _, s := range old {
		c.logged("old results could not be deleted", c.purge(ctx, s), "session", s.ID)
	}
	for _, s := range forgotten {
		c.logged("old samples could not be deleted", c.forgetSamples(ctx, s), "session", s.ID)
	}
	emptied := len(old)+len(forgotten) > 0
	for _, due := range []struct {
		next string
		kept time.Duration
		do   func(context.Context, *session) error
	}{{resultsNext, c.cfg.ResultsKept, c.purge}, {samplesNext, c.cfg.SamplesKept, c.forgetSamples}} {
		any, err := c.overdue(ctx, due.next, now.Add(-due.kept), due.do)
		c.logged("old results could not be deleted", err)
		emptied = emptied || any
	}
	c.mu.Lock()
	compact := c.released || emptied
	c.released = false
	c.mu.Unlock()
	if compact {
		c.logged("the journal could not be compacted", c.cfg.Store.Compact(ctx))
	}
	c.describeNext()
	c.logged("usage could not be stored", c.countStorage(ctx, elapsed))
	c.logged("old records could not be thinned", c.thin(ctx))
	c.logged("ended sessions could not be retired", c.retire(ctx))
}

// forSamples is how many times as long as a session without work one is kept that waits for samples alone.
const forSamples = 4

// patience is how long a session may be silent. Operations of its runs are finished however long that takes, for they change what is kept; samples are of use to nobody but the
// client, and one that has died must not keep the device busy with all that it had sent. mu is held.
func (c *Core) patience(s *session) time.Duration {
	if s.pending == 0 {
		return c.cfg.SessionExpiry
	}
	samples := 0
	for _, smp := range s.samplers {
		samples += len(smp.jobs)
	}
	if samples < s.pending {
		return math.MaxInt64
	}
	return forSamples * min(c.cfg.SessionExpiry, math.MaxInt64/forSamples)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// purge deletes the operations of a session that has ended, and the results of its runs; the session, its runs and its checkpoints stay listed.
func (c *Core) purge(ctx context.Context, s *session) error {
	if err := c.writeSeriesOf(ctx, s.runs); err != nil {
		return err
	}
	var b store.Batch
	under := func(collection, parent string) {
		b.DeleteUnder = append(b.DeleteUnder, store.ParentKey{Collection: collection, Parent: parent})
	}
	c.mu.Lock()
	for _, r := range s.runs {
		under(inOperations, r.ID)
		under(inResults, r.ID)
		under(inSkips, r.ID)
		b.Delete = append(b.Delete, store.RecordKey{Collection: inTurns, Key: r.ID})
	}
	for _, smp := range s.samplers {
		under(inOperations, smp.ID)
	}
	samplers := s.samplers
	c.mu.Unlock()
	for _, smp := range samplers {
		if err := c.reduceSamples(ctx, smp.ID); err != nil {
			return err
		}
	}
	var dirs, left []string // snapshots, as an older version may have left them: they go when the session ends
	c.mu.Lock()
	for _, smp := range samplers { // one that was being written when the session ended may get its folder now
		if smp.Dir != "" && !slices.Contains(dirs, smp.Dir) {
			dirs = append(dirs, smp.Dir)
		}
	}
	c.mu.Unlock()
	for _, dir := range dirs {
		if !c.gone(dir) {
			left = append(left, dir)
			b.Put = append(b.Put, c.deletion(dir, "the session has ended"))
		}
	}
	if err := c.cfg.Store.Commit(ctx, b); err != nil {
		return err
	}
	c.mu.Lock()
	c.erase(left...)
	s.Purged = true
	c.mu.Unlock()
	if err := c.writeSession(ctx, s); err != nil {
		return err
	}
	for _, r := range s.runs {
		for _, folder := range []string{"snapshots", "recovery"} {
			os.Remove(filepath.Join(c.cfg.DataDir, folder, r.ID)) // empty by now, or not there
		}
	}
	return nil
}

// reduceSamples leaves of the large results of a sampling session what training may ask for: what else came with them may be many times as much.
func (c *Core) reduceSamples(ctx context.Context, sampler string) error {
	const worthwhile = 64 << 10
	large, err := c.cfg.Store.Large(ctx, inResults, sampler)
	if err != nil {
		return err
	}
	for _, rec := range large {
		var head resultRecord
		if err := json.Unmarshal(rec.Value, &head); err != nil {
			return fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		if head.Kind != OpSample || head.Failure != nil || rec.Ref.Length < worthwhile {
			continue
		}
		payload, err := c.cfg.Store.Payload(ctx, rec)
		var result *SampleResult
		if err == nil {
			result, err = decodeSampleResult(payload)
		}
		if err != nil { // the others need not stay because of it
			c.logged("a sample's result cannot be read", err, "request", rec.Key)
			continue
		}
		reduced := encodeRecordedSample(result)
		if result.recorded || 2*len(reduced) > len(payload) {
			continue
		}
		head.Size = int64(len(reduced))
		rec.Value, rec.Payload, rec.Ref = head.json(), reduced, store.Ref{}
		if err := c.cfg.Store.Commit(ctx, store.Batch{Put: []store.Record{rec}}); err != nil {
			return err
		}
	}
	return nil
}

// forgetSamples deletes the results of a session's samples, and its sampling sessions with them.
func (c *Core) forgetSamples(ctx context.Context, s *session) error {
	var b store.Batch
	c.mu.Lock()
	samplers := s.samplers
	c.mu.Unlock()
	for _, smp := range samplers {
		b.DeleteUnder = append(b.DeleteUnder, store.ParentKey{Collection: inResults, Parent: smp.ID})
	}
	if err := c.cfg.Store.Commit(ctx, b); err != nil {
		return err
	}
	c.mu.Lock()
	s.Forgotten = true
	for _, smp := range samplers {
		delete(c.samplers, smp.ID)
	}
	c.mu.Unlock()
	return c.writeSession(ctx, s)
}
