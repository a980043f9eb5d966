package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// A session that has ended is asked for seldom. Soon after its end it leaves the memory with its runs and sampling sessions, and is read back from the store when somebody names
// it. So what the server holds grows with the sessions that are active and the checkpoints that are kept, not with the sessions that it has seen: as long as one of its runs has a checkpoint,
// a session stays. What becomes of the results of a retired session, and when, is a schedule in the store.

// retireAfter is how long an ended session stays in memory after its end, and after it was asked for last.
const retireAfter = time.Minute

// The parents of the schedule's entries: what of a session is deleted next.
const (
	resultsNext = "results"
	samplesNext = "samples"
)

// maxRetired bounds what one sweep does to retired sessions at a time.
const maxRetired = 1000

// sessionOf gives the session in the id of a session, a run, a sampling session or a request.
func sessionOf(id string) string {
	for _, kind := range []string{":train:", ":sample:"} {
		if session, _, ok := strings.Cut(id, kind); ok {
			return session
		}
	}
	return id
}

// recall has the session that is named, or whose run, sampling session or request is named, in memory if there is one: for the next moments nothing takes it away. Methods that clients call
// begin with it, since what they look up may be retired.
func (c *Core) recall(ctx context.Context, id string) error {
	id = sessionOf(id)
	c.mu.Lock()
	s := c.sessions[id]
	if s != nil {
		s.asked = c.cfg.now()
	}
	c.mu.Unlock()
	if s != nil || id == "" {
		return nil
	}
	rec, err := c.cfg.Store.Get(ctx, inSessions, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil {
		s, err = c.readSession(ctx, rec)
	}
	if err != nil {
		return fmt.Errorf("recall session %s: %w", id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[id] != nil || s.active() { // another call was faster, or it is just being made
		return nil
	}
	s.Retired, s.asked = true, c.cfg.now()
	c.sessions[id] = s
	for _, r := range s.runs {
		c.runs[r.ID] = r
	}
	for _, smp := range s.samplers {
		if c.attachSnapshot(smp); !s.Forgotten {
			c.samplers[smp.ID] = smp
		}
	}
	return nil
}

// readSession makes an ended session from the store, with its runs and sampling sessions. Nothing else knows it.
func (c *Core) readSession(ctx context.Context, rec store.Record) (*session, error) {
	s, err := decodeSession(rec)
	if err != nil {
		return nil, err
	}
	runs, err := c.cfg.Store.List(ctx, inRuns, s.ID, store.Range{}, 0)
	if err != nil {
		return nil, err
	}
	for _, rec := range runs {
		r, err := c.decodeRun(rec.Value)
		if err != nil {
			return nil, fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		r.session = s
		s.runs = append(s.runs, r)
	}
	samplers, err := c.cfg.Store.List(ctx, inSamplers, s.ID, store.Range{}, 0)
	if err != nil {
		return nil, err
	}
	for _, rec := range samplers {
		smp, err := c.decodeSampler(rec.Value)
		if err != nil {
			return nil, fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		smp.session, smp.ended = s, true
		s.samplers = append(s.samplers, smp)
	}
	return s, nil
}

// decodeSession reads a session alone.
func decodeSession(rec store.Record) (*session, error) {
	s := &session{}
	if err := json.Unmarshal(rec.Value, &s.sessionRecord); err != nil {
		return nil, fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
	}
	if s.seen = s.CreatedAt; s.EndedAt != nil {
		s.seen = *s.EndedAt
	}
	return s, nil
}

// retire takes ended sessions out of memory, after everything about them is in the store as it is here.
func (c *Core) retire(ctx context.Context) error {
	c.mu.Lock()
	now := c.cfg.now()
	kept := map[*session]bool{}
	for _, cp := range c.checkpoints {
		if r := c.runs[cp.RunID]; r != nil {
			kept[r.session] = true
		}
	}
	var leaving []*session
	for _, s := range c.sessions {
		if len(leaving) < maxRetired && s.retirable(now) && !kept[s] {
			leaving = append(leaving, s)
		}
	}
	c.mu.Unlock()
	if len(leaving) == 0 {
		return nil
	}
	err := c.write(ctx, func() []store.Record {
		var records []store.Record
		for _, s := range leaving {
			if s.Retired {
				continue // it was recalled
			}
			retired := session{sessionRecord: s.sessionRecord}
			retired.Retired = true
			records = append(records, retired.records()...)
			for _, r := range s.runs {
				records = append(records, r.record())
			}
			for _, smp := range s.samplers {
				records = append(records, smp.record())
			}
		}
		return records
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range leaving {
		if s.Retired = true; !s.retirable(now) {
			continue // somebody has asked for it meanwhile
		}
		delete(c.sessions, s.ID)
		for _, r := range s.runs {
			delete(c.runs, r.ID)
		}
		for _, smp := range s.samplers {
			delete(c.samplers, smp.ID)
		}
	}
	return nil
}

// retirable tells whether nothing goes on in a session, and nobody has asked for it for a while. mu is held.
func (s *session) retirable(now time.Time) bool {
	return !s.active() && s.pending == 0 && s.EndedAt != nil && now.Sub(*s.EndedAt) > retireAfter && now.Sub(s.asked) > retireAfter
}

// records are the session's own and, when it is retired, its place in the schedule.
func (s *session) records() []store.Record {
	list := []store.Record{s.record()}
	if s.Retired && !s.Forgotten {
		next := resultsNext
		if s.Purged {
			next = samplesNext
		}
		list = append(list, store.Record{Collection: inRetired, Key: s.ID, Parent: next, Rank: s.EndedAt.UnixNano()})
	}
	return list
}

// overdue reads the retired sessions that ended before a time and of which something is still to be deleted.
func (c *Core) overdue(ctx context.Context, next string, before time.Time) ([]*session, error) {
	entries, err := c.cfg.Store.List(ctx, inRetired, next, store.Range{From: 1, To: before.UnixNano()}, maxRetired)
	if err != nil {
		return nil, fmt.Errorf("list retired sessions: %w", err)
	}
	var list []*session
	var errs []error
	for _, e := range entries {
		c.mu.Lock()
		s := c.sessions[e.Key]
		c.mu.Unlock()
		if s == nil {
			rec, err := c.cfg.Store.Get(ctx, inSessions, e.Key)
			if err == nil {
				s, err = c.readSession(ctx, rec)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("read retired session %s: %w", e.Key, err))
				continue
			}
			s.Retired = true
		}
		list = append(list, s)
	}
	return list, errors.Join(errs...)
}

// newestFirst orders records by rank and key, the highest first.
func newestFirst(list []store.Record) {
	sort.Slice(list, func(i, j int) bool {
		if list[i].Rank != list[j].Rank {
			return list[i].Rank > list[j].Rank
		}
		return list[i].Key > list[j].Key
	})
}
