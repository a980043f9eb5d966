package engine

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/constraint"
)

// samplingStep runs one step of the sampler: on every replica the next token of every sequence that is past its prompt, and a piece of the prompts of others, a small one if training waits or a sequence is past its
// prompt. It tells whether there was anything to do.
func (e *Engine) samplingStep(trainingWaits bool) bool {
	l := e.loaded
	begin := time.Now()
	e.fetchPages()
	e.admit()
	e.bounds = e.boundsSteps()
	failed := false
	chunks := e.chunks[:0]
	for _, r := range l.sampling {
		err := r.sampler.prepare()
		var picked []chunk
		if err == nil {
			picked = e.pick(r, trainingWaits)
			err = r.sampler.prepare()
		}
		if err != nil {
			failed = true
			e.failRunning(r, err)
			continue
		}
		chunks = append(chunks, picked...)
		clear(picked)
	}
	if len(chunks) == 0 {
		return failed
	}
	e.chunks = chunks
	defer clear(chunks) // nothing is kept alive by them
	// Chunks of one adapter side by side.
	slices.SortStableFunc(chunks, func(a, b chunk) int {
		x, y := a.sequence.request.key, b.sequence.request.key
		return cmp.Or(cmp.Compare(x.Adapter, y.Adapter), cmp.Compare(x.Version, y.Version))
	})
	chunks, resting := e.boundStep(e.partStep(chunks))
	defer clear(resting)
	chunks = e.residents(chunks)
	if len(chunks) == 0 && len(resting) > 0 { // nobody rests for those who cannot go on
		chunks = e.residents(resting)
	}
	defer e.releaseHeld()
	if len(chunks) == 0 {
		return failed
	}
	steps := e.sampled[:0]
	for _, r := range l.sampling {
		st := step{replica: r, chunks: r.sampler.step.chunks[:0]}
		for _, c := range chunks {
			if c.sequence.request.replica == r {
				st.chunks = append(st.chunks, c)
			}
		}
		if r.sampler.step.chunks = st.chunks; len(st.chunks) > 0 {
			steps = append(steps, st)
		}
	}
	e.sampled = steps
	e.step++
	if len(steps) == 1 {
		steps[0].run()
	} else {
		runAll(steps)
	}
	followConstraints(steps)
	for _, st := range steps {
		e.deliver(st.chunks, st.drawn)
	}
	prefill, most := 0, 0 // of the replica that had most
	for _, st := range steps {
		n, all := 0, 0
		for _, c := range st.chunks {
			c.sequence.went = e.step
			all += c.to - c.from
			if c.to-c.from > 1 {
				n += c.to - c.from
			}
		}
		prefill, most = max(prefill, n), max(most, all)
	}
	now := time.Now()
	e.pace.prefilled(prefill, now.Sub(begin))
	e.pace.sampled(most, now.Sub(begin))
	e.charge(steps)
	for _, st := range steps {
		clear(st.chunks)
	}
	e.counters.progressed(now)
	return true
}

// step is what one replica samples in a step.
type step struct {
	replica *replica
	chunks  []chunk
	drawn   []token // for each chunk
}

// runAll runs the steps of several replicas at once. Errors are the chunks'.
func runAll(steps []step) {
	_ = concurrently(len(steps), nil, func(i int, _ func() error) error {
		steps[i].run()
		return nil
	})
}

func (st *step) run() {
	var err error
	if st.drawn, err = st.replica.sampler.run(st.chunks); err == nil {
		return
	}
	// That says nothing about a single sequence: each is tried again alone, which writes the same on its pages, and fails only if it fails alone.
	st.drawn = make([]token, len(st.chunks))
	for i := range st.chunks {
		one, err := st.replica.sampler.alone(st.chunks[i : i+1])
		if err != nil {
			st.drawn[i].err = internal("sample", err)
		} else {
			st.drawn[i] = one[0]
			top := &st.drawn[i].top // the next one overwrites it
			top.IDs, top.Logprobs = slices.Clone(top.IDs), slices.Clone(top.Logprobs)
		}
	}
}

// residents has the weights that chunks need in memory until releaseHeld is called, and gives those chunks, sorted by adapter, whose weights are there. While a clock cycle keeps so much memory that there is no room
// for some, they wait for another step; with nothing but the sampler at work there is room for one adapter at least, or its requests fail. So do at once those of an adapter for which there is never room.
func (e *Engine) residents(chunks []chunk) (here []chunk) {
	adapters := e.loaded.adapters
	crowded := adapters.needed > 0 || e.cycling // what operations sum is in memory between their passes too
	held := e.held[:0]
	here = chunks[:0] // of those that were looked at
	for i := 0; i < len(chunks); {
		v := chunks[i].sequence.request.version
		to := i + 1
		for to < len(chunks) && chunks[to].sequence.request.version == v {
			to++
		}
		var err error
		if v != nil {
			if err = adapters.need(v.weights); err == nil {
				held = append(held, v.weights)
			}
		}
		switch {
		case err == nil:
			here = append(here, chunks[i:to]...)
		case (isMemory(err) || isStuck(err)) && !errors.Is(err, plugins.ErrTooLarge) && (crowded || len(held) > 0): // another time
		default:
			if isStuck(err) { // to be repeated later, by those who asked
				err = &plugins.Error{Kind: plugins.KindCapacity, Message: err.Error()}
			}
			e.mu.Lock()
			for _, c := range chunks[i:to] {
				e.endRequest(c.sequence.request, err)
			}
			e.sweep()
			e.mu.Unlock()
		}
		i = to
	}
	e.held = held
	return here
}

// releaseHeld ends what residents began.
func (e *Engine) releaseHeld() {
	for _, b := range e.held {
		e.loaded.adapters.done(b)
	}
	e.held = e.held[:0]
}

// sweep takes ended sequences out of the books and gives their pages back. The caller holds mu; a step calls it before it lets go of mu, so that whoever sees the end of a sequence sees its pages free.
func (e *Engine) sweep() {
	e.running = slices.DeleteFunc(e.running, func(s *sequence) bool {
		if !s.done {
			return false
		}
		if s.request.replica != nil {
			s.request.replica.sampler.release(s)
		}
		s.pages = nil
		e.waiting.leavePlace(s)
		e.swept(s)
		return true
	})
	e.sweepParked()
	e.counters.pagesFree.Store(e.loaded.pagesFree())
}

// deliver books the results of a step: events, ends, pages that others may share.
func (e *Engine) deliver(chunks []chunk, drawn []token) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.sweep()
	for i, c := range chunks {
		s, t := c.sequence, drawn[i]
		q := s.request
		prompt := len(q.Prompt)
		if c.from < prompt {
			e.counters.prefillTokens.Add(int64(min(c.to, prompt) - c.from))
		}
		if t.err != nil { // before anything is shared: of a pass that failed nobody knows what is in the pages
			if !s.done {
				e.endRequest(q, t.err)
			}
			continue
		}
		s.computed = c.to
		if full := s.computed / kvcache.PageSize; full > s.shared && !s.done {
			q.replica.sampler.cache.Share(q.key, s.tokens[:full*kvcache.PageSize], s.pages[:full])
			s.shared = full
			q.replica.sampler.keepState(s)
		}
		if s.done {
			continue
		}
		if s.computed >= prompt && c.scores != nil && c.scores == q.scores {
			q.scores.result.Version = q.number
			q.events = append([]plugins.SampleEvent{{Prompt: &q.scores.result}}, q.events...)
			q.scores = nil
			q.signal()
		}
		if s.computed < len(s.tokens) {
			continue
		}
		if q.MaxTokens == 0 {
			e.finishSequence(s, plugins.StopLength)
			continue
		}
		if s.constrained.empty {
			e.finishSequence(s, plugins.StopComplete)
			continue
		}
		e.book(s, t)
	}
}

// book adds a drawn token to its sequence and ends the sequence where it must. The caller holds mu.
func (e *Engine) book(s *sequence, t token) {
	q := s.request
	if s.generated() == 0 {
		s.room(min(q.MaxTokens, firstRoom), t.top.K)
	}
	s.tokens, s.logprobs = append(s.tokens, t.id), append(s.logprobs, t.logprob)
	s.topIDs, s.topLogprobs = append(s.topIDs, t.top.IDs...), append(s.topLogprobs, t.top.Logprobs...)
	if s.history != nil {
		s.history.Add(t.id)
	}
	e.counters.sampledTokens.Add(1)
	n, k := s.generated(), t.top.K
	if s.pending == nil {
		s.pending, s.taken = q.tokensEvent(), n-1
		*s.pending = plugins.SampledTokens{Sequence: s.index}
		q.events = append(q.events, plugins.SampleEvent{Tokens: s.pending})
	}
	// Views of what never changes any more, so that whoever takes the event may keep it.
	from, prompt := s.taken, len(q.Prompt)
	s.pending.Tokens, s.pending.Logprobs = s.tokens[prompt+from:prompt+n:prompt+n], s.logprobs[from:n:n]
	s.pending.Top = plugins.TopLogprobs{K: k, IDs: s.topIDs[from*k : n*k : n*k], Logprobs: s.topLogprobs[from*k : n*k : n*k]}
	if of := &s.constrained; of.state != nil {
		of.left = append(of.left, t.left)
		s.pending.ConstraintLogprobs = of.left[from:n:n]
	}
	if !q.AtEnd || len(s.pending.Tokens) >= mostPending {
		q.signal()
	}
	_, stop := slices.BinarySearch(q.StopTokens, t.id)
	switch {
	case stop || s.constrained.end == constraint.Stopped:
		e.finishSequence(s, plugins.StopToken)
	case s.constrained.end == constraint.Complete:
		e.finishSequence(s, plugins.StopComplete)
	case s.generated() == q.MaxTokens:
		e.finishSequence(s, plugins.StopLength)
	}
}

// failRunning ends the requests of all sequences that run on a replica, because their pages could not be prepared.
func (e *Engine) failRunning(r *replica, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.sweep()
	for _, s := range e.running {
		if s.request.replica == r {
			e.endRequest(s.request, internal("sample", err))
		}
	}
	for r.sampler.reclaim() { // their pages may be among those
	}
}
