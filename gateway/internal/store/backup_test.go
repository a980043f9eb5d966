package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store/storetest"
)

// A backup of a store in use is all of one moment, and its restoration holds the same, in either engine; a backup of that does, too.
func TestBackup(t *testing.T) {
	for _, way := range [][]string{{"SQLite", "SQLite"}, {"SQLite", "PostgreSQL"}, {"PostgreSQL", "SQLite"}, {"PostgreSQL", "PostgreSQL"}, {"PostgreSQL", "shared"}, {"shared", "shared"}, {"shared", "SQLite"}} {
		t.Run(strings.Join(way, " to "), func(t *testing.T) {
			options := func(driver string) Options {
				opts := Options{Dir: filepath.Join(t.TempDir(), "data"), Reserve: -1, InlineBytes: 100, SegmentBytes: 8 << 10, applyAfter: 20 * time.Millisecond}
				if driver != "SQLite" {
					opts.PostgresURL = storetest.Schema(t)
				}
				if driver == "shared" {
					opts.Lease = leaseOf(t, opts.PostgresURL, "", nil)
				}
				return opts
			}
			l := lived{want: records{}}
			s, err := Open(t.Context(), options(way[0]))
			check(t, err)
			random := rand.New(rand.NewPCG(11, 12))
			for range 200 {
				b := randomBatch(random)
				l.want.take(b)
				check(t, s.Commit(t.Context(), b))
			}
			// What is written meanwhile is there whole or not at all: each batch has two records.
			end, written := make(chan bool), sync.WaitGroup{}
			written.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-end:
						return
					default:
					}
					payload := bytes.Repeat([]byte{byte(i)}, 50+i%200)
					b := Batch{Put: []Record{{Collection: "left", Key: fmt.Sprint(i), Parent: "x", Payload: payload}, {Collection: "right", Key: fmt.Sprint(i), Parent: "x", Payload: payload}}}
					if err := errors.Join(s.Commit(t.Context(), b), s.Compact(t.Context())); err != nil {
						t.Error(err)
						return
					}
				}
			})
			dir := filepath.Join(t.TempDir(), "backup")
			check(t, s.Backup(t.Context(), dir))
			check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "after", Key: "1"}}}))
			close(end)
			written.Wait()
			if differences, damaged := compareStore(t, l, s); len(differences)+len(damaged) > 0 {
				t.Errorf("the store itself: %v %v", differences, damaged)
			}
			if err := s.Backup(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "not empty") {
				t.Errorf("a backup over another: %v", err)
			}
			check(t, s.Close())
			before := contents(t, dir)

			to := options(way[1])
			check(t, Restore(t.Context(), dir, to))
			restored, err := Open(t.Context(), to)
			check(t, err)
			if differences, damaged := compareStore(t, l, restored); len(differences)+len(damaged) > 0 {
				t.Errorf("restored: %v %v", differences, damaged)
			}
			if _, err := restored.Get(t.Context(), "after", "1"); !errors.Is(err, ErrNotFound) {
				t.Errorf("what came after the backup: %v", err)
			}
			left, err := restored.List(t.Context(), "left", "x", Range{}, 0)
			check(t, err)
			right, err := restored.List(t.Context(), "right", "x", Range{}, 0)
			check(t, err)
			if len(left) != len(right) {
				t.Errorf("%d halves of batches, and %d others", len(left), len(right))
			}
			for _, r := range append(left, right...) {
				if _, err := restored.Payload(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
			for range 50 { // it goes on
				b := randomBatch(random)
				l.want.take(b)
				check(t, restored.Commit(t.Context(), b))
			}
			check(t, restored.Compact(t.Context()))
			if differences, damaged := compareStore(t, l, restored); len(differences)+len(damaged) > 0 {
				t.Errorf("gone on: %v %v", differences, damaged)
			}
			again := filepath.Join(t.TempDir(), "again")
			check(t, restored.Backup(t.Context(), again))
			check(t, restored.Close())
			if !maps.Equal(contents(t, dir), before) {
				t.Error("the backup was changed")
			}
			if err := Restore(t.Context(), dir, to); err == nil {
				t.Error("restored over a store in use")
			}
			last := options("SQLite")
			check(t, Restore(t.Context(), again, last))
			second, err := Open(t.Context(), last)
			check(t, err)
			if differences, damaged := compareStore(t, l, second); len(differences)+len(damaged) > 0 {
				t.Errorf("restored twice: %v %v", differences, damaged)
			}
			check(t, second.Close())
		})
	}
}

// A backup that is damaged or not finished is refused, and leaves a data directory that is no store; nor is a restoration that was cut off.
func TestRestoreRefuses(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), InlineBytes: 100})
	check(t, err)
	for i := range 50 {
		check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: fmt.Sprint(i), Payload: bytes.Repeat([]byte("p"), 60+i)}}}))
	}
	whole := filepath.Join(t.TempDir(), "backup")
	check(t, s.Backup(t.Context(), whole))
	check(t, s.Close())
	segment := filepath.Join(journalName, "0000000001.seg")
	dump, err := os.ReadFile(filepath.Join(whole, dumpName))
	check(t, err)
	random := rand.New(rand.NewPCG(13, 14))
	type damage struct {
		name string
		do   func(dir string)
	}
	cases := []damage{
		{"the file of the records is missing", func(dir string) { check(t, os.Remove(filepath.Join(dir, dumpName))) }},
		{"a segment is missing", func(dir string) { check(t, os.Remove(filepath.Join(dir, segment))) }},
		{"a segment is cut", func(dir string) { check(t, os.Truncate(filepath.Join(dir, segment), 100)) }},
		{"something follows", func(dir string) {
			check(t, os.WriteFile(filepath.Join(dir, dumpName), append(bytes.Clone(dump), 0), 0o600))
		}},
	}
	for range 20 {
		at := random.IntN(len(dump))
		cases = append(cases, damage{fmt.Sprint("a flip at ", at), func(dir string) { flip(t, filepath.Join(dir, dumpName), int64(at)) }},
			damage{fmt.Sprint("cut at ", at), func(dir string) { check(t, os.Truncate(filepath.Join(dir, dumpName), int64(at))) }})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			backup, opts := t.TempDir(), Options{Dir: t.TempDir()}
			check(t, os.CopyFS(backup, os.DirFS(whole)))
			c.do(backup)
			if err := Restore(t.Context(), backup, opts); err == nil {
				t.Fatal("restored")
			}
			if entries, err := os.ReadDir(opts.Dir); err != nil || len(entries) > 0 {
				if _, err := Open(t.Context(), opts); !errors.Is(err, ErrLost) {
					t.Errorf("what is there can be opened as a store: %v", err)
				}
			}
			check(t, os.RemoveAll(filepath.Join(opts.Dir, journalName))) // of a damaged backup
			check(t, Restore(t.Context(), whole, opts))
			s, err := Open(t.Context(), opts)
			check(t, err)
			if r, err := s.Get(t.Context(), "a", "49"); err != nil || r.Ref.Length != 109 {
				t.Errorf("%+v, %v", r, err)
			}
			check(t, s.Close())
		})
	}
}

// A Restore that was cut off anywhere is finished by another one, and the database of another store is never touched by that.
func TestRestoreAgain(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), InlineBytes: 100})
	check(t, err)
	check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "1", Payload: make([]byte, 200)}}}))
	backup := filepath.Join(t.TempDir(), "backup")
	check(t, s.Backup(t.Context(), backup))
	check(t, s.Close())
	opts := Options{Dir: t.TempDir()}
	check(t, Restore(t.Context(), backup, opts))
	g, _, err := readMark(opts.Dir)
	check(t, err)
	for _, c := range []struct {
		name string
		cut  func(dir string)
	}{
		{"before the mark", func(dir string) { check(t, os.Remove(filepath.Join(dir, markName))) }},
		{"after the mark", func(string) {}},
		{"before the database", func(dir string) {
			check(t, errors.Join(os.Remove(filepath.Join(dir, markName)), os.Remove(filepath.Join(dir, databaseName))))
		}},
		{"before the journal", func(dir string) {
			check(t, errors.Join(os.Remove(filepath.Join(dir, markName)), os.Remove(filepath.Join(dir, databaseName)), os.RemoveAll(filepath.Join(dir, journalName))))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			check(t, os.CopyFS(dir, os.DirFS(opts.Dir)))
			c.cut(dir)
			check(t, os.WriteFile(filepath.Join(dir, restoringName), g.Identity[:], 0o600))
			if _, err := Open(t.Context(), Options{Dir: dir}); !errors.Is(err, ErrLost) {
				t.Errorf("opened: %v", err)
			}
			check(t, Restore(t.Context(), backup, Options{Dir: dir}))
			s, err := Open(t.Context(), Options{Dir: dir})
			check(t, err)
			r, err := s.Get(t.Context(), "a", "1")
			check(t, err)
			if p, err := s.Payload(t.Context(), r); err != nil || len(p) != 200 {
				t.Errorf("%d bytes, %v", len(p), err)
			}
			check(t, s.Close())
			other := newIdentity()
			check(t, os.WriteFile(filepath.Join(dir, restoringName), other[:], 0o600))
			if err := Restore(t.Context(), backup, Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "in use") {
				t.Errorf("over another store: %v", err)
			}
		})
	}
}

func FuzzDump(f *testing.F) {
	var file bytes.Buffer
	w := newDumpWriter(&file)
	for i := range 3 {
		if err := w.row(&recordRow{record: Record{Collection: "a", Key: fmt.Sprint(i), Value: []byte("value")}, head: sum{5, true}, payload: sum{0, true}}); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.row(&blockRow{parent: "p", last: 3, heads: []byte("heads")}); err != nil {
		f.Fatal(err)
	}
	if err := w.end(map[int64]int64{1: 100, 2: -1}); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes())
	f.Add(file.Bytes()[:file.Len()-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		rows := int64(0)
		m, err := readDump(bytes.NewReader(b), func(tableRow) error { rows++; return nil })
		if err == nil && m.rows != rows || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d rows of %d, %v", rows, m.rows, err)
		}
	})
}

func FuzzMark(f *testing.F) {
	g := generation{Sequence: 3, Identity: newIdentity(), Place: "SQLite", Applied: 5, Last: 7, Epoch: 1}
	f.Add(append(g.slot(), make([]byte, markSize-markSector)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if g, damaged := parseMark(b); g == nil && damaged == "" {
			t.Error("nothing is known, and nothing is damaged")
		}
	})
}
