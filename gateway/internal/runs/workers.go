package runs

import (
	"context"
	"sync/atomic"
)

// workers are goroutines that are done with what they were started for and take something else. The way of an operation to the backend and the store needs more stack than a new goroutine
// has, and growing it, in several steps, took longer than what it is needed for.
type workers struct {
	tasks  chan func(context.Context) // not buffered: what is sent is with a worker
	parked *atomic.Int64
}

// maxParked bounds the goroutines that wait for something to do.
const maxParked = 128

func newWorkers() workers {
	return workers{tasks: make(chan func(context.Context)), parked: new(atomic.Int64)}
}

// give hands f to a worker that waits. false = none does.
func (w workers) give(f func(context.Context)) bool {
	select {
	case w.tasks <- f:
		return true
	default:
		return false
	}
}

// run is a worker: it runs f, and then what it is given until ctx ends or enough others wait.
func (w workers) run(ctx context.Context, f func(context.Context)) {
	for {
		f(ctx)
		f = nil // what it holds is not kept while there is nothing to do
		if w.parked.Add(1) > maxParked {
			w.parked.Add(-1)
			return
		}
		select {
		case f = <-w.tasks:
			w.parked.Add(-1)
		case <-ctx.Done():
			return
		}
	}
}
