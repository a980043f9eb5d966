package store

import (
	"context"
	"database/sql"
	"fmt"
)

// The rows of the two tables as they are, for what copies or checks a whole database and does not care what a row means.

const (
	rowColumns   = columns + ", guest, " + guestColumns
	putRowText   = "INSERT INTO tinsmith_records (" + rowColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
	nextRowsText = "SELECT " + rowColumns + " FROM tinsmith_records WHERE (collection, id) > (?, ?) ORDER BY collection, id LIMIT ?"
	nextBlocks   = "SELECT " + blockColumns + " FROM tinsmith_blocks WHERE (parent, first) > (?, ?) ORDER BY parent, first LIMIT ?"
)

// tableRow is a row of either table.
type tableRow interface {
	columns() []any      // pointers to scan into
	values() []any       // for a statement
	check(*summer) error // compares it with its checksums, as far as it has any
	refs() []Ref         // what it names in the journal
	name() string        // for people
}

// recordRow is a row of tinsmith_records.
type recordRow struct {
	record, guest                          Record // of the guest nothing but its own columns
	head, payload, guestHead, guestPayload sum
	joint                                  int64
}

func (r *recordRow) columns() []any {
	return []any{
		&r.record.Collection, &r.record.Key, &r.record.Parent, &r.record.Rank, &r.record.Count, &r.record.Value, &r.record.Payload, &r.record.Ref.Segment, &r.record.Ref.Offset, &r.record.Ref.Length,
		&r.head, &r.payload, &r.joint, &r.guest.Count, &r.guest.Value, &r.guest.Payload, &r.guest.Ref.Segment, &r.guest.Ref.Offset, &r.guest.Ref.Length, &r.guestHead, &r.guestPayload,
	}
}

func (r *recordRow) values() []any {
	return []any{
		r.record.Collection, r.record.Key, r.record.Parent, r.record.Rank, r.record.Count, r.record.Value, r.record.Payload, r.record.Ref.Segment, r.record.Ref.Offset, r.record.Ref.Length,
		r.head.stored(), r.payload.stored(), r.joint, r.guest.Count, r.guest.Value, r.guest.Payload, r.guest.Ref.Segment, r.guest.Ref.Offset, r.guest.Ref.Length, r.guestHead.stored(), r.guestPayload.stored(),
	}
}

func (r *recordRow) check(sums *summer) error {
	if err := sums.check(&r.record, r.head, r.payload); err != nil {
		return err
	}
	guest := r.guest
	guest.Collection, guest.Key, guest.Parent, guest.Rank = guests, r.record.Key, r.record.Parent, r.record.Rank
	switch {
	case r.joint == 1 && r.record.Collection == hosts:
		return sums.check(&guest, r.guestHead, r.guestPayload)
	case r.joint != 0 || r.guestHead.known || r.guestPayload.known || len(guest.Value) > 0 || len(guest.Payload) > 0 || guest.Ref != (Ref{}) || guest.Count != 0:
		return damagedRow(guests, r.record.Key, "its row says that it is not there, and has something of it")
	}
	return nil
}

func (r *recordRow) refs() []Ref { return []Ref{r.record.Ref, r.guest.Ref} }

func (r *recordRow) name() string { return fmt.Sprintf("%s %q", r.record.Collection, r.record.Key) }

// stored is the sum for a statement, nil if there is none.
func (s sum) stored() any {
	if !s.known {
		return nil
	}
	return s.value
}

// blockRow is a row of tinsmith_blocks.
type blockRow struct {
	parent                             string
	first, last, hosted, guested       int64
	heads, hostPayloads, guestPayloads []byte
	head, host, guest                  sum
}

func (b *blockRow) columns() []any {
	return []any{&b.parent, &b.first, &b.last, &b.hosted, &b.guested, &b.heads, &b.hostPayloads, &b.guestPayloads, &b.head, &b.host, &b.guest}
}

func (b *blockRow) values() []any {
	return []any{b.parent, b.first, b.last, b.hosted, b.guested, b.heads, b.hostPayloads, b.guestPayloads, b.head.stored(), b.host.stored(), b.guest.stored()}
}

func (b *blockRow) check(sums *summer) error {
	for _, part := range []struct {
		collection string
		present    int64
		payloads   []byte
		sum        sum
	}{{hosts, b.hosted, b.hostPayloads, b.host}, {guests, b.guested, b.guestPayloads, b.guest}} {
		if part.present != 0 && part.present != 1 {
			return damagedRow(part.collection, placedKey(b.parent, b.first), "its block does not say whether it is there")
		}
		if err := sums.checkPart(b.parent, b.first, b.last, b.heads, part.collection, part.present == 1, part.payloads, b.head, part.sum); err != nil {
			return err
		}
	}
	return (&block{parent: b.parent, first: b.first}).decode(b.last, b.heads, b.hostPayloads, b.guestPayloads)
}

func (b *blockRow) refs() []Ref { return nil }

func (b *blockRow) name() string { return fmt.Sprintf("block %q", placedKey(b.parent, b.first)) }

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// readRows yields the rows that a query gives, each made by make and valid for good.
func readRows(ctx context.Context, from querier, text string, args []any, make func() tableRow, yield func(tableRow) error) (n int, err error) {
	rows, err := from.QueryContext(ctx, text, args...)
	if err != nil {
		return 0, fmt.Errorf("read rows: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		r := make()
		if err := rows.Scan(r.columns()...); err != nil {
			return n, fmt.Errorf("read rows: %w", unreadable(err))
		}
		n++
		if err := yield(r); err != nil {
			return n, err
		}
	}
	if err := rows.Err(); err != nil {
		return n, fmt.Errorf("read rows: %w", err)
	}
	return n, nil
}

// eachRow yields all rows of both tables in the order of their keys, in steps of so many; between calls between two steps.
func (d database) eachRow(ctx context.Context, from querier, step int, between func(context.Context) error, yield func(tableRow) error) error {
	last := [2][2]any{{"", ""}, {"", int64(-1)}}
	for table, text := range []string{nextRowsText, nextBlocks} {
		for {
			n, err := readRows(ctx, from, d.text(text), []any{last[table][0], last[table][1], step}, func() tableRow {
				if table == 0 {
					return &recordRow{}
				}
				return &blockRow{}
			}, func(r tableRow) error {
				switch r := r.(type) {
				case *recordRow:
					last[table] = [2]any{r.record.Collection, r.record.Key}
				case *blockRow:
					last[table] = [2]any{r.parent, r.first}
				}
				return yield(r)
			})
			if err != nil {
				return err
			}
			if n < step {
				break
			}
			if err := between(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
