package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// counters are kept by the device goroutine and read by Status.
type counters struct {
	cycles        atomic.Int64
	cycleTime     atomic.Int64 // nanoseconds
	passes        atomic.Int64 // in cycles
	steps         atomic.Int64 // in cycles
	turns         atomic.Int64 // of the sampler
	turnTime      atomic.Int64 // nanoseconds
	trainedTokens atomic.Int64
	sampledTokens atomic.Int64
	prefillTokens atomic.Int64
	pagesFree     atomic.Int64
	last          atomic.Int64 // when a device step was finished last, nanoseconds since 1970
}

func (c *counters) progressed(now time.Time) { c.last.Store(now.UnixNano()) }

// beginCycle gives the number of the next clock cycle, from 1.
func (c *counters) beginCycle() int64 { return c.cycles.Add(1) }

// statusInterval is the time between two reports.
const statusInterval = time.Second

// Status reports until ctx ends or the engine is closed.
func (e *Engine) Status(ctx context.Context, report func(plugins.Status)) error {
	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	for {
		report(e.status(time.Now()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.stopped:
			return errClosed
		case <-ticker.C:
		}
	}
}

func (e *Engine) status(now time.Time) plugins.Status {
	c := &e.counters
	s := plugins.Status{
		Time: now, BootID: e.bootID, Cycles: c.cycles.Load(), CycleSeconds: time.Duration(c.cycleTime.Load()).Seconds(),
		CyclePasses: c.passes.Load(), CycleSteps: c.steps.Load(), SamplingTurns: c.turns.Load(), SamplingSeconds: time.Duration(c.turnTime.Load()).Seconds(),
		TrainedTokens: c.trainedTokens.Load(), SampledTokens: c.sampledTokens.Load(), PrefillTokens: c.prefillTokens.Load(),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Adapters, s.Versions = len(e.runs), len(e.live)
	for _, r := range e.runs {
		s.QueuedTraining += len(r.queue.waiting)
	}
	for _, q := range e.running {
		if !q.done {
			s.RunningSamples++
		}
	}
	s.WaitingSamples = e.waiting.count + e.heldUp
	if l := e.loaded; l != nil {
		for _, r := range l.sampling {
			s.KVPages += r.sampler.cache.Pages()
		}
		s.KVPagesFree = int(c.pagesFree.Load())
		s.WeightBytes, s.AdapterBytes, s.SpilledBytes = l.weights, l.adapters.inMemory.Load(), l.adapters.inFiles.Load()
		s.MemoryBytes = l.memory.used.Load()
		if limit := l.memory.limit.Load(); limit < unlimited {
			s.MemoryLimit = limit
		}
	}
	if e.loaded != nil {
		s.NoRoom = e.waitsForDisk(now)
	}
	if !e.parked && e.hasWork() {
		s.LastProgressAge = max(0, now.Sub(time.Unix(0, c.last.Load())))
	}
	return s
}
