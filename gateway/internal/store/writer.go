package store

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// Limits on one group: enough to make a sync cheap per batch, and little enough that the first one does not wait long.
const (
	maxGroup      = 1024
	maxGroupBytes = 64 << 20
	gatherRounds  = 2 // how often everything else that can run is let go first, as long as that brings more
)

// When changes go from the commit log to the database: after applyAfter, or as soon as there are that many. The writer waits for the database with four times as many.
const (
	applyAfter   = time.Second
	applyRecords = 16 << 10
	applyBytes   = 8 << 20
)

// request is one thing for the writer to do: a batch, a compaction, or bringing all that was committed to the database.
type request struct {
	batch   Batch
	bytes   int
	compact bool
	flush   bool
	do      func() error // on the writer goroutine, between two groups
	done    chan error   // buffered
}

// Commit implements Store.
func (s *sqlStore) Commit(ctx context.Context, b Batch) error {
	if err := s.db.check(b); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	r := s.newRequest()
	r.batch = b
	for i := range b.Put {
		r.bytes += len(b.Put[i].Payload) + len(b.Put[i].Value)
	}
	return s.send(ctx, r)
}

// Compact implements Store.
func (s *sqlStore) Compact(ctx context.Context) error {
	if err := s.flush(ctx); err != nil {
		return err
	}
	r := s.newRequest()
	r.compact = true
	return s.send(ctx, r)
}

// flush waits until the database has all that was committed before.
func (s *sqlStore) flush(ctx context.Context) error {
	r := s.newRequest()
	r.flush = true
	return s.send(ctx, r)
}

func (s *sqlStore) newRequest() *request {
	r, again := s.answered.Get().(*request)
	if !again {
		r = &request{done: make(chan error, 1)}
	}
	*r = request{done: r.done}
	return r
}

// send gives the writer a request, which is not the caller's any more, and waits for the answer.
func (s *sqlStore) send(ctx context.Context, r *request) error {
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return ErrClosed
	}
	if t := s.waits.Load(); t != nil {
		s.mu.RUnlock()
		return t
	}
	select {
	case s.requests <- r: // nearly always: there is room for more than all clients together send
		s.mu.RUnlock()
	default:
		select {
		case s.requests <- r:
			s.mu.RUnlock()
		case <-ctx.Done():
			s.mu.RUnlock()
			return ctx.Err()
		}
	}
	var err error
	if ctx.Done() == nil {
		err = <-r.done
	} else {
		select {
		case err = <-r.done:
		case <-ctx.Done():
			return ctx.Err() // the answer comes all the same: r is not used again
		}
	}
	r.batch = Batch{}
	s.answered.Put(r)
	return err
}

// write is the writer goroutine. It alone uses the journal and the commit log, and decides what goes to the database when; a second goroutine then writes there, so that commits go on meanwhile.
func (s *sqlStore) write() {
	defer close(s.done)
	s.trouble.Store(s.room(0))
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	age := time.NewTicker(s.applyAfter)
	defer age.Stop()
	for s.next(age.C, ticker.C) {
		if s.active.bytes >= applyBytes || len(s.active.entries) >= applyRecords || len(s.flushing) > 0 {
			s.startApply()
		}
		for s.applying && (s.active.bytes >= 4*applyBytes || len(s.active.entries) >= 4*applyRecords) {
			s.applyEnded(<-s.applied)
		}
	}
}

// next does one of the things that the writer does; false = the store is closed. What waits besides requests comes first, always in the same order, so that what went wrong can be repeated.
func (s *sqlStore) next(age, check <-chan time.Time) bool {
	select {
	case err := <-s.applied:
		s.applyEnded(err)
		return true
	default:
	}
	select {
	case <-age:
		s.startApply()
		return true
	default:
	}
	select {
	case <-check:
		s.check(context.Background())
		return true
	default:
	}
	select {
	case r, ok := <-s.requests:
		if !ok {
			s.end()
			return false
		}
		s.commitGroup(s.gather(r))
	case err := <-s.applied:
		s.applyEnded(err)
	case <-age:
		s.startApply()
	case <-check:
		s.check(context.Background())
	}
	return true
}

// end brings to the database what it lacks; what that does not take is in the commit log when the store is opened again.
func (s *sqlStore) end() {
	for {
		if s.applying {
			s.applyEnded(<-s.applied)
		}
		if s.startApply(); !s.applying {
			break
		}
	}
	if s.broken == nil {
		if epoch, err := s.db.end(context.Background()); err != nil {
			_ = s.fail(err) // the database is as it was
		} else if err := s.mark.settle(s.inDatabase, epoch); err != nil {
			_ = s.fail(err) // what it says is older, which is allowed
		}
	}
	s.answerFlushes(ErrClosed)
}

// gather takes what waits behind a request, up to the limits of a group. The group is valid until the next call.
//
// A sync costs as much processor time as several operations, and whoever was answered by the last group is likely about to commit again: so what can run goes first while that makes the
// group larger. Alone on the processors a commit does not wait for anything here.
func (s *sqlStore) gather(first *request) []*request {
	group, bytes := append(s.group[:0], first), first.bytes
	defer func() { s.group = group }()
	for rounds, before := 0, 0; len(group) < maxGroup && bytes < maxGroupBytes; {
		select {
		case r, ok := <-s.requests:
			if !ok {
				return group
			}
			group, bytes = append(group, r), bytes+r.bytes
			continue
		default:
		}
		if rounds == gatherRounds || len(group) == before {
			break
		}
		rounds, before = rounds+1, len(group)
		runtime.Gosched()
	}
	return group
}

// commitGroup makes a group durable and answers it.
func (s *sqlStore) commitGroup(group []*request) {
	err := s.broken
	if err == nil {
		err = s.commitBatches(group)
	}
	for i, r := range group {
		group[i] = nil // once it is answered it is another's
		switch {
		case err != nil:
			r.done <- err
		case r.compact:
			r.done <- s.removeUnused(context.Background())
		case r.do != nil:
			r.done <- r.do()
		case r.flush:
			s.flushing = append(s.flushing, flush{s.log.newest(), r.done})
		default:
			r.done <- nil
		}
	}
	s.answerFlushes(nil)
}

// commitBatches makes the batches of a group durable, and visible.
func (s *sqlStore) commitBatches(group []*request) error {
	content := append(s.content[:0], make([]byte, groupHeader)...)
	batches := s.batches[:0]
	defer func() { clear(batches); s.batches = batches }()
	for _, r := range group {
		if r.compact || r.flush || r.do != nil {
			continue
		}
		b, err := s.place(r.batch)
		if err != nil {
			return s.fail(err)
		}
		batches, content = append(batches, b), appendBatch(content, b)
	}
	content = slices.Grow(content, groupHeader) // for the zeros behind the group
	if s.content = content; cap(content) > applyBytes {
		s.content = nil
	}
	if len(batches) == 0 {
		return nil
	}
	// Payloads first: a group must not be durable before what it refers to.
	if err := s.journal.sync(); err != nil {
		return s.fail(err)
	}
	if err := s.log.append(content); err != nil {
		return s.fail(err)
	}
	s.mark.acknowledged(s.log.newest())
	s.show(batches)
	return nil
}

// show makes the batches of the log's last group visible.
func (s *sqlStore) show(batches []Batch) {
	s.view.Lock()
	defer s.view.Unlock()
	for _, b := range batches {
		s.active.take(b)
	}
	s.active.last = s.log.newest()
}

// place moves the large payloads of a batch into the journal. The caller's records stay as they are.
func (s *sqlStore) place(b Batch) (Batch, error) {
	own := false // b.Put is ours to change
	for i := range b.Put {
		if len(b.Put[i].Payload) <= s.inline {
			continue
		}
		if !own {
			b.Put, own = slices.Clone(b.Put), true
		}
		r := &b.Put[i]
		ref, err := s.journal.append(r.Collection, r.Payload)
		if err != nil {
			return Batch{}, err
		}
		r.Payload, r.Ref = nil, ref
	}
	return b, nil
}

// flush is a request that waits until the database has a group.
type flush struct {
	group int64
	done  chan error
}

// answerFlushes answers those whose group the database has; with an error all of them.
func (s *sqlStore) answerFlushes(err error) {
	left := s.flushing[:0]
	for _, f := range s.flushing {
		if err != nil {
			f.done <- err
		} else if f.group <= s.inDatabase {
			f.done <- nil
		} else {
			left = append(left, f)
		}
	}
	s.flushing = left
}

// freeze sets the changes that are to go to the database apart; new ones are gathered beside them. It does nothing while there are some already.
func (s *sqlStore) freeze() error {
	if s.frozen != nil || s.active.last <= s.inDatabase {
		return nil
	}
	if err := s.log.rotate(); err != nil {
		return err
	}
	s.view.Lock()
	s.frozen, s.active = s.active, newPending(len(s.active.entries)) // as many are likely to come again
	s.view.Unlock()
	return nil
}

// startApply has the second goroutine bring changes to the database, if there are any and it has none.
func (s *sqlStore) startApply() {
	if s.applying || s.broken != nil {
		return
	}
	if err := s.freeze(); err != nil {
		_ = s.fail(err) // it is kept for Err
		return
	}
	if s.frozen == nil {
		return
	}
	s.applying = true
	changes := s.frozen
	go func() {
		err := s.apply(context.Background(), changes)
		if err == nil {
			err = s.settle(context.Background(), changes.last)
		}
		s.applied <- err
	}()
}

// applyEnded takes note of what the second goroutine did.
func (s *sqlStore) applyEnded(err error) {
	s.applying = false
	if err == nil {
		err = s.thawed()
	}
	if err != nil {
		_ = s.fail(err) // it is kept for Err
		return
	}
	s.answerFlushes(nil)
}

// thawed lets go of the changes that the database has now.
func (s *sqlStore) thawed() error {
	s.inDatabase = s.frozen.last
	s.view.Lock()
	s.frozen = nil
	s.view.Unlock()
	return s.log.applied(s.inDatabase)
}
