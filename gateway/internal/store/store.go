// Package store keeps the gateway's durable state: records in a database (SQLite by default, PostgreSQL by configuration) and large payloads in journal segments beside
// it. It knows collections, keys and bytes, and nothing of what they mean.
package store

import (
	"context"
	"errors"
)

// Errors of a store.
var (
	ErrNotFound = errors.New("no such record")
	ErrCorrupt  = errors.New("journal record is damaged")
	ErrClosed   = errors.New("the store is closed")
	ErrLocked   = errors.New("the data directory is in use by another process")
	ErrFormat   = errors.New("the data directory was written by another version")
)

// Record is one durable object. The store indexes Key, and (Parent, Rank) within a collection; Value and Payload it does not look into.
type Record struct {
	Collection string // "sessions", "runs", …: at most 40 bytes
	Key        string // unique within the collection
	Parent     string // what it belongs to; "" = nothing
	Rank       int64  // order among the records of one parent
	Count      int64  // changed by Batch.Add
	Value      []byte // small: part of the database row
	Payload    []byte // written to the journal; records that are read carry Ref instead
	Ref        Ref    // where the payload lies
}

// Ref is the place of a payload in the journal; the zero Ref means none.
type Ref struct {
	Segment int64 // from 1
	Offset  int64
	Length  int64 // of the payload
}

// Batch is a set of changes that become durable together, in this order.
type Batch struct {
	Put         []Record    // insert or replace; with a nil Payload and a zero Ref a replaced record loses its payload
	Add         []Record    // Count is added to the stored one; the other fields are written when the record is new
	Delete      []RecordKey // missing ones are ignored
	DeleteUnder []ParentKey // all records of a parent
}

// RecordKey names a record.
type RecordKey struct{ Collection, Key string }

// ParentKey names the records of a parent.
type ParentKey struct{ Collection, Parent string }

// Range selects ranks: From ≤ rank < To; the zero Range selects all.
type Range struct{ From, To int64 }

// Store is a durable set of records. All methods may be called concurrently.
type Store interface {
	// Commit makes a batch durable and visible; batches take effect in the order of the calls. When ctx ends first the batch may or may not take effect.
	Commit(ctx context.Context, b Batch) error
	// Get reads one record, without its payload. ErrNotFound if there is none.
	Get(ctx context.Context, collection, key string) (Record, error)
	// List reads the records of a parent in order of rank (then key), at most limit (0 = all).
	List(ctx context.Context, collection, parent string, r Range, limit int) ([]Record, error)
	// All calls yield with every record of a collection in order of rank (then key) until it returns an error.
	All(ctx context.Context, collection string, yield func(Record) error) error
	// Missing lists the records of a collection whose key does not exist in another one, in order of parent, rank and key.
	Missing(ctx context.Context, collection, other string) ([]Record, error)
	// Payload reads and verifies a payload. ErrCorrupt if the journal does not hold it whole; nil for the zero Ref.
	Payload(ctx context.Context, r Ref) ([]byte, error)
	// Compact removes journal segments that no record refers to.
	Compact(ctx context.Context) error
	// Close finishes accepted commits and releases everything.
	Close() error
}
