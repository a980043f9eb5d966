package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// restoringName is a file of a data directory into which a backup is being restored.
const restoringName = "restoring"

// Restore makes of a backup the store that opts name, of either driver: so a backup is also the way from one to the other. The data directory must hold no store, the database no records; else
// an error says so and nothing is changed. The backup is checked as a whole, and stays as it is. A Restore that was cut off is done again; until then Open refuses the data directory with a *Loss.
// The store has an identity of its own.
func Restore(ctx context.Context, backup string, opts Options) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("restore: %w", err)
		}
	}()
	in, err := os.Open(filepath.Join(backup, dumpName))
	if err != nil {
		return fmt.Errorf("%s has no backup that is whole: %w", backup, err)
	}
	defer in.Close()
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return err
	}
	lock, err := LockDir(opts.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	o := &opening{opts: opts}
	if err := o.connect(ctx); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, o.disconnect())
		if o.db.close != nil {
			err = errors.Join(err, o.db.close())
		}
	}()
	id, err := o.restoring(ctx)
	if err != nil {
		return err
	}
	if o.sqlite() {
		if o.db, err = openSQLite(ctx, o.path(databaseName)); err != nil {
			return err
		}
	}
	if err := o.db.prepare(ctx); err != nil {
		return err
	}
	if o.held.identity != id { // else a Restore that was cut off came to the end of this
		if err := o.load(ctx, in, backup, id); err != nil {
			return err
		}
	}
	epoch, err := o.db.end(ctx)
	if err != nil {
		return err
	}
	m, err := openMark(opts.Dir, generation{Identity: id, Place: o.db.place, Epoch: epoch}, opts.disk())
	if err != nil {
		return err
	}
	narrow(opts.Dir)
	if err := errors.Join(m.close(), os.Remove(o.path(restoringName))); err != nil {
		return err
	}
	return durable.SyncFolder(opts.Dir)
}

// restoring refuses to restore over a store, and notes in the data directory what is being done, with the identity that the store will have. A Restore that was cut off has left such a note.
func (o *opening) restoring(ctx context.Context) (identity, error) {
	id := newIdentity()
	before, err := os.ReadFile(o.path(restoringName))
	again := err == nil && len(before) == len(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	if again {
		copy(id[:], before)
	}
	if o.look != nil {
		if o.held, err = o.db.look(ctx, o.look); err != nil {
			return id, err
		}
	}
	if (o.held.format != "" || o.held.records) && (!again || o.held.identity != id) {
		return id, fmt.Errorf("%s is in use: a backup is restored into an empty one", o.db.where)
	}
	g, damaged, err := readMark(o.opts.Dir)
	if err != nil {
		return id, err
	}
	used := damaged != "" || g != nil && (!again || g.Identity != id)
	for _, suffix := range []string{logFileSuffix, spareSuffix} {
		numbers, _ := numberedFiles(o.path("log"), suffix) // there may be no folder
		used = used || len(numbers) > 0
	}
	if used {
		return id, fmt.Errorf("%s is the data directory of a store: move it away first", o.opts.Dir)
	}
	return id, durable.WriteFile(o.path(restoringName), id[:], 0o600)
}

// load brings everything to the database in one transaction, with what says what it is, when the journal is there.
func (o *opening) load(ctx context.Context, in *os.File, backup string, id identity) (err error) {
	tx, err := o.db.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	if err := o.db.hold(ctx, tx); err != nil {
		return err
	}
	putRow, err := tx.PrepareContext(ctx, o.db.text(putRowText))
	if err != nil {
		return err
	}
	defer putRow.Close()
	putBlock, err := tx.PrepareContext(ctx, o.db.text(putBlockText))
	if err != nil {
		return err
	}
	defer putBlock.Close()
	extents, refs := map[int64]int64{}, map[Ref]bool{}
	var sums summer
	m, err := readDump(in, func(r tableRow) error {
		if err := r.check(&sums); err != nil {
			return err
		}
		put := putRow
		if _, ok := r.(*blockRow); ok {
			put = putBlock
		}
		for _, ref := range r.refs() {
			if ref != (Ref{}) {
				extents[ref.Segment] = max(extents[ref.Segment], ref.Offset+entryHeader+ref.Length)
				refs[ref] = true
			}
		}
		_, err := put.ExecContext(ctx, r.values()...)
		return err
	})
	if err != nil {
		return err
	}
	if from := filepath.Join(backup, journalName); o.shared() {
		err = o.loadShared(ctx, tx, from, m, refs)
	} else {
		err = o.loadJournal(from, m, extents)
	}
	if err != nil {
		return err
	}
	if err := o.db.sign(ctx, tx, id, held{}); err != nil {
		return err
	}
	committed = true
	return tx.Commit()
}

// sameContent compares two files, of which the first is known.
func sameContent(path string, info os.FileInfo, other string) (bool, error) {
	second, err := os.Stat(other)
	if err != nil {
		return false, err
	}
	if os.SameFile(info, second) || info.Size() != second.Size() {
		return info.Size() == second.Size(), nil
	}
	a, err := os.ReadFile(path) // a segment
	if err != nil {
		return false, err
	}
	b, err := os.ReadFile(other)
	return bytes.Equal(a, b), err
}

// loadJournal gives the segments of a backup second names in the data directory, or copies them.
func (o *opening) loadJournal(from string, m manifest, extents map[int64]int64) error {
	if err := os.MkdirAll(o.path(journalName), 0o700); err != nil {
		return err
	}
	for n := range extents {
		want, known := m.segments[n]
		if !known {
			return fmt.Errorf("%w: the backup has no segment %d, which records refer to", ErrCorrupt, n)
		}
		if want < 0 {
			continue // it was missing before
		}
		name := filepath.Base((&journal{}).path(n))
		to := filepath.Join(o.path(journalName), name)
		there, err := os.Stat(to)
		if err == nil { // a Restore that was cut off, or something else
			same, err := sameContent(to, there, filepath.Join(from, name))
			if err != nil {
				return err
			}
			if same {
				continue
			}
			return fmt.Errorf("%s is there already, and is not the backup's: move it away first", to)
		}
		size, err := linkFile(filepath.Join(from, name), to)
		if err != nil {
			return err
		}
		if size != want {
			return fmt.Errorf("%w: segment %d of the backup has %d bytes instead of %d (-1: it is missing)", ErrCorrupt, n, size, want)
		}
	}
	return errors.Join(durable.SyncFolder(o.path(journalName)), durable.SyncFolder(o.opts.Dir))
}
