package runs

import (
	"context"
	"time"
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

// Audit lists the caller's entries of one day (UTC), or of the last 30 days if day is zero, sorted by time. eventType is "all", "checkpoints", "projects", "teams" or "organizations".
func (c *Core) Audit(ctx context.Context, owner, eventType string, day time.Time) ([]AuditEntry, error) {
	return nil, errNotYet
}
