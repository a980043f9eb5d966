package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testJointRows has pairs of an operation and its result in one row and in two, also in a database that a program of the last format left.
func testJointRows(t *testing.T, opts Options) {
	opts.applyAfter, opts.InlineBytes = time.Hour, 100
	opened, err := Open(t.Context(), opts)
	check(t, err)
	pair := func(i int) []Record {
		host := Record{Collection: hosts, Key: fmt.Sprint(i), Parent: "p", Rank: int64(i), Value: []byte("asked"), Payload: []byte(strings.Repeat("a", 50*i))}
		guest := host
		guest.Collection, guest.Value, guest.Payload = guests, []byte("answered"), []byte(strings.Repeat("b", 50*i))
		return []Record{host, guest}
	}
	number := func(text string) (n int) {
		t.Helper()
		check(t, opened.(*sqlStore).db.writer.QueryRowContext(t.Context(), text).Scan(&n))
		return n
	}
	verify := func(when string, answered ...int) {
		t.Helper()
		check(t, opened.(*sqlStore).flush(t.Context()))
		check(t, opened.Compact(t.Context()))
		for _, collection := range []string{hosts, guests} {
			list, err := opened.List(t.Context(), collection, "p", Range{1, 9}, 0)
			check(t, err)
			var got []int
			for _, r := range list {
				payload, err := opened.Payload(t.Context(), r)
				check(t, err)
				want := pair(int(r.Rank))[map[string]int{hosts: 0, guests: 1}[collection]]
				if again, err := opened.Get(t.Context(), collection, r.Key); err != nil || again.Ref != r.Ref || string(payload) != string(want.Payload) || string(r.Value) != string(want.Value) || r.Key != want.Key {
					t.Errorf("%s: %s %s: %q with %d bytes, then %+v, %v", when, collection, r.Key, r.Value, len(payload), again, err)
				}
				got = append(got, int(r.Rank))
			}
			if want := []int{1, 2, 3, 4}; collection == hosts && !slices.Equal(got, want) || collection == guests && !slices.Equal(got, answered) {
				t.Errorf("%s: %s has %v, answered are %v", when, collection, got, answered)
			}
		}
		all := 0
		check(t, opened.All(t.Context(), guests, func(Record) error { all++; return nil }))
		if missing, err := opened.Missing(t.Context(), hosts, guests); err != nil || len(missing) != 4-len(answered) || all != len(answered) {
			t.Errorf("%s: %d of %d results are missing, %d there, %v", when, len(missing), 4, all, err)
		}
	}
	const joint, alone = "SELECT COUNT(*) FROM tinsmith_records WHERE guest = 1", "SELECT COUNT(*) FROM tinsmith_records WHERE collection = '" + guests + "'"
	check(t, opened.Commit(t.Context(), Batch{Put: pair(1)}))
	check(t, opened.Commit(t.Context(), Batch{Put: pair(2)[:1]}))
	check(t, opened.Commit(t.Context(), Batch{Put: pair(3)}))
	check(t, opened.Commit(t.Context(), Batch{Put: pair(4)[:1]}))
	verify("two at once", 1, 3)
	check(t, opened.Commit(t.Context(), Batch{Put: pair(2)[1:]}))
	verify("another one later", 1, 2, 3)
	if a, b := number(joint), number(alone); a != 2 || b != 1 {
		t.Errorf("%d results are in rows of their operations and %d in rows of their own, want 2 and 1", a, b)
	}

	// As the last format had it: a row each, and no columns for more.
	check(t, opened.Commit(t.Context(), Batch{Put: append(pair(1)[1:], pair(3)[1:]...)}))
	verify("written again alone", 1, 2, 3)
	if n := number(joint); n != 0 {
		t.Errorf("%d results are still in rows of their operations", n)
	}
	check(t, opened.Commit(t.Context(), Batch{Put: []Record{{Collection: inStore, Key: formatKey, Value: []byte("3")}}, Delete: []RecordKey{{inStore, schemaKey}, {inStore, identityKey}}}))
	check(t, opened.(*sqlStore).flush(t.Context()))
	texts := []string{"DROP INDEX tinsmith_records_guest_segment"}
	for _, column := range addedColumns[1:] { // and a start that a crash cut off has added the first one
		name, _, _ := strings.Cut(column, " ")
		texts = append(texts, "ALTER TABLE tinsmith_records DROP COLUMN "+name)
	}
	for _, column := range addedBlockColumns {
		name, _, _ := strings.Cut(column, " ")
		texts = append(texts, "ALTER TABLE tinsmith_blocks DROP COLUMN "+name)
	}
	for _, text := range texts {
		_, err := opened.(*sqlStore).db.writer.ExecContext(t.Context(), text)
		check(t, err)
	}
	check(t, opened.Close())
	check(t, os.Remove(filepath.Join(opts.Dir, markName)))
	opened, err = Open(t.Context(), opts)
	check(t, err)
	defer func() { check(t, opened.Close()) }()
	verify("in a database of the last format", 1, 2, 3)
	check(t, opened.Commit(t.Context(), Batch{Put: slices.Concat(pair(2), pair(4))}))
	verify("and then in one of this", 1, 2, 3, 4)
	if a, b := number(joint), number(alone); a != 2 || b != 2 {
		t.Errorf("%d results are in rows of their operations and %d in rows of their own, want 2 and 2", a, b)
	}

	check(t, opened.Commit(t.Context(), Batch{DeleteUnder: []ParentKey{{hosts, "p"}}}))
	list, err := opened.List(t.Context(), guests, "p", Range{}, 0)
	check(t, err)
	check(t, opened.(*sqlStore).flush(t.Context()))
	again, err := opened.List(t.Context(), guests, "p", Range{}, 0)
	if check(t, err); len(list) != 4 || len(again) != 4 || number(joint) != 0 {
		t.Errorf("without their operations %d and then %d results are left", len(list), len(again))
	}
	check(t, opened.Commit(t.Context(), Batch{DeleteUnder: []ParentKey{{guests, "p"}}}))
	check(t, opened.(*sqlStore).flush(t.Context()))
	if n := number(alone); n != 0 {
		t.Errorf("%d results are left", n)
	}
}
