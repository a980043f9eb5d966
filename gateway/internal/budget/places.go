package budget

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// places are what work that is not light needs one of. Owners who wait for one get it in turn, however much each of them asks for.
type places struct {
	mu      sync.Mutex
	free    []time.Time                 // from when each may be used
	waiting map[string][]chan time.Time // by owner, who came first first; a place is put into the channel
	turns   []string                    // the owners who wait, the next one first
}

// shared are the places of this process.
var shared = newPlaces(max(1, min(2, runtime.GOMAXPROCS(0)/2)))

func newPlaces(n int) *places {
	return &places{free: make([]time.Time, n), waiting: map[string][]chan time.Time{}}
}

// take waits for a place, which rests until from. The error is [ErrBusy], or the cause of an ended context.
func (p *places) take(ctx context.Context, owner string) (from time.Time, err error) {
	p.mu.Lock()
	if len(p.free) > 0 {
		from, p.free = p.free[0], p.free[1:]
		p.mu.Unlock()
		return from, nil
	}
	mine := make(chan time.Time, 1)
	if len(p.waiting[owner]) == 0 {
		p.turns = append(p.turns, owner)
	}
	p.waiting[owner] = append(p.waiting[owner], mine)
	p.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case from = <-mine:
		return from, nil
	case <-timer.C:
		err = ErrBusy
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := slices.Index(p.waiting[owner], mine); at >= 0 {
		p.leave(owner, at)
	} else {
		p.pass(<-mine) // it came just now
	}
	return time.Time{}, err
}

// give gives a place back, which rests until from.
func (p *places) give(from time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass(from)
}

// pass gives a place to who is next. mu is held.
func (p *places) pass(from time.Time) {
	if len(p.turns) == 0 {
		p.free = append(p.free, from)
		return
	}
	owner := p.turns[0]
	p.waiting[owner][0] <- from
	if p.leave(owner, 0) {
		p.turns = append(p.turns[1:], owner)
	}
}

// leave takes out who waits no more, and tells whether the owner has others who do. mu is held.
func (p *places) leave(owner string, at int) bool {
	p.waiting[owner] = slices.Delete(p.waiting[owner], at, at+1)
	if len(p.waiting[owner]) > 0 {
		return true
	}
	delete(p.waiting, owner)
	p.turns = slices.DeleteFunc(p.turns, func(o string) bool { return o == owner })
	return false
}
