// Package simple is the contract of package plugins over a Model: queues in the order of positions, versions and pins, losses and AdamW, checkpoints, sampling with all its options. A model has to
// say only what it computes: log-probabilities, gradients, the logits of the next token. It is made to be right and short, not fast: every sequence runs alone.
//
// It knows the contract only, and no device.
package simple

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/constraint"
)

// Backend implements plugins.Backend.
type Backend struct {
	options Options
	bootID  string
	lost    chan struct{} // closed by Lose
	lose    sync.Once

	model       Model // these are written by Load before loaded is set
	modules     []Module
	info        plugins.ModelInfo
	weightBytes int64
	name        string
	rules       *constraint.Compiler

	mu        sync.Mutex
	loading   bool
	loaded    bool
	working   int // queues and samples that run
	adapters  map[string]*adapter
	samples   map[string]*sampling
	counters  plugins.Status
	lastAlive time.Time
}

var _ plugins.Backend = (*Backend)(nil)

// New makes a backend that has not been loaded.
func New(o Options) *Backend {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	if o.Before == nil {
		o.Before = func(context.Context, Operation) error { return nil }
	}
	return &Backend{
		options: o, bootID: hex.EncodeToString(id), lost: make(chan struct{}), adapters: map[string]*adapter{}, samples: map[string]*sampling{}, lastAlive: time.Now(),
	}
}

// Lose makes this backend behave like a process that is gone: whatever runs or comes fails with plugins.ErrBackendLost.
func (b *Backend) Lose() { b.lose.Do(func() { close(b.lost) }) }

// Lost is closed by Lose.
func (b *Backend) Lost() <-chan struct{} { return b.lost }

func (b *Backend) isLost() bool {
	select {
	case <-b.lost:
		return true
	default:
		return false
	}
}

// LostError is what fails once a backend is lost.
func (b *Backend) LostError() *plugins.Error {
	return &plugins.Error{Kind: plugins.KindBackendLost, Message: "the " + b.options.Plugin + " backend is lost"}
}

// Info implements plugins.Backend.
func (b *Backend) Info(context.Context) (plugins.Info, error) {
	if b.isLost() {
		return plugins.Info{}, b.LostError()
	}
	return plugins.Info{Plugin: b.options.Plugin, Version: b.options.Version, BootID: b.bootID}, nil
}

// Load implements plugins.Backend.
func (b *Backend) Load(ctx context.Context, req plugins.LoadRequest, progress func(plugins.LoadProgress)) (plugins.ModelInfo, error) {
	if b.isLost() {
		return plugins.ModelInfo{}, b.LostError()
	}
	b.mu.Lock()
	if b.loading {
		b.mu.Unlock()
		return plugins.ModelInfo{}, plugins.Invalidf("", "load was already called in this process")
	}
	b.loading = true
	b.mu.Unlock()
	opened, err := b.options.Open(ctx, req, progress)
	if err != nil {
		return plugins.ModelInfo{}, err
	}
	b.model, b.info, b.weightBytes, b.name = opened.Model, opened.Info, opened.WeightBytes, req.Name
	b.modules = b.model.Modules()
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
			return b.LostError()
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
		s.WeightBytes = b.weightBytes
	}
	if b.working > 0 {
		s.LastProgressAge = time.Since(b.lastAlive)
	}
	return s
}

// Progress counts work that was done, or only tells that some was.
func (b *Backend) Progress(count func(*plugins.Status)) {
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
		return b.LostError()
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
	if err := b.before(ctx, "create_adapter"); err != nil {
		return plugins.AdapterInfo{}, err
	}
	c := req.Config
	return b.install(req.Adapter, req, c, b.freshVersion(NewLayout(b.modules, c.Rank, b.follows(&c)), c.Seed), false)
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
	c.Modules, c.Alpha = b.moduleNames(v.Layout), v.Layout.Alpha
	a := &adapter{
		id: id, config: c, origin: origin, layout: v.Layout, frozen: frozen, next: 1, pending: map[int64]*operation{}, versions: map[int64]*version{}, pins: map[string]*version{}, forget: b.model.Forget,
		created: plugins.AdapterInfo{Config: c, Version: v.number, Step: v.step, Bytes: v.bytes()},
	}
	if !frozen {
		a.accumulated = make([]float32, v.Layout.Total)
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
		return b.LostError()
	}
	a := b.adapters[id]
	if a == nil {
		return nil
	}
	delete(b.adapters, id)
	a.deleted = true
	b.failPending(a, deletedError(id))
	for _, v := range a.pins {
		a.release(v)
	}
	a.pins = map[string]*version{}
	a.drop(a.latest)
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
	if err := b.before(ctx, "pin"); err != nil {
		return plugins.PinResult{}, err
	}
	return pin(a)
}

// Unpin implements plugins.Backend.
func (b *Backend) Unpin(_ context.Context, req plugins.UnpinRequest) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isLost() {
		return b.LostError()
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

// Configure implements plugins.Backend. Nothing can be changed while it runs.
func (b *Backend) Configure(_ context.Context, req plugins.ConfigureRequest) (plugins.ConfigureResult, error) {
	b.mu.Lock()
	loaded := b.loaded
	b.mu.Unlock()
	if !loaded {
		return plugins.ConfigureResult{}, &plugins.Error{Kind: plugins.KindUnavailable, Message: "no model is loaded"}
	}
	return plugins.ConfigureResult{}, b.options.Configure(req.Config)
}
