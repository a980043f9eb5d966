package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// database is what differs between the two engines.
type database struct {
	writer, reader *sql.DB
	name           string                      // the type of a column of names, ordered by their bytes
	blob           string                      // the type of a column of bytes
	placeholder    func(int) string            // of the i-th argument, from 1
	writers        int                         // idle connections that writer keeps
	trouble        func(error) *Trouble        // what may pass of an error, nil for a fault of the batch itself
	reconnect      func(context.Context) error // restores what belongs to the connections, such as locks, after trouble
	close          func() error
}

// text puts the engine's placeholders in place of the question marks.
func (d database) text(query string) string {
	parts := strings.Split(query, "?")
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteString(d.placeholder(i))
		}
		b.WriteString(p)
	}
	return b.String()
}

const (
	columns = "collection, id, parent, place, amount, value, payload, segment, start, size"
	upsert  = "INSERT INTO tinsmith_records (" + columns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (collection, id) DO UPDATE SET "
	putText = upsert + "parent = excluded.parent, place = excluded.place, amount = excluded.amount, value = excluded.value, payload = excluded.payload, " +
		"segment = excluded.segment, start = excluded.start, size = excluded.size"
	addText         = upsert + "amount = tinsmith_records.amount + excluded.amount"
	deleteText      = "DELETE FROM tinsmith_records WHERE collection = ? AND id = ?"
	inRange         = " AND place >= ? AND place < ?"
	releaseText     = "UPDATE tinsmith_records SET payload = NULL, segment = 0, start = 0, size = 0 WHERE collection = ? AND parent = ? AND (payload IS NOT NULL OR segment > 0)"
	deleteUnderText = "DELETE FROM tinsmith_records WHERE collection = ? AND parent = ?"
	// Limits on one group: enough to make a sync cheap per batch, and little enough that the first one does not wait long.
	maxGroup      = 1024
	maxGroupBytes = 64 << 20
)

type sqlStore struct {
	db      database
	journal *journal
	inline  int
	dir     string
	reserve int64 // bytes that new work leaves free
	lock    *os.File

	put, add, del, delUnder, release *sql.Stmt

	requests chan request
	mu       sync.RWMutex // held for reading while sending to requests, for writing to close it
	closed   bool
	done     chan struct{} // closed when the writer has ended
	broken   error         // writer goroutine only: why nothing can be committed until check has found that it can
	trouble  atomic.Pointer[Trouble]
}

// request is one thing for the writer to do: a batch, or a compaction.
type request struct {
	batch   Batch
	bytes   int
	compact bool
	done    chan error // buffered
}

func newSQLStore(ctx context.Context, db database, opts Options) (*sqlStore, error) {
	s := &sqlStore{db: db, inline: opts.InlineBytes, dir: opts.Dir, reserve: opts.Reserve, requests: make(chan request, maxGroup), done: make(chan struct{})}
	for _, text := range []string{
		"CREATE TABLE IF NOT EXISTS tinsmith_records (collection " + db.name + " NOT NULL, id " + db.name + " NOT NULL, parent " + db.name +
			" NOT NULL, place BIGINT NOT NULL, amount BIGINT NOT NULL, value " + db.blob + ", payload " + db.blob + ", segment BIGINT NOT NULL, start BIGINT NOT NULL, size BIGINT NOT NULL, PRIMARY KEY (collection, id))",
		"CREATE INDEX IF NOT EXISTS tinsmith_records_parent ON tinsmith_records (collection, parent, place, id)",
		"CREATE INDEX IF NOT EXISTS tinsmith_records_segment ON tinsmith_records (segment) WHERE segment > 0",
	} {
		if _, err := db.writer.ExecContext(ctx, text); err != nil {
			return nil, fmt.Errorf("prepare the database: %w", err)
		}
	}
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{{&s.put, putText}, {&s.add, addText}, {&s.del, deleteText}, {&s.delUnder, deleteUnderText}, {&s.release, releaseText + inRange}} {
		stmt, err := db.writer.PrepareContext(ctx, db.text(p.text))
		if err != nil {
			return nil, fmt.Errorf("prepare the database: %w", err)
		}
		*p.stmt = stmt
	}
	if err := s.checkFormat(ctx); err != nil {
		return nil, err
	}
	j, err := openJournal(filepath.Join(opts.Dir, "journal"), opts.SegmentBytes)
	if err != nil {
		return nil, err
	}
	s.journal = j
	return s, nil
}

func (s *sqlStore) checkFormat(ctx context.Context) error {
	r, err := s.Get(ctx, "store", "format")
	switch {
	case errors.Is(err, ErrNotFound):
		if err := s.transact(ctx, []Batch{{Put: []Record{{Collection: "store", Key: "format", Value: []byte(formatVersion)}}}}); err != nil {
			return fmt.Errorf("write the format version: %w", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("read the format version: %w", err)
	case string(r.Value) != formatVersion:
		return fmt.Errorf("%w: it has format %q, this program reads %q", ErrFormat, r.Value, formatVersion)
	}
	return nil
}

// Commit implements Store.
func (s *sqlStore) Commit(ctx context.Context, b Batch) error {
	r := request{batch: b, done: make(chan error, 1)}
	for _, p := range b.Put {
		r.bytes += len(p.Payload) + len(p.Value)
	}
	return s.send(ctx, r)
}

// Compact implements Store.
func (s *sqlStore) Compact(ctx context.Context) error {
	return s.send(ctx, request{compact: true, done: make(chan error, 1)})
}

func (s *sqlStore) send(ctx context.Context, r request) error {
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return ErrClosed
	}
	select {
	case s.requests <- r:
		s.mu.RUnlock()
	case <-ctx.Done():
		s.mu.RUnlock()
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write is the writer goroutine.
func (s *sqlStore) write() {
	defer close(s.done)
	s.trouble.Store(s.room())
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case r, ok := <-s.requests:
			if !ok {
				return
			}
			s.commitGroup(s.gather(r))
		case <-ticker.C:
			s.check(context.Background())
		}
	}
}

// gather takes what waits behind a request, up to the limits of a group.
func (s *sqlStore) gather(first request) []request {
	group, bytes := []request{first}, first.bytes
	for len(group) < maxGroup && bytes < maxGroupBytes {
		select {
		case r, ok := <-s.requests:
			if !ok {
				return group
			}
			group, bytes = append(group, r), bytes+r.bytes
		default:
			return group
		}
	}
	return group
}

// commitGroup makes a group durable and answers it.
func (s *sqlStore) commitGroup(group []request) {
	answer := func(err error) {
		for _, r := range group {
			r.done <- err
		}
	}
	if s.broken != nil {
		answer(s.broken)
		return
	}
	var batches []Batch
	compact := false
	for _, r := range group {
		compact = compact || r.compact
		if r.compact {
			continue
		}
		b, err := s.place(r.batch)
		if err != nil {
			answer(s.fail(err))
			return
		}
		batches = append(batches, b)
	}
	if err := s.journal.sync(); err != nil {
		answer(s.fail(err))
		return
	}
	// The transaction is short and its callers may have gone: it is never given up half-way.
	ctx := context.Background()
	if err := s.transact(ctx, batches); err != nil && s.db.trouble(err) != nil {
		answer(s.fail(err))
		return
	} else if err != nil && len(batches) > 1 {
		// One bad batch must not fail its neighbours: they are tried one by one.
		for _, r := range group {
			if r.compact {
				r.done <- s.removeUnused(ctx)
				continue
			}
			r.done <- s.transact(ctx, batches[:1])
			batches = batches[1:]
		}
		return
	} else if err != nil {
		answer(err)
		return
	}
	var err error
	if compact {
		err = s.removeUnused(ctx)
	}
	for _, r := range group {
		if r.compact {
			r.done <- err
		} else {
			r.done <- nil
		}
	}
}

// place moves the large payloads of a batch into the journal. The caller's records stay as they are.
func (s *sqlStore) place(b Batch) (Batch, error) {
	puts := make([]Record, len(b.Put))
	for i, r := range b.Put {
		if len(r.Payload) > s.inline {
			ref, err := s.journal.append(r.Collection, r.Payload)
			if err != nil {
				return Batch{}, err
			}
			r.Payload, r.Ref = nil, ref
		}
		puts[i] = r
	}
	b.Put = puts
	return b, nil
}

// transact applies batches in one transaction.
func (s *sqlStore) transact(ctx context.Context, batches []Batch) (err error) {
	if len(batches) == 0 {
		return nil
	}
	tx, err := s.db.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("commit: %w", err), tx.Rollback())
		}
	}()
	put, add, del, under := tx.StmtContext(ctx, s.put), tx.StmtContext(ctx, s.add), tx.StmtContext(ctx, s.del), tx.StmtContext(ctx, s.delUnder)
	release := tx.StmtContext(ctx, s.release)
	for _, b := range batches {
		for _, k := range b.DeleteUnder {
			if _, err := under.ExecContext(ctx, k.Collection, k.Parent); err != nil {
				return err
			}
		}
		for _, k := range b.Delete {
			if _, err := del.ExecContext(ctx, k.Collection, k.Key); err != nil {
				return err
			}
		}
		for _, r := range b.Put {
			if _, err := put.ExecContext(ctx, arguments(r)...); err != nil {
				return err
			}
		}
		for _, k := range b.Release {
			if k.Range == (Range{}) {
				k.Range = Range{From: math.MinInt64, To: math.MaxInt64}
			}
			if _, err := release.ExecContext(ctx, k.Collection, k.Parent, k.Range.From, k.Range.To); err != nil {
				return err
			}
		}
		for _, r := range b.Add {
			if _, err := add.ExecContext(ctx, arguments(r)...); err != nil {
				return err
			}
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func arguments(r Record) []any {
	return []any{r.Collection, r.Key, r.Parent, r.Rank, r.Count, r.Value, r.Payload, r.Ref.Segment, r.Ref.Offset, r.Ref.Length}
}

// removeUnused runs in the writer goroutine, so no batch that would refer to a segment is half-way.
func (s *sqlStore) removeUnused(ctx context.Context) error {
	rows, err := s.db.writer.QueryContext(ctx, "SELECT DISTINCT segment FROM tinsmith_records WHERE segment > 0")
	if err != nil {
		return fmt.Errorf("find used journal segments: %w", err)
	}
	defer rows.Close()
	keep := map[int64]bool{}
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return fmt.Errorf("find used journal segments: %w", err)
		}
		keep[n] = true
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("find used journal segments: %w", err)
	}
	return s.journal.remove(keep)
}

// Get implements Store.
func (s *sqlStore) Get(ctx context.Context, collection, key string) (Record, error) {
	var found *Record
	err := s.query(ctx, func(r Record) error { found = &r; return nil }, "WHERE collection = ? AND id = ?", collection, key)
	if err != nil {
		return Record{}, err
	}
	if found == nil {
		return Record{}, fmt.Errorf("%s %q: %w", collection, key, ErrNotFound)
	}
	return *found, nil
}

// List implements Store.
func (s *sqlStore) List(ctx context.Context, collection, parent string, r Range, limit int) ([]Record, error) {
	where, args := "WHERE collection = ? AND parent = ?", []any{collection, parent}
	if r != (Range{}) {
		where, args = where+inRange, append(args, r.From, r.To)
	}
	where += " ORDER BY place, id"
	if limit > 0 {
		where, args = where+" LIMIT ?", append(args, limit)
	}
	var list []Record
	err := s.query(ctx, func(r Record) error { list = append(list, r); return nil }, where, args...)
	return list, err
}

// All implements Store.
func (s *sqlStore) All(ctx context.Context, collection string, yield func(Record) error) error {
	return s.query(ctx, yield, "WHERE collection = ? ORDER BY place, id", collection)
}

// Missing implements Store.
func (s *sqlStore) Missing(ctx context.Context, collection, other string) ([]Record, error) {
	var list []Record
	err := s.query(ctx, func(r Record) error { list = append(list, r); return nil },
		"AS r WHERE r.collection = ? AND NOT EXISTS (SELECT 1 FROM tinsmith_records AS o WHERE o.collection = ? AND o.id = r.id) ORDER BY r.parent, r.place, r.id", collection, other)
	return list, err
}

func (s *sqlStore) query(ctx context.Context, yield func(Record) error, rest string, args ...any) error {
	rows, err := s.db.reader.QueryContext(ctx, s.db.text("SELECT "+columns+" FROM tinsmith_records "+rest), args...)
	if err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r Record
		if err := rows.Scan(&r.Collection, &r.Key, &r.Parent, &r.Rank, &r.Count, &r.Value, &r.Payload, &r.Ref.Segment, &r.Ref.Offset, &r.Ref.Length); err != nil {
			return fmt.Errorf("read records: %w", err)
		}
		if err := yield(r); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	return nil
}

// Payload implements Store.
func (s *sqlStore) Payload(_ context.Context, r Record) ([]byte, error) {
	if r.Ref == (Ref{}) {
		return r.Payload, nil
	}
	return s.journal.read(r.Ref)
}

// Close implements Store.
func (s *sqlStore) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return nil
	}
	s.closed = true
	close(s.requests)
	s.mu.Unlock()
	<-s.done
	err := s.journal.close()
	for _, stmt := range []*sql.Stmt{s.put, s.add, s.del, s.delUnder, s.release} {
		err = errors.Join(err, stmt.Close())
	}
	return errors.Join(err, s.db.close(), s.lock.Close())
}
