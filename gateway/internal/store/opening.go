package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// opening is what is known of a store before anything of it is changed.
type opening struct {
	opts    Options
	db      database // of PostgreSQL; SQLite's is opened for writing when nothing is missing
	look    *sql.DB  // reads; nil while there is no SQLite database
	before  *generation
	held    held
	log     groupLog
	changes *pending // what the log has and the database has not
	fresh   bool     // it gets a new identity
	loss    Loss
	damage  []Finding // that is no loss
	damaged bool      // the database cannot be used as it is
	aside   string    // the folder for what is not used any more, after accept
}

const databaseName = "tinsmith.db"

func (o *opening) path(name string) string { return filepath.Join(o.opts.Dir, name) }

// sqlite tells whether the database is a file of the data directory.
func (o *opening) sqlite() bool { return o.opts.PostgresURL == "" }

// connect opens what reads the database, without changing it.
func (o *opening) connect(ctx context.Context) (err error) {
	if !o.sqlite() {
		if o.db, err = openPostgres(ctx, o.opts.PostgresURL, o.opts.Lease); err == nil {
			o.look = o.db.reader
		}
		return err
	}
	o.db = sqliteDatabase()
	if info, err := os.Stat(o.path(databaseName)); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	o.look, err = readSQLite(o.path(databaseName))
	return err
}

// disconnect closes what connect opened for reading alone.
func (o *opening) disconnect() error {
	if !o.sqlite() || o.look == nil {
		return nil
	}
	look := o.look
	o.look = nil
	return look.Close()
}

func (o *opening) lost(where, format string, args ...any) {
	o.loss.Kind = ErrLost
	o.loss.Findings = append(o.loss.Findings, Finding{Where: where, What: fmt.Sprintf(format, args...)})
}

func (o *opening) foreign(where, format string, args ...any) {
	o.loss.Kind = ErrForeign
	o.loss.Findings = append(o.loss.Findings, Finding{Where: where, What: fmt.Sprintf(format, args...)})
}

// judge finds out whether anything is missing; then o.loss has findings. The error is for what could not be found out.
func (o *opening) judge(ctx context.Context) error {
	if _, err := os.Stat(o.path(restoringName)); err == nil {
		o.lost(restoringName, "a backup was being restored into this directory, and that was not finished: restore it again")
		return nil
	}
	before, damaged, err := readMark(o.opts.Dir)
	if err != nil {
		return err
	}
	if o.before = before; damaged != "" {
		what := damaged + "; it is made again"
		if before == nil {
			what = damaged + "; it is made again, and what the database and the commit log should have is not known"
		}
		o.damage = append(o.damage, Finding{markName, what, true})
	}
	if o.look != nil {
		if o.held, err = o.db.look(ctx, o.look); err != nil && !damagedDatabase(err) {
			return err
		}
	}
	if err != nil {
		o.lost(o.db.where, "%v", err)
		o.loss.cause, o.damaged = err, true
		return nil //nolint:nilerr // it is told as a loss
	}
	if err := o.judgeFormat(); err != nil {
		return err
	}
	if err := o.judgeIdentity(); err != nil || o.loss.Kind != nil {
		return err
	}
	return o.judgeLog(ctx)
}

// judgeFormat refuses what this program, or this configuration of it, does not read.
func (o *opening) judgeFormat() error {
	f, ours := o.held.format, o.db.format()
	switch {
	case f == "" || f == ours || !o.shared() && olderFormat(f):
		return nil
	case f == sharedFormat:
		return fmt.Errorf("%w: %s is one that gateways share, with `files` in their configuration", ErrFormat, o.db.where)
	case o.shared() && (f == formatVersion || olderFormat(f)):
		return fmt.Errorf("%w: %s belongs to a gateway whose journal is in its data directory; `tinsmith backup` there and `tinsmith restore` into an empty schema, with `files` in the configuration, is the way to one that is shared", ErrFormat, o.db.where)
	}
	return fmt.Errorf("%w: it has format %q, this program reads %q", ErrFormat, f, ours)
}

// shared tells whether nothing but the generation mark is in the data directory.
func (o *opening) shared() bool { return o.opts.Lease != nil }

// judgeIdentity compares the database with the mark and with what else is in the directory.
func (o *opening) judgeIdentity() error {
	journal, err := exists(o.path(journalName))
	if err != nil {
		return err
	}
	used, err := o.used()
	if err != nil {
		return err
	}
	g, h := o.before, o.held
	switch {
	case g == nil && h.format == "" && h.records:
		o.lost(o.db.where, "it has records, but not those that say what it is")
	case g == nil && h.format == "" && used != "":
		beside, err := exists(o.path(databaseName))
		switch {
		case err != nil:
			return err
		case beside && !o.sqlite():
			o.foreign(o.db.where, "it is empty, and the data directory has %s, of a store in %s", used, databaseName)
		default:
			o.lost(o.db.where, "it is missing or empty, and the data directory has %s", used)
		}
	case g == nil && h.format == "":
		o.fresh = true
	case g == nil && o.shared(): // another gateway has used it so far
	case g == nil && !journal:
		o.foreign(o.db.where, "it has records, and the data directory has none of the files that belong to it")
	case g == nil && h.identity == identity{}: // of an older format
		o.fresh = true
	case g == nil:
		if len(o.damage) == 0 {
			o.damage = append(o.damage, Finding{markName, "it is missing, and is made again; what the database and the commit log should have is not known", true})
		}
	case h.format == "" && g.Place != o.db.place:
		o.foreign(o.db.where, "it is empty, and the data directory belongs to %s", g.Place)
	case h.format == "":
		o.lost(o.db.where, "it is missing or empty; it had %d changes", g.Applied)
	case h.identity == identity{}:
		o.lost(o.db.where, "it is of an older format (%s) than the data directory: it is an older copy", h.format)
	case h.identity != g.Identity && o.shared(): // a backup was restored, or a loss accepted, with another gateway
		slog.Warn("the database was restored or recovered since this gateway has used it", "identity", h.identity.String(), "before", g.Identity.String())
		o.before = nil
		return nil
	case h.identity != g.Identity && g.Place != o.db.place:
		o.foreign(o.db.where, "it is the database of another store (%v); the data directory belongs to %s (%v)", h.identity, g.Place, g.Identity)
	case h.identity != g.Identity:
		o.foreign(o.db.where, "it is the database of another store (%v) than the data directory's (%v), or a copy from before `tinsmith recover` or `tinsmith restore`", h.identity, g.Identity)
	}
	if g == nil || o.missing() {
		return nil
	}
	if h.applied < g.Applied {
		o.lost(o.db.where, "it ends at change %d, and had change %d: it is an older copy, or its write-ahead log was lost or damaged%s", h.applied, g.Applied, o.walDamage())
	}
	if h.epoch < g.Epoch {
		o.lost(o.db.where, "the file is an older copy: its write-ahead log was copied into it %d times, and into the newest %d times", h.epoch, g.Epoch)
	}
	return nil
}

// judgeLog reads the commit log.
func (o *opening) judgeLog(ctx context.Context) (err error) {
	o.changes = newPending(0)
	take := func(content []byte) error {
		batches, err := decodeBatches(content)
		if err != nil {
			return err
		}
		for _, b := range batches {
			o.changes.take(b)
		}
		return nil
	}
	var tails []Finding
	if o.shared() {
		var l *sharedLog
		if l, err = openSharedLog(ctx, o.db, o.opts.Lease, o.held.applied, take); l != nil {
			o.log = l
		}
	} else {
		var l *commitLog
		if l, err = openCommitLog(o.path("log"), o.held.applied, o.opts.disk(), take); l != nil {
			o.log, tails = l, l.tails
		}
	}
	if errors.Is(err, ErrCorrupt) {
		o.lost("log", "%v", err)
		o.loss.cause, err = err, nil
	}
	if err != nil {
		return err
	}
	last := o.log.newest()
	o.changes.last = last
	for _, tail := range tails {
		slog.Warn("the end of the commit log", "file", tail.Where, "found", tail.What)
	}
	if o.before != nil && last < o.before.Last && o.loss.Kind == nil {
		o.lost("log", "the commit log ends at change %d, and change %d was acknowledged: a file is missing, an older copy, cut or damaged%s", last, o.before.Last, tailWords(tails))
	}
	return nil
}

func tailWords(tails []Finding) string {
	out := ""
	for _, t := range tails {
		out += " (" + t.String() + ")"
	}
	return out
}

// missing tells whether a loss was found.
func (o *opening) missing() bool { return o.loss.Kind != nil }

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// used names something that shows that the directory was in use, or "".
func (o *opening) used() (string, error) {
	for _, folder := range []struct{ name, suffix string }{{"journal", segmentSuffix}, {"log", logFileSuffix}, {"log", spareSuffix}} {
		numbers, err := numberedFiles(o.path(folder.name), folder.suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if len(numbers) > 0 {
			return fmt.Sprintf("%d files %s/*%s", len(numbers), folder.name, folder.suffix), nil
		}
	}
	if beside, err := os.Stat(o.path(databaseName)); !o.sqlite() && err == nil && beside.Size() > 0 {
		return databaseName, nil
	}
	return "", nil
}

// walDamage describes where SQLite's log ends too early, for the error alone.
func (o *opening) walDamage() string {
	if !o.sqlite() {
		return ""
	}
	what, err := walEnd(o.path(databaseName) + "-wal")
	if err != nil || what == "" {
		return ""
	}
	return " (" + databaseName + "-wal: " + what + ")"
}

// damagedDatabase tells the errors of a damaged database from those that may pass.
func damagedDatabase(err error) bool {
	var e *sqlite.Error
	if errors.As(err, &e) {
		code := e.Code() & 0xff
		return code == sqlite3.SQLITE_CORRUPT || code == sqlite3.SQLITE_NOTADB
	}
	return errors.Is(err, ErrCorrupt)
}
