package runs

import (
	"context"
	"encoding/json"
	"fmt"
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
}

// audit is an entry to be added to a batch.
func (c *Core) audit(owner string, e AuditEntry) store.Record {
	e.Time = c.cfg.now().UTC()
	n := c.audits.Add(1)
	return store.Record{Collection: inAudit, Key: itoa(e.Time.UnixNano()) + "-" + itoa(n), Parent: owner, Rank: e.Time.UnixNano(), Value: mustJSON(e)}
}

// Audit lists the caller's entries of one day (UTC), or of the last 30 days if day is zero, sorted by time. eventType is "all", "checkpoints", "projects", "teams" or "organizations".
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
	records, err := c.cfg.Store.List(ctx, inAudit, owner, store.Range{From: from.UnixNano(), To: to.UnixNano()}, 0)
	if err != nil {
		return nil, fmt.Errorf("list audit entries: %w", err)
	}
	list := make([]AuditEntry, 0, len(records))
	for _, r := range records {
		var e AuditEntry
		if err := json.Unmarshal(r.Value, &e); err != nil {
			return nil, fmt.Errorf("read audit entry: %w", err)
		}
		if strings.HasPrefix(e.Event, prefix) {
			list = append(list, e)
		}
	}
	return list, nil
}
