package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// The files of a backup.
const (
	dumpName    = "records" // under this name it is whole
	journalName = "journal"
)

// Backup implements Store.
func (s *sqlStore) Backup(ctx context.Context, dir string) (err error) {
	if err := makeEmpty(dir); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	partial := filepath.Join(dir, "."+dumpName)
	defer func() {
		if err != nil { // the folder was empty
			err = errors.Join(fmt.Errorf("backup: %w", err), os.RemoveAll(partial), os.RemoveAll(filepath.Join(dir, journalName)))
		}
	}()
	if err := s.flush(ctx); err != nil {
		return err
	}
	// No segment goes until they all have a second name.
	if err := s.run(ctx, func() error { s.holding++; return nil }); err != nil {
		return err
	}
	defer func() {
		if closed := s.run(context.WithoutCancel(ctx), func() error { s.holding--; return nil }); !errors.Is(closed, ErrClosed) {
			err = errors.Join(err, closed)
		}
	}()
	out, err := os.OpenFile(partial, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close() // the second time changes nothing
	dump := newDumpWriter(out)
	extents, err := s.dumpRows(ctx, dump)
	if err != nil {
		return err
	}
	s.dumped()
	segments, err := s.backupJournal(ctx, filepath.Join(dir, journalName), extents)
	if err != nil {
		return err
	}
	if err := dump.end(segments); err != nil {
		return err
	}
	if err := errors.Join(out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := os.Rename(partial, filepath.Join(dir, dumpName)); err != nil {
		return err
	}
	return durable.SyncFolder(dir)
}

// run has f run on the writer goroutine, between two groups.
func (s *sqlStore) run(ctx context.Context, f func() error) error {
	r := s.newRequest()
	r.do = f
	return s.send(ctx, r)
}

// dumpRows writes all rows as they are at one moment, and gives up to where they name the segments of the journal.
func (s *sqlStore) dumpRows(ctx context.Context, dump *dumpWriter) (extents map[int64]int64, err error) {
	tx, err := s.db.reader.BeginTx(ctx, s.db.snapshot)
	if err != nil {
		return nil, fmt.Errorf("read rows: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	extents = map[int64]int64{}
	var sums summer
	err = s.db.eachRow(ctx, tx, verifyStep, func(ctx context.Context) error { return ctx.Err() }, func(r tableRow) error {
		if row, ok := r.(*recordRow); ok && row.record.Collection == inStore {
			return nil // it says what this database is
		}
		if err := r.check(&sums); err != nil {
			s.finding(Finding{Where: s.db.where, What: err.Error()})
			return err
		}
		for _, ref := range r.refs() {
			if ref != (Ref{}) {
				extents[ref.Segment] = max(extents[ref.Segment], ref.Offset+entryHeader+ref.Length)
			}
		}
		return dump.row(r)
	})
	return extents, err
}

// backupJournal gives segments a second name in a folder, or copies them, and gives their sizes. A damaged one is as damaged there: whoever reads a payload from it is told.
func (s *sqlStore) backupJournal(ctx context.Context, dir string, extents map[int64]int64) (sizes map[int64]int64, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	// What is appended to is ended first: then nothing changes any more.
	err = s.run(ctx, func() error {
		files, ok := s.journal.(*journal)
		if !ok {
			return nil
		}
		for collection, open := range files.open {
			if _, named := extents[open.number]; !named {
				continue
			}
			if err := files.closeSegment(collection); err != nil {
				return s.fail(err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	sizes, err = s.journal.backup(ctx, dir, extents)
	if err != nil {
		return nil, err
	}
	for n, extent := range extents {
		if size := sizes[n]; size < extent {
			name := filepath.Base((&journal{}).path(n))
			s.finding(Finding{Where: filepath.Join(journalName, name), What: fmt.Sprintf("it has %d bytes (-1: it is missing), and records refer to %d", size, extent)})
		}
	}
	return sizes, nil
}

// backup implements payloads.
func (j *journal) backup(_ context.Context, dir string, extents map[int64]int64) (map[int64]int64, error) {
	sizes := map[int64]int64{}
	for n := range extents {
		size, err := linkFile(j.path(n), filepath.Join(dir, filepath.Base(j.path(n))))
		if err != nil {
			return nil, err
		}
		sizes[n] = size
	}
	return sizes, durable.SyncFolder(dir)
}

// linkFile gives a file a second name, or makes a durable copy where the file system has no such names, and gives its size; -1 if it is not there.
func linkFile(from, to string) (size int64, err error) {
	info, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	if err := os.Link(from, to); err == nil {
		return info.Size(), nil
	} else if errors.Is(err, fs.ErrExist) {
		return 0, err
	}
	_, err = copyFile(from, to)
	return info.Size(), err
}

// makeEmpty makes a folder, or finds that it is empty.
func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty: it has %s", dir, entries[0].Name())
	}
	return err
}
