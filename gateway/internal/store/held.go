package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
)

// The store's own records that say what a database is.
const (
	identityKey = "identity" // its Value is the store's identity
	schemaKey   = "schema"   // its Count is the checksum of the tables' definitions
)

// held is what a database says of itself, read before anything is written to it.
type held struct {
	format   string   // "" if there is no store in it
	identity identity // zero if it has none
	applied  int64
	epoch    int64
	records  bool // there is a record at all

	definitions int64 // the checksum of its tables' definitions, as it says
}

// look reads what a database says of itself. An error that is ErrCorrupt names the record.
func (d database) look(ctx context.Context, from *sql.DB) (held, error) {
	var h held
	tables, err := d.definitions(ctx, from)
	if err != nil {
		return h, err
	}
	if _, ok := tables["tinsmith_records"]; !ok {
		return h, nil
	}
	own, err := ownRecords(ctx, from)
	if err != nil {
		return h, err
	}
	h.format, h.applied = string(own[formatKey].Value), own[appliedKey].Count
	copy(h.identity[:], own[identityKey].Value)
	h.definitions = own[schemaKey].Count
	if r, ok := own[schemaKey]; ok && r.Count != definitionSum(tables) {
		return h, fmt.Errorf("%w: the definitions of its tables are not what they were", ErrCorrupt)
	}
	if _, ok := tables["tinsmith_epoch"]; ok {
		if h.epoch, err = readEpoch(ctx, from); err != nil {
			return h, err
		}
	}
	rows, err := from.QueryContext(ctx, "SELECT 1 FROM tinsmith_records LIMIT 1")
	if err != nil {
		return h, fmt.Errorf("read records: %w", err)
	}
	h.records = rows.Next()
	return h, errors.Join(rows.Err(), rows.Close())
}

// ownRecords reads the store's own records by key, from the tables of any format.
func ownRecords(ctx context.Context, from *sql.DB) (map[string]Record, error) {
	rows, err := from.QueryContext(ctx, "SELECT * FROM tinsmith_records WHERE collection = '"+inStore+"'")
	if err != nil {
		return nil, fmt.Errorf("read the store's own records: %w", err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return nil, fmt.Errorf("read the store's own records: %w", err)
	}
	own := map[string]Record{}
	var sums summer
	for rows.Next() {
		var r Record
		var head, payload sum
		into := map[string]any{
			"collection": &r.Collection, "id": &r.Key, "parent": &r.Parent, "place": &r.Rank, "amount": &r.Count, "value": &r.Value, "payload": &r.Payload,
			"segment": &r.Ref.Segment, "start": &r.Ref.Offset, "size": &r.Ref.Length, "head_sum": &head, "payload_sum": &payload,
		}
		row := make([]any, len(names))
		for i, n := range names {
			if row[i] = into[n]; row[i] == nil {
				row[i] = new(any)
			}
		}
		if err := rows.Scan(row...); err != nil {
			return nil, fmt.Errorf("read the store's own records: %w", unreadable(err))
		}
		if err := sums.check(&r, head, payload); err != nil {
			return nil, err
		}
		own[r.Key] = r
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the store's own records: %w", err)
	}
	return own, nil
}

// definitionSum is the checksum of definitions; 0 where the engine does not give any.
func definitionSum(tables map[string]string) int64 {
	var crc uint32
	for name, text := range tables {
		if text != "" {
			crc ^= crc32.Checksum([]byte(name+" "+text), castagnoli) // in any order
		}
	}
	return int64(crc)
}
