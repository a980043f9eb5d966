package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// What is kept of what is over: the records of sessions and the audit for a stated time, usage by hour and session for a while, and then by day. It goes page by page, in the background.

// thinPage is how many records go at a time, and thinPages how many times in one sweep: so no sweep takes long, and what is overdue goes faster than it comes.
const (
	thinPage  = 500
	thinPages = 20
)

// thin deletes what need not be kept any more, and makes days of old hours.
func (c *Core) thin(ctx context.Context) error {
	now := c.cfg.now()
	var errs []error // what fails of one keeps nothing from the others
	if kept := c.cfg.SessionsKept; kept > 0 {
		_, err := c.overdue(ctx, recordsNext, now.Add(-kept), c.removeSession)
		errs = append(errs, err, c.removeStored(ctx, now.Add(-kept)))
	}
	if kept := c.cfg.AuditKept; kept > 0 {
		if err := c.eachOld(ctx, inAudit, now.Add(-kept).UnixNano(), c.removeRecords); err != nil {
			errs = append(errs, fmt.Errorf("delete old audit entries: %w", err))
		}
	}
	if err := c.thinPaces(ctx); err != nil {
		errs = append(errs, fmt.Errorf("delete old uses of tokens: %w", err))
	}
	if kept := c.cfg.UsageByHour; kept > 0 {
		day := now.UTC().Add(-kept).Truncate(24 * time.Hour)
		if err := c.eachOld(ctx, inUsage, day.Unix(), c.sumDays); err != nil {
			errs = append(errs, fmt.Errorf("sum old usage: %w", err))
		}
	}
	for _, s := range []shelf{c.responses(), c.directSequences()} {
		if err := c.thinShelf(ctx, s); err != nil {
			errs = append(errs, fmt.Errorf("delete what is old of one kind, a %s: %w", s.what, err))
		}
	}
	return errors.Join(errs...)
}

// eachOld has something done to the records of a collection, of all parents, whose rank is below a bound, and which are then gone, a page at a time.
func (c *Core) eachOld(ctx context.Context, collection string, before int64, do func(context.Context, []store.Record) error) error {
	pages := 0
	for after, first := "", true; ; first = false {
		parents, err := c.cfg.Store.Parents(ctx, collection, after, thinPage)
		if err != nil {
			return err
		}
		all := len(parents) < thinPage
		if first {
			parents = append([]string{""}, parents...) // that of a server without keys, which is never listed
		}
		for _, parent := range parents {
			for more := true; more; {
				var page []store.Record
				page, more, err = c.cfg.Store.Page(ctx, collection, parent, store.PageQuery{Range: store.Range{From: 0, To: before}, Limit: thinPage})
				if err != nil {
					return err
				}
				if len(page) == 0 {
					break
				}
				if err := do(ctx, page); err != nil {
					return err
				}
				if pages++; pages == thinPages {
					return nil // the next sweep goes on
				}
			}
		}
		if all {
			return nil
		}
		after = parents[len(parents)-1]
	}
}

func (c *Core) removeRecords(ctx context.Context, page []store.Record) error {
	var b store.Batch
	for _, rec := range page {
		b.Delete = append(b.Delete, store.RecordKey{Collection: rec.Collection, Key: rec.Key})
	}
	return c.cfg.Store.Commit(ctx, b)
}

// sumDays adds hours to the sums of their days, which have no sessions, and deletes them.
func (c *Core) sumDays(ctx context.Context, page []store.Record) error {
	var b store.Batch
	sums := map[string]*store.Record{}
	var order []string
	for _, rec := range page {
		var of usageRecord
		if err := json.Unmarshal(rec.Value, &of); err != nil {
			return fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		b.Delete = append(b.Delete, store.RecordKey{Collection: rec.Collection, Key: rec.Key})
		of.SessionID = ""
		day := time.Unix(rec.Rank, 0).UTC().Truncate(24 * time.Hour).Unix()
		key := strings.Join([]string{itoa(day), rec.Parent, of.ProjectID, of.BaseModel, string(of.Type)}, "\x1f")
		if sums[key] == nil {
			sums[key] = &store.Record{Collection: inUsageDays, Key: key, Parent: rec.Parent, Rank: day, Value: of.json()}
			order = append(order, key)
		}
		sums[key].Count += rec.Count
	}
	for _, key := range order {
		b.Add = append(b.Add, *sums[key])
	}
	return c.cfg.Store.Commit(ctx, b)
}

// removeSession deletes the records of a session that has been over for long, unless a run of it has a checkpoint, which could not be understood without them: then it is looked at again after as long a time.
func (c *Core) removeSession(ctx context.Context, s *session) error {
	c.saveMu.Lock()
	defer c.saveMu.Unlock()
	ids := make([]string, len(s.runs))
	for i, r := range s.runs {
		ids[i] = r.ID
	}
	var b store.Batch
	forget, err := c.forgetMetricValues(ctx, &b, ids)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if c.sessions[s.ID] != nil { // somebody has just asked for it
		c.mu.Unlock()
		return nil
	}
	if len(c.lists.bySession[s.ID]) > 0 {
		b = store.Batch{Put: []store.Record{{Collection: inRetired, Key: s.ID, Parent: recordsNext, Rank: c.cfg.now().UnixNano()}}}
		forget = func() {}
	} else {
		c.removed[s.ID] = c.cfg.now()
		b.Delete = append(b.Delete, store.RecordKey{Collection: inSessions, Key: s.ID}, store.RecordKey{Collection: inRetired, Key: s.ID})
		for _, r := range s.runs {
			b.Delete = append(b.Delete, store.RecordKey{Collection: inOwned, Key: r.ID}, store.RecordKey{Collection: inProjects, Key: r.ID})
			b.DeleteUnder = append(b.DeleteUnder, seriesOf(r.ID)...)
		}
		for _, collection := range []string{inRuns, inSamplers, inTexts} {
			b.DeleteUnder = append(b.DeleteUnder, store.ParentKey{Collection: collection, Parent: s.ID})
		}
	}
	c.mu.Unlock()
	if err := c.cfg.Store.Commit(ctx, b); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	forget()
	if !c.removed[s.ID].IsZero() {
		for _, id := range ids {
			c.changedOf(s.Owner, id, changedRun)
		}
	}
	return nil
}

// removeStored deletes the records of runs without a session whose checkpoints are gone.
func (c *Core) removeStored(ctx context.Context, before time.Time) error {
	c.saveMu.Lock()
	defer c.saveMu.Unlock()
	var b store.Batch
	var ids []string
	c.mu.Lock()
	for id, r := range c.runs {
		if r.State == stateStored && r.session == nil && r.SessionID == "" && r.CreatedAt.Before(before) && len(c.lists.byRun[id]) == 0 && !c.copying[id] && len(b.Delete) < 3*thinPage {
			b.Delete = append(b.Delete, store.RecordKey{Collection: inRuns, Key: id}, store.RecordKey{Collection: inOwned, Key: id}, store.RecordKey{Collection: inProjects, Key: id})
			b.DeleteUnder = append(b.DeleteUnder, seriesOf(id)...)
			ids = append(ids, id)
		}
	}
	c.mu.Unlock()
	if len(b.Delete) == 0 {
		return nil
	}
	forget, err := c.forgetMetricValues(ctx, &b, ids)
	if err != nil {
		return err
	}
	if err := c.cfg.Store.Commit(ctx, b); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	forget()
	for _, id := range ids {
		r := c.runs[id]
		c.changed(r, changedRun)
		delete(c.runs, id)
		c.recount(r)
	}
	return nil
}
