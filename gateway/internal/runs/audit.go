package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// AuditEntry is one thing that was done.
type AuditEntry struct {
	Time    time.Time
	Event   string // "checkpoint_created", "checkpoint_deleted", "checkpoint_expired", "checkpoint_published", "checkpoint_unpublished", "checkpoint_ttl_set", "checkpoint_copied", "checkpoint_downloaded", "project_assigned"
	RunID   string
	Path    string
	Purpose string
	Details map[string]any
	Count   int64 // how often it was done within the hour that began with the first time, which is Time; 0 = once
}

// audit is an entry to be added to a batch.
func (c *Core) audit(owner string, e AuditEntry) store.Record {
	e.Time = c.cfg.now().UTC()
	n := c.audits.Add(1)
	return store.Record{Collection: inAudit, Key: itoa(e.Time.UnixNano()) + "-" + itoa(n), Parent: owner, Rank: e.Time.UnixNano(), Value: mustJSON(e)}
}

// auditOften is an entry of what is done often, and counted by hour.
func (c *Core) auditOften(owner string, e AuditEntry) store.Record {
	e.Time = c.cfg.now().UTC()
	hour := e.Time.Truncate(time.Hour).UnixNano()
	return store.Record{Collection: inAudit, Key: strings.Join([]string{itoa(hour), owner, e.Event, e.Path, e.Purpose}, "\x1f"), Parent: owner, Rank: hour, Count: 1, Value: mustJSON(e)}
}

// maxAuditEntries bounds the entries of one answer.
const maxAuditEntries = 20_000

// Audit lists the caller's entries of one day (UTC), or of the last 30 days if day is zero, sorted by time. Where there are more than maxAuditEntries it lists the newest, and before them an entry "entries_left_out" whose Count says how many are missing. eventType is "all", "checkpoints", "projects", "teams" or "organizations".
func (c *Core) Audit(ctx context.Context, owner, eventType string, day time.Time) ([]AuditEntry, error) {
	prefix := ""
	switch eventType {
	case "", "all":
	case "checkpoints":
		prefix = "checkpoint_"
	case "projects":
		prefix = "project_"
	case "teams", "organizations":
		return []AuditEntry{}, nil // there are none
	default:
		return nil, invalidf("event_type %s: must be all, checkpoints, projects, teams or organizations", quote(eventType))
	}
	to := c.cfg.now().UTC().Add(time.Second)
	from := to.Add(-30 * 24 * time.Hour)
	if !day.IsZero() {
		from = day.UTC().Truncate(24 * time.Hour)
		to = from.Add(24 * time.Hour)
	}
	within := store.Range{From: from.Truncate(time.Hour).UnixNano(), To: to.UnixNano()} // those that are counted stand at the beginning of their hour
	list, left := []AuditEntry{}, int64(0)
	query := store.PageQuery{Range: within, Newest: true, Limit: 1000}
	for more := true; more; {
		var page []store.Record
		var err error
		if page, more, err = c.cfg.Store.Page(ctx, inAudit, owner, query); err != nil {
			return nil, fmt.Errorf("list audit entries: %w", err)
		}
		for _, r := range page {
			query.After = &store.Place{Rank: r.Rank, Key: r.Key}
			var e AuditEntry
			if err := json.Unmarshal(r.Value, &e); err != nil {
				return nil, fmt.Errorf("read audit entry: %w", err)
			}
			if e.Count = 0; r.Count > 1 {
				e.Count = r.Count
			}
			switch {
			case !strings.HasPrefix(e.Event, prefix) || e.Time.Before(from):
			case len(list) == maxAuditEntries:
				left++
			default:
				list = append(list, e)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b AuditEntry) int { return a.Time.Compare(b.Time) })
	if left > 0 {
		list = slices.Insert(list, 0, AuditEntry{Time: from, Event: "entries_left_out", Count: left})
	}
	return list, nil
}
