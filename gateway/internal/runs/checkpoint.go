package runs

import (
	"context"
	"time"
)

// CheckpointInfo describes a checkpoint.
type CheckpointInfo struct {
	Path          string // tinker://RUN/KIND/NAME
	RunID         string
	Kind          CheckpointKind
	Name          string
	Owner         string
	BaseModel     string // the name the client used
	ServedModel   string
	LoRA          LoRAConfig
	CreatedAt     time.Time
	ExpiresAt     *time.Time
	Size          int64
	Public        bool
	Step          int64
	WithOptimizer bool
	UserMetadata  map[string]string
}

// ID is the last two parts of the path.
func (i CheckpointInfo) ID() string { return string(i.Kind) + "/" + i.Name }

// WeightsInfo describes a checkpoint that the caller may read (its own, AccessOwner's, or public).
func (c *Core) WeightsInfo(ctx context.Context, owner, accessOwner, path string) (CheckpointInfo, error) {
	return CheckpointInfo{}, errNotYet
}

// RunCheckpoints lists the checkpoints of a run, oldest first: all of an own run, the public ones of another.
func (c *Core) RunCheckpoints(ctx context.Context, owner, runID string) ([]CheckpointInfo, error) {
	return nil, errNotYet
}

// Checkpoints lists the caller's checkpoints, newest first, with the number there are in all. Page.Limit is 100 by default. Kinds nil = all.
func (c *Core) Checkpoints(ctx context.Context, owner string, page Page, kinds []CheckpointKind) ([]CheckpointInfo, int, error) {
	return nil, 0, errNotYet
}

// DeleteCheckpoint deletes a checkpoint and its files. KindNotFound if it does not exist or is not the caller's, except that a repeat with the same idempotency key succeeds.
func (c *Core) DeleteCheckpoint(ctx context.Context, owner, path, idempotencyKey string) error {
	return errNotYet
}

// PublishCheckpoint makes a checkpoint readable for everybody, or private again. Repeats succeed.
func (c *Core) PublishCheckpoint(ctx context.Context, owner, path string, public bool) error {
	return errNotYet
}

// SetCheckpointTTL sets when a checkpoint is deleted, counted from now; nil = never.
func (c *Core) SetCheckpointTTL(ctx context.Context, owner, path string, ttlSeconds *int64) error {
	return errNotYet
}

// CopyCheckpoint asks for a copy of a checkpoint in a run of its own: that of SessionID and ModelSeq, or a new one in a project.
type CopyCheckpoint struct {
	Owner          string
	AccessOwner    string
	Source         string
	ProjectID      string // either this
	SessionID      string // or these two
	ModelSeq       int64
	TTLSeconds     *int64
	IdempotencyKey string
}

// CopyCheckpoint copies and describes the copy; the same idempotency key copies once.
func (c *Core) CopyCheckpoint(ctx context.Context, req CopyCheckpoint) (CheckpointInfo, error) {
	return CheckpointInfo{}, errNotYet
}

func expired(at *time.Time, now time.Time) bool { return at != nil && !at.After(now) }
