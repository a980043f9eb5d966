package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var damageTimes = flag.Int("damages", 1, "how many times as many damages TestDamages does")

// lived is a store with something of everything, as kills left it: twice in its life, and what it must hold.
type lived struct {
	older, dir string // copies of the data directory
	want       records
	large      bool // it is not checked as a whole before it is used
}

// live makes one. Before each copy some changes are in the database, some in its log, and some in the commit log alone.
func live(t *testing.T, batches int) lived {
	t.Helper()
	l := lived{want: records{}}
	opts := Options{Dir: t.TempDir(), Reserve: -1, InlineBytes: 100, SegmentBytes: 8 << 10, applyAfter: time.Hour}
	random := rand.New(rand.NewPCG(7, 8))
	write := func(s *sqlStore, batches int) {
		t.Helper()
		for range batches {
			b := randomBatch(random)
			l.want.take(b)
			check(t, s.Commit(t.Context(), b))
			if random.IntN(20) == 0 {
				check(t, s.flush(t.Context()))
			}
		}
	}
	again := func() *sqlStore {
		t.Helper()
		s, err := Open(t.Context(), opts)
		check(t, err)
		return s.(*sqlStore)
	}
	s := again()
	write(s, batches)
	check(t, s.Close())
	s = again()
	filler := Batch{}
	for i := range batches {
		filler.Put = append(filler.Put, Record{Collection: "filler", Key: fmt.Sprint(i), Parent: "f", Rank: int64(i), Value: bytes.Repeat([]byte{byte(i)}, 10*batches)})
	}
	l.want.take(filler)
	check(t, s.Commit(t.Context(), filler))
	write(s, batches)
	check(t, s.flush(t.Context()))
	write(s, 20)
	l.older = crash(t, s)
	write(s, 20)
	check(t, s.Close())
	s = again()
	write(s, batches)
	check(t, s.flush(t.Context()))
	write(s, 20)
	check(t, s.Compact(t.Context()))
	write(s, 20)
	onWriter(t, s, func() { check(t, s.freeze()) })
	write(s, 20)
	l.want.take(Batch{Put: []Record{{Collection: "other", Key: "1", Payload: make([]byte, s.inline+1)}}}) // as crash does
	l.dir = crash(t, s)
	spare, err := os.ReadFile(filepath.Join(l.dir, "log", filepath.Base(files(s).path(files(s).number))))
	check(t, err)
	check(t, os.WriteFile(filepath.Join(l.dir, "log", "0000000001"+spareSuffix), spare, 0o600))
	check(t, s.Close())
	var size int64
	for _, name := range []string{databaseName, databaseName + "-wal"} {
		info, err := os.Stat(filepath.Join(l.dir, name))
		check(t, err)
		size += info.Size()
	}
	l.large = size > wholeBytes
	return l
}

// damages change a file. older is its copy from earlier in the store's life, nil if there is none.
var damages = []struct {
	name  string
	times int
	do    func(random *rand.Rand, content, older []byte) []byte // nil: it is removed
}{
	{"flip", 8, func(random *rand.Rand, content, _ []byte) []byte {
		if len(content) > 0 {
			content[random.IntN(len(content))] ^= 1 << random.IntN(8)
		}
		return content
	}},
	{"zero 512 bytes", 3, func(random *rand.Rand, content, _ []byte) []byte {
		if len(content) > 0 {
			at := random.IntN(len(content))
			clear(content[at:min(at+512, len(content))])
		}
		return content
	}},
	{"cut 100 bytes", 1, func(_ *rand.Rand, content, _ []byte) []byte { return content[:max(0, len(content)-100)] }},
	{"cut somewhere", 1, func(random *rand.Rand, content, _ []byte) []byte { return content[:random.IntN(len(content)+1)] }},
	{"remove", 1, func(*rand.Rand, []byte, []byte) []byte { return nil }},
	{"older copy", 1, func(_ *rand.Rand, _, older []byte) []byte { return older }},
}

// Every damage to every file that the store keeps is named or has no effect: nothing is missing or different without a word, and what is refused is as it was. What is left can be accepted.
func TestDamages(t *testing.T) {
	for i, c := range []struct {
		name    string
		batches int
	}{
		{"a database that is checked as a whole before it is used", 60},
		{"a larger one", 300},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := live(t, c.batches)
			if l.large != (i == 1) {
				t.Fatal("the database does not have the size that the test wants")
			}
			testDamages(t, l)
		})
	}
}

func testDamages(t *testing.T, l lived) {
	random := rand.New(rand.NewPCG(9, 10))
	counts := map[string]map[string]int{}
	var files []string
	check(t, filepath.WalkDir(l.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			name, _ := filepath.Rel(l.dir, path)
			files = append(files, name)
		}
		return err
	}))
	whole := t.TempDir()
	check(t, os.CopyFS(whole, os.DirFS(l.dir)))
	if outcome, what := examine(t, l, whole, true); outcome != "no effect" {
		t.Fatalf("without any damage: %s, %s", outcome, what)
	}
	for _, name := range files {
		for _, d := range damages {
			times := d.times * *damageTimes
			if database := strings.HasPrefix(name, databaseName); l.large && !database {
				continue
			} else if !database {
				times = (times + 1) / 2
			}
			for range times {
				dir := t.TempDir()
				check(t, os.CopyFS(dir, os.DirFS(l.dir)))
				content, err := os.ReadFile(filepath.Join(dir, name))
				check(t, err)
				older, err := os.ReadFile(filepath.Join(l.older, olderName(l, name)))
				if err != nil && d.name == "older copy" {
					continue
				}
				changed := d.do(random, bytes.Clone(content), older)
				if changed == nil {
					check(t, os.Remove(filepath.Join(dir, name)))
				} else {
					check(t, os.WriteFile(filepath.Join(dir, name), changed, 0o600))
				}
				kind, _, _ := strings.Cut(filepath.Base(name), "0")
				if dir := filepath.Dir(name); dir != "." {
					kind = dir + "/*" + filepath.Ext(name)
				}
				outcome, what := examine(t, l, dir, true)
				if outcome == "silent" {
					t.Errorf("%s, %s: %s", name, d.name, what)
				}
				if testing.Verbose() {
					t.Logf("%-28s %-15s %-10s %.200s", name, d.name, outcome, what)
				}
				if counts[kind] == nil {
					counts[kind] = map[string]int{}
				}
				counts[kind][outcome]++
				check(t, os.RemoveAll(dir))
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%-20s %v", kind, counts[kind])
	}
}

// olderName is the file of the older copy that is put in the place of one: those that have numbers have other ones.
func olderName(l lived, name string) string {
	if filepath.Dir(name) == "log" {
		if found, _ := filepath.Glob(filepath.Join(l.older, "log", "*"+logFileSuffix)); len(found) > 0 {
			return filepath.Join("log", filepath.Base(found[0]))
		}
	}
	return name
}

// contents are the checksums of a folder's files, without SQLite's index of its log, which is made anew.
func contents(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	out := map[string][32]byte{}
	check(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, "-shm") || e.Name() == "lock" {
			return err
		}
		b, err := os.ReadFile(path)
		if len(b) > 0 { // SQLite makes an empty log where none is
			out[path] = sha256.Sum256(b)
		}
		return err
	}))
	return out
}

// examine opens a damaged directory and reads everything: "refused", "named" for what can be used with a word about the rest, "no effect", or "silent".
func examine(t *testing.T, l lived, dir string, accept bool) (outcome, what string) {
	t.Helper()
	opts := Options{Dir: dir, Reserve: -1, InlineBytes: 100, SegmentBytes: 8 << 10}
	before := contents(t, dir)
	opened, err := Open(t.Context(), opts)
	if err != nil {
		var loss *Loss
		if !errors.As(err, &loss) || len(loss.Findings) == 0 || TroubleOf(err) != nil {
			return "silent", "it does not say that something is missing: " + err.Error()
		}
		if after := contents(t, dir); !maps.Equal(before, after) {
			return "silent", "files were changed although it was refused: " + err.Error()
		}
		if accept {
			return acceptDamage(t, l, opts, err)
		}
		return "refused", err.Error()
	}
	defer opened.Close()
	differences, damaged := compareStore(t, l, opened)
	check(t, opened.(*sqlStore).verifyAll(t.Context(), func(context.Context, time.Duration) error { return nil }))
	switch found := append(damaged, words(opened.Damage())...); {
	case len(found) > 0:
		what = strings.Join(found, "; ")
		if accept && !strings.Contains(what, "segment") { // else it stays as it is
			check(t, opened.Close())
			if outcome, why := acceptDamage(t, l, opts, errors.New(what)); outcome == "silent" {
				return outcome, why
			}
		}
		return "named", what
	case len(differences) > 0:
		return "silent", strings.Join(differences, "; ")
	}
	return "no effect", ""
}

func words(list []Finding) []string {
	var out []string
	for _, f := range list {
		out = append(out, f.String())
	}
	return out
}

// acceptDamage takes what is left. Nothing in it is wrong, nothing that the data directory had is gone, and it can be used and opened again.
func acceptDamage(t *testing.T, l lived, opts Options, refused error) (outcome, what string) {
	t.Helper()
	before := contents(t, opts.Dir)
	opts.Accept = true
	s, err := Open(t.Context(), opts)
	if err != nil {
		return "silent", fmt.Sprintf("cannot be accepted: %v; it was refused with: %v", err, refused)
	}
	kept := map[[32]byte]bool{}
	for _, sum := range contents(t, opts.Dir) {
		kept[sum] = true
	}
	for path, sum := range before {
		if name, _ := filepath.Rel(opts.Dir, path); !kept[sum] {
			return "silent", "the content of " + name + " is gone; it was refused with: " + refused.Error()
		}
	}
	_, damaged := compareStore(t, l, s)
	// What an older state refers to in the journal may be gone.
	if damaged = slices.DeleteFunc(damaged, func(what string) bool { return strings.Contains(what, "the file is missing") }); len(damaged) > 0 {
		return "silent", "accepted, it is still damaged: " + strings.Join(damaged, "; ") + "; it was refused with: " + refused.Error()
	}
	check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "after", Key: "1", Payload: make([]byte, 200)}}}))
	check(t, s.Close())
	opts.Accept = false
	if s, err = Open(t.Context(), opts); err != nil {
		return "silent", "accepted, then refused again: " + err.Error()
	}
	if _, err := s.Get(t.Context(), "after", "1"); err != nil {
		return "silent", "accepted, then it is gone: " + err.Error()
	}
	check(t, s.Close())
	return "refused", refused.Error()
}

// compareStore reads everything: what is not as it should be, and what is said to be damaged.
func compareStore(t *testing.T, l lived, s Store) (differences, damaged []string) {
	t.Helper()
	note := func(what string, err error) {
		if errors.Is(err, ErrCorrupt) || damagedDatabase(err) {
			damaged = append(damaged, what+": "+err.Error())
		} else if err != nil {
			differences = append(differences, what+": "+err.Error())
		}
	}
	parents := map[ParentKey]bool{}
	for k, want := range l.want {
		parents[ParentKey{k.Collection, want.Parent}] = true
		got, err := s.Get(t.Context(), k.Collection, k.Key)
		if err != nil {
			note(fmt.Sprint("get ", k), err)
			continue
		}
		payload, err := s.Payload(t.Context(), got)
		if err != nil {
			note(fmt.Sprint("payload of ", k), err)
			continue
		}
		got.Payload, got.Ref = payload, Ref{}
		if !reflect.DeepEqual(got, want) {
			differences = append(differences, fmt.Sprintf("%v is %+v, not %+v", k, got, want))
		}
	}
	for k := range parents {
		list, err := s.List(t.Context(), k.Collection, k.Parent, Range{}, 0)
		if err != nil {
			note(fmt.Sprint("list ", k), err)
		} else if want := l.want.list(k.Collection, k.Parent, Range{}); len(list) != len(want) {
			differences = append(differences, fmt.Sprintf("%v has %d records, not %d", k, len(list), len(want)))
		}
	}
	return differences, damaged
}
