package engine

import (
	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/model"
)

// A model with recurrent layers keeps a state for every sequence that has pages, in a slot. Slots that no sequence has hold snapshots: states behind full pages that are shared, from which other sequences go on. States are copied
// and cleared in the order in which slots were given out, before a step begins, so that a slot may change hands at once.

// snapshotTokens is after how many tokens of a long prompt there is another snapshot.
const snapshotTokens = 2048

// leastSnapshots is how many slots there are beside those of the sequences that run.
const leastSnapshots = 2

// snapshotSlots is how many slots a cache of so many pages has for snapshots beside the least: their memory is a quarter of that of the pages.
func snapshotSlots(m *model.Model, pages int) int {
	if !m.Recurrent() {
		return 0
	}
	return int(int64(pages) * pageBytes(m) / 4 / m.StateBytes())
}

// runningSlots is how many slots there are at least, of which no other share of memory has a part.
func (c *Config) runningSlots(m *model.Model) int {
	if !m.Recurrent() {
		return 0
	}
	return c.MaxBatch + leastSnapshots
}

// slotMove is what a slot has to hold before it is used: what slot from does, or the state of a sequence's beginning if that is negative.
type slotMove struct{ id, from int }

// recurrent tells whether sequences have slots.
func (p *sampler) recurrent() bool { return p.replica.models[0].Recurrent() }

// match gives the pages that a sequence goes on from, all but its last token at most, whose logits are needed; and the slot of the state behind them, -1 if there is none.
func (p *sampler) match(s *sequence) ([]int32, int) {
	tokens := s.tokens[:len(s.tokens)-1]
	if p.recurrent() {
		return p.cache.MatchState(s.request.key, tokens)
	}
	return p.cache.Match(s.request.key, tokens), -1
}

// takeSlot has a sequence go on from the state of a slot, or begin if that is negative. Slots of parked sequences are taken if there are too few.
func (p *sampler) takeSlot(s *sequence, from int) bool {
	if !p.recurrent() {
		return true
	}
	for {
		if slot, ok := p.cache.TakeSlot(); ok {
			s.slot = slot
			p.moves = append(p.moves, slotMove{slot, from})
			return true
		}
		if !p.reclaim() {
			return false
		}
	}
}

// release gives back what a sequence has of the cache: its pages and its slot.
func (p *sampler) release(s *sequence) {
	if s.pages == nil {
		return
	}
	p.cache.Release(s.pages)
	s.pages = nil
	if p.recurrent() {
		p.cache.GiveSlot(s.slot)
	}
}

// boundary is the next position at which a sequence's state is kept, behind from: chunks of prompts end there.
func (s *sequence) boundary(from int) int {
	next := (from/snapshotTokens + 1) * snapshotTokens
	if last := (len(s.tokens) - 1) / kvcache.PageSize * kvcache.PageSize; last > from {
		next = min(next, last)
	}
	if s.wanted > from {
		next = min(next, s.wanted)
	}
	return next
}

// want notes that a state at a position that is yet to be computed is of use: the nearest one first, others are wanted again as long as somebody waits for them.
func (s *sequence) want(position int) {
	if s.wanted <= s.computed || position < s.wanted {
		s.wanted = position
	}
}

// isBoundary tells whether a sequence's state is kept where it stands, at the end of a full page: within a prompt only where boundary has chunks end, wherever else they end too.
func (s *sequence) isBoundary() bool {
	last := (len(s.tokens) - 1) / kvcache.PageSize * kvcache.PageSize
	return s.computed >= last || s.computed%snapshotTokens == 0 || s.computed == s.wanted
}

// keepState keeps the state of a sequence behind the pages that it has just filled, if it stands there: at every boundary of a prompt, and at the last full page of what it has generated.
func (p *sampler) keepState(s *sequence) {
	if !p.recurrent() || s.computed%kvcache.PageSize != 0 || !s.isBoundary() {
		return
	}
	key, prompt := s.request.key, len(s.request.Prompt)
	if s.computed > prompt {
		if s.rolling > 0 { // one of those behind the prompt is enough
			p.cache.DropSnapshot(key, s.tokens[:s.rolling])
		}
		s.rolling = s.computed
	}
	if slot, ok := p.cache.Snapshot(key, s.tokens[:s.computed]); ok {
		p.moves = append(p.moves, slotMove{slot, s.slot})
	}
}

// alone takes one chunk through the model after a step that failed. What the slot of its sequence holds is not known then, so the sequence goes through from its beginning.
func (p *sampler) alone(one []chunk) ([]token, error) {
	if !p.recurrent() {
		return p.run(one)
	}
	c := one[0]
	p.moves = append(p.moves, slotMove{c.sequence.slot, -1})
	if err := p.prepare(); err != nil {
		return nil, err
	}
	for at := 0; at < c.from; at += p.prefill {
		if _, err := p.run([]chunk{{sequence: c.sequence, from: at, to: min(at+p.prefill, c.from)}}); err != nil {
			return nil, err
		}
	}
	return p.run(one)
}
