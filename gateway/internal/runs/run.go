package runs

import (
	"context"
	"encoding/json"
	"time"
)

// LoRAConfig is the shape of an adapter.
type LoRAConfig struct {
	Rank         int     // a power of two, 1 … 512, at most the model's limit
	Seed         *uint64 // of the initial weights; nil = one is drawn, journalled and shown
	TrainAttn    bool
	TrainMLP     bool
	TrainUnembed bool
}

// NewRun asks for a run with fresh weights.
type NewRun struct {
	Owner        string
	SessionID    string
	ModelSeq     int64  // 0, 1, 2, … within the session
	BaseModel    string // a served name or alias
	LoRA         LoRAConfig
	UserMetadata json.RawMessage // a JSON object or nil
	Optimizer    string          // "" or "adamw"; anything else is refused
}

// NewRunFromCheckpoint asks for a run whose weights come from a training checkpoint.
type NewRunFromCheckpoint struct {
	Owner         string
	AccessOwner   string // whose private checkpoints may be read too, resolved by the front end from an access token; "" = none
	SessionID     string
	ModelSeq      int64
	Path          string // tinker://RUN/weights/NAME
	WithOptimizer bool   // restore Adam's moments and step count
	BaseModel     string // "" = the checkpoint's; else a name of the same served model
	UserMetadata  json.RawMessage
	Optimizer     string // "" or "adamw"
}

// Submitted answers an accepted operation.
type Submitted struct {
	RequestID string
	RunID     string // the run it belongs to; "" for sampling
}

// RunInfo describes a run, live or not.
type RunInfo struct {
	ID              string
	SessionID       string
	Owner           string
	BaseModel       string // the name the client used
	ServedModel     string // the configured name
	TokenizerID     string
	Architecture    string // "" until the backend has been seen
	LoRA            LoRAConfig
	Optimizer       string // "adamw"
	UserMetadata    json.RawMessage
	CreatedAt       time.Time
	LastRequest     time.Time
	Live            bool   // its adapter is in a backend (or is about to be)
	Corrupted       bool   // its state was lost
	CorruptedReason string // why
	LastCheckpoint  *CheckpointInfo
	LastSampler     *CheckpointInfo
}

// RunStatus is how the training of a live run stands.
type RunStatus struct {
	RunInfo
	Step            int64
	Version         int64
	Queued          int     // operations accepted and not finished
	LastLoss        float64 // loss:sum of the last forward_backward; NaN before
	GradientNorm    float64 // of the last optim_step; NaN before
	AdapterNorm     float64 // after the last optim_step; NaN before
	TokensPerSecond float64 // trained, over the last minute
	TrainedTokens   int64
}

// CreateRun makes a run; the outcome has a CreatedRun. KindForbidden for an unknown or foreign session.
func (c *Core) CreateRun(ctx context.Context, req NewRun) (Submitted, error) {
	return Submitted{}, errNotYet
}

// CreateRunFromCheckpoint makes a run from a checkpoint; the outcome has a LoadedWeights. KindNotFound for a checkpoint that does not exist.
func (c *Core) CreateRunFromCheckpoint(ctx context.Context, req NewRunFromCheckpoint) (Submitted, error) {
	return Submitted{}, errNotYet
}

// UnloadRun ends a run after its queued operations and frees its adapter; checkpoints stay. The outcome has an UnloadedRun.
func (c *Core) UnloadRun(ctx context.Context, owner, runID string) (Submitted, error) {
	return Submitted{}, errNotYet
}

// Run describes one run.
func (c *Core) Run(ctx context.Context, owner, runID string, scope Scope) (RunInfo, error) {
	return RunInfo{}, errNotYet
}

// RunQuery selects runs.
type RunQuery struct {
	Scope     Scope
	ProjectID string // "" = all
	Page      Page   // default 20
}

// Runs lists runs, newest first, with the number there are in all.
func (c *Core) Runs(ctx context.Context, owner string, q RunQuery) ([]RunInfo, int, error) {
	return nil, 0, errNotYet
}

// RunStatuses tells how the caller's live and corrupted runs of sessions that have not ended stand, oldest first.
func (c *Core) RunStatuses(ctx context.Context, owner string) ([]RunStatus, error) {
	return nil, errNotYet
}
