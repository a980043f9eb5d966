package store

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The mark says what the database has before the commit log gives it up, and alone finds what is lost then: there is nothing else that shows it.
func TestMark(t *testing.T) {
	opts := Options{Dir: t.TempDir(), applyAfter: time.Hour}
	opened, err := Open(t.Context(), opts)
	check(t, err)
	s := opened.(*sqlStore)
	put := func(i int) {
		t.Helper()
		check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: fmt.Sprint(i), Value: bytes.Repeat([]byte("v"), 300<<10)}}}))
	}
	copied := func() string { // as a kill leaves it, without a commit of its own
		t.Helper()
		to := t.TempDir()
		check(t, s.run(t.Context(), func() error { return os.CopyFS(to, os.DirFS(s.dir)) }))
		return to
	}
	put(0)
	check(t, s.Close())
	opened, err = Open(t.Context(), opts)
	check(t, err)
	s = opened.(*sqlStore)
	for i := range 3 {
		put(i)
	}
	g, _, err := readMark(s.dir)
	if check(t, err); g.Last != 4 || g.Applied != 1 || g.Epoch != 1 {
		t.Errorf("three more groups are acknowledged, and the mark is %+v", g)
	}
	check(t, s.flush(t.Context()))
	g, _, err = readMark(s.dir)
	if check(t, err); g.Last != 4 || g.Applied != 4 {
		t.Errorf("the database has four groups, and the mark is %+v", g)
	}
	dir := copied()
	check(t, os.Remove(filepath.Join(dir, databaseName+"-wal")))
	refuses(t, dir, "it ends at change 1, and had change 4")

	// SQLite copies its log into the file; then an older file beside the newer log is found by the number that was raised before.
	older, err := os.ReadFile(filepath.Join(copied(), databaseName))
	check(t, err)
	for i := range 130 { // more than checkpointPages
		put(i)
	}
	check(t, s.flush(t.Context()))
	if g, _, err = readMark(s.dir); err != nil || g.Epoch != 2 {
		t.Fatalf("the mark is %+v, %v, after a copying", g, err)
	}
	put(1)
	check(t, s.flush(t.Context())) // begins SQLite's log anew
	dir = copied()
	check(t, os.WriteFile(filepath.Join(dir, databaseName), append(older, make([]byte, 60<<20)...), 0o600)) // a file that is too short is damaged in SQLite's own eyes
	refuses(t, dir, "its write-ahead log was copied into it 1 times")
	check(t, s.Close())
}

func refuses(t *testing.T, dir, why string) {
	t.Helper()
	if _, err := Open(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("opened with %v, want %q", err, why)
	}
}

// A segment that a backup has found to be in use stays until it has it, whatever becomes of its records.
func TestBackupHoldsSegments(t *testing.T) {
	opened, err := Open(t.Context(), Options{Dir: t.TempDir(), InlineBytes: 100, SegmentBytes: 1000})
	check(t, err)
	s := opened.(*sqlStore)
	for i := range 20 {
		check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: fmt.Sprint(i), Payload: bytes.Repeat([]byte("p"), 800)}}}))
	}
	dir := filepath.Join(t.TempDir(), "backup")
	s.dumped = func() { // between the rows and the journal
		check(t, s.Commit(t.Context(), Batch{DeleteUnder: []ParentKey{{"a", ""}}}))
		check(t, s.Compact(t.Context()))
	}
	check(t, s.Backup(t.Context(), dir))
	check(t, s.Compact(t.Context()))
	if left, _ := filepath.Glob(filepath.Join(s.dir, journalName, "*")); len(left) > 1 {
		t.Errorf("afterwards %d segments stay", len(left))
	}
	check(t, s.Close())
	opts := Options{Dir: t.TempDir()}
	check(t, Restore(t.Context(), dir, opts))
	restored, err := Open(t.Context(), opts)
	check(t, err)
	for i := range 20 {
		r, err := restored.Get(t.Context(), "a", fmt.Sprint(i))
		check(t, err)
		if p, err := restored.Payload(t.Context(), r); err != nil || len(p) != 800 {
			t.Errorf("%d: %d bytes, %v", i, len(p), err)
		}
	}
	check(t, restored.Close())
}
