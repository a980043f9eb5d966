package runs

import "time"

// Pause is why a future takes longer than its work and that of others before it.
type Pause struct {
	Limited bool   // its owner has as many samples here as are taken, and was refused more; else the backend does nothing for now
	Reason  string // for the user; "" = it only takes its time
}

// refusedFor is how long an owner counts as held back after a sample was refused: clients try again within seconds.
const refusedFor = time.Minute

// heldBack notes that a sample of an owner was refused because too many wait. mu is held.
func (c *Core) heldBack(owner string) {
	if a, has := c.owners[owner]; has {
		a.refused, a.why = c.cfg.now(), ""
		c.owners[owner] = a
	}
}

// heldBackBy is heldBack by a limit of the owner's, with what it was told. mu is held.
func (c *Core) heldBackBy(owner, why string) {
	c.heldBack(owner)
	if a, has := c.owners[owner]; has {
		a.why = why
		c.owners[owner] = a
	}
}

// Paused tells why a future that is not finished waits. The SDK shows that to its user.
func (c *Core) Paused(requestID string) Pause {
	c.mu.Lock()
	f := c.futures[requestID]
	if f == nil {
		c.mu.Unlock()
		return Pause{}
	}
	owner := c.owners[f.owner]
	c.mu.Unlock()
	if f.model != nil && c.cfg.Idle != nil {
		if why := c.cfg.Idle(f.model.Name); why != "" {
			return Pause{Reason: why}
		}
	}
	if f.kind == OpSample && c.cfg.now().Sub(owner.refused) < refusedFor {
		if owner.why != "" {
			return Pause{Limited: true, Reason: owner.why}
		}
		return Pause{Limited: true, Reason: "the server has " + itoa(owner.samples) + " samples of yours and takes no more until some are done (sampling.max_waiting)"}
	}
	return Pause{}
}
