package runs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// lost tells whether an error means that the process is gone or going, with the adapters in it.
func lost(err error) bool {
	k := plugins.KindOf(err)
	return k == plugins.KindBackendLost || k == plugins.KindUnavailable
}

// reason says why a backend was lost, as well as it is known.
func (b Backend) reason(err error) string {
	select {
	case <-b.Lost:
		if b.Reason != nil {
			return b.Reason()
		}
	default:
	}
	if err != nil {
		return err.Error()
	}
	return "the backend process was replaced"
}

// gone tells whether the process is known to be gone.
func (b Backend) gone() bool {
	select {
	case <-b.Lost: // nil: never
		return true
	default:
		return false
	}
}

// execute runs one operation against the backend and completes its future. When the backend's process goes away meanwhile, the operation goes back into the queue and runs
// again once the adapter has been rebuilt; when the server stops, it stays unfinished in the journal.
func (c *Core) execute(ctx context.Context, op *operation) {
	if op.trace.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, op.trace)
	}
	var done done
	var err error
	switch b, ok := c.holder(op.run); {
	case op.create != nil:
		op.future.begun = c.cfg.now().UTC()
		done, err = c.create(ctx, op)
	case !ok:
		c.giveBack(op, "the backend process was replaced", plugins.ErrBackendLost)
		return
	case op.point != nil:
		c.takePoint(ctx, b, op)
		return
	case op.past != nil:
		err = c.replay(ctx, b, op)
		if ctx.Err() == nil {
			c.replayed(ctx, op, b, err)
		}
		return
	default:
		op.future.begun = c.cfg.now().UTC()
		done, err = c.call(ctx, b, op)
		if err != nil && ctx.Err() == nil && c.wentAway(op.run, b, err) {
			c.giveBack(op, b.reason(err), err)
			return
		}
	}
	if err != nil && ctx.Err() != nil {
		return
	}
	if err != nil {
		done = failedWith(failureOf(err))
		op.future.kept = op.kind == OpOptimStep && plugins.NoRoom(err)
	}
	c.mu.Lock()
	on := op.blame.slot
	c.gave(&op.blame, nil) // it is decided, though not yet in the journal
	if done.outcome.Failure == nil {
		c.worked(on)
	}
	c.mu.Unlock()
	c.finish(ctx, op.future, &done.outcome, op.position, done.batch, func() {
		if done.outcome.Failure != nil && (op.create != nil || op.load != nil) {
			op.run.failStart(op, done.outcome.Failure)
		}
		if done.then != nil {
			done.then()
		}
		if op.trains && !op.scoreOnly && done.outcome.Failure == nil {
			op.window.passed = true
		}
		if op.future.kept {
			op.keepWindow()
			if op.after != nil {
				op.after.void = true
			}
		}
		c.left(op, true)
	})
}

// holder is the process that has the run's adapter, if one has it.
func (c *Core) holder(r *run) (Backend, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := r.home.current()
	return b, ok && r.boot != "" && b.BootID == r.boot
}

// wentAway tells whether an operation failed because its process, or the adapter in it, is gone: then it is no result.
func (c *Core) wentAway(r *run, b Backend, err error) bool {
	if lost(err) {
		return true
	}
	c.mu.Lock()
	interrupted := r.usable() && r.boot != b.BootID
	c.mu.Unlock()
	switch plugins.KindOf(err) {
	case plugins.KindInvalid, plugins.KindNotFinite:
		return false
	}
	return interrupted
}

// failStart notes that a run's creation or load failed: everything behind it fails with the reason, after a load until one succeeds. mu is held.
func (r *run) failStart(op *operation, why *Failure) {
	what := "creating"
	if op.create == nil || op.create.Path != "" {
		what = "loading"
	}
	if r.queue.failed == nil {
		r.queue.failed = &Failure{Message: what + " model " + r.ID + " failed: " + why.Message, Category: why.Category}
	}
}

// done is what an operation leads to: its outcome, what becomes durable with it, and what changes in memory then.
type done struct {
	outcome Outcome
	batch   store.Batch
	then    func() // mu is held
}

func failedWith(f *Failure) done { return done{outcome: Outcome{Failure: f}} }

// errRunEnded tells that nobody needs an adapter any more.
var errRunEnded = errors.New("the run has ended")

// create makes the adapter of a new run. Nothing is lost when the process goes away meanwhile: the next one is tried.
func (c *Core) create(ctx context.Context, op *operation) (done, error) {
	r := op.run
	for attempt := 0; ; attempt++ {
		b, err := c.awaitHome(ctx, r, &op.blame)
		if err == nil {
			if err = c.take(ctx, b, &op.blame); err == nil {
				c.mu.Lock()
				ended := !r.usable()
				c.mu.Unlock()
				if ended { // whoever ended it has no adapter to delete
					err = errRunEnded
				} else {
					_, err = c.createIn(ctx, b, op)
				}
				c.mu.Lock()
				c.gave(&op.blame, err)
				c.mu.Unlock()
			}
			if err == nil {
				return c.created(op, b), nil
			}
			if plugins.NoRoom(err) && c.tryElsewhere(r) {
				continue
			}
			if lost(err) && attempt < 10 {
				if err := pause(ctx, attempt); err != nil {
					return done{}, err
				}
				if b.gone() { // the next process has not been tried; whether there is one more is its supervisor's business
					attempt = -1
				}
				continue
			}
		}
		if ctx.Err() != nil {
			return done{}, err
		}
		if op.dir != "" {
			c.discard(op.dir)
			op.dir = ""
		}
		f := failureOf(err)
		c.mu.Lock()
		if !r.usable() { // then it is no matter why
			f = &Failure{Message: "model " + r.ID + " has ended while it was made: " + r.Reason, Category: CategoryUser}
		}
		c.mu.Unlock()
		out := failedWith(f)
		out.then = func() {
			if r.usable() {
				r.State, r.Reason = stateFailed, f.Message
				c.recount(r)
				c.start(func(ctx context.Context) {
					c.logged("run could not be stored", c.writeRun(context.WithoutCancel(ctx), r), "run", r.ID)
				})
			}
		}
		return out, nil
	}
}

// pause waits a little longer at every attempt.
func pause(ctx context.Context, attempt int) error {
	t := time.NewTimer(min(50*time.Millisecond<<min(attempt, 6), 2*time.Second))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Core) createIn(ctx context.Context, b Backend, op *operation) (plugins.AdapterInfo, error) {
	r := op.run
	if b.Model.MaxRank > 0 && r.LoRA.Rank > b.Model.MaxRank {
		return plugins.AdapterInfo{}, invalidf("lora_config.rank: is %d, %s allows at most %d", r.LoRA.Rank, r.ServedModel, b.Model.MaxRank)
	}
	if op.create.Path != "" {
		if err := c.keepLoaded(ctx, op, op.create); err != nil {
			return plugins.AdapterInfo{}, err
		}
		dir := unsettledName(op.dir)
		info, err := b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: r.adapter, Path: c.file(dir), Scope: scopeOf(op.create.WithOptimizer)})
		return info, c.ofCheckpoint(err, op.create.Path, dir)
	}
	return b.CreateAdapter(ctx, r.fresh())
}

// fresh asks for the run's adapter as it was at first.
func (r *run) fresh() plugins.CreateAdapterRequest {
	return plugins.CreateAdapterRequest{Adapter: r.adapter, Config: plugins.AdapterConfig{
		Rank: r.LoRA.Rank, Seed: *r.LoRA.Seed, TrainAttention: r.LoRA.TrainAttn, TrainMLP: r.LoRA.TrainMLP, TrainUnembed: r.LoRA.TrainUnembed,
	}}
}

func scopeOf(optimizer bool) plugins.Scope {
	if optimizer {
		return plugins.ScopeOptimizer
	}
	return plugins.ScopeWeights
}

func (c *Core) created(op *operation, b Backend) done {
	r := op.run
	var d done
	var first *recoveryPoint
	if op.create.Path != "" {
		d.outcome.Loaded = &LoadedWeights{Path: op.create.Path, RunID: r.ID}
		first = &recoveryPoint{RunID: r.ID, Dir: c.settle(op.dir), Scope: scopeOf(op.create.WithOptimizer), CreatedAt: c.cfg.now().UTC()}
		d.batch.Put = append(d.batch.Put, first.record())
	} else {
		d.outcome.CreatedRun = &CreatedRun{RunID: r.ID}
	}
	d.then = func() {
		if r.State != stateCreating { // ended meanwhile
			adapter := r.adapter
			c.start(func(ctx context.Context) {
				if err := b.DeleteAdapter(ctx, adapter); err != nil && !lost(err) {
					c.logged("adapter could not be deleted", err, "run", r.ID)
				}
			})
			return
		}
		r.State, r.Architecture, r.live.weightsAt, r.full = stateLive, b.Model.Architecture, c.cfg.now(), nil
		c.moveIn(r, b)
		r.ModelHash, r.Arithmetic = b.Model.ModelHash, b.Model.Arithmetic
		if first != nil {
			r.points = append(r.points, first)
		}
		if now, ok := r.home.current(); !ok || now.BootID != b.BootID {
			c.interrupt(r, b.reason(nil))
		}
		if r.home.drained { // since it was chosen
			c.rebalance(r.model)
		}
		c.start(func(ctx context.Context) {
			c.logged("run could not be stored", c.writeRun(context.WithoutCancel(ctx), r), "run", r.ID)
		})
	}
	return d
}

// unload ends a run at its own wish. Its unnamed samplers go on from disk.
func (c *Core) unload(ctx context.Context, b Backend, r *run) (done, error) {
	c.mu.Lock()
	hot := r.hotSnapshots()
	c.mu.Unlock()
	for _, s := range hot {
		if err := c.spill(ctx, b, s); err != nil {
			return done{}, err
		}
	}
	return done{outcome: Outcome{UnloadedRun: &UnloadedRun{RunID: r.ID}}, then: func() {
		why := &Failure{Message: "the model was unloaded", Category: CategoryUser}
		c.endRun(r, stateEnded, "it was unloaded", why)
	}}, nil
}

// call is one call of the contract.
func (c *Core) call(ctx context.Context, b Backend, op *operation) (done, error) {
	r := op.run
	switch {
	case op.kind == OpUnloadRun:
		return c.unload(ctx, b, r)
	case op.kind == OpForwardBackward:
		return c.callPass(ctx, b, op)
	case op.adam != nil:
		return c.callStep(ctx, b, op)
	case op.load != nil:
		return c.callLoad(ctx, b, op)
	case op.save != nil && op.save.SamplerID != "":
		return c.callPin(ctx, b, op)
	case op.save != nil:
		return c.callSave(ctx, b, op)
	}
	return done{}, fmt.Errorf("operation %s: has no body", op.future.id)
}

// callLoad loads a checkpoint. Nothing else of the run is with the backend meanwhile, and everything before has its result in the journal. What is loaded is kept, to rebuild the run from.
func (c *Core) callLoad(ctx context.Context, b Backend, op *operation) (done, error) {
	r := op.run
	c.mu.Lock()
	untrained := false
	if cp := c.checkpoints[op.load.Path]; cp != nil { // as it is now: a save that was sent before the load may have replaced what was there when it came
		op.load.Dir, untrained = cp.Dir, c.untrained(cp)
	}
	c.mu.Unlock()
	keepErr := c.keepLoaded(ctx, op, op.load)
	dir := unsettledName(op.dir)
	if keepErr != nil {
		dir = op.load.Dir // the position is given away and must be filled: there is nothing to be loaded at this place either
	}
	info, err := b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: r.adapter, Position: op.position, Path: c.file(dir), Scope: scopeOf(op.load.WithOptimizer)})
	if keepErr != nil && !lost(err) {
		err = keepErr // what the backend says of files that are not there is not the reason
	}
	err = c.ofCheckpoint(err, op.load.Path, dir)
	if err != nil {
		if !lost(err) && keepErr == nil {
			c.discard(op.dir)
			op.dir = ""
		}
		return done{}, err
	}
	p := &recoveryPoint{
		RunID: r.ID, Seq: op.seq, Dir: c.settle(op.dir), Version: info.Version, Scope: scopeOf(op.load.WithOptimizer), OnTop: true, Import: untrained, CreatedAt: c.cfg.now().UTC(),
	}
	return done{
		outcome: Outcome{Loaded: &LoadedWeights{Path: op.load.Path, RunID: r.ID}},
		batch:   store.Batch{Put: []store.Record{p.record()}},
		then: func() {
			r.points = append(r.points, p)
			r.live.loaded(op.seq, info.Step, info.Version, c.cfg.now())
			c.markImport(r, p.Import)
			if !r.usable() { // it ended meanwhile, and did not know of the point
				c.start(func(ctx context.Context) {
					c.logged("recovery points could not be deleted", c.dropPoints(context.WithoutCancel(ctx), r, math.MaxInt64), "run", r.ID)
				})
				return
			}
			r.queue.window, r.queue.failed, r.since = &window{}, nil, sincePoint{at: c.cfg.now()}
			c.start(func(ctx context.Context) { c.prune(ctx, r) })
		},
	}, nil
}

// ofCheckpoint names the checkpoint whose files, in dir, the backend finds fault with: it knows no other name of them than where they lie here.
func (c *Core) ofCheckpoint(err error, path, dir string) error {
	var e *plugins.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Kind {
	case plugins.KindInvalid, plugins.KindNotFound, plugins.KindNotFinite, plugins.KindInternal, plugins.KindTooLarge:
		message := strings.ReplaceAll(e.Message, c.file(dir)+string(filepath.Separator), "")
		message = "checkpoint " + path + ": " + strings.ReplaceAll(message, c.file(dir), "it")
		if e.Field == "path" && e.Kind != plugins.KindTooLarge {
			// The files are as the server wrote them, or it has not kept them well: whoever named the checkpoint can do nothing about it.
			return refusef(KindBackend, "%s: the server's files are damaged", message)
		}
		return &plugins.Error{Kind: e.Kind, Message: message}
	}
	return err
}

func (c *Core) callPass(ctx context.Context, b Backend, op *operation) (done, error) {
	r := op.run
	pass, err := c.request(ctx, op)
	if err != nil {
		// The position is given away, and the backend waits for it: only an operation can fill it.
		pass = &forwardBackward{}
	}
	req := pass.ForwardBackwardRequest
	req.Adapter, req.Position, req.Share = r.adapter, op.position, c.shareOf(r)
	req.ForwardOnly = req.ForwardOnly || op.scoreOnly
	got, callErr := b.ForwardBackward(ctx, req)
	if err == nil {
		err = callErr
	}
	if err != nil {
		return done{}, err
	}
	if len(got.Logprobs) != len(req.Data) {
		return done{}, fmt.Errorf("the backend answered %d datums for %d", len(got.Logprobs), len(req.Data))
	}
	op.future.ran, op.future.boot, got.Execution = got.Execution, b.BootID, plugins.Execution{} // kept with the result, but not part of it
	metrics, record, stored := c.number(b, &op.future.ran, finite(got.Metrics), "clock_cycle:unique")
	got.Metrics = metrics
	tokens := pass.tokens()
	op.future.event = eventOfPass(&req, &got, tokens)
	return done{
		outcome: Outcome{ForwardBackward: &ForwardBackwardResult{ForwardBackwardResult: got, K: pass.K}},
		batch:   store.Batch{Put: record, Add: []store.Record{c.usage(r.Owner, r.SessionID, r.project(), r.BaseModel, UsageTraining, tokens)}},
		then: func() {
			stored()
			r.live.count(c.cfg.now(), tokens)
			r.live.passed(op.seq, got.Metrics)
		},
	}, nil
}

// finite drops the metrics that no client can read. What is given does not change.
func finite(metrics map[string]float64) map[string]float64 {
	bad := func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }
	if metrics == nil {
		return map[string]float64{}
	}
	for k, v := range metrics {
		if bad(k, v) {
			out := maps.Clone(metrics)
			maps.DeleteFunc(out, bad)
			return out
		}
	}
	return metrics
}

func (c *Core) callStep(ctx context.Context, b Backend, op *operation) (done, error) {
	r := op.run
	got, err := b.OptimStep(ctx, plugins.OptimStepRequest{Adapter: r.adapter, Position: op.position, Adam: *op.adam})
	if err != nil {
		return done{}, err
	}
	op.future.ran, op.future.boot, got.Execution = got.Execution, b.BootID, plugins.Execution{} // kept with the result, but not part of it
	metrics, record, stored := c.number(b, &op.future.ran, finite(got.Metrics), "clock_cycle")
	got.Metrics = metrics
	batch := store.Batch{Put: record}
	op.future.event = eventOfStep(&got, op.adam)
	op.future.event.Entropies = c.takeEntropies(r, &batch)
	return done{outcome: Outcome{OptimStep: &got}, batch: batch, then: func() {
		stored()
		c.stepped(r, op.seq, got, c.cfg.now())
	}}, nil
}

// stepped notes a step of a run. One that had an import's weights has its own from then on. mu is held.
func (c *Core) stepped(r *run, seq int64, got plugins.OptimStepResult, at time.Time) {
	r.live.stepped(seq, got, at)
	c.markImport(r, false)
}

// markImport notes whether a run has the weights of an import that no step has trained. mu is held.
func (c *Core) markImport(r *run, untrained bool) {
	if r.Import == untrained {
		return
	}
	r.Import = untrained
	c.start(func(ctx context.Context) {
		c.logged("run could not be stored", c.writeRun(context.WithoutCancel(ctx), r), "run", r.ID)
	})
}
