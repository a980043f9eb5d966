package plugins

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/plugins/transfer"
)

// hostedFiles is the data directory of a backend that serves a gateway elsewhere:
//
//	received/NAME  checkpoints that were brought to be loaded, until they are
//	saved/NAME     checkpoints that were saved, until they are fetched
//	kept/SHA256    files that were brought, so that they need not be brought again; those used last, up to a bound
//	scratch        the backend's own, see LoadRequest
//
// Its methods may be called concurrently.
type hostedFiles struct {
	received, saved, kept, scratch string
	keep                           int64 // bytes of kept

	mu    sync.Mutex
	users map[string]int // of received directories: loads that are to come or run
}

// openHostedFiles makes the directory's folders, and empties those that hold nothing of use to another process.
func openHostedFiles(dir string, keep int64) (*hostedFiles, error) {
	f := &hostedFiles{
		received: filepath.Join(dir, "received"), saved: filepath.Join(dir, "saved"), kept: filepath.Join(dir, "kept"), scratch: filepath.Join(dir, "scratch"), keep: keep, users: map[string]int{},
	}
	if err := f.clear(); err != nil {
		return nil, err
	}
	for _, folder := range []string{f.kept, f.scratch} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// clear removes what was received and saved. Nothing uses it.
func (f *hostedFiles) clear() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.users)
	for _, folder := range []string{f.received, f.saved} {
		if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(folder, 0o700)); err != nil {
			return fmt.Errorf("clear %s: %w", folder, err)
		}
	}
	return nil
}

// saving is the path under which a checkpoint is saved.
func (f *hostedFiles) saving(name string) (string, error) {
	if err := transfer.CheckName(name); err != nil {
		return "", Invalidf("path", "%v", err)
	}
	return filepath.Join(f.saved, name), nil
}

// loading is the path of a checkpoint that was brought; release says that its load is over.
func (f *hostedFiles) loading(name string) (path string, release func(), err error) {
	if err := transfer.CheckName(name); err != nil {
		return "", nil, Invalidf("path", "%v", err)
	}
	path = filepath.Join(f.received, name)
	return path, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.users[name]--; f.users[name] > 0 {
			return
		}
		delete(f.users, name)
		if err := os.RemoveAll(path); err != nil {
			slog.Warn("a checkpoint that was loaded could not be removed", "path", path, "error", err)
		}
	}, nil
}

// incoming is a directory that is being brought.
type incoming struct {
	files    *hostedFiles
	name     string
	list     []transfer.File
	wanted   []int
	folder   string // with a temporary name
	receiver *transfer.Receiver
}

// begin takes a checked list and tells by wanted which files are to come: all that are not kept.
func (f *hostedFiles) begin(name string, list []transfer.File) (_ *incoming, err error) {
	in := &incoming{files: f, name: name, list: list}
	if in.folder, err = os.MkdirTemp(f.received, "."+name[:min(len(name), 32)]+".tmp-"); err != nil {
		return nil, err
	}
	for i, file := range list {
		if !f.reuse(file, filepath.Join(in.folder, file.Name)) {
			in.wanted = append(in.wanted, i)
		}
	}
	in.receiver = transfer.NewReceiver(in.folder, list, in.wanted)
	return in, nil
}

// reuse links a file that is kept to a path, if it still is what it was.
func (f *hostedFiles) reuse(file transfer.File, path string) bool {
	kept := filepath.Join(f.kept, hex.EncodeToString(file.SHA256[:]))
	got, err := transfer.Stat(kept)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil || got.Size != file.Size || !bytes.Equal(got.SHA256[:], file.SHA256[:]) {
		slog.Warn("a kept file is damaged and is brought again", "file", kept, "error", err)
		_ = os.Remove(kept) // it is not used in any case
		return false
	}
	now := time.Now()
	_ = os.Chtimes(kept, now, now) // the order in which files are given up is no promise
	return os.Link(kept, path) == nil
}

// finish gives the directory its name, for one load, and keeps its files.
func (in *incoming) finish() error {
	if err := in.receiver.Finished(); err != nil {
		return err
	}
	if err := transfer.SyncFolder(in.folder); err != nil {
		return err
	}
	f := in.files
	for _, i := range in.wanted {
		file := in.list[i]
		if err := os.Link(filepath.Join(in.folder, file.Name), filepath.Join(f.kept, hex.EncodeToString(file.SHA256[:]))); err != nil && !errors.Is(err, fs.ErrExist) {
			slog.Warn("a file is not kept", "file", file.Name, "error", err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users[in.name] == 0 { // else the same directory is there, by name and content: a name stands for both
		if err := os.Rename(in.folder, filepath.Join(f.received, in.name)); err != nil {
			return err
		}
	}
	f.users[in.name]++
	f.bound()
	return nil
}

// close removes what is unfinished.
func (in *incoming) close() {
	_ = in.receiver.Close()
	if err := os.RemoveAll(in.folder); err != nil {
		slog.Warn("what was not brought whole could not be removed", "path", in.folder, "error", err)
	}
}

// bound gives up the files that were used longest ago, beyond the bound. mu is held.
func (f *hostedFiles) bound() {
	entries, err := os.ReadDir(f.kept)
	if err != nil {
		slog.Warn("kept files cannot be counted", "error", err)
		return
	}
	type one struct {
		name string
		size int64
		used time.Time
	}
	var all []one
	var total int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			all = append(all, one{e.Name(), info.Size(), info.ModTime()})
			total += info.Size()
		}
	}
	slices.SortFunc(all, func(a, b one) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	for _, x := range all {
		if total <= f.keep {
			return
		}
		if err := os.Remove(filepath.Join(f.kept, x.name)); err != nil {
			slog.Warn("a kept file could not be removed", "file", x.name, "error", err)
			continue
		}
		total -= x.size
	}
}
