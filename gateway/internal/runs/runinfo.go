package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Run describes one run.
func (c *Core) Run(ctx context.Context, owner, runID string, scope Scope) (RunInfo, error) {
	if err := c.recall(ctx, runID); err != nil {
		return RunInfo{}, err
	}
	c.mu.Lock()
	r := c.runs[runID]
	if r == nil || r.Owner != owner && (scope == ScopeOwned || !c.hasPublic(r.ID)) {
		published := r != nil && c.hasPublic(r.ID)
		c.mu.Unlock()
		if published {
			return RunInfo{}, notFoundf("no training run %s of yours; it is somebody else's and has published checkpoints, which access_scope=accessible shows", quote(runID))
		}
		return RunInfo{}, notFoundf("no training run %s", quote(runID))
	}
	if r.Owner != owner {
		defer c.mu.Unlock()
		return c.describePublished(r), nil
	}
	info := c.describeRun(r)
	c.mu.Unlock()
	_, err := c.wholeRun(ctx, &info)
	return info, err
}

// hasPublic tells whether a run has a checkpoint that everybody may read. mu is held.
func (c *Core) hasPublic(runID string) bool {
	now := c.cfg.now()
	return slices.ContainsFunc(c.lists.byRun[runID], func(cp *checkpoint) bool { return cp.Public && !expired(cp.ExpiresAt, now) })
}

// describeRun copies a run. mu is held.
func (c *Core) describeRun(r *run) RunInfo {
	info := RunInfo{
		ID: r.ID, SessionID: r.SessionID, Owner: r.Owner, BaseModel: r.BaseModel, ServedModel: r.ServedModel, TokenizerID: r.BaseModel, Architecture: r.Architecture, LoRA: r.LoRA,
		Optimizer: "adamw", UserMetadata: r.UserMetadata, CreatedAt: r.CreatedAt, LastRequest: r.LastRequest, Live: r.usable(), Corrupted: r.State == stateCorrupted,
	}
	if r.model != nil && r.model.TokenizerID != "" {
		info.TokenizerID = r.model.TokenizerID
	}
	info.Inexact, info.apart, info.Began = r.Inexact, r.Apart, r.Began
	if r.home != nil && r.model.pooled() && r.usable() {
		info.Backend, info.Moves = r.home.name, r.homes
	}
	if info.Corrupted {
		info.CorruptedReason = r.Reason
	}
	if cp := c.newestCheckpoint(r.ID, KindWeights); cp != nil {
		info.LastCheckpoint = cp.info()
	}
	if cp := c.newestCheckpoint(r.ID, KindSampler); cp != nil {
		info.LastSampler = cp.info()
	}
	return info
}

// describePublished is describeRun for others than the owner: what its published checkpoints are made of, and nothing of anything else that was done with the run. mu is held.
func (c *Core) describePublished(r *run) RunInfo {
	all := c.describeRun(r)
	info := RunInfo{
		ID: all.ID, Owner: all.Owner, BaseModel: all.BaseModel, ServedModel: all.ServedModel, TokenizerID: all.TokenizerID, Architecture: all.Architecture, LoRA: all.LoRA, Optimizer: all.Optimizer,
	}
	now := c.cfg.now()
	for _, cp := range c.lists.byRun[r.ID] { // oldest first
		if !cp.Public || expired(cp.ExpiresAt, now) {
			continue
		}
		if info.LastRequest.Before(cp.CreatedAt) {
			info.LastRequest = cp.CreatedAt
		}
		if info.CreatedAt.IsZero() || cp.CreatedAt.Before(info.CreatedAt) {
			info.CreatedAt = cp.CreatedAt
		}
		switch {
		case cp.Kind == KindWeights:
			info.LastCheckpoint = cp.info()
		case cp.Kind == KindSampler:
			info.LastSampler = cp.info()
		}
	}
	return info
}

// Runs lists runs, newest first, with the number there are in all.
func (c *Core) Runs(ctx context.Context, owner string, q RunQuery) ([]RunInfo, int, error) {
	collection, parent := inOwned, owner
	if q.ProjectID != "" {
		collection, parent = inProjects, ofProject(owner, q.ProjectID)
	}
	found, total, err := c.page(ctx, collection, parent, q.Page, 20)
	if err != nil {
		return nil, 0, fmt.Errorf("list runs: %w", err)
	}
	list, bytes := make([]RunInfo, 0, len(found)), int64(0)
	for _, rec := range found {
		info, err := c.findRun(ctx, rec.Key)
		if errors.Is(err, store.ErrNotFound) { // it went with its session just now
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("list runs: %w", err)
		}
		size, err := c.wholeRun(ctx, &info)
		if err != nil {
			return nil, 0, fmt.Errorf("list runs: %w", err)
		}
		for _, cp := range []*CheckpointInfo{info.LastCheckpoint, info.LastSampler} {
			if cp != nil {
				size += (&checkpoint{checkpointRecord{CheckpointInfo: *cp}}).textBytes()
			}
		}
		if bytes += size; bytes > maxListBytes {
			return nil, 0, tooLarge("training runs", len(found), bytes)
		}
		list = append(list, info)
	}
	return list, total, nil
}

// runOf finds a run, also one that is not in memory; store.ErrNotFound if there is none. One that comes from the store is the caller's own copy.
func (c *Core) runOf(ctx context.Context, id string) (*run, error) {
	c.mu.Lock()
	r := c.runs[id]
	c.mu.Unlock()
	if r != nil {
		return r, nil
	}
	rec, err := c.cfg.Store.Get(ctx, inRuns, id)
	if err != nil {
		return nil, err
	}
	if r, err = c.decodeRun(rec.Value); err != nil {
		return nil, fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
	}
	return r, nil
}

// findRun describes a run, also one that is not in memory.
func (c *Core) findRun(ctx context.Context, id string) (RunInfo, error) {
	r, err := c.runOf(ctx, id)
	if err != nil {
		return RunInfo{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.describeRun(r), nil
}

// whereabouts are the session and the project of a run, also of one that is not in memory if it has a checkpoint. mu is held.
func (c *Core) whereabouts(runID string) (session, project string) {
	if r := c.runs[runID]; r != nil { // as all that have no session
		return r.SessionID, r.project()
	}
	if list := c.lists.byRun[runID]; len(list) > 0 {
		project = list[0].Project
	}
	return sessionOf(runID), project
}

// rebuilding is a live run's way into a process; nil when it is there. mu is held.
func (r *run) rebuilding() *Rebuilding {
	if b := r.rebuild; b != nil && r.usable() {
		return &Rebuilding{Runs: 1, Replayed: b.replayed(), ToReplay: b.count, Trouble: b.trouble}
	}
	return nil
}

// RunStatuses tells how the caller's live and corrupted runs of sessions that have not ended stand, oldest first.
func (c *Core) RunStatuses(_ context.Context, owner string) ([]RunStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.now()
	var list []RunStatus
	for _, r := range c.runs {
		if r.Owner != owner || !r.usable() && r.State != stateCorrupted || r.session != nil && !r.session.active() {
			continue
		}
		list = append(list, RunStatus{
			Rebuilding: r.rebuilding(), Naming: namingOf(r.session, r.UserMetadata),
			RunInfo: c.describeRun(r), Step: r.live.step, Version: r.live.version, Queued: r.queue.unfinished, LastLoss: r.live.loss, GradientNorm: r.live.gradient,
			AdapterNorm: r.live.norm, TokensPerSecond: r.live.rate(now), TrainedTokens: r.live.tokens,
			UnreadInputs: r.Unread,
		})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].CreatedAt.Before(list[j].CreatedAt) })
	return list, nil
}
