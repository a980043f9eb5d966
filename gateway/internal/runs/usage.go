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
	UsageStep            UsageType = "step"            // optimizer steps; in UsageByDay only
	UsageRequest         UsageType = "request"         // operations, sampling requests and direct requests that were finished; in UsageByDay only
)

// UsageEvent is the sum of one hour for one session, model and type; of what is long ago that of a day, for all sessions together.
type UsageEvent struct {
	Start     time.Time
	End       time.Time
	Owner     string
	SessionID string // "" where it belongs to no session, or to several
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

// oneMore is one more of what is counted by owner and model alone.
func (c *Core) oneMore(owner, model string, kind UsageType) store.Record {
	return c.usage(owner, "", "", model, kind, 1)
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
	c.mu.Lock()
	project := s.session.ProjectID
	c.mu.Unlock()
	return c.samplingUsage(s.Owner, s.SessionID, project, s.BaseModel, len(j.req.Prompt), r.Prompt.CachedTokens, int(r.sampled()))
}

// sampled counts the tokens of all sequences.
func (r *SampleResult) sampled() int64 {
	n := int64(0)
	for _, q := range r.Sequences {
		n += int64(len(q.Tokens))
	}
	return n
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

// countGeneration stores what a direct request used and told, also of one that was broken off. id is of no other.
func (c *Core) countGeneration(ctx context.Context, owner string, t Target, id string, prompt int, k tokenCounter) {
	if !k.started {
		return
	}
	session, project := "", ""
	c.mu.Lock()
	if t.RunID != "" {
		session, project = c.whereabouts(t.RunID)
	}
	spent := c.spend(owner, paceSampled, int64(k.sampled))
	c.mu.Unlock()
	adds := c.samplingUsage(owner, session, project, t.ServedModel, prompt, k.cached, k.sampled)
	adds = append(adds, spent...)
	adds = append(adds, c.oneMore(owner, t.ServedModel, UsageRequest))
	batch := store.Batch{Add: adds}
	stored := c.sampledOf(t.RunID, id, k.entropies, &batch)
	err := c.cfg.Store.Commit(context.WithoutCancel(ctx), batch)
	c.logged("usage could not be stored", err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		stored()
	}
	c.used(owner)
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
		p.session, p.project = c.whereabouts(cp.RunID)
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

// maxUsageEvents bounds the events of one answer.
const maxUsageEvents = 50_000

// Usage lists the caller's events that start in [from, to), and the user metadata of their sessions. The window is at most 14 days. Where there are more than maxUsageEvents, sessions are summed; and metadata that are more
// than one answer has are left out, those of the latest sessions first.
func (c *Core) Usage(ctx context.Context, owner string, from, to time.Time) ([]UsageEvent, map[string]json.RawMessage, error) {
	if !from.Before(to) || to.Sub(from) > 14*24*time.Hour {
		return nil, nil, invalidf("starting_on and ending_before: must be in order and at most 14 days apart")
	}
	events := []UsageEvent{}
	index := map[UsageEvent]int{} // once they are summed: where, by what they are of
	sum := func(e UsageEvent) {
		count := e.Count
		e.SessionID, e.Count = "", 0
		at, known := index[e]
		if !known {
			at = len(events)
			index[e], events = at, append(events, e)
		}
		events[at].Count += count
	}
	for _, part := range []struct {
		collection string
		length     time.Duration
	}{{inUsageDays, 24 * time.Hour}, {inUsage, time.Hour}} {
		query := store.PageQuery{Range: store.Range{From: from.Unix(), To: to.Unix()}, Limit: 1000}
		for more := true; more; {
			var page []store.Record
			var err error
			if page, more, err = c.cfg.Store.Page(ctx, part.collection, owner, query); err != nil {
				return nil, nil, fmt.Errorf("list usage: %w", err)
			}
			for _, r := range page {
				query.After = &store.Place{Rank: r.Rank, Key: r.Key}
				var u usageRecord
				if err := json.Unmarshal(r.Value, &u); err != nil {
					return nil, nil, fmt.Errorf("read usage: %w", err)
				}
				if u.Type == UsageStep || u.Type == UsageRequest {
					continue // the Tinker API has none
				}
				start := time.Unix(r.Rank, 0).UTC()
				e := UsageEvent{Start: start, End: start.Add(part.length), Owner: owner, SessionID: u.SessionID, ProjectID: u.ProjectID, BaseModel: u.BaseModel, Type: u.Type, Count: r.Count}
				switch {
				case len(index) > 0:
					sum(e)
				case len(events) == maxUsageEvents:
					all := append(events, e)
					events = nil
					for _, one := range all {
						sum(one)
					}
				default:
					events = append(events, e)
				}
			}
		}
	}
	sessions, err := c.metadataOf(ctx, owner, events)
	if err != nil {
		return nil, nil, fmt.Errorf("read usage: %w", err)
	}
	return events, sessions, nil
}

// metadataOf reads the user metadata of the sessions of events, up to what one answer has.
func (c *Core) metadataOf(ctx context.Context, owner string, events []UsageEvent) (map[string]json.RawMessage, error) {
	sessions := map[string]json.RawMessage{}
	bytes := 0
	for _, e := range events {
		if _, known := sessions[e.SessionID]; known || e.SessionID == "" {
			continue
		}
		rec, err := c.cfg.Store.Get(ctx, inSessions, e.SessionID)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s, err := decodeSession(rec)
		if err != nil {
			return nil, err
		}
		texts := sessionTexts{UserMetadata: s.UserMetadata}
		if s.Apart {
			if err := c.textsApart(ctx, s.ID, &texts); err != nil {
				return nil, err
			}
		}
		if bytes += len(texts.UserMetadata); bytes > maxListBytes {
			break
		}
		if s.Owner == owner {
			sessions[s.ID] = texts.UserMetadata
		}
	}
	return sessions, nil
}

// StorageUsage sums the caller's checkpoints by project; with a project, only that one.
func (c *Core) StorageUsage(_ context.Context, owner, project string) ([]StorageUsage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sums := map[string]StorageUsage{}
	now := c.cfg.now()
	for _, cp := range c.lists.byOwner[owner] {
		if expired(cp.ExpiresAt, now) {
			continue
		}
		u := StorageUsage{}
		_, u.ProjectID = c.whereabouts(cp.RunID)
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
