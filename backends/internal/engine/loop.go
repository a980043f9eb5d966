package engine

import (
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// loop is the device goroutine.
func (e *Engine) loop() {
	runtime.LockOSThread()
	defer close(e.stopped)
	for {
		e.mu.Lock()
		for !e.closing && !e.hasWork() {
			e.parked = true
			reminder := e.remind()
			e.wake.Wait()
			reminder.Stop()
			e.counters.progressed(time.Now()) // the clock of LastProgressAge starts with the work
			e.parked = false
		}
		closing := e.closing
		e.mu.Unlock()
		if closing {
			break
		}
		e.housekeeping()
		e.samplingTurn(0, e.trainingWaits())
		e.housekeeping()
		switch {
		case !e.trainCycle():
			e.rest()
		case !e.bounds: // else a step is about as long as the cycle was, and that of the next round is enough
			e.samplingTurn(0, e.trainingWaits())
		}
		e.giveBack()
	}
	e.shutDown()
}

// restAfter is how long nothing is trained, and no adapter freed, before the memory of training passes and what devices keep for those to come are given back.
const restAfter = 30 * time.Second

// restsSince is when the last pass began or memory of an adapter was last freed; false if there is nothing to give back.
func (l *loaded) restsSince() (time.Time, bool) {
	last := l.lastPass
	if l.adapters.freed.After(last) {
		last = l.adapters.freed
	}
	return last, l.trainingBytes() != 0 || l.adapters.freed.After(l.trimmed)
}

// remind has the device goroutine, which has nothing to do, woken when it is time to give memory back.
func (e *Engine) remind() *time.Timer {
	if e.loaded != nil {
		if since, any := e.loaded.restsSince(); any {
			return time.AfterFunc(time.Until(since.Add(e.restAfter)), func() { e.call(e.rest) })
		}
	}
	return time.NewTimer(0) // nobody listens
}

// rest gives memory back if there is some and it was not needed for a while.
func (e *Engine) rest() {
	l := e.loaded
	if l == nil || l.passing {
		return
	}
	if since, any := l.restsSince(); any && time.Since(since) >= e.restAfter {
		l.shrink()
		l.trim()
	}
}

// worthTrimming is how many bytes of deleted adapters are given back at once, whatever goes on.
const worthTrimming = 64 << 20

// giveBack gives the memory of deleted adapters back soon: to others than those who have run here it is of no use while the devices keep it, and as long as somebody trains nothing rests.
func (e *Engine) giveBack() {
	if l := e.loaded; l != nil && !l.passing && l.deleted >= worthTrimming {
		l.trim()
	}
}

// hasWork tells whether the device goroutine has anything to do. The caller holds mu.
func (e *Engine) hasWork() bool {
	if len(e.calls) > 0 || len(e.dead) > 0 || len(e.bare) > 0 || len(e.deadRuns) > 0 || e.waiting.count > 0 || len(e.running) > 0 || e.stale > 0 {
		return true
	}
	for _, r := range e.order {
		if r.ready() {
			return true
		}
	}
	return false
}

// housekeeping runs what other goroutines want from the device, frees what nobody holds, and runs operations that need no pass. It may be called between any two device steps,
// from inside a training pass too.
func (e *Engine) housekeeping() {
	for {
		e.mu.Lock()
		calls, dead, bare, runs := e.calls, e.dead, e.bare, e.deadRuns
		e.calls, e.dead, e.bare, e.deadRuns = nil, nil, nil, nil
		for _, r := range e.order {
			if o := r.queue.first(); o != nil && o.host != nil && !r.busy {
				r.busy = true
				calls = append(calls, o.host)
			}
		}
		e.mu.Unlock()
		if len(calls) == 0 && len(dead) == 0 && len(bare) == 0 && len(runs) == 0 {
			return
		}
		for _, v := range bare {
			e.loaded.adapters.drop(v.moments)
		}
		used := int64(0)
		if len(runs) > 0 {
			used = e.loaded.adapters.used
		}
		for _, v := range dead {
			for _, r := range e.loaded.sampling {
				r.sampler.forget(v)
			}
			e.loaded.free(v)
		}
		for _, r := range runs {
			e.loaded.freeAccumulator(r)
		}
		if len(runs) > 0 {
			e.loaded.deleted += used - e.loaded.adapters.used
		}
		for begun := time.Now(); len(calls) > 0; calls = calls[1:] {
			if time.Since(begun) > callTime && e.postpone(calls) {
				e.counters.progressed(time.Now())
				return
			}
			calls[0]()
		}
		e.counters.progressed(time.Now())
	}
}

// callTime is how long calls go on before others have a turn: who asks for many may have asked for much of each.
const callTime = 20 * time.Millisecond

// postpone puts calls back, before those that have come meanwhile, if there is anything else to do.
func (e *Engine) postpone(calls []func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting.count == 0 && len(e.running) == 0 && !slices.ContainsFunc(e.order, (*run).ready) {
		return false
	}
	e.calls = append(calls, e.calls...)
	return true
}

// yield is called between the device steps of a training pass.
func (e *Engine) yield() error {
	e.counters.progressed(time.Now())
	e.housekeeping()
	if e.isClosing() {
		return errClosed
	}
	if l := e.loaded; l.split() {
		// Sampling has devices of its own: it goes on for as long as passes run.
		for e.samplingStep(false) && l.running.Load() > 0 {
			e.housekeeping()
			if e.isClosing() {
				return errClosed
			}
		}
		return nil
	}
	if time.Since(e.loaded.lastTurn) >= e.interval {
		e.samplingTurn(e.turn, true)
	}
	return nil
}

// trainingWaits tells whether a cycle could begin.
func (e *Engine) trainingWaits() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.order, (*run).ready)
}

func (e *Engine) isClosing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closing
}

// awaitTraining waits for what the home device has been given, if there are samples for which it is waited for anyhow: it counts as training's then.
func (e *Engine) awaitTraining() {
	d, ok := e.loaded.device.(tensor.Paced)
	if !ok || !e.samples() {
		return
	}
	for range 2 {
		if d.Pace() != nil {
			return // the next operation says why
		}
	}
}

// samples tells whether there are requests for samples.
func (e *Engine) samples() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.requests) > 0
}

// samplingTurn runs decoding steps until there is nothing to sample or least has passed; one at least.
func (e *Engine) samplingTurn(least time.Duration, trainingWaits bool) {
	l := e.loaded
	if l == nil {
		return
	}
	if least > 0 {
		defer l.hold()()
		e.awaitTraining()
	}
	begin, sampled := time.Now(), false
	for e.samplingStep(trainingWaits) {
		sampled = true
		if time.Since(begin) >= least {
			break
		}
		e.housekeeping()
	}
	l.lastTurn = time.Now()
	if sampled {
		d := l.lastTurn.Sub(begin)
		e.turns.count++
		e.turns.time += d
		e.counters.turns.Add(1)
		e.counters.turnTime.Add(int64(d))
	}
}

// shutDown fails what is left and frees the device. It runs on the device goroutine after its last step.
func (e *Engine) shutDown() {
	e.mu.Lock()
	e.calls = nil
	e.mu.Unlock()
	e.closeCycle(e.cycle.number)
	close(e.quit)
	e.background.Wait() // host work ends by itself: its next visit to the device is refused
	e.mu.Lock()
	for _, r := range e.runs {
		r.fail(errClosed)
		e.remove(r)
		select {
		case <-r.created:
		default:
			r.failure = errClosed
			close(r.created)
		}
	}
	for _, q := range e.requests {
		e.endRequest(q, errClosed)
	}
	l, runs, dead := e.loaded, e.deadRuns, e.dead
	for v := range e.live {
		dead = append(dead, v)
	}
	e.live, e.dead, e.bare, e.deadRuns = map[*version]struct{}{}, nil, nil, nil
	e.mu.Unlock()
	if l == nil {
		return
	}
	for _, v := range dead {
		l.free(v)
	}
	for _, r := range runs {
		l.freeAccumulator(r)
	}
	e.closed = errors.Join(l.close(), l.adapters.close(), l.homes.close())
}
