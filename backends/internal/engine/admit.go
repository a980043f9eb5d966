package engine

import (
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/sample"
)

// crowd is the adapters of the sequences that are running, and how many there are of each. They may take half of the memory for adapters, the other half
// is for training; one may take all.
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

// maxPassed is how many steps long those behind a sequence for whose adapter there is no room may go first; then they wait with it: all others if its key
// has no place at all, else those of its key.
const maxPassed = 256

// pass has those behind a sequence go first for whose adapter there is no room.
func (s *sequence) pass() answer {
	switch s.passed++; {
	case s.passed <= maxPassed:
		return waitsOn
	case s.line.placed > 0:
		return othersOnly
	}
	return enough
}

// place gives the replica for a sequence: that of its request, or else the one with the most room, among equals the one that has most of the prompt's pages. nil: none has room for another sequence. The caller holds mu.
func (e *Engine) place(s *sequence, full func(*replica) bool) *replica {
	if r := s.request.replica; r != nil {
		if full(r) {
			return nil
		}
		return r
	}
	var best *replica
	held := -1
	for _, r := range e.loaded.sampling {
		if full(r) {
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
	pages, _ := p.match(s)
	p.cache.Release(pages)
	return len(pages)
}

// admit gives waiting sequences a place, while there are places and pages for all their tokens, or others' that they have a claim to. The pages that
// were taken are left to be prepared.
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
	type part struct {
		line    *line
		replica *replica
	}
	lacking := map[part]bool{} // keys that have a place and no pages for another one: nobody else waits for that
	var owing debtors
	moved := true // places, since owing was found
	e.waiting.serve(func(s *sequence) answer {
		if moved {
			owing, moved = e.waiting.debtors(), false
		}
		claimed := owing.owe(s.line, e.waiting.lead)
		if allFull(full) && !claimed {
			return othersOnly
		}
		if !claimed && !crowd.room(s.request.version, l.adapters.limit) {
			return s.pass()
		}
		r := e.place(s, func(r *replica) bool { return full[r] || lacking[part{s.line, r}] })
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
		need, state := 0, -1
		if s.pages == nil {
			if !whole {
				pages, state = p.match(s)
			}
			need = pagesOf(s.tokens) - len(pages)
		}
		place := places(r) > 0
		if !crowd.room(s.request.version, l.adapters.limit) || !place || p.cache.Available() < need {
			if !e.roomFor(s, r, place, need-p.cache.Available(), crowd) {
				p.cache.Release(pages)
				if !crowd.room(s.request.version, l.adapters.limit) {
					return s.pass()
				}
				if place && s.line.placed > 0 {
					lacking[part{s.line, r}] = true
				} else {
					full[r] = true // for those behind it as well
				}
				return waitsOn
			}
		}
		moved = true
		if s.pages != nil {
			e.unpark(s)
		} else {
			more, ok := p.allocate(need)
			if !ok {
				p.cache.Release(pages)
				full[r] = true
				return waitsOn
			}
			if !p.takeSlot(s, state) { // there are more than sequences that may run
				p.cache.Release(append(pages, more...))
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
	if twin := e.twin(s); twin != nil && len(more) == 1 && !whole && !p.recurrent() {
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
			other.want(pages * kvcache.PageSize)
			return true
		}
	}
	return false
}
