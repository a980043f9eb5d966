package runs

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// Backend is the running process that serves one base model.
type Backend struct {
	plugins.Backend
	BootID string            // identity of the process: adapters do not survive it
	Model  plugins.ModelInfo // what it loaded
	Lost   <-chan struct{}   // closed when the process is gone
	Reason func() string     // after Lost: why, with the end of its stderr
}

// Backends gives the backends of the served models. The supervisor satisfies it.
type Backends interface {
	// Backend waits until the model's backend is ready, or ctx ends. An error other than ctx's means that it has failed for good; its text has the
	// reason and the end of the process's stderr.
	Backend(ctx context.Context, model string) (Backend, error)
}

// StopMatcher recognises stop strings in the tokens of one sequence.
type StopMatcher interface {
	// Push takes the next generated token and tells whether the text so far now contains a stop string.
	Push(token int32) bool
}

// Model is one served base model.
type Model struct {
	Name             string   // the configured name
	Aliases          []string // further names that clients may use
	TokenizerID      string   // Hugging Face repository from which a client can load the tokenizer; "" = the name the client used
	ChatLatest       bool     // the plain name means the newest adapter of the caller's key, for OpenAI clients
	ExportNames      string   // "peft" or "tinker": names of the output head's tensors in saved adapters; "" = "peft"
	EndTokens        []int32  // the model's own end tokens: what stops a sample that names no stops
	MaxContextLength int      // prompt plus generated tokens; 0 = what the backend says once it is loaded
	// NewStopMatcher makes the recogniser of stop strings for one sequence; nil where the model has no tokenizer: then stop strings are refused.
	NewStopMatcher func(stops []string) StopMatcher
}

// Config is what a Core is made of. Zero durations and limits mean the defaults given here.
type Config struct {
	Store    store.Store
	DataDir  string // checkpoints live in its folder "checkpoints"
	Models   []Model
	Backends Backends
	Logger   *slog.Logger // nil = slog.Default

	SessionExpiry    time.Duration // without heartbeat; 300 s
	GapWait          time.Duration // how long a missing seq_id is waited for; 2 s
	SweepEvery       time.Duration // expiry of sessions and checkpoints; 10 s
	ResultsKept      time.Duration // results of a session that has ended; 10 min
	URLLifetime      time.Duration // of archive and file tokens; 15 min
	MaxQueuedSamples int           // per owner: samples accepted and not finished; 20,000
	MaxQueuedBytes   int64         // over all owners: prompts of samples that are not finished; 256 MiB
	MaxRunningSample int           // requests per model given to the backend at a time; 256
	MaxQueuedOps     int           // per run: operations accepted and not finished; 4,096
	MaxHotSnapshots  int           // per run: versions pinned in the backend for unnamed samplers; older ones go to disk; 2
	MaxFrozen        int           // per model: saved adapters loaded in the backend for sampling at a time; 32

	now func() time.Time // tests only
}

var errNotYet = errors.New("not implemented yet")

// Core holds the state. Make one with Open.
type Core struct{}

// Open loads the state and starts the background work. Runs of an earlier process are marked corrupted, samples that were accepted and not finished are
// run again. The store stays the caller's to close, after Close.
func Open(ctx context.Context, cfg Config) (*Core, error) { return nil, errNotYet }

// Close stops accepting work, ends what is in flight and waits for it. Accepted operations stay in the journal.
func (c *Core) Close(ctx context.Context) error { return errNotYet }

// Page is a piece of a list.
type Page struct {
	Limit  int // 0 = the method's default; at most 1,000
	Offset int
}

// Scope widens a list from what the caller owns to what the caller may read.
type Scope bool

// The scopes.
const (
	ScopeOwned      Scope = false
	ScopeAccessible Scope = true
)
