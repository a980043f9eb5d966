package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store/storetest"
)

// testLease is short: tests wait for it.
const testLease = 600 * time.Millisecond

// leaseOf takes the lease of a database, which the test leaves at its end.
func leaseOf(t testing.TB, database, name string, lost func(error)) *Lease {
	t.Helper()
	l, err := AwaitLease(t.Context(), LeaseOptions{PostgresURL: database, Name: name, Time: testLease, Lost: lost}, func(Waiting) {})
	check(t, err)
	t.Cleanup(func() { _ = l.Leave() }) // another may have it by now
	return l
}

// A store with everything in the database does what the others do.
func TestShared(t *testing.T) {
	options := func(t *testing.T) Options {
		schema := storetest.Schema(t)
		return Options{Dir: t.TempDir(), PostgresURL: schema, Lease: leaseOf(t, schema, "", nil)}
	}
	with := options(t)
	testStore(t, func(dir string) Options { with.Dir = dir; return with })
	testChangesOverTheDatabase(t, options(t))
}

// halt keeps a lease from being renewed and its connections as they are, as a stopped process does.
func (l *Lease) halt() { l.end(); <-l.done }

// A second gateway with another data directory takes over what the first one had acknowledged, and the first one writes nothing any more.
func TestTakeover(t *testing.T) {
	schema := storetest.Schema(t)
	var mu sync.Mutex
	var lost []error
	first := leaseOf(t, schema, "first", func(err error) { mu.Lock(); defer mu.Unlock(); lost = append(lost, err) })
	opts := Options{Dir: t.TempDir(), PostgresURL: schema, Lease: first, InlineBytes: 100, SegmentBytes: 8 << 10, applyAfter: time.Hour}
	old, err := Open(t.Context(), opts)
	check(t, err)
	defer old.Close()
	l := lived{want: records{}}
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 200 {
		b := randomBatch(random)
		l.want.take(b)
		check(t, old.Commit(t.Context(), b))
		if i == 100 {
			check(t, old.(*sqlStore).flush(t.Context()))
		}
	}
	// One that waits does not get it while it is renewed, and says who has it.
	waiting := make(chan Waiting, 100)
	short, cancel := context.WithTimeout(t.Context(), 2*testLease)
	defer cancel()
	if _, err := AwaitLease(short, LeaseOptions{PostgresURL: schema, Time: testLease}, func(w Waiting) { waiting <- w }); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a second one beside the first: %v", err)
	}
	if w := <-waiting; w.Holder != "first" || w.Err != nil {
		t.Errorf("it waits for %+v", w)
	}
	// The first one is in the middle of a transaction that holds the lease when it is stopped.
	tx, err := old.(*sqlStore).db.writer.BeginTx(t.Context(), nil)
	check(t, err)
	check(t, first.hold(t.Context(), old.(*sqlStore).db, tx))
	_, err = tx.ExecContext(t.Context(), "INSERT INTO tinsmith_log (number, sum, content) VALUES (1000000, 0, '')")
	check(t, err)
	first.halt()
	second := opts
	second.Dir, second.Lease, second.applyAfter = t.TempDir(), leaseOf(t, schema, "second", nil), 0
	s, err := Open(t.Context(), second)
	check(t, err)
	defer s.Close()
	if differences, damaged := compareStore(t, l, s); len(differences)+len(damaged) > 0 {
		t.Errorf("taken over: %v %v", differences, damaged)
	}
	if err := tx.Commit(); err == nil {
		t.Error("the transaction of the first one was committed")
	}
	for range 3 {
		if err := old.Commit(t.Context(), Batch{Put: []Record{{Collection: "old", Key: "1", Payload: make([]byte, 1000)}}}); err == nil {
			t.Error("the first one still writes")
		}
	}
	if err := old.(*sqlStore).apply(t.Context(), old.(*sqlStore).active); !errors.Is(err, ErrFenced) {
		t.Errorf("the first one brings changes to the database: %v", err)
	}
	if err := old.(*sqlStore).journal.(*sharedJournal).removeSegment(t.Context(), 1); !errors.Is(err, ErrFenced) {
		t.Errorf("the first one removes payloads: %v", err)
	}
	mu.Lock()
	if len(lost) != 1 || !errors.Is(lost[0], ErrFenced) {
		t.Errorf("the first one was told %v", lost)
	}
	mu.Unlock()
	for range 50 {
		b := randomBatch(random)
		l.want.take(b)
		check(t, s.Commit(t.Context(), b))
	}
	check(t, s.Compact(t.Context()))
	if _, err := s.Get(t.Context(), "old", "1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a record of the first one: %v", err)
	}
	// Left in an orderly way it is taken at once, by one whose data directory has an older mark.
	check(t, s.Close())
	check(t, second.Lease.Leave())
	third := opts
	third.Lease = leaseOf(t, schema, "third", nil)
	check(t, old.Close())
	s, err = Open(t.Context(), third)
	check(t, err)
	if differences, damaged := compareStore(t, l, s); len(differences)+len(damaged) > 0 {
		t.Errorf("taken over again: %v %v", differences, damaged)
	}
	check(t, s.Close())
}

// Of many that begin at once in an empty database one has the lease at a time, each once, with a number of its own.
func TestManyWait(t *testing.T) {
	schema := storetest.Schema(t)
	var mu sync.Mutex
	var holding *Lease
	numbers := map[int64]bool{}
	var all sync.WaitGroup
	for i := range 5 {
		all.Go(func() {
			l, err := AwaitLease(t.Context(), LeaseOptions{PostgresURL: schema, Name: fmt.Sprint(i), Time: 5 * testLease, Lost: func(err error) { t.Error(err) }}, func(Waiting) {})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			if holding != nil || numbers[l.number] {
				t.Errorf("%d has the lease %d beside another", i, l.number)
			}
			holding, numbers[l.number] = l, true
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			holding = nil
			mu.Unlock()
			if err := l.Leave(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(numbers) != 5 {
		t.Errorf("the numbers %v were given", numbers)
	}
}

// What is of one form is refused by the other, with nothing changed.
func TestSharedOrNot(t *testing.T) {
	alone := Options{Dir: t.TempDir(), PostgresURL: storetest.Schema(t)}
	s, err := Open(t.Context(), alone)
	check(t, err)
	check(t, s.Close())
	with := Options{Dir: t.TempDir(), PostgresURL: alone.PostgresURL, Lease: leaseOf(t, alone.PostgresURL, "", nil)}
	if _, err := Open(t.Context(), with); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "tinsmith backup") {
		t.Errorf("a database that is not shared: %v", err)
	}
	check(t, with.Lease.Leave())
	with = Options{Dir: t.TempDir(), PostgresURL: storetest.Schema(t)}
	with.Lease = leaseOf(t, with.PostgresURL, "", nil)
	s, err = Open(t.Context(), with)
	check(t, err)
	if _, err := Open(t.Context(), Options{Dir: t.TempDir(), PostgresURL: with.PostgresURL}); !errors.Is(err, ErrLocked) {
		t.Errorf("a gateway without a lease beside one with it: %v", err)
	}
	check(t, s.Close())
	check(t, with.Lease.Leave())
	if _, err := Open(t.Context(), Options{Dir: t.TempDir(), PostgresURL: with.PostgresURL}); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "`files`") {
		t.Errorf("a shared database without a lease: %v", err)
	}
}

// A group that the database has lost is not followed by another one.
func TestSharedGap(t *testing.T) {
	schema := storetest.Schema(t)
	opts := Options{Dir: t.TempDir(), PostgresURL: schema, Lease: leaseOf(t, schema, "", nil), applyAfter: time.Hour}
	other := opts
	other.Dir = t.TempDir()
	s, err := Open(t.Context(), other)
	check(t, err)
	check(t, s.Close())
	s, err = Open(t.Context(), opts)
	check(t, err)
	for i := range 3 {
		check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: fmt.Sprint(i)}}}))
	}
	_, err = s.(*sqlStore).db.writer.ExecContext(t.Context(), "DELETE FROM tinsmith_log WHERE number = 3")
	check(t, err)
	if err := s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "4"}}}); !errors.Is(err, ErrLost) {
		t.Errorf("behind a group that is gone: %v", err)
	}
	check(t, s.Close())
	var l *Loss
	if _, err := Open(t.Context(), opts); !errors.As(err, &l) || !strings.Contains(err.Error(), "change 3") {
		t.Errorf("opened again: %v", err)
	}
	outside, err := sql.Open("pgx", schema)
	check(t, err)
	defer outside.Close()
	_, err = outside.ExecContext(t.Context(), "INSERT INTO tinsmith_log (number, sum, content) VALUES (3, 7, 'damaged')")
	check(t, err)
	if _, err := Open(t.Context(), opts); !errors.As(err, &l) || !strings.Contains(err.Error(), "checksum of group 3") {
		t.Errorf("with a damaged group: %v", err)
	}
	opts.Accept = true
	s, err = Open(t.Context(), opts)
	check(t, err)
	if _, err := s.Get(t.Context(), "a", "1"); err != nil {
		t.Errorf("what is left: %v", err)
	}
	check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "5"}}}))
	check(t, s.Close())
	aside := 0
	if err := outside.QueryRowContext(t.Context(), "SELECT count(*) FROM tinsmith_lost WHERE number = 3 AND content = 'damaged'").Scan(&aside); err != nil || aside != 1 {
		t.Errorf("%d damaged groups were set aside, %v", aside, err)
	}
	// That it was accepted binds other gateways, too.
	s, err = Open(t.Context(), other)
	check(t, err)
	if _, err := s.Get(t.Context(), "a", "5"); err != nil {
		t.Errorf("what came after that, by another gateway: %v", err)
	}
	check(t, s.Close())
}

// While the database is away commits wait, new work is told of it, and everything goes on when it is back: nothing is lost, and nothing is there twice.
func TestDatabaseAway(t *testing.T) {
	schema := storetest.Schema(t)
	u, err := url.Parse(schema)
	check(t, err)
	p := newProxy(t, u.Host)
	u.Host = p.listener.Addr().String()
	opts := Options{Dir: t.TempDir(), PostgresURL: u.String(), InlineBytes: 100, applyAfter: 20 * time.Millisecond}
	opts.Lease = leaseOf(t, opts.PostgresURL, "", func(err error) { t.Error(err) })
	s, err := Open(t.Context(), opts)
	check(t, err)
	const writers = 4
	var wg sync.WaitGroup
	end, done := make(chan bool), [writers]int64{}
	for w := range writers {
		wg.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				i := done[w] + 1
				b := Batch{Put: []Record{{Collection: "w", Key: fmt.Sprint(w, " ", i), Parent: fmt.Sprint(w), Rank: i, Payload: bytes.Repeat([]byte{byte(i)}, int(50+i%100))}}, Add: []Record{{Collection: "sum", Key: fmt.Sprint(w), Count: 1}}}
				switch err := s.Commit(t.Context(), b); {
				case err == nil:
					done[w] = i
				case errors.Is(err, ErrUnavailable): // it was not done, and is asked for again
					time.Sleep(10 * time.Millisecond)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		time.Sleep(300 * time.Millisecond)
		p.sever(true)
		for deadline := time.Now().Add(time.Minute); s.Err() == nil && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond)
		}
		if trouble := TroubleOf(s.Err()); trouble == nil || trouble.State != Failing {
			t.Errorf("new work is told %v", s.Err())
		}
		p.sever(false)
		for deadline := time.Now().Add(time.Minute); s.Err() != nil && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond)
		}
		check(t, s.Err())
	}
	close(end)
	wg.Wait()
	for w := range writers {
		list, err := s.List(t.Context(), "w", fmt.Sprint(w), Range{}, 0)
		check(t, err)
		r, err := s.Get(t.Context(), "sum", fmt.Sprint(w))
		if err != nil || int64(len(list)) != done[w] || r.Count != done[w] {
			t.Errorf("writer %d was told of %d commits; there are %d records, and the sum is %d: %v", w, done[w], len(list), r.Count, err)
		}
	}
	check(t, s.Close())
	// Closed while the database is away it ends, and what was acknowledged is there afterwards.
	opts.applyAfter = time.Hour
	s, err = Open(t.Context(), opts)
	check(t, err)
	check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "last", Key: "1"}}}))
	p.sever(true)
	_ = s.Close() // it says what it could not do
	p.sever(false)
	s, err = Open(t.Context(), opts)
	check(t, err)
	if _, err := s.Get(t.Context(), "last", "1"); err != nil {
		t.Error(err)
	}
	check(t, s.Close())
	if left, err := filepath.Glob(filepath.Join(opts.Dir, "log")); err != nil || len(left) > 0 {
		if entries, _ := os.ReadDir(left[0]); len(entries) > 0 {
			t.Errorf("the data directory has %v", entries)
		}
	}
}
