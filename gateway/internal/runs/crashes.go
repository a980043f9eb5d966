package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Rebuilding a run can crash the backend, too: a past operation that went well once, under another build or with more memory, or a damaged recovery point. Runs whose rebuild was cut off by
// suspectAfter crashes wait until all others are rebuilt, and then are rebuilt one by one while nothing else runs. The one that crashes the backend then is given up by name; one that succeeds is
// acquitted. So three crashes in all find it, fewer than the supervisor allows.
//
// How often a process ended with an operation, a sample or a rebuild is stored, and the verdict, so that a restart of the server in the middle of this does not begin anew.

// rebuildKey leads the run in the key of its rebuild's crashes; those of an operation or a sample have the request id.
const rebuildKey = "rebuild:"

// charges are what is stored of a piece of work or a rebuild.
type charges struct {
	Crashes int    `json:"crashes"`
	Verdict string `json:"verdict,omitempty"` // it is not run again
}

// charges gives those of a piece of work. mu is held.
func (b *blame) charges() charges {
	now := charges{Crashes: b.crashes}
	if b.verdict != nil {
		now.Verdict = b.verdict.Message
	}
	return now
}

// keepCharges stores charges as they are now, or forgets them if there are none. They are taken under mu. mu is held.
func (c *Core) keepCharges(key string, take func() charges) {
	c.start(func(ctx context.Context) {
		c.saveMu.Lock()
		defer c.saveMu.Unlock()
		c.mu.Lock()
		now := take()
		c.mu.Unlock()
		var b store.Batch
		if now.Crashes > 0 {
			b.Put = []store.Record{{Collection: inCrashes, Key: key, Value: mustJSON(now)}}
		} else {
			b.Delete = []store.RecordKey{{Collection: inCrashes, Key: key}}
		}
		c.logged("the count of crashes could not be stored", c.cfg.Store.Commit(context.WithoutCancel(ctx), b), "work", key)
	})
}

// loadCharges reads what an earlier process stored, by key.
func (c *Core) loadCharges(ctx context.Context) (map[string]charges, error) {
	known := map[string]charges{}
	err := c.cfg.Store.All(ctx, inCrashes, func(r store.Record) error {
		var x charges
		if err := json.Unmarshal(r.Value, &x); err != nil {
			return fmt.Errorf("crashes of %s: %w", r.Key, err)
		}
		known[r.Key] = x
		return nil
	})
	if err = c.others(err); err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	return known, nil
}

// chargeRebuilds gives the rebuilds of runs their charges under an earlier process, and forgets those of all that is over. mu is held.
func (c *Core) chargeRebuilds(known map[string]charges) {
	for _, key := range sortedKeys(known) {
		x := known[key]
		id, rebuilds := strings.CutPrefix(key, rebuildKey)
		r := c.runs[id]
		switch {
		case rebuilds && r != nil && r.usable() && r.model != nil && x.Verdict != "":
			c.loseRun(r, x.Verdict)
		case rebuilds && r != nil && r.usable() && r.model != nil:
			r.crashes = x.Crashes
			r.home.inquest.rebuilds = r.home.inquest.rebuilds || r.crashes >= suspectAfter
		case rebuilds || c.futures[key] == nil:
			c.keepCharges(key, func() charges { return charges{} })
		}
	}
}

// charge gives a piece of work its charges under an earlier process. It tells whether it is suspected. mu is held.
func (s *slot) charge(b *blame, x charges) bool {
	q := &s.inquest
	if b.crashes = x.Crashes; b.crashes > 0 {
		b.slot = s // so that it is cleared there, and runs nowhere else
	}
	if x.Verdict != "" {
		b.verdict = refusef(KindBackend, "%s", x.Verdict)
	}
	if b.verdict != nil || b.crashes < suspectAfter {
		return false
	}
	q.given++
	b.order = q.given
	q.suspect([]*blame{b}, 1)
	return true
}

// storedAs is where the crashes of a piece of work are stored; "" if they are not.
func (b *blame) storedAs() string {
	switch {
	case b.op != nil && b.op.future != nil:
		return b.op.future.id
	case b.job != nil:
		return b.job.future.id
	}
	return ""
}

// rebuildsCrashed counts the end of a process against the rebuilds that it cut off, and gives up the one that ran alone. mu is held.
func (c *Core) rebuildsCrashed(b Backend) {
	s := b.slot
	q := &s.inquest
	var guilty *run
	for r := range inOrder(c.runs) {
		if r.home != s || r.rebuild == nil || r.rebuild.boot != b.BootID || !r.usable() {
			continue
		}
		r.rebuild.boot = ""
		r.crashes++
		if r == q.rebuild {
			guilty = r
			continue
		}
		c.keepCharges(rebuildKey+r.ID, func() charges { return charges{Crashes: r.crashes} })
		if r.crashes >= suspectAfter && !q.rebuilds {
			q.rebuilds = true
			c.log.Warn("the backend crashed again while runs were rebuilt; they are rebuilt one by one", "backend", s.name)
		}
	}
	if guilty == nil {
		return
	}
	what := "its adapter was made or loaded"
	if n := guilty.rebuild.cutOff; n != 0 {
		what = "operation " + guilty.ID + ":" + itoa(n) + " ran again"
	}
	why := fmt.Sprintf("its rebuild crashes the backend of %s: the process ended %d times during it, the last time while nothing else ran and %s, so it is not tried again; the last end: %s", s.name, guilty.crashes, what, b.reason(nil))
	verdict := charges{guilty.crashes, why}
	c.keepCharges(rebuildKey+guilty.ID, func() charges { return verdict })
	c.believe(s)
	c.loseRun(guilty, why)
}

// cutOff notes that a process ended with a past operation. mu is held.
func (op *operation) cutOff() {
	if b := op.run.rebuild; b != nil && op.past != nil && (b.cutOff == 0 || op.seq < b.cutOff) {
		b.cutOff = op.seq
	}
}

// proceedRebuilds chooses the next run to be rebuilt while nothing else runs. mu is held.
func (c *Core) proceedRebuilds(s *slot) {
	q := &s.inquest
	if !q.rebuilds {
		return
	}
	if r := q.rebuild; r != nil && (r.rebuild == nil || !r.usable() || r.home != s) {
		q.rebuild = nil
		q.wake()
	}
	if q.rebuild == nil {
		var next *run
		for r := range inOrder(c.runs) {
			switch {
			case r.home != s || r.rebuild == nil || !r.usable():
			case r.crashes < suspectAfter:
				return // it comes first
			case next == nil || r.ID < next.ID:
				next = r
			}
		}
		if q.rebuild = next; next == nil {
			q.rebuilds = false
			return
		}
		q.open = true
	}
	if len(q.busy) == 0 {
		q.wake()
	}
}

// awaitRebuildTurn waits until a run may be rebuilt in a process, and notes that it is.
func (c *Core) awaitRebuildTurn(ctx context.Context, r *run, b Backend) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r.rebuild != nil && r.usable() {
		if now, ok := r.home.current(); !ok || now.BootID != b.BootID {
			return errReplaced
		}
		q := &r.home.inquest
		if q.rebuild == r && len(q.busy) == 0 || q.rebuild == nil && r.crashes < suspectAfter {
			if r.rebuild.boot != b.BootID { // else it has ended, and only that is not known yet
				r.rebuild.boot, r.rebuild.cutOff = b.BootID, 0
			}
			return nil
		}
		if err := c.awaitTurn(ctx, q); err != nil {
			return err
		}
	}
	return nil
}
