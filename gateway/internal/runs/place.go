package runs

import (
	"context"
	"slices"

	"github.com/tinsmith/tinsmith/plugins"
)

// Where a sample runs. Of the backends that have its weights one with room takes it: always the same one for the same beginning of a prompt, whose keys and values it has then. If those that have the weights have no room and another
// one has, the weights go there, as files that are checked by their hashes, and stay until they are unused for longest.

// prefixTokens is how much of a prompt decides where it goes, rounded down: what is asked about one text mostly begins with the same tokens.
const prefixTokens = 64

// place waits for the backend where a request is to run and counts its sequences there until leave. find says where its weights are; it is called with mu held.
func (c *Core) place(ctx context.Context, m *model, find func() (source, error), req *plugins.SampleRequest, w *blame) (Backend, source, error) {
	if !m.pooled() {
		b, err := c.backend(ctx, m.slots[0])
		if err != nil {
			return b, source{}, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		src, err := find()
		return b, src, err
	}
	var src source
	var wrong error
	b, err := c.awaitSlot(ctx, m, func() *slot {
		if src, wrong = find(); wrong != nil {
			return best(m.slots, (*slot).usable)
		}
		s := c.chooseSlot(m, src, req, w)
		if s != nil && s.running {
			s.sequences += req.NumSamples
		}
		return s
	})
	if err == nil && wrong != nil {
		err = wrong
	}
	return b, src, err
}

// leave takes a request out of the count of its backend.
func (c *Core) leave(b Backend, sequences int) {
	if !b.slot.model.pooled() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b.slot.sequences -= sequences
}

// room tells whether a backend may be given another sample without that it waits there, as far as is known. mu is held.
func (c *Core) room(s *slot) bool {
	if c.cfg.Status == nil {
		return s.sequences < c.cfg.MaxRunningSample
	}
	st := c.cfg.Status(s.name)
	if st.WaitingSamples > 0 && s.sequences >= st.RunningSamples {
		return false
	}
	return s.sequences < c.cfg.MaxRunningSample
}

// chooseSlot says where a sample runs now; nil: nowhere yet. mu is held.
func (c *Core) chooseSlot(m *model, src source, req *plugins.SampleRequest, w *blame) *slot {
	if w.crashes > 0 && w.slot != nil && w.slot.failed == nil { // it stays where it is known
		return w.slot
	}
	r, dir := src.run, ""
	switch {
	case src.saved != nil:
		dir = src.saved.Dir
		r = c.runs[src.saved.RunID]
	case src.snap != nil:
		r, dir = src.snap.run, src.snap.dir
		if dir == "" && src.snap.lost == "" && !c.canPublish(src.snap) {
			return m.waitable(r.home)
		}
	case r != nil: // its newest version is nowhere else
		return m.waitable(r.home)
	}
	right := func(s *slot) bool { return s.running && (r == nil && !s.odd || r != nil && r.sameWeights(s)) }
	ready := func(s *slot) bool {
		return right(s) && !s.drained && !s.inquest.open && (r == nil || r.sameArithmetic(s))
	}
	var having []*slot // the weights
	sum, usable := 0, 0
	for _, s := range m.slots {
		switch {
		case dir == "" && src.snap == nil: // the base model
		case src.snap != nil && src.snap.hot && src.snap.run.home == s:
		case dir != "" && s.frozen[dir] != nil:
		default:
			continue
		}
		having = append(having, s)
		if s.usable() {
			sum, usable = sum+s.sequences, usable+1
		}
	}
	// A backend that has so much more to sample than others which have the same weights that a prompt goes there without its beginning.
	const few = 8 // do not matter
	overfull := func(s *slot) bool { return usable > 1 && s.sequences > few && 4*s.sequences*usable > 5*sum }
	key := prefixKey(dir, req.Prompt)
	for _, choice := range []struct {
		from   []*slot
		wanted func(*slot) bool
	}{
		{having, func(s *slot) bool { return ready(s) && !overfull(s) && c.room(s) }},
		{having, func(s *slot) bool { return ready(s) && c.room(s) }},
		{m.slots, func(s *slot) bool { return ready(s) && c.room(s) }},
		{having, ready},
		{m.slots, ready},
		{m.slots, func(s *slot) bool { return right(s) && (r == nil || r.sameArithmetic(s)) }},
		{m.slots, right},
	} {
		var found *slot
		var highest uint64
		for _, s := range choice.from { // what a backend says of itself is asked for only where that can matter
			if k := key.of(s); (found == nil || k > highest) && choice.wanted(s) {
				found, highest = s, k
			}
		}
		if found != nil {
			return found
		}
	}
	return nil
}

// waitable is a run's home, unless that has failed for good while another one has not: the run is about to get another. mu is held.
func (m *model) waitable(home *slot) *slot {
	if home.failed != nil && slices.ContainsFunc(m.slots, func(s *slot) bool { return s.failed == nil }) {
		return nil
	}
	return home
}

// prefix orders the backends for a prompt: each prompt has an order of its own, which does not change for the others when one backend comes or goes.
type prefix uint64

func prefixKey(dir string, prompt []int32) prefix {
	h := uint64(14695981039346656037) // FNV-1a
	for _, b := range []byte(dir) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	for _, t := range prompt[:min(len(prompt), prefixTokens)] {
		h = (h ^ uint64(uint32(t))) * 1099511628211
	}
	return prefix(h)
}

// of is the place of a backend in the order: the higher, the earlier.
func (p prefix) of(s *slot) uint64 {
	h := uint64(p) ^ (uint64(s.index)+1)*0x9e3779b97f4a7c15
	h ^= h >> 30 // the finalizer of SplitMix64
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// canPublish tells whether a version that is only in its home's memory can be written for other backends. mu is held.
func (c *Core) canPublish(s *snapshot) bool {
	return s.hot && s.run.rebuild == nil && s.run.usable() && s.run.home.running && s.run.boot == s.run.home.known.BootID
}

// publish writes a version that is only in its home's memory for other backends, or waits until it is written. mu is held, and given up while waiting.
func (c *Core) publish(ctx context.Context, s *snapshot) error {
	for s.dir == "" && c.canPublish(s) {
		if !s.spilling {
			if c.closing {
				return errClosing
			}
			s.spilling, s.published = true, nil
			from, release := s.run.home.known, c.use(s.run)
			c.start(func(ctx context.Context) {
				err := c.writeSnapshot(ctx, from, s)
				release()
				c.mu.Lock()
				defer c.mu.Unlock()
				s.published = err
				c.spilt(s, err)
				c.cool(s.run)
			})
		}
		changed := s.run.model.changed
		c.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
		if err != nil {
			return err
		}
		if !s.spilling && s.dir == "" && s.published != nil {
			return s.published
		}
	}
	return nil
}

// spilt takes note that a version was written, or could not be. mu is held.
func (c *Core) spilt(s *snapshot, err error) {
	s.spilling = false
	if c.unwritten[s] = struct{}{}; err == nil {
		delete(c.unwritten, s)
	}
	if s.run.model.pooled() { // somebody may wait for the files
		s.run.model.wake()
	}
}
