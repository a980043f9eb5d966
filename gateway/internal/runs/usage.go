package runs

import (
	"context"
	"encoding/json"
	"time"
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

// Usage lists the caller's events that start in [from, to), and the user metadata of their sessions. The window is at most 14 days.
func (c *Core) Usage(ctx context.Context, owner string, from, to time.Time) ([]UsageEvent, map[string]json.RawMessage, error) {
	return nil, nil, errNotYet
}

// StorageUsage is what the checkpoints of one project take now.
type StorageUsage struct {
	ProjectID   string
	Checkpoints int
	Bytes       int64
}

// StorageUsage sums the caller's checkpoints by project; with a project, only that one.
func (c *Core) StorageUsage(ctx context.Context, owner, project string) ([]StorageUsage, error) {
	return nil, errNotYet
}
