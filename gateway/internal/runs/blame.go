package runs

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// An operation or a sample that crashes its backend whenever it runs must not take the model from everybody else. Work that a process had when it crashed runs again in the next one. What was with
// two processes that crashed is suspected, and runs apart from everything else: first in groups, so that many suspects take little time, then what was in a group that crashed one by one. A suspect that is
// finished is acquitted. One that crashes its backend alone is convicted: it fails with the reason, and everything else goes on. So an operation is run at most four times, and three times where few
// others were suspected; one that was alone from the start twice.
//
// How often a process ended with a piece of work is stored, and the rebuild of a run is under suspicion, too: crashes.go.
//
// A process that somebody kills from outside tells nothing about its work. Nor are operations suspected that had been decided once, and only run again to rebuild an adapter.

const (
	suspectAfter     = 2 // crashes of a process that had a piece of work
	fewSuspects      = 8 // so many suspects need no groups
	verdictsBelieved = 3 // in a row with nothing that succeeds between them: after that it is rather the backend that is at fault
	rememberedFor    = 10 * time.Minute
	rememberedMax    = 256
)

// blame is what is known of the part that a piece of work has in crashes. mu of the core guards it.
type blame struct {
	op      *operation // whose it is: an operation, a sample, or, without both, a direct request
	job     *sampleJob
	key     func() string // of a direct request, else nil: equal for equal ones
	what    string        // for the log
	slot    *slot         // where it was last; nil = nowhere yet
	boot    string        // process there that has it or had it
	order   int64         // of being given first
	crashes int           // of processes that had it
	verdict *Error        // set: it is not run again
}

// inquest finds out which work crashes one backend. mu of the core guards it.
type inquest struct {
	busy     map[*blame]bool // with a process, or with one whose crash was not noticed yet
	suspects map[*blame]bool // not acquitted, not convicted
	trial    map[*blame]bool // of them: those that may run now; all others wait
	size     int             // how many run at a time
	open     bool            // there were suspects a moment ago
	rebuilds bool            // some run's rebuild is suspected
	rebuild  *run            // of those: the one that is rebuilt while nothing else runs
	verdicts int             // since something succeeded last
	given    int64           // pieces of work ever given
	turn     chan struct{}   // closed and replaced when those that wait may look again
	requests map[string]*remembered
}

// remembered is what is known of a direct request, which its client may repeat.
type remembered struct {
	crashes int
	verdict *Error
	at      time.Time // of the last crash
}

func newInquest() inquest {
	return inquest{
		busy: map[*blame]bool{}, suspects: map[*blame]bool{}, trial: map[*blame]bool{}, turn: make(chan struct{}), requests: map[string]*remembered{},
	}
}

// innocent tells whether a piece of work was decided once, so that a crash is not its doing. mu is held.
func (b *blame) innocent() bool {
	return b.op != nil && (b.op.internal() || b.op.seq < b.op.run.queue.decided)
}

// mayRun tells whether a piece of work may be given to the process now. What stands among operations that rebuild an adapter goes with them. mu is held.
func (q *inquest) mayRun(b *blame) bool {
	if q.rebuild != nil {
		return b.op != nil && b.op.run == q.rebuild
	}
	return len(q.suspects) == 0 || q.trial[b] || b.innocent() || b.op != nil && b.op.run.rebuild != nil
}

// wake has those look again that wait for their turn. mu is held.
func (q *inquest) wake() {
	close(q.turn)
	q.turn = make(chan struct{})
}

// give notes that a process has a piece of work. mu is held.
func (s *slot) give(b *blame, boot string) {
	q := &s.inquest
	if b.order == 0 {
		q.given++
		b.order = q.given
	}
	b.slot, b.boot = s, boot
	q.busy[b] = true
}

// take waits for the turn of a piece of work and notes that the process has it. Its verdict, if there is one, is the error. ctx must end with the core.
func (c *Core) take(ctx context.Context, on Backend, b *blame) error {
	s := on.slot
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if b.verdict != nil {
			return b.verdict
		}
		if now, ok := s.current(); !ok || now.BootID != on.BootID {
			return errReplaced
		}
		if s.inquest.mayRun(b) {
			s.give(b, on.BootID)
			return nil
		}
		if err := c.awaitTurn(ctx, &s.inquest); err != nil {
			return err
		}
	}
}

// awaitTurn waits until those that wait may look again. mu is held, but not while it waits.
func (c *Core) awaitTurn(ctx context.Context, q *inquest) error {
	turn := q.turn
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gave notes that a piece of work is not with the process any more, and with what error it came back. When the process is gone it waits for backendEnded. mu is held.
func (c *Core) gave(b *blame, err error) {
	if b.slot == nil || plugins.KindOf(err) == plugins.KindBackendLost {
		return
	}
	delete(b.slot.inquest.busy, b)
	c.proceed(b.slot)
}

// clear ends all suspicion of a piece of work: it is finished in one way or another. mu is held.
func (c *Core) clear(b *blame) {
	s := b.slot
	if s == nil { // it was nowhere, and nobody has charged it
		return
	}
	q := &s.inquest
	if q.suspects[b] && b.verdict == nil {
		c.log.Info("a suspect is finished", "backend", s.name, "work", b.what)
	}
	delete(q.busy, b)
	delete(q.suspects, b)
	delete(q.trial, b)
	if key := b.storedAs(); key != "" && b.crashes > 0 {
		c.keepCharges(key, b.charges)
	}
	b.crashes = 0
	c.proceed(s)
}

// worked notes that something succeeded: the backend is well without the work that was convicted. mu is held.
func (c *Core) worked(s *slot) {
	if s.inquest.verdicts > 0 && c.cfg.Explained != nil {
		c.cfg.Explained(s.name)
	}
	s.inquest.verdicts = 0
}

// crashed draws the conclusions from the end of a process. mu is held.
func (c *Core) crashed(b Backend) {
	s := b.slot
	q := &s.inquest
	var had []*blame
	apart := true // nothing else was with the process
	for w := range q.busy {
		switch {
		case w.boot != b.BootID:
			continue
		case w.innocent():
			apart = false
			w.op.cutOff()
		default:
			had = append(had, w)
		}
		delete(q.busy, w)
	}
	if s.known.BootID == b.BootID {
		clear(q.trial)
		q.wake() // for the next process
	}
	if b.Outside != nil && b.Outside() {
		return
	}
	slices.SortFunc(had, func(a, b *blame) int { return cmp.Compare(a.order, b.order) })
	for _, w := range had {
		w.crashes++
		q.remember(w, c.cfg.now())
		if key := w.storedAs(); key != "" {
			c.keepCharges(key, w.charges)
		}
	}
	c.rebuildsCrashed(b)
	switch {
	case len(had) == 0:
	case len(q.suspects) > 0 && len(had) > 1: // only they ran
		for w := range q.suspects {
			if !slices.Contains(had, w) {
				w.crashes = suspectAfter - 1
			}
		}
		clear(q.suspects)
		q.suspect(had, 1)
		c.log.Warn("the backend crashed while suspects ran in a group; they run one by one", "backend", s.name, "suspects", len(had))
	case len(had) == 1 && had[0].crashes >= suspectAfter && (len(q.suspects) > 0 || apart && !c.rebuilding(s)):
		c.convict(s, had[0], b.reason(nil))
	case len(q.suspects) == 0:
		had = slices.DeleteFunc(had, func(w *blame) bool { return w.crashes < suspectAfter })
		size := 1
		if n := len(had); n > fewSuspects {
			size = int(math.Ceil(math.Sqrt(float64(n))))
		}
		q.suspect(had, size)
		if len(had) > 0 {
			c.log.Warn("the backend crashed again with the same work; that runs apart from everything else until it is known what is at fault", "backend", s.name, "suspects", len(had), "at_a_time", size)
		}
	}
}

// suspect makes work suspected; size of it runs at a time.
func (q *inquest) suspect(work []*blame, size int) {
	for _, w := range work {
		q.suspects[w] = true
		q.open = true
	}
	q.size = size
}

// convict decides that a piece of work crashes its backend. mu is held.
func (c *Core) convict(s *slot, w *blame, reason string) {
	q := &s.inquest
	w.verdict = refusef(KindBackend, "it crashes the backend of %s: the process ended %d times while it ran, the last time while nothing else did, so it is not run again; the last end: %s", s.name, w.crashes, reason)
	delete(q.suspects, w)
	c.believe(s)
	q.remember(w, c.cfg.now())
	c.log.Error("an operation crashes the backend and is failed", "backend", s.name, "work", w.what, "crashes", w.crashes, "error", w.verdict)
}

// believe counts a verdict and tells of it. mu is held.
func (c *Core) believe(s *slot) {
	if s.inquest.verdicts++; s.inquest.verdicts <= verdictsBelieved && c.cfg.Explained != nil {
		c.cfg.Explained(s.name)
	}
}

// rebuilding tells whether any run is on its way into a backend's process. mu is held.
func (c *Core) rebuilding(s *slot) bool {
	for _, r := range c.runs {
		if r.home == s && r.rebuild != nil && r.usable() {
			return true
		}
	}
	return false
}

// proceed lets the next suspects run when everything is quiet, and everybody when none is left. mu is held.
func (c *Core) proceed(s *slot) {
	if s == nil || c.closing {
		return
	}
	q := &s.inquest
	c.proceedRebuilds(s)
	if !q.open || q.rebuild != nil {
		return
	}
	if len(q.suspects) == 0 {
		q.open = false
		q.wake()
		c.log.Info("no suspects are left; everything runs again", "backend", s.name)
		for r := range inOrder(c.runs) {
			if r.home == s && r.usable() {
				c.pump(r)
			}
		}
		c.pumpSamples(s.model)
		return
	}
	if len(q.trial) > 0 || len(q.busy) > 0 || !s.running || c.rebuilding(s) {
		return
	}
	var next []*blame
	for _, w := range slices.Collect(maps.Keys(q.suspects)) {
		if w.op != nil && w.op.create == nil {
			ready := w.op.run.queue.ready
			if len(ready) == 0 || ready[0].internal() {
				continue
			}
			w = &ready[0].blame // what stands before a suspect runs before it
			w.op, w.slot = ready[0], s
			q.suspects[w] = true
		}
		if !slices.Contains(next, w) {
			next = append(next, w)
		}
	}
	slices.SortFunc(next, func(a, b *blame) int { return cmp.Compare(a.order, b.order) })
	next = next[:min(len(next), q.size)]
	for _, w := range next {
		q.trial[w] = true
	}
	q.wake()
	for _, w := range next {
		if w.op != nil {
			c.pump(w.op.run)
		}
	}
}

// remember keeps what is known of a direct request for its repetition.
func (q *inquest) remember(w *blame, now time.Time) {
	if w.key == nil {
		return
	}
	key := w.key()
	for other, r := range q.requests {
		if now.Sub(r.at) > rememberedFor {
			delete(q.requests, other)
		}
	}
	if len(q.requests) < rememberedMax || q.requests[key] != nil {
		q.requests[key] = &remembered{w.crashes, w.verdict, now}
	}
}

// forget is for a request that has succeeded. mu is held.
func (q *inquest) forget(w *blame) {
	if len(q.requests) > 0 {
		delete(q.requests, w.key())
	}
}

// accuse gives a direct request what is known of equal ones before it. mu is held.
func (c *Core) accuse(m *model, w *blame) {
	for _, s := range m.slots {
		if len(s.inquest.requests) == 0 {
			continue
		}
		r := s.inquest.requests[w.key()]
		if r == nil || c.cfg.now().Sub(r.at) > rememberedFor || r.crashes < w.crashes {
			continue
		}
		w.crashes, w.verdict, w.slot = r.crashes, r.verdict, s
	}
	if w.verdict == nil && w.crashes >= suspectAfter {
		q := &w.slot.inquest
		q.given++
		w.order = q.given
		q.suspect([]*blame{w}, 1)
		c.proceed(w.slot)
	}
}
