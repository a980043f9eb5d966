package runs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// operation is one accepted operation of a run. The part that belongs to its kind is set.
type operation struct {
	run    *run
	future *future
	kind   OperationKind
	seq    int64
	bytes  int64          // about what it takes in memory and on the way to the backend
	fault  *Failure       // found before it ran: it only takes its place in the order
	ref    store.Record   // the journal's entry, if it was read back
	point  *recoveryPoint // set: no client asked for it; it writes the state as it is at this place
	after  *recoveryPoint // that follows it
	past   *past          // set: it has a result already and only brings a rebuilt adapter to where it was
	trace  trace.SpanContext

	create    *createBody
	pass      *forwardBackward // nil while it is only in the journal
	trains    bool             // a pass with gradients
	scoreOnly bool             // its gradients were dropped with a step that failed: only its result is still wanted
	adam      *plugins.AdamParams
	save      *saveBody
	texts     int64 // bytes of a save's user metadata, as long as it is counted
	storing   int64 // bytes of files that a save is thought to take, likewise
	load      *createBody

	window   *window // that it belongs to
	opened   *window // by a step: the next one
	position int64   // in the order of the process that runs it
	dir      string  // under the data directory: what an attempt that was cut off may have left
	blame    blame
}

// internal tells whether nobody waits for the operation's outcome.
func (op *operation) internal() bool { return op.past != nil || op.point != nil }

// createBody says where weights come from; without a path they are fresh.
type createBody struct {
	Path          string `json:"path,omitempty"`
	Dir           string `json:"dir,omitempty"` // under the data directory
	WithOptimizer bool   `json:"with_optimizer,omitempty"`
}

// queue orders the operations of one run and bounds what is with the backend. mu of the core guards it.
type queue struct {
	sequence   sequencer
	held       map[int64]*operation // arrived, waiting for lower numbers
	ready      []*operation         // in order, not given to the backend
	returned   []*operation         // given to a process that went away with them
	unfinished int                  // accepted and not complete
	buffered   int64                // bytes of requests in memory
	completing int                  // finished without the backend, and not yet in the journal
	pending    map[int64]bool       // the numbers of those that are accepted and not complete
	skipping   int                  // journal entries about skipped numbers that are being written: nothing behind them may run before
	decided    int64                // the highest number that a backend has decided
	numbered   int64                // the last one that was given to an operation without a number

	position   int64 // the last one given away to the process that has the adapter
	ahead      int   // given to the backend and not decided
	aheadBytes int64
	alone      bool // one that must run alone is with the backend

	window *window  // since the last optim_step
	failed *Failure // creation or load failed: so does everything later
}

func newQueue(wait time.Duration) queue {
	return queue{sequence: newSequencer(wait), held: map[int64]*operation{}, pending: map[int64]bool{}, window: &window{}}
}

// window is what is known of the passes with gradients between two optimizer steps. The backend does not know of those that never came there, so that a step of nothing else must not come there either.
type window struct {
	sent   bool     // one was given to the backend
	passed bool     // one has succeeded
	fault  *Failure // of the first one that never came to the backend
	before *window  // whose step never came to the backend, or found no memory there: what it accumulated is there for the step of this one
}

// nothingBut tells whether passes were refused and none was given to the backend.
func (w *window) nothingBut() bool { return !w.sent && w.fault != nil }

// kept tells whether there is a gradient that earlier steps left.
func (w *window) kept() bool {
	for b := w.before; b != nil; b = b.before {
		if b.passed {
			return true
		}
	}
	return false
}

// enqueue puts an operation that needs no number behind everything that has arrived. mu is held.
func (c *Core) enqueue(op *operation) {
	op.run.queue.unfinished++
	c.recount(op.run)
	op.run.queue.pending[op.seq] = true
	op.run.queue.ready = append(op.run.queue.ready, op)
	c.changed(op.run, changedRun)
	c.pump(op.run)
}

// arrived puts a numbered operation in its place. mu is held.
func (c *Core) arrived(op *operation) {
	r := op.run
	q := &r.queue
	q.unfinished++
	c.recount(r)
	q.pending[op.seq] = true
	c.changed(r, changedRun)
	if !r.usable() {
		c.complete(op, &Failure{Message: fmt.Sprintf("model %s is gone (%s: %s); %s", r.ID, r.State, r.Reason, c.newestOf(r)), Category: CategoryServer})
		return
	}
	q.held[op.seq] = op
	ready, ok := q.sequence.arrive(op.seq, c.cfg.now())
	if !ok { // skipped while it was being journalled
		delete(q.held, op.seq)
		c.complete(op, skippedFailure(op.seq))
		return
	}
	c.release(r, ready)
}

func skippedFailure(seq int64) *Failure {
	return &Failure{Message: fmt.Sprintf("operation %d arrived after later ones had begun, because it was missing for too long; it was not run", seq), Category: CategoryUser}
}

// release hands on what the sequencer has decided and sets the timer for what it waits for. mu is held.
func (c *Core) release(r *run, ready []int64) {
	for _, seq := range ready {
		r.queue.ready = append(r.queue.ready, r.queue.held[seq])
		delete(r.queue.held, seq)
	}
	c.journalSkips(r)
	if r.gap != nil {
		r.gap.Stop()
		r.gap = nil
	}
	if at := r.queue.sequence.deadline(); !at.IsZero() && !c.closing {
		r.gap = time.AfterFunc(max(at.Sub(c.cfg.now()), 0), func() { c.skipOverdue(r) })
	}
	c.pump(r)
}

// skipOverdue gives up on numbers that did not come.
func (c *Core) skipOverdue(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || !r.usable() {
		return
	}
	if t := r.turn; t.seq >= r.queue.sequence.next && c.cfg.now().Before(t.until) { // it was here, and will be again
		if r.gap != nil {
			r.gap.Stop()
		}
		r.gap = time.AfterFunc(t.until.Sub(c.cfg.now()), func() { c.skipOverdue(r) })
		return
	}
	c.release(r, r.queue.sequence.overdue(c.cfg.now()))
}

// journalSkips stores which numbers were skipped just now and will never run; what comes after them waits until that is durable. mu is held.
func (c *Core) journalSkips(r *run) {
	skipped := r.queue.sequence.newlySkipped()
	if len(skipped) == 0 {
		return
	}
	var b store.Batch
	for _, s := range skipped {
		b.Put = append(b.Put, s.record(r.ID))
		if t := r.turn; s.From <= t.seq && t.seq < s.To {
			r.tookTurn(t.seq, &b)
		}
		c.log.Info("missing operations were skipped", "run", r.ID, "from", s.From, "to", s.To-1)
	}
	r.queue.skipping++
	c.start(func(ctx context.Context) {
		if c.commitPatiently(context.WithoutCancel(ctx), b) != nil {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		r.queue.skipping--
		c.pump(r)
	})
}

// record is the journal's entry of skipped numbers.
func (s span64) record(runID string) store.Record {
	return store.Record{Collection: inSkips, Key: runID + ":" + itoa(s.From), Parent: runID, Rank: s.From, Count: s.To}
}

// refused takes note of a number that was answered with a refusal. mu is held.
func (c *Core) refused(r *run, seq int64) {
	if r.queue.sequence.seen(seq) {
		return
	}
	c.release(r, r.queue.sequence.refuse(seq))
}

// pump gives the backend what it may have: in order, a bounded number and size ahead, creations, loads and the end alone. mu is held.
func (c *Core) pump(r *run) {
	if r.home != nil {
		defer func() { c.proceed(r.home) }()
	}
	q := &r.queue
	for len(q.ready) > 0 && !c.closing && !q.alone && q.skipping == 0 {
		if r.moving != nil && (r.moving.going || !r.writing) && r.rebuild == nil {
			c.continueMove(r)
			return
		}
		op := q.ready[0]
		if r.State == stateLive && r.boot == "" && r.rebuild == nil {
			c.interrupt(r, "its backend was not there")
		}
		if b := r.rebuild; b != nil && (!b.loaded || !op.internal() && b.running > 0) {
			return // what follows the past must not run on anything else
		}
		alone := op.create != nil || op.load != nil || op.kind == OpUnloadRun
		if op.fault == nil && !op.internal() {
			if op.kind == OpOptimStep && q.window.nothingBut() && q.ahead > 0 {
				return // a step before it may yet leave a gradient
			}
			op.fault = c.faultOf(op)
		}
		op.blame.op = op
		if op.fault == nil {
			if !r.home.inquest.mayRun(&op.blame) {
				return
			}
			if alone && q.ahead > 0 || op.load != nil && q.completing > 0 || q.ahead >= plugins.MaxAhead || q.ahead > 0 && q.aheadBytes+op.bytes > plugins.MaxAheadBytes {
				return
			}
			if op.save != nil && op.save.Path != "" && r.reserved[op.save.Path] {
				return // the record of an earlier save would replace this one's if it became durable later
			}
		} else if q.failed == nil && op.trains && q.window.fault == nil {
			q.window.fault = op.fault
		} else if op.load != nil {
			r.failStart(op, op.fault)
		}
		q.ready[0] = nil // else it stays in memory, with its result, until the slice is moved: for good, if nothing comes behind it
		q.ready = q.ready[1:]
		op.window = q.window
		if op.kind == OpOptimStep {
			op.opened = &window{}
			q.window = op.opened
			if op.fault != nil && (op.past == nil || op.past.kept) {
				op.keepWindow() // the backend does not know of it
			}
		}
		if op.past != nil && op.fault != nil {
			c.caughtUp(r)
			continue
		}
		if op.fault != nil {
			c.complete(op, op.fault)
			continue
		}
		if op.past != nil && op.past.load != nil {
			q.window = &window{}
		}
		if op.trains && !op.scoreOnly {
			q.window.sent, q.window.passed = true, q.window.passed || op.past != nil
		}
		if op.create == nil && op.kind != OpUnloadRun {
			q.position++
			op.position = q.position
		}
		if op.save != nil && op.save.Path != "" {
			r.reserved[op.save.Path] = true
		}
		if op.past != nil {
			r.rebuild.running++
		}
		q.ahead++
		q.aheadBytes += op.bytes
		q.alone = alone
		if next := c.duePoint(op); next != nil {
			q.ready = slices.Insert(q.ready, 0, next)
			op.after = next.point
		}
		if op.future != nil {
			op.blame.what = op.future.id
		}
		if op.create == nil { // a creation finds its process itself
			r.home.give(&op.blame, r.boot)
		}
		c.start(func(ctx context.Context) { c.execute(ctx, op) })
	}
}

// faultOf finds why an operation whose turn has come cannot run. mu is held.
func (c *Core) faultOf(op *operation) *Failure {
	r, q := op.run, &op.run.queue
	switch {
	case op.blame.verdict != nil:
		return failureOf(op.blame.verdict)
	case q.failed != nil && op.kind != OpUnloadRun && (op.load == nil || r.State != stateLive): // a load heals what another one has broken
		return q.failed
	case op.kind == OpOptimStep && q.window.nothingBut() && !q.window.kept():
		why := q.window.fault
		return &Failure{Message: "every forward_backward since the last optim_step failed, the first with: " + why.Message, Category: why.Category}
	case op.save != nil && op.save.Path != "" && !op.save.Overwrite:
		if cp := c.checkpoints[op.save.Path]; r.reserved[op.save.Path] || cp != nil && !expired(cp.ExpiresAt, c.cfg.now()) {
			return &Failure{Message: "ResourceAlreadyExists: there is a checkpoint " + op.save.Path + "; choose another name or delete it", Category: CategoryUser}
		}
	}
	return nil
}

// keepWindow leaves what was accumulated for a step to the next one. mu is held.
func (op *operation) keepWindow() { op.opened.before = op.window }

// complete finishes an operation that the backend never sees. mu is held.
func (c *Core) complete(op *operation, why *Failure) {
	op.run.queue.completing++
	c.start(func(ctx context.Context) {
		if op.dir != "" {
			c.discard(op.dir)
		}
		c.finish(ctx, op.future, &Outcome{Failure: why}, 0, store.Batch{}, func() {
			op.run.queue.completing--
			c.left(op, false)
			c.startRebuild(op.run)
		})
	})
}

// left takes an operation out of the queue's counts and goes on. mu is held.
func (c *Core) left(op *operation, wasAhead bool) {
	q := &op.run.queue
	q.unfinished--
	c.recount(op.run)
	delete(q.pending, op.seq)
	c.saveEnded(op)
	c.clear(&op.blame)
	if op.pass != nil {
		q.buffered -= op.bytes
		c.passBytes -= op.bytes
		op.pass = nil
	}
	if wasAhead {
		q.decided = max(q.decided, op.seq)
		c.cameBack(op)
	}
	c.keepWritten(op.run)
	c.foldSome(op.run)
	c.changed(op.run, changedOperations)
	c.pump(op.run)
}

// cameBack takes an operation out of what is with the backend. mu is held.
func (c *Core) cameBack(op *operation) {
	q := &op.run.queue
	q.ahead--
	q.aheadBytes -= op.bytes
	if op.create != nil || op.load != nil || op.kind == OpUnloadRun {
		q.alone = false
	}
	if op.save != nil {
		delete(op.run.reserved, op.save.Path)
	}
	if op.internal() {
		c.clear(&op.blame)
	}
	c.startRebuild(op.run)
}

// failQueue fails what has not been given to the backend; what is there fails by itself. mu is held.
func (c *Core) failQueue(r *run, why *Failure) {
	waiting := append(r.queue.returned, r.queue.ready...)
	for op := range inOrder(r.queue.held) {
		waiting = append(waiting, op)
	}
	r.queue.returned, r.queue.ready, r.queue.held = nil, nil, map[int64]*operation{}
	for _, op := range waiting {
		if !op.internal() {
			c.complete(op, why)
		}
	}
}

// request gives the pass of an operation, from the journal if memory was short.
func (c *Core) request(ctx context.Context, op *operation) (*forwardBackward, error) {
	c.mu.Lock()
	pass := op.pass
	c.mu.Unlock()
	if pass != nil {
		return pass, nil
	}
	rec := op.ref
	if rec.Key == "" {
		var err error
		if rec, err = c.cfg.Store.Get(ctx, inOperations, op.future.id); err != nil {
			return nil, fmt.Errorf("read operation %s: %w", op.future.id, err)
		}
	}
	payload, err := c.cfg.Store.Payload(ctx, rec)
	if err != nil {
		return nil, fmt.Errorf("read operation %s: %w", rec.Key, err)
	}
	stored, err := decodeForwardBackward(payload)
	if err != nil {
		return nil, fmt.Errorf("read operation %s: %w: %w", rec.Key, store.ErrCorrupt, err)
	}
	return &stored, nil
}
