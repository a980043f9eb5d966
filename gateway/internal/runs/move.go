package runs

import (
	"cmp"
	"context"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// How a run moves while its backend lives. Nothing more of it is sent; when all that was sent has its result, the versions that samplers use and the state (weights, moments, accumulated gradient) are written as a recovery point,
// and the run is rebuilt from that in its new home, with nothing to compute again: so its bits are those of one that never moved. What samples from it where it was goes on there, and then the adapter is deleted.

// move is one that is under way. mu of the core guards it.
type move struct {
	to    *slot
	why   string
	since time.Time
	going bool // its state is being written
}

// moves is what is known of the moves of a model's runs.
type moves struct {
	balancing *run    // the run that is moved because of load; one at a time
	count     int64   // that were made while a backend lived
	seconds   float64 // what one took of late, from the moment on from which nothing was sent; 0 = none was made
}

const (
	minImbalance = 1.25             // so many times busier than the other would be then is a backend from which a run moves
	worthHorizon = time.Minute      // a run is thought to go on for as long as it has, and no longer than this
	worthFactor  = 2                // so many times what it costs a move has to save
	guessedMove  = 1.0              // seconds, as long as none was measured
	restFor      = 10 * time.Second // a run that was moved stays at least so long
)

// startMove has a run move, if it is in a process and moves nowhere yet. mu is held.
func (c *Core) startMove(r *run, to *slot, why string) bool {
	if r.moving != nil || r.rebuild != nil || r.State != stateLive || r.boot == "" || to == r.home {
		return false
	}
	r.moving = &move{to: to, why: why, since: c.cfg.now()}
	c.recount(r)
	c.continueMove(r)
	return true
}

// continueMove begins to write the state of a run that moves, once nothing of it is with its backend and all it did is in the journal. mu is held.
func (c *Core) continueMove(r *run) {
	v := r.moving
	if v == nil || v.going {
		return
	}
	if r.State != stateLive || r.rebuild != nil { // its process went away: the rebuild finds it a home
		c.endMove(r)
		return
	}
	q := &r.queue
	if q.ahead > 0 || q.completing > 0 || q.skipping > 0 || r.pruning || r.writing {
		return
	}
	v.going = true
	c.start(func(ctx context.Context) { c.moveState(ctx, r, v) })
}

// endMove ends a move, made or not. mu is held.
func (c *Core) endMove(r *run) {
	r.moving = nil
	c.recount(r)
	if m := r.model; m.moves.balancing == r {
		m.moves.balancing = nil
	}
}

// moveState writes what a run is made of, and has it rebuilt in its new home.
func (c *Core) moveState(ctx context.Context, r *run, v *move) {
	b, ok := c.holder(r)
	if ok {
		ok = c.writeState(ctx, b, r)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.moving != v || ctx.Err() != nil {
		return
	}
	to := v.to
	if !to.usable() {
		to = c.destination(r)
	}
	if !ok || to == nil || r.State != stateLive || r.rebuild != nil || r.boot != b.BootID || r.queue.ahead > 0 {
		c.endMove(r)
		c.pump(r)
		return
	}
	old := r.stay
	c.rehome(r, to, v.why)
	c.interrupt(r, v.why)
	r.rebuild.moves = v.since
	old.over = true
	c.vacate(old)
	r.moving = nil // it counts as under way until it has been rebuilt
	c.recount(r)
}

// writeState writes the versions of a run that samplers use and a recovery point of the state that it has now. False: its process is gone.
func (c *Core) writeState(ctx context.Context, b Backend, r *run) bool {
	c.mu.Lock()
	for _, s := range r.hotSnapshots() {
		if err := c.publish(ctx, s); err != nil { // then it is computed again, from an older point
			c.logged("a snapshot could not be written", err, "run", r.ID, "version", s.version)
		}
	}
	q := &r.queue
	from := int64(0)
	base := c.basePoint(r)
	if base != nil {
		from = base.Seq
	}
	if q.decided <= from || r.boot != b.BootID {
		c.mu.Unlock()
		return true
	}
	p := &recoveryPoint{RunID: r.ID, Seq: q.settledUpTo(), Scope: plugins.ScopeOptimizer, CreatedAt: c.cfg.now().UTC()}
	p.Dir = filepath.Join("recovery", r.ID, itoa(p.Seq)+"~"+c.newID("", "", "")[:8])
	if w := q.window; w.sent || w.fault != nil || w.kept() {
		p.Scope, p.WindowSent, p.WindowFault = plugins.ScopeAccumulator, w.sent || w.kept(), w.fault
	}
	q.position++
	req := plugins.SaveAdapterRequest{Adapter: r.adapter, Position: q.position, Scope: p.Scope, Path: c.file(unsettledName(p.Dir))}
	r.writing = true
	c.mu.Unlock()
	req.Metadata = c.ofPoint(r, p)
	err := makeDirs(filepath.Dir(c.file(p.Dir)))
	if err != nil {
		c.log.Error("the folder of a recovery point could not be made", "run", r.ID, "error", err)
	}
	got, err := b.SaveAdapter(ctx, req)
	if err == nil {
		p.Version, p.Dir = got.Version, c.settle(p.Dir)
		err = c.commitPatiently(context.WithoutCancel(ctx), store.Batch{Put: []store.Record{p.record()}})
	} else {
		c.discard(p.Dir)
		if !lost(err) && ctx.Err() == nil { // such as a load that failed before: all since the newest point is computed again
			c.log.Warn("a recovery point could not be taken", "run", r.ID, "error", err)
		}
	}
	c.mu.Lock()
	r.writing = false
	usable := r.usable()
	if err == nil {
		r.points = append(r.points, p)
	}
	c.mu.Unlock()
	if err == nil && !usable {
		c.logged("recovery points could not be deleted", c.dropPoints(context.WithoutCancel(ctx), r, math.MaxInt64), "run", r.ID)
	}
	return !lost(err)
}

// settledUpTo is the highest number up to which every operation has its result, or will never run.
func (q *queue) settledUpTo() int64 {
	upTo := q.sequence.next - 1
	for seq := range q.pending {
		upTo = min(upTo, seq-1)
	}
	return upTo
}

// arrivedHome takes note that a run was rebuilt. mu is held.
func (c *Core) arrivedHome(r *run) {
	r.full = nil
	m := r.model
	if !m.pooled() {
		return
	}
	if began := r.rebuild.moves; !began.IsZero() {
		took := c.cfg.now().Sub(began).Seconds()
		if m.moves.count++; m.moves.seconds == 0 {
			m.moves.seconds = took
		}
		m.moves.seconds += 0.2 * (took - m.moves.seconds)
	}
	if m.moves.balancing == r {
		m.moves.balancing = nil
	}
	c.start(func(context.Context) { // when the rebuild is over
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.home.drained && r.usable() {
			if to := c.destination(r); to != nil {
				c.startMove(r, to, "its backend is drained")
			}
		}
		if m.residents.rebuilding == 0 { // the last one does it
			c.rebalance(m)
		}
	})
}

// elsewhere tells whether there is another backend for a run that its home has no room for. mu is held.
func (c *Core) elsewhere(r *run) bool {
	if !r.model.pooled() || r.suspected() {
		return false
	}
	if r.full == nil {
		r.full = map[*slot]bool{}
	}
	r.full[r.home] = true
	return slices.ContainsFunc(r.model.slots, func(s *slot) bool { return s.usable() && !r.full[s] && r.sameArithmetic(s) })
}

// tryElsewhere gives a run that is being made, and for which there is no room, another home, if there is one.
func (c *Core) tryElsewhere(r *run) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.usable() || !c.elsewhere(r) {
		return false
	}
	c.findHome(r, false)
	return true
}

// destination is where a run of a backend that is drained goes: to one of the same arithmetic, and to another only if none of the same is left. mu is held.
func (c *Core) destination(r *run) *slot {
	other := func(s *slot) bool { return s != r.home && s.failed == nil && !s.drained && !s.odd }
	if slices.ContainsFunc(r.model.slots, func(s *slot) bool { return other(s) && r.sameArithmetic(s) }) {
		return c.chooseHome(r, func(s *slot) bool { return other(s) && s.running && r.sameArithmetic(s) })
	}
	return c.chooseHome(r, func(s *slot) bool { return other(s) && s.running && r.sameWeights(s) })
}

// rebalance has the runs of drained backends move, and one run of a backend that is far busier than another. mu is held.
func (c *Core) rebalance(m *model) {
	if !m.pooled() || c.closing {
		return
	}
	for _, s := range m.slots {
		if !s.drained {
			continue
		}
		for _, r := range s.homed() {
			if to := c.destination(r); to != nil {
				c.startMove(r, to, "its backend is drained")
			}
		}
	}
	if b := m.moves.balancing; b != nil && (!b.usable() || b.moving == nil && b.rebuild == nil) { // it has ended on its way
		m.moves.balancing = nil
	}
	c.watchUsage(m)
	if m.moves.balancing != nil || m.residents.rebuilding > 0 { // while any is rebuilt, who is busy says little
		return
	}
	if r, to := c.worthMoving(m); r != nil && c.startMove(r, to, "its backend is busier than the other") {
		m.moves.balancing = r
	}
}

// worthMoving finds a run whose move to another backend saves more than it costs; nil if there is none. mu is held.
func (c *Core) worthMoving(m *model) (*run, *slot) {
	all, speeds := c.residents(m), c.speeds(m)
	load := func(s *slot, more int) float64 { return float64(all.places[s.index].active+more) / speeds[s.index] }
	var from *slot
	for _, s := range m.slots {
		if s.usable() && (from == nil || load(s, 0) > load(from, 0)) {
			from = s
		}
	}
	if from == nil || from.idle() {
		return nil, nil
	}
	var targets []*slot // that would be less busy by enough, the least busy first
	for _, s := range m.slots {
		if s != from && s.usable() && !s.inquest.open && load(from, 0) >= minImbalance*load(s, 1) {
			targets = append(targets, s)
		}
	}
	if len(targets) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(targets, func(a, b *slot) int { return cmp.Compare(load(a, 1), load(b, 1)) })
	cost := guessedMove
	if m.moves.seconds > 0 {
		cost = m.moves.seconds
	}
	now := c.cfg.now()
	for _, r := range from.homed() {
		if !c.active(r) || r.moving != nil || r.suspected() || now.Sub(r.moved) < max(restFor, time.Duration(worthFactor*cost*float64(time.Second))) {
			continue
		}
		i := slices.IndexFunc(targets, r.sameArithmetic)
		if i < 0 {
			continue
		}
		horizon := min(now.Sub(r.CreatedAt), worthHorizon).Seconds()
		if saved := horizon * (1 - load(targets[i], 1)/load(from, 0)); saved > worthFactor*cost {
			return r, targets[i]
		}
	}
	return nil, nil
}

// usage is how much of its time a backend has worked, as it said itself. mu of the core guards it.
type usage struct {
	at      time.Time // when it was looked at last
	seconds float64   // of work until then
	share   float64   // of the time before that it worked; negative = not known
}

const (
	usageEvery = 5 * time.Second
	usageIdle  = 0.5 // a backend that works no more than this share of the time makes few wait
)

// idle tells whether a backend is known to have so much time left that a run gains nothing elsewhere. mu is held.
func (s *slot) idle() bool { return s.usage.share >= 0 && s.usage.share <= usageIdle }

// watchUsage looks how much the backends of a model have worked of late. mu is held.
func (c *Core) watchUsage(m *model) {
	for _, s := range m.slots {
		st, now := c.status(s), c.cfg.now()
		seconds := st.CycleSeconds + st.SamplingSeconds
		u := &s.usage
		switch passed := now.Sub(u.at); {
		case seconds < u.seconds || seconds == 0 || u.at.IsZero(): // another process, or nothing is known
			*u = usage{at: now, seconds: seconds, share: -1}
		case passed >= usageEvery:
			*u = usage{at: now, seconds: seconds, share: (seconds - u.seconds) / passed.Seconds()}
		}
	}
}

// status is what a backend has said of itself last, if anything. mu is held.
func (c *Core) status(s *slot) plugins.Status {
	if c.cfg.Status == nil {
		return plugins.Status{}
	}
	return c.cfg.Status(s.name)
}

// speeds are what the backends of a model train in a second of their cycles, in tokens, beside the fastest of them; 1 where that is not known of all. mu is held.
func (c *Core) speeds(m *model) []float64 {
	const enough = 5.0 // seconds of cycles, before they tell anything
	out, fastest := make([]float64, len(m.slots)), 0.0
	for i, s := range m.slots {
		st := c.status(s)
		if st.CycleSeconds < enough || st.TrainedTokens == 0 { // they cannot be compared
			return slices.Repeat([]float64{1}, len(m.slots))
		}
		out[i] = float64(st.TrainedTokens) / st.CycleSeconds
		fastest = max(fastest, out[i])
	}
	for i := range out {
		out[i] /= fastest
	}
	return out
}

// BackendInfo describes one backend of a model.
type BackendInfo struct {
	Model      string
	Name       string
	Drained    bool
	Odd        bool // it has other weights than the model's other backends, and gets no work
	Runs       int  // whose home it is
	Active     int  // of them: with work, or with some a moment ago
	Leaving    int  // of them: that are moving elsewhere
	Samples    int  // sequences that it was given, where there are several backends
	Versions   int  // saved versions that it has for sampling
	Arithmetic string
}

// BackendInfos describes the backends of all models, in the order of the configuration.
func (c *Core) BackendInfos() []BackendInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []BackendInfo
	for _, m := range c.models {
		all := c.residents(m)
		for _, s := range m.slots {
			has := all.places[s.index]
			info := BackendInfo{
				Model: m.Name, Name: s.name, Drained: s.drained, Odd: s.odd, Runs: has.runs, Active: has.active, Leaving: has.leaving, Samples: s.sequences, Versions: len(s.frozen),
			}
			if s.running {
				info.Arithmetic = s.known.Model.Arithmetic
			}
			list = append(list, info)
		}
	}
	return list
}
