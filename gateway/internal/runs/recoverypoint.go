package runs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// recoveryPoint is a state of a run on disk from which its adapter can be rebuilt: what it was loaded from at first, or what was saved on the way. It is complete up to and
// including operation Seq. It is never changed.
type recoveryPoint struct {
	RunID     string        `json:"run_id"`
	Seq       int64         `json:"seq"`
	Dir       string        `json:"dir"` // a checkpoint, under the data directory
	Version   int64         `json:"version"`
	Scope     plugins.Scope `json:"scope"`
	OnTop     bool          `json:"on_top,omitempty"` // a checkpoint that operation Seq loaded into the adapter, as it is still to be: its configuration is the run's own; else the adapter is made from it
	Import    bool          `json:"import,omitempty"` // OnTop of what no step has trained since it was imported
	CreatedAt time.Time     `json:"created_at"`

	// With an accumulator: what the queue knew of its window.
	WindowSent  bool     `json:"window_sent,omitempty"`
	WindowFault *Failure `json:"window_fault,omitempty"`

	void bool // the step before it found no memory, and its gradient, which is still needed, is not in the point
}

func (p *recoveryPoint) record() store.Record {
	return store.Record{Collection: inPoints, Key: p.Dir, Parent: p.RunID, Rank: p.Seq, Value: mustJSON(p)}
}

// keepLoaded links a checkpoint that is about to be loaded, so that the run can be rebuilt from it when the checkpoint itself has been deleted. It is in op.dir then, and settled once it is loaded.
func (c *Core) keepLoaded(ctx context.Context, op *operation, body *createBody) error {
	if op.dir != "" { // by an attempt before, in whose process the load was not finished
		return nil
	}
	dir := filepath.Join("recovery", op.run.ID, itoa(op.seq)+"-loaded~"+c.newID("", "", "")[:8])
	if err := makeDirs(filepath.Dir(c.file(dir))); err != nil {
		return fmt.Errorf("keep the loaded checkpoint: %w", err)
	}
	release, err := c.here(ctx, body.Dir)
	if err != nil {
		return fmt.Errorf("keep the loaded checkpoint: %w", err)
	}
	defer release()
	err = copyDir(c.file(body.Dir), c.file(unsettledName(dir)))
	if errors.Is(err, fs.ErrNotExist) {
		return notFoundf("checkpoint %s is deleted", body.Path)
	}
	if err != nil {
		return fmt.Errorf("keep the loaded checkpoint: %w", err)
	}
	op.dir = dir
	return nil
}

// firstPoint is the checkpoint that a run was made from, as long as it is kept; nil for one that was made fresh. mu is held.
func (r *run) firstPoint() *recoveryPoint {
	i := slices.IndexFunc(r.points, func(p *recoveryPoint) bool { return p.Seq == 0 })
	if i < 0 {
		return nil
	}
	return r.points[i]
}

// basePoint is the newest state from which everything that is still wanted of a run can be reached: the run as it is, and every version that an unnamed sampler uses and that is
// not on disk. nil = the fresh adapter. mu is held.
func (c *Core) basePoint(r *run) *recoveryPoint {
	wanted := int64(unloadSeq)
	for _, s := range r.pins {
		if s.dir == "" && s.lost == "" {
			wanted = min(wanted, s.seq)
		}
	}
	var base *recoveryPoint
	for _, p := range r.points {
		if p.Seq <= wanted && (base == nil || p.Seq > base.Seq) {
			base = p
		}
	}
	return base
}

// pointWaits tells whether a recovery point of some run is to be written, or is just written, from a backend: one at a time, because each keeps a version in its memory. Else the next run whose
// state is due has its turn, so that all have it however much else waits for the disk. mu is held.
func (s *slot) pointWaits() bool {
	r := s.point
	return r != nil && r.usable() && r.writing && r.home == s
}

// pointWritten lets the next run have its turn, once the backend need not hold a run's version any more. mu is held.
func (s *slot) pointWritten(r *run) {
	if s.point == r {
		s.point = nil
	}
}

// sincePoint is what a run did since its state was written last.
type sincePoint struct {
	at         time.Time
	operations int
	passes     int // since the last step or recovery point
}

// duePoint decides whether the state after an operation that was just given to the backend is to be written: after a step, where a version is all that is needed, or after many
// passes without one, with the accumulated gradient. A rebuild writes it, too: one that takes long and is cut off again and again would otherwise begin at the same place each time. mu is held.
func (c *Core) duePoint(op *operation) *operation {
	r, now := op.run, c.cfg.now()
	if op.point != nil || op.create != nil || op.kind == OpUnloadRun {
		return nil
	}
	if op.past != nil && slices.ContainsFunc(r.points, func(p *recoveryPoint) bool { return p.Seq >= op.seq }) {
		return nil // the rebuild begins before it for the sake of a sampler's version
	}
	r.since.operations++
	if op.trains {
		r.since.passes++
	}
	scope := plugins.ScopeOptimizer
	switch {
	case op.kind == OpOptimStep:
		r.since.passes = 0
	case op.trains && r.since.passes >= 4*c.cfg.PointOperations:
		scope = plugins.ScopeAccumulator
	default:
		return nil
	}
	if r.since.at.IsZero() {
		r.since.at = r.CreatedAt
	}
	early := r.since.operations < c.cfg.PointOperations && now.Sub(r.since.at) < c.cfg.PointEvery
	if early || r.writing || r.moving != nil || r.home.pointWaits() {
		return nil
	}
	p := &recoveryPoint{RunID: r.ID, Seq: op.seq, Scope: scope, CreatedAt: now.UTC(), Dir: filepath.Join("recovery", r.ID, itoa(op.seq)+"~"+c.newID("", "", "")[:8])}
	if scope == plugins.ScopeAccumulator {
		p.WindowSent, p.WindowFault = r.queue.window.sent, r.queue.window.fault
	}
	r.writing, r.since, r.home.point = true, sincePoint{at: now}, r
	return &operation{run: r, seq: op.seq, point: p}
}

// takePoint writes the state at its place in the order: a version is only pinned there and written in the background; the accumulated gradient has to be written in its place.
func (c *Core) takePoint(ctx context.Context, b Backend, op *operation) {
	r, p := op.run, op.point
	pin := "recovery-" + itoa(p.Seq)
	var err error
	if p.Scope == plugins.ScopeOptimizer {
		var got plugins.PinResult
		got, err = b.Pin(ctx, plugins.PinRequest{Adapter: r.adapter, Position: op.position, Name: pin})
		p.Version = got.Version
	} else {
		if dirErr := makeDirs(filepath.Dir(c.file(p.Dir))); dirErr != nil {
			c.log.Error("the folder of a recovery point could not be made", "run", r.ID, "error", dirErr)
		}
		var got plugins.SaveAdapterResult
		got, err = b.SaveAdapter(ctx, plugins.SaveAdapterRequest{Adapter: r.adapter, Position: op.position, Scope: p.Scope, Path: c.file(unsettledName(p.Dir)), Metadata: c.ofPoint(r, p)})
		p.Version = got.Version
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil && c.wentAway(r, b, err) {
		c.discard(p.Dir)
		c.giveBack(op, b.reason(err), err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil: // such as a step whose failure broke the load before it: the next one is tried again
		c.log.Warn("a recovery point could not be taken", "run", r.ID, "error", err)
		r.writing = false
	case p.Scope == plugins.ScopeOptimizer:
		adapter := r.adapter // as it is called in this process
		c.disk.points = append(c.disk.points, func(ctx context.Context) { c.writePoint(ctx, b, r, adapter, p, pin) })
		c.writeBehind()
	default:
		b.slot.pointWritten(r)
		c.setWritten(r, p)
	}
	c.cameBack(op)
	c.keepWritten(r)
	c.pump(r)
}

// writePoint writes a pinned version with its optimizer state.
func (c *Core) writePoint(ctx context.Context, b Backend, r *run, adapter string, p *recoveryPoint, pin string) {
	err := makeDirs(filepath.Dir(c.file(p.Dir)))
	if err == nil {
		_, err = b.SaveAdapter(ctx, plugins.SaveAdapterRequest{Adapter: adapter, Version: p.Version, Scope: p.Scope, Path: c.file(unsettledName(p.Dir)), Metadata: c.ofPoint(r, p)})
	}
	if err != nil {
		c.discard(p.Dir)
	}
	if err != nil && !lost(err) && ctx.Err() == nil {
		c.log.Warn("a recovery point could not be written", "run", r.ID, "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b.slot.pointWritten(r)
	if r.boot != b.BootID || !r.usable() { // it was interrupted; the pin is gone with the adapter
		if err == nil {
			c.start(func(context.Context) { c.discard(p.Dir) })
		}
		return
	}
	c.unpin(b, adapter, pin)
	if err != nil {
		r.writing = false
		c.continueMove(r)
		return
	}
	c.setWritten(r, p)
	c.keepWritten(r)
}

// setWritten notes a recovery point that is on disk, in place of one that is not wanted any more. mu is held.
func (c *Core) setWritten(r *run, p *recoveryPoint) {
	if old := r.written; old != nil {
		c.start(func(context.Context) { c.discard(old.Dir) })
	}
	r.written = p
}

// keepWritten makes a recovery point count once every operation up to its place has its result in the journal: what is before it will not be run again. mu is held.
func (c *Core) keepWritten(r *run) {
	p := r.written
	if p == nil {
		return
	}
	for seq := range r.queue.pending {
		if seq <= p.Seq {
			return
		}
	}
	r.written = nil
	if p.void || !r.usable() {
		r.writing = false
		c.continueMove(r)
		c.start(func(context.Context) { c.discard(p.Dir) })
		return
	}
	c.start(func(ctx context.Context) {
		p.Dir = c.settle(p.Dir)
		if c.commitPatiently(context.WithoutCancel(ctx), store.Batch{Put: []store.Record{p.record()}}) != nil {
			return
		}
		c.mu.Lock()
		r.points = append(r.points, p)
		r.writing = false
		usable := r.usable()
		c.continueMove(r)
		c.mu.Unlock()
		if !usable {
			c.logged("recovery points could not be deleted", c.dropPoints(context.WithoutCancel(ctx), r, math.MaxInt64), "run", r.ID)
			return
		}
		c.prune(ctx, r)
	})
}

// prune deletes the recovery points that nothing needs any more, and gives up the requests that newer ones cover. Of those the keys and hashes stay. It leaves all of them to a rebuild that is under
// way, which may have begun at an older point, and a rebuild does not begin before it ends. While it goes on already it begins again at its end.
func (c *Core) prune(ctx context.Context, r *run) {
	ctx = context.WithoutCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.prunable = true
	for r.prunable && !r.pruning {
		base := c.basePoint(r)
		if base == nil || !r.usable() || r.rebuild != nil {
			return
		}
		r.pruning, r.prunable = true, false
		c.mu.Unlock()
		// While the requests are still there an older point would do as well, so they go last.
		err := c.dropPoints(ctx, r, base.Seq)
		if err == nil {
			span := store.Span{Collection: inOperations, Parent: r.ID, Range: store.Range{From: 0, To: base.Seq + 1}}
			err = c.cfg.Store.Commit(ctx, store.Batch{Release: []store.Span{span}})
		}
		c.logged("the journal could not be pruned", err, "run", r.ID)
		c.mu.Lock()
		r.pruning = false
		c.released = c.released || err == nil
		c.startRebuild(r)
	}
}

// dropPoints deletes the recovery points of a run that lie before an operation, but for the one that it was made from while that operation is a load, which needs an adapter to be loaded into. Those of a run that was lost are
// set aside.
func (c *Core) dropPoints(ctx context.Context, r *run, before int64) error {
	var b store.Batch
	var dropped, kept []*recoveryPoint
	c.mu.Lock()
	onTop := slices.ContainsFunc(r.points, func(p *recoveryPoint) bool { return p.OnTop && p.Seq == before })
	for _, p := range r.points {
		if p.Seq < before && !(onTop && p.Seq == 0) {
			dropped = append(dropped, p)
		} else {
			kept = append(kept, p)
		}
	}
	r.points = kept
	corrupted := r.State == stateCorrupted // then they are the newest that is left of it, and somebody may want them
	c.mu.Unlock()
	var dirs []string
	for _, p := range dropped {
		dirs = append(dirs, p.Dir)
		b.Delete = append(b.Delete, store.RecordKey{Collection: inPoints, Key: p.Dir})
		if !corrupted {
			b.Put = append(b.Put, c.deletion(p.Dir, "nothing needs the recovery point any more"))
		}
	}
	if len(dropped) == 0 {
		return nil
	}
	if err := c.cfg.Store.Commit(ctx, b); err != nil {
		return fmt.Errorf("drop recovery points: %w", err)
	}
	if corrupted {
		return c.setAside("it is a recovery point of a run that could not be rebuilt", dirs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.erase(dirs...)
	return nil
}

// makeDirs makes a folder and those above it, and makes their names durable.
func makeDirs(path string) error {
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", path)
		}
		return nil
	}
	parent := filepath.Dir(path)
	if err := makeDirs(parent); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return durable.SyncFolder(parent)
}
