package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	check          func(Batch) error           // finds what the engine would refuse
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
	inRange = " AND place >= ? AND place < ?"
	// Records of the store's own.
	inStore    = "store"
	formatKey  = "format"
	appliedKey = "applied" // its Count is the number of the last group of the commit log that the database has
)

type sqlStore struct {
	db      database
	journal *journal
	log     *commitLog
	inline  int
	dir     string
	reserve int64 // bytes that new work leaves free
	lock    *os.File

	requests chan *request
	mu       sync.RWMutex // held for reading while sending to requests, for writing to close it
	closed   bool
	done     chan struct{} // closed when the writer has ended
	trouble  atomic.Pointer[Trouble]

	// What is durable and not in the database: active is added to, frozen (or nil) is on its way there. Only the writer changes the three, under view; it reads them without. What is in frozen does not change.
	view           sync.RWMutex
	active, frozen *pending

	// Of the writer goroutine only.
	applyAfter time.Duration
	broken     error  // why nothing can be committed until check has found that it can
	content    []byte // of the last group, to be used again; so are group and batches
	group      []*request
	batches    []Batch
	applying   bool       // frozen is being written; its end comes over applied
	applied    chan error // buffered
	inDatabase int64      // number of the last group that the database has
	flushing   []flush
}

func newSQLStore(ctx context.Context, db database, opts Options) (*sqlStore, error) {
	s := &sqlStore{
		db: db, inline: opts.InlineBytes, dir: opts.Dir, reserve: opts.Reserve, requests: make(chan *request, maxGroup), done: make(chan struct{}),
		active: newPending(0), applied: make(chan error, 1), applyAfter: cmp.Or(opts.applyAfter, applyAfter),
	}
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
	if err := errors.Join(db.addColumns(ctx), db.blockTable(ctx)); err != nil {
		return nil, fmt.Errorf("prepare the database: %w", err)
	}
	if err := s.checkFormat(ctx); err != nil {
		return nil, err
	}
	var err error
	if s.journal, err = openJournal(filepath.Join(opts.Dir, "journal"), opts.SegmentBytes); err != nil {
		return nil, err
	}
	return s, s.replay(ctx)
}

// replay brings to the database what the commit log has of an earlier process.
func (s *sqlStore) replay(ctx context.Context) error {
	applied, err := s.Get(ctx, inStore, appliedKey)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	s.inDatabase = applied.Count
	s.log, err = openCommitLog(filepath.Join(s.dir, "log"), applied.Count, func(content []byte) error {
		batches, err := decodeBatches(content)
		for _, b := range batches {
			s.active.take(b)
		}
		return err
	})
	if err != nil {
		return err
	}
	s.active.last = s.log.last
	if s.log.last > s.inDatabase {
		if err := s.apply(ctx, s.active); err != nil {
			return err
		}
		s.inDatabase, s.active = s.log.last, newPending(0)
	}
	s.active.last = s.log.last
	return s.log.applied(s.inDatabase)
}

// checkFormat refuses the records of another format. Format 1 had no commit log, format 2 one whose files were not used again, format 3 a row for every record,
// format 4 no blocks; all are otherwise the same.
func (s *sqlStore) checkFormat(ctx context.Context) error {
	r, err := s.Get(ctx, inStore, formatKey)
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && slices.Contains(olderFormats, string(r.Value)):
		if _, err := s.db.writer.ExecContext(ctx, s.db.text(putText), arguments(Record{Collection: inStore, Key: formatKey, Value: []byte(formatVersion)})...); err != nil {
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

// removeUnused runs in the writer goroutine, so no batch that would refer to a segment is half-way.
func (s *sqlStore) removeUnused(ctx context.Context) error {
	keep := map[int64]bool{}
	for _, p := range []*pending{s.frozen, s.active} {
		if p != nil {
			for _, e := range p.entries {
				keep[e.record.Ref.Segment] = true
			}
		}
	}
	rows, err := s.db.writer.QueryContext(ctx, "SELECT segment FROM tinsmith_records WHERE segment > 0 UNION SELECT guest_segment FROM tinsmith_records WHERE guest_segment > 0")
	if err != nil {
		return fmt.Errorf("find used journal segments: %w", err)
	}
	defer rows.Close()
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

// pendings are what the database may not have. They are taken before it is read: what comes to it meanwhile is then in both, and told apart by the number of the last group.
func (s *sqlStore) pendings() pendings {
	s.view.RLock()
	defer s.view.RUnlock()
	return pendings{s.frozen, s.active}
}

// Get implements Store.
func (s *sqlStore) Get(ctx context.Context, collection, key string) (Record, error) {
	k := RecordKey{collection, key}
	changes := s.pendings()
	s.view.RLock()
	var found *Record
	decided := changes.decide(k)
	if decided {
		found = changes.over(k, nil)
	}
	s.view.RUnlock()
	if !decided {
		x := Range{}
		text, args := selected(source(collection, "r")+" WHERE collection = ? AND id = ?"), []any{collection, key}
		if parent, rank, ok := placeOf(key); ok && paired(collection) {
			x = Range{rank, rank + 1}
			after, upTo, reaching := overlap(rank, rank)
			text, args = text+" UNION ALL "+inBlocks(collection)+" AND parent = ?"+overlapping, append(args, parent, after, upTo, reaching)
		}
		applied, err := s.query(ctx, collection, x, func(r Record) error { found = &r; return nil }, text, args...)
		if err != nil {
			return Record{}, err
		}
		s.view.RLock()
		found = changes.after(applied).over(k, found)
		s.view.RUnlock()
	}
	if found == nil {
		return Record{}, fmt.Errorf("%s %q: %w", collection, key, ErrNotFound)
	}
	return *found, nil
}

// List implements Store.
func (s *sqlStore) List(ctx context.Context, collection, parent string, r Range, limit int) ([]Record, error) {
	changes := s.pendings()
	text, args := selected(source(collection, "r")+" WHERE collection = ? AND parent = ?"), []any{collection, parent}
	if r != (Range{}) {
		text, args = text+inRange, append(args, r.From, r.To)
	}
	if paired(collection) {
		text, args = text+" UNION ALL "+inBlocks(collection)+" AND parent = ?", append(args, parent)
		if r != (Range{}) {
			after, upTo, reaching := overlap(r.From, r.To)
			text, args = text+overlapping, append(args, after, upTo, reaching)
		}
	}
	list := map[RecordKey]*Record{}
	applied, err := s.query(ctx, collection, r, func(r Record) error { list[RecordKey{r.Collection, r.Key}] = &r; return nil }, text, args...)
	if err != nil {
		return nil, err
	}
	s.view.RLock()
	changes = changes.after(applied)
	for _, p := range changes {
		if p != nil {
			for _, k := range p.parents[ParentKey{collection, parent}] {
				if _, known := list[k]; !known {
					list[k] = nil
				}
			}
		}
	}
	var out []Record
	for k, older := range list {
		if now := changes.over(k, older); now != nil && now.Parent == parent && r.holds(now.Rank) {
			out = append(out, *now)
		}
	}
	s.view.RUnlock()
	slices.SortFunc(out, func(a, b Record) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Key, b.Key)) })
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out, nil
}

// All implements Store.
func (s *sqlStore) All(ctx context.Context, collection string, yield func(Record) error) error {
	if err := s.flush(ctx); err != nil {
		return err
	}
	text := selected(source(collection, "r") + " WHERE collection = ?")
	if !paired(collection) {
		_, err := s.query(ctx, collection, Range{}, yield, text+" ORDER BY place, id", collection)
		return err
	}
	var list []Record
	_, err := s.query(ctx, collection, Range{}, func(r Record) error { list = append(list, r); return nil }, text+" UNION ALL "+inBlocks(collection), collection)
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b Record) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Key, b.Key)) })
	for _, r := range list {
		if err := yield(r); err != nil {
			return err
		}
	}
	return nil
}

// Missing implements Store.
func (s *sqlStore) Missing(ctx context.Context, collection, other string) ([]Record, error) {
	if err := s.flush(ctx); err != nil {
		return nil, err
	}
	var list []Record
	gather := func(r Record) error { list = append(list, r); return nil }
	var err error
	switch text := selected(source(collection, "r") + " WHERE r.collection = ?" + notJoint(other) + " AND NOT EXISTS (SELECT 1 FROM tinsmith_records AS o WHERE o.collection = ? AND o.id = r.id)"); {
	case !paired(collection) && !paired(other):
		_, err = s.query(ctx, collection, Range{}, gather, text, collection, other)
	case collection == hosts && other == guests: // nearly every block has both
		_, err = s.query(ctx, collection, Range{}, gather, text+" UNION ALL "+inBlocks(collection)+" AND guested = 0", collection, other)
	default:
		there := map[string]bool{}
		err = errors.Join(
			s.All(ctx, other, func(r Record) error { there[r.Key] = true; return nil }),
			s.All(ctx, collection, func(r Record) error {
				if there[r.Key] {
					return nil
				}
				return gather(r)
			}),
		)
	}
	slices.SortFunc(list, func(a, b Record) int {
		return cmp.Or(strings.Compare(a.Parent, b.Parent), cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Key, b.Key))
	})
	return list, err
}

// groupColumn is the number of the last group that the database has.
const groupColumn = ", COALESCE((SELECT a.amount FROM tinsmith_records AS a WHERE a.collection = '" + inStore + "' AND a.id = '" + appliedKey + "'), 0)"

// selected is the select of rows, which query understands.
func selected(from string) string { return "SELECT " + columns + groupColumn + " FROM " + from }

// query yields records of the database, of blocks only those of a collection with ranks in a range. It gives the number of the last group that the database had then, also when yield ends it with an error; 0 if there are no records.
func (s *sqlStore) query(ctx context.Context, collection string, x Range, yield func(Record) error, text string, args ...any) (applied int64, err error) {
	rows, err := s.db.reader.QueryContext(ctx, s.db.text(text), args...)
	if err != nil {
		return 0, fmt.Errorf("read records: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r Record
		if err := rows.Scan(&r.Collection, &r.Key, &r.Parent, &r.Rank, &r.Count, &r.Value, &r.Payload, &r.Ref.Segment, &r.Ref.Offset, &r.Ref.Length, &applied); err != nil {
			return 0, fmt.Errorf("read records: %w", err)
		}
		if r.Collection == "" {
			err = unpacked(r, collection, x, yield)
		} else {
			err = yield(r)
		}
		if err != nil {
			return applied, err
		}
	}
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("read records: %w", err)
	}
	return applied, nil
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
	return errors.Join(s.journal.close(), s.log.close(), s.db.close(), s.lock.Close())
}
