package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// A shared store has nothing in its data directory that another gateway would need: the groups of the commit log and the large payloads are rows of the PostgreSQL database, too. A group is committed there, with its payloads, in one
// transaction that holds the lease, before anybody is told of it; from then on everything is as with files: reading lays the groups over the rows of the records, and a second goroutine brings them there, with one transaction about
// every second, which also removes them from the log.
const (
	sharedFormat = "6 shared" // in place of formatVersion: neither understands the other's

	logTable     = "CREATE TABLE IF NOT EXISTS tinsmith_log (number BIGINT PRIMARY KEY, sum BIGINT NOT NULL, content BYTEA NOT NULL)"
	payloadTable = "CREATE TABLE IF NOT EXISTS tinsmith_payloads (segment BIGINT NOT NULL, start BIGINT NOT NULL, entry BYTEA NOT NULL, PRIMARY KEY (segment, start))"

	// A group goes behind the one before it, which is in the log or in the records already, and nowhere else: a database that has lost what was acknowledged takes nothing more.
	appendText = "INSERT INTO tinsmith_log (number, sum, content) SELECT $1::bigint, $2::bigint, $3::bytea FROM tinsmith_lease AS l WHERE l.number = $4::bigint" +
		" AND (EXISTS (SELECT 1 FROM tinsmith_log AS b WHERE b.number = $1::bigint - 1)" +
		" OR COALESCE((SELECT a.amount FROM tinsmith_records AS a WHERE a.collection = '" + inStore + "' AND a.id = '" + appliedKey + "'), 0) = $1::bigint - 1) FOR KEY SHARE OF l ON CONFLICT DO NOTHING"
	groupSumText   = "SELECT sum FROM tinsmith_log WHERE number = $1"
	groupsText     = "SELECT number, sum, content FROM tinsmith_log WHERE number > $1 ORDER BY number"
	lostTable      = "CREATE TABLE IF NOT EXISTS tinsmith_lost (at TIMESTAMPTZ NOT NULL, number BIGINT NOT NULL, sum BIGINT NOT NULL, content BYTEA NOT NULL)"
	lostText       = "INSERT INTO tinsmith_lost (at, number, sum, content) SELECT now(), number, sum, content FROM tinsmith_log WHERE number > %d"
	lostGoText     = "DELETE FROM tinsmith_log WHERE number > %d"
	forgetText     = "DELETE FROM tinsmith_log WHERE number <= ?"
	putEntryText   = "INSERT INTO tinsmith_payloads (segment, start, entry) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
	entryText      = "SELECT entry FROM tinsmith_payloads WHERE segment = $1 AND start = $2"
	segmentText    = "SELECT start, entry FROM tinsmith_payloads WHERE segment = $1 ORDER BY start"
	segmentsText   = "SELECT DISTINCT segment FROM tinsmith_payloads"
	delSegmentText = "DELETE FROM tinsmith_payloads WHERE segment = $1"

	longestValue = 512 << 20 // PostgreSQL's own bound is 1 GiB
	retryAppend  = 200 * time.Millisecond
)

// groupLog is where groups of batches become durable: files (commitLog) or a table (sharedLog). One goroutine uses it.
type groupLog interface {
	newest() int64                 // number of the last durable group
	append(whole []byte) error     // see commitLog.append
	rotate() error                 // what comes next may outlive what came before
	applied(last int64) error      // the database has the groups up to this one
	opened(inDatabase int64) error // ends the opening, when the database has what the log had
	abandon()
	repair() error
	folder() string // to look for room in, "" = none
	close() error
}

// payloads is where large payloads are: files (journal) or a table (sharedJournal). One goroutine appends; read may be called by anyone.
type payloads interface {
	append(collection string, payload []byte) (Ref, error)
	sync() error
	read(ref Ref) ([]byte, error)
	remove(keep map[int64]bool) error
	backup(ctx context.Context, dir string, extents map[int64]int64) (sizes map[int64]int64, err error)
	abandon()
	folder() string
	close() error
}

// sharedLog is the log in the database. What a transaction came to is found out before anything is said of it: the same group is given again, under the same number, until the database has it or refuses it.
type sharedLog struct {
	db      database
	lease   *Lease
	last    int64
	journal *sharedJournal
	ending  context.Context // ended when the store closes: then nothing is waited for
	waiting func(error)     // told while the database cannot be reached, and nil when it can again
}

// openSharedLog gives every group after the one numbered applied to yield, in order.
func openSharedLog(ctx context.Context, db database, lease *Lease, applied int64, yield func(content []byte) error) (*sharedLog, error) {
	l := &sharedLog{db: db, lease: lease, last: applied}
	var there sql.NullString
	if err := db.reader.QueryRowContext(ctx, "SELECT to_regclass('tinsmith_log')::text").Scan(&there); err != nil {
		return nil, fmt.Errorf("read the commit log: %w", err)
	}
	if !there.Valid {
		return l, nil
	}
	rows, err := db.reader.QueryContext(ctx, groupsText, applied)
	if err != nil {
		return nil, fmt.Errorf("read the commit log: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var number, sum int64
		var content []byte
		if err := rows.Scan(&number, &sum, &content); err != nil {
			return nil, fmt.Errorf("read the commit log: %w", unreadable(err))
		}
		if number != l.last+1 {
			return l, fmt.Errorf("%w: the commit log has group %d behind group %d", ErrCorrupt, number, l.last)
		}
		if sum != sharedSum(number, content) {
			return l, fmt.Errorf("%w: the checksum of group %d of the commit log does not fit", ErrCorrupt, number)
		}
		if err := yield(content); err != nil {
			return l, fmt.Errorf("group %d: %w", number, err)
		}
		l.last = number
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the commit log: %w", err)
	}
	return l, nil
}

// sharedSum is the checksum of a group's number and content.
func sharedSum(number int64, content []byte) int64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(number))
	return int64(crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, content))
}

func (l *sharedLog) newest() int64       { return l.last }
func (l *sharedLog) rotate() error       { return nil }
func (l *sharedLog) applied(int64) error { return nil } // apply has removed them
func (l *sharedLog) opened(int64) error  { return nil }
func (l *sharedLog) abandon()            {}
func (l *sharedLog) repair() error       { return nil } // nothing is left of what was refused
func (l *sharedLog) folder() string      { return "" }
func (l *sharedLog) close() error        { return nil }

// setAside moves what is behind the last group that could be read to another table.
func (l *sharedLog) setAside(ctx context.Context) error {
	tx, err := l.db.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("set the rest of the commit log aside: %w", err)
	}
	err = l.lease.hold(ctx, l.db, tx)
	for _, text := range []string{lostTable, fmt.Sprintf(lostText, l.last), fmt.Sprintf(lostGoText, l.last)} {
		if err == nil {
			_, err = tx.ExecContext(ctx, text)
		}
	}
	if err == nil {
		err = tx.Commit()
	} else {
		err = errors.Join(err, tx.Rollback())
	}
	if err != nil {
		return fmt.Errorf("set the rest of the commit log aside: %w", err)
	}
	return nil
}

// append commits a group with the payloads that it refers to. While the database is away it waits.
func (l *sharedLog) append(whole []byte) error {
	number, content := l.last+1, whole[groupHeader:]
	entries := l.journal.waiting
	for _, n := range append(lengths(entries), len(content)) {
		if n > longestValue {
			return fmt.Errorf("a value of %d bytes: a database takes at most %d", n, longestValue)
		}
	}
	unknown := false // an answer was lost: the group may be there, or come to be there yet
	for {
		err := l.appendOnce(context.Background(), number, content, entries) // also while the store closes: it may work
		if err == nil {
			l.last, l.journal.waiting = number, nil
			if unknown {
				l.waiting(nil)
			}
			return nil
		}
		if l.ending.Err() != nil || errors.Is(err, ErrFenced) || errors.Is(err, ErrLost) || !unknown && refused(err) {
			return err
		}
		unknown = true
		l.waiting(err)
		select {
		case <-time.After(retryAppend):
		case <-l.ending.Done():
			return err
		}
	}
}

func (l *sharedLog) appendOnce(ctx context.Context, number int64, content []byte, entries []payloadEntry) error {
	sum := sharedSum(number, content)
	if len(entries) == 0 {
		result, err := l.db.writer.ExecContext(ctx, appendText, number, sum, content, l.lease.number)
		return l.appended(ctx, l.db.writer, number, sum, result, err)
	}
	tx, err := l.db.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("append to the commit log: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing is left of it after an error, and nothing to undo after Commit
	for _, e := range entries {
		if _, err := tx.ExecContext(ctx, putEntryText, e.ref.Segment, e.ref.Offset, e.entry); err != nil {
			return fmt.Errorf("write a payload: %w", err)
		}
	}
	result, err := tx.ExecContext(ctx, appendText, number, sum, content, l.lease.number)
	if err := l.appended(ctx, tx, number, sum, result, err); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("append to the commit log: %w", err)
	}
	return nil
}

// appended finds out why no row was inserted, if none was: an earlier try has done it, another has the lease, or the database has lost what was acknowledged.
func (l *sharedLog) appended(ctx context.Context, from interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, number, sum int64, result sql.Result, err error) error {
	var n int64
	if err == nil {
		n, err = result.RowsAffected()
	}
	if err != nil {
		return fmt.Errorf("append to the commit log: %w", err)
	}
	if n == 1 {
		return nil
	}
	var there int64
	err = from.QueryRowContext(ctx, "SELECT number FROM tinsmith_lease WHERE number = $1", l.lease.number).Scan(&there)
	if errors.Is(err, sql.ErrNoRows) {
		l.lease.lose(ErrFenced)
		return ErrFenced
	}
	if err == nil {
		err = from.QueryRowContext(ctx, groupSumText, number).Scan(&there)
	}
	switch {
	case err == nil && there == sum:
		return nil
	case err == nil, errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: the database does not end at change %d, which was acknowledged", ErrLost, number-1)
	}
	return fmt.Errorf("append to the commit log: %w", err)
}

func lengths(entries []payloadEntry) (list []int) {
	for _, e := range entries {
		list = append(list, len(e.entry))
	}
	return list
}

// payloadEntry is a payload on its way to the table.
type payloadEntry struct {
	ref   Ref
	entry []byte // as in a segment file: header and payload
}

// sharedJournal is the journal in the database. The numbers are those that files would have, so that a backup is the same.
type sharedJournal struct {
	db      database
	lease   *Lease
	limit   int64
	number  int64                     // the highest of all segments
	open    map[string]*sharedSegment // by collection
	waiting []payloadEntry            // they go with the next group
}

type sharedSegment struct{ number, size int64 }

// openSharedJournal finds the highest number. What an earlier process began is not gone on with.
func openSharedJournal(ctx context.Context, db database, lease *Lease, limit int64) (*sharedJournal, error) {
	j := &sharedJournal{db: db, lease: lease, limit: limit, open: map[string]*sharedSegment{}}
	if err := db.reader.QueryRowContext(ctx, "SELECT COALESCE(max(segment), 0) FROM tinsmith_payloads").Scan(&j.number); err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	return j, nil
}

func (j *sharedJournal) append(collection string, payload []byte) (Ref, error) {
	s := j.open[collection]
	if s == nil || s.size > int64(len(segmentMagic)) && s.size+entryHeader+int64(len(payload)) > j.limit {
		j.number++
		s = &sharedSegment{j.number, int64(len(segmentMagic))}
		j.open[collection] = s
	}
	ref := Ref{Segment: s.number, Offset: s.size, Length: int64(len(payload))}
	entry := make([]byte, entryHeader, entryHeader+len(payload))
	putEntryHeader(entry, ref, payload)
	j.waiting = append(j.waiting, payloadEntry{ref, append(entry, payload...)})
	s.size += entryHeader + int64(len(payload))
	return ref, nil
}

func (j *sharedJournal) sync() error    { return nil } // the group's transaction does it
func (j *sharedJournal) folder() string { return "" }
func (j *sharedJournal) close() error   { return nil }

func (j *sharedJournal) abandon() {
	clear(j.open)
	j.waiting = nil
}

func (j *sharedJournal) read(ref Ref) ([]byte, error) {
	var entry []byte
	err := j.db.reader.QueryRowContext(context.Background(), entryText, ref.Segment, ref.Offset).Scan(&entry)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: segment %d, offset %d: there is no such payload", ErrCorrupt, ref.Segment, ref.Offset)
	}
	if err != nil {
		return nil, fmt.Errorf("read journal segment %d: %w", ref.Segment, err)
	}
	return checkEntry(entry, ref)
}

func (j *sharedJournal) remove(keep map[int64]bool) error {
	ctx := context.Background()
	open := map[int64]bool{}
	for _, s := range j.open {
		open[s.number] = true
	}
	numbers, err := j.segments(ctx)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if keep[n] || open[n] {
			continue
		}
		if err := j.removeSegment(ctx, n); err != nil {
			return fmt.Errorf("remove journal segment %d: %w", n, err)
		}
	}
	return nil
}

func (j *sharedJournal) segments(ctx context.Context) (numbers []int64, err error) {
	rows, err := j.db.reader.QueryContext(ctx, segmentsText)
	if err != nil {
		return nil, fmt.Errorf("list journal segments: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, fmt.Errorf("list journal segments: %w", err)
		}
		numbers = append(numbers, n)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list journal segments: %w", err)
	}
	slices.Sort(numbers)
	return numbers, nil
}

func (j *sharedJournal) removeSegment(ctx context.Context, n int64) error {
	tx, err := j.db.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = j.lease.hold(ctx, j.db, tx)
	if err == nil {
		_, err = tx.ExecContext(ctx, delSegmentText, n)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// backup writes segments as the files that they would be. Nothing is removed meanwhile.
func (j *sharedJournal) backup(ctx context.Context, dir string, extents map[int64]int64) (map[int64]int64, error) {
	sizes := map[int64]int64{}
	for n := range extents {
		size, err := j.writeSegment(ctx, (&journal{dir: dir}).path(n), n)
		if err != nil {
			return nil, err
		}
		sizes[n] = size
	}
	return sizes, durable.SyncFolder(dir)
}

// writeSegment gives the size of the file; -1 and no file if nothing is there.
func (j *sharedJournal) writeSegment(ctx context.Context, path string, n int64) (size int64, err error) {
	rows, err := j.db.reader.QueryContext(ctx, segmentText, n)
	if err != nil {
		return 0, fmt.Errorf("read journal segment %d: %w", n, err)
	}
	defer rows.Close()
	size = -1
	var f *os.File
	for rows.Next() {
		var start int64
		var entry []byte
		if err = rows.Scan(&start, &entry); err != nil {
			break
		}
		if f == nil {
			if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
				return 0, err
			}
			defer f.Close() // the second time changes nothing
			if _, err = f.WriteString(segmentMagic); err != nil {
				break
			}
		}
		if _, err = f.WriteAt(entry, start); err != nil {
			break
		}
		size = max(size, start+int64(len(entry)))
	}
	if err = errors.Join(err, rows.Err()); err != nil {
		return 0, fmt.Errorf("write journal segment %d: %w", n, err)
	}
	if f == nil {
		return -1, nil
	}
	return size, errors.Join(f.Sync(), f.Close())
}

// loadShared brings the payloads of a backup to the table. One that is damaged there is left out: reading it says so.
func (o *opening) loadShared(ctx context.Context, tx *sql.Tx, from string, m manifest, refs map[Ref]bool) error {
	segments := map[int64]*os.File{}
	defer func() {
		for _, f := range segments {
			_ = f.Close() // it was only read
		}
	}()
	for ref := range refs {
		want, known := m.segments[ref.Segment]
		if !known {
			return fmt.Errorf("%w: the backup has no segment %d, which records refer to", ErrCorrupt, ref.Segment)
		}
		if want < 0 {
			continue // it was missing before
		}
		f := segments[ref.Segment]
		if f == nil {
			var err error
			if f, err = os.Open(filepath.Join(from, filepath.Base((&journal{}).path(ref.Segment)))); err != nil {
				return err
			}
			segments[ref.Segment] = f
		}
		payload, err := readEntry(f, want, ref)
		if errors.Is(err, ErrCorrupt) {
			continue
		}
		if err != nil {
			return err
		}
		entry := make([]byte, entryHeader, entryHeader+len(payload))
		putEntryHeader(entry, ref, payload)
		if _, err := tx.ExecContext(ctx, putEntryText, ref.Segment, ref.Offset, append(entry, payload...)); err != nil {
			return fmt.Errorf("write a payload: %w", err)
		}
	}
	return nil
}

// refused tells whether the server has said that it did not do something. It has not where the way to it failed, nor where it ended the session: it is stopping or starting, or an administrator ended this one.
func refused(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && len(e.Code) == 5 && e.Code[:2] != "57" && e.Code[:2] != "08"
}
