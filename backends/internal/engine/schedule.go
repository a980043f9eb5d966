package engine

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/sample"
	"github.com/tinsmith/tinsmith/plugins"
)

// samplingStep runs one step of the sampler: on every replica the next token of every sequence that is past its prompt, and a piece of the prompts of others, a small one if training waits or a sequence is past its
// prompt. It tells whether there was anything to do.
func (e *Engine) samplingStep(trainingWaits bool) bool {
	l := e.loaded
	begin := time.Now()
	e.fetchPages()
	e.admit()
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
	chunks, resting := e.partStep(chunks)
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
	if len(steps) == 1 {
		steps[0].run()
	} else {
		runAll(steps)
	}
	for _, st := range steps {
		e.deliver(st.chunks, st.drawn)
	}
	prefill, most := 0, 0 // of the replica that had most
	for _, st := range steps {
		n, all := 0, 0
		for _, c := range st.chunks {
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
		one, err := st.replica.sampler.run(st.chunks[i : i+1])
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

// crowd is the adapters of the sequences that are running, and how many there are of each. They may take half of the memory for adapters, the other half is for training; one may take all.
type crowd struct {
	versions map[*version]int
	bytes    int64
}

func (e *Engine) crowd() *crowd {
	c := &crowd{versions: map[*version]int{}}
	for _, s := range e.running {
		c.add(s.request.version)
	}
	return c
}

func (c *crowd) add(v *version) {
	if v == nil {
		return
	}
	if c.versions[v]++; c.versions[v] == 1 {
		c.bytes += v.weights.bytes
	}
}

func (c *crowd) remove(v *version) {
	if v == nil {
		return
	}
	if c.versions[v]--; c.versions[v] == 0 {
		delete(c.versions, v)
		c.bytes -= v.weights.bytes
	}
}

// room tells whether another version may join.
func (c *crowd) room(v *version, limit int64) bool {
	if v == nil || len(c.versions) == 0 {
		return true
	}
	return c.versions[v] > 0 || c.bytes+v.weights.bytes <= limit/2
}

// maxPassed is how many steps long those behind a sequence for whose adapter there is no room may go first; then they wait with it.
const maxPassed = 256

// sweep takes ended sequences out of the books and gives their pages back. The caller holds mu; a step calls it before it lets go of mu, so that whoever sees the end of a sequence sees its pages free.
func (e *Engine) sweep() {
	e.running = slices.DeleteFunc(e.running, func(s *sequence) bool {
		if !s.done {
			return false
		}
		if s.request.replica != nil {
			s.request.replica.sampler.cache.Release(s.pages)
		}
		s.pages = nil
		e.waiting.leavePlace(s)
		e.swept(s)
		return true
	})
	e.sweepParked()
	e.counters.pagesFree.Store(e.loaded.pagesFree())
}

// place gives the replica for a sequence: that of its request, or else the one with the most room, among equals the one that has most of the prompt's pages. nil: none has room for another sequence. The caller holds mu.
func (e *Engine) place(s *sequence, full map[*replica]bool) *replica {
	if r := s.request.replica; r != nil {
		if full[r] {
			return nil
		}
		return r
	}
	var best *replica
	held := -1
	for _, r := range e.loaded.sampling {
		if full[r] {
			continue
		}
		room := 0
		if best != nil {
			room = r.sampler.cache.Available() - best.sampler.cache.Available()
		}
		switch {
		case best == nil || room > 0:
			best, held = r, -1
		case room == 0:
			if held < 0 {
				held = best.sampler.cached(s)
			}
			if n := r.sampler.cached(s); n > held {
				best, held = r, n
			}
		}
	}
	return best
}

// cached is the number of pages of a sequence that the prefix cache has.
func (p *sampler) cached(s *sequence) int {
	pages := p.cache.Match(s.request.key, s.tokens[:len(s.tokens)-1])
	p.cache.Release(pages)
	return len(pages)
}

// admit gives waiting sequences a place, while there are places and pages for all their tokens, or others' that they have a claim to. The pages that were taken are left to be prepared.
func (e *Engine) admit() {
	l := e.loaded
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweep()
	e.holdUp()
	e.waiting.lead = e.pace.sharesOf(l.config.MaxBatch).quantum
	if e.waiting.count == 0 || len(e.running) >= len(l.sampling)*l.config.MaxBatch && !e.waiting.anyClaims(e.waiting.lead) {
		return
	}
	defer func() { e.counters.pagesFree.Store(l.pagesFree()) }()
	crowd := e.crowd()
	places := func(r *replica) int { // that are free
		n := l.config.MaxBatch
		for _, s := range e.running {
			if s.request.replica == r {
				n--
			}
		}
		return n
	}
	full := map[*replica]bool{} // replicas that take no more
	for _, r := range l.sampling {
		full[r] = places(r) <= 0
	}
	e.waiting.serve(func(s *sequence) answer {
		claimed := e.waiting.claims(s.line, e.waiting.lead)
		if allFull(full) && !claimed {
			return othersOnly
		}
		if !claimed && !crowd.room(s.request.version, l.adapters.limit) {
			if s.passed++; s.passed > maxPassed {
				return enough
			}
			return waitsOn
		}
		r := e.place(s, full)
		if r == nil && claimed {
			r = e.placeOf(s)
		}
		scores := s.request.scores
		if r == nil || (scores != nil && s.request.scorer() != s) || s.pages == nil && e.prefixComes(s, r) {
			return waitsOn
		}
		p := r.sampler
		whole := scores != nil && scores.any // the whole prompt is computed: pages hold no logits
		var pages []int32
		lacking := 0
		if s.pages == nil {
			if !whole {
				pages = p.cache.Match(s.request.key, s.tokens[:len(s.tokens)-1]) // the last token is computed: its logits are needed
			}
			lacking = pagesOf(s.tokens) - len(pages)
		}
		place := places(r) > 0
		if !crowd.room(s.request.version, l.adapters.limit) || !place || p.cache.Available() < lacking {
			if !e.roomFor(s, r, place, lacking-p.cache.Available(), crowd) {
				p.cache.Release(pages)
				if !crowd.room(s.request.version, l.adapters.limit) {
					if s.passed++; s.passed > maxPassed {
						return enough
					}
				} else {
					full[r] = true // for those behind it as well
				}
				return waitsOn
			}
		}
		if s.pages != nil {
			e.unpark(s)
		} else {
			more, ok := p.allocate(lacking)
			if !ok {
				p.cache.Release(pages)
				full[r] = true
				return waitsOn
			}
			e.takePlace(s, r, pages, more, whole)
		}
		full[r] = places(r) <= 0
		crowd.add(s.request.version)
		s.passed = 0
		return placed
	})
}

// takePlace has a sequence run on a replica with pages on which its first tokens are, and more for the others. The caller holds mu.
func (e *Engine) takePlace(s *sequence, r *replica, pages, more []int32, whole bool) {
	p := r.sampler
	s.request.replica = r
	s.computed, s.shared = len(pages)*kvcache.PageSize, len(pages)
	s.pages = append(pages, more...)
	for _, id := range more {
		p.fresh = append(p.fresh, page{id, -1})
	}
	if twin := e.twin(s); twin != nil && len(more) == 1 && !whole {
		// All but the last token, whose logits are needed, is on the twin's page.
		p.fresh[len(p.fresh)-1].from = twin.pages[len(s.pages)-1]
		s.computed = len(s.tokens) - 1
	}
	if scores := s.request.scores; scores != nil && !s.began {
		scores.result.CachedTokens = s.computed
	}
	if s.history == nil && !s.request.settings.OnlyScales() {
		s.history = sample.NewHistory(s.request.Prompt)
	}
	s.began = true
	e.running = append(e.running, s)
}

func allFull(full map[*replica]bool) bool {
	for _, f := range full {
		if !f {
			return false
		}
	}
	return true
}

// twin gives a running sequence with the same prompt that has computed it and nothing behind it, while s has not begun: the samples of a group, whether they came as one request or as many, get the page
// that the prompt does not fill as a copy. The caller holds mu.
func (e *Engine) twin(s *sequence) *sequence {
	n := len(s.request.Prompt)
	if len(s.tokens) != n {
		return nil
	}
	for _, other := range e.running {
		if other.request.replica == s.request.replica && other.computed == n && !other.done && other.samePrompt(s) {
			return other
		}
	}
	return nil
}

// samePrompt tells whether two sequences have the same keys and values for the same prompt.
func (s *sequence) samePrompt(other *sequence) bool {
	return s.request == other.request || s.request.key == other.request.key && slices.Equal(s.request.Prompt, other.request.Prompt)
}

// prefixComes tells whether a sequence had better wait, because one that is running on the same replica is computing what it could share: so a prompt that many ask for at once is computed once. The caller holds mu.
func (e *Engine) prefixComes(s *sequence, r *replica) bool {
	for _, other := range e.running {
		if other.request.replica != r || other.request.key != s.request.key || other.done {
			continue
		}
		if n := len(s.request.Prompt); len(s.tokens) == n && other.computed < n && other.samePrompt(s) {
			return true
		}
		pages := 0
		limit := min(len(s.tokens)-1, len(other.tokens)) / kvcache.PageSize
		for pages < limit && slices.Equal(s.tokens[pages*kvcache.PageSize:(pages+1)*kvcache.PageSize], other.tokens[pages*kvcache.PageSize:(pages+1)*kvcache.PageSize]) {
			pages++
		}
		if pages > other.computed/kvcache.PageSize {
			return true
		}
	}
	return false
}

// pick chooses what goes through a replica next and makes sure that it has pages: one token of every sequence that only lacks its last one, then pieces of prompts, of which each key has its part. Where pages run out those of parked
// sequences are taken, then a sequence gives its own up and waits for a place again, of the key with the most pages for its weight the one that was admitted last; computing it a second time gives the same bits.
func (e *Engine) pick(r *replica, trainingWaits bool) (chunks []chunk) {
	p := r.sampler
	e.mu.Lock()
	running := p.step.running[:0]
	for _, s := range e.running {
		if s.request.replica == r {
			running = append(running, s)
		}
	}
	e.mu.Unlock()
	p.step.running = running
	defer clear(running)
	chunks = p.step.picked[:0]
	preempted := false
	for _, s := range running {
		if s.pages == nil || len(s.tokens)-s.computed != 1 {
			continue
		}
		for s.pages != nil && s.computed/kvcache.PageSize >= len(s.pages) {
			if more, ok := p.allocate(1); ok {
				p.fresh = append(p.fresh, page{more[0], -1})
				s.pages = append(s.pages, more[0])
				continue
			}
			e.preempt(last(running))
			preempted = true
		}
		if s.pages != nil {
			chunks = append(chunks, chunk{sequence: s, from: s.computed, to: len(s.tokens)})
		}
	}
	if preempted {
		gone := func(s *sequence) bool { return s.pages == nil }
		chunks = slices.DeleteFunc(chunks, func(c chunk) bool { return gone(c.sequence) })
		running = slices.DeleteFunc(running, gone)
	}
	d := aloneTime
	if trainingWaits || len(chunks) > 0 {
		d = stepTime
	}
	chunks = e.pickPrompts(running, chunks, e.pace.prefillTokens(d, e.loaded.config.PrefillTokens))
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range chunks {
		if s := chunks[i].sequence; s.request.scorer() == s {
			chunks[i].scores = s.request.scores
		}
	}
	p.step.picked = chunks
	return chunks
}

// last gives the sequence that gives up its pages first, of those that have some: one that had to do so already comes after the others.
func last(running []*sequence) *sequence {
	able := slices.DeleteFunc(slices.Clone(running), func(s *sequence) bool { return s.pages == nil })
	if free := slices.DeleteFunc(slices.Clone(able), (*sequence).isAssured); len(free) > 0 {
		able = free
	}
	slices.Reverse(able)
	return able[heaviest(able)]
}

// part is what a key has of the prompts' tokens in a step.
type part struct {
	line           *line
	wanted, weight float64
	tokens         int
}

// pickPrompts adds pieces of prompts of so many tokens together. Each key has its part of these by weight, and what others do not need; within it the sequences go in order of arrival.
func (e *Engine) pickPrompts(running []*sequence, chunks []chunk, budget int) []chunk {
	parts := e.parts[:0]
	defer func() { e.parts = parts; clear(parts[:cap(parts)]) }()
	total := 0.0
	of := func(s *sequence) int {
		return slices.IndexFunc(parts, func(p part) bool { return p.line == s.line })
	}
	for _, s := range running {
		n := len(s.tokens) - s.computed
		if n == 1 {
			continue
		}
		i := of(s)
		if i < 0 {
			share := max(s.request.Share.Weight, 0)
			if share == 0 {
				share = 1
			}
			i, parts = len(parts), append(parts, part{line: s.line, weight: share})
			total += share
		}
		parts[i].wanted += float64(n)
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.wanted/a.weight, b.wanted/b.weight) })
	for i := range parts { // who wants least goes first, and leaves more to the others
		p := &parts[i]
		p.tokens = int(min(p.wanted, max(1, float64(budget)*p.weight/total)))
		p.tokens = min(p.tokens, budget)
		budget -= p.tokens
		total -= p.weight
	}
	for _, s := range running {
		if n := len(s.tokens) - s.computed; n > 1 {
			p := &parts[of(s)]
			if n = min(n, p.tokens); n > 0 {
				p.tokens -= n
				chunks = append(chunks, chunk{sequence: s, from: s.computed, to: s.computed + n})
			}
		}
	}
	return chunks
}

// preempt puts a running sequence back to the head of those that wait, without its pages.
func (e *Engine) preempt(s *sequence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.request.replica.sampler.takePages(s)
	if s.done {
		return // it is about to be swept
	}
	e.running = slices.DeleteFunc(e.running, func(other *sequence) bool { return other == s })
	e.waiting.back(s)
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
		s.computed = c.to
		if full := s.computed / kvcache.PageSize; full > s.shared && !s.done {
			q.replica.sampler.cache.Share(q.key, s.tokens[:full*kvcache.PageSize], s.pages[:full])
			s.shared = full
		}
		if s.done {
			continue
		}
		if t.err != nil {
			e.endRequest(q, t.err)
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
	if !q.AtEnd || len(s.pending.Tokens) >= mostPending {
		q.signal()
	}
	if _, stop := slices.BinarySearch(q.StopTokens, t.id); stop {
		e.finishSequence(s, plugins.StopToken)
	} else if s.generated() == q.MaxTokens {
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
