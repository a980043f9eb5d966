package runs

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
)

// Everything that is started runs once, whoever takes it, and nobody is left when the context has ended.
func TestWorkersRunWhatTheyAreGiven(t *testing.T) {
	const starters, each = 8, 500
	w := newWorkers()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var goroutines, running sync.WaitGroup
	var ran, reused atomic.Int64
	running.Add(starters * each)
	for range starters {
		goroutines.Go(func() {
			for range each {
				f := func(context.Context) { ran.Add(1); running.Done() }
				if w.give(f) {
					reused.Add(1)
				} else {
					goroutines.Go(func() { w.run(ctx, f) })
				}
			}
		})
	}
	running.Wait()
	cancel()
	goroutines.Wait()
	if n := ran.Load(); n != starters*each {
		t.Errorf("%d functions ran, %d of them by workers that were there, want %d", n, reused.Load(), starters*each)
	}
}
