package runs

import (
	"context"
	"time"
)

// A backend on another machine says when it has been asked to end, and waits a while. It is drained then, and given back when nothing of it is used any more: its runs have moved, and nothing is computed again. A model without another
// backend gives it back at once, and its runs wait for the next process.

// lookAgain is how often a backend that is to end is looked at.
const lookAgain = 100 * time.Millisecond

// watchLeaving gives a process back that is to end, when what it has is elsewhere.
func (c *Core) watchLeaving(ctx context.Context, b Backend) {
	select {
	case <-b.Leaving:
	case <-b.Lost:
		return
	case <-ctx.Done():
		return
	}
	s := b.slot
	c.mu.Lock()
	if !s.running || s.known.BootID != b.BootID { // it has ended by itself
		c.mu.Unlock()
		return
	}
	drained := s.drained // by somebody: that stays
	err := s.drainable()
	if err == nil {
		c.drain(s, true)
	}
	s.leaves = err == nil && !drained
	c.mu.Unlock()
	if err != nil {
		c.log.Info("a backend is to end, and what it has waits for the next one", "backend", s.name)
		b.Release("its process was asked to end")
		return
	}
	c.log.Info("a backend is to end, and what it has moves to others", "backend", s.name)
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for c.needed(b) {
		select {
		case <-look.C:
		case <-b.Lost:
			return
		case <-ctx.Done():
			return
		}
	}
	b.Release("its process was asked to end, and nothing of it is used any more")
}

// needed tells whether a run has its adapter in a process, or anything is sampled there.
func (c *Core) needed(b Backend) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.slot.sequences > 0 {
		return true
	}
	for _, r := range c.runs {
		if r.home == b.slot && r.boot == b.BootID && r.usable() {
			return true
		}
	}
	return false
}
