package runs

import (
	"context"
	"fmt"
	"slices"
)

// A model may have several backends. Each is a slot: the place of one process after the other. A run has its home in one of them, where its training order lives; a sample goes to any that has its weights (place.go). A run gets another
// home when its process dies and another one runs, when its home is drained, and when its home is far busier than another (move.go). Where a model has one backend, nothing of this is ever decided.

// slot is one backend of a served model. mu of the core guards it.
type slot struct {
	model     *model
	name      string // of the backend
	index     int    // among those of the model
	known     Backend
	running   bool // known was not seen to end
	frozen    map[string]*frozen
	loads     int64 // makes adapter ids of frozen ones unique
	inquest   inquest
	rebuilds  rebuildQueue
	point     *run // whose recovery point was taken from it last, see pointWaits
	drained   bool
	leaves    bool  // it is drained because known is to end
	odd       bool  // it has other weights than the first of the model's backends that is known: it serves nothing but runs that were trained on them
	failed    error // for good
	sequences int   // of samples that it was given
	usage     usage
}

// current is the process that runs, as far as is known.
func (s *slot) current() (Backend, bool) {
	if s == nil {
		return Backend{}, false
	}
	return s.known, s.running
}

// wake has those look again who wait for a backend. mu is held.
func (m *model) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// pooled tells whether there is anything to choose.
func (m *model) pooled() bool { return len(m.slots) > 1 }

// open tells whether any backend takes samples now. mu is held.
func (m *model) open() bool {
	return slices.ContainsFunc(m.slots, func(s *slot) bool { return !s.inquest.open })
}

// uses tells whether any backend samples from a saved adapter. mu is held.
func (m *model) uses(dir string) bool {
	return slices.ContainsFunc(m.slots, func(s *slot) bool { return s.frozen[dir] != nil && s.frozen[dir].users > 0 })
}

// places is how many samples, and how many direct requests, the backends of a model are given at a time. mu is held.
func (c *Core) places(m *model) int {
	n := 0
	for _, s := range m.slots {
		if s.running && !s.drained {
			n++
		}
	}
	return max(n, 1) * c.cfg.MaxRunningSample
}

// watchPools follows the processes of models with several backends, so that it is known which are there. That of a single one is asked for when it is needed. mu is held.
func (c *Core) watchPools() {
	for _, m := range c.models {
		if !m.pooled() {
			continue
		}
		for _, s := range m.slots {
			c.start(func(ctx context.Context) { c.watchSlot(ctx, s) })
		}
	}
}

func (c *Core) watchSlot(ctx context.Context, s *slot) {
	for attempt := 0; ; attempt++ {
		b, err := c.backend(ctx, s)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // for good
			c.mu.Lock()
			s.failed = err
			s.model.wake()
			for r := range inOrder(c.runs) { // they wait for it, and may go elsewhere
				if r.home == s && r.usable() {
					c.pump(r)
				}
			}
			c.mu.Unlock()
			c.log.Error("a backend of a model has failed; the others go on", "backend", s.name, "error", err)
			return
		}
		if b.Lost == nil {
			return
		}
		select {
		case <-b.Lost:
		case <-ctx.Done():
			return
		}
		if pause(ctx, 0) != nil {
			return
		}
	}
}

// joined takes note that a backend has a process. mu is held.
func (c *Core) joined(s *slot) {
	s.model.wake()
	if s.model.pooled() {
		c.compareWeights(s.model)
		c.pumpSamples(s.model)
		c.rebalance(s.model)
	}
}

// compareWeights finds the backends of a model that have other weights than the others, by a mistake in the configuration. mu is held.
func (c *Core) compareWeights(m *model) {
	var first *slot
	for _, s := range m.slots {
		switch {
		case s.known.Backend == nil:
			continue
		case first == nil:
			first = s
		}
		odd := s.known.Model.ModelHash != first.known.Model.ModelHash
		if odd && !s.odd {
			c.log.Error("a backend has other weights than the first one of its model: it gets no work, but that of runs which were trained on them", "backend", s.name, "first", first.name)
		}
		s.odd = odd
	}
}

// anyBackend waits for one of a model's backends.
func (c *Core) anyBackend(ctx context.Context, m *model) (Backend, error) {
	if !m.pooled() {
		return c.backend(ctx, m.slots[0])
	}
	return c.awaitSlot(ctx, m, func() *slot { return best(m.slots, (*slot).usable) })
}

// usable tells whether a backend takes anything new.
func (s *slot) usable() bool { return s.running && !s.drained && !s.odd }

// awaitSlot waits until the backend that choose gives runs. choose is called with mu held, whenever something has changed; nil is none as things are. While all backends have failed for good the error says so.
func (c *Core) awaitSlot(ctx context.Context, m *model, choose func() *slot) (Backend, error) {
	for {
		c.mu.Lock()
		if s := choose(); s != nil && s.running {
			b := s.known
			c.mu.Unlock()
			return b, nil
		} else if s != nil && s.failed != nil {
			err := s.failed
			c.mu.Unlock()
			return Backend{}, err
		}
		var failed error
		if !slices.ContainsFunc(m.slots, func(s *slot) bool { return s.failed == nil }) {
			failed = m.slots[0].failed
		}
		changed := m.changed
		c.mu.Unlock()
		if failed != nil {
			return Backend{}, failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Backend{}, ctx.Err()
		}
	}
}

// best is the first slot that is as wanted; of none, the first that runs with the model's weights.
func best(list []*slot, wanted func(*slot) bool) *slot {
	if i := slices.IndexFunc(list, wanted); i >= 0 {
		return list[i]
	}
	if i := slices.IndexFunc(list, func(s *slot) bool { return s.running && !s.odd }); i >= 0 {
		return list[i]
	}
	return nil
}

// sameWeights tells whether a backend has the base model that a run is trained on, as far as both are known. mu is held.
func (r *run) sameWeights(s *slot) bool {
	return r.ModelHash == "" || s.known.Backend == nil || s.known.Model.ModelHash == r.ModelHash
}

// sameArithmetic tells whether a backend has the run's base model and computes as the run was computed, as far as that is known. mu is held.
func (r *run) sameArithmetic(s *slot) bool {
	return r.sameWeights(s) && (r.Arithmetic == "" || s.known.Backend == nil || s.known.Model.Arithmetic == r.Arithmetic)
}

// suspected tells whether work of a run, or its rebuild, was with a process that crashed: it stays where it is, so that it does not take one backend after the other, until it is known whether it was the reason. mu is held.
func (r *run) suspected() bool {
	charged := func(op *operation) bool { return op.blame.crashes > 0 }
	return r.crashes > 0 || slices.ContainsFunc(r.queue.returned, charged) || slices.ContainsFunc(r.queue.ready, charged)
}

// awaitHome waits until a run's home has a process, and gives it another home before if that is better than to wait. work is what is to run there, if it is not in the run's queue.
func (c *Core) awaitHome(ctx context.Context, r *run, work *blame) (Backend, error) {
	if !r.model.pooled() {
		return c.backend(ctx, r.model.slots[0])
	}
	return c.awaitSlot(ctx, r.model, func() *slot {
		c.findHome(r, work != nil && work.crashes > 0)
		return r.home
	})
}

// findHome gives a run that is with no process a home where it can be now: its old one if that has a process and is not drained; else another one that runs and has the same arithmetic; else the old one, unless it does not come
// back or is drained. One with another arithmetic is the last choice. mu is held.
func (c *Core) findHome(r *run, held bool) {
	home := r.home
	full := func(s *slot) bool { return r.full[s] }
	stays := home.failed == nil && !home.drained && !full(home)
	if home.running && stays && r.sameArithmetic(home) {
		return
	}
	if home.failed == nil && (held || r.suspected()) {
		return
	}
	same := func(s *slot) bool { return s != home && s.usable() && !full(s) && r.sameArithmetic(s) }
	if s := c.chooseHome(r, same); s != nil {
		c.rehome(r, s, c.whyLeave(home))
		return
	}
	if stays && r.sameArithmetic(home) { // it comes again
		return
	}
	// One that has no process yet may have the same arithmetic: that is known when it has.
	if s := c.chooseHome(r, func(s *slot) bool { return s != home && !s.drained && !full(s) && r.sameArithmetic(s) }); s != nil {
		c.rehome(r, s, c.whyLeave(home))
		return
	}
	if stays || home.running && home.failed == nil && !full(home) && r.sameArithmetic(home) {
		return
	}
	if s := c.chooseHome(r, func(s *slot) bool { return s != home && s.usable() && !full(s) && r.sameWeights(s) }); s != nil {
		c.rehome(r, s, c.whyLeave(home))
	}
}

// whyLeave says why a run does not stay in its home.
func (c *Core) whyLeave(s *slot) string {
	switch {
	case s.failed != nil:
		return "its backend has failed"
	case s.drained:
		return "its backend is drained"
	case !s.running:
		return "its backend is gone"
	}
	return "its backend has no room for it, or another arithmetic"
}

// rehome gives a run another home. Its adapter is in no process: it is rebuilt there. What is known of the crashes of its work goes with it. mu is held.
func (c *Core) rehome(r *run, to *slot, why string) {
	from := r.home
	c.log.Info("a run moves to another backend", "run", r.ID, "from", from.name, "to", to.name, "reason", why)
	for _, op := range slices.Concat(r.queue.returned, r.queue.ready) {
		if b := &op.blame; b.slot == from && b.crashes > 0 {
			delete(from.inquest.suspects, b)
			delete(from.inquest.trial, b)
			b.slot = to
			if b.crashes >= suspectAfter && b.verdict == nil {
				to.inquest.suspect([]*blame{b}, 1)
			}
		}
	}
	to.inquest.rebuilds = to.inquest.rebuilds || r.crashes >= suspectAfter
	r.home, r.moved = to, c.cfg.now()
	r.homes++
	c.recount(r)
	r.adapter = fmt.Sprintf("%s@%d", r.ID, r.homes) // the old one may still be sampled from where it was
	c.changed(r, changedRun)
	r.model.wake()
	c.proceed(from)
	c.proceed(to)
}

// stay counts who samples from a run's adapter in a process, so that it is not deleted under them when the run moves. mu of the core guards it.
type stay struct {
	in      Backend
	adapter string
	users   int
	over    bool // the run is elsewhere
}

// moveIn notes that a run's adapter is in a process. mu is held.
func (c *Core) moveIn(r *run, b Backend) {
	r.boot = b.BootID
	if r.model.pooled() {
		r.stay = &stay{in: b, adapter: r.adapter}
	}
}

// use counts a user of a run's adapter where it is now, until the result is called. mu is held.
func (c *Core) use(r *run) func() {
	s := r.stay
	if s == nil {
		return func() {}
	}
	s.users++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		s.users--
		c.vacate(s)
	}
}

// vacate deletes an adapter that its run has left, once nobody uses it. mu is held.
func (c *Core) vacate(s *stay) {
	if !s.over || s.users > 0 {
		return
	}
	c.start(func(ctx context.Context) {
		if err := s.in.DeleteAdapter(ctx, s.adapter); err != nil && !lost(err) {
			c.logged("adapter could not be deleted", err, "adapter", s.adapter)
		}
	})
}
