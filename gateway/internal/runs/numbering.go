package runs

import (
	"context"
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Requests without a number (the SDK's own types have it optional, and other clients leave it out) get the next one in the order of their arrival: one above the highest that has been seen. Nobody can repeat such a
// request: what comes with that number later is another one.

// unnumbered makes the identity of a request that came without a number, which is that of no numbered one.
func unnumbered(hash string) string { return "next " + hash }

// highest is the highest number that has been seen, decided or not.
func (s *sequencer) highest() int64 {
	top := s.next - 1
	for seq := range s.held {
		top = max(top, seq)
	}
	for seq := range s.refused {
		top = max(top, seq)
	}
	return top
}

// nextNumber takes a number for an operation that has none. mu is held.
func (q *queue) nextNumber() (int64, error) {
	n := max(q.numbered, q.sequence.highest()) + 1
	if n > math.MaxInt32 {
		return 0, invalidf("seq_id: is left out, and there is none after %d", math.MaxInt32)
	}
	q.numbered = n
	return n, nil
}

// last is the highest number of the set; -1 if it is empty.
func (s *numbers) last() int64 {
	if len(s.spans) == 0 {
		return -1
	}
	return s.spans[len(s.spans)-1].To - 1
}

// numberSample takes a number for a sample that has none.
func (c *Core) numberSample(ctx context.Context, s *sampler) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.earlier && s.unnumbered == 0 { // only the journal knows which numbers an earlier process has seen
		c.mu.Unlock()
		known, err := c.cfg.Store.List(ctx, inOperations, s.ID, store.Range{}, 0)
		c.mu.Lock()
		if err != nil {
			return 0, fmt.Errorf("find the highest number: %w", err)
		}
		for _, rec := range known {
			s.unnumbered = max(s.unnumbered, rec.Rank+1)
		}
	}
	n := max(s.unnumbered, s.taken.last()+1)
	if n == math.MaxInt64 {
		return 0, invalidf("seq_id: is left out, and there is none after the highest of sampling session %s", s.ID)
	}
	s.unnumbered = n + 1
	return n, nil
}

// unnumber gives the number of a sample that was refused back, if none has been given away since: else refusals would leave gaps.
func (c *Core) unnumber(s *sampler, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.unnumbered == n+1 && !s.taken.has(n) {
		s.unnumbered = n
	}
}
