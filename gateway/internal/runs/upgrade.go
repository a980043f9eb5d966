package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// upgradedLists says that every record has its places in the lists that older versions did not keep: the sessions that are not retired, the runs of owners and of projects, the schedule of records.
const upgradedLists = "lists"

// upgrade brings the records of older versions to where this one looks for them. What a crash cuts off is done again.
func (c *Core) upgrade(ctx context.Context) error {
	if _, err := c.cfg.Store.Get(ctx, inUpgrades, upgradedLists); err == nil || !errors.Is(err, store.ErrNotFound) {
		return err
	}
	var b store.Batch
	put := func(records ...store.Record) error {
		const enough = 1000
		if b.Put = append(b.Put, records...); len(b.Put) < enough {
			return nil
		}
		full := b
		b = store.Batch{}
		return c.cfg.Store.Commit(ctx, full)
	}
	projects := map[string]string{} // of sessions
	err := c.cfg.Store.All(ctx, inSessions, func(rec store.Record) error {
		s := &session{}
		if err := json.Unmarshal(rec.Value, &s.sessionRecord); err != nil {
			return fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		if s.ProjectID != "" {
			projects[s.ID] = s.ProjectID
		}
		switch {
		case !s.Retired:
			return put(store.Record{Collection: inLive, Key: s.ID})
		case s.Forgotten && s.EndedAt != nil:
			return put(store.Record{Collection: inRetired, Key: s.ID, Parent: recordsNext, Rank: s.EndedAt.UnixNano()})
		}
		return nil
	})
	if err != nil {
		return err
	}
	inProject := map[string]string{} // runs
	err = c.cfg.Store.All(ctx, inRuns, func(rec store.Record) error {
		r, err := c.decodeRun(rec.Value)
		if err != nil {
			return fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		if project := r.ProjectID + projects[r.SessionID]; project != "" { // it has no session, or no project of its own
			inProject[r.ID] = project
			return put(r.listed(), r.inProject(project))
		}
		return put(r.listed())
	})
	if err != nil {
		return err
	}
	err = c.cfg.Store.All(ctx, inCheckpoints, func(rec store.Record) error {
		cp := &checkpoint{}
		if err := json.Unmarshal(rec.Value, &cp.checkpointRecord); err != nil {
			return fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		if cp.Project = inProject[cp.RunID]; cp.Project == "" {
			return nil
		}
		return put(cp.record())
	})
	if err != nil {
		return err
	}
	b.Put = append(b.Put, store.Record{Collection: inUpgrades, Key: upgradedLists})
	return c.cfg.Store.Commit(ctx, b)
}
