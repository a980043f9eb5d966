package runs

// Stats are gauges of the moment, for the server's metrics.
type Stats struct {
	Sessions         int // active
	LiveRuns         int
	CorruptedRuns    int // of sessions that have not ended long ago
	QueuedOperations int // of runs: accepted and not finished
	WaitingSamples   int // accepted, not given to a backend
	RunningSamples   int
	Generations      int // direct requests that run
	Checkpoints      int
	CheckpointBytes  int64
}

// Stats counts what there is now.
func (c *Core) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	var s Stats
	for _, x := range c.sessions {
		if x.active() {
			s.Sessions++
		}
	}
	for _, r := range c.runs {
		if r.usable() {
			s.LiveRuns++
		}
		if r.State == stateCorrupted {
			s.CorruptedRuns++
		}
		s.QueuedOperations += r.queue.unfinished
	}
	for _, m := range c.models {
		s.WaitingSamples += m.samples.live()
		s.RunningSamples += m.samples.running
		s.Generations += m.generating.total
	}
	for _, cp := range c.checkpoints {
		s.Checkpoints++
		s.CheckpointBytes += cp.Size
	}
	return s
}
