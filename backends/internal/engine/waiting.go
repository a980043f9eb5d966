package engine

import (
	"iter"
	"slices"
)

// waitingRoom holds the sequences that wait for a place in the decoding batch: a line for each key of plugins.Share, first come first served within. The lines share places in proportion to their weights, by tokens
// (start-time fair queueing): a line's tag is the tokens that it has been given over its weight, and the line with the smallest is served next. A sequence is charged for all that it may generate when it gets its place, and
// what it did not use is given back. A waiting sequence costs its own memory and no goroutine. All of it is guarded by Engine.mu.
type waitingRoom struct {
	lines map[string]*line
	count int     // sequences that wait
	tag   float64 // of the line that was served last: what a line begins with that had nothing to do
}

// line is one key's sequences.
type line struct {
	key       string
	weight    float64
	tag       float64
	sequences []*sequence // some may have ended
	ended     int         // of them
	placed    int         // sequences that have a place
}

// lookahead is how many sequences of a line are looked at in a step: those that cannot have a place yet are passed over.
const lookahead = 64

// idleLines is how many lines without sequences are remembered at most.
const idleLines = 1024

func newWaitingRoom() waitingRoom { return waitingRoom{lines: map[string]*line{}} }

// join has a sequence wait, at the end of its line.
func (w *waitingRoom) join(s *sequence) {
	share := s.request.Share
	l := w.lines[share.Key]
	if l == nil {
		if len(w.lines) >= idleLines {
			w.forgetIdle()
		}
		l = &line{key: share.Key}
		w.lines[share.Key] = l
	}
	if l.weight = share.Weight; l.weight == 0 {
		l.weight = 1
	}
	if len(l.sequences) == l.ended && l.placed == 0 {
		l.tag = max(l.tag, w.tag)
	}
	s.line, s.waits = l, true
	l.sequences = append(l.sequences, s)
	w.count++
}

func (w *waitingRoom) forgetIdle() {
	for key, l := range w.lines {
		if len(l.sequences) == l.ended && l.placed == 0 {
			delete(w.lines, key)
		}
	}
}

// leave takes a waiting sequence that has ended out of the count. It stays in its line until many have.
func (w *waitingRoom) leave(s *sequence) {
	l := s.line
	s.waits = false
	w.count--
	if l.ended++; l.ended > lookahead && 2*l.ended > len(l.sequences) {
		l.sequences = slices.DeleteFunc(l.sequences, func(s *sequence) bool { return !s.waits })
		l.ended = 0
	}
}

// back puts a sequence that has given up its place before all others of its line.
func (w *waitingRoom) back(s *sequence) {
	w.leavePlace(s)
	s.waits = true
	s.line.sequences = slices.Insert(s.line.sequences, 0, s)
	w.count++
}

// unused is how many tokens a sequence may still generate.
func (s *sequence) unused() float64 { return float64(s.request.MaxTokens - s.generated()) }

// leavePlace notes that a sequence has no place any more.
func (w *waitingRoom) leavePlace(s *sequence) {
	s.line.placed--
	s.line.tag -= s.unused() / s.line.weight
}

// first gives the sequences of each line that may get a place next.
func (w *waitingRoom) first() iter.Seq[*sequence] {
	return func(yield func(*sequence) bool) {
		for _, l := range w.lines {
			for _, s := range l.sequences[:min(lookahead, len(l.sequences))] {
				if s.waits && !yield(s) {
					return
				}
			}
		}
	}
}

// answer is what a visitor says about a waiting sequence.
type answer uint8

const (
	waitsOn answer = iota // those behind it may be asked
	placed                // it has got a place
	enough                // nobody else gets one now
)

// serve asks visit about waiting sequences in the order in which they should get places.
func (w *waitingRoom) serve(visit func(*sequence) answer) {
	if w.count == 0 {
		return
	}
	cursors := map[*line]int{}
	for {
		var next *line
		for _, l := range w.lines {
			if at := cursors[l]; at < len(l.sequences) && at < lookahead && (next == nil || l.tag < next.tag || (l.tag == next.tag && l.key < next.key)) {
				next = l
			}
		}
		if next == nil {
			return
		}
		at := cursors[next]
		s := next.sequences[at]
		if !s.waits {
			next.sequences = slices.Delete(next.sequences, at, at+1)
			next.ended--
			continue
		}
		switch visit(s) {
		case waitsOn:
			cursors[next]++
		case placed:
			next.sequences = slices.Delete(next.sequences, at, at+1)
			s.waits = false
			w.count--
			w.tag = max(w.tag, next.tag)
			next.placed++
			next.tag += (float64(len(s.tokens)-s.computed) + s.unused()) / next.weight
		case enough:
			return
		}
	}
}
