package store

import (
	"bytes"
	"fmt"
	"testing"
)

// BenchmarkOpen opens a store with many records after a clean end: sessions and sums in rows, operations with their results in blocks.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	opts := Options{Dir: dir, Reserve: -1}
	s, err := Open(b.Context(), opts)
	if err != nil {
		b.Fatal(err)
	}
	const records = 100_000
	value, payload := bytes.Repeat([]byte("v"), 100), bytes.Repeat([]byte("p"), 500)
	for at := 0; at < records; at += 1000 {
		var batch Batch
		for i := at; i < at+250; i++ {
			p := fmt.Sprint("run", i%7)
			key := placedKey(p, int64(i/7))
			batch.Put = append(
				batch.Put, Record{Collection: "sessions", Key: fmt.Sprint(i), Parent: "owner", Rank: int64(i), Value: value}, Record{Collection: "sums", Key: fmt.Sprint(i), Count: int64(i)},
				Record{Collection: hosts, Key: key, Parent: p, Rank: int64(i / 7), Value: value, Payload: payload}, Record{Collection: guests, Key: key, Parent: p, Rank: int64(i / 7), Value: value, Payload: payload},
			)
		}
		if err := s.Commit(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := Open(b.Context(), opts)
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for _, c := range []string{"sessions", "sums", hosts, guests} {
			if err := s.All(b.Context(), c, func(Record) error { n++; return nil }); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		if n < records/2 {
			b.Fatalf("%d records", n)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
