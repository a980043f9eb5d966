package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// records is what a store should hold, by the words of Batch.
type records map[RecordKey]Record

func (m records) take(b Batch) {
	for k, r := range m {
		if slices.Contains(b.DeleteUnder, ParentKey{r.Collection, r.Parent}) {
			delete(m, k)
		}
	}
	for _, k := range b.Delete {
		delete(m, k)
	}
	for _, r := range b.Put {
		m[RecordKey{r.Collection, r.Key}] = r
	}
	for _, s := range b.Release {
		for k, r := range m {
			if r.Collection == s.Collection && r.Parent == s.Parent && (s.Range == Range{} || r.Rank >= s.Range.From && r.Rank < s.Range.To) {
				r.Payload = nil
				m[k] = r
			}
		}
	}
	for _, r := range b.Add {
		k := RecordKey{r.Collection, r.Key}
		if older, ok := m[k]; ok {
			older.Count += r.Count
			r = older
		}
		m[k] = r
	}
}

func (m records) list(collection, parent string, x Range) []Record {
	var out []Record
	for _, r := range m {
		if r.Collection == collection && r.Parent == parent && (x == Range{} || r.Rank >= x.From && r.Rank < x.To) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Key, b.Key)) })
	return out
}

// randomBatch changes few records in many ways, so that every change meets every other. Sums are a collection of their own, whose parents and ranks belong to the keys.
func randomBatch(random *rand.Rand) Batch {
	var b Batch
	key := func() string { return fmt.Sprint(random.IntN(6)) }
	parent := func() string { return fmt.Sprint("p", random.IntN(3)) }
	collection := func() string { return []string{"a", hosts, guests}[random.IntN(3)] }
	value := func() []byte { return []byte{byte(random.IntN(256))} }
	payload := func() []byte { return bytes.Repeat(value(), 1+random.IntN(150)) }
	sum := func() Record {
		k := random.IntN(4)
		return Record{Collection: "sums", Key: fmt.Sprint(k), Parent: fmt.Sprint("p", k%2), Rank: int64(k), Count: int64(random.IntN(9) - 4), Value: []byte{byte(k)}}
	}
	place := func() (string, int64) { return parent(), int64(6 + random.IntN(8)) }
	for range random.IntN(3) {
		switch random.IntN(15) {
		case 0:
			b.DeleteUnder = append(b.DeleteUnder, ParentKey{[]string{collection(), "sums"}[random.IntN(2)], parent()})
		case 1:
			b.Delete = append(b.Delete, RecordKey{[]string{collection(), "sums"}[random.IntN(2)], key()})
		case 2, 3:
			from, most := int64(random.IntN(4)), 3
			if random.IntN(2) == 0 {
				from, most = int64(4+random.IntN(9)), 9
			}
			b.Release = append(b.Release, Span{collection(), parent(), Range{from, from + int64(random.IntN(most))}})
		case 4:
			b.Add = append(b.Add, sum())
		case 5:
			b.Put = append(b.Put, sum())
		case 6, 7: // an operation, and its result at once or later
			host := Record{Collection: hosts, Key: key(), Parent: parent(), Rank: int64(random.IntN(4)), Value: value(), Payload: payload()}
			guest := host
			guest.Collection, guest.Value, guest.Payload = guests, value(), payload()
			b.Put = append(b.Put, host, guest)
		case 11, 12: // many with their results
			p, first := place()
			for i := range int64(minBlock + random.IntN(4)) {
				for _, c := range []string{hosts, guests} {
					r := Record{Collection: c, Key: placedKey(p, first+i), Parent: p, Rank: first + i, Count: random.Int64N(3), Value: value(), Payload: payload()}
					if random.IntN(8) != 0 { // which then go to the journal
						r.Payload = r.Payload[:min(len(r.Payload), 100)]
					}
					b.Put = append(b.Put, r)
				}
			}
		case 13: // one of them
			p, rank := place()
			b.Put = append(b.Put, Record{Collection: collection(), Key: placedKey(p, rank), Parent: p, Rank: rank, Value: value(), Payload: payload()})
		case 14:
			b.Delete = append(b.Delete, RecordKey{collection(), placedKey(place())})
		case 8: // both go
			p := parent()
			b.DeleteUnder = append(b.DeleteUnder, ParentKey{hosts, p}, ParentKey{guests, p})
		default:
			b.Put = append(b.Put, Record{Collection: collection(), Key: key(), Parent: parent(), Rank: int64(random.IntN(4)), Value: value(), Payload: payload()})
		}
	}
	return b
}

// What is read is the same wherever a change is: only in the log, on its way to the database, or there, and after opening again.
func testChangesOverTheDatabase(t *testing.T, opts Options) {
	opts.InlineBytes, opts.applyAfter = 100, time.Hour
	opened, err := Open(t.Context(), opts)
	check(t, err)
	random := rand.New(rand.NewPCG(1, 2))
	want := records{}
	read := func(s Store, r Record) Record {
		t.Helper()
		p, err := s.Payload(t.Context(), r)
		check(t, err)
		r.Payload, r.Ref = p, Ref{}
		return r
	}
	compare := func(step int) {
		t.Helper()
		for _, collection := range []string{"a", "sums", hosts, guests} {
			var keys []string
			for i := range 6 {
				keys = append(keys, fmt.Sprint(i))
			}
			for i := range 18 {
				keys = append(keys, placedKey(fmt.Sprint("p", i%3), int64(5+i)))
			}
			for _, key := range keys {
				k := RecordKey{collection, key}
				got, err := opened.Get(t.Context(), k.Collection, k.Key)
				r, exists := want[k]
				if errors.Is(err, ErrNotFound) == exists || exists && !reflect.DeepEqual(read(opened, got), r) {
					t.Fatalf("step %d: %v is %+v, %v; want %+v", step, k, got, err, r)
				}
			}
			for i := range 3 {
				for _, x := range []Range{{}, {1, 3}, {8, 11}} {
					parent := fmt.Sprint("p", i)
					got, err := opened.List(t.Context(), collection, parent, x, 0)
					check(t, err)
					for i, r := range got {
						got[i] = read(opened, r)
					}
					if list := want.list(collection, parent, x); !reflect.DeepEqual(got, list) {
						t.Fatalf("step %d: of %s are listed %+v, want %+v", step, parent, got, list)
					}
				}
			}
		}
	}
	most := 0
	for step := range 250 {
		b := randomBatch(random)
		want.take(b)
		check(t, opened.Commit(t.Context(), b))
		switch s := opened.(*sqlStore); random.IntN(30) {
		case 0, 1:
			for _, of := range [][2]string{{hosts, guests}, {guests, hosts}, {"a", hosts}, {guests, "a"}} {
				missing, err := s.Missing(t.Context(), of[0], of[1]) // first it brings everything to the database
				check(t, err)
				for i, r := range missing {
					missing[i] = read(s, r)
				}
				var wanted []Record
				for k, r := range want {
					if _, has := want[RecordKey{of[1], k.Key}]; k.Collection == of[0] && !has {
						wanted = append(wanted, r)
					}
				}
				slices.SortFunc(wanted, func(a, b Record) int {
					return cmp.Or(strings.Compare(a.Parent, b.Parent), cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Key, b.Key))
				})
				if !reflect.DeepEqual(missing, wanted) {
					t.Fatalf("step %d: %v: missing are %+v, want %+v", step, of, missing, wanted)
				}
			}
			n := 0
			check(t, s.db.reader.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM tinsmith_blocks").Scan(&n))
			most = max(most, n)
		case 2: // as while the second goroutine writes: before and after the database has it
			onWriter(t, s, func() { check(t, s.freeze()) })
			compare(step)
			onWriter(t, s, func() {
				if s.frozen != nil {
					check(t, s.apply(t.Context(), s.frozen))
				}
			})
		case 3:
			check(t, s.Close())
			opened, err = Open(t.Context(), opts)
			check(t, err)
		}
		if step%2 == 0 {
			compare(step)
		}
	}
	check(t, opened.Close())
	if most < 2 {
		t.Errorf("there were never more than %d blocks", most)
	}
}

// onWriter runs f on the writer goroutine, between two groups.
func onWriter(t *testing.T, s *sqlStore, f func()) {
	t.Helper()
	if _, shared := s.journal.(*sharedJournal); shared {
		check(t, s.run(t.Context(), func() error { f(); return nil }))
		return
	}
	sync := segments(s).syncFile
	segments(s).syncFile = func(file *os.File) error { f(); return sync(file) }
	check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "other", Key: "1", Payload: make([]byte, s.inline+1)}}}))
	segments(s).syncFile = sync
}

// crash gives a copy of a store's directory as a kill would leave it now.
func crash(t *testing.T, s *sqlStore) string {
	t.Helper()
	to := t.TempDir()
	onWriter(t, s, func() { check(t, os.CopyFS(to, os.DirFS(s.dir))) })
	return to
}

func count(t *testing.T, dir string) int64 {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: dir})
	check(t, err)
	defer s.Close()
	r, err := s.Get(t.Context(), "sums", "1")
	check(t, err)
	return r.Count
}

// A group counts once, whether the crash came before the database had it or before its file was removed, and what was refused never counts.
func TestGroupsCountOnce(t *testing.T) {
	opened, err := Open(t.Context(), Options{Dir: t.TempDir(), Reserve: -1, applyAfter: time.Hour})
	check(t, err)
	s := opened.(*sqlStore)
	defer s.Close()
	add := Batch{Add: []Record{{Collection: "sums", Key: "1", Count: 1}}}
	for range 3 {
		check(t, s.Commit(t.Context(), add))
	}
	if n := count(t, crash(t, s)); n != 3 {
		t.Errorf("before the database has them: %d, want 3", n)
	}
	files(s).remove = func(string) error { return nil }
	check(t, s.flush(t.Context()))
	if files, _ := filepath.Glob(filepath.Join(s.dir, "log", "*")); len(files) == 0 {
		t.Error("no file of the log is left: the test does not test what it should")
	}
	check(t, s.Commit(t.Context(), add))
	if n := count(t, crash(t, s)); n != 4 {
		t.Errorf("with files that the database has: %d, want 4", n)
	}
	sync := files(s).syncFile
	files(s).syncFile = func(*os.File) error { files(s).syncFile = sync; return unix.EIO } // the bytes are there, and nobody is told that they are
	if err := s.Commit(t.Context(), add); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a failed sync: %v", err)
	}
	awaitState(t, s, "")
	for s.Commit(t.Context(), add) != nil {
		time.Sleep(10 * time.Millisecond)
	}
	if n := count(t, crash(t, s)); n != 5 {
		t.Errorf("after a refused group: %d, want 5", n)
	}
}

// Segments that only changes refer to which the database does not have yet stay: Compact has it take all, but commits go on between that and the deletion.
func TestCompactKeepsWhatIsPending(t *testing.T) {
	opened, err := Open(t.Context(), Options{Dir: t.TempDir(), Reserve: -1, SegmentBytes: 1000, InlineBytes: 100, applyAfter: time.Hour})
	check(t, err)
	s := opened.(*sqlStore)
	defer s.Close()
	payload := bytes.Repeat([]byte("p"), 800) // a segment each
	for i := range 3 {
		check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: fmt.Sprint(i), Payload: payload}}}))
	}
	compact := s.newRequest()
	compact.compact = true
	check(t, s.send(t.Context(), compact))
	for i := range 3 {
		r, err := s.Get(t.Context(), "a", fmt.Sprint(i))
		check(t, err)
		if got, err := s.Payload(t.Context(), r); err != nil || !bytes.Equal(got, payload) {
			t.Errorf("payload %d: %d bytes, %v", i, len(got), err)
		}
	}
}

func TestDamagedCommitLog(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, file string, size int64)
		lost   bool // the last group is gone, of which somebody was told; else what is broken is known to have been durable
		none   bool // nothing is missing
	}{
		{"the last byte is cut off", func(t *testing.T, file string, size int64) { check(t, os.Truncate(file, size-1-groupHeader)) }, true, false},
		{"a byte of the last group is flipped", func(t *testing.T, file string, size int64) { flip(t, file, size-1-groupHeader) }, true, false},
		{"zeros at the end", func(t *testing.T, file string, size int64) { check(t, os.Truncate(file, size+5000)) }, false, true},
		{"a byte of the first group is flipped", func(t *testing.T, file string, size int64) { flip(t, file, logHeader+groupHeader) }, false, false},
		{"the file's first group is flipped", func(t *testing.T, file string, size int64) { flip(t, file, 8) }, false, false},
		{"the file's magic is flipped", func(t *testing.T, file string, size int64) { flip(t, file, 0) }, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			opened, err := Open(t.Context(), Options{Dir: t.TempDir(), applyAfter: time.Hour})
			check(t, err)
			defer opened.Close()
			for i := range 3 {
				check(t, opened.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: fmt.Sprint(i), Value: []byte("value")}}}))
			}
			dir := crash(t, opened.(*sqlStore))
			file := filepath.Join(dir, "log", "0000000001.log")
			info, err := os.Stat(file)
			check(t, err)
			c.damage(t, file, info.Size())
			s, err := Open(t.Context(), Options{Dir: dir})
			if !c.none {
				if !errors.Is(err, ErrLost) || errors.Is(err, ErrCorrupt) == c.lost {
					t.Fatalf("opened with %v, want that something is missing", err)
				}
				return
			}
			check(t, err)
			defer s.Close()
			for i := range 3 {
				if _, err := s.Get(t.Context(), "a", fmt.Sprint(i)); err != nil {
					t.Errorf("record %d: %v", i, err)
				}
			}
		})
	}
}

// A file that is used again holds the groups of its earlier lives behind its own: they are passed over, and the loss of a file's last group is seen in the next one's header.
func TestCommitLogIsUsedAgain(t *testing.T) {
	dir := t.TempDir()
	number := 0
	write := func(l *commitLog, groups int) {
		t.Helper()
		for range groups {
			number++
			check(t, l.append(append(make([]byte, groupHeader), fmt.Sprintf("group %3d", number)...)))
		}
	}
	open := func(applied int64) (*commitLog, []string, error) {
		var got []string
		l, err := openCommitLog(dir, applied, systemDisk{}, func(content []byte) error { got = append(got, string(content)); return nil })
		return l, got, err
	}
	l, _, err := open(0)
	check(t, err)
	for life := range 6 { // each leaves less of its own, so that something of every earlier one is behind it
		write(l, 12-2*life)
		check(t, l.rotate())
		if life == 3 { // the database has everything, and the next process goes on with the spare file
			check(t, l.applied(l.last))
			l, _, err = open(l.last)
			check(t, err)
		}
		check(t, l.applied(l.last))
	}
	if len(l.spares) != 1 {
		t.Fatalf("the spare files are %v, want one that was used six times", l.spares)
	}
	info, err := os.Stat(l.spares[0])
	check(t, err)
	applied := l.last
	write(l, 2)
	check(t, l.rotate())
	check(t, l.begin()) // nothing but its header says that there were groups before
	check(t, l.close())
	if now, err := os.Stat(l.path(l.number - 1)); err != nil || now.Size() != info.Size() {
		t.Errorf("the file is not the spare one: %v, %v", now, err)
	}
	_, got, err := open(applied)
	check(t, err)
	if want := []string{fmt.Sprintf("group %3d", applied+1), fmt.Sprintf("group %3d", applied+2)}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	content, err := os.ReadFile(l.path(l.number - 1))
	check(t, err)
	if groups, _ := readGroups(l.number-1, content, logHeader); len(groups) != 2 {
		t.Errorf("the file has %d groups, want the 2 of its last life", len(groups))
	}
	flip(t, l.path(l.number-1), logHeader+2*(groupHeader+9)-1) // the last byte of its last group
	if _, _, err := open(applied); !errors.Is(err, ErrCorrupt) {
		t.Errorf("without the last group of a file before the last: %v", err)
	}
}

func FuzzBatches(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		f.Add(appendBatch(nil, randomBatch(random)))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		list, err := decodeBatches(content)
		if err != nil {
			return
		}
		var again []byte
		for _, b := range list {
			again = appendBatch(again, b)
		}
		if twice, err := decodeBatches(again); err != nil || !reflect.DeepEqual(twice, list) {
			t.Fatalf("%+v came back as %+v, %v", list, twice, err)
		}
	})
}
