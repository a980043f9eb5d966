package runs

import (
	"context"
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
	defer c.mu.Unlock()
	r := c.runs[runID]
	if r == nil || r.Owner != owner && (scope == ScopeOwned || !c.hasPublic(r.ID)) {
		return RunInfo{}, notFoundf("no training run %s", quote(runID))
	}
	if r.Owner != owner {
		return c.describePublished(r), nil
	}
	return c.describeRun(r), nil
}

// hasPublic tells whether a run has a checkpoint that everybody may read. mu is held.
func (c *Core) hasPublic(runID string) bool {
	now := c.cfg.now()
	for _, cp := range c.checkpoints {
		if cp.RunID == runID && cp.Public && !expired(cp.ExpiresAt, now) {
			return true
		}
	}
	return false
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
	info.Inexact = r.Inexact
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
	published := c.listCheckpoints(func(cp *checkpoint) bool { return cp.RunID == r.ID && cp.Public })
	for i := range published { // newest first
		cp := &published[i]
		if info.LastRequest.Before(cp.CreatedAt) {
			info.LastRequest = cp.CreatedAt
		}
		if info.CreatedAt.IsZero() || cp.CreatedAt.Before(info.CreatedAt) {
			info.CreatedAt = cp.CreatedAt
		}
		switch {
		case cp.Kind == KindWeights && info.LastCheckpoint == nil:
			info.LastCheckpoint = cp
		case cp.Kind == KindSampler && info.LastSampler == nil:
			info.LastSampler = cp
		}
	}
	return info
}

// Runs lists runs, newest first, with the number there are in all.
func (c *Core) Runs(ctx context.Context, owner string, q RunQuery) ([]RunInfo, int, error) {
	projects, err := c.projects(ctx, owner, q.ProjectID)
	if err != nil {
		return nil, 0, err
	}
	all, err := c.cfg.Store.List(ctx, inOwned, owner, store.Range{}, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("list runs: %w", err)
	}
	if q.ProjectID != "" {
		all = slices.DeleteFunc(all, func(rec store.Record) bool {
			project, ofSession := projects[sessionOf(rec.Key)]
			if !ofSession {
				project = string(rec.Value)
			}
			return project != q.ProjectID
		})
	}
	newestFirst(all)
	from, to, err := q.Page.cut(len(all), 20)
	if err != nil {
		return nil, 0, err
	}
	stored := make([]*run, 0, to-from)
	for _, rec := range all[from:to] {
		rec, err := c.cfg.Store.Get(ctx, inRuns, rec.Key)
		if err != nil {
			return nil, 0, fmt.Errorf("list runs: %w", err)
		}
		r, err := c.decodeRun(rec.Value)
		if err != nil {
			return nil, 0, fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		stored = append(stored, r)
	}
	list := make([]RunInfo, 0, to-from)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range stored {
		if now := c.runs[r.ID]; now != nil {
			r = now
		}
		list = append(list, c.describeRun(r))
	}
	return list, len(all), nil
}

// projects reads in which project each of the owner's sessions is; nil when no project is asked for.
func (c *Core) projects(ctx context.Context, owner, asked string) (map[string]string, error) {
	if asked == "" {
		return nil, nil
	}
	sessions, err := c.cfg.Store.List(ctx, inSessions, owner, store.Range{}, 0)
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	of := map[string]string{}
	for _, rec := range sessions {
		s, err := decodeSession(rec)
		if err != nil {
			return nil, err
		}
		of[s.ID] = s.ProjectID
	}
	return of, nil
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
		var rebuilding *Rebuilding
		if b := r.rebuild; b != nil && r.usable() {
			rebuilding = &Rebuilding{Runs: 1, Replayed: b.replayed(), ToReplay: b.count, Trouble: b.trouble}
		}
		list = append(list, RunStatus{
			Rebuilding: rebuilding,
			RunInfo:    c.describeRun(r), Step: r.live.step, Version: r.live.version, Queued: r.queue.unfinished, LastLoss: r.live.loss, GradientNorm: r.live.gradient,
			AdapterNorm: r.live.norm, TokensPerSecond: r.live.rate(now), TrainedTokens: r.live.tokens,
		})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].CreatedAt.Before(list[j].CreatedAt) })
	return list, nil
}
