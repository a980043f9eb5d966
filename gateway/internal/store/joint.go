package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The collections of operations and of their results, which have the same keys, parents and ranks. Nothing but speed depends on their names here.
const (
	Operations = "operations"
	Results    = "results"
)

// A row takes time for its three places in the database (the table and two indexes), and nearly every result becomes durable within a second of its operation, with the same key, parent and
// rank. Such a pair goes into one row: that of the operation, with what is the result's own in columns beside the operation's. Pairs that do not come to the database together have a row
// each, as have those that older programs wrote. This is all that the store knows of any collection, and only what reads and writes the database knows of it: a result is in one of the two
// places, never in both.
const (
	hosts  = Operations // the collection whose rows
	guests = Results    // may hold a record of this one

	guestColumns = "guest_amount, guest_value, guest_payload, guest_segment, guest_start, guest_size, guest_head_sum, guest_payload_sum" // valid where guest = 1
	jointRows    = " FROM tinsmith_records WHERE collection = '" + hosts + "' AND guest = 1"
	asGuest      = "SELECT '" + guests + "' AS collection, id, parent, place, " + guestColumns + jointRows

	putJointText = "INSERT INTO tinsmith_records (" + columns + ", guest, " + guestColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (collection, id) DO UPDATE SET " + putColumns +
		", guest = excluded.guest, guest_amount = excluded.guest_amount, guest_value = excluded.guest_value, guest_payload = excluded.guest_payload, guest_segment = excluded.guest_segment, " +
		"guest_start = excluded.guest_start, guest_size = excluded.guest_size, guest_head_sum = excluded.guest_head_sum, guest_payload_sum = excluded.guest_payload_sum"
	clearGuest = "UPDATE tinsmith_records SET guest = 0, guest_amount = 0, guest_value = NULL, guest_payload = NULL, guest_segment = 0, guest_start = 0, guest_size = 0, " +
		"guest_head_sum = NULL, guest_payload_sum = NULL WHERE collection = '" + hosts + "' AND guest = 1"
	partText         = "INSERT INTO tinsmith_records (" + columns + ") " + asGuest
	releaseGuestText = "UPDATE tinsmith_records SET guest_payload = NULL, guest_segment = 0, guest_start = 0, guest_size = 0, guest_payload_sum = 0 * guest_payload_sum WHERE collection = '" + hosts +
		"' AND guest = 1 AND parent = ?" + inRange
	ownText  = "SELECT id FROM tinsmith_records WHERE collection = '" + guests + "' AND id >= ? AND id <= ?"
	ofKey    = " AND id = ?"
	ofParent = " AND parent = ?"
)

// addedColumns are those that the table of older formats lacks.
var addedColumns = []string{
	"guest BIGINT NOT NULL DEFAULT 0", "guest_amount BIGINT NOT NULL DEFAULT 0", "guest_value BLOB", "guest_payload BLOB",
	"guest_segment BIGINT NOT NULL DEFAULT 0", "guest_start BIGINT NOT NULL DEFAULT 0", "guest_size BIGINT NOT NULL DEFAULT 0",
	"head_sum BIGINT", "payload_sum BIGINT", "guest_head_sum BIGINT", "guest_payload_sum BIGINT",
}

// addedBlockColumns are those that the table of the blocks of older formats lacks.
var addedBlockColumns = []string{"head_sum BIGINT", "host_sum BIGINT", "guest_sum BIGINT"}

// addColumns makes the columns that older formats lack; what a crash leaves undone the next start does.
func (d database) addColumns(ctx context.Context) error {
	err := errors.Join(d.addColumnsTo(ctx, "tinsmith_records", "collection", addedColumns), d.addColumnsTo(ctx, "tinsmith_blocks", "parent", addedBlockColumns))
	if err != nil {
		return err
	}
	const index = "CREATE INDEX IF NOT EXISTS tinsmith_records_guest_segment ON tinsmith_records (guest_segment) WHERE guest_segment > 0"
	if _, err := d.writer.ExecContext(ctx, index); err != nil {
		return fmt.Errorf("make an index: %w", err)
	}
	return nil
}

// addColumnsTo makes those of columns that a table lacks. key is a column of it that is text, and never empty.
func (d database) addColumnsTo(ctx context.Context, table, key string, columns []string) error {
	has := func(names string) bool {
		rows, err := d.writer.QueryContext(ctx, "SELECT "+names+" FROM "+table+" WHERE "+key+" = ''")
		if err != nil {
			return false
		}
		for rows.Next() { //nolint:revive // there are none
		}
		return errors.Join(rows.Err(), rows.Close()) == nil
	}
	var names []string
	for _, column := range columns {
		name, _, _ := strings.Cut(column, " ")
		names = append(names, name)
	}
	if has(strings.Join(names, ", ")) { // nearly always
		return nil
	}
	for i, column := range columns {
		if has(names[i]) {
			continue
		}
		_, kind, _ := strings.Cut(column, " ")
		text := "ALTER TABLE " + table + " ADD COLUMN " + names[i] + " " + strings.Replace(kind, "BLOB", d.blob, 1)
		if _, err := d.writer.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("add the column %s: %w", names[i], err)
		}
	}
	return nil
}

// source is what a collection is read from, as in FROM.
func source(collection, alias string) string {
	if collection == guests {
		return "(SELECT " + columns + " FROM tinsmith_records UNION ALL " + asGuest + ") AS " + alias
	}
	return "tinsmith_records AS " + alias
}

// notJoint leaves out of r what has a record of a collection in the row of another one.
func notJoint(collection string) string {
	if collection == guests {
		return " AND NOT EXISTS (SELECT 1 FROM tinsmith_records AS j WHERE j.collection = '" + hosts + "' AND j.id = r.id AND j.guest = 1)"
	}
	return ""
}

// partner gives the change that goes into one row with that of a record: both write whole records at one place. It is nil for all others.
func (p *pending) partner(k RecordKey, e *change) *change {
	other := guests
	if k.Collection == guests {
		other = hosts
	} else if k.Collection != hosts {
		return nil
	}
	o := p.entries[RecordKey{other, k.Key}]
	if o == nil || o.kind != replaced || e.kind != replaced || o.record.Parent != e.record.Parent || o.record.Rank != e.record.Rank {
		return nil
	}
	return o
}

// jointWriter does what changes of the two collections need beside their own statements.
type jointWriter struct {
	*rowWriter
	del, put, own, part, clear, partUnder, clearUnder, release driver.Stmt
}

func (w *rowWriter) joint(del driver.Stmt) jointWriter {
	return jointWriter{
		rowWriter: w, del: del, put: w.prepare(putJointText), own: w.prepare(ownText), part: w.prepare(partText + ofKey), clear: w.prepare(clearGuest + ofKey),
		partUnder: w.prepare(partText + ofParent), clearUnder: w.prepare(clearGuest + ofParent), release: w.prepare(releaseGuestText),
	}
}

// removeOwn removes the rows of their own that results may have had which go into those of their operations now. Nearly none has: so it looks for those of one parent together.
func (j jointWriter) removeOwn(rows []rowChange) {
	for len(rows) > 0 {
		n := 0
		for n < len(rows) && rows[n].guest != nil && rows[n].change.record.Parent == rows[0].change.record.Parent {
			n++
		}
		if n == 0 {
			rows = rows[1:]
			continue
		}
		list := rows[:n] // ascending keys
		rows = rows[n:]
		var found []string
		j.query(j.own, func(row []driver.Value) {
			key, ok := row[0].(string)
			if !ok && j.err == nil {
				j.err = fmt.Errorf("the database gave %T for a name", row[0])
			}
			found = append(found, key)
		}, list[0].key.Key, list[n-1].key.Key)
		for _, key := range found {
			if _, ours := slices.BinarySearchFunc(list, key, func(x rowChange, key string) int { return strings.Compare(x.key.Key, key) }); ours {
				j.run(j.del, guests, key)
			}
		}
	}
}

// writePair puts an operation and its result into one row. The result has no other one: see removeOwn.
func (j jointWriter) writePair(host, guest *Record) {
	j.run(
		j.put, host.Collection, host.Key, host.Parent, host.Rank, host.Count, host.Value, host.Payload, host.Ref.Segment, host.Ref.Offset, host.Ref.Length, j.sums.head(host), j.sums.payload(host),
		guest.Count, guest.Value, guest.Payload, guest.Ref.Segment, guest.Ref.Offset, guest.Ref.Length, j.sums.head(guest), j.sums.payload(guest),
	)
}

// separate gives a result a row of its own, if it is in that of its operation: one of the two is about to change without the other.
func (j jointWriter) separate(key string) {
	if j.run(j.part, key) > 0 {
		j.run(j.clear, key)
	}
}

// removeUnder prepares for the removal of all records of a parent from one of the two collections; both says that they go from the other one as well.
func (j jointWriter) removeUnder(k ParentKey, both bool) {
	switch {
	case both:
	case k.Collection == hosts:
		j.run(j.partUnder, k.Parent)
	case k.Collection == guests:
		j.run(j.clearUnder, k.Parent)
	}
}

// releaseUnder gives up the payloads of results that are in the rows of their operations.
func (j jointWriter) releaseUnder(parent string, from, to int64) { j.run(j.release, parent, from, to) }
