package runs

import (
	"context"
	"fmt"
	"math"
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

// execute runs one operation against the backend and completes its future. When the server stops meanwhile the operation stays unfinished in the journal.
func (c *Core) execute(ctx context.Context, op *operation) {
	ctx = trace.ContextWithSpanContext(ctx, op.trace)
	op.future.begun = c.cfg.now().UTC()
	var done done
	var err error
	if op.create != nil {
		done, err = c.create(ctx, op)
	} else {
		done, err = c.perform(ctx, op)
	}
	if err != nil && ctx.Err() != nil {
		return
	}
	if err != nil {
		done = failedWith(failureOf(err))
	}
	r := op.run
	c.finish(ctx, op.future, &done.outcome, op.position, done.batch, func() {
		if done.outcome.Failure != nil && (op.create != nil || op.load != nil) && r.queue.failed == nil {
			what := "creating"
			if op.create == nil || op.create.Path != "" {
				what = "loading"
			}
			r.queue.failed = &Failure{Message: what + " model " + r.ID + " failed: " + done.outcome.Failure.Message, Category: done.outcome.Failure.Category}
		}
		if done.then != nil {
			done.then()
		}
		c.left(op, true)
	})
}

// done is what an operation leads to: its outcome, what becomes durable with it, and what changes in memory then.
type done struct {
	outcome Outcome
	batch   store.Batch
	then    func() // mu is held
}

func failedWith(f *Failure) done { return done{outcome: Outcome{Failure: f}} }

// create makes the adapter of a new run. Nothing is lost when the process goes away meanwhile: the next one is tried.
func (c *Core) create(ctx context.Context, op *operation) (done, error) {
	r := op.run
	for attempt := 0; ; attempt++ {
		b, err := c.backend(ctx, r.model)
		if err == nil {
			_, err = c.createIn(ctx, b, op)
			if err == nil {
				return c.created(op, b), nil
			}
			if lost(err) && attempt < 10 {
				if err := pause(ctx, attempt); err != nil {
					return done{}, err
				}
				continue
			}
		}
		if ctx.Err() != nil {
			return done{}, err
		}
		f := failureOf(err)
		out := failedWith(f)
		out.then = func() {
			if r.usable() {
				r.State, r.Reason = stateFailed, f.Message
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
		return b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: r.ID, Path: c.file(op.create.Dir), Scope: scopeOf(op.create.WithOptimizer)})
	}
	return b.CreateAdapter(ctx, plugins.CreateAdapterRequest{Adapter: r.ID, Config: plugins.AdapterConfig{
		Rank: r.LoRA.Rank, Seed: *r.LoRA.Seed, TrainAttention: r.LoRA.TrainAttn, TrainMLP: r.LoRA.TrainMLP, TrainUnembed: r.LoRA.TrainUnembed,
	}})
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
	if op.create.Path != "" {
		d.outcome.Loaded = &LoadedWeights{Path: op.create.Path, RunID: r.ID}
	} else {
		d.outcome.CreatedRun = &CreatedRun{RunID: r.ID}
	}
	d.then = func() {
		if r.State != stateCreating { // ended meanwhile
			c.start(func(ctx context.Context) {
				if err := b.DeleteAdapter(ctx, r.ID); err != nil && !lost(err) {
					c.logged("adapter could not be deleted", err, "run", r.ID)
				}
			})
			return
		}
		r.State, r.boot, r.Architecture, r.live.weightsAt = stateLive, b.BootID, b.Model.Architecture, c.cfg.now()
		if now, ok := r.model.current(); ok && now.BootID != b.BootID {
			c.loseRun(r, b.reason(nil))
		}
		c.start(func(ctx context.Context) {
			c.logged("run could not be stored", c.writeRun(context.WithoutCancel(ctx), r), "run", r.ID)
		})
	}
	return d
}

// perform runs an operation on a run that exists.
func (c *Core) perform(ctx context.Context, op *operation) (done, error) {
	r := op.run
	c.mu.Lock()
	b, ok := r.model.current()
	boot, usable, state, why := r.boot, r.usable(), r.State, r.Reason
	c.mu.Unlock()
	if !usable {
		return done{}, refusef(KindUnavailable, "the run is gone (%s: %s)", state, why)
	}
	if !ok || b.BootID != boot {
		return c.lostDuring(op, "the backend process was replaced"), nil
	}
	d, err := c.call(ctx, b, op)
	if err != nil && ctx.Err() == nil && lost(err) {
		return c.lostDuring(op, b.reason(err)), nil
	}
	return d, err
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

// lostDuring fails an operation with its run.
func (c *Core) lostDuring(op *operation, reason string) done {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loseRun(op.run, reason)
	return failedWith(&Failure{Message: "the run was lost and is not continued with other weights: " + reason + "; " + c.newestOf(op.run), Category: CategoryServer})
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
		info, err := b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: r.ID, Position: op.position, Path: c.file(op.load.Dir), Scope: scopeOf(op.load.WithOptimizer)})
		if err != nil {
			return done{}, err
		}
		return done{outcome: Outcome{Loaded: &LoadedWeights{Path: op.load.Path, RunID: r.ID}}, then: func() {
			r.live.step, r.live.version, r.live.weightsAt = info.Step, info.Version, c.cfg.now()
		}}, nil
	case op.save != nil && op.save.SamplerID != "":
		return c.callPin(ctx, b, op)
	case op.save != nil:
		return c.callSave(ctx, b, op)
	}
	return done{}, fmt.Errorf("operation %s: has no body", op.future.id)
}

func (c *Core) callPass(ctx context.Context, b Backend, op *operation) (done, error) {
	r := op.run
	pass, err := c.request(ctx, op)
	if err != nil {
		// The position is given away, and the backend waits for it: only an operation can fill it.
		pass = &forwardBackward{}
	}
	req := pass.ForwardBackwardRequest
	req.Adapter, req.Position = r.ID, op.position
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
	got.Metrics = finite(got.Metrics)
	tokens := int64(0)
	for _, d := range req.Data {
		tokens += int64(len(d.Tokens))
	}
	return done{
		outcome: Outcome{ForwardBackward: &ForwardBackwardResult{ForwardBackwardResult: got, K: pass.K}},
		batch:   store.Batch{Add: []store.Record{c.usage(r.Owner, r.SessionID, r.project(), r.BaseModel, UsageTraining, tokens)}},
		then: func() {
			r.live.count(c.cfg.now(), tokens)
			if loss, ok := got.Metrics["loss:sum"]; ok {
				r.live.loss = loss
			}
		},
	}, nil
}

// finite drops the metrics that no client can read.
func finite(metrics map[string]float64) map[string]float64 {
	out := make(map[string]float64, len(metrics))
	for k, v := range metrics {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			out[k] = v
		}
	}
	return out
}

func (c *Core) callStep(ctx context.Context, b Backend, op *operation) (done, error) {
	r := op.run
	got, err := b.OptimStep(ctx, plugins.OptimStepRequest{Adapter: r.ID, Position: op.position, Adam: *op.adam})
	if err != nil {
		return done{}, err
	}
	got.Metrics = finite(got.Metrics)
	return done{outcome: Outcome{OptimStep: &got}, then: func() {
		r.live.step, r.live.version, r.live.weightsAt = got.Step, got.Version, c.cfg.now()
		if v, ok := got.Metrics["grad_norm"]; ok {
			r.live.gradient = v
		}
		if v, ok := got.Metrics["adapter_norm"]; ok {
			r.live.norm = v
		}
	}}, nil
}
