package engine

import (
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/optim"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// mostSteps bounds how many runs' optimizer steps are done at once, between two turns of the sampler, on a device whose host waits for what it computes: that is one wait for one step as for many. A processor does one.
const mostSteps = 64

// stepping is one optimizer step while it runs.
type stepping struct {
	run    *run
	op     *operation
	begin  time.Time
	before turns // what the sampler had had by then
	old    *version
	err    error
	tried  bool // it was not refused: err, if any, is of applying it

	needed []*spillable   // in memory until release
	zeros  *lora.Gradient // of a run without a gradient
	next   *version
	norms  optim.Norms
}

// steps runs the optimizer steps whose turn has come, of runs that belong and that have had none in this cycle, and tells whether there were any.
func (e *Engine) steps(belongs func(*run) bool) bool {
	for done := false; ; done = true {
		batch := e.takeSteps(belongs)
		if len(batch) == 0 {
			return done
		}
		e.runSteps(batch)
		if e.yield() != nil {
			return true // the engine is closing: what is left is failed there
		}
	}
}

// takeSteps picks the steps that are done next, all of different runs.
func (e *Engine) takeSteps(belongs func(*run) bool) []*stepping {
	most := 1
	if l := e.loaded; l != nil {
		if _, own := l.device.(tensor.OwnMemory); own {
			most = mostSteps
		}
	}
	var batch []*stepping
	e.mu.Lock()
	for _, r := range e.order {
		if len(batch) < most && r.ready() && r.queue.first().kind == kindStep && r.stepped != e.cycle.number && belongs(r) {
			if r.latest.unmade() {
				if !mayMake(r.latest, e.cycle.made) {
					continue // in another cycle
				}
				e.cycle.made += r.latest.size
			}
			r.stepped = e.cycle.number
			batch = append(batch, &stepping{run: r, op: r.queue.first()})
		}
	}
	e.mu.Unlock()
	for _, s := range batch {
		e.cycle.note(s.run, s.op)
		e.counters.steps.Add(1)
	}
	return batch
}

// runSteps does steps of several runs at once. Where memory does not hold all of them, those that are ready go first and give theirs up. What one gives does not depend on the others.
func (e *Engine) runSteps(batch []*stepping) {
	l := e.loaded
	var ready []*stepping
	flush := func() {
		l.advance(ready)
		for _, s := range ready {
			e.endStep(s)
		}
		ready = ready[:0]
	}
	for _, s := range batch {
		if !e.beginStep(s) {
			continue
		}
		if s.err == nil {
			s.tried = true
			s.err = l.prepareStep(s)
			if (isMemory(s.err) || isStuck(s.err)) && len(ready) > 0 {
				flush()
				e.housekeeping() // frees the versions before those that were made
				s.err = l.prepareStep(s)
			}
		}
		if s.err != nil {
			e.endStep(s)
			continue
		}
		ready = append(ready, s)
	}
	flush()
}

// beginStep holds what a step begins with, and notes why it cannot be done if so. It is false for a run that was deleted.
func (e *Engine) beginStep(s *stepping) bool {
	s.begin, s.before = time.Now(), e.turns
	e.mu.Lock()
	defer e.mu.Unlock()
	r := s.run
	if r.deleted {
		return false
	}
	s.old = e.holdTraining(r.latest)
	s.err = s.op.invalid
	if s.err == nil && r.broken != nil {
		s.err = r.brokenError()
	}
	if s.err == nil {
		s.err = r.window.verdict()
	}
	return true
}

// prepareStep has all that a step reads in memory, and takes the memory of what it writes, until release.
func (l *loaded) prepareStep(s *stepping) (err error) {
	defer func() {
		if err != nil {
			l.release(s)
		}
	}()
	if err := l.adapters.admit(s.run.layout, false); err != nil { // before anything is moved out for it
		return err
	}
	for _, b := range []*spillable{s.old.weights, s.old.moments, s.run.accumulator} {
		if b == nil { // no gradient is a gradient of zeros
			continue
		}
		if err := l.adapters.need(b); err != nil {
			return err
		}
		s.needed = append(s.needed, b)
	}
	if s.run.accumulator == nil {
		if s.zeros, err = l.adapters.gradient(s.run.layout); err != nil {
			return err
		}
		if err := s.zeros.Zero(); err != nil {
			return internal("clear a gradient", err)
		}
	}
	s.next, err = l.emptyVersion(s.run.id, s.run.layout, true)
	return err
}

// release ends what prepareStep has taken, but for the new version.
func (l *loaded) release(s *stepping) {
	for _, b := range s.needed {
		l.adapters.done(b)
	}
	if s.zeros != nil {
		l.adapters.giveGradient(s.zeros)
	}
	s.needed, s.zeros = nil, nil
}

// advance makes the versions behind the old ones from the accumulated gradients, of steps that were prepared.
func (l *loaded) advance(steps []*stepping) {
	if len(steps) == 0 {
		return
	}
	updates := make([]optim.Update, len(steps))
	for i, s := range steps {
		gradient := s.zeros
		if gradient == nil {
			gradient = s.run.accumulator.gradient()
		}
		updates[i] = optim.Update{
			Next: s.next.weights.weights(), NextState: s.next.moments.state(), Weights: s.old.weights.weights(), State: s.old.moments.state(), Gradient: gradient, Adam: adam(s.op.step.Adam),
		}
	}
	results, err := optim.Steps(l.device, updates)
	if err != nil && len(steps) > 1 { // it says nothing about a single one of them
		for i := range steps {
			l.advance(steps[i : i+1])
		}
		return
	}
	for i, s := range steps {
		failed := err
		if failed == nil {
			failed = results[i].Err
		}
		if failed != nil {
			l.free(s.next)
			s.next, s.err = nil, notFinite("optim_step", failed)
		} else {
			s.norms, s.next.step = results[i].Norms, s.next.moments.state().Step
			l.written(s.next)
		}
		l.release(s)
	}
}

// endStep decides a step. Whatever its outcome, the window ends and the accumulated gradient is gone, unless there was no memory to apply it: then both stay as they were, for the next step. One that found no
// memory because the disk takes no adapters is not decided: it has done nothing, and its turn comes again.
func (e *Engine) endStep(s *stepping) {
	r, o, err := s.run, s.op, s.err
	if s.tried && isStuck(err) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.releaseTraining(s.old)
		e.holdBack(r)
		return
	}
	kept := s.tried && isMemory(err)
	if kept {
		err = &plugins.Error{Kind: internal("optim_step", err).Kind, Message: "optim_step was not applied, and the accumulated gradient is kept for the next one: " + err.Error()}
	} else {
		e.loaded.freeAccumulator(r)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.releaseTraining(s.old)
	if !kept {
		r.window = window{}
	}
	if err != nil {
		r.decide(o, nil, err)
		return
	}
	if r.deleted {
		e.dead = append(e.dead, s.next)
		return
	}
	e.publish(r, s.next)
	metrics := map[string]float64{
		"grad_norm": s.norms.Gradient, "adapter_norm": s.norms.Adapter, "learning_rate": o.step.Adam.LearningRate, "clock_cycle": float64(e.cycle.number),
	}
	for _, k := range s.norms.Kinds {
		metrics[plugins.AdapterNormOf(k.Kind)] = k.Norm
	}
	r.decide(o, plugins.OptimStepResult{Version: s.next.number, Step: s.next.step, Metrics: metrics, Execution: e.execution(s.begin, s.before)}, nil)
}
