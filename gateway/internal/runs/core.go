package runs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
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
	// Outside tells after Lost whether somebody else ended the process, so that its end says nothing about the work that it had; nil = never.
	Outside func() bool
	// Leaving is closed when the process has been asked to end and waits until it is given back with Release, which says why; both nil where processes do not say so.
	Leaving <-chan struct{}
	Release func(reason string)

	slot *slot // whose process it is
}

// Backends gives the backends of the served models. The supervisor satisfies it.
type Backends interface {
	// Backend waits until a backend is ready, or ctx ends. It is named as in Model.Backends, or as its model, if that has only one. An error other than ctx's means that it has failed for good; its text has the
	// reason and the end of the process's stderr.
	Backend(ctx context.Context, name string) (Backend, error)
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
	Backends         []string // names of its backends, where it has several; empty: one, which is named as the model
	BackendsID       string   // another one when the configuration has other backends for it, or in another order
	// NewStopMatcher makes the recogniser of stop strings for one sequence; nil where the model has no tokenizer: then stop strings are refused.
	NewStopMatcher func(stops []string) StopMatcher
}

// Config is what a Core is made of. Zero durations and limits mean the defaults given here.
type Config struct {
	Store   store.Store
	DataDir string // checkpoints live in its folder "checkpoints"
	// Elsewhere has all folders that records name; nil = DataDir has them.
	Elsewhere Elsewhere
	Models    []Model
	Backends  Backends
	Logger    *slog.Logger // nil = slog.Default
	// Refuse says why new work for a model is not taken for now, which clients are told with KindUnavailable; nil = never.
	Refuse func(model string) error
	// Failed says why a model cannot be served until the server is started again, which callers are told with KindFailed, at once; nil = never. It must not wait.
	Failed func(model string) error
	// Idle says why the backend of a model does nothing for now, "" if it works; nil = it always does.
	Idle func(model string) string
	// Explained is told when the crashes of a backend's process had a cause that does not come again: work that is not run any more, and without which others have succeeded. It must return at once; nil = nobody is told.
	Explained func(backend string)
	// Status is what a backend has reported last, the zero Status if nothing; nil = nothing is known. It must not wait.
	Status func(backend string) plugins.Status

	SessionExpiry    time.Duration // of silence; four times as long for one with samples only that are not finished, never for one with other work; 300 s
	GapWait          time.Duration // how long a missing seq_id is waited for; 2 s
	SweepEvery       time.Duration // expiry of sessions and checkpoints; 10 s
	ResultsKept      time.Duration // results of a session that has ended; 10 min
	SamplesKept      time.Duration // results of its samples, which are the provenance of what is trained on them in other sessions; 24 h
	URLLifetime      time.Duration // of archive and file tokens; 15 min
	SessionsKept     time.Duration // records of a session that has ended, unless a run of it has a checkpoint; 0 = for ever
	AuditKept        time.Duration // 0 = for ever
	ResponsesKept    time.Duration // stored responses; 0 = none is stored
	UsageByHour      time.Duration // usage of so long ago is kept by day, without its sessions; 0 = never
	MaxSessions      int           // per owner: active ones; 10,000
	MaxSessionBytes  int64         // per owner: memory of active sessions with their runs, sampling sessions and metadata, by estimate; 64 MiB
	MaxCheckpoints   int           // per owner; 100,000
	MaxTextBytes     int64         // per owner: user metadata of checkpoints, which are in memory as long as these are; 64 MiB
	MaxResponseBytes int64         // per owner: stored responses; beyond it the oldest go; 1 GiB
	MaxSequenceBytes int64         // per owner: sequences of direct sampling that are kept to be trained on, for SamplesKept; beyond it the oldest go; 1 GiB
	MaxQueuedSamples int           // per owner: samples accepted and not finished; 20,000
	MaxQueuedBytes   int64         // over all owners: prompts of samples that are not finished; 256 MiB, and an equal part of it for each owner who comes when they are taken
	MaxRunningSample int           // requests given to each backend at a time, samples and direct ones apart; up to twice as many where owners who have few come late; 256
	MaxQueuedOps     int           // per run: operations accepted and not finished; 4,096
	MaxPassBytes     int64         // over all runs: data of passes that are not finished and held in memory; what is more is read from the journal when its turn comes; 1 GiB
	MaxHotSnapshots  int           // per run: versions pinned in the backend for unnamed samplers; older ones go to disk; 2
	MaxUnnamedBytes  int64         // per owner: files of unnamed samplers; beyond it those go that were unused for longest. 0 = no bound
	MaxFrozen        int           // per backend: saved adapters loaded in the backend for sampling at a time; 32
	PointEvery       time.Duration // a run's state is written for its recovery when its last writing is that long ago; 60 s
	PointOperations  int           // or that many operations; 50
	RebuildPatience  time.Duration // how long the rebuild of a run is tried again that fails for a reason that may pass, before the run is given up; 5 min
	DiskShare        float64       // of the time that such writing may take, over all runs; in (0, 1]; 0.1

	// Limits are what owners may have; SetLimits replaces them.
	Limits LimitTable

	Weights map[string]float64 // shares of owners in training tokens and in places for sampling; an owner that is not named has 1
	// SharePrefixes has the beginnings of prompts shared between owners; else neither CachedTokens nor the time tells one owner of another's prompts.
	SharePrefixes bool

	Now func() time.Time // the clock; nil = time.Now. Tests set it
}

func (cfg *Config) now() time.Time { return cfg.Now() }

// Core holds the state. Make one with Open.
//
// Everything in memory is guarded by mu, which is never held while the store, a backend or a file is waited for. What a client was promised is in the
// store before it is answered; the maps are a view of that.
type Core struct {
	cfg    Config
	log    *slog.Logger
	models []*model // in the configured order
	byName map[string]*model
	secret []byte // of this installation: signs tokens, makes ids from idempotency keys

	background func(func(context.Context)) // runs a function in a goroutine with a context that ends with Close
	workers    workers
	cancel     context.CancelFunc
	closed     chan struct{} // closed when Close begins
	wg         sync.WaitGroup
	usages     usageRecords
	audits     atomic.Int64 // makes keys of audit entries unique
	removing   turnstile    // of stored responses
	seriesMu   stripes      // orders the writing of a run's series
	metricsMu  stripes      // the same of what its client adds
	saveMu     turnstile    // orders the writing of session and run records, so that an older state never replaces a newer one

	draining     sync.Mutex // one drain after the other; taken before mu
	mu           sync.Mutex
	closing      bool
	sessions     map[string]*session
	runs         map[string]*run
	copying      map[string]bool // ids of runs that are being made by copies of checkpoints
	samplers     map[string]*sampler
	unnamed      map[string]int64       // bytes of the files of unnamed samplers whose sessions are active, by owner
	checkpoints  map[string]*checkpoint // by path
	futures      map[string]*future     // accepted and not complete, by request id
	lists        checkpointLists        // the same checkpoints
	names        map[string]Naming      // of sessions that are not in memory, as far as somebody has asked
	held         map[string]held        // by owner
	listings     map[string]*listing    // by owner
	saving       map[string]int64       // bytes of the user metadata of saves that are not finished, by owner
	replacing    map[string]bool        // paths of checkpoints in whose place a newer one is just being stored
	erasures     erasures
	intactFiles  map[string]fileState // files of checkpoints whose checksums were compared
	undescribed  descriptions
	deleted      map[string]time.Time   // recent deletions by owner, path and idempotency key
	removed      map[string]time.Time   // sessions whose records are being deleted, or were a moment ago
	unwritten    map[*snapshot]struct{} // versions of runs that could not be written: that is tried again
	owners       map[string]accepted    // samples accepted and not finished, by owner
	promptBytes  int64                  // of those of all owners
	passBytes    int64                  // of passes that are in memory
	limited      LimitTable
	meters       map[paceOf]*meter // of who has limits
	metricValues map[string]int64  // by owner: values of clients' own that are kept with all of its runs
	storing      map[string]int64  // bytes that saves which are not finished will take, by owner, by estimate
	disk         diskQueue
	listening    listeners
	released     bool // payloads of the journal, since it was compacted last
}

// Open loads the state and starts the background work. Runs of an earlier process are rebuilt, operations and samples that were accepted and not finished are
// run in their place. The store stays the caller's to close, after Close.
func Open(ctx context.Context, cfg Config) (*Core, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Core{
		cfg: cfg, log: cfg.Logger, byName: map[string]*model{}, closed: make(chan struct{}), workers: newWorkers(), saveMu: make(turnstile, 1), removing: make(turnstile, 1), seriesMu: newStripes(), metricsMu: newStripes(),
		sessions: map[string]*session{}, runs: map[string]*run{}, copying: map[string]bool{}, samplers: map[string]*sampler{}, unnamed: map[string]int64{}, checkpoints: map[string]*checkpoint{}, replacing: map[string]bool{}, intactFiles: map[string]fileState{},
		lists: newCheckpointLists(), names: map[string]Naming{}, held: map[string]held{}, saving: map[string]int64{}, listings: map[string]*listing{}, futures: map[string]*future{}, deleted: map[string]time.Time{}, removed: map[string]time.Time{}, unwritten: map[*snapshot]struct{}{}, owners: map[string]accepted{},
		limited: cfg.Limits, meters: map[paceOf]*meter{}, metricValues: map[string]int64{}, storing: map[string]int64{},
	}
	for i := range cfg.Models {
		m := newModel(cfg.Models[i])
		c.models = append(c.models, m)
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			if c.byName[name] != nil {
				return nil, fmt.Errorf("model name %q: is used twice", name)
			}
			c.byName[name] = m
		}
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	c.background = func(f func(context.Context)) {
		if !c.workers.give(f) {
			c.wg.Go(func() { c.workers.run(base, f) })
		}
	}
	pending, err := c.load(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	if err := errors.Join(c.loadMetricValues(ctx), c.loadPaces(ctx), c.loadDrains(ctx)); err != nil {
		cancel()
		return nil, fmt.Errorf("load state: %w", err)
	}
	histories, err := c.readHistories(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	if err := c.loadSeries(ctx); err != nil {
		cancel()
		return nil, err
	}
	known, err := c.loadCharges(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	c.mu.Lock()
	c.resume(pending, histories, known)
	c.erase() // what an earlier process did not come to
	c.start(c.sweepUntilClosed)
	c.watchPools()
	c.mu.Unlock()
	return c, nil
}

// complete fills in the defaults.
func (cfg *Config) complete() error {
	if cfg.Store == nil || cfg.Backends == nil || cfg.DataDir == "" {
		return errors.New("runs: a store, backends and a data directory are needed")
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	cfg.DataDir = dir
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	setDefault(&cfg.SessionExpiry, 300*time.Second)
	setDefault(&cfg.GapWait, 2*time.Second)
	setDefault(&cfg.SweepEvery, 10*time.Second)
	setDefault(&cfg.ResultsKept, 10*time.Minute)
	setDefault(&cfg.SamplesKept, 24*time.Hour)
	setDefault(&cfg.URLLifetime, 15*time.Minute)
	setDefault(&cfg.MaxSessions, 10_000)
	setDefault(&cfg.MaxSessionBytes, 64<<20)
	setDefault(&cfg.MaxCheckpoints, 100_000)
	setDefault(&cfg.MaxTextBytes, 64<<20)
	setDefault(&cfg.MaxResponseBytes, 1<<30)
	setDefault(&cfg.MaxSequenceBytes, 1<<30)
	setDefault(&cfg.MaxQueuedSamples, 20_000)
	setDefault(&cfg.MaxQueuedBytes, 256<<20)
	setDefault(&cfg.MaxRunningSample, 256)
	setDefault(&cfg.MaxQueuedOps, 4096)
	setDefault(&cfg.MaxPassBytes, 1<<30)
	setDefault(&cfg.MaxHotSnapshots, 2)
	setDefault(&cfg.MaxFrozen, 32)
	setDefault(&cfg.PointEvery, 60*time.Second)
	setDefault(&cfg.PointOperations, 50)
	setDefault(&cfg.RebuildPatience, 5*time.Minute)
	setDefault(&cfg.DiskShare, 0.1)
	return nil
}

func setDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// start runs f in a goroutine that Close waits for; after Close has begun it does nothing. mu is held.
func (c *Core) start(f func(context.Context)) {
	if !c.closing {
		c.background(f)
	}
}

// Close stops accepting work, ends what is in flight and waits for it. Accepted operations stay in the journal.
func (c *Core) Close(ctx context.Context) error {
	c.mu.Lock()
	if !c.closing {
		c.closing = true
		close(c.closed)
		for _, r := range c.runs {
			if r.gap != nil {
				r.gap.Stop()
			}
		}
	}
	c.mu.Unlock()
	c.cancel()
	done := make(chan struct{})
	go func() { c.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close: %w", ctx.Err())
	}
}

var errClosing = &Error{Kind: KindUnavailable, Message: "the server is stopping"}

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
