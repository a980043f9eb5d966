package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// accept takes the state as it is. What is changed or not used any more is kept in a folder; a crash on the way leaves a state that is a Loss again.
func (o *opening) accept(ctx context.Context) error {
	folder, err := newFolder(o.opts.Dir, "lost-"+time.Now().UTC().Format("20060102T150405Z"))
	if err != nil {
		return err
	}
	slog.WarnContext(ctx, "what is left of the store is accepted", "missing", o.loss.Error(), "aside", folder)
	o.aside = folder
	if _, err := copyFile(o.path(markName), filepath.Join(folder, markName)); err != nil {
		return err
	}
	if o.sqlite() {
		if err := o.acceptSQLite(ctx); err != nil {
			return err
		}
	}
	if errors.Is(o.loss.Kind, ErrForeign) { // the log's changes are of another store
		if err := o.setAsideLog(); err != nil {
			return err
		}
		o.log = nil
	}
	o.fresh, o.before = true, nil
	kind, findings := o.loss.Kind, o.loss.Findings
	if o.log == nil { // it was not reached
		if err := o.judgeLog(ctx); err != nil {
			return err
		}
	}
	o.loss.Kind, o.loss.Findings = kind, findings // the log is taken as far as it goes
	if l, ok := o.log.(*commitLog); ok {
		l.remove, l.spares = o.setAside, nil
	}
	return nil
}

// setAsideLog moves all files of the commit log.
func (o *opening) setAsideLog() error {
	for _, suffix := range []string{logFileSuffix, spareSuffix} {
		files, err := filepath.Glob(filepath.Join(o.opts.Dir, "log", "*"+suffix))
		if err != nil {
			return err
		}
		for _, path := range files {
			if err := o.setAside(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// setAside moves a file of one of the store's folders.
func (o *opening) setAside(path string) error {
	to := filepath.Join(o.aside, filepath.Base(filepath.Dir(path)))
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	return os.Rename(path, filepath.Join(to, filepath.Base(path)))
}

// acceptSQLite keeps a copy of the database, and makes of a damaged one a new one with what can be read.
func (o *opening) acceptSQLite(ctx context.Context) error {
	if err := o.disconnect(); err != nil {
		return err
	}
	names := []string{databaseName, databaseName + "-wal", databaseName + "-shm"}
	there := false
	for _, name := range names {
		copied, err := copyFile(o.path(name), filepath.Join(o.aside, name))
		if err != nil {
			return err
		}
		there = there || copied && name == databaseName
	}
	if err := durable.SyncFolder(o.aside); err != nil {
		return err
	}
	if !o.damaged {
		return nil
	}
	made := o.path("." + databaseName + "-new")
	remove := func(base string) error {
		for _, name := range []string{base, base + "-wal", base + "-shm"} {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	}
	if err := remove(made); err != nil {
		return err
	}
	if there {
		o.held = held{}
		if err := o.salvage(ctx, filepath.Join(o.aside, databaseName), made); err != nil {
			return err
		}
	}
	if err := remove(o.path(databaseName)); err != nil { // the copy is durable
		return err
	}
	if there {
		if err := os.Rename(made, o.path(databaseName)); err != nil {
			return err
		}
	}
	if err := durable.SyncFolder(o.opts.Dir); err != nil {
		return err
	}
	o.log = nil // it begins where the new database ends
	return nil
}

// accepted moves aside what the store does not use any more: the commit log's files, and segments that nothing refers to.
func (o *opening) accepted(ctx context.Context, s *sqlStore) error {
	keep, err := s.usedSegments(ctx)
	if err != nil {
		return err
	}
	var numbers []int64
	files, ok := s.journal.(*journal)
	if ok {
		if numbers, err = files.segments(); err != nil {
			return err
		}
	}
	var move []string
	if _, err := os.Stat(o.path(restoringName)); err == nil {
		if err := os.Rename(o.path(restoringName), filepath.Join(o.aside, restoringName)); err != nil {
			return err
		}
	}
	for _, n := range numbers {
		if !keep[n] {
			move = append(move, files.path(n))
		}
	}
	for _, path := range move {
		if err := o.setAside(path); err != nil {
			return err
		}
	}
	if err := o.setAsideLog(); err != nil {
		return err
	}
	switch l := s.log.(type) {
	case *commitLog:
		l.older, l.remove = nil, l.spare
	case *sharedLog:
		if err := l.setAside(ctx); err != nil {
			return err
		}
	}
	slog.WarnContext(ctx, "the store goes on with what is left", "identity", s.mark.identity.String(), "changes", s.inDatabase, "aside", o.aside)
	return nil
}

// newFolder makes a folder that is not there yet.
func newFolder(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	for i := 2; ; i++ {
		err := os.Mkdir(path, 0o700)
		if err == nil {
			return path, durable.SyncFolder(dir)
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		path = filepath.Join(dir, fmt.Sprintf("%s-%d", name, i))
	}
}

// copyFile makes a durable copy of a file, if it is there. The copy is whole when it has its name; that name becomes durable with the folder.
func copyFile(from, to string) (copied bool, err error) {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer in.Close()
	partial := filepath.Join(filepath.Dir(to), "."+filepath.Base(to))
	out, err := os.OpenFile(partial, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return false, err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(partial, to)
	}
	return true, err
}

// salvage makes a new database of the rows of a damaged one that can be read and have their checksums. It looks for them by their numbers in the tables, which needs no index, and
// goes round places that cannot be read.
func (o *opening) salvage(ctx context.Context, from, to string) (err error) {
	d, err := openSQLite(ctx, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.prepare(ctx); err != nil {
		return err
	}
	look, err := readSQLite(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, look.Close()) }()
	tx, err := d.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	kept, lost := 0, 0
	var sums summer
	for _, table := range []struct {
		name, columns, put string
		make               func() tableRow
	}{
		{"tinsmith_records", rowColumns, putRowText, func() tableRow { return &recordRow{} }},
		{"tinsmith_blocks", blockColumns, putBlockText, func() tableRow { return &blockRow{} }},
	} {
		err := rowsByNumber(ctx, look, table.name, table.columns, table.make, func(r tableRow, err error) error {
			if err == nil {
				err = r.check(&sums)
			}
			if err == nil {
				// A row that an index knew twice is there once.
				_, err = tx.ExecContext(ctx, strings.Replace(table.put, "INSERT", "INSERT OR IGNORE", 1), r.values()...)
				if err != nil {
					return err
				}
				kept++
				return nil
			}
			lost++
			o.damage = append(o.damage, Finding{Where: o.db.where, What: "not taken over: " + err.Error()})
			return nil
		})
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if o.held, err = d.look(ctx, d.writer); err != nil {
		return err
	}
	o.held.identity, o.held.definitions = identity{}, 0
	slog.WarnContext(ctx, "the rows of the damaged database that can be read are in a new one", "rows", kept, "unreadable", lost)
	return nil
}

// rowsByNumber yields the rows of a table in the order of their numbers, or an error for places that cannot be read.
func rowsByNumber(ctx context.Context, look querier, table, columns string, make func() tableRow, yield func(tableRow, error) error) error {
	const step = 256
	next := int64(0)
	for skip := int64(1); ; {
		last := next
		found := 0
		rows, err := look.QueryContext(ctx, "SELECT rowid, "+columns+" FROM "+table+" NOT INDEXED WHERE rowid >= ? ORDER BY rowid LIMIT ?", next, step)
		for err == nil && rows.Next() {
			r := make()
			if err = rows.Scan(append([]any{&last}, r.columns()...)...); err != nil {
				err = yield(nil, unreadable(err))
				last++ // not read, or read twice at worst
			} else {
				err = yield(r, nil)
			}
			if err != nil {
				return errors.Join(err, rows.Close())
			}
			found++
		}
		if rows != nil {
			err = errors.Join(err, rows.Err(), rows.Close())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case err != nil && !damagedDatabase(err):
			if strings.Contains(err.Error(), "no such table") || strings.Contains(err.Error(), "no such column") {
				return yield(nil, err)
			}
			return err
		case err != nil:
			if found == 0 { // further on there may be more: ever longer steps, which end with the numbers
				if skip == 1 {
					if err := yield(nil, fmt.Errorf("table %s from row %d on: %w", table, next, err)); err != nil {
						return err
					}
				}
				if next+skip < next || skip > 1<<40 {
					return nil
				}
				next, skip = next+skip, skip*2
				continue
			}
			next, skip = last+1, 1
		case found == 0:
			return nil
		default:
			next, skip = last+1, 1
		}
	}
}
