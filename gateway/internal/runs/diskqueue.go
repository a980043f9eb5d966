package runs

import (
	"context"
	"time"
)

// diskQueue orders what is written in the background, over all runs: one at a time, with rests in between, so that it takes no more than its share of the disk. Recovery points and versions of samplers take turns: a run needs the
// journal back to its newest point, and to its oldest version that is not on disk, so that neither may wait for the end of the other's queue. mu of the core guards it.
type diskQueue struct {
	points   []func(context.Context)
	versions []func(context.Context)
	busy     bool // something is written, or rested from
}

// next takes what is written next; the turn is that of versions if a point was written last. nil = nothing waits.
func (d *diskQueue) next(versions bool) (job func(context.Context), point bool) {
	from := &d.points
	if len(d.points) == 0 || versions && len(d.versions) > 0 {
		from = &d.versions
	}
	if len(*from) == 0 {
		return nil, false
	}
	job = (*from)[0]
	*from = (*from)[1:]
	return job, from == &d.points
}

// writeBehind has what waits written in the background. mu is held.
func (c *Core) writeBehind() {
	if c.disk.busy {
		return
	}
	c.disk.busy = true
	c.start(c.writeJobs)
}

func (c *Core) writeJobs(ctx context.Context) {
	point := false // what was written last is one
	for {
		c.mu.Lock()
		job, now := c.disk.next(point)
		if job == nil {
			c.disk.busy = false
			c.mu.Unlock()
			return
		}
		point = now
		c.mu.Unlock()
		began := time.Now()
		job(ctx)
		rest := time.NewTimer(time.Duration(float64(time.Since(began)) * (1/c.cfg.DiskShare - 1)))
		select {
		case <-rest.C:
		case <-ctx.Done():
			rest.Stop()
			return
		}
	}
}
