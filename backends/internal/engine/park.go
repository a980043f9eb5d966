package engine

import (
	"cmp"
	"iter"
	"slices"
)

// A sequence whose place another key is to have is parked: it leaves the batch and waits at the head of its line, with the tokens that it has drawn and,
// as long as nobody needs them, with its pages. If those were taken, its tokens go through the model again when it has a place again, which gives the
// same bits; random numbers go by positions. So are sequences whose tokens nobody reads: they wait for their reader, apart from the lines, and hold up
// nobody.

// assured is how many tokens a sequence that had to be computed again generates before it is parked again: so however keys come and go, it gets on.
const assured = 32

// mostUnread is how many tokens of a sequence may wait for a reader who is busy with those before.
const mostUnread = 2 * mostPending

// claims gives the running sequences, of one replica unless that is nil, that may be parked one after the other for one of a line: of the line with the
// most places for its weight, those that came last first. The caller holds mu.
func (e *Engine) claims(l *line, on *replica) iter.Seq[*sequence] {
	quantum := e.pace.sharesOf(e.loaded.config.MaxBatch).quantum
	return func(yield func(*sequence) bool) {
		given := map[*line]int{}
		gone := map[*sequence]bool{}
		for {
			var next *sequence
			for i := len(e.running) - 1; i >= 0; i-- {
				s := e.running[i]
				if s.done || gone[s] || (on != nil && s.request.replica != on) || s.isAssured() || !s.line.owes(l, given[s.line], quantum) {
					continue
				}
				if next == nil || s.line != next.line && heavier(s.line, next.line, given) {
					next = s
				}
			}
			if next == nil || !yield(next) {
				return
			}
			gone[next] = true
			given[next.line]++
		}
	}
}

// heavier tells whether the first line has more places for its weight than the second, after they have given some, or else the larger account.
func heavier(a, b *line, given map[*line]int) bool {
	return cmp.Or(cmp.Compare(a.load(-given[a]), b.load(-given[b])), cmp.Compare(a.account, b.account), cmp.Compare(b.key, a.key)) > 0
}

func (s *sequence) isAssured() bool { return s.again > 0 && s.generated() < s.again+assured }

// park takes the place of a running sequence. It keeps its pages. The caller holds mu.
func (e *Engine) park(s *sequence) {
	e.leaveBatch(s)
	e.waiting.back(s)
}

// leaveBatch takes a running sequence out of the batch, with its pages.
func (e *Engine) leaveBatch(s *sequence) {
	e.running = slices.DeleteFunc(e.running, func(other *sequence) bool { return other == s })
	p := s.request.replica.sampler
	p.parked = append(p.parked, s)
}

// unpark has a parked sequence go on with its pages.
func (e *Engine) unpark(s *sequence) {
	p := s.request.replica.sampler
	p.parked = slices.DeleteFunc(p.parked, func(other *sequence) bool { return other == s })
	e.running = append(e.running, s)
}

// reclaim takes the pages of a parked sequence: of the key with the most for its weight, the one that comes back last. It tells whether there was one.
func (p *sampler) reclaim() bool {
	if len(p.parked) == 0 {
		return false
	}
	s := p.parked[heaviest(p.parked)]
	p.parked = slices.DeleteFunc(p.parked, func(other *sequence) bool { return other == s })
	p.takePages(s)
	return true
}

// takePages has a sequence without a place computed again.
func (p *sampler) takePages(s *sequence) {
	p.release(s)
	s.computed, s.shared, s.rolling = 0, 0, 0
	s.again = max(1, s.generated())
}

// heaviest gives the index of the first sequence of the key that has the most pages for its weight.
func heaviest(sequences []*sequence) int {
	pages := map[string]float64{}
	for _, s := range sequences {
		share := s.request.Share
		if share.Weight == 0 {
			share.Weight = 1
		}
		pages[share.Key] += float64(len(s.pages)) / share.Weight
	}
	best := 0
	for i, s := range sequences {
		if a, b := s.request.Share.Key, sequences[best].request.Share.Key; pages[a] > pages[b] || (pages[a] == pages[b] && a < b) {
			best = i
		}
	}
	return best
}

// allocate gives n pages, taking those of parked sequences if there are too few.
func (p *sampler) allocate(n int) ([]int32, bool) {
	for {
		pages, ok := p.cache.Allocate(n)
		if ok || !p.reclaim() {
			return pages, ok
		}
	}
}

// placeOf gives the replica on which a sequence may have another's place: its request's, or that of whose place it has a claim to first; nil if there is
// none. The caller holds mu.
func (e *Engine) placeOf(s *sequence) *replica {
	if r := s.request.replica; r != nil {
		return r
	}
	for v := range e.claims(s.line, nil) {
		return v.request.replica
	}
	return nil
}

// roomFor makes room for a sequence on a replica that lacks a place, pages or, in the crowd, memory for its adapter, by parking others' sequences of
// which it has a claim. It parks none unless that suffices. The caller holds mu.
func (e *Engine) roomFor(s *sequence, r *replica, place bool, pages int, crowd *crowd) bool {
	limit := e.loaded.adapters.limit
	on := r
	if !crowd.room(s.request.version, limit) {
		on = nil
	}
	released := r.sampler.cache.IfReleased()
	if pages > 0 {
		for _, parked := range r.sampler.parked {
			released.Add(parked.pages)
		}
	}
	enough := func() bool { return place && pages <= released.Pages() && crowd.room(s.request.version, limit) }
	var victims []*sequence
	for v := range e.claims(s.line, on) {
		if enough() {
			break
		}
		victims = append(victims, v)
		if v.request.replica == r {
			place = true
			released.Add(v.pages)
		}
		crowd.remove(v.request.version)
	}
	if !enough() {
		for _, v := range victims {
			crowd.add(v.request.version)
		}
		return false
	}
	for _, v := range victims {
		e.park(v)
	}
	return true
}

// holdUp takes the places of sequences whose tokens nobody reads. The caller holds mu.
func (e *Engine) holdUp() {
	for i := len(e.running) - 1; i >= 0; i-- {
		if s := e.running[i]; !s.done && s.unread() >= mostUnread {
			e.waiting.leavePlace(s)
			e.leaveBatch(s)
			s.heldUp = true
			s.line.heldUp++
			e.heldUp++
		}
	}
}

// unread counts the tokens of a sequence that were not taken yet. The caller holds mu.
func (s *sequence) unread() int {
	if s.pending == nil {
		return 0
	}
	return len(s.pending.Tokens)
}

// read notes that all tokens of a request were taken: those of its sequences that were held up wait for a place again. The caller holds mu.
func (e *Engine) read(q *request) {
	for _, s := range q.sequences {
		s.pending = nil
		if s.heldUp {
			e.goOn(s)
			e.waiting.rejoin(s)
			e.wake.Signal()
		}
	}
}

// goOn takes a sequence out of the count of those that are held up. The caller holds mu.
func (e *Engine) goOn(s *sequence) {
	s.heldUp = false
	s.line.heldUp--
	e.heldUp--
}

// sweepParked gives the pages of parked sequences back that have ended. The caller holds mu.
func (e *Engine) sweepParked() {
	if e.stale == 0 {
		return
	}
	e.stale = 0
	for _, r := range e.loaded.sampling {
		p := r.sampler
		p.parked = slices.DeleteFunc(p.parked, func(s *sequence) bool {
			if s.done {
				p.release(s)
			}
			return s.done
		})
	}
}
