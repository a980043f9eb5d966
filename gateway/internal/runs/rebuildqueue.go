package runs

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Many runs that are rebuilt at once in one process hold each other up, and if that lives shorter than all of them take together, none is ever there. So only some are rebuilt at a time. While there is
// room they begin as they come; of those that have to wait, the next is the one whose clients wait longest. These times are the journal's, so that a restart keeps them, and no run is always the last.

// rebuildsAtOnce is how many runs are rebuilt at a time in one backend. Their operations share its cycles, so that a few keep it busy.
const rebuildsAtOnce = 8

// rebuildQueue is who is rebuilt in a backend, and who waits for that. mu of the core guards it.
type rebuildQueue struct {
	going   int
	waiting []*rebuildTurn
}

// rebuildTurn is one run that waits.
type rebuildTurn struct {
	run  *run
	come chan struct{} // closed when it is its turn, which counts as going then
}

// waitingSince is when the oldest thing came that somebody waits for; zero if nobody waits. mu is held.
func (r *run) waitingSince() (since time.Time) {
	if b := r.rebuild; b != nil {
		since = b.wanted
	}
	older := func(t time.Time) {
		if since.IsZero() || t.Before(since) {
			since = t
		}
	}
	if r.queue.unfinished == 0 {
		return since
	}
	for _, op := range r.queue.returned {
		older(op.future.since)
	}
	for _, op := range r.queue.ready {
		if !op.internal() {
			older(op.future.since)
		}
	}
	return since
}

// byWaiting orders runs by how long somebody has waited for them; those that nobody waits for come last. mu is held.
func byWaiting(a, b *run) int {
	x, y := a.waitingSince(), b.waitingSince()
	if x.IsZero() != y.IsZero() {
		if x.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(x.Compare(y), byID(a, b))
}

// joinRebuilds waits until a run is among those that are rebuilt in its home. A run that has crashed processes does not count: it waits for all others anyway.
func (c *Core) joinRebuilds(ctx context.Context, r *run, on Backend) error {
	c.mu.Lock()
	b, s := r.rebuild, on.slot
	if b == nil || r.crashes >= suspectAfter {
		c.mu.Unlock()
		return nil
	}
	c.leaveRebuilds(b)
	if s.rebuilds.going < rebuildsAtOnce {
		s.rebuilds.going++
		b.in = s
		c.mu.Unlock()
		return nil
	}
	turn := &rebuildTurn{r, make(chan struct{})}
	s.rebuilds.waiting = append(s.rebuilds.waiting, turn)
	c.mu.Unlock()
	var err error
	select {
	case <-turn.come:
	case <-b.done:
	case <-on.Lost:
		err = errReplaced
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(s.rebuilds.waiting, turn)
	if i >= 0 {
		s.rebuilds.waiting = slices.Delete(s.rebuilds.waiting, i, i+1)
		return err
	}
	b.in = s
	if err != nil || r.rebuild != b {
		c.leaveRebuilds(b)
	}
	return err
}

// leaveRebuilds ends the part of a run among those that are rebuilt, if it has one, and lets the next one begin. mu is held.
func (c *Core) leaveRebuilds(b *rebuild) {
	if b == nil || b.in == nil {
		return
	}
	q := &b.in.rebuilds
	b.in = nil
	if len(q.waiting) == 0 {
		q.going--
		return
	}
	next := slices.MinFunc(q.waiting, func(a, b *rebuildTurn) int { return byWaiting(a.run, b.run) })
	q.waiting = slices.DeleteFunc(q.waiting, func(t *rebuildTurn) bool { return t == next })
	close(next.come)
}
