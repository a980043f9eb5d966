// Package fake is a small but real backend without cgo, for tests of everything above the contract: a language model of three matrices with LoRA on each, exact gradients,
// AdamW, every sampling option, checkpoints in the contract's format. Nothing is a canned answer: losses fall under training, the sampler's
// log-probabilities are the trainer's, saved is loaded bit for bit. Its configuration can also make operations slow or go wrong.
//
// It can be used inside a test's own process (New) or as a plugin program (backends/fake). It knows the contract only.
package fake

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/constraint"
)

// Version is what Info says.
const Version = "1"

// Options change how a fake lives in its process. The zero value is right for a plugin program.
type Options struct {
	// Exit is called by the fault "crash"; nil means os.Exit. A test in the same process passes a function that calls Lose.
	Exit func(code int)
	// Say gives the tokens of a sequence in place of drawn ones, and its first stop token after them; nil, or nothing from it, leaves the draw. A test of what is made of an answer
	// in the same process sets it.
	Say func(req *plugins.SampleRequest, sequence int) []int32
}

// Backend implements plugins.Backend.
type Backend struct {
	options Options
	bootID  string
	lost    chan struct{} // closed by Lose
	lose    sync.Once
	starved atomic.Bool // see Starve
	small   atomic.Bool // see Shrink

	config Config // written by Load before loaded is set
	model  *model
	info   plugins.ModelInfo
	name   string
	dir    string
	rules  *constraint.Compiler

	mu        sync.Mutex
	loading   bool
	loaded    bool
	working   int // queues and samples that run
	adapters  map[string]*adapter
	samples   map[string]*sampling
	runs      map[string]int64 // by operation, for faults
	counters  plugins.Status
	lastAlive time.Time
}

var _ plugins.Backend = (*Backend)(nil)

// New makes a backend that has not been loaded.
func New(o Options) *Backend {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	if o.Exit == nil {
		o.Exit = os.Exit
	}
	return &Backend{
		options: o, bootID: hex.EncodeToString(id), lost: make(chan struct{}),
		adapters: map[string]*adapter{}, samples: map[string]*sampling{}, runs: map[string]int64{}, lastAlive: time.Now(),
	}
}

// Lose makes this backend behave like a process that is gone: whatever runs or comes fails with plugins.ErrBackendLost. For tests in the same process.
func (b *Backend) Lose() { b.lose.Do(func() { close(b.lost) }) }

func (b *Backend) isLost() bool {
	select {
	case <-b.lost:
		return true
	default:
		return false
	}
}

func lostError() *plugins.Error {
	return &plugins.Error{Kind: plugins.KindBackendLost, Message: "the fake backend was told to be lost"}
}

// Info implements plugins.Backend.
func (b *Backend) Info(context.Context) (plugins.Info, error) {
	if b.isLost() {
		return plugins.Info{}, lostError()
	}
	return plugins.Info{Plugin: "fake", Version: Version, BootID: b.bootID}, nil
}

// Load implements plugins.Backend.
func (b *Backend) Load(ctx context.Context, req plugins.LoadRequest, progress func(plugins.LoadProgress)) (plugins.ModelInfo, error) {
	if b.isLost() {
		return plugins.ModelInfo{}, lostError()
	}
	b.mu.Lock()
	if b.loading {
		b.mu.Unlock()
		return plugins.ModelInfo{}, plugins.Invalidf("", "load was already called in this process")
	}
	b.loading = true
	b.mu.Unlock()
	c, err := parseConfig(req.Config, req.ModelDir)
	if err != nil {
		return plugins.ModelInfo{}, err
	}
	b.config, b.name, b.dir = c, req.Name, req.ModelDir
	if err := b.interfere(ctx, "load"); err != nil {
		return plugins.ModelInfo{}, err
	}
	total := 4 * int64(c.VocabSize*c.HiddenSize*2+2*c.HiddenSize*c.HiddenSize)
	progress(plugins.LoadProgress{Stage: "map", Done: 0, Total: total})
	b.model = newModel(&c)
	progress(plugins.LoadProgress{Stage: "ready", Done: total, Total: total})
	b.info = plugins.ModelInfo{
		Architecture: "TinsmithFakeForCausalLM", Parameters: b.model.parameters(), Layers: 1, HiddenSize: c.HiddenSize, VocabSize: c.VocabSize, MaxContextLength: c.MaxContextLength,
		DType: c.DType, Device: "cpu", Arithmetic: "fake-float64", ModelHash: b.model.hash, MaxRank: c.MaxRank,
	}
	b.rules = constraint.NewCompiler(&b.info)
	b.mu.Lock()
	b.loaded = true
	b.mu.Unlock()
	return b.info, nil
}

// SetVocabulary implements plugins.Backend.
func (b *Backend) SetVocabulary(_ context.Context, v plugins.Vocabulary) error {
	b.mu.Lock()
	err := b.accept()
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return b.rules.SetVocabulary(v)
}

// Status implements plugins.Backend.
func (b *Backend) Status(ctx context.Context, report func(plugins.Status)) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if b.isLost() {
			return lostError()
		}
		report(b.snapshot())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.lost:
		case <-tick.C:
		}
	}
}

func (b *Backend) snapshot() plugins.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.counters
	s.Time, s.BootID, s.Adapters, s.RunningSamples = time.Now(), b.bootID, len(b.adapters), 0
	for _, r := range b.samples {
		s.RunningSamples += r.active
	}
	for _, a := range b.adapters {
		s.QueuedTraining += len(a.pending)
		if a.running {
			s.QueuedTraining++
		}
		s.Versions += len(a.versions)
		for _, v := range a.versions {
			s.AdapterBytes += v.bytes()
		}
	}
	if b.loaded {
		s.WeightBytes = 4 * b.info.Parameters
	}
	if b.working > 0 {
		s.LastProgressAge = time.Since(b.lastAlive)
	}
	return s
}

// progress counts work that was done.
func (b *Backend) progress(count func(*plugins.Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	count(&b.counters)
	b.lastAlive = time.Now()
}

func (b *Backend) cycle() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counters.Cycles++
	return b.counters.Cycles
}

// accept says whether new work may come in. b.mu is held.
func (b *Backend) accept() error {
	switch {
	case b.isLost():
		return lostError()
	case !b.loaded:
		return &plugins.Error{Kind: plugins.KindUnavailable, Message: "the model is not loaded"}
	}
	return nil
}

func (b *Backend) find(id string) (*adapter, error) {
	a := b.adapters[id]
	if a == nil {
		return nil, &plugins.Error{Kind: plugins.KindNotFound, Field: "adapter", Message: fmt.Sprintf("no adapter %.200q", id)}
	}
	return a, nil
}

func (b *Backend) begin() { // b.mu is held
	if b.working == 0 {
		b.lastAlive = time.Now()
	}
	b.working++
}

func (b *Backend) end() { // b.mu is held
	b.working--
	b.lastAlive = time.Now()
}

// CreateAdapter implements plugins.Backend.
func (b *Backend) CreateAdapter(ctx context.Context, req plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	b.mu.Lock()
	err := b.accept()
	b.mu.Unlock()
	if err != nil {
		return plugins.AdapterInfo{}, err
	}
	if err := req.Validate(&b.info); err != nil {
		return plugins.AdapterInfo{}, err
	}
	if err := b.interfere(ctx, "create_adapter"); err != nil {
		return plugins.AdapterInfo{}, err
	}
	c := req.Config
	s := newShape(b.model, c.Rank, [3]bool{moduleO: c.TrainAttention, moduleD: c.TrainMLP, moduleU: c.TrainUnembed})
	return b.install(req.Adapter, req, c, b.model.freshVersion(s, c.Seed), false)
}

// install adds a new adapter, or answers the repetition of the call that made it.
func (b *Backend) install(id string, origin any, c plugins.AdapterConfig, v *version, frozen bool) (plugins.AdapterInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.accept(); err != nil {
		return plugins.AdapterInfo{}, err
	}
	if old := b.adapters[id]; old != nil {
		if reflect.DeepEqual(old.origin, origin) {
			return old.created, nil
		}
		return plugins.AdapterInfo{}, plugins.Invalidf("adapter", "%.200q exists with another configuration", id)
	}
	c.Modules, c.Alpha = b.model.moduleNames(v.shape), v.shape.alpha
	a := &adapter{
		id: id, config: c, origin: origin, shape: v.shape, frozen: frozen, next: 1, pending: map[int64]*operation{}, versions: map[int64]*version{}, pins: map[string]*version{},
		created: plugins.AdapterInfo{Config: c, Version: v.number, Step: v.step, Bytes: v.bytes()},
	}
	if !frozen {
		a.accumulated = make([]float32, v.shape.total)
	}
	a.publish(v)
	b.adapters[id] = a
	return a.created, nil
}

// DeleteAdapter implements plugins.Backend.
func (b *Backend) DeleteAdapter(_ context.Context, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isLost() {
		return lostError()
	}
	a := b.adapters[id]
	if a == nil {
		return nil
	}
	delete(b.adapters, id)
	a.deleted = true
	b.failPending(a, deletedError(id))
	for _, s := range b.samples {
		if s.adapter == a {
			s.ended = deletedError(id)
		}
	}
	return nil
}

func deletedError(id string) *plugins.Error {
	return &plugins.Error{Kind: plugins.KindNotFound, Field: "adapter", Message: fmt.Sprintf("adapter %.200q was deleted", id)}
}

// Pin implements plugins.Backend.
func (b *Backend) Pin(ctx context.Context, req plugins.PinRequest) (plugins.PinResult, error) {
	pin := func(a *adapter) (plugins.PinResult, error) {
		if err := req.Validate(); err != nil {
			return plugins.PinResult{}, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if old := a.pins[req.Name]; old != nil {
			if req.Position == 0 {
				return plugins.PinResult{Version: old.number}, nil
			}
			return plugins.PinResult{}, plugins.Invalidf("name", "%.200q is a pin of this adapter already", req.Name)
		}
		a.pins[req.Name] = a.latest
		a.latest.users++
		return plugins.PinResult{Version: a.latest.number}, nil
	}
	if req.Position != 0 {
		return ordered(ctx, b, req.Adapter, req.Position, false, func(a *adapter) (plugins.PinResult, error) {
			if err := b.turn(a, "pin"); err != nil {
				return plugins.PinResult{}, err
			}
			return pin(a)
		})
	}
	b.mu.Lock()
	err := b.accept()
	var a *adapter
	if err == nil {
		a, err = b.find(req.Adapter)
	}
	b.mu.Unlock()
	if err != nil {
		return plugins.PinResult{}, err
	}
	if err := b.interfere(ctx, "pin"); err != nil {
		return plugins.PinResult{}, err
	}
	return pin(a)
}

// Unpin implements plugins.Backend.
func (b *Backend) Unpin(_ context.Context, req plugins.UnpinRequest) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isLost() {
		return lostError()
	}
	a := b.adapters[req.Adapter]
	if a == nil {
		return nil
	}
	if v := a.pins[req.Name]; v != nil {
		delete(a.pins, req.Name)
		a.release(v)
	}
	return nil
}

// Configure implements plugins.Backend. Nothing of the fake can be changed while it runs.
func (b *Backend) Configure(_ context.Context, req plugins.ConfigureRequest) (plugins.ConfigureResult, error) {
	b.mu.Lock()
	loaded := b.loaded
	b.mu.Unlock()
	if !loaded {
		return plugins.ConfigureResult{}, &plugins.Error{Kind: plugins.KindUnavailable, Message: "no model is loaded"}
	}
	c, err := parseConfig(req.Config, b.dir)
	if err != nil {
		return plugins.ConfigureResult{}, err
	}
	if !reflect.DeepEqual(c, b.config) {
		return plugins.ConfigureResult{}, plugins.Invalidf("config", "nothing of the fake backend can be changed while it runs")
	}
	return plugins.ConfigureResult{}, nil
}
