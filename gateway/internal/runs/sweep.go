package runs

import (
	"context"
	"os"
	"path/filepath"
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

// sweep ends silent sessions, deletes expired checkpoints and old results, and counts storage.
func (c *Core) sweep(ctx context.Context, elapsed time.Duration) {
	now := c.cfg.now()
	var ended, old []*session
	var gone []*checkpoint
	c.mu.Lock()
	for _, s := range c.sessions {
		switch {
		case s.active() && s.pending == 0 && now.Sub(s.seen) > c.cfg.SessionExpiry:
			c.endSession(s, SessionStatus{Type: StatusCancelled, Detail: "no heartbeat for " + now.Sub(s.seen).Round(time.Second).String()})
			ended = append(ended, s)
		case !s.active() && !s.Purged && s.pending == 0 && s.EndedAt != nil && now.Sub(*s.EndedAt) > c.cfg.ResultsKept:
			old = append(old, s)
		}
		for _, smp := range s.samplers {
			if s.active() && expired(smp.ExpiresAt, now) {
				c.endSampler(smp, &Failure{Message: "the sampling session has expired", Category: CategoryUser})
			}
		}
	}
	for _, cp := range c.checkpoints {
		if expired(cp.ExpiresAt, now) {
			gone = append(gone, cp)
		}
	}
	for key, at := range c.deleted {
		if now.Sub(at) > time.Hour {
			delete(c.deleted, key)
		}
	}
	c.mu.Unlock()
	for _, s := range ended {
		c.log.Info("a session has expired", "session", s.ID)
		c.logged("session could not be stored", c.writeSession(ctx, s), "session", s.ID)
	}
	for _, cp := range gone {
		c.logged("an expired checkpoint could not be deleted", c.deleteCheckpoint(ctx, cp, "checkpoint_expired"), "path", cp.Path)
	}
	for _, s := range old {
		c.logged("old results could not be deleted", c.purge(ctx, s), "session", s.ID)
	}
	c.mu.Lock()
	compact := c.released || len(old) > 0
	c.released = false
	c.mu.Unlock()
	if compact {
		c.logged("the journal could not be compacted", c.cfg.Store.Compact(ctx))
	}
	c.logged("usage could not be stored", c.countStorage(ctx, elapsed))
}

// purge deletes the operations and results of a session that has ended; the session, its runs and its checkpoints stay listed.
func (c *Core) purge(ctx context.Context, s *session) error {
	var parents []string
	c.mu.Lock()
	for _, r := range s.runs {
		parents = append(parents, r.ID)
	}
	for _, smp := range s.samplers {
		parents = append(parents, smp.ID)
	}
	c.mu.Unlock()
	var b store.Batch
	for _, p := range parents {
		for _, collection := range []string{inOperations, inResults, inSkips} {
			b.DeleteUnder = append(b.DeleteUnder, store.ParentKey{Collection: collection, Parent: p})
		}
	}
	if err := c.cfg.Store.Commit(ctx, b); err != nil {
		return err
	}
	c.mu.Lock()
	s.Purged = true
	for _, smp := range s.samplers {
		delete(c.samplers, smp.ID)
	}
	ids := s.samplers
	c.mu.Unlock()
	if err := c.writeSession(ctx, s); err != nil {
		return err
	}
	for _, smp := range ids {
		if smp.Dir != "" {
			c.logged("a snapshot could not be removed", os.RemoveAll(c.file(smp.Dir)))
		}
	}
	for _, r := range s.runs {
		os.Remove(filepath.Join(c.cfg.DataDir, "snapshots", r.ID)) // empty by now, or not there
	}
	return nil
}
