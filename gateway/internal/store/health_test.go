package store

import (
	"bytes"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// troubles makes a commit fail in different ways; cause does it and gives what undoes it.
var troubles = []struct {
	name  string
	state State
	cause func(t *testing.T, s *sqlStore, dir string) (undo func())
}{
	{"a limit on the size of files", Full, func(t *testing.T, _ *sqlStore, _ string) func() {
		signal.Ignore(syscall.SIGXFSZ)
		var before unix.Rlimit
		check(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &before))
		check(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 20, Max: before.Max}))
		return func() { check(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &before)); signal.Reset(syscall.SIGXFSZ) }
	}},
	{"no room", Full, func(t *testing.T, _ *sqlStore, dir string) func() {
		ballast := filepath.Join(dir, "ballast")
		f, err := os.Create(ballast)
		check(t, err)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		f.Close()
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("filling the disk: %v", err)
		}
		return func() { check(t, os.Remove(ballast)) }
	}},
	{"another process holds the database", Locked, func(t *testing.T, s *sqlStore, dir string) func() {
		other, err := openSQLite(t.Context(), filepath.Join(dir, "tinsmith.db"))
		check(t, err)
		_, err = other.writer.Exec("BEGIN IMMEDIATE")
		check(t, err)
		_, err = s.db.writer.Exec("PRAGMA busy_timeout = 1")
		check(t, err)
		return func() { check(t, other.close()) }
	}},
	{"a broken descriptor", Failing, func(t *testing.T, s *sqlStore, _ string) func() {
		for _, segment := range segments(s).open { // nobody writes between two commits
			check(t, segment.file.Close())
		}
		return func() {}
	}},
}

// TestTrouble takes a store through failures of every kind: it refuses, says why, and goes on by itself; nothing that was committed is lost.
func TestTrouble(t *testing.T) {
	for _, c := range troubles {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.name == "no room" {
				if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
					t.Skipf("a small file system cannot be mounted here: %v", err)
				}
				defer func() { check(t, unix.Unmount(dir, 0)) }()
			}
			opened, err := Open(t.Context(), Options{Dir: dir, Reserve: -1, InlineBytes: 100})
			check(t, err)
			s := opened.(*sqlStore)
			value, payload := bytes.Repeat([]byte("v"), 5000), bytes.Repeat([]byte("p"), 5000)
			before := Batch{Put: []Record{{Collection: "a", Key: "1", Value: value, Payload: payload}}}
			check(t, s.Commit(t.Context(), before))
			undo := c.cause(t, s, dir)
			after := Batch{Put: []Record{{Collection: "a", Key: "2", Value: value, Payload: payload}}}
			if c.state == Locked { // commits go on until the database is needed
				check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "3", Value: value, Payload: payload}}}))
				awaitState(t, s, Locked)
			}
			err = s.Commit(t.Context(), after)
			var trouble *Trouble
			if !errors.Is(err, ErrUnavailable) || !errors.As(err, &trouble) || trouble.State != c.state {
				t.Errorf("the commit says %v, want that the store is %s", err, c.state)
			}
			if err := s.Err(); c.state != Failing && (!errors.As(err, &trouble) || trouble.State != c.state) { // a new descriptor may be there already
				t.Errorf("Err is %v, want that the store is %s", err, c.state)
			}
			undo()
			awaitState(t, s, "")
			check(t, s.Commit(t.Context(), after))
			check(t, s.Close())
			again, err := Open(t.Context(), Options{Dir: dir, Reserve: -1, InlineBytes: 100})
			check(t, err)
			defer again.Close()
			keys := []string{"1", "2"}
			if c.state == Locked {
				keys = append(keys, "3")
			}
			for _, key := range keys {
				r, err := again.Get(t.Context(), "a", key)
				check(t, err)
				p, err := again.Payload(t.Context(), r)
				if check(t, err); !bytes.Equal(r.Value, value) || !bytes.Equal(p, payload) {
					t.Errorf("record %s came back different", key)
				}
			}
		})
	}
}

// What is kept free is for what was accepted before: new work is refused while commits still succeed.
func TestReserve(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), Reserve: 1 << 60})
	check(t, err)
	defer s.Close()
	check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "1"}}}))
	if trouble := TroubleOf(s.Err()); trouble == nil || trouble.State != Full {
		t.Errorf("Err is %v, want that the store is full", s.Err())
	}
}

// Room is for what others write beside the store.
func TestRoom(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), Reserve: 1 << 20})
	check(t, err)
	defer s.Close()
	check(t, s.Room(1))
	if trouble := TroubleOf(s.Room(1 << 60)); trouble == nil || trouble.State != Full || !strings.Contains(trouble.Error(), "are needed; the last 1 MiB") {
		t.Errorf("Room is %v, want that the store is full", trouble)
	}
	check(t, s.Err())
}

// What keeps a store from being opened is told apart from what waiting does not change.
func TestTroubleInOpening(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), Options{Dir: dir})
	check(t, err)
	if _, err := Open(t.Context(), Options{Dir: dir}); TroubleOf(err) == nil || TroubleOf(err).State != Locked {
		t.Errorf("a second store: %v", err)
	}
	check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "store", Key: "format", Value: []byte("0")}}}))
	check(t, s.Close())
	if _, err := Open(t.Context(), Options{Dir: dir}); !errors.Is(err, ErrFormat) || TroubleOf(err) != nil {
		t.Errorf("another format: %v", err)
	}
}

// awaitState waits until a store says that it is in a state, "" for none.
func awaitState(t *testing.T, s Store, want State) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if trouble := TroubleOf(s.Err()); trouble == nil && want == "" || trouble != nil && trouble.State == want {
			return
		}
	}
	t.Fatalf("Err is %v, want the state %q", s.Err(), want)
}

// A directory in which no file can be made is noticed before one is needed.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), Options{Dir: dir, Reserve: -1})
	check(t, err)
	defer s.Close()
	for _, folder := range []string{dir, filepath.Join(dir, "journal")} {
		undo := protect(t, folder)
		awaitState(t, s, ReadOnly)
		undo()
		awaitState(t, s, "")
	}
}

// protect makes a folder read-only. What holds back others does not hold back root, for whom it is made immutable.
func protect(t *testing.T, dir string) (undo func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		check(t, os.Chmod(dir, 0o500))
		return func() { check(t, os.Chmod(dir, 0o700)) }
	}
	f, err := os.Open(dir)
	check(t, err)
	defer f.Close()
	const immutable = 0x10 // FS_IMMUTABLE_FL
	set := func(flags int) error { return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags) }
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = set(flags | immutable)
	}
	if err != nil {
		t.Skipf("root, and folders cannot be made immutable here: %v", err)
	}
	return func() {
		g, err := os.Open(dir)
		check(t, err)
		defer g.Close()
		check(t, unix.IoctlSetPointerInt(int(g.Fd()), unix.FS_IOC_SETFLAGS, flags))
	}
}
