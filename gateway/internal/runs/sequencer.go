package runs

import (
	"sort"
	"time"
)

// sequencer puts the operations of one run in the order of their numbers and decides about missing ones. A client submits an operation only after the answer to the
// one before, so the arrival of m says that each lower number has arrived, was refused, or never comes; what is still missing is waited for a while, since
// requests may overtake each other on the way, and then skipped. It only decides: it has no clock, no lock and no queue of its own.
type sequencer struct {
	wait    time.Duration
	next    int64 // the lowest number that has not been decided
	held    map[int64]time.Time
	refused map[int64]bool // at or above next
	skipped []span64       // ascending, disjoint; they survive in the journal
	fresh   []span64       // those of them that newlySkipped has not given yet
}

// span64 is the numbers from ≤ n < to.
type span64 struct{ From, To int64 }

func newSequencer(wait time.Duration) sequencer {
	return sequencer{wait: wait, next: 1, held: map[int64]time.Time{}, refused: map[int64]bool{}}
}

// arrive takes note of an operation. ready are the numbers that can run now, in order. ok is false if the number was decided before: it has run, waits, or was skipped.
func (s *sequencer) arrive(seq int64, now time.Time) (ready []int64, ok bool) {
	if _, waiting := s.held[seq]; seq < s.next || waiting {
		return nil, false
	}
	delete(s.refused, seq)
	s.held[seq] = now
	return s.release(), true
}

// seen tells whether a number has been decided or waits.
func (s *sequencer) seen(seq int64) bool {
	_, waiting := s.held[seq]
	return seq < s.next || waiting
}

// newlySkipped gives the numbers that were skipped since it was called last: nothing behind them may run before they are in the journal.
func (s *sequencer) newlySkipped() []span64 {
	fresh := s.fresh
	s.fresh = nil
	return fresh
}

// wasSkipped tells whether a number will never run.
func (s *sequencer) wasSkipped(seq int64) bool {
	i := sort.Search(len(s.skipped), func(i int) bool { return s.skipped[i].To > seq })
	return i < len(s.skipped) && s.skipped[i].From <= seq
}

// refuse says that the number was answered with a refusal, so that nobody waits for it.
func (s *sequencer) refuse(seq int64) (ready []int64) {
	const most = 10_000 // a client that is refused that often ahead of its queue waits for its gaps instead
	if s.seen(seq) || len(s.refused) >= most {
		return nil
	}
	s.refused[seq] = true
	return s.release()
}

// release moves next over what is there and what was refused.
func (s *sequencer) release() (ready []int64) {
	for {
		switch _, here := s.held[s.next]; {
		case here:
			delete(s.held, s.next)
			ready = append(ready, s.next)
		case s.refused[s.next]:
			delete(s.refused, s.next)
			s.markSkipped(span64{s.next, s.next + 1})
		case s.wasSkipped(s.next): // by an earlier process, while a lower number was still waited for
		default:
			return ready
		}
		s.next++
	}
}

func (s *sequencer) markSkipped(gap span64) {
	s.fresh = append(s.fresh, gap)
	switch n := len(s.skipped); {
	case n > 0 && s.skipped[n-1].To == gap.From:
		s.skipped[n-1].To = gap.To
	case n > 0 && s.skipped[n-1].To > gap.From: // an earlier process skipped higher numbers
		s.skipped = mergeSpans(append(s.skipped, gap))
	default:
		s.skipped = append(s.skipped, gap)
	}
}

// deadline is when overdue should be called next; zero if nothing is waited for.
func (s *sequencer) deadline() time.Time {
	var first time.Time
	for _, at := range s.held {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	if first.IsZero() {
		return first
	}
	return first.Add(s.wait)
}

// overdue skips the numbers that a held operation has waited for long enough, and gives what can run now.
func (s *sequencer) overdue(now time.Time) (ready []int64) {
	for {
		// The longest-waiting operation frees itself and everything below it.
		top := int64(0)
		for seq, at := range s.held {
			if !now.Before(at.Add(s.wait)) && seq > top {
				top = seq
			}
		}
		if top == 0 {
			return ready
		}
		for s.next <= top {
			if _, here := s.held[s.next]; !here && !s.refused[s.next] {
				gap := span64{s.next, s.lowestKnown(top)}
				s.markSkipped(gap)
				s.next = gap.To
			}
			ready = append(ready, s.release()...)
		}
	}
}

// lowestKnown is the lowest number that is held or refused, at most top, which is held.
func (s *sequencer) lowestKnown(top int64) int64 {
	low := top
	for seq := range s.held {
		low = min(low, seq)
	}
	for seq := range s.refused {
		if seq >= s.next {
			low = min(low, seq)
		}
	}
	return low
}
