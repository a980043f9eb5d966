package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// formatVersion is raised whenever older programs could misread what newer ones wrote, or the other way round.
const formatVersion = "6"

// olderFormats are those that open makes of the newest format.
var olderFormats = []string{"1", "2", "3", "4", "5"}

// Options say where the state lies.
type Options struct {
	Dir          string   // the data directory: lock, journal, commit log, and the database file with SQLite; made if absent
	PostgresURL  string   // a connection string: records go to PostgreSQL; "" = SQLite
	SegmentBytes int64    // size of a journal segment; 0 = 64 MiB
	Reserve      int64    // bytes of the disk that new work leaves free, see Store.Err; 0 = 64 MiB, negative = none
	InlineBytes  int      // payloads up to this size stay with their records, which saves a sync; 0 = 8 KiB
	Lease        *Lease   // of the database of PostgresURL, in which everything is then (shared.go); it must outlive the store. nil = the data directory has journal and commit log, and is nobody else's
	Files        string   // a folder of files that others write for what is stored: Err and Room look at its disk too; "" = they are in Dir
	Lock         *DirLock // of Dir, by the caller, who lets go of it after Close; nil = the store takes it
	Accept       bool     // take what is left after a Loss, see there
	Disk         Disk     // nil = the operating system's; for tests that cut the power

	applyAfter time.Duration // tests only: how long changes stay out of the database
}

// Open locks the data directory and opens the store in it. ErrLocked if another process has it, ErrFormat if its format is not ours, a *Loss if it is known to have held more than is left
// of it, or belongs to another database. Nothing is changed or removed then.
func Open(ctx context.Context, opts Options) (Store, error) {
	if opts.SegmentBytes == 0 {
		opts.SegmentBytes = 64 << 20
	}
	if opts.Reserve == 0 {
		opts.Reserve = 64 << 20
	}
	if opts.InlineBytes == 0 {
		opts.InlineBytes = 8 << 10
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	var lock *DirLock
	if opts.Lock == nil {
		var err error
		if lock, err = LockDir(opts.Dir); err != nil {
			return nil, err
		}
	}
	s, err := open(ctx, opts)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s.lock = lock
	go s.write()
	s.verify, s.watching = s.startVerifying(), s.startWatching()
	return s, nil
}

// open looks at everything before it changes anything.
func open(ctx context.Context, opts Options) (s *sqlStore, err error) {
	if opts.Lease != nil && opts.PostgresURL == "" {
		return nil, errors.New("a store with a lease needs a PostgreSQL database")
	}
	o := &opening{opts: opts}
	if err := o.connect(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if !o.sqlite() && interrupted(err) && TroubleOf(err) == nil {
			err = &Trouble{Failing, err}
		}
		err = errors.Join(err, o.disconnect())
		if err != nil && o.db.close != nil {
			err = errors.Join(err, o.db.close())
		}
	}()
	if err := o.judge(ctx); err != nil {
		return nil, err
	}
	if err := o.verify(ctx); err != nil {
		return nil, err
	}
	if o.loss.Kind != nil {
		if !opts.Accept {
			return nil, &o.loss
		}
		if err := o.accept(ctx); err != nil {
			return nil, fmt.Errorf("accept what is left: %w", err)
		}
	}
	narrow(opts.Dir)
	if o.sqlite() {
		if o.db, err = openSQLite(ctx, o.path(databaseName)); err != nil {
			return nil, err
		}
	}
	if s, err = newSQLStore(ctx, o.db, o); err != nil {
		return nil, err
	}
	if o.loss.Kind != nil {
		err = o.accepted(ctx, s)
	}
	return s, err
}

// DirLock keeps a data directory from other processes.
type DirLock struct{ file *os.File }

// Close lets go of the directory. Of a nil lock it does nothing.
func (l *DirLock) Close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

// LockDir holds a data directory, which must exist, until the lock is closed or the process ends. ErrLocked if another has it.
func LockDir(dir string) (*DirLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: %s", ErrLocked, dir)
		}
		return nil, errors.Join(err, f.Close())
	}
	return &DirLock{f}, nil
}
