package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Place is where a record stands among those of its parent.
type Place struct {
	Rank int64
	Key  string
}

func (p Place) compare(other Place) int {
	return cmp.Or(cmp.Compare(p.Rank, other.Rank), strings.Compare(p.Key, other.Key))
}

// PageQuery selects some of the records of a parent, in order of rank and then key.
type PageQuery struct {
	Range  Range  // of ranks
	Newest bool   // the highest rank first, else the lowest
	After  *Place // only what comes behind this place, in that order; nil = from the beginning
	Offset int    // so many are passed over
	Limit  int    // at most so many, at least 1
	Bytes  int64  // the page ends with the record that makes its values so large; 0 = it does not matter how large they are
	Keys   bool   // without Count, Value and Payload, which are then not read either
}

// scanBatch bounds what of a page is in memory before it is known whether it belongs there.
const scanBatch = 1000

// errEnough ends the reading of rows.
var errEnough = errors.New("enough")

// Page implements Store.
func (s *sqlStore) Page(ctx context.Context, collection, parent string, q PageQuery) (page []Record, more bool, err error) {
	if paired(collection) {
		return nil, false, fmt.Errorf("records of %s are not read by page", collection)
	}
	if q.Limit < 1 || q.Offset < 0 {
		return nil, false, fmt.Errorf("page of %s: limit %d and offset %d", collection, q.Limit, q.Offset)
	}
	if q.Offset > 0 {
		passed := q
		passed.Keys, passed.Offset, passed.Limit, passed.Bytes = true, 0, q.Offset, 0
		left := q.Offset
		var last Place
		err := s.scan(ctx, collection, parent, passed, func(r Record) bool {
			last = Place{r.Rank, r.Key}
			left--
			return left > 0
		})
		if err != nil || left > 0 {
			return nil, false, err
		}
		q.Offset, q.After = 0, &last
	}
	var bytes int64
	err = s.scan(ctx, collection, parent, q, func(r Record) bool {
		if len(page) == q.Limit || q.Bytes > 0 && bytes >= q.Bytes {
			more = true
			return false
		}
		page = append(page, r)
		bytes += int64(len(r.Value) + len(r.Payload))
		return true
	})
	return page, more, err
}

// scan yields the records of a parent in order until yield says that it has enough. It holds no more than a batch of them at a time.
func (s *sqlStore) scan(ctx context.Context, collection, parent string, q PageQuery, yield func(Record) bool) error {
	for after := q.After; ; {
		batch, bound, err := s.scanBatch(ctx, collection, parent, q, after)
		if err != nil {
			return err
		}
		for _, r := range batch {
			if !yield(r) {
				return nil
			}
		}
		if bound == nil {
			return nil
		}
		after = bound
	}
}

// scanBatch gives the next records behind a place, and the place up to which that is all; nil when there are no more.
func (s *sqlStore) scanBatch(ctx context.Context, collection, parent string, q PageQuery, after *Place) ([]Record, *Place, error) {
	changes := s.pendings()
	what, read, order, beyond := columns, s.query, " ORDER BY place, id", " AND (place, id) > (?, ?)"
	if q.Keys {
		what, read = keyColumns, s.keys
	}
	if q.Newest {
		order, beyond = " ORDER BY place DESC, id DESC", " AND (place, id) < (?, ?)"
	}
	text, args := "SELECT "+what+groupColumn+" FROM tinsmith_records WHERE collection = ? AND parent = ?", []any{collection, parent}
	if q.Range != (Range{}) {
		text, args = text+inRange, append(args, q.Range.From, q.Range.To)
	}
	if after != nil {
		text, args = text+beyond, append(args, after.Rank, after.Key)
	}
	limit := min(q.Limit, scanBatch-1) + 1
	var rows []Record
	var bytes int64
	applied, err := read(ctx, collection, Range{}, func(r Record) error {
		rows = append(rows, r)
		if bytes += int64(len(r.Value) + len(r.Payload)); q.Bytes > 0 && bytes > q.Bytes {
			return errEnough
		}
		return nil
	}, text+order+" LIMIT ?", append(args, limit)...)
	full := errors.Is(err, errEnough) || len(rows) == limit
	if err != nil && !errors.Is(err, errEnough) {
		return nil, nil, err
	}
	var bound *Place
	if full {
		last := rows[len(rows)-1]
		bound = &Place{last.Rank, last.Key}
	}
	direction := 1
	if q.Newest {
		direction = -1
	}
	within := func(p Place) bool {
		return (after == nil || direction*p.compare(*after) > 0) && (bound == nil || direction*p.compare(*bound) <= 0)
	}
	s.view.RLock()
	changes = changes.after(applied)
	there := map[string]bool{}
	var out []Record
	for _, r := range rows {
		there[r.Key] = true
		if now := changes.over(RecordKey{collection, r.Key}, &r); now != nil && now.Parent == parent && now.Rank == r.Rank {
			out = append(out, *now)
		} else if now != nil {
			there[r.Key] = false // it has another place now
		}
	}
	for _, p := range changes {
		if p == nil {
			continue
		}
		for _, k := range p.parents[ParentKey{collection, parent}] {
			if there[k.Key] {
				continue
			}
			if now := changes.over(k, nil); now != nil && now.Parent == parent && q.Range.holds(now.Rank) && within(Place{now.Rank, now.Key}) {
				there[k.Key] = true
				out = append(out, *now)
			}
		}
	}
	s.view.RUnlock()
	slices.SortFunc(out, func(a, b Record) int { return direction * Place{a.Rank, a.Key}.compare(Place{b.Rank, b.Key}) })
	if q.Keys {
		for i := range out {
			out[i].Count, out[i].Value, out[i].Payload, out[i].Ref = 0, nil, nil, Ref{}
		}
	}
	return out, bound, nil
}

// keyColumns are what an index has of a record.
const keyColumns = "id, parent, place"

// keys yields records as query does, without what is not in keyColumns.
func (s *sqlStore) keys(ctx context.Context, collection string, _ Range, yield func(Record) error, text string, args ...any) (applied int64, err error) {
	rows, err := s.db.read(ctx, text, args...)
	if err != nil {
		return 0, fmt.Errorf("read keys: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		r := Record{Collection: collection}
		if err := rows.Scan(&r.Key, &r.Parent, &r.Rank, &applied); err != nil {
			return 0, fmt.Errorf("read keys: %w", err)
		}
		if err := yield(r); err != nil {
			return applied, err
		}
	}
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("read keys: %w", err)
	}
	return applied, nil
}

// countChunk is how many keys one statement looks up.
const countChunk = 200

// Count implements Store.
func (s *sqlStore) Count(ctx context.Context, collection, parent string, r Range) (int, error) {
	if paired(collection) {
		return 0, fmt.Errorf("records of %s are not counted", collection)
	}
	for attempt := 0; ; attempt++ {
		n, stable, err := s.count(ctx, collection, parent, r)
		if err != nil || stable || attempt == 2 { // then it is off by what was written to the database at just this moment
			return max(n, 0), err
		}
	}
}

// count counts once; it is not stable when the database took changes between its statements.
func (s *sqlStore) count(ctx context.Context, collection, parent string, r Range) (n int, stable bool, err error) {
	changes := s.pendings()
	text, args := "SELECT COUNT(*)"+groupColumn+" FROM tinsmith_records WHERE collection = ? AND parent = ?", []any{collection, parent}
	if r != (Range{}) {
		text, args = text+inRange, append(args, r.From, r.To)
	}
	var applied int64
	if err := s.db.reader.QueryRowContext(ctx, s.db.text(text), args...).Scan(&n, &applied); err != nil {
		return 0, false, fmt.Errorf("count records: %w", err)
	}
	s.view.RLock()
	changes = changes.after(applied)
	var keys []RecordKey
	known := map[RecordKey]bool{}
	add := func(k RecordKey) {
		if !known[k] {
			known[k] = true
			keys = append(keys, k)
		}
	}
	for _, p := range changes {
		if p == nil {
			continue
		}
		if p.under[ParentKey{collection, parent}] {
			n = 0
		}
		for _, k := range p.parents[ParentKey{collection, parent}] {
			add(k)
		}
		for k, e := range p.entries { // whose they were is not known of those that are removed, and not where those were that have another place now
			if k.Collection == collection && e.kind != added {
				add(k)
			}
		}
	}
	s.view.RUnlock()
	older := map[RecordKey]Record{}
	stable = true
	for list := range slices.Chunk(keys, countChunk) {
		args := []any{collection}
		for _, k := range list {
			args = append(args, k.Key)
		}
		text := "SELECT " + keyColumns + groupColumn + " FROM tinsmith_records WHERE collection = ? AND id IN (?" + strings.Repeat(", ?", len(list)-1) + ")"
		at, err := s.keys(ctx, collection, Range{}, func(rec Record) error { older[RecordKey{collection, rec.Key}] = rec; return nil }, text, args...)
		if err != nil {
			return 0, false, err
		}
		stable = stable && (at == 0 || at == applied)
	}
	s.view.RLock()
	defer s.view.RUnlock()
	holds := func(rec *Record) bool { return rec != nil && rec.Parent == parent && r.holds(rec.Rank) }
	gone := slices.ContainsFunc(changes[:], func(p *pending) bool { return p != nil && p.under[ParentKey{collection, parent}] })
	for _, k := range keys {
		var before *Record
		if rec, ok := older[k]; ok {
			before = &rec
		}
		if holds(before) && !gone {
			n--
		}
		if holds(changes.over(k, before)) {
			n++
		}
	}
	return n, stable, nil
}

// Parents implements Store.
func (s *sqlStore) Parents(ctx context.Context, collection, after string, limit int) ([]string, error) {
	found := map[string]bool{}
	s.view.RLock()
	for _, p := range []*pending{s.frozen, s.active} {
		if p == nil {
			continue
		}
		for k := range p.parents {
			if k.Collection == collection && k.Parent > after {
				found[k.Parent] = true
			}
		}
	}
	s.view.RUnlock()
	for at, n := after, 0; n < limit; n++ {
		var next *string
		text := s.db.text("SELECT MIN(parent) FROM tinsmith_records WHERE collection = ? AND parent > ?")
		if err := s.db.reader.QueryRowContext(ctx, text, collection, at).Scan(&next); err != nil {
			return nil, fmt.Errorf("list parents: %w", err)
		}
		if next == nil {
			break
		}
		at = *next
		found[at] = true
	}
	list := make([]string, 0, len(found))
	for parent := range found {
		list = append(list, parent)
	}
	slices.Sort(list)
	return list[:min(len(list), limit)], nil
}

// Large implements Store.
func (s *sqlStore) Large(ctx context.Context, collection, parent string) ([]Record, error) {
	changes := s.pendings()
	list := map[RecordKey]*Record{}
	text := selected(source(collection, "r") + " WHERE collection = ? AND parent = ? AND segment > 0")
	applied, err := s.query(ctx, collection, Range{}, func(r Record) error { list[RecordKey{r.Collection, r.Key}] = &r; return nil }, text, collection, parent)
	if err != nil {
		return nil, err
	}
	s.view.RLock()
	defer s.view.RUnlock()
	changes = changes.after(applied)
	for _, p := range changes {
		if p == nil {
			continue
		}
		for _, k := range p.parents[ParentKey{collection, parent}] {
			if _, known := list[k]; !known {
				list[k] = nil
			}
		}
	}
	var out []Record
	for k, older := range list {
		if now := changes.over(k, older); now != nil && now.Parent == parent && now.Ref != (Ref{}) {
			out = append(out, *now)
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return Place{a.Rank, a.Key}.compare(Place{b.Rank, b.Key}) })
	return out, nil
}
