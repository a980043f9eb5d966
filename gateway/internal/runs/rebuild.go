package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// A run whose process went away is rebuilt in the next one. What was with the process comes back into the queue; the adapter is made anew from its seed or loaded from the
// newest recovery point; then the operations since, which have a result already, run again in their order (replay.go), and those without a result run in their place among
// them. Runs are rebuilt concurrently, through the same queue and the same cycles as new work. Their clients notice nothing but the time it takes.

// rebuild is how far a run is on its way into a process. mu of the core guards it.
type rebuild struct {
	reason   string // why it is needed
	boot     string // the process in which it goes on, until that has ended; "" = none
	cutOff   int64  // the lowest past operation that came back from there undecided; 0 = none
	since    time.Time
	done     chan struct{} // closed when it has ended, well or not
	going    bool          // its goroutine runs
	in       *slot         // the backend among whose rebuilds it counts; nil = it waits, or needs no turn
	wanted   time.Time     // since when a sample waits for it; zero = none does
	loaded   bool          // the base is in the process, the past is in the queue
	left     int           // past operations that have not been decided
	running  int           // those of them that the process has
	count    int           // past operations in all
	retries  int           // attempts that failed and are repeated
	failures int           // those of them that failed although the process and the journal were there
	failing  time.Time     // since the first of those
	trouble  string        // why the last attempt failed, if it is repeated; "" = none has failed
	pause    time.Duration // before the next attempt
	unsuited error         // why the backend cannot have the run as it is now, see unsuited
	computed bool          // some state was computed again
	moves    time.Time     // since when, if it was moved without need
	told     time.Time     // when its progress was logged last
}

// Rebuilding is how far the runs of a model are on their way into its process.
type Rebuilding struct {
	Runs     int    // that are rebuilt now
	Replayed int    // operations of theirs that have run again
	ToReplay int    // all that have to, as far as is known: the operations of a run count when its replay begins
	Trouble  string // why an attempt failed that is repeated; "" = none has failed
}

// Rebuilding tells which runs of a model are being rebuilt after a loss of its process or a restart of the server. Runs is 0 when none is.
func (c *Core) Rebuilding(name string) Rebuilding {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out Rebuilding
	troubled := ""
	for _, r := range c.runs {
		if r.ServedModel == name && r.usable() && r.rebuild != nil {
			out.Runs++
			out.Replayed += r.rebuild.replayed()
			out.ToReplay += r.rebuild.count
			if why := r.rebuild.trouble; why != "" && (troubled == "" || r.ID < troubled) {
				troubled, out.Trouble = r.ID, fmt.Sprintf("run %s could not be rebuilt yet: %s", r.ID, why)
			}
		}
	}
	return out
}

// replayed is how many past operations need nothing more. mu is held.
func (b *rebuild) replayed() int {
	if !b.loaded {
		return 0
	}
	return b.count - b.left
}

// tellEvery is how often a rebuild that takes long is logged.
const tellEvery = 10 * time.Second

// minRebuilds is how often a rebuild is tried at least that fails although the backend is there, before the run is given up or waits for another backend.
const minRebuilds = 5

// What passes by itself, such as a disk that does not answer for a moment, is first waited for shortly, then longer, up to these.
const (
	longestForProcess = 2 * time.Second // a new one is made meanwhile
	longestForRebuild = 30 * time.Second
)

// again has the next attempt wait the longer the more have failed. mu is held.
func (b *rebuild) again(failed int, longest time.Duration) {
	b.pause = min(50*time.Millisecond<<min(failed, 10), longest)
}

// interrupt takes note that the process of a run's adapter is gone, or that the adapter is not in it what it should be. mu is held.
func (c *Core) interrupt(r *run, reason string) {
	if !r.usable() || r.State == stateCreating {
		return // a creation tries by itself
	}
	r.boot, r.stay = "", nil
	for _, s := range r.pins {
		s.hot = false
	}
	if r.rebuild == nil {
		level := slog.LevelWarn
		if r.moving != nil {
			level = slog.LevelDebug // it was told that it moves
		}
		c.log.Log(context.Background(), level, "a run is rebuilt", "run", r.ID, "reason", reason)
		r.rebuild = &rebuild{reason: reason, since: c.cfg.now(), done: make(chan struct{})}
		c.recount(r)
		c.changedRebuild(r)
	}
	b := r.rebuild
	c.leaveRebuilds(b)
	b.loaded, b.left, b.running = false, 0, 0
	r.queue.ready = slices.DeleteFunc(r.queue.ready, (*operation).internal)
	r.writing = false
	c.setWritten(r, nil)
	c.startRebuild(r)
}

// startRebuild begins the work once nothing of the run is with the old process any more, all that is finished is in the journal, and nothing is being deleted from it. mu is held.
func (c *Core) startRebuild(r *run) {
	c.continueMove(r)
	if b := r.rebuild; b != nil && !b.loaded && !b.going && !r.pruning && r.queue.ahead == 0 && r.queue.completing == 0 {
		b.going = true
		c.start(func(ctx context.Context) { c.rebuild(ctx, r) })
	}
}

// settled ends a rebuild, well or not. mu is held.
func (c *Core) settled(r *run) {
	if r.rebuild != nil {
		c.leaveRebuilds(r.rebuild)
		close(r.rebuild.done)
		r.rebuild = nil
		c.recount(r)
	}
}

// giveBack puts an operation whose process, or the adapter in it, went away before it was decided back into its place. err is how it came back.
func (c *Core) giveBack(op *operation, reason string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := op.run
	c.gave(&op.blame, err)
	if !r.usable() {
		c.cameBack(op)
		if !op.internal() {
			why := cmp.Or(r.queue.failed, &Failure{Message: fmt.Sprintf("model %s is gone (%s: %s); %s", r.ID, r.State, r.Reason, c.newestOf(r)), Category: CategoryServer})
			c.complete(op, why)
		}
		return
	}
	if !op.internal() {
		r.queue.returned = append(r.queue.returned, op)
	}
	op.cutOff()
	c.interrupt(r, reason)
	c.cameBack(op)
}

// rebuild brings a run's adapter into the process that serves its model now.
func (c *Core) rebuild(ctx context.Context, r *run) {
	for attempt := 0; ; attempt++ {
		if c.awaitAttempt(ctx, r) != nil {
			return
		}
		b, err := c.awaitHome(ctx, r, nil)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = c.whyUnsuited(r)
		}
		if err != nil {
			c.postpone(r, err)
			return
		}
		var p *plan
		if err = c.joinRebuilds(ctx, r, b); err == nil {
			err = c.awaitRebuildTurn(ctx, r, b)
		}
		if err == nil {
			p, err = c.plan(ctx, r)
		}
		if err == nil {
			err = c.restoreBase(ctx, b, r, p)
		}
		if ctx.Err() != nil {
			return
		}
		left := "" // its adapter's id there, if it goes elsewhere
		c.mu.Lock()
		switch {
		case !r.usable():
		case err == nil:
			if now, ok := r.home.current(); ok && now.BootID == b.BootID {
				c.queuePast(r, b, p)
				c.mu.Unlock()
				return
			}
			r.rebuild.again(attempt, longestForProcess)
		case errors.Is(err, errUnloaded):
			c.endRun(r, stateEnded, "it was unloaded", &Failure{Message: "the model was unloaded", Category: CategoryUser})
		case lost(err):
			r.rebuild.again(attempt, longestForProcess)
		case plugins.NoRoom(err) && r.rebuild != nil && c.elsewhere(r):
			left = r.adapter
			c.findHome(r, false)
		case c.tryAgain(r, err):
		case plugins.NoRoom(err) && r.rebuild != nil:
			r.rebuild.unsuited = unsuited(err)
		default:
			c.loseRun(r, "it cannot be rebuilt: "+err.Error())
		}
		c.leaveRebuilds(r.rebuild)
		needed := r.usable() && (r.rebuild == nil || r.rebuild.unsuited == nil)
		usable, adapter := r.usable(), cmp.Or(left, r.adapter)
		c.mu.Unlock()
		if !needed || left != "" { // it has ended while no process was known to have it, or a part of it takes room that it cannot use
			if err := b.DeleteAdapter(ctx, adapter); err != nil && !lost(err) {
				c.logged("adapter could not be deleted", err, "run", r.ID)
			}
		}
		if !usable {
			return
		}
	}
}

// awaitAttempt waits as long as the next attempt of a rebuild is to, or until the run has ended.
func (c *Core) awaitAttempt(ctx context.Context, r *run) error {
	c.mu.Lock()
	b := r.rebuild
	if b == nil {
		c.mu.Unlock()
		return nil
	}
	t := time.NewTimer(b.pause)
	b.pause = 0
	c.mu.Unlock()
	defer t.Stop()
	select {
	case <-t.C:
	case <-b.done:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// tryAgain tells whether a rebuild that failed in a living process may be tried once more. A journal that cannot be read is waited for. Any other fault that may pass by itself, as one of the disk that a recovery point is
// on, is given time: a run that is given up does not come back. Want of memory gives nothing up, so that a few attempts are enough; nor may everything else wait long while a run is rebuilt alone. mu is held.
func (c *Core) tryAgain(r *run, err error) bool {
	b := r.rebuild
	if b == nil {
		return false
	}
	if !errors.Is(err, errStore) {
		var refused *Error
		k := plugins.KindOf(err)
		if errors.As(err, &refused) || errors.Is(err, errBroken) || k != plugins.KindInternal && k != plugins.KindCapacity && k != plugins.KindNotFound {
			return false
		}
		now := c.cfg.now()
		if b.failures++; b.failures == 1 {
			b.failing = now
		}
		enough := k == plugins.KindCapacity || r.home.inquest.rebuild == r || now.Sub(b.failing) >= c.cfg.RebuildPatience
		if b.failures >= minRebuilds && enough {
			return false
		}
	}
	b.trouble = err.Error()
	c.changedRebuild(r)
	b.again(b.retries, longestForRebuild)
	b.retries++
	c.log.Warn("a run could not be rebuilt yet", "run", r.ID, "attempt", b.retries, "next_in", b.pause, "error", err)
	return true
}

// unsuited is why a backend cannot have a run that an earlier process had: it has less memory now, or its configuration takes less (a context that is shorter than an operation of the past). Neither is a fault of the run.
func unsuited(err error) error {
	return fmt.Errorf("the run cannot be rebuilt as the backend is now, and goes on when it can: %w", err)
}

// whyUnsuited is why a run that was being rebuilt is not tried further with the backend that there is; nil if it is.
func (c *Core) whyUnsuited(r *run) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.rebuild == nil {
		return nil
	}
	return r.rebuild.unsuited
}

// postpone fails what waits for a backend that stays dead, or that cannot have the run as it is. The run itself is not given up: its state is in the journal, and its next operation, or the next process, has it rebuilt.
func (c *Core) postpone(r *run, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled(r)
	c.changedRebuild(r)
	waiting := append(r.queue.returned, r.queue.ready...)
	r.queue.returned, r.queue.ready = nil, nil
	for _, op := range waiting {
		if op.seq < r.queue.decided { // what came behind it has a result, which is built on it
			r.queue.returned = append(r.queue.returned, op)
			continue
		}
		c.complete(op, failureOf(err))
	}
	c.proceed(r.home)
}

// restoreBase makes the adapter as it was before the planned operations.
func (c *Core) restoreBase(ctx context.Context, b Backend, r *run, p *plan) error {
	if r.ModelHash != "" && b.Model.ModelHash != r.ModelHash {
		return refusef(KindInvalid, "the weights of %s are not those that it was trained on (SHA-256 %.12s, now %.12s)", r.ServedModel, r.ModelHash, b.Model.ModelHash)
	}
	// An attempt that was broken off may have left it there.
	if err := b.DeleteAdapter(ctx, r.adapter); err != nil {
		return err
	}
	base := p.base
	if base == nil || base.OnTop {
		var err error
		if p.first != nil { // an import may have a shape that no adapter is created with
			var release func()
			if release, err = c.here(ctx, p.first.Dir); err != nil {
				return err
			}
			defer release()
			_, err = b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: r.adapter, Path: c.file(p.first.Dir), Scope: plugins.ScopeWeights, Version: p.first.Version})
		} else {
			_, err = b.CreateAdapter(ctx, r.fresh())
		}
		if err != nil || base == nil {
			return err
		}
	}
	req := plugins.LoadAdapterRequest{Adapter: r.adapter, Path: c.file(base.Dir), Scope: p.scope, Version: base.Version}
	if base.OnTop {
		req.Position, p.position = 1, 1
	}
	release, err := c.here(ctx, base.Dir)
	if err != nil {
		return err
	}
	defer release()
	info, err := b.LoadAdapter(ctx, req)
	if err == nil && info.Version != base.Version {
		err = refusef(KindInvalid, "the backend loaded version %d as %d", base.Version, info.Version)
	}
	return err
}

// queuePast puts the planned operations before those that wait, and lets the queue go on. mu is held.
func (c *Core) queuePast(r *run, b Backend, p *plan) {
	q := &r.queue
	for _, op := range p.ops {
		op.run = r
	}
	for _, op := range append(q.returned, q.ready...) {
		if op.trains && slices.ContainsFunc(p.dropped, func(s span64) bool { return s.From < op.seq && op.seq < s.To }) {
			op.scoreOnly = true
		}
		p.ops = append(p.ops, op)
	}
	slices.SortStableFunc(p.ops, func(a, b *operation) int { return cmp.Compare(a.seq, b.seq) })
	q.returned, q.ready = nil, p.ops
	q.position, q.window = p.position, &window{}
	if p.base != nil && p.scope == plugins.ScopeAccumulator {
		q.window.sent, q.window.passed, q.window.fault = p.base.WindowSent, p.base.WindowSent, p.base.WindowFault
	}
	q.decided = max(q.decided, p.decided)
	if p.failed != nil {
		q.failed = p.failed
	}
	c.moveIn(r, b)
	r.since = sincePoint{at: c.cfg.now()}
	r.rebuild.going, r.rebuild.loaded, r.rebuild.left, r.rebuild.count, r.rebuild.running = false, true, p.past, p.past, 0
	r.rebuild.computed = p.computes
	if p.base != nil {
		r.live.hold(p.base.Seq, r.live.step, p.base.Version, r.live.weightsAt)
		if p.base.OnTop {
			c.markImport(r, p.base.Import)
		}
	}
	if p.past == 0 {
		c.rebuilt(r)
	}
	c.pump(r)
}

// caughtUp counts a past operation that needs nothing more. mu is held.
func (c *Core) caughtUp(r *run) {
	b := r.rebuild
	c.changedRebuild(r)
	if b.left--; b.left == 0 {
		c.rebuilt(r)
		return
	}
	if now := c.cfg.now(); b.told.IsZero() {
		b.told = b.since
	} else if now.Sub(b.told) >= tellEvery {
		b.told = now
		c.log.Info("a run is being rebuilt", "run", r.ID, "replayed", b.replayed(), "to_replay", b.count, "seconds", now.Sub(b.since).Seconds())
	}
}

// rebuilt ends a rebuild that went well. mu is held.
func (c *Core) rebuilt(r *run) {
	b, _ := r.home.current()
	c.log.Info("a run was rebuilt", "run", r.ID, "operations", r.rebuild.count, "seconds", c.cfg.now().Sub(r.rebuild.since).Seconds())
	if why := r.underAnother(b); r.rebuild.computed && why != "" {
		c.inexact(r, why)
	}
	if r.homes > 0 && r.Arithmetic != "" && r.Arithmetic != b.Model.Arithmetic {
		c.inexact(r, "it goes on in the backend "+b.slot.name+", which computes under the arithmetic "+b.Model.Arithmetic+", before under "+r.Arithmetic)
	}
	if r.Arithmetic != b.Model.Arithmetic {
		r.Arithmetic = b.Model.Arithmetic
		c.start(func(ctx context.Context) {
			c.logged("run could not be stored", c.writeRun(context.WithoutCancel(ctx), r), "run", r.ID)
		})
	}
	if r.crashes > 0 {
		r.crashes = 0
		c.keepCharges(rebuildKey+r.ID, func() charges { return charges{Crashes: r.crashes} })
	}
	c.arrivedHome(r)
	c.settled(r)
	c.changedRebuild(r)
	c.cool(r)
	c.proceed(r.home)
	c.start(func(ctx context.Context) { c.prune(ctx, r) })
}

// underAnother tells that a backend computes under another arithmetic than the one that a run's results come from; "" if it does not. mu is held.
func (r *run) underAnother(b Backend) string {
	if r.Arithmetic == "" || plugins.SameArithmetic(r.Arithmetic, b.Model.Arithmetic) {
		return ""
	}
	return "it was computed again under the arithmetic " + b.Model.Arithmetic + ", at first under " + r.Arithmetic
}

// inexact reports that a rebuilt run may not be bit for bit what it was. mu is held.
func (c *Core) inexact(r *run, why string) {
	if r.Inexact != "" {
		return
	}
	r.Inexact = why
	c.changed(r, changedRun)
	c.log.Warn("a rebuilt run may differ in its bits from an undisturbed one", "run", r.ID, "reason", why)
	c.start(func(ctx context.Context) {
		c.logged("run could not be stored", c.writeRun(context.WithoutCancel(ctx), r), "run", r.ID)
	})
}

// awaitRebuilt waits until a run's adapter is where it belongs, or cannot be there as the backend is. mu is held, and given up while waiting.
func (c *Core) awaitRebuilt(ctx context.Context, r *run) error {
	if r.State == stateLive && r.boot == "" && r.rebuild == nil {
		c.interrupt(r, "its backend was not there")
	}
	for r.rebuild != nil {
		b := r.rebuild
		if b.wanted.IsZero() {
			b.wanted = c.cfg.now()
		}
		c.mu.Unlock()
		var err error
		select {
		case <-b.done:
		case <-c.closed:
			err = errClosing
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
		if err != nil {
			return err
		}
		if b.unsuited != nil {
			return refusef(KindBackend, "%v", b.unsuited)
		}
	}
	return nil
}
