package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store/storetest"
)

// TestPages compares pages, counts and parents with what List gives, while changes are in the log, on their way to the database, and there.
func TestPages(t *testing.T) { testPages(t, Options{Dir: t.TempDir()}) }

func TestPagesOfPostgres(t *testing.T) {
	testPages(t, Options{Dir: t.TempDir(), PostgresURL: storetest.Schema(t)})
}

func testPages(t *testing.T, opts Options) {
	opts.applyAfter = time.Hour
	s, err := Open(t.Context(), opts)
	check(t, err)
	defer s.Close()
	ctx := t.Context()
	random := rand.New(rand.NewPCG(1, 2))
	parents := []string{"a", "b", "c"}
	record := func() Record {
		return Record{Collection: "x", Key: fmt.Sprint("k", random.IntN(60)), Parent: parents[random.IntN(2)], Rank: random.Int64N(20), Value: []byte(strings.Repeat("v", random.IntN(50)))}
	}
	for round := range 30 {
		var b Batch
		for range random.IntN(8) {
			b.Put = append(b.Put, record())
		}
		for range random.IntN(4) {
			b.Delete = append(b.Delete, RecordKey{"x", record().Key})
		}
		if random.IntN(15) == 0 {
			b.DeleteUnder = append(b.DeleteUnder, ParentKey{"x", parents[random.IntN(2)]})
		}
		for range random.IntN(4) { // one place for good
			n := random.IntN(10)
			b.Add = append(b.Add, Record{Collection: "x", Key: fmt.Sprint("sum", n), Parent: "c", Rank: int64(n / 3), Count: 1, Value: []byte("sum")})
		}
		check(t, s.Commit(ctx, b))
		if random.IntN(6) == 0 {
			check(t, s.(*sqlStore).flush(ctx))
		}
		for _, parent := range parents {
			for _, r := range []Range{{}, {5, 12}} {
				want, err := s.List(ctx, "x", parent, r, 0)
				check(t, err)
				n, err := s.Count(ctx, "x", parent, r)
				check(t, err)
				if n != len(want) {
					t.Fatalf("round %d, parent %s: %d are counted of %d", round, parent, n, len(want))
				}
				for _, newest := range []bool{false, true} {
					if newest {
						slices.Reverse(want)
					}
					for _, q := range []PageQuery{{Limit: 1}, {Limit: 3}, {Limit: 1000}, {Limit: 50, Bytes: 40}, {Limit: 4, Offset: 3}, {Limit: 7, Keys: true}} {
						q.Range, q.Newest = r, newest
						got := gatherPages(t, s, parent, q)
						if q.Keys && slices.ContainsFunc(got, func(r Record) bool { return r.Value != nil || r.Count != 0 }) {
							t.Fatalf("round %d: a page of keys has values", round)
						}
						expected := want[min(q.Offset, len(want)):]
						if described, wanted := describe(got, q.Keys), describe(expected, q.Keys); described != wanted {
							t.Fatalf("round %d, parent %s, %+v:\ngot  %s\nwant %s", round, parent, q, described, wanted)
						}
					}
				}
			}
		}
		var want []string
		for _, parent := range parents {
			if n, err := s.Count(ctx, "x", parent, Range{}); err == nil && n > 0 {
				want = append(want, parent)
			}
		}
		got, err := s.Parents(ctx, "x", "", 10)
		check(t, err)
		for _, parent := range want {
			if !slices.Contains(got, parent) {
				t.Fatalf("round %d: parent %s is not in %v", round, parent, got)
			}
		}
	}
}

// gatherPages reads page by page to the end.
func gatherPages(t *testing.T, s Store, parent string, q PageQuery) []Record {
	t.Helper()
	var all []Record
	for {
		page, more, err := s.Page(t.Context(), "x", parent, q)
		check(t, err)
		var bytes int64
		for i, r := range page {
			if q.Bytes > 0 && bytes >= q.Bytes {
				t.Fatalf("record %d of a page that has %d bytes without it", i, bytes)
			}
			bytes += int64(len(r.Value))
		}
		if len(page) > q.Limit || more && len(page) == 0 {
			t.Fatalf("a page has %d records of at most %d, more %t", len(page), q.Limit, more)
		}
		all = append(all, page...)
		if !more {
			return all
		}
		last := page[len(page)-1]
		q.Offset, q.After = 0, &Place{last.Rank, last.Key}
	}
}

func describe(list []Record, keys bool) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "%s %d", r.Key, r.Rank)
		if !keys {
			fmt.Fprintf(&b, " %d %d", r.Count, len(r.Value))
		}
		b.WriteString("; ")
	}
	return b.String()
}

// TestPageReadsNoMore has many large records, of which a page must not hold more than it gives.
func TestPageReadsNoMore(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir()})
	check(t, err)
	defer s.Close()
	for i := range 40 {
		check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "x", Key: fmt.Sprintf("%03d", i), Parent: "a", Rank: int64(i), Value: make([]byte, 256<<10)}}}))
	}
	check(t, s.(*sqlStore).flush(t.Context()))
	for _, c := range []struct {
		name  string
		query PageQuery
		most  int // bytes
	}{
		{"one", PageQuery{Limit: 1}, 2 * 256 << 10},
		{"by bytes", PageQuery{Limit: 1000, Bytes: 1 << 20}, 6 * 256 << 10},
		{"keys", PageQuery{Limit: 1000, Keys: true}, 0},
		{"far behind", PageQuery{Limit: 1, Newest: true, After: &Place{9, "009"}}, 2 * 256 << 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			bytes := 0
			batch, _, err := s.(*sqlStore).scanBatch(t.Context(), "x", "a", c.query, c.query.After)
			check(t, err)
			for _, r := range batch {
				bytes += len(r.Value)
			}
			if bytes > c.most {
				t.Errorf("%d bytes are read, at most %d are needed", bytes, c.most)
			}
		})
	}
}

// TestLargeRecords finds those in the journal wherever their rows are: on their own, with their operation, or not in the database yet.
func TestLargeRecords(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), applyAfter: time.Hour})
	check(t, err)
	defer s.Close()
	payload := func(n int) []byte {
		if n%3 == 0 {
			return make([]byte, 10<<10)
		}
		return make([]byte, 100)
	}
	one := func(collection string, n int) Record {
		return Record{Collection: collection, Key: fmt.Sprint("p:", n), Parent: "p", Rank: int64(n), Payload: payload(n)}
	}
	for n := range 12 {
		check(t, s.Commit(t.Context(), Batch{Put: []Record{one(Operations, n)}}))
		if n == 4 || n == 8 {
			check(t, s.(*sqlStore).flush(t.Context()))
		}
		check(t, s.Commit(t.Context(), Batch{Put: []Record{one(Results, n)}}))
	}
	look := func(when, want string) {
		t.Helper()
		list, err := s.Large(t.Context(), Results, "p")
		check(t, err)
		if got := describe(list, true); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
		for _, r := range list {
			if b, err := s.Payload(t.Context(), r); err != nil || len(b) != 10<<10 {
				t.Errorf("%s: %s has %d bytes, %v", when, r.Key, len(b), err)
			}
		}
	}
	look("in part", "p:0 0; p:3 3; p:6 6; p:9 9; ")
	check(t, s.(*sqlStore).flush(t.Context()))
	look("in the database", "p:0 0; p:3 3; p:6 6; p:9 9; ")
	small := one(Results, 3)
	small.Payload = []byte("small")
	check(t, s.Commit(t.Context(), Batch{Put: []Record{small}}))
	look("one made small", "p:0 0; p:6 6; p:9 9; ")
	check(t, s.(*sqlStore).flush(t.Context()))
	look("one made small, in the database", "p:0 0; p:6 6; p:9 9; ")
	check(t, s.Commit(t.Context(), Batch{DeleteUnder: []ParentKey{{Operations, "p"}}}))
	look("without operations", "p:0 0; p:6 6; p:9 9; ")
	if r, err := s.Get(t.Context(), Results, "p:3"); err != nil || string(r.Payload) != "small" {
		t.Errorf("%+v, %v", r, err)
	}
}
