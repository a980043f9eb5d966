package store

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/store/storetest"
)

// eachForm measures a store whose log is in files, and one that is shared, whose log is in PostgreSQL.
func eachForm(b *testing.B, measure func(*testing.B, Store)) {
	for _, form := range []string{"files", "shared"} {
		b.Run(form, func(b *testing.B) {
			opts := Options{Dir: b.TempDir(), Reserve: -1}
			if form == "shared" {
				opts.PostgresURL = storetest.Schema(b)
				opts.Lease = leaseOf(b, opts.PostgresURL, "", nil)
			}
			s, err := Open(b.Context(), opts)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			measure(b, s)
		})
	}
}

// BenchmarkCommitAlone is what one client waits for a small commit that nothing else shares a sync with.
func BenchmarkCommitAlone(b *testing.B) { eachForm(b, commitAlone) }

func commitAlone(b *testing.B, s Store) {
	n := 0
	for b.Loop() {
		n++
		if err := s.Commit(b.Context(), Batch{Put: []Record{{Collection: "k", Key: fmt.Sprint(n), Value: make([]byte, 200)}}}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommitPairs has many clients commit operations and then their results, as busy runs do.
func BenchmarkCommitPairs(b *testing.B) { eachForm(b, commitPairs) }

func commitPairs(b *testing.B, s Store) {
	value, payload := make([]byte, 100), make([]byte, 600)
	const clients = 32
	next := make(chan int)
	done := make(chan error)
	for range clients {
		go func() {
			var err error
			for i := range next {
				p := fmt.Sprint("run", i%16)
				r := Record{Collection: hosts, Key: placedKey(p, int64(i/16)), Parent: p, Rank: int64(i / 16), Value: value, Payload: payload}
				for _, c := range []string{hosts, guests} {
					r.Collection = c
					if e := s.Commit(b.Context(), Batch{Put: []Record{r}, Add: []Record{{Collection: "sums", Key: p, Count: 1}}}); e != nil {
						err = e
					}
				}
			}
			done <- err
		}()
	}
	n := 0
	for b.Loop() {
		next <- n
		n++
	}
	close(next)
	for range clients {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "pairs/s")
}
