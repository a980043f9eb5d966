package simulation

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// disk is the disk of one server. It knows what of the journal and of the commit log a power cut would leave: of every file what was synced, and of the rest anything or nothing, in its sectors; of every
// folder the names that were synced, and of changes since each by itself. What SQLite has committed was synced by it, so that its files are taken as they are, with perhaps a piece of what it would have
// written next. Files of checkpoints are synced by who writes them.
type disk struct {
	w   *world
	of  *server
	dir string

	mu      sync.Mutex
	content map[uint64][]byte            // what was synced, by inode: a file of the commit log changes its name
	names   map[string]map[string]uint64 // by folder: the inodes of the names that were synced
}

// folders are those of the journal and of the commit log.
var folders = []string{"journal", "log"}

// mark is the store's generation mark, which is written over in its place.
const mark = "generation"

func newDisk(w *world, of *server, dir string) *disk {
	d := &disk{w: w, of: of, dir: dir, content: map[uint64][]byte{}, names: map[string]map[string]uint64{}}
	for _, folder := range folders {
		d.names[folder] = list(filepath.Join(dir, folder))
		for name, inode := range d.names[folder] {
			d.content[inode] = must(os.ReadFile(filepath.Join(dir, folder, name)))
		}
	}
	if info, err := os.Stat(filepath.Join(dir, mark)); err == nil {
		d.content[info.Sys().(*syscall.Stat_t).Ino] = must(os.ReadFile(filepath.Join(dir, mark)))
	}
	return d
}

// list gives the files of a folder, which may not be there.
func list(dir string) map[string]uint64 {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		panic(err)
	}
	names := map[string]uint64{}
	for _, e := range entries {
		names[e.Name()] = must(e.Info()).Sys().(*syscall.Stat_t).Ino
	}
	return names
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// SyncFile implements store.Disk.
func (d *disk) SyncFile(f *os.File) error {
	name := must(filepath.Rel(d.dir, f.Name()))
	switch d.w.park(parked{place: syncing, key: name, of: d.of}) {
	case gone:
		return nil // nobody will read what this server still writes
	case fail:
		return fmt.Errorf("%w, as the simulation wants it", unix.EIO)
	}
	if d.w.planted(faultNoSync, name) {
		return nil
	}
	info := must(f.Stat())
	content := must(os.ReadFile(f.Name()))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.content[info.Sys().(*syscall.Stat_t).Ino] = content
	return nil
}

// SyncFolder implements store.Disk.
func (d *disk) SyncFolder(dir string) error {
	name := must(filepath.Rel(d.dir, dir))
	switch d.w.park(parked{place: syncing, key: name, of: d.of}) {
	case gone:
		return nil
	case fail:
		return fmt.Errorf("%w, as the simulation wants it", unix.EIO)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[name] = list(dir)
	return nil
}

// copyTo makes a folder of what is left when the server ends now: all that was written, or after a power cut what the disk has of it.
func (d *disk) copyTo(to string, power bool, random *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range must(os.ReadDir(d.dir)) {
		from, target := filepath.Join(d.dir, e.Name()), filepath.Join(to, e.Name())
		switch {
		case slices.Contains(folders, e.Name()):
			mustBe(os.MkdirAll(target, 0o700))
			d.copyFolder(e.Name(), target, power, random)
		case e.IsDir():
			linkTree(from, target)
		case e.Name() == "lock" || strings.HasSuffix(e.Name(), "-shm"): // another process's; made anew
		default:
			content := must(os.ReadFile(from))
			if synced, known := d.content[must(e.Info()).Sys().(*syscall.Stat_t).Ino]; power && known && e.Name() == mark {
				content = torn(synced, content, random)
			}
			if power && strings.HasSuffix(e.Name(), "-wal") && len(content) > 0 && random.IntN(3) == 0 {
				content = append(content, noise(random, random.IntN(9000))...)
			}
			mustBe(os.WriteFile(target, content, 0o600))
		}
	}
}

func mustBe(err error) {
	if err != nil {
		panic(err)
	}
}

// noise is what may be in sectors that were never written: nothing or anything.
func noise(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	if random.IntN(2) == 0 {
		for i := range b {
			b[i] = byte(random.Uint32())
		}
	}
	return b
}

// copyFolder copies one of the two folders.
func (d *disk) copyFolder(folder, to string, power bool, random *rand.Rand) {
	now := list(filepath.Join(d.dir, folder))
	if !power {
		for name := range now {
			mustBe(os.WriteFile(filepath.Join(to, name), must(os.ReadFile(filepath.Join(d.dir, folder, name))), 0o600))
		}
		return
	}
	was := d.names[folder]
	by := map[uint64][2]string{} // inode → name that was synced, name now
	for name, inode := range was {
		by[inode] = [2]string{name, ""}
	}
	for name, inode := range now {
		by[inode] = [2]string{by[inode][0], name}
	}
	inodes := make([]uint64, 0, len(by))
	for inode := range by {
		inodes = append(inodes, inode)
	}
	slices.SortFunc(inodes, func(a, b uint64) int { return strings.Compare(by[a][0]+"\n"+by[a][1], by[b][0]+"\n"+by[b][1]) })
	for _, inode := range inodes {
		names := by[inode]
		name := names[1]
		if names[0] != names[1] && random.IntN(2) == 0 {
			name = names[0]
		}
		synced := d.content[inode]
		content := synced
		if names[1] != "" {
			content = torn(synced, must(os.ReadFile(filepath.Join(d.dir, folder, names[1]))), random)
		}
		if name != "" {
			mustBe(os.WriteFile(filepath.Join(to, name), content, 0o600))
		}
	}
}

// torn gives a file that had one content when it was synced, and another now, as it may be found after a power cut.
func torn(synced, now []byte, random *rand.Rand) []byte {
	const sector = 512
	out := slices.Clone(now)
	for from := 0; from < min(len(synced), len(out)); from += sector {
		if to := min(from+sector, len(synced), len(out)); random.IntN(2) == 0 {
			copy(out[from:to], synced[from:to])
		}
	}
	if len(now) <= len(synced) {
		return append(out, synced[len(now):]...)
	}
	out = out[:len(synced)+random.IntN(len(now)-len(synced)+1)]
	for from := len(synced); from < len(out); from += sector {
		if to := min(from+sector, len(out)); random.IntN(3) == 0 {
			copy(out[from:to], noise(random, to-from))
		}
	}
	return out
}

// linkTree gives the files of a folder, which never change, a second name each.
func linkTree(from, to string) {
	mustBe(os.MkdirAll(to, 0o700))
	for _, e := range must(os.ReadDir(from)) {
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			linkTree(source, target)
		} else {
			mustBe(os.Link(source, target))
		}
	}
}
