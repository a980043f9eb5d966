package engine

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/plugins"
)

// openFor is how long a clock cycle takes in the optimizer steps of its runs while no other begins. Nobody waits for its end: the device is free meanwhile.
const openFor = time.Second

// cycle is one clock cycle: the passes that all runs had ready when it began, fused, and the optimizer steps that stand right behind them when they are through. A client sends a step in a request of its own, some
// milliseconds after the pass it belongs to; so a cycle stays open for the steps of its runs until the next one begins.
type cycle struct {
	number     int64     // from 1; 0 before the first
	begin, end time.Time // of the passes and steps so far
	sampler    turns     // what the sampler had had when it began
	runs       map[int64]struct{}
	passes     int
	steps      int
	made       int64 // bytes of adapters whose first values are computed for it
	tokens     int
	links      []trace.Link // to the spans of its operations
}

// note counts an operation in.
func (c *cycle) note(r *run, o *operation) {
	c.runs[r.number] = struct{}{}
	if o.kind == kindStep {
		c.steps++
	} else {
		c.passes++
		c.tokens += o.tokens
	}
	if o.span.IsValid() {
		c.links = append(c.links, trace.Link{SpanContext: o.span})
	}
}

// execution is what is told about an operation of the cycle that began then and ends now.
func (e *Engine) execution(begin time.Time, before turns) plugins.Execution {
	return plugins.Execution{Cycle: e.cycle.number, Begin: begin, End: time.Now(), SamplingTurns: int(e.turns.count - before.count), Sampling: e.turns.time - before.time}
}

var tracer = otel.Tracer("github.com/tinsmith/tinsmith/backends/internal/engine")

// closeCycle records the span of a cycle, with links to its operations: it belongs to no single request. A cycle of which nobody traces an operation has none.
func (e *Engine) closeCycle(number int64) {
	c := &e.cycle
	if c.number != number || len(c.links) == 0 {
		return
	}
	_, span := tracer.Start(context.Background(), "clock cycle", trace.WithNewRoot(), trace.WithTimestamp(c.begin), trace.WithLinks(c.links...), trace.WithAttributes(
		attribute.Int64("tinsmith.cycle", c.number), attribute.Int("tinsmith.cycle.runs", len(c.runs)), attribute.Int("tinsmith.cycle.passes", c.passes), attribute.Int("tinsmith.cycle.steps", c.steps),
		attribute.Int("tinsmith.cycle.tokens", c.tokens), attribute.Int64("tinsmith.cycle.sampling_turns", e.turns.count-c.sampler.count),
		attribute.Float64("tinsmith.cycle.sampling_seconds", (e.turns.time-c.sampler.time).Seconds())))
	span.End(trace.WithTimestamp(c.end))
	c.links = nil
}

// series is one run's share of a clock cycle: passes in order of position.
type series struct {
	run     *run
	passes  []*operation
	version *version // held while the cycle runs
}

// tokens is how many its passes have.
func (s *series) tokens() (n int) {
	for _, o := range s.passes {
		n += o.tokens
	}
	return n
}

// plan picks the passes of the next clock cycle: of every run the longest leading series of passes, as far as budget tokens reach. The budget is shared by tokens in proportion to the runs' weights, over cycles as within
// one (self-clocked fair queueing): every pass has a tag, the tokens that its run has had by its end over the run's weight, and the smallest tag goes first; a run that had nothing to do is
// set to the tag of the pass that was taken last, so that it has saved up nothing. A small pass that has just arrived therefore goes before the large ones of a long queue. A pass that does not fit ends its run's share for this cycle.
// The first pass is taken whatever its size, so that there is always progress. Of runs whose first weights have to be computed, no more than mostMade bytes are in one cycle, of which those of turn, unless that is nil,
// are kept for it. It gives the tag of the last pass taken, to be handed to the next plan.
func plan(runs []*run, budget int, tag float64, turn *run) ([]series, float64) {
	type share struct {
		series
		left   []*operation // of the leading series
		closed bool
	}
	shares := make([]share, len(runs))
	for i, r := range runs {
		shares[i].run, shares[i].left = r, r.queue.passes()
	}
	for _, r := range runs {
		if !r.backlogged {
			r.tag = max(r.tag, tag)
		}
	}
	used, made := 0, int64(0)
	if turn != nil {
		made = turn.latest.size
	}
	for {
		var first *share
		least := math.Inf(1)
		for i := range shares {
			s := &shares[i]
			if s.closed || len(s.left) == 0 || len(s.passes) == 0 && s.run != turn && s.run.latest.unmade() && !mayMake(s.run.latest, made) {
				continue
			}
			o := s.left[0]
			if t := s.run.tag + float64(o.tokens)/o.weight; t < least {
				first, least = s, t
			}
		}
		if first == nil {
			break
		}
		o := first.left[0]
		if used > 0 && used+o.tokens > budget {
			first.closed = true
			continue
		}
		if len(first.passes) == 0 && first.run != turn && first.run.latest.unmade() {
			made += first.run.latest.size
		}
		first.passes, first.left = append(first.passes, o), first.left[1:]
		first.run.tag = least
		used += o.tokens
		tag = max(tag, least)
	}
	var taken []series
	for _, s := range shares {
		s.run.backlogged = len(s.left) > 0
		if len(s.passes) > 0 {
			taken = append(taken, s.series)
		}
	}
	return taken, tag
}

// turnToMake gives the run whose first weights are to be computed next, of those that are ready for a pass: of the key for which that was done longest ago, so that nobody who has made many adapters keeps another
// one's first pass from cycle after cycle. nil: there is none. The caller holds mu.
func (e *Engine) turnToMake(ready []*run) (turn *run) {
	least := int64(0)
	for _, r := range ready {
		if o := r.queue.first(); r.latest.unmade() && o.kind == kindPass {
			if last := e.lastMade[o.key()]; turn == nil || last < least {
				turn, least = r, last
			}
		}
	}
	return turn
}

// keysMade is of how many keys is remembered when an adapter of theirs was made last.
const keysMade = 1024

// makes notes that a cycle computes first weights for a key. The caller holds mu.
func (e *Engine) makes(key string, cycle int64) {
	if len(e.lastMade) >= keysMade {
		clear(e.lastMade)
	}
	e.lastMade[key] = cycle
}

// alone gives the series of the next cycle where that belongs to a single pass. The caller holds mu.
func (e *Engine) alone() []series {
	for len(e.lonely) > 0 {
		r := e.lonely[0]
		e.lonely = e.lonely[1:]
		if passes := r.queue.passes(); r.ready() && len(passes) > 0 {
			r.tag += float64(passes[0].tokens) / passes[0].weight
			return []series{{run: r, passes: passes[:1]}}
		}
	}
	return nil
}

// trainCycle runs one clock cycle, or the steps that still belong to the last one, and tells whether there was anything to do.
func (e *Engine) trainCycle() bool {
	l := e.loaded
	if l == nil {
		return false
	}
	e.cycling = true
	defer e.cycled()
	begin := time.Now()
	late := e.cycle.number > 0 && time.Since(e.cycle.end) < e.openFor && e.steps(func(r *run) bool { return r.passed == e.cycle.number })
	if late {
		e.endCycle(begin)
	}
	e.mu.Lock()
	var ready []*run
	steps := false
	for _, r := range e.order {
		if r.ready() {
			ready = append(ready, r)
			steps = steps || r.queue.first().kind == kindStep
		}
	}
	taken := e.alone()
	if taken == nil {
		taken, e.tag = plan(ready, e.pace.cycleTokens(l.model.Parameters, l.plan.cycleTokens), e.tag, e.turnToMake(ready))
	}
	// Adapters side by side in the batch, those with the fewest tokens first: their results do not wait for all of a long queue that is in the same cycle.
	slices.SortFunc(taken, func(a, b series) int {
		return cmp.Or(cmp.Compare(a.tokens(), b.tokens()), cmp.Compare(a.run.number, b.run.number))
	})
	var passes []*pass
	made := int64(0)
	for i := range taken {
		s := &taken[i]
		if s.run.latest.unmade() {
			made += s.run.latest.size
			e.makes(s.passes[0].key(), e.cycle.number+1)
		}
		s.version = e.hold(s.run.latest)
		for _, o := range s.passes {
			p := &pass{run: s.run, op: o, version: s.version, failure: o.invalid}
			if p.failure == nil && s.run.broken != nil {
				p.failure = s.run.brokenError()
			}
			p.refused = p.failure != nil
			passes = append(passes, p)
		}
	}
	e.mu.Unlock()
	if len(taken) == 0 && !steps {
		return late
	}
	e.closeCycle(e.cycle.number)
	e.cycle = cycle{number: e.counters.beginCycle(), begin: time.Now(), sampler: e.turns, runs: map[int64]struct{}{}, made: made}
	for _, p := range passes {
		e.cycle.note(p.run, p.op)
	}
	e.counters.passes.Add(int64(len(passes)))
	e.steps(everyRun) // of runs without passes before them: they need not wait for the passes of others
	passesBegin, before := time.Now(), e.turns
	e.execute(passes, e.cycle.number)
	now := time.Now()
	if len(passes) > 0 {
		e.pace.cycled(now.Sub(passesBegin) - (e.turns.time - before.time))
	}
	e.mu.Lock()
	for _, s := range taken {
		e.trainers.trained(s.passes[0].key(), now)
		s.run.passed = e.cycle.number
		e.release(s.version)
	}
	e.mu.Unlock()
	e.steps(everyRun)
	e.endCycle(e.cycle.begin)
	return true
}

// cycled has the calls that found no room in a cycle made again.
func (e *Engine) cycled() {
	e.cycling = false
	if len(e.deferred) > 0 {
		e.mu.Lock()
		e.calls = append(e.deferred, e.calls...)
		e.mu.Unlock()
		e.deferred = nil
	}
}

// endCycle notes that what the newest cycle has had since begin has come to its end, and has its span recorded when no more can come.
func (e *Engine) endCycle(begin time.Time) {
	e.cycle.end = time.Now()
	e.counters.cycleTime.Add(int64(e.cycle.end.Sub(begin)))
	if number := e.cycle.number; len(e.cycle.links) > 0 {
		time.AfterFunc(e.openFor, func() { e.call(func() { e.closeCycle(number) }) })
	}
}

func everyRun(*run) bool { return true }
