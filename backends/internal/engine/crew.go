package engine

import "sync"

// crew is goroutines that share the rows of a step's logits, as many as the device has threads, the caller's among them. They wait between steps, so that a step starts none and allocates nothing.
type crew struct {
	threads int
	begin   []chan struct{} // by thread; the caller is thread 0
	rest    sync.WaitGroup  // threads that are at work

	// Of run.
	n int
	f func(thread, i int)
}

// newCrew starts the goroutines. The caller ends them with close.
func newCrew(threads int) *crew {
	c := &crew{threads: max(1, threads), begin: make([]chan struct{}, max(1, threads))}
	for t := 1; t < c.threads; t++ {
		begin := make(chan struct{})
		c.begin[t] = begin
		go func() {
			for range begin {
				c.share(t)
				c.rest.Done()
			}
		}()
	}
	return c
}

// run calls f for i = 0 … n-1, each on one of the threads, and returns when all calls have. One run at a time.
func (c *crew) run(n int, f func(thread, i int)) {
	c.n, c.f = n, f
	for t := 1; t < min(n, c.threads); t++ {
		c.rest.Add(1)
		c.begin[t] <- struct{}{}
	}
	c.share(0)
	c.rest.Wait()
	c.f = nil
}

func (c *crew) share(thread int) {
	for i := thread; i < c.n; i += c.threads {
		c.f(thread, i)
	}
}

// close ends the goroutines. Another close does nothing.
func (c *crew) close() {
	for t := 1; t < c.threads; t++ {
		if c.begin[t] != nil {
			close(c.begin[t])
			c.begin[t] = nil
		}
	}
}
