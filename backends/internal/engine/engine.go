// Package engine is a backend over one model: it implements plugins.Backend. It keeps the operations of every run in order, fuses what is ready into clock cycles, keeps the versions of
// adapters, samples with continuous batching between the steps of training, and reads and writes checkpoints. It knows tokens and floats, no text and no HTTP; which device it runs on is chosen by
// its configuration.
//
// One goroutine, locked to an OS thread, owns the home device (see loop), where adapters lie; it alone decides what passes run, on which replicas of the model (see replica). The methods of Backend check a request, put it
// into the books under the mutex, wake that goroutine, and wait for the answer. Long host work (reading and writing checkpoints) happens on goroutines of its own between two visits to the device.
//
// Nothing here may change bits: how operations are fused, cut and interleaved with sampling decides when a result comes, never what it is.
package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/constraint"
)

// Options make an engine into a program.
type Options struct {
	Plugin   string // name of the program: "single"
	Version  string // of the program
	Registry model.Registry
	// OpenDevice opens the device that a configuration names.
	OpenDevice func(Config) (tensor.Device, error)
	Log        *slog.Logger // nil: slog.Default
	// Patience and Lost are for ranks that hang or panic: the process should end then. See parallel.Options. With one device there are none.
	Patience time.Duration
	Lost     func(error)
}

// Engine implements plugins.Backend. Make it with New and end it with Close.
type Engine struct {
	options Options
	bootID  string

	quit    chan struct{} // closed when the device goroutine takes no more calls
	stopped chan struct{} // closed when it has ended
	closed  error         // of closing the device; written before stopped is closed
	// restAfter is how long nothing is trained or freed before memory is given back.
	restAfter time.Duration
	// interval is how long training may keep the device before the sampler gets a turn.
	interval time.Duration
	turn     time.Duration // how long its turn lasts
	openFor  time.Duration // see the constant
	visit    int           // bytes, see visitBytes
	// diskPause is how long what waits for the disk waits before it is tried again.
	diskPause time.Duration
	// openingPace is the time between two reports that devices are being opened.
	openingPace time.Duration

	// mu guards the books: everything below, and the fields of run, version and request that say so. It is never held during a device call.
	mu      sync.Mutex
	wake    *sync.Cond // something for the device goroutine to do
	closing bool
	loading bool    // Load was called
	parked  bool    // the device goroutine has nothing to do
	loaded  *loaded // nil until Load has succeeded

	calls      []func()        // for the device goroutine, between two device steps
	runs       map[string]*run // by the gateway's id
	order      []*run          // every run, in the order of their numbers
	lastRun    int64           // number of the run made last
	live       map[*version]struct{}
	dead       []*version // without holders, to be freed by the device goroutine
	bare       []*version // whose moments nobody needs any more, to be freed likewise
	deadRuns   []*run     // deleted, their accumulators to be freed
	requests   map[string]*request
	waiting    waitingRoom // for a place among running
	running    []*sequence
	heldUp     int            // sequences that wait for their reader
	stale      int            // parked sequences that have ended, whose pages are to be given back
	background sync.WaitGroup // host work of saves and loads

	cycle    cycle    // the newest; the device goroutine's
	cycling  bool     // its passes and steps are under way; the device goroutine's
	deferred []func() // calls that wait for its end; the device goroutine's
	lonely   []*run   // whose next pass has a cycle to come for itself, see putOff; the device goroutine's
	pace     pace     // the device goroutine's
	turns    turns    // the device goroutine's
	trainers trainers // the device goroutine's
	bounds   bool     // the sampler's newest step had others to consider, see boundStep; the device goroutine's

	// Used again in every step of the sampler; the device goroutine's.
	chunks  []chunk
	resting []chunk
	parts   []part
	ranked  []ranked
	sampled []step
	held    []*spillable
	step    int64   // number of the sampler's newest step; the device goroutine's
	tag     float64 // of the pass that was planned last, see plan; the device goroutine's

	lastMade map[string]int64 // by key: the newest cycle that computed an adapter's first weights for it; guarded by mu

	counters counters
}

// loaded is what Load makes. It is not changed afterwards, but for what belongs to the device goroutine: the plan and what is measured, and the bounds of passes.
type loaded struct {
	config     Config
	section    json.RawMessage // that config was read from; the device goroutine's
	device     tensor.Device   // the home device: adapters are there, the engine's goroutine alone calls it
	homes      homes           // it and those of other memories
	model      *model.Model    // any rank's, for what is the same on all
	files      modelFiles      // that the models are loaded from
	whole      []*model.Model  // that are not cut, each at a home
	weights    int64           // bytes of all models
	weightsAt  []int64         // the same at each home
	places     []lora.Place    // of the packed matrices of adapters
	cuts       [][]lora.Part   // of the replicas that train, by rank; nil if they are not cut
	replicas   []*replica      // all of them
	training   []*replica      // those that train
	sampling   []*replica      // those that sample: the same ones, unless sampling has devices of its own
	info       plugins.ModelInfo
	name       string    // of the base model, for checkpoints
	spills     bool      // there is a folder that adapters can go to
	planned    bool      // its devices are not there: see PlanMemory
	lastTurn   time.Time // end of the sampler's last turn
	adapters   *residency
	vocabulary int
	rules      *constraint.Compiler
	plan       memoryPlan
	memory     *budget
	memories   []*budget // of each home
	measured   map[measurement]model.Memory
	bound      passBound
	passing    bool         // training passes are under way
	running    atomic.Int32 // replicas that have not ended theirs
	lastPass   time.Time    // when the last ones were begun
	trimmed    time.Time    // when devices last gave back what they kept of freed memory
	deleted    int64        // bytes of deleted adapters since
}

// New makes an engine and starts its device goroutine.
func New(o Options) *Engine {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		panic(fmt.Sprintf("engine: no random numbers: %v", err)) // crypto/rand documents that this cannot happen
	}
	e := &Engine{options: o, interval: samplerInterval, turn: turn, restAfter: restAfter, openFor: openFor, visit: visitBytes, diskPause: diskPause, openingPace: openingPace, bootID: hex.EncodeToString(id[:]), quit: make(chan struct{}), stopped: make(chan struct{}), waiting: newWaitingRoom(), trainers: trainers{window: trainsFor}, lastMade: map[string]int64{}, runs: map[string]*run{}, live: map[*version]struct{}{}, requests: map[string]*request{}}
	e.wake = sync.NewCond(&e.mu)
	e.counters.progressed(time.Now())
	go e.loop()
	return e
}

// log gives the logger. The default is asked for when it is needed: a plugin sets it after it has made its engine.
func (e *Engine) log() *slog.Logger {
	if e.options.Log != nil {
		return e.options.Log
	}
	return slog.Default()
}

// Info tells what this process is.
func (e *Engine) Info(context.Context) (plugins.Info, error) {
	return plugins.Info{Plugin: e.options.Plugin, Version: e.options.Version, BootID: e.bootID}, nil
}

// Close ends all work (what is not finished fails with KindUnavailable), frees the device and returns when the device goroutine has ended, with the device's complaint about memory that was not freed. It may
// be called more than once.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closing = true
	e.wake.Broadcast()
	e.mu.Unlock()
	<-e.stopped
	return e.closed
}

// accept gives what was loaded, or the reason why no work is taken now. The caller holds mu.
func (e *Engine) accept() (*loaded, error) {
	switch {
	case e.closing:
		return nil, errClosed
	case e.loaded == nil:
		return nil, &plugins.Error{Kind: plugins.KindUnavailable, Message: "no model is loaded yet"}
	}
	return e.loaded, nil
}

// call has f run on the device goroutine between two device steps, and tells whether it will: not when the engine closes first.
func (e *Engine) call(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return false
	}
	e.calls = append(e.calls, f)
	e.wake.Signal()
	return true
}

// withRoom makes a call of f, which takes memory for adapters, and of decide with its outcome. What the runs of a cycle hold they give back by its end: when f finds no room for what they hold, it is called again then.
// So it is after a while when the disk takes no adapters that would have to be moved out, unless the engine closes. f must leave nothing behind where it fails.
func (e *Engine) withRoom(f func() error, decide func(error)) func() {
	return func() {
		err := f()
		var held crowdedError
		if e.cycling && errors.As(err, &held) {
			e.deferred = append(e.deferred, e.withRoom(f, decide))
			return
		}
		if isStuck(err) && !e.isClosing() {
			time.AfterFunc(e.diskPause, func() {
				if !e.call(e.withRoom(f, decide)) {
					decide(errClosed)
				}
			})
			return
		}
		decide(err)
	}
}

// onDevice runs f on the device goroutine between two device steps and gives its error, or errClosed if the engine closes first. If there is no room for the adapters that f needs, that may be between two cycles, see withRoom.
func (e *Engine) onDevice(f func() error) error {
	done := make(chan error, 1)
	if !e.call(e.withRoom(f, func(err error) { done <- err })) {
		return errClosed
	}
	select {
	case err := <-done:
		return err
	case <-e.quit:
		select {
		case err := <-done:
			return err
		default:
			return errClosed
		}
	}
}
