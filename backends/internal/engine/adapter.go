package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/optim"
	"github.com/tinsmith/tinsmith/plugins"
)

// version is one immutable state of an adapter. It lives as long as somebody holds it: the run (its latest version), a pin, a sampling request, a clock cycle, a save.
type version struct {
	number  int64
	adapter int64 // number of the run
	layout  *lora.Layout
	weights *spillable
	moments *spillable // nil for a frozen adapter
	step    int64
	size    int64 // bytes of device memory while all of it is there

	// Guarded by Engine.mu.
	holders  int
	trainers int  // holders for which the moments are kept
	bare     bool // there are no moments, or they were given up when the last of those holders went
}

// free gives up memory and files, on the device goroutine.
func (l *loaded) free(v *version) {
	l.adapters.drop(v.weights)
	l.adapters.drop(v.moments)
}

// run is one adapter with its operations. Its fields are guarded by Engine.mu, but for the accumulator, which is the device goroutine's alone.
type run struct {
	id     string
	number int64 // never used twice in this process
	config plugins.AdapterConfig
	layout *lora.Layout // of the latest version
	frozen bool

	notices []string // about the files that the run was made from

	origin  any                 // the request that made the run, to recognise it when it is repeated
	created chan struct{}       // closed when info or failure is set
	info    plugins.AdapterInfo // the answer to origin
	failure error

	queue   queue
	busy    bool      // an operation without a pass is running: the ones behind it wait
	held    time.Time // the next operation waits for the disk and is tried again then; zero if it does not, see Engine.holdBack
	deleted bool
	window  window
	broken  error // why the last load failed: what comes behind it fails as well, until a load succeeds
	latest  *version
	next    int64 // number of the next version
	pins    map[string]pin

	tag        float64 // of the pass that was planned last, see plan
	backlogged bool    // the last plan has left passes over
	passed     int64   // number of the newest cycle that had passes of the run
	stepped    int64   // number of the newest cycle that had an optimizer step of the run

	accumulator *spillable // sum of the gradients since the last step, nil = zero
}

// pin holds a version under a name.
type pin struct {
	version  *version
	training bool // its moments too
}

// ready tells whether the run's next operation can begin.
func (r *run) ready() bool {
	return !r.busy && r.queue.first() != nil && (r.held.IsZero() || !time.Now().Before(r.held))
}

// brokenError answers operations behind a load that failed.
func (r *run) brokenError() error {
	cause := internal("load_adapter", r.broken)
	return &plugins.Error{Kind: cause.Kind, Field: cause.Field, Message: "an earlier load failed: " + cause.Message}
}

// decide ends the run's next operation. An operation that was failed meanwhile (its adapter was deleted) stays as it is. The caller holds Engine.mu.
func (r *run) decide(o *operation, result any, err error) {
	if r.queue.first() != o {
		return
	}
	o.result, o.err = result, err
	r.held = time.Time{}
	r.queue.pop()
	close(o.done)
}

// fail ends all operations that wait. The caller holds Engine.mu.
func (r *run) fail(err error) {
	r.held = time.Time{}
	for p, o := range r.queue.waiting {
		o.err = err
		delete(r.queue.waiting, p)
		close(o.done)
	}
}

// freeAccumulator clears the accumulated gradient, on the device goroutine.
func (l *loaded) freeAccumulator(r *run) {
	l.adapters.drop(r.accumulator)
	r.accumulator = nil
}

// hold keeps a version, but not its moments. The caller holds mu.
func (e *Engine) hold(v *version) *version {
	v.holders++
	return v
}

// holdTraining keeps a version with its moments, which must not have been given up. The caller holds mu.
func (e *Engine) holdTraining(v *version) *version {
	v.trainers++
	return e.hold(v)
}

// releaseTraining gives up what holdTraining has given; the last one has the moments freed, even if the version lives on to be sampled. The caller holds mu.
func (e *Engine) releaseTraining(v *version) {
	if v == nil {
		return
	}
	if v.trainers--; v.trainers == 0 && !v.bare {
		v.bare = true
		e.bare = append(e.bare, v)
		e.wake.Signal()
	}
	e.release(v)
}

// release gives up a hold; the last one has the version freed. The caller holds mu.
func (e *Engine) release(v *version) {
	if v == nil {
		return
	}
	if v.holders--; v.holders == 0 {
		delete(e.live, v)
		e.dead = append(e.dead, v)
		e.wake.Signal()
	}
}

// publish makes v the run's latest version. The caller holds mu.
func (e *Engine) publish(r *run, v *version) {
	v.number, v.adapter = r.next, r.number
	r.next++
	e.live[v] = struct{}{}
	e.releaseTraining(r.latest)
	r.latest = e.holdTraining(v)
}

// remove takes a run out of the books and gives up what it holds. The caller holds mu.
func (e *Engine) remove(r *run) {
	r.deleted = true
	delete(e.runs, r.id)
	e.order = slices.DeleteFunc(e.order, func(other *run) bool { return other == r })
	e.releaseTraining(r.latest)
	r.latest = nil
	for _, p := range r.pins {
		e.unpin(p)
	}
	r.pins = nil
	e.deadRuns = append(e.deadRuns, r)
	e.wake.Signal()
}

// begin enters a new run in the books and has make called for it, which ends with finish; or it finds the run that the same request has made before. It waits for the answer, ctx
// permitting: a run that was begun is made even if nobody waits.
func (e *Engine) begin(ctx context.Context, id string, origin any, create func(*run, *loaded)) (plugins.AdapterInfo, error) {
	r, l, fresh, err := e.enter(id, origin)
	if err != nil {
		return plugins.AdapterInfo{}, err
	}
	if fresh {
		create(r, l)
	}
	select {
	case <-r.created:
		info := r.info
		info.Config.Modules = slices.Clone(info.Config.Modules)
		return info, r.failure
	case <-ctx.Done():
		return plugins.AdapterInfo{}, plugins.Cancelled(ctx.Err())
	}
}

func (e *Engine) enter(id string, origin any) (r *run, l *loaded, fresh bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l, err = e.accept(); err != nil {
		return nil, nil, false, err
	}
	if r = e.runs[id]; r != nil {
		if !reflect.DeepEqual(r.origin, origin) {
			return nil, nil, false, plugins.Invalidf("adapter", "%q exists with another configuration", id)
		}
		return r, l, false, nil
	}
	e.lastRun++
	r = &run{id: id, number: e.lastRun, origin: origin, created: make(chan struct{}), queue: newQueue(), busy: true, pins: map[string]pin{}}
	e.runs[id] = r
	e.order = append(e.order, r)
	return r, l, true, nil
}

// finish ends the making of a run: with its first version, or with the reason why there is none.
func (e *Engine) finish(r *run, v *version, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-r.created:
		return // the engine was closed meanwhile and has answered
	default:
	}
	defer close(r.created)
	switch {
	case err != nil:
		r.failure = err
		if !r.deleted {
			r.fail(err)
			e.remove(r)
		}
	case r.deleted:
		r.failure = r.deletedEarly()
		e.dead, e.deadRuns = append(e.dead, v), append(e.deadRuns, r)
	default:
		r.busy = false
		e.publish(r, v)
		r.info = plugins.AdapterInfo{Config: r.config, Version: v.number, Step: v.step, Bytes: v.size, Notices: r.notices}
	}
	e.wake.Signal()
}

// inVain is the error of a run that need not be made any more; nil if it is wanted.
func (e *Engine) inVain(r *run) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.deleted {
		return r.deletedEarly()
	}
	return nil
}

func (r *run) deletedEarly() error {
	return &plugins.Error{Kind: plugins.KindNotFound, Field: "adapter", Message: fmt.Sprintf("%q was deleted while it was made", r.id)}
}

// CreateAdapter makes an adapter with fresh weights.
func (e *Engine) CreateAdapter(ctx context.Context, req plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	l, err := e.ifLoaded()
	if err != nil {
		return plugins.AdapterInfo{}, err
	}
	if err := req.Validate(&l.info); err != nil {
		return plugins.AdapterInfo{}, err
	}
	return e.begin(ctx, req.Adapter, req, func(r *run, l *loaded) {
		var v *version
		if !e.call(e.withRoom(func() (err error) {
			if err := e.inVain(r); err != nil {
				return err
			}
			v, err = l.freshVersion(r, req.Config)
			return err
		}, func(err error) { e.finish(r, v, err) })) {
			e.finish(r, nil, errClosed)
		}
	})
}

// freshVersion makes the first version of an adapter, on the device goroutine. Its values are computed when they are needed, and as often as they have left the memory since: before it is trained an adapter takes neither memory nor files.
func (l *loaded) freshVersion(r *run, c plugins.AdapterConfig) (*version, error) {
	layout, err := l.model.Layout(c.Rank, c.TrainAttention, c.TrainMLP, c.TrainUnembed)
	if err != nil {
		return nil, plugins.Invalidf("config", "%v", err)
	}
	if err := l.adapters.admit(layout, false); err != nil {
		return nil, err
	}
	v := &version{layout: layout}
	v.weights, err = l.adapters.unmade(weightsOf(r.id), weightsContent, layout, func(w content) error { return w.(*lora.Weights).Initialize(c.Seed) })
	if err != nil {
		return nil, err
	}
	v.moments, err = l.adapters.unmade(stateOf(r.id), stateContent, layout, func(s content) error { return s.(*optim.State).Zero() })
	if err != nil {
		return nil, err
	}
	v.size = v.weights.bytes + v.moments.bytes
	r.describe(c, layout)
	return v, nil
}

func weightsOf(adapter string) string { return fmt.Sprintf("weights of adapter %q", adapter) }
func stateOf(adapter string) string   { return fmt.Sprintf("optimizer state of adapter %q", adapter) }

// mostMade is how many bytes of adapters' first values are computed for one clock cycle, but for the first of them, so that nobody who has made many keeps it from others for long.
const mostMade = 32 << 20

// mayMake tells whether the first values of a version may be computed in a cycle for which so many bytes of others' are.
func mayMake(v *version, made int64) bool { return made == 0 || made+v.size <= mostMade }

// unmade tells whether the version's first values would have to be computed. It is called on the device goroutine.
func (v *version) unmade() bool {
	return v != nil && v.weights != nil && v.weights.content == nil && v.weights.again != nil
}

// describe notes a run's shape before it is used by anyone else.
func (r *run) describe(c plugins.AdapterConfig, layout *lora.Layout) {
	c.Modules, c.Alpha = layout.Kinds(), layout.Alpha()
	r.config, r.layout = c, layout
}

// emptyVersion allocates a version, without optimizer state for a frozen adapter, to be filled, that stays in memory until it is written or freed.
func (l *loaded) emptyVersion(adapter string, layout *lora.Layout, moments bool) (*version, error) {
	if err := l.adapters.admit(layout, !moments); err != nil {
		return nil, err
	}
	weights, err := l.adapters.make(weightsOf(adapter), weightsContent, layout)
	if err != nil {
		return nil, err
	}
	v := &version{layout: layout, weights: weights, size: weights.bytes, bare: !moments}
	if moments {
		if v.moments, err = l.adapters.make(stateOf(adapter), stateContent, layout); err != nil {
			l.adapters.drop(weights)
			return nil, err
		}
		v.size += v.moments.bytes
	}
	return v, nil
}

// written says that a version has its values, which do not change any more, so that it may be moved out of memory.
func (l *loaded) written(v *version) {
	l.adapters.done(v.weights)
	if v.moments != nil {
		v.moments.step = v.step
		l.adapters.done(v.moments)
	}
}

// find gives a run by its id. The caller holds mu.
func (e *Engine) find(id string) (*run, error) {
	if r := e.runs[id]; r != nil {
		return r, nil
	}
	return nil, &plugins.Error{Kind: plugins.KindNotFound, Field: "adapter", Message: fmt.Sprintf("there is no adapter %q", id)}
}

// DeleteAdapter frees an adapter.
func (e *Engine) DeleteAdapter(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.runs[id]
	if r == nil {
		return nil
	}
	gone := &plugins.Error{Kind: plugins.KindNotFound, Field: "adapter", Message: fmt.Sprintf("%q was deleted", id)}
	r.fail(gone)
	for _, q := range e.requests {
		if q.run == r {
			e.endRequest(q, gone)
		}
	}
	e.remove(r)
	return nil
}

// Pin keeps a version.
func (e *Engine) Pin(ctx context.Context, req plugins.PinRequest) (plugins.PinResult, error) {
	invalid := req.Validate()
	if req.Position == 0 {
		if invalid != nil {
			return plugins.PinResult{}, invalid
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if _, err := e.accept(); err != nil {
			return plugins.PinResult{}, err
		}
		r, err := e.find(req.Adapter)
		if err != nil {
			return plugins.PinResult{}, err
		}
		if r.latest == nil {
			return plugins.PinResult{}, &plugins.Error{Kind: plugins.KindUnavailable, Field: "adapter", Message: fmt.Sprintf("%q is still being made", req.Adapter)}
		}
		if p, ok := r.pins[req.Name]; ok {
			return plugins.PinResult{Version: p.version.number}, nil
		}
		return e.pin(r, &req), nil
	}
	result, err := e.submit(ctx, req.Adapter, func(r *run, o *operation) {
		o.kind, o.position, o.invalid = kindPin, req.Position, invalid
		o.host = func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			r.busy = false
			switch {
			case r.deleted:
			case o.invalid != nil:
				r.decide(o, nil, o.invalid)
			case r.broken != nil:
				r.decide(o, nil, r.brokenError())
			case r.pins[req.Name].version != nil:
				r.decide(o, nil, plugins.Invalidf("name", "%q is a pin of this adapter already", req.Name))
			default:
				r.decide(o, e.pin(r, &req), nil)
			}
		}
	})
	if err != nil {
		return plugins.PinResult{}, err
	}
	return result.(plugins.PinResult), nil
}

// pin holds the latest version under a name. The caller holds mu.
func (e *Engine) pin(r *run, req *plugins.PinRequest) plugins.PinResult {
	p := pin{version: r.latest, training: !req.WeightsOnly && !r.latest.bare}
	if p.training {
		e.holdTraining(p.version)
	} else {
		e.hold(p.version)
	}
	r.pins[req.Name] = p
	return plugins.PinResult{Version: p.version.number}
}

// unpin gives up a pin. The caller holds mu.
func (e *Engine) unpin(p pin) {
	if p.training {
		e.releaseTraining(p.version)
	} else {
		e.release(p.version)
	}
}

// Unpin releases a pin.
func (e *Engine) Unpin(_ context.Context, req plugins.UnpinRequest) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.runs[req.Adapter]; r != nil {
		if p, ok := r.pins[req.Name]; ok {
			delete(r.pins, req.Name)
			e.unpin(p)
		}
	}
	return nil
}

// resolve gives a live version of a run by number. The caller holds mu.
func (e *Engine) resolve(r *run, number int64) (*version, error) {
	if r.latest != nil && (number == plugins.LatestVersion || number == r.latest.number) {
		return r.latest, nil
	}
	for v := range e.live {
		if v.adapter == r.number && v.number == number {
			return v, nil
		}
	}
	return nil, &plugins.Error{Kind: plugins.KindNotFound, Field: "version", Message: fmt.Sprintf("adapter %q has no live version %d", r.id, number)}
}
