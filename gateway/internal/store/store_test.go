package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/gateway/internal/store/storetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("TINSMITH_STORE_WRITER"); dir != "" {
		writeUntilKilled(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func openSQLiteTest(t *testing.T, dir string) Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: dir, SegmentBytes: 64 << 10, InlineBytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// files and segments are the commit log and the journal of a store that is not shared.
func files(s *sqlStore) *commitLog  { return s.log.(*commitLog) }
func segments(s *sqlStore) *journal { return s.journal.(*journal) }

// kept is how many segments the journal has, and their bytes.
func kept(t *testing.T, s Store) (segments int, bytes int64) {
	t.Helper()
	store := s.(*sqlStore)
	if _, shared := store.journal.(*sharedJournal); shared {
		check(t, store.db.reader.QueryRowContext(t.Context(), "SELECT count(DISTINCT segment), COALESCE(sum(length(entry)), 0) FROM tinsmith_payloads").Scan(&segments, &bytes))
		return segments, bytes
	}
	paths, err := filepath.Glob(filepath.Join(store.dir, "journal", "*"+segmentSuffix))
	check(t, err)
	for _, path := range paths {
		info, err := os.Stat(path)
		check(t, err)
		bytes += info.Size()
	}
	return len(paths), bytes
}

func TestSQLite(t *testing.T) {
	testStore(t, func(dir string) Options { return Options{Dir: dir} })
	testJointRows(t, Options{Dir: t.TempDir()})
	testChangesOverTheDatabase(t, Options{Dir: t.TempDir()})
}

func TestPostgres(t *testing.T) {
	schema := storetest.Schema(t)
	testStore(t, func(dir string) Options { return Options{Dir: dir, PostgresURL: schema} })
	testJointRows(t, Options{Dir: t.TempDir(), PostgresURL: storetest.Schema(t)})
	testChangesOverTheDatabase(t, Options{Dir: t.TempDir(), PostgresURL: storetest.Schema(t)})
	t.Run("schemas of one database are stores of their own", func(t *testing.T) {
		schema := storetest.Schema(t)
		// Both are open at once, and what one holds the other does not.
		left, err := Open(t.Context(), Options{Dir: t.TempDir(), PostgresURL: storetest.Schema(t)})
		check(t, err)
		defer left.Close()
		right, err := Open(t.Context(), Options{Dir: t.TempDir(), PostgresURL: schema})
		check(t, err)
		defer right.Close()
		check(t, left.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "1"}}}))
		if _, err := right.Get(t.Context(), "a", "1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("a record of another schema: %v", err)
		}
		if _, err := Open(t.Context(), Options{Dir: t.TempDir(), PostgresURL: schema}); !errors.Is(err, ErrLocked) {
			t.Errorf("the same schema with another data directory: %v", err)
		}
	})
}

// testStore is the behaviour that every Store must show. The database must be empty.
func testStore(t *testing.T, options func(dir string) Options) {
	ctx := t.Context()
	opts := options(t.TempDir())
	opts.SegmentBytes, opts.InlineBytes = 64<<10, 100
	s, err := Open(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	small, large := []byte("small"), bytes.Repeat([]byte("large"), 5000)
	must(s.Commit(ctx, Batch{Put: []Record{
		{Collection: "a", Key: "1", Parent: "p", Rank: 2, Value: []byte("one"), Payload: small},
		{Collection: "a", Key: "2", Parent: "p", Rank: 1, Value: []byte("two"), Payload: large},
		{Collection: "a", Key: "3", Parent: "q", Rank: 3},
		{Collection: "b", Key: "1"},
	}}))

	t.Run("get and payload", func(t *testing.T) {
		r, err := s.Get(ctx, "a", "2")
		if err != nil || string(r.Value) != "two" || r.Payload != nil || r.Ref.Length != int64(len(large)) {
			t.Fatalf("got %+v, %v", r, err)
		}
		if p, err := s.Payload(ctx, r); err != nil || !bytes.Equal(p, large) {
			t.Fatalf("large payload: %d bytes, %v", len(p), err)
		}
		r, _ = s.Get(ctx, "a", "1")
		if p, err := s.Payload(ctx, r); err != nil || !bytes.Equal(p, small) || r.Ref != (Ref{}) {
			t.Fatalf("small payload: %q %+v, %v", p, r.Ref, err)
		}
		if _, err := s.Get(ctx, "a", "none"); !errors.Is(err, ErrNotFound) {
			t.Fatalf("missing record: %v", err)
		}
	})
	t.Run("lists", func(t *testing.T) {
		keys := func(list []Record, err error) string {
			t.Helper()
			must(err)
			var k []string
			for _, r := range list {
				k = append(k, r.Key)
			}
			return strings.Join(k, " ")
		}
		must(s.Commit(ctx, Batch{Put: []Record{{Collection: "o", Key: "b"}, {Collection: "o", Key: "B"}, {Collection: "o", Key: "_"}, {Collection: "o", Key: "a"}}}))
		for _, c := range []struct{ name, got, want string }{
			{"by bytes", keys(s.List(ctx, "o", "", Range{}, 0)), "B _ a b"},
			{"by rank", keys(s.List(ctx, "a", "p", Range{}, 0)), "2 1"},
			{"limit", keys(s.List(ctx, "a", "p", Range{}, 1)), "2"},
			{"range", keys(s.List(ctx, "a", "p", Range{2, 3}, 0)), "1"},
			{"missing", keys(s.Missing(ctx, "a", "b")), "2 3"},
		} {
			if c.got != c.want {
				t.Errorf("%s: got %q, want %q", c.name, c.got, c.want)
			}
		}
		var all []string
		must(s.All(ctx, "a", func(r Record) error { all = append(all, r.Key); return nil }))
		if strings.Join(all, " ") != "2 1 3" {
			t.Errorf("all: %v", all)
		}
		stop := errors.New("stop")
		if err := s.All(ctx, "a", func(Record) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("stopped: %v", err)
		}
	})
	t.Run("no bytes", func(t *testing.T) {
		var puts []Record
		for i, b := range [][]byte{nil, {}} {
			for _, c := range []string{"e", hosts, guests} {
				puts = append(puts, Record{Collection: c, Key: fmt.Sprint("e", i), Value: b, Payload: b})
			}
			for rank := range int64(minBlock) { // a block each
				for _, c := range []string{hosts, guests} {
					p := fmt.Sprint("empty", i)
					puts = append(puts, Record{Collection: c, Key: placedKey(p, rank), Parent: p, Rank: rank, Value: b, Payload: b})
				}
			}
		}
		must(s.Commit(ctx, Batch{Put: puts}))
		must(s.(*sqlStore).flush(ctx))
		for _, want := range puts {
			if r, err := s.Get(ctx, want.Collection, want.Key); err != nil || len(r.Value)+len(r.Payload) > 0 {
				t.Errorf("%+v, %v", r, err)
			}
		}
		for _, p := range []string{"empty0", "empty1"} {
			must(s.Commit(ctx, Batch{Release: []Span{{hosts, p, Range{}}, {"e", "", Range{}}}}))
			must(s.(*sqlStore).flush(ctx))
			if list, err := s.List(ctx, hosts, p, Range{}, 0); err != nil || len(list) != minBlock {
				t.Errorf("%d records, %v", len(list), err)
			}
			must(s.Commit(ctx, Batch{DeleteUnder: []ParentKey{{hosts, p}, {guests, p}}}))
		}
		must(s.Commit(ctx, Batch{DeleteUnder: []ParentKey{{hosts, ""}, {guests, ""}, {"e", ""}}}))
	})
	t.Run("replace, add, delete", func(t *testing.T) {
		must(s.Commit(ctx, Batch{Put: []Record{{Collection: "a", Key: "1", Parent: "r", Value: []byte("new")}}}))
		if r, _ := s.Get(ctx, "a", "1"); string(r.Value) != "new" || r.Parent != "r" || r.Payload != nil {
			t.Errorf("replaced: %+v", r)
		}
		for range 3 {
			must(s.Commit(ctx, Batch{Add: []Record{{Collection: "n", Key: "x", Count: 5, Value: []byte("first")}}}))
		}
		if r, _ := s.Get(ctx, "n", "x"); r.Count != 15 || string(r.Value) != "first" {
			t.Errorf("added: %+v", r)
		}
		must(s.Commit(ctx, Batch{Delete: []RecordKey{{"a", "1"}, {"a", "none"}}, DeleteUnder: []ParentKey{{"a", "q"}}}))
		if left, _ := s.Missing(ctx, "a", "nothing"); len(left) != 1 || left[0].Key != "2" {
			t.Errorf("left: %+v", left)
		}
	})
	t.Run("release", func(t *testing.T) {
		var puts []Record
		for i := range int64(4) {
			puts = append(puts, Record{Collection: "r", Key: fmt.Sprint(i), Parent: "p", Rank: i, Value: []byte("value"), Payload: [][]byte{small, large}[i%2]})
		}
		must(s.Commit(ctx, Batch{Put: append(puts, Record{Collection: "r", Key: "other", Parent: "q", Rank: 1, Payload: large})}))
		must(s.Commit(ctx, Batch{Release: []Span{{"r", "p", Range{0, 2}}, {"r", "none", Range{}}}}))
		for _, c := range []struct {
			key      string
			released bool
		}{{"0", true}, {"1", true}, {"2", false}, {"3", false}, {"other", false}} {
			r, err := s.Get(ctx, "r", c.key)
			must(err)
			p, err := s.Payload(ctx, r)
			if err != nil || (p == nil) != c.released || c.released && r.Ref != (Ref{}) || c.key != "other" && string(r.Value) != "value" {
				t.Errorf("%s: value %q, payload of %d bytes, %v", c.key, r.Value, len(p), err)
			}
		}
		must(s.Commit(ctx, Batch{Release: []Span{{"r", "p", Range{}}}}))
		if r, _ := s.Get(ctx, "r", "3"); r.Ref != (Ref{}) {
			t.Errorf("the whole parent: %+v", r)
		}
	})
	t.Run("concurrent commits are all kept, in the order of their calls", func(t *testing.T) {
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				for i := range 50 {
					if err := s.Commit(ctx, Batch{Put: []Record{{Collection: "c", Key: fmt.Sprint(w), Rank: int64(i), Payload: bytes.Repeat([]byte{byte(i)}, 200)}}, Add: []Record{{Collection: "d", Key: "sum", Count: 1}}}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if r, _ := s.Get(ctx, "d", "sum"); r.Count != 16*50 {
			t.Errorf("sum %d", r.Count)
		}
		for w := range 16 {
			r, err := s.Get(ctx, "c", fmt.Sprint(w))
			must(err)
			if p, err := s.Payload(ctx, r); err != nil || r.Rank != 49 || p[0] != 49 {
				t.Errorf("writer %d: rank %d, %v", w, r.Rank, err)
			}
		}
	})
	t.Run("compact keeps what is referred to", func(t *testing.T) {
		count := func() int { n, _ := kept(t, s); return n }
		for i := range 3 { // each fills a segment of its own, the last one replaces the others
			must(s.Commit(ctx, Batch{Put: []Record{{Collection: "a", Key: "4", Payload: bytes.Repeat([]byte{byte(i)}, 60<<10)}}}))
		}
		before := count()
		must(s.Compact(ctx))
		if after := count(); before < 3 || after >= before {
			t.Errorf("%d segments before, %d after", before, after)
		}
		r, err := s.Get(ctx, "a", "2")
		must(err)
		if p, err := s.Payload(ctx, r); err != nil || !bytes.Equal(p, large) {
			t.Errorf("a payload was lost: %v", err)
		}
	})
	t.Run("segments are of one collection each", func(t *testing.T) {
		var puts []Record
		for i := range 10 {
			for _, collection := range []string{"short-lived", "long-lived"} {
				puts = append(puts, Record{Collection: collection, Key: fmt.Sprint(i), Parent: "p", Payload: bytes.Repeat([]byte{byte(i)}, 20<<10)})
			}
		}
		must(s.Commit(ctx, Batch{Put: puts}))
		size := func() int64 { _, bytes := kept(t, s); return bytes }
		before := size()
		must(s.Commit(ctx, Batch{Release: []Span{{"short-lived", "p", Range{}}}}))
		must(s.Compact(ctx))
		if freed := before - size(); freed < 130<<10 { // all but the segment that is open
			t.Errorf("%d bytes were freed", freed)
		}
		for i := range 10 {
			r, err := s.Get(ctx, "long-lived", fmt.Sprint(i))
			must(err)
			if p, err := s.Payload(ctx, r); err != nil || len(p) != 20<<10 {
				t.Errorf("%d: %d bytes, %v", i, len(p), err)
			}
		}
	})
	t.Run("a second process is kept out, and everything is there after opening again", func(t *testing.T) {
		if _, err := Open(ctx, opts); !errors.Is(err, ErrLocked) {
			t.Fatalf("second open: %v", err)
		}
		must(s.Close())
		if err := s.Commit(ctx, Batch{}); !errors.Is(err, ErrClosed) {
			t.Errorf("commit after close: %v", err)
		}
		s, err = Open(ctx, opts)
		must(err)
		r, err := s.Get(ctx, "a", "2")
		must(err)
		if p, err := s.Payload(ctx, r); err != nil || !bytes.Equal(p, large) {
			t.Errorf("payload after opening again: %v", err)
		}
	})
	t.Run("another format is refused", func(t *testing.T) {
		must(s.Commit(ctx, Batch{Put: []Record{{Collection: "store", Key: "format", Value: []byte("999")}}}))
		must(s.Close())
		if _, err := Open(ctx, opts); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "999") {
			t.Fatalf("got %v", err)
		}
	})
}

func TestDamagedJournal(t *testing.T) {
	payload := bytes.Repeat([]byte("0123456789"), 100)
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, file string, size int64)
	}{
		{"the last byte is cut off", func(t *testing.T, file string, size int64) { check(t, os.Truncate(file, size-1)) }},
		{"the tail was never written", func(t *testing.T, file string, size int64) { check(t, os.Truncate(file, int64(len(segmentMagic)))) }},
		{"a byte of the payload is flipped", func(t *testing.T, file string, size int64) { flip(t, file, size-1) }},
		{"a byte of the length is flipped", func(t *testing.T, file string, size int64) { flip(t, file, int64(len(segmentMagic))+8) }},
		{"the segment's magic is flipped", func(t *testing.T, file string, size int64) { flip(t, file, 0) }},
		{"the tail is zero", func(t *testing.T, file string, size int64) {
			check(t, os.Truncate(file, int64(len(segmentMagic))))
			check(t, os.Truncate(file, size))
		}},
		{"the file is gone", func(t *testing.T, file string, size int64) { check(t, os.Remove(file)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := openSQLiteTest(t, dir)
			check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "1", Payload: payload}}}))
			check(t, s.Close())
			file := filepath.Join(dir, "journal", "0000000001.seg")
			info, err := os.Stat(file)
			check(t, err)
			c.damage(t, file, info.Size())
			s = openSQLiteTest(t, dir)
			defer s.Close()
			r, err := s.Get(t.Context(), "a", "1")
			check(t, err)
			if p, err := s.Payload(t.Context(), r); !errors.Is(err, ErrCorrupt) || p != nil {
				t.Fatalf("got %d bytes, %v", len(p), err)
			}
			// The store goes on, in a segment of its own.
			check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "2", Payload: payload}}}))
			r, err = s.Get(t.Context(), "a", "2")
			check(t, err)
			if p, err := s.Payload(t.Context(), r); err != nil || !bytes.Equal(p, payload) {
				t.Fatalf("after the damage: %v", err)
			}
		})
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, file string, at int64) {
	t.Helper()
	b, err := os.ReadFile(file)
	check(t, err)
	b[at] ^= 0x10
	check(t, os.WriteFile(file, b, 0o600))
}

// writeUntilKilled is the other process of TestKill: it says every key whose commit was answered.
func writeUntilKilled(dir string) {
	s, err := Open(context.Background(), Options{Dir: dir, SegmentBytes: 64 << 10, InlineBytes: 100})
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	var out sync.Mutex
	for w := range 8 {
		go func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("%d-%d", w, i)
				r := Record{Collection: "k", Key: key, Payload: bytes.Repeat([]byte(key), 1+i%200)}
				if err := s.Commit(context.Background(), Batch{Put: []Record{r}}); err != nil {
					fmt.Println("failed", err)
					return
				}
				out.Lock()
				fmt.Println(key, len(r.Payload))
				out.Unlock()
			}
		}()
	}
	select {}
}

func TestKill(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TINSMITH_STORE_WRITER="+dir)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	answered := map[string]int{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var key string
		var n int
		if _, err := fmt.Sscan(lines.Text(), &key, &n); err != nil {
			t.Errorf("the writer said %q", lines.Text())
		}
		answered[key] = n
		if len(answered) == 300 {
			check(t, cmd.Process.Kill())
		}
	}
	cmd.Wait() // killed: its error is what we asked for
	if len(answered) < 300 {
		t.Fatalf("only %d commits were answered", len(answered))
	}
	s := openSQLiteTest(t, dir)
	defer s.Close()
	for key, n := range answered {
		r, err := s.Get(t.Context(), "k", key)
		check(t, err)
		p, err := s.Payload(t.Context(), r)
		check(t, err)
		if len(p) != n || !strings.HasPrefix(string(p), key) {
			t.Fatalf("%s: %d bytes, want %d", key, len(p), n)
		}
	}
}

func FuzzJournal(f *testing.F) {
	dir := f.TempDir()
	j, err := openJournal(dir, 1<<20, systemDisk{})
	if err != nil {
		f.Fatal(err)
	}
	payload := []byte("a payload of some length")
	ref, err := j.append("a", payload)
	if err != nil {
		f.Fatal(err)
	}
	if err := j.close(); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(j.path(ref.Segment))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, ref.Offset, ref.Length)
	f.Add(good[:len(good)-3], ref.Offset, ref.Length)
	f.Add(good, ref.Offset, int64(1)<<62)
	f.Add(good, int64(-1), int64(-1))
	f.Add(good, int64(1)<<62, int64(1)<<62)
	f.Fuzz(func(t *testing.T, segment []byte, offset, length int64) {
		ref := Ref{Segment: 1, Offset: offset, Length: length}
		got, err := readEntry(bytes.NewReader(segment), int64(len(segment)), ref)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) || got != nil {
				t.Fatalf("got %d bytes and %v", len(got), err)
			}
			return
		}
		if at := offset + entryHeader; !bytes.Equal(got, segment[at:at+length]) {
			t.Fatal("other bytes than the segment has")
		}
	})
}

func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dKiB,64 in flight", size>>10), func(b *testing.B) {
			s, err := Open(b.Context(), Options{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			payload := bytes.Repeat([]byte("x"), size)
			var next sync.Mutex
			n := 0
			b.SetParallelism(64) // times GOMAXPROCS
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					next.Lock()
					n++
					key := fmt.Sprint(n)
					next.Unlock()
					if err := s.Commit(b.Context(), Batch{Put: []Record{{Collection: "k", Key: key, Payload: payload}}}); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}
