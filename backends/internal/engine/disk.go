package engine

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// diskPause is how long what waits for the disk waits before it is tried again.
const diskPause = time.Second

// diskError is about an adapter that could not be moved out of memory, because its file could not be written.
type diskError struct{ err error }

func (e diskError) Error() string { return e.err.Error() }
func (e diskError) Unwrap() error { return e.err }

// noRoom makes the failure to make room into an error of the contract. That of the disk passes, so what it is about is not decided (see isStuck); any other is want of memory.
func noRoom(what string, err error) *plugins.Error {
	var disk diskError
	if errors.As(err, &disk) {
		return &plugins.Error{Kind: plugins.KindUnavailable, Message: what + ": " + err.Error()}
	}
	return capacity(what, err)
}

// isStuck tells whether something could not be done because the disk takes no files of adapters now. On the device goroutine nothing else is KindUnavailable but that the engine closes.
func isStuck(err error) bool {
	return errors.Is(err, plugins.ErrUnavailable) && !errors.Is(err, errClosed)
}

// holdBack leaves the next operation of a run undecided, because the disk has no room for what would have to be moved out of memory: its turn comes again after a while. Nothing of it has been done. The caller holds mu.
func (e *Engine) holdBack(r *run) {
	r.held = time.Now().Add(e.diskPause)
	time.AfterFunc(e.diskPause, func() { e.call(func() {}) }) // has the device goroutine look
}

// diskTrouble is why an adapter could not be moved out, and when that was tried.
type diskTrouble struct {
	at  time.Time
	why string
}

// lately is how long a failure to move an adapter out is told after it was met, if no operation is held back for it: what samples is tried again by those who asked for it.
const lately = 5 * time.Second

// waitsForDisk tells why work waits for the disk, "" if it does not. The caller holds mu.
func (e *Engine) waitsForDisk(now time.Time) string {
	t := e.loaded.adapters.trouble.Load()
	if t == nil {
		return ""
	}
	if now.Sub(t.at) < lately {
		return t.why
	}
	for _, r := range e.order {
		if !r.held.IsZero() {
			return t.why
		}
	}
	return ""
}

// freeSpace is how many bytes a directory's file system has for us.
func freeSpace(directory string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(directory, &fs); err != nil {
		return 0, fmt.Errorf("look at %s: %w", directory, err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

// hasSpace refuses a file of so many bytes that would take what the file system must keep free.
func (m *residency) hasSpace(bytes int64) error {
	free, err := m.space(m.directory)
	if err != nil {
		return err
	}
	if free < m.reserve+bytes {
		return fmt.Errorf("%s of disk are free at %s, %s are needed and %s are kept for others: %w", mebibytes(free), m.directory, mebibytes(bytes), mebibytes(m.reserve), syscall.ENOSPC)
	}
	return nil
}
