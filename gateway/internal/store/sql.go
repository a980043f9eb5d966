package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
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
	prepared       *statements                 // of the reader; nil where the driver keeps its own
	name           string                      // the type of a column of names, ordered by their bytes
	blob           string                      // the type of a column of bytes
	placeholder    func(int) string            // of the i-th argument, from 1
	writers        int                         // idle connections that writer keeps
	trouble        func(error) *Trouble        // what may pass of an error, nil for a fault of the batch itself
	check          func(Batch) error           // finds what the engine would refuse
	reconnect      func(context.Context) error // restores what belongs to the connections, such as locks, after trouble
	close          func() error

	lease    *Lease                      // of a shared store; nil = everything else that belongs to the records is in the data directory
	lockOwn  string                      // behind a query for the store's own record: others that write the same wait for this transaction
	snapshot *sql.TxOptions              // of a transaction that reads the state of one moment
	alive    func(context.Context) error // finds out whether a server answers, and connects again; called once a second from one goroutine. nil: there is no server
	drop     func()                      // ends everything that waits for its answer

	where, place string                                                                        // the database, as a finding's place and as a mark says it
	definitions  func(ctx context.Context, from querier) (tables map[string]string, err error) // the tables whose names begin with tinsmith_, with their definitions where the engine keeps them as text
	setUp        func(ctx context.Context) error                                               // makes what belongs to the engine alone, besides the tables
	settle       func(ctx context.Context) (epoch int64, err error)                            // called after changes were written, see checkpointer
	end          func(ctx context.Context) (epoch int64, err error)                            // called before close
}

// format is what the database says of its form.
func (d database) format() string {
	if d.lease != nil {
		return sharedFormat
	}
	return formatVersion
}

// hold keeps the lease for a transaction, where there is one.
func (d database) hold(ctx context.Context, tx *sql.Tx) error {
	if d.lease == nil {
		return nil
	}
	return d.lease.hold(ctx, d, tx)
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
	columns = "collection, id, parent, place, amount, value, payload, segment, start, size, head_sum, payload_sum"
	inRange = " AND place >= ? AND place < ?"
	// Records of the store's own.
	inStore    = "store"
	formatKey  = "format"
	appliedKey = "applied" // its Count is the number of the last group of the commit log that the database has
)

type sqlStore struct {
	db      database
	journal payloads
	log     groupLog
	inline  int
	dir     string
	files   string   // the folder of other files, whose disk Err and Room look at; "" = dir alone
	reserve int64    // bytes that new work leaves free
	lock    *DirLock // nil = it is the caller's

	requests chan *request
	answered sync.Pool    // requests, to be used again; of this store alone, since their channels belong to the test that made it
	mu       sync.RWMutex // held for reading while sending to requests, for writing to close it
	closed   bool
	done     chan struct{} // closed when the writer has ended
	ending   context.Context
	endWaits context.CancelFunc // ends ending: nothing is waited for that may never come
	trouble  atomic.Pointer[Trouble]
	waits    atomic.Pointer[Trouble] // why the writer waits for the database, with what it has: nothing more is taken meanwhile

	// See Damage.
	found struct {
		sync.Mutex
		list []Finding
		seen map[Finding]bool
	}
	unreachable atomic.Pointer[Trouble] // the database's server does not answer
	broke       atomic.Pointer[Trouble] // the database's structure is damaged: nothing new is taken
	mark        *mark
	watching    func() // ends the goroutine that watches the database's server
	verify      func() // ends the goroutine that looks for damage, and waits for it
	holding     int    // backups under way: no segment is removed. Of the writer goroutine only
	dumped      func() // tests only: called by Backup between the rows and the journal

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

// newSQLStore makes a store of what opening found. Its database is open for writing.
func newSQLStore(ctx context.Context, db database, o *opening) (*sqlStore, error) {
	opts := o.opts
	s := &sqlStore{
		db: db, inline: opts.InlineBytes, dir: opts.Dir, reserve: opts.Reserve, requests: make(chan *request, maxGroup), done: make(chan struct{}),
		active: o.changes, applied: make(chan error, 1), applyAfter: cmp.Or(opts.applyAfter, applyAfter), log: o.log, inDatabase: o.held.applied, verify: func() {}, watching: func() {}, dumped: func() {},
	}
	s.files = opts.Files
	s.ending, s.endWaits = context.WithCancel(context.Background())
	if err := db.prepare(ctx); err != nil {
		return nil, fmt.Errorf("prepare the database: %w", err)
	}
	g := generation{Identity: o.held.identity, Place: db.place, Applied: o.held.applied, Last: o.held.applied, Epoch: o.held.epoch}
	if o.before != nil && o.before.Identity == g.Identity {
		g.Applied, g.Last, g.Epoch = max(g.Applied, o.before.Applied), max(g.Last, o.before.Last), max(g.Epoch, o.before.Epoch)
	}
	if o.fresh {
		g.Identity = newIdentity()
	}
	if err := s.sign(ctx, g.Identity, o.held); err != nil {
		return nil, err
	}
	if err := s.openPayloads(ctx, opts); err != nil {
		return nil, err
	}
	var err error
	if s.mark, err = openMark(opts.Dir, g, opts.disk()); err != nil {
		return nil, err
	}
	if err := s.replay(ctx); err != nil {
		return nil, errors.Join(err, s.mark.close())
	}
	for _, f := range o.damage {
		s.finding(f)
	}
	return s, nil
}

// prepare makes the tables, and what older formats lack of them.
func (d database) prepare(ctx context.Context) error {
	for _, text := range []string{
		"CREATE TABLE IF NOT EXISTS tinsmith_records (collection " + d.name + " NOT NULL, id " + d.name + " NOT NULL, parent " + d.name +
			" NOT NULL, place BIGINT NOT NULL, amount BIGINT NOT NULL, value " + d.blob + ", payload " + d.blob + ", segment BIGINT NOT NULL, start BIGINT NOT NULL, size BIGINT NOT NULL, PRIMARY KEY (collection, id))",
		"CREATE INDEX IF NOT EXISTS tinsmith_records_parent ON tinsmith_records (collection, parent, place, id)",
		"CREATE INDEX IF NOT EXISTS tinsmith_records_segment ON tinsmith_records (segment) WHERE segment > 0",
	} {
		if _, err := d.writer.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return errors.Join(d.blockTable(ctx), d.addColumns(ctx), d.setUp(ctx))
}

// sign writes the store's own records that a database lacks: format, identity, and the checksum of its definitions. Format 1 had no commit log, format 2 one whose files were not used again, format 3 a row for every record,
// format 4 no blocks, format 5 no checksums and no generation mark; all are otherwise the same.
func (d database) sign(ctx context.Context, tx *sql.Tx, id identity, h held) error {
	tables, err := d.definitions(ctx, tx)
	if err != nil {
		return err
	}
	own := []Record{{Collection: inStore, Key: schemaKey, Count: definitionSum(tables)}, {Collection: inStore, Key: identityKey, Value: id[:]}, {Collection: inStore, Key: formatKey, Value: []byte(d.format())}}
	if h.format == d.format() && h.identity == id {
		own = own[:1] // an index may be new
		if h.definitions == own[0].Count {
			return nil
		}
	}
	for _, r := range own {
		if _, err = tx.ExecContext(ctx, d.text(putText), arguments(r)...); err != nil {
			return fmt.Errorf("sign the database: %w", err)
		}
	}
	return nil
}

// openPayloads opens the journal.
func (s *sqlStore) openPayloads(ctx context.Context, opts Options) error {
	if s.db.lease == nil {
		j, err := openJournal(filepath.Join(opts.Dir, journalName), opts.SegmentBytes, opts.disk())
		if err != nil {
			return err
		}
		s.journal = j
		return nil
	}
	j, err := openSharedJournal(ctx, s.db, s.db.lease, opts.SegmentBytes)
	if err != nil {
		return err
	}
	s.journal = j
	if l, ok := s.log.(*sharedLog); ok {
		l.journal, l.ending, l.waiting = j, s.ending, s.wait
	}
	return nil
}

// wait notes why nothing can be written at present, while the writer waits for that to pass; nil when it has.
func (s *sqlStore) wait(err error) {
	if err == nil {
		s.waits.Store(nil)
		s.trouble.Store(s.room(0))
		return
	}
	t := s.db.trouble(err)
	if t == nil {
		t = &Trouble{Failing, err}
	}
	s.trouble.Store(t)
	s.waits.Store(t)
}

// sign signs the store's database.
func (s *sqlStore) sign(ctx context.Context, id identity, h held) error {
	tx, err := s.db.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("sign the database: %w", err)
	}
	err = s.db.hold(ctx, tx)
	if err == nil {
		err = s.db.sign(ctx, tx, id, h)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("sign the database: %w", err)
	}
	return nil
}

// replay brings to the database what the commit log has of an earlier process.
func (s *sqlStore) replay(ctx context.Context) error {
	if last := s.log.newest(); last > s.inDatabase {
		if err := errors.Join(s.apply(ctx, s.active), s.settle(ctx, last)); err != nil {
			return err
		}
		s.inDatabase, s.active = last, newPending(0)
	}
	s.active.last = s.log.newest()
	return s.log.opened(s.inDatabase)
}

// settle makes it known outside that the database has what it was given: before this, what the commit log has of it must not go.
func (s *sqlStore) settle(ctx context.Context, applied int64) error {
	epoch, err := s.db.settle(ctx)
	if err != nil {
		return err
	}
	return s.mark.settle(applied, epoch)
}

// olderFormat tells whether a format is one of those that open makes the newest of.
func olderFormat(f string) bool { return slices.Contains(olderFormats, f) }

// removeUnused runs in the writer goroutine, so no batch that would refer to a segment is half-way.
func (s *sqlStore) removeUnused(ctx context.Context) error {
	if s.holding > 0 || s.structureDamaged() {
		return nil // what refers to them may not be found, or a backup refers to them
	}
	keep, err := s.usedSegments(ctx)
	if err != nil {
		return err
	}
	return s.journal.remove(keep)
}

// usedSegments gives the numbers of the segments that records refer to.
func (s *sqlStore) usedSegments(ctx context.Context) (map[int64]bool, error) {
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
		return nil, fmt.Errorf("find used journal segments: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, fmt.Errorf("find used journal segments: %w", err)
		}
		keep[n] = true
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("find used journal segments: %w", err)
	}
	return keep, nil
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
	if err != nil && !errors.Is(err, ErrRows) {
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
	return out, err
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
	if err != nil && !errors.Is(err, ErrRows) {
		return err
	}
	slices.SortFunc(list, func(a, b Record) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Key, b.Key)) })
	for _, r := range list {
		if err := yield(r); err != nil {
			return err
		}
	}
	return err
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
		if err = s.All(ctx, other, func(r Record) error { there[r.Key] = true; return nil }); errors.Is(err, ErrRows) {
			return nil, fmt.Errorf("%w: %s", ErrCorrupt, err.Error()) // what is not in the list may be there
		}
		if err == nil {
			err = s.All(ctx, collection, func(r Record) error {
				if there[r.Key] {
					return nil
				}
				return gather(r)
			})
		}
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

// query yields the records of the database that can be read, with ErrRows at the end if that are not all; of blocks only those of a collection with ranks in a range. It gives the number of the last group that the database had then, also when yield ends it with an error; 0 if there are no records.
func (s *sqlStore) query(ctx context.Context, collection string, x Range, yield func(Record) error, text string, args ...any) (applied int64, err error) {
	rows, err := s.db.read(ctx, text, args...)
	if err != nil {
		return 0, s.unread(err)
	}
	defer rows.Close()
	var sums summer
	var damaged error // the first row that is
	for rows.Next() {
		var r Record
		var head, payload sum
		block := false
		if err = rows.Scan(&r.Collection, &r.Key, &r.Parent, &r.Rank, &r.Count, &r.Value, &r.Payload, &r.Ref.Segment, &r.Ref.Offset, &r.Ref.Length, &head, &payload, &applied); err != nil {
			err = unreadable(err)
		} else if block = r.Collection == ""; block {
			err = sums.checkPart(r.Parent, r.Rank, r.Count, r.Value, collection, true, r.Payload, head, payload)
		} else {
			err = sums.check(&r, head, payload)
		}
		if err != nil {
			err = s.unread(err) // each is told
			damaged = cmp.Or(damaged, err)
			continue
		}
		if block {
			err = unpacked(r, collection, x, yield)
		} else {
			err = yield(r)
		}
		if err != nil {
			return applied, err
		}
	}
	if err := rows.Err(); err != nil {
		return 0, s.unread(err)
	}
	if damaged != nil {
		return applied, fmt.Errorf("%w: %w", ErrRows, damaged)
	}
	return applied, nil
}

// unread is the error for rows that could not be read. Damage is told in the log, too: who asked may not be who can do something about it.
func (s *sqlStore) unread(err error) error {
	if damagedDatabase(err) {
		if !errors.Is(err, ErrCorrupt) {
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		s.finding(Finding{Where: s.db.where, What: err.Error()})
	}
	return fmt.Errorf("read records: %w", err)
}

// unreadable makes of the error of a Scan, that a row has a value of another type than its column, what it means.
func unreadable(err error) error { return fmt.Errorf("%w: %w", ErrCorrupt, err) }

// Payload implements Store.
func (s *sqlStore) Payload(_ context.Context, r Record) ([]byte, error) {
	if r.Ref == (Ref{}) {
		return r.Payload, nil
	}
	payload, err := s.journal.read(r.Ref)
	if errors.Is(err, ErrCorrupt) {
		s.finding(Finding{Where: "journal", What: fmt.Sprintf("the payload of %s %q: %v", r.Collection, r.Key, err)})
	}
	return payload, err
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
	s.endWaits()
	<-s.done
	s.verify()
	s.watching()
	return errors.Join(s.journal.close(), s.log.close(), s.db.close(), s.mark.close(), s.lock.Close())
}
