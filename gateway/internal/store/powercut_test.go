package store

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// disk knows what of a data directory would be left after a power cut: of every file what was synced, and of the rest anything or nothing.
//
// For the journal, the commit log and the generation mark that is what syncFile has seen; what was written over there since is on the disk in some of its sectors. For SQLite in WAL mode with a full sync at every commit it is its log as it was when the last commit returned, and
// the database as it was when that log was last begun anew or checkpointed: a checkpoint makes the pages durable that it copies there.
type disk struct {
	dir string

	mu       sync.Mutex
	durable  map[uint64][]byte // content by inode: a file of the commit log changes its name
	wal      int64             // durable size of SQLite's log
	database []byte
	salt     []byte // of the log's header; another one means that the log was begun anew
	applied  int64  // what the generation mark said last, in memory or not
}

const (
	databaseFile = "tinsmith.db"
	walFile      = "tinsmith.db-wal"
)

func (d *disk) read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(d.dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	return content
}

// committed says that a commit of the database has returned.
func (d *disk) committed(t *testing.T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noteCommit(t)
}

func (d *disk) noteCommit(t *testing.T) {
	t.Helper()
	log := d.read(t, walFile)
	d.wal = int64(len(log))
	if salt := log[:min(len(log), 32)]; d.database == nil || !bytes.Equal(salt, d.salt) {
		d.salt, d.database = bytes.Clone(salt), d.read(t, databaseFile)
	}
}

// checkpointed says that a checkpoint of the database has returned.
func (d *disk) checkpointed(t *testing.T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.database = d.read(t, databaseFile)
}

// syncFile is that of the journal, of the commit log and of the generation mark.
func (d *disk) syncFile(f *os.File) error {
	if err := f.Sync(); err != nil {
		return err
	}
	content, err := os.ReadFile(f.Name())
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.durable[inode(info)] = content
	return nil
}

func inode(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }

// cut copies what is left after a power cut now. What was not synced is lost, or only in part there, or there as something else.
func (d *disk) cut(t *testing.T, random *rand.Rand) string {
	t.Helper()
	to := t.TempDir()
	d.mu.Lock()
	defer d.mu.Unlock()
	// The mark is written, and perhaps on the disk, as soon as a commit of the database has returned, which is before anybody says so here.
	mark := d.read(t, markName)
	if g, _ := parseMark(mark); g != nil && g.Applied > d.applied {
		d.applied = g.Applied
		d.noteCommit(t)
	}
	err := filepath.WalkDir(d.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(d.dir, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case e.IsDir():
			return os.MkdirAll(target, 0o700)
		case name == databaseFile:
			return os.WriteFile(target, d.database, 0o600)
		case name == walFile || strings.HasSuffix(name, segmentSuffix) || strings.HasSuffix(name, logFileSuffix) || strings.HasSuffix(name, spareSuffix) || name == markName:
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if name == markName {
				content = bytes.Clone(mark)
			}
			kept := min(d.wal, int64(len(content)))
			if name != walFile {
				info, err := e.Info()
				if err != nil {
					return err
				}
				older := d.durable[inode(info)]
				kept = int64(min(len(older), len(content)))
				const sector = 512
				for from := 0; from < int(kept); from += sector {
					if to := min(from+sector, int(kept)); random.IntN(2) == 0 {
						copy(content[from:to], older[from:to])
					}
				}
			}
			rest := content[kept:]
			rest = rest[:random.IntN(len(rest)+1)]
			if random.IntN(2) == 0 {
				for i := range rest {
					rest[i] = 0
				}
			}
			return os.WriteFile(target, content[:kept+int64(len(rest))], 0o600)
		}
		return nil // the index of the log is made anew, the lock is another process's
	})
	if err != nil {
		t.Error(err)
	}
	return to
}

// After a power cut at any moment all that was acknowledged is there whole, and what was not is there whole or not at all.
func TestPowerCuts(t *testing.T) {
	ctx := t.Context()
	d := &disk{dir: t.TempDir(), durable: map[uint64][]byte{}}
	opts := Options{Dir: d.dir, SegmentBytes: 64 << 10, InlineBytes: 100, applyAfter: 30 * time.Millisecond}
	opened, err := Open(ctx, opts)
	check(t, err)
	defer opened.Close()
	d.committed(t)

	type cutAt struct {
		acknowledged int
		dir          string
	}
	var cuts []cutAt
	random := rand.New(rand.NewPCG(5, 6))
	acknowledged := 0
	var mu sync.Mutex // of these: files of the commit log are removed at any time
	cut := func() {
		mu.Lock()
		defer mu.Unlock()
		cuts = append(cuts, cutAt{acknowledged, d.cut(t, random)})
	}
	s := opened.(*sqlStore)
	syncFile := func(f *os.File) error { // on the writer's goroutine: between the payloads and the records, and before these can be seen
		cut()
		if err := d.syncFile(f); err != nil {
			return err
		}
		cut()
		return nil
	}
	segments(s).syncFile, files(s).syncFile = syncFile, syncFile
	check(t, d.syncFile(s.mark.file))          // as it was made
	s.mark.syncFile = func(f *os.File) error { // on the goroutine that applies: the database has what the mark will say
		d.committed(t)
		cut()
		return d.syncFile(f)
	}
	applied, again := 0, 0
	remove := files(s).remove
	files(s).remove = func(path string) error { // the database has what is in the file
		d.committed(t)
		cut()
		mu.Lock()
		applied++
		defer mu.Unlock() // no file goes while another cut copies them
		if len(files(s).spares) < maxSpares {
			again++
		}
		return remove(path)
	}
	payload := func(i, half int) []byte { return bytes.Repeat([]byte{byte(i), byte(half)}, 50+i*37%9000) }
	const commits = 60
	for i := range commits {
		var b Batch
		for half := range 2 {
			b.Put = append(b.Put, Record{Collection: "c", Key: fmt.Sprint(i, "-", half), Rank: int64(i), Value: []byte{byte(i)}, Payload: payload(i, half)})
		}
		if i%7 == 6 { // what a recovery point does
			b.Release = []Span{{"c", "", Range{int64(i - 6), int64(i - 3)}}}
		}
		done := make(chan error, 1)
		go func() { done <- opened.Commit(ctx, b) }()
		check(t, <-done)
		mu.Lock()
		acknowledged = i + 1
		mu.Unlock()
		cut()
		if i%20 == 19 {
			check(t, opened.Compact(ctx))
			_, err := s.db.writer.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)") // the next commit of the database begins its log anew
			check(t, err)
			d.checkpointed(t)
			cut()
		}
	}
	check(t, s.flush(ctx))
	mu.Lock()
	defer mu.Unlock()
	released := func(i, acknowledged int) bool {
		last := i/7*7 + 6 // the commit that may release it
		return i < last-3 && last < acknowledged
	}
	for n, c := range cuts {
		s, err := Open(ctx, Options{Dir: c.dir, SegmentBytes: 64 << 10, InlineBytes: 100})
		if err != nil {
			t.Fatalf("cut %d: %v", n, err)
		}
		for i := range commits {
			var found [2]bool
			for half := range 2 {
				r, err := s.Get(ctx, "c", fmt.Sprint(i, "-", half))
				if found[half] = err == nil; !found[half] {
					continue
				}
				p, err := s.Payload(ctx, r)
				gone := len(p) == 0 && err == nil && (released(i, c.acknowledged) || released(i, c.acknowledged+1))
				if !gone && (err != nil || !bytes.Equal(p, payload(i, half))) {
					t.Errorf("cut %d: payload %d-%d: %d bytes, %v", n, i, half, len(p), err)
				}
			}
			if found[0] != found[1] || i < c.acknowledged && !found[0] || i > c.acknowledged && found[0] {
				t.Errorf("cut %d after %d commits: of commit %d are there %v", n, c.acknowledged, i, found)
			}
		}
		check(t, s.Commit(ctx, Batch{Put: []Record{{Collection: "c", Key: "after", Payload: payload(1, 1)}}}))
		check(t, s.Close())
	}
	if len(cuts) < 4*commits || applied < 3 || again < 3 {
		t.Errorf("only %d cuts, %d files of the commit log applied, %d to be used again", len(cuts), applied, again)
	}
}
