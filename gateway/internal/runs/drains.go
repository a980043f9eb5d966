package runs

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// drainRecord is the Value of a backend that somebody drained. Its key is the backend's name.
type drainRecord struct {
	Backends string `json:"backends"` // Model.BackendsID when it was: with other backends in the file, another one may have its name
}

// Drain has a backend get nothing new, and the runs whose home it is move to the others; with on false it takes work again. It is kept until that, also by the next server, for as long as the model's backends are those that they are now.
// KindNotFound: there is no such backend; KindInvalid: the model has no other that is not drained; KindUnavailable: it cannot be stored now, and nothing has changed.
func (c *Core) Drain(ctx context.Context, name string, on bool) error {
	c.draining.Lock()
	defer c.draining.Unlock()
	c.mu.Lock()
	s := c.slotNamed(name)
	var err error
	switch {
	case s == nil:
		err = notFoundf("no backend %s", quote(name))
	case on:
		err = s.drainable()
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	b := store.Batch{Delete: []store.RecordKey{{Collection: inDrains, Key: name}}}
	if on {
		b = store.Batch{Put: []store.Record{{Collection: inDrains, Key: name, Value: mustJSON(drainRecord{s.model.BackendsID})}}}
	}
	if err := c.commit(ctx, b); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.leaves = s.leaves && !on // what somebody drained stays so when its process has ended
	c.drain(s, on)
	return nil
}

// slotNamed finds a backend, nil if there is none of the name. mu is held.
func (c *Core) slotNamed(name string) *slot {
	for _, m := range c.models {
		for _, s := range m.slots {
			if s.name == name {
				return s
			}
		}
	}
	return nil
}

// relieved tells whether another backend of the model takes work. mu is held.
func (s *slot) relieved() bool {
	return slices.ContainsFunc(s.model.slots, func(x *slot) bool { return x != s && !x.drained && x.failed == nil })
}

// drainable tells why a backend cannot be drained; nil = it can. mu is held.
func (s *slot) drainable() error {
	if !s.relieved() {
		return invalidf("backend %s: cannot be drained: %s has no other backend that takes its work", quote(s.name), s.model.Name)
	}
	return nil
}

// drain has a backend get nothing new, or takes that back. mu is held.
func (c *Core) drain(s *slot, on bool) {
	m := s.model
	if s.drained == on {
		return
	}
	s.drained = on
	c.log.Info("a backend is drained, or takes work again", "backend", s.name, "drained", on)
	if !on {
		for _, r := range s.homed() { // that had not left yet
			if r.moving != nil && !r.moving.going {
				c.endMove(r)
				c.pump(r)
			}
		}
	}
	m.wake()
	c.pumpSamples(m)
	c.rebalance(m)
}

// loadDrains has those backends drained that were when the last server ended. mu need not be held yet.
func (c *Core) loadDrains(ctx context.Context) error {
	var gone store.Batch
	err := c.others(c.cfg.Store.All(ctx, inDrains, func(rec store.Record) error {
		var d drainRecord
		if err := json.Unmarshal(rec.Value, &d); err != nil {
			return err
		}
		s := c.slotNamed(rec.Key)
		if s == nil || s.model.BackendsID != d.Backends || !s.relieved() {
			c.log.Info("a backend was drained, and the configuration has other backends now: this is forgotten", "backend", rec.Key)
			gone.Delete = append(gone.Delete, store.RecordKey{Collection: inDrains, Key: rec.Key})
			return nil
		}
		s.drained = true
		c.log.Info("a backend is drained still", "backend", s.name)
		return nil
	}))
	if err == nil && len(gone.Delete) > 0 {
		err = c.cfg.Store.Commit(ctx, gone)
	}
	return err
}
