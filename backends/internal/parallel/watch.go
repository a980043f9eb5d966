package parallel

import (
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Options say what a team does about ranks that are lost.
type Options struct {
	// First is the number of the team's first rank among all ranks, of which there are Total, for messages. Total 0: the team has all of them.
	First, Total int
	// Patience is how long a rank may be at work without coming to a point or to an operation of Comm, where the others may be waiting for it. It takes up to a quarter more until it is noticed; time in which the
	// whole process stood still does not count. 0: for ever.
	Patience time.Duration
	// Lost hears of a rank that has panicked, or for which there is no patience left: nothing of the team can be relied upon any more, and the process should end. It is called once, from any goroutine. nil: a panic
	// goes on, with the rank's name in it, and nobody watches.
	Lost func(error)
}

// station is where a rank is: at work, or waiting for others.
type station struct {
	mu    sync.Mutex
	moves uint64 // begins and ends of waiting
	waits bool
	at    slot // the operation of Comm in which it waits; empty elsewhere
}

// wait notes that the rank begins to wait, in an operation of Comm or, with an empty slot, elsewhere.
func (s *station) wait(at slot) {
	s.mu.Lock()
	s.moves++
	s.waits, s.at = true, at
	s.mu.Unlock()
}

// work notes that it goes on.
func (s *station) work() {
	s.mu.Lock()
	s.moves++
	s.waits, s.at = false, slot{}
	s.mu.Unlock()
}

// looks is how often in a row a rank must be seen at work and at the same place to be lost. They are counted rather than the time, so that a process that was stopped, or a machine that slept, loses no rank.
const looks = 4

// watch looks at the ranks of a team now and then.
type watch struct {
	team *Team
	seen []uint64 // by rank: moves
	same []int    // by rank: looks since then
}

// patrol looks until the team is closed or has lost a rank.
func (t *Team) patrol() {
	w := watch{t, make([]uint64, t.size), make([]int, t.size)}
	ticker := time.NewTicker(max(t.options.Patience/looks, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-t.over:
			return
		case <-ticker.C:
			if err := w.look(); err != nil {
				t.lose(err)
				return
			}
		}
	}
}

// look gives an error when ranks have been at work for looks looks without moving, or when all wait and some of them in operations that the others do not come to.
func (w *watch) look() error {
	var missing, waiting, operations []string
	unmoved := 0
	for rank, s := range w.team.stations {
		s.mu.Lock()
		moves, waits, at := s.moves, s.waits, s.at
		s.mu.Unlock()
		if moves != w.seen[rank] {
			w.seen[rank], w.same[rank] = moves, 0
		} else if w.same[rank]++; w.same[rank] >= looks {
			unmoved++
			if !waits {
				missing = append(missing, w.team.rankName(rank))
			}
		}
		if waits && at.operation != "" {
			waiting, operations = append(waiting, w.team.rankName(rank)), append(operations, at.String())
		}
	}
	patience := w.team.options.Patience
	switch {
	case len(missing) > 0 && len(waiting) > 0:
		return fmt.Errorf("%s: missing for %v from %s, where the others wait", strings.Join(missing, " and "), patience, operations[0])
	case len(missing) > 0:
		return fmt.Errorf("%s: no sign for %v of what it runs", strings.Join(missing, " and "), patience)
	case len(waiting) > 0 && unmoved == w.team.size:
		return fmt.Errorf("the ranks have come apart: for %v %s have waited in %s, and nobody is at work", patience, strings.Join(waiting, " and "), strings.Join(operations, " and "))
	}
	return nil
}

// rankName is what messages call a rank.
func (t *Team) rankName(rank int) string {
	return fmt.Sprintf("rank %d of %d on %s", t.options.First+rank, max(t.options.Total, t.size), t.devices[rank].Name())
}

// lose tells of the loss of a rank.
func (t *Team) lose(err error) {
	if t.options.Lost == nil {
		panic(err)
	}
	t.lost.Do(func() { t.options.Lost(err) })
}

// call runs a task's function on a rank. A panic loses the rank; where the process goes on nevertheless, it fails the task.
func (t *Team) call(run func(rank int) error, rank int) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s has panicked: %v", t.rankName(rank), v)
			t.lose(fmt.Errorf("%w\n\n%s", err, debug.Stack()))
		}
	}()
	return run(rank)
}
