package runs

import (
	"context"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// OperationKind names what a future is of.
type OperationKind string

// The kinds of operation.
const (
	OpCreateRun           OperationKind = "create_model"
	OpUnloadRun           OperationKind = "unload_model"
	OpForwardBackward     OperationKind = "forward_backward"
	OpOptimStep           OperationKind = "optim_step"
	OpSaveWeights         OperationKind = "save_weights"
	OpSaveForSampler      OperationKind = "save_weights_for_sampler"
	OpSaveWeightsExternal OperationKind = "save_weights_external"
	OpLoadWeights         OperationKind = "load_weights"
	OpSample              OperationKind = "sample"
)

// Outcome is a completed future: Failure is set, or the one result that belongs to Kind.
type Outcome struct {
	RequestID string
	Kind      OperationKind
	Failure   *Failure

	CreatedRun      *CreatedRun            // OpCreateRun
	UnloadedRun     *UnloadedRun           // OpUnloadRun
	ForwardBackward *ForwardBackwardResult // OpForwardBackward
	OptimStep       *plugins.OptimStepResult
	Saved           *SavedWeights  // OpSaveWeights, OpSaveWeightsExternal, OpSaveForSampler with a name
	SavedSampler    *SavedSampler  // OpSaveForSampler without a name
	Loaded          *LoadedWeights // OpLoadWeights
	Sample          *SampleResult  // OpSample
}

// CreatedRun names the new run.
type CreatedRun struct{ RunID string }

// UnloadedRun names the run that ended.
type UnloadedRun struct{ RunID string }

// ForwardBackwardResult is the backend's result with the shape of every output.
type ForwardBackwardResult struct {
	plugins.ForwardBackwardResult
	K []int // per datum 0 for shape (N), else the K of shape (N, K)
}

// SavedWeights names the checkpoint.
type SavedWeights struct {
	Path string
	Size int64 // bytes on disk
}

// SavedSampler names the sampling session of an unnamed save.
type SavedSampler struct{ SamplerID string }

// LoadedWeights names what was loaded and where.
type LoadedWeights struct{ Path, RunID string }

// Wait returns the outcome of a future, waiting for it at most hold (0 = do not wait). ErrPending when it is not there by then; KindNotFound for an unknown
// or foreign id; ctx's error when ctx ends first. A result stays readable until its session has ended.
func (c *Core) Wait(ctx context.Context, owner, requestID string, hold time.Duration) (*Outcome, error) {
	return nil, errNotYet
}

// Completion is one finished future of a sampling session.
type Completion struct {
	RequestID string
	Failed    bool
	Size      int64 // bytes of the stored result, about what it takes on the wire; 0 when Failed
}

// CompletionQuery asks for the news of one client of a sampling session.
type CompletionQuery struct {
	Owner     string
	SamplerID string
	Clone     int64         // seq_id div 1e9 of that client
	Cursor    int64         // of the last answer; 0 at first. Everything up to it is acknowledged
	Hold      time.Duration // how long to wait for news
}

// Completions returns what has finished after the cursor, at once if there is anything, and the new cursor. Without news until the hold has passed: an empty
// list and the old cursor. A cursor of an earlier process gets everything again.
func (c *Core) Completions(ctx context.Context, q CompletionQuery) ([]Completion, int64, error) {
	return nil, 0, errNotYet
}

// CancelFuture stops a sample that nobody waits for any more; its future fails. Unknown, finished and foreign ids, and futures that are not samples, are left alone.
func (c *Core) CancelFuture(ctx context.Context, owner, requestID string) error { return errNotYet }
