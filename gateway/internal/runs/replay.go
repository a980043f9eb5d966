package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// Which operations bring an adapter to where it was: those that changed it and succeeded, since the newest load. A pass that failed added nothing, and everything in the window of a step that failed at the
// backend was dropped with it, unless the step found no memory: then it was as if it had not been sent. Saves are not repeated; versions that unnamed samplers use and that are
// not on disk are pinned again. Nothing is looked up that could have changed: the journal holds resolved requests.

// past is what is known of an operation that has its result.
type past struct {
	step *plugins.OptimStepResult // of an optim_step
	pin  *snapshot                // of an unnamed save
	load *recoveryPoint           // of a load_weights: what it loaded
	at   time.Time                // when it had its result; zero = not known
	kept bool                     // what was accumulated before it stayed, if it is a step that failed
}

// plan is how a run is rebuilt.
type plan struct {
	base     *recoveryPoint // nil = the fresh adapter
	first    *recoveryPoint // what the run was made from, if that is still needed
	scope    plugins.Scope  // how much of it is wanted
	position int64          // of the last operation that making the base took
	ops      []*operation
	past     int      // of ops
	computes bool     // some of them compute
	dropped  []span64 // windows, from a step to one that failed, without the two
	decided  int64    // the highest number that a backend has decided
	failed   *Failure // the load failed: so does everything behind it
}

var (
	errUnloaded = errors.New("the run was unloaded")
	errBroken   = errors.New("the journal does not hold what it must")
	errStore    = errors.New("the journal cannot be read now")
)

// journalError tells a journal that is damaged from one that cannot be read at the moment.
func journalError(err error) error {
	if errors.Is(err, store.ErrCorrupt) {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	return fmt.Errorf("%w: %w", errStore, err)
}

// plan reads from the journal what has to be done.
func (c *Core) plan(ctx context.Context, r *run) (*plan, error) {
	c.mu.Lock()
	p := &plan{base: c.basePoint(r), first: r.firstPoint()}
	points := slices.Clone(r.points)
	wanted := map[string]*snapshot{} // by the operation that pinned it
	for _, s := range r.pins {
		if s.dir == "" && s.lost == "" {
			wanted[r.ID+":"+itoa(s.seq)] = s
		}
	}
	skipped := slices.Clone(r.queue.sequence.skipped)
	c.mu.Unlock()
	from := int64(0)
	if p.base != nil {
		from = p.base.Seq + 1
	}
	if p.base != nil {
		p.scope = p.base.Scope
	}
	span := store.Range{From: from, To: unloadSeq + 1}
	operations, err := c.cfg.Store.List(ctx, inOperations, r.ID, span, 0)
	if err != nil {
		return nil, journalError(err)
	}
	results, err := c.cfg.Store.List(ctx, inResults, r.ID, span, 0)
	if err != nil {
		return nil, journalError(err)
	}
	byID := make(map[string]store.Record, len(results))
	for _, rec := range results {
		byID[rec.Key] = rec
	}
	w := windows{plan: p, points: points}
	for _, rec := range operations {
		if covers(skipped, rec.Rank) {
			continue // it came too late, and was never part of the run
		}
		var head operationRecord
		if err := json.Unmarshal(rec.Value, &head); err != nil {
			return nil, fmt.Errorf("%w: operation %s: %w", errBroken, rec.Key, err)
		}
		resRec, finished := byID[rec.Key]
		if !finished {
			continue // it waits in the queue
		}
		var res resultRecord
		if err := json.Unmarshal(resRec.Value, &res); err != nil {
			return nil, fmt.Errorf("%w: result %s: %w", errBroken, rec.Key, err)
		}
		if head.Kind == OpLoadWeights && rec.Rank == 0 {
			return nil, fmt.Errorf("%w: the checkpoint that the run was made from was not kept", errBroken)
		}
		if res.Position > 0 {
			p.decided = max(p.decided, rec.Rank)
		}
		if err := c.planOne(ctx, &w, rec, head, resRec, res, wanted[rec.Key]); err != nil {
			return nil, err
		}
	}
	p.ops = append(p.ops, w.pins...) // queuePast puts them in order
	p.past = len(p.ops)
	return p, nil
}

// windows drops what was accumulated for a step that failed.
type windows struct {
	*plan
	points []*recoveryPoint
	pins   []*operation // they stay when a window is dropped
	first  int          // of ops: the first one since the last step that the backend decided
	last   int64        // the number of that step
}

func (c *Core) planOne(ctx context.Context, w *windows, rec store.Record, head operationRecord, resRec store.Record, res resultRecord, pin *snapshot) error {
	op := &operation{kind: head.Kind, seq: rec.Rank, ref: rec, past: &past{at: res.Done, kept: res.Kept || res.Position == 0}, fault: res.Failure, bytes: max(int64(len(rec.Payload)), rec.Ref.Length)}
	switch head.Kind {
	case OpUnloadRun:
		if res.Failure == nil {
			return errUnloaded
		}
		return nil
	case OpLoadWeights:
		if res.Failure != nil {
			w.failed = &Failure{Message: "loading model " + rec.Parent + " failed: " + res.Failure.Message, Category: res.Failure.Category}
			return nil
		}
		at := slices.IndexFunc(w.points, func(p *recoveryPoint) bool { return p.OnTop && p.Seq == rec.Rank })
		if at < 0 {
			return fmt.Errorf("%w: the checkpoint that operation %d loaded was not kept", errBroken, rec.Rank)
		}
		// What was accumulated before it is cleared, and need not be computed.
		if w.first == 0 {
			w.scope = min(w.scope, plugins.ScopeOptimizer)
		}
		op.past.load, w.failed = w.points[at], nil
		w.ops = append(w.ops[:w.first], op)
		w.first, w.last = len(w.ops), rec.Rank
		return nil
	case OpForwardBackward:
		if head.ForwardOnly {
			return nil
		}
		op.trains = true
	case OpOptimStep:
		if res.Failure == nil {
			op.adam = &plugins.AdamParams{}
			if err := c.readJSON(ctx, rec, op.adam); err != nil {
				return err
			}
			var out Outcome
			if err := c.readJSON(ctx, resRec, &out); err != nil {
				return err
			}
			if out.OptimStep == nil {
				return fmt.Errorf("%w: the result of step %d is empty", errBroken, rec.Rank)
			}
			op.past.step = out.OptimStep
		}
		if res.Position > 0 && !res.Kept {
			if res.Failure != nil {
				if w.first == 0 { // what was accumulated in the base is dropped as well
					w.scope = min(w.scope, plugins.ScopeOptimizer)
				}
				w.ops = w.ops[:w.first]
				w.dropped = append(w.dropped, span64{w.last, rec.Rank})
			}
			w.ops = append(w.ops, op)
			w.first, w.last = len(w.ops), rec.Rank
			w.computes = true
			return nil
		}
	case OpSaveForSampler:
		if pin == nil || res.Failure != nil {
			return nil
		}
		op.past.pin = pin
		op.save = &saveBody{}
		w.pins = append(w.pins, op)
		return c.readJSON(ctx, rec, op.save)
	default:
		return nil
	}
	w.ops = append(w.ops, op)
	w.computes = true
	return nil
}

func (c *Core) readJSON(ctx context.Context, rec store.Record, into any) error {
	payload, err := c.cfg.Store.Payload(ctx, rec)
	if err != nil {
		return journalError(err)
	}
	if err := json.Unmarshal(payload, into); err != nil {
		return fmt.Errorf("%w: %s %s: %w", errBroken, rec.Collection, rec.Key, err)
	}
	return nil
}

// replay runs one past operation.
func (c *Core) replay(ctx context.Context, b Backend, op *operation) error {
	r := op.run
	switch {
	case op.trains:
		pass, err := c.request(ctx, op)
		if err != nil {
			return journalError(err)
		}
		req := pass.ForwardBackwardRequest
		req.Adapter, req.Position, req.Share = r.adapter, op.position, c.shareOf(r)
		got, err := b.ForwardBackward(ctx, req)
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		r.live.passed(op.seq, got.Metrics)
		return nil
	case op.adam != nil:
		got, err := b.OptimStep(ctx, plugins.OptimStepRequest{Adapter: r.adapter, Position: op.position, Adam: *op.adam})
		if err != nil {
			return err
		}
		was := op.past.step
		if got.Version != was.Version || got.Step != was.Step {
			return fmt.Errorf("%w: operation %d made version %d of step %d, at first version %d of step %d", errBroken, op.seq, got.Version, got.Step, was.Version, was.Step)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stepped(r, op.seq, got, later(r.live.weightsAt, op.past.at))
		for _, name := range []string{"grad_norm", "adapter_norm"} {
			if got.Metrics[name] != was.Metrics[name] {
				c.inexact(r, cmp.Or(r.underAnother(b), fmt.Sprintf("the %s of step %d is %v, at first it was %v", name, got.Step, got.Metrics[name], was.Metrics[name])))
			}
		}
		return nil
	case op.past.load != nil:
		p := op.past.load
		release, err := c.here(ctx, p.Dir)
		if err != nil {
			return err
		}
		defer release()
		got, err := b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: r.adapter, Position: op.position, Path: c.file(p.Dir), Scope: p.Scope, Version: p.Version})
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		r.live.loaded(op.seq, got.Step, got.Version, later(r.live.weightsAt, op.past.at))
		c.markImport(r, p.Import)
		return nil
	case op.past.pin != nil:
		got, err := b.Pin(ctx, plugins.PinRequest{Adapter: r.adapter, Position: op.position, Name: op.save.SamplerID, WeightsOnly: true})
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		s := op.past.pin
		if got.Version != s.version {
			return fmt.Errorf("%w: the weights of sampler %s are version %d, at first they were %d", errBroken, op.save.SamplerID, got.Version, s.version)
		}
		if r.boot == b.BootID && s.dir == "" && s.lost == "" {
			s.pin, s.hot, s.used = op.save.SamplerID, true, c.cfg.now()
			c.writeSoon(s)
		}
		return nil
	}
	return fmt.Errorf("%w: operation %d has no body", errBroken, op.seq)
}

// replayed takes note of a past operation that came back.
func (c *Core) replayed(ctx context.Context, op *operation, b Backend, err error) {
	r := op.run
	if err != nil && c.wentAway(r, b, err) {
		c.giveBack(op, b.reason(err), err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	again := false
	switch current := r.rebuild != nil && r.rebuild.loaded && r.boot == b.BootID && r.usable(); {
	case !current:
	case err == nil:
		r.rebuild.running--
		c.caughtUp(r)
	case c.tryAgain(r, err):
		c.interrupt(r, err.Error())
		again = true
	case plugins.NoRoom(err), plugins.KindOf(err) == plugins.KindInvalid:
		r.rebuild.unsuited = cmp.Or(r.rebuild.unsuited, unsuited(fmt.Errorf("operation %d, which had succeeded, failed: %w", op.seq, err)))
		c.interrupt(r, err.Error())
		again = true
	default:
		c.loseRun(r, fmt.Sprintf("it cannot be rebuilt: operation %d, which had succeeded, failed: %v", op.seq, err))
	}
	if again { // what waits in the backend for this operation must come back; this one holds up the next attempt until then
		c.mu.Unlock()
		if err := b.DeleteAdapter(ctx, r.adapter); err != nil && !lost(err) {
			c.logged("adapter could not be deleted", err, "run", r.ID)
		}
		c.mu.Lock()
	}
	c.cameBack(op)
	c.pump(r)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
