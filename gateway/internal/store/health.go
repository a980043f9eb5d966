package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// checkEvery is how often the writer looks at the disk, and tries again what failed.
const checkEvery = time.Second

// Trouble is why a store takes nothing new at present. errors.Is finds ErrUnavailable in it, and its cause.
type Trouble struct {
	State State
	cause error
}

// State names a kind of trouble, for programs that watch a server.
type State string

// The states of a store that is in trouble.
const (
	Full     State = "full"      // the disk has no room, or less than Options.Reserve
	ReadOnly State = "read-only" // the data directory cannot be written to
	Locked   State = "locked"    // another process holds the data directory or the database
	Failing  State = "failing"   // anything else: an input/output error, a database that cannot be reached
)

// NewTrouble is for stores around a store, of what else they need.
func NewTrouble(state State, cause error) *Trouble { return &Trouble{state, cause} }

// Error says what the state means and what was met.
func (t *Trouble) Error() string { return fmt.Sprintf("the store is %s: %v", t.State, t.cause) }

// Unwrap gives the cause.
func (t *Trouble) Unwrap() error { return t.cause }

// Is makes errors.Is(err, ErrUnavailable) true.
func (t *Trouble) Is(target error) bool { return target == ErrUnavailable }

// TroubleOf finds in an error of Open or Commit what may pass without a change of configuration: nil for every other error.
func TroubleOf(err error) *Trouble {
	var t *Trouble
	if errors.As(err, &t) {
		return t
	}
	if l := (*Loss)(nil); errors.As(err, &l) {
		return nil
	}
	for state, causes := range map[State][]error{
		Full:     {unix.ENOSPC, unix.EDQUOT, unix.EFBIG},
		ReadOnly: {unix.EROFS, unix.EACCES, unix.EPERM},
		Locked:   {ErrLocked},
		Failing:  {unix.EIO, unix.ESTALE, unix.EMFILE, unix.ENFILE},
	} {
		for _, c := range causes {
			if errors.Is(err, c) {
				return &Trouble{state, err}
			}
		}
	}
	if state := sqliteState(err); state != "" {
		return &Trouble{state, err}
	}
	return nil
}

// Err implements Store.
func (s *sqlStore) Err() error {
	for _, t := range []*Trouble{s.trouble.Load(), s.unreachable.Load(), s.broke.Load()} {
		if t != nil {
			return t
		}
	}
	return nil
}

// Room implements Store.
func (s *sqlStore) Room(bytes int64) error {
	if err := s.Err(); err != nil {
		return err
	}
	if t := s.room(bytes); t != nil {
		return t
	}
	return nil
}

// fail notes that nothing can be written, and lets go of everything whose state is unknown after that: the open segment, and the connection that writes. Called by
// the writer goroutine, as are the other methods below.
func (s *sqlStore) fail(err error) error {
	t := s.db.trouble(err)
	if t == nil {
		t = &Trouble{Failing, err}
	}
	s.broken = t
	s.trouble.Store(t)
	s.journal.abandon()
	s.log.abandon()
	s.db.writer.SetMaxIdleConns(0) // closes it: the next use opens another
	s.db.writer.SetMaxIdleConns(s.db.writers)
	s.answerFlushes(t)
	return t
}

// check looks whether there is room, and after a failure whether writing works again.
func (s *sqlStore) check(ctx context.Context) {
	if s.broken != nil && s.applying {
		return // what is being written to the database ends first
	}
	if t := s.unreachable.Load(); t != nil {
		_ = s.fail(t) // it is kept for Err
		return
	}
	if s.broken != nil {
		if err := s.probe(ctx); err != nil {
			_ = s.fail(err) // it is kept for Err
			return
		}
		s.broken = nil
	}
	s.trouble.Store(s.room(0))
}

// startWatching asks the database's server once a second whether it is there; what it gives ends that. The writer does not wait for the answer.
func (s *sqlStore) startWatching() (end func()) {
	if s.db.alive == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(checkEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			switch err := s.db.alive(ctx); {
			case ctx.Err() != nil:
			case err == nil:
				s.unreachable.Store(nil)
			default:
				t := s.db.trouble(err)
				if t == nil {
					t = &Trouble{Failing, err}
				}
				s.unreachable.Store(t)
				s.db.drop()
			}
		}
	}()
	return func() { cancel(); <-done }
}

// probe writes to the journal, the commit log and the database as a commit does.
func (s *sqlStore) probe(ctx context.Context) error {
	if err := s.db.reconnect(ctx); err != nil {
		return err
	}
	if _, err := s.journal.append(inStore, make([]byte, 4<<10)); err != nil {
		return err
	}
	if err := s.journal.sync(); err != nil {
		return err
	}
	if err := s.log.repair(); err != nil {
		return err
	}
	b := Batch{Put: []Record{{Collection: inStore, Key: "probe", Value: make([]byte, 4<<10)}}}
	if err := s.log.append(appendBatch(make([]byte, groupHeader), b)); err != nil {
		return err
	}
	s.show([]Batch{b})
	if err := s.freeze(); err != nil {
		return err
	}
	if err := s.apply(ctx, s.frozen); err != nil {
		return err
	}
	if err := s.settle(ctx, s.frozen.last); err != nil {
		return err
	}
	return s.thawed()
}

// room looks at the data directory without writing to it: whether there is room when bytes more are taken.
func (s *sqlStore) room(bytes int64) *Trouble {
	if s.files != "" {
		if t := roomIn(s.files, bytes, s.reserve); t != nil {
			return t
		}
		bytes = 0
	}
	for _, dir := range []string{s.dir, s.journal.folder(), s.log.folder()} {
		if dir == "" {
			continue
		}
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return &Trouble{ReadOnly, fmt.Errorf("%s cannot be written to: %w", dir, err)}
		}
	}
	return roomIn(s.dir, bytes, s.reserve)
}

// roomIn is room for the disk of one folder.
func roomIn(dir string, bytes, reserve int64) *Trouble {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return &Trouble{Failing, fmt.Errorf("look at %s: %w", dir, err)}
	}
	if fs.Flags&unix.ST_RDONLY != 0 {
		return &Trouble{ReadOnly, fmt.Errorf("the file system of %s is mounted read-only", dir)}
	}
	if free := int64(fs.Bavail) * fs.Bsize; free-bytes < reserve {
		needed := ""
		if bytes > 0 {
			needed = fmt.Sprintf(", and %d MiB are needed", (bytes+1<<20-1)>>20)
		}
		return &Trouble{Full, fmt.Errorf("%d MiB are free in %s%s; the last %d MiB are kept for the results of accepted work", free>>20, dir, needed, reserve>>20)}
	}
	return nil
}
