package engine

import (
	"cmp"
	"container/heap"
	"iter"
	"slices"

	"github.com/tinsmith/tinsmith/plugins"
)

// waitingRoom holds the sequences that wait for a place in the decoding batch: a line for each key of plugins.Share, first come first served within. The
// lines share places in proportion to their weights: a free one goes to the line that has the fewest for its weight. Beside that each line has an
// account of the device's time that it was given, see share.go, which decides between those that have equally many places. A waiting sequence costs its
// own memory, and pages if it was parked, see park.go, and no goroutine. All of it is guarded by Engine.mu.
type waitingRoom struct {
	lines  map[string]*line
	count  int      // sequences that wait
	clock  float64  // the least account of the lines that have work: by it an account begins
	lead   float64  // how far behind the clock a line's account may begin
	order  lineHeap // used again in every step
	tidyAt int      // lines that there may be until idle ones are forgotten
}

// line is one key's sequences.
type line struct {
	key       string
	weight    float64
	account   float64 // seconds of the device's time, over the weight
	sequences []*sequence
	ended     int // of them
	placed    int // sequences that have a place
	heldUp    int // and those that wait for their reader
}

// waiting counts the line's sequences that wait.
func (l *line) waiting() int { return len(l.sequences) - l.ended }

// idle tells whether the line has no sequences.
func (l *line) idle() bool { return l.waiting() == 0 && l.placed == 0 && l.heldUp == 0 }

// load is how many places the line has for its weight, if it had so many more.
func (l *line) load(more int) float64 { return float64(l.placed+more) / l.weight }

// lookahead is how many sequences of a line are looked at in a step: those that cannot have a place yet are passed over.
const lookahead = 64

// idleLines is how many lines without sequences are remembered at most, or as many as have some if these are more.
const idleLines = 1024

func newWaitingRoom() waitingRoom { return waitingRoom{lines: map[string]*line{}} }

// join has a sequence wait, at the end of its line.
func (w *waitingRoom) join(s *sequence) {
	share := s.request.Share
	l := w.lines[share.Key]
	if l == nil {
		if len(w.lines) >= w.tidyAt {
			w.forgetIdle()
			w.tidyAt = max(idleLines, 2*len(w.lines))
		}
		l = &line{key: share.Key}
		w.lines[share.Key] = l
	}
	if l.weight = share.Weight; l.weight == 0 {
		l.weight = 1
	}
	w.begin(l)
	s.line, s.waits = l, true
	l.sequences = append(l.sequences, s)
	w.count++
}

// begin sees to the account of a line that has had nothing to do, or nobody who read it.
func (w *waitingRoom) begin(l *line) {
	if l.waiting() == 0 && l.placed == 0 {
		l.account = max(l.account, w.clock-w.lead)
	}
}

func (w *waitingRoom) forgetIdle() {
	for key, l := range w.lines {
		if l.idle() {
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
	w.rejoin(s)
}

// rejoin has a sequence wait before all others of its line.
func (w *waitingRoom) rejoin(s *sequence) {
	w.begin(s.line)
	s.waits = true
	s.line.sequences = slices.Insert(s.line.sequences, 0, s)
	w.count++
}

// leavePlace notes that a sequence has no place any more.
func (w *waitingRoom) leavePlace(s *sequence) { s.line.placed-- }

// accepts tells whether so many sequences more of a key may wait, if most may. Nobody keeps others out by being first: where that is reached, a key may
// still have its part of it, by weight among those who have any waiting, or one request.
func (w *waitingRoom) accepts(share plugins.Share, n, most int) bool {
	if w.count+n <= most {
		return true
	}
	own, weight := 0, share.Weight
	if weight == 0 {
		weight = 1
	}
	all := weight
	for key, l := range w.lines {
		if key == share.Key {
			own = l.waiting()
		} else if l.waiting() > 0 {
			all += l.weight
		}
	}
	return own == 0 || float64(own+n) <= float64(most)*weight/all
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
	waitsOn    answer = iota // those behind it may be asked
	placed                   // it has got a place
	othersOnly               // nobody of its line gets one now
	enough                   // nobody else gets one now
)

// before tells whether the next free place is rather the first line's.
func before(a, b *line) bool {
	return cmp.Or(cmp.Compare(a.load(0), b.load(0)), cmp.Compare(a.account, b.account), cmp.Compare(a.key, b.key)) < 0
}

// serve asks visit about waiting sequences in the order in which they should get places. It takes time by the lines and what is asked, not by both
// together: there may be thousands of lines.
func (w *waitingRoom) serve(visit func(*sequence) answer) {
	if w.count == 0 {
		return
	}
	cursors := map[*line]int{}
	asked := func(l *line) bool { return cursors[l] >= min(lookahead, len(l.sequences)) }
	order := w.order[:0] // of the lines that are not asked to their end
	defer func() { clear(order[:cap(order)]); w.order = order }()
	arrange := func() {
		order = order[:0]
		for _, l := range w.lines {
			if !asked(l) {
				order = append(order, l)
			}
		}
		heap.Init(&order)
	}
	for arrange(); len(order) > 0; {
		next := order[0]
		if asked(next) {
			heap.Pop(&order)
			continue
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
			next.placed++
			arrange() // others may have given up places for it
		case othersOnly:
			cursors[next] = lookahead
		case enough:
			return
		}
	}
}

// lineHeap has the line first of which the next place rather is.
type lineHeap []*line

func (h lineHeap) Len() int           { return len(h) }
func (h lineHeap) Less(i, j int) bool { return before(h[i], h[j]) }
func (h lineHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lineHeap) Push(l any)        { *h = append(*h, l.(*line)) }

func (h *lineHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	*h = (*h)[:last]
	return l
}
