package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// UsageType is what was used.
type UsageType string

// The types of usage.
const (
	UsageTraining        UsageType = "training"         // tokens
	UsagePrefill         UsageType = "sampling_prefill" // tokens
	UsagePrefillCached   UsageType = "sampling_prefill_cached"
	UsageSample          UsageType = "sampling_sample" // tokens
	UsageCheckpoint      UsageType = "checkpoint"      // checkpoints written
	UsageStorageByteSecs UsageType = "storage"         // bytes times seconds
)

// UsageEvent is the sum of one hour for one session, model and type.
type UsageEvent struct {
	Start     time.Time // the hour; it ends an hour later
	Owner     string
	SessionID string
	ProjectID string
	BaseModel string
	Type      UsageType
	Count     int64 // in the unit of Type
}

// StorageUsage is what the checkpoints of one project take now.
type StorageUsage struct {
	ProjectID   string
	Checkpoints int
	Bytes       int64
}

// usageRecord is the Value of a usage record; its Count is the sum.
type usageRecord struct {
	SessionID string    `json:"session_id,omitempty"`
	ProjectID string    `json:"project_id,omitempty"`
	BaseModel string    `json:"base_model,omitempty"`
	Type      UsageType `json:"type"`
}

// usage is a change of a sum, to be added to a batch.
func (c *Core) usage(owner, session, project, baseModel string, kind UsageType, count int64) store.Record {
	hour := c.cfg.now().UTC().Truncate(time.Hour).Unix()
	r := c.usages.record(hour, owner, usageRecord{SessionID: session, ProjectID: project, BaseModel: baseModel, Type: kind})
	r.Count = count
	return r
}

// usageRecords are records of the current hour, without their count: every operation of a session adds to the same one.
type usageRecords struct {
	mu   sync.Mutex
	list map[usageOf]store.Record
}

// usageOf is what a record of usage is of.
type usageOf struct {
	hour  int64
	owner string
	usageRecord
}

// record gives the record of a sum. Its Value must not be changed.
func (u *usageRecords) record(hour int64, owner string, of usageRecord) store.Record {
	u.mu.Lock()
	defer u.mu.Unlock()
	k := usageOf{hour, owner, of}
	r, known := u.list[k]
	if !known {
		if len(u.list) >= 1024 || u.list == nil { // those of past hours and ended sessions among them
			u.list = map[usageOf]store.Record{}
		}
		r = store.Record{
			Collection: inUsage, Key: strings.Join([]string{itoa(hour), owner, of.SessionID, of.ProjectID, of.BaseModel, string(of.Type)}, "\x1f"), Parent: owner, Rank: hour, Value: of.json(),
		}
		u.list[k] = r
	}
	return r
}

// sampleUsage is what a sample adds.
func (c *Core) sampleUsage(j *sampleJob, r *SampleResult) []store.Record {
	s := j.sampler
	sampled := 0
	for _, q := range r.Sequences {
		sampled += len(q.Tokens)
	}
	c.mu.Lock()
	project := s.session.ProjectID
	c.mu.Unlock()
	return c.samplingUsage(s.Owner, s.SessionID, project, s.BaseModel, len(j.req.Prompt), r.Prompt.CachedTokens, sampled)
}

func (c *Core) samplingUsage(owner, session, project, baseModel string, prompt, cached, sampled int) []store.Record {
	var list []store.Record
	for _, u := range []struct {
		kind  UsageType
		count int
	}{{UsagePrefill, prompt - cached}, {UsagePrefillCached, cached}, {UsageSample, sampled}} {
		if u.count > 0 {
			list = append(list, c.usage(owner, session, project, baseModel, u.kind, int64(u.count)))
		}
	}
	return list
}

// countGeneration stores what a direct request used, also of one that was broken off.
func (c *Core) countGeneration(ctx context.Context, owner string, t Target, prompt int, k tokenCounter) {
	if !k.started {
		return
	}
	session, project := "", ""
	c.mu.Lock()
	if r := c.runs[t.RunID]; r != nil {
		session, project = r.SessionID, r.project()
	}
	c.mu.Unlock()
	adds := c.samplingUsage(owner, session, project, t.ServedModel, prompt, k.cached, k.sampled)
	c.logged("usage could not be stored", c.cfg.Store.Commit(context.WithoutCancel(ctx), store.Batch{Add: adds}))
}

// countStorage adds what the checkpoints took for a while.
func (c *Core) countStorage(ctx context.Context, elapsed time.Duration) error {
	type place struct{ owner, session, project, baseModel string }
	sums := map[place]int64{}
	c.mu.Lock()
	now := c.cfg.now()
	for _, cp := range c.checkpoints {
		if expired(cp.ExpiresAt, now) {
			continue
		}
		p := place{owner: cp.Owner, baseModel: cp.BaseModel}
		if r := c.runs[cp.RunID]; r != nil {
			p.session, p.project = r.SessionID, r.project()
		}
		sums[p] += cp.Size
	}
	c.mu.Unlock()
	var b store.Batch
	for p, size := range sums {
		b.Add = append(b.Add, c.usage(p.owner, p.session, p.project, p.baseModel, UsageStorageByteSecs, int64(float64(size)*elapsed.Seconds())))
	}
	if len(b.Add) == 0 {
		return nil
	}
	return c.cfg.Store.Commit(ctx, b)
}

// Usage lists the caller's events that start in [from, to), and the user metadata of their sessions. The window is at most 14 days.
func (c *Core) Usage(ctx context.Context, owner string, from, to time.Time) ([]UsageEvent, map[string]json.RawMessage, error) {
	if !from.Before(to) || to.Sub(from) > 14*24*time.Hour {
		return nil, nil, invalidf("starting_on and ending_before: must be in order and at most 14 days apart")
	}
	records, err := c.cfg.Store.List(ctx, inUsage, owner, store.Range{From: from.Unix(), To: to.Unix()}, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("list usage: %w", err)
	}
	events := make([]UsageEvent, 0, len(records))
	sessions := map[string]json.RawMessage{}
	for _, r := range records {
		var u usageRecord
		if err := json.Unmarshal(r.Value, &u); err != nil {
			return nil, nil, fmt.Errorf("read usage: %w", err)
		}
		events = append(events, UsageEvent{
			Start: time.Unix(r.Rank, 0).UTC(), Owner: owner, SessionID: u.SessionID, ProjectID: u.ProjectID, BaseModel: u.BaseModel, Type: u.Type, Count: r.Count,
		})
		if _, known := sessions[u.SessionID]; known || u.SessionID == "" {
			continue
		}
		rec, err := c.cfg.Store.Get(ctx, inSessions, u.SessionID)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		var s *session
		if err == nil {
			s, err = decodeSession(rec)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read usage: %w", err)
		}
		if s.Owner == owner {
			sessions[s.ID] = s.UserMetadata
		}
	}
	return events, sessions, nil
}

// StorageUsage sums the caller's checkpoints by project; with a project, only that one.
func (c *Core) StorageUsage(_ context.Context, owner, project string) ([]StorageUsage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sums := map[string]StorageUsage{}
	now := c.cfg.now()
	for _, cp := range c.checkpoints {
		if cp.Owner != owner || expired(cp.ExpiresAt, now) {
			continue
		}
		u := StorageUsage{}
		if r := c.runs[cp.RunID]; r != nil {
			u.ProjectID = r.project()
		}
		if project != "" && u.ProjectID != project {
			continue
		}
		u.Checkpoints, u.Bytes = sums[u.ProjectID].Checkpoints+1, sums[u.ProjectID].Bytes+cp.Size
		sums[u.ProjectID] = u
	}
	list := make([]StorageUsage, 0, len(sums))
	for _, id := range sortedKeys(sums) {
		list = append(list, sums[id])
	}
	return list, nil
}
