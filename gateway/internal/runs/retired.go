package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// A session that has ended is asked for seldom. Soon after its end it leaves the memory with its runs and sampling sessions, and is read back from the store when somebody names
// it. So what the server holds grows with the sessions that are active and the checkpoints that are kept, not with the sessions that it has seen. What becomes of the results and of the records of a
// retired session, and when, is a schedule in the store.

// retireAfter is how long an ended session stays in memory after its end, and after it was asked for last.
const retireAfter = time.Minute

// The parents of the schedule's entries: what of a session is deleted next.
const (
	resultsNext = "results"
	samplesNext = "samples"
	recordsNext = "records"
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
	if err == nil && len(s.unwritten) > 0 && !s.active() { // of an older version, which kept everything in one record
		s.Retired = true
		err = c.writeSession(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("recall session %s: %w", id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[id] != nil || s.active() || !c.removed[id].IsZero() { // another call was faster, or it is just being made
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
	if err := c.readParts(ctx, s); err != nil {
		return nil, err
	}
	for _, smp := range s.samplers {
		smp.ended = true
	}
	return s, nil
}

// decodeSession reads a session alone.
func decodeSession(rec store.Record) (*session, error) {
	s := &session{}
	if err := json.Unmarshal(rec.Value, &s.sessionRecord); err != nil {
		return nil, fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
	}
	if !s.active() { // an active one is written while its texts are small
		s.part()
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
	var leaving []*session
	for _, s := range c.sessions {
		if s.retirable(now) {
			leaving = append(leaving, s)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(leaving, func(a, b *session) int { return cmp.Compare(a.ID, b.ID) })
	for some := range slices.Chunk(leaving, maxRetired) {
		if err := c.retireSome(ctx, some, now); err != nil {
			return err
		}
	}
	return nil
}

func (c *Core) retireSome(ctx context.Context, leaving []*session, now time.Time) error {
	err := c.write(ctx, func() (b store.Batch) {
		for _, s := range leaving {
			if s.Retired {
				continue // it was recalled
			}
			retired := session{sessionRecord: s.sessionRecord, unwritten: s.unwritten}
			retired.Retired = true
			one := retired.batch()
			b.Put, b.Delete = append(b.Put, one.Put...), append(b.Delete, one.Delete...)
			for _, r := range s.runs {
				b.Put = append(b.Put, r.record())
			}
			for _, smp := range s.samplers {
				b.Put = append(b.Put, smp.record())
			}
		}
		return b
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
			c.recount(r)
		}
		for _, smp := range s.samplers {
			delete(c.samplers, smp.ID)
		}
	}
	return nil
}

// retirable tells whether nothing goes on in a session, and nobody has asked for it for a while. mu is held.
func (s *session) retirable(now time.Time) bool {
	return !s.active() && s.pending == 0 && s.EndedAt != nil && now.Sub(*s.EndedAt) > retireAfter && now.Sub(s.asked) > retireAfter &&
		!slices.ContainsFunc(s.runs, func(r *run) bool { return r.series.unwritten() })
}

// batch is how the session becomes durable as it is: its record, what is to lie apart and is not yet written, and its place among those that a start has to read or, when it is retired, in the schedule.
func (s *session) batch() store.Batch {
	b := store.Batch{Put: append(slices.Clone(s.unwritten), s.record())}
	if !s.Retired {
		b.Put = append(b.Put, store.Record{Collection: inLive, Key: s.ID})
		return b
	}
	b.Delete = append(b.Delete, store.RecordKey{Collection: inLive, Key: s.ID})
	next := resultsNext
	switch {
	case s.Forgotten:
		next = recordsNext
	case s.Purged:
		next = samplesNext
	}
	b.Put = append(b.Put, store.Record{Collection: inRetired, Key: s.ID, Parent: next, Rank: s.EndedAt.UnixNano()})
	return b
}

// maxOverdue bounds what one sweep does to retired sessions.
const maxOverdue = 10 * maxRetired

// overdue has something done to the retired sessions that ended before a time and of which that is still to be done, one after the other, and tells whether there were any.
func (c *Core) overdue(ctx context.Context, next string, before time.Time, do func(context.Context, *session) error) (any bool, err error) {
	query := store.PageQuery{Range: store.Range{From: 1, To: before.UnixNano()}, Limit: maxRetired, Keys: true}
	for done := 0; done < maxOverdue; {
		entries, more, err := c.cfg.Store.Page(ctx, inRetired, next, query)
		if err != nil {
			return any, fmt.Errorf("list retired sessions: %w", err)
		}
		var errs []error
		for _, e := range entries {
			if ctx.Err() != nil {
				return any, ctx.Err()
			}
			any = true
			query.After = &store.Place{Rank: e.Rank, Key: e.Key}
			if err := c.doOverdue(ctx, e.Key, do); err != nil {
				errs = append(errs, fmt.Errorf("retired session %s: %w", e.Key, err))
			}
		}
		if done += len(entries); !more || len(errs) > 0 {
			return any, errors.Join(errs...)
		}
	}
	return any, nil
}

func (c *Core) doOverdue(ctx context.Context, id string, do func(context.Context, *session) error) error {
	c.mu.Lock()
	s := c.sessions[id]
	c.mu.Unlock()
	if s == nil {
		rec, err := c.cfg.Store.Get(ctx, inSessions, id)
		if errors.Is(err, store.ErrNotFound) { // it was damaged and given up
			return c.cfg.Store.Commit(ctx, store.Batch{Delete: []store.RecordKey{{Collection: inRetired, Key: id}}})
		}
		if err == nil {
			s, err = c.readSession(ctx, rec)
		}
		if err != nil {
			return err
		}
		s.Retired = true
	}
	return do(ctx, s)
}
