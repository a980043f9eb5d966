package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// limits on one seed: what does not end by itself is a violation.
const (
	mostSteps  = 60_000
	mostVirtue = 4 * time.Hour // of virtual time after everything is calm
	jumps      = 8             // of the wall clock: so few do not let a session expire
)

// live runs the seed until something is done and nothing waits.
func (w *world) live(isDone func() bool) {
	for step := 0; !w.failed(); step++ {
		w.settle()
		w.look()
		done := isDone() && w.up != nil && w.server.stopped == nil && len(w.waiting(func(*parked) bool { return true })) == 0
		if !w.calm && (step >= w.plan.steps || done) {
			w.becalm()
		}
		if done {
			return
		}
		if step > mostSteps || w.calm && time.Since(w.calmed) > mostVirtue {
			w.violation("it does not end: %s", w.unfinished())
			return
		}
		if !w.calm && w.disturb() {
			continue
		}
		w.letGo()
	}
}

// look takes note of what has happened by itself.
func (w *world) look() {
	if of := w.server; of != nil {
		select {
		case err := <-of.booted:
			of.booted <- err // abandon waits for it, too
			w.booted(of, err)
		default:
		}
	}
	if of := w.server; of != nil && of.stopped != nil {
		select {
		case err := <-of.stopped:
			w.ended(err)
		default:
		}
	}
	if w.server == nil && !time.Now().Before(w.restart) {
		dir := fmt.Sprint(w.home, "/", w.servers+1)
		w.damage.do(w, dir)
		w.start(dir)
	}
	for _, model := range models {
		if at, down := w.down[model]; down && !time.Now().Before(at) && w.server != nil {
			delete(w.down, model)
			w.note("the backend of %s starts again", model)
			w.startProcess(w.server, model)
		}
	}
}

// clientsDone tells whether the clients have done all.
func (w *world) clientsDone() bool {
	return !slices.ContainsFunc(w.clients, func(c *client) bool { return !c.isDone() })
}

// booted has a new gateway checked, and clients reach it.
func (w *world) booted(of *server, err error) {
	w.mu.Lock()
	first := w.up == nil && of.stopped == nil
	w.mu.Unlock()
	if !first || of.isDead() {
		return
	}
	if store.TroubleOf(err) != nil && !w.calm { // whoever starts it tries again
		w.note("gateway %d does not start: %v", of.number, err)
		w.crash(false)
		return
	}
	if err != nil {
		w.violation("gateway %d does not start: %v", of.number, err)
		return
	}
	w.note("gateway %d is there", of.number)
	w.mu.Lock()
	w.up = of
	w.mu.Unlock()
}

// becalm ends all disturbances: what is left to do must come to its end.
func (w *world) becalm() {
	w.note("everything is calm from now on")
	w.calm, w.calmed = true, time.Now()
}

// disturb has something happen that should not, now and then.
func (w *world) disturb() bool {
	r, p := w.random, w.plan
	of := w.server
	one := r.Float64()
	happens := func(probability float64) bool {
		one -= probability
		return one < 0
	}
	switch {
	case happens(p.gateway * w.delicate()):
		if of != nil && w.crashed < crashes {
			w.crash(r.Float64() < p.power)
			return true
		}
	case happens(p.stop):
		if of != nil && w.crashed < crashes && of.stopped == nil && w.up == of {
			w.crashed++
			w.stop()
			return true
		}
	case happens(p.backend):
		model := models[r.IntN(len(models))]
		if x := w.process(model); x != nil && !x.gone() {
			w.note("the backend of %s ENDS", model)
			x.end()
			w.down[model] = time.Now().Add(while(r))
			return true
		}
	case happens(p.cut):
		model := models[r.IntN(len(models))]
		if x := w.process(model); x != nil {
			d := 3 * while(r)
			w.note("the way to the backend of %s is CUT for %s", model, d)
			x.cut = time.Now().Add(d)
			return true
		}
	case happens(p.partition):
		n := r.IntN(len(w.clients))
		d := 3 * while(r)
		w.note("the way of client %d is CUT for %s", n, d)
		w.cut[n] = time.Now().Add(d)
		return true
	case happens(p.jump) && w.jumps < jumps:
		w.jumps++
		d := 10 * while(r)
		if r.IntN(2) == 0 {
			d = -d
		}
		w.note("the wall clock is set %s on", d)
		w.mu.Lock()
		w.offset += d
		w.mu.Unlock()
		return true
	case happens(p.pause):
		d := while(r)
		w.note("nothing goes on for %s", d)
		time.Sleep(d)
		return true
	}
	return false
}

// delicate is how much likelier a crash is now: where something seldom is under way that a crash may tear apart, more can be found.
func (w *world) delicate() float64 {
	seldom := w.waiting(func(p *parked) bool {
		return slices.ContainsFunc([]string{"-checkpoints/", "skips/", "recovery_points/", "released ", "-recovery_points/"}, func(what string) bool { return strings.Contains(p.key, what) })
	})
	if len(seldom) > 0 {
		return 10
	}
	return 1
}

func (w *world) process(model string) *process {
	if w.server == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.server.processes[model]
}

// letGo lets one of those that wait go on, or time pass if none may.
func (w *world) letGo() {
	now := time.Now()
	may := w.waiting(func(p *parked) bool {
		switch {
		case w.calm:
			return true
		case p.place <= fromServer:
			return !now.Before(w.cut[p.client]) && !now.Before(p.held)
		case p.in != nil && now.Before(p.in.cut) && !p.in.dead:
			return false
		}
		return !now.Before(p.held)
	})
	if len(may) == 0 {
		d := 10 * time.Second
		if !w.calm {
			d = while(w.random)
		}
		if w.server == nil {
			d = max(min(d, time.Until(w.restart)), time.Millisecond)
		}
		w.idle(d)
		return
	}
	p := may[w.random.IntN(len(may))]
	if w.calm {
		w.note("%s", p.name())
		w.release(p, goOn)
		return
	}
	draw := w.random.Float64()
	switch {
	case draw < w.plan.held && p.held.IsZero():
		d := while(w.random)
		w.note("%s waits for %s", p.name(), d)
		p.held = now.Add(d)
	case p.place <= fromServer && w.random.Float64() < w.plan.drop:
		w.note("%s is LOST", p.name())
		w.release(p, drop)
	case (p.place == toServer || p.place == toBackend) && w.random.Float64() < w.plan.twice:
		w.note("%s TWICE", p.name())
		w.release(p, twice)
	case p.place == syncing && w.random.Float64() < w.plan.badSync:
		w.note("%s FAILS", p.name())
		w.release(p, fail)
	default:
		w.note("%s", p.name())
		w.release(p, goOn)
	}
}

// unfinished says what is waited for.
func (w *world) unfinished() string {
	var list []string
	for _, c := range w.clients {
		if !c.isDone() {
			list = append(list, fmt.Sprintf("client %d is at %q", c.number, c.at()))
		}
	}
	for _, p := range w.waiting(func(*parked) bool { return true }) {
		list = append(list, p.name())
	}
	return fmt.Sprint(slices.Compact(list))
}
