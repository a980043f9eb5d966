// Package store keeps the gateway's durable state: records in a database (SQLite by default, PostgreSQL by configuration) and large payloads in journal segments beside
// it, each collection in segments of its own. It knows collections, keys and bytes, and nothing of what they mean.
//
// One goroutine writes. It takes all batches that wait, appends their large payloads to the journal, makes those durable with one fdatasync per segment, and then appends all the batches
// as one group to the commit log, with one fdatasync, so that a reference never becomes durable before the bytes it names. A crash between the two leaves bytes that
// nothing refers to. From then on the batches are durable and visible. A second goroutine brings them to the database, those of about a second in one transaction, with the number of the
// last group; then their part of the log is used again. An operation and its result, which nearly always come together, share a row there (joint.go),
// and those that follow each other share one with their neighbours (block.go): for whoever reads each is a record. Until then reading lays them over what the database has, and opening brings to it what a crash left in the log.
//
// A small file beside the database, the generation mark, says what the database and the log must at least have, and whose they are (mark.go). So Open knows a loss from an empty beginning
// (opening.go), says what is missing (loss.go), and changes nothing before somebody accepts it (accept.go). Rows and payloads have checksums, which are compared whenever they are read, and
// slowly in the background (sums.go, verify.go). A backup has the same form for both databases (dump.go).
//
// After a failure of the disk or the database (no room, read-only, an error of input or output) the state of what was open is unknown: the store lets go of it, refuses
// commits, tries once a second whether writing works again, and goes on by itself when it does. What it refused with ErrUnavailable may come to light after a restart all the same.
package store

import (
	"context"
	"errors"
)

// Errors of a store.
var (
	ErrNotFound = errors.New("no such record")
	ErrCorrupt  = errors.New("what the store holds is damaged")
	// ErrRows goes with ErrCorrupt where nothing but single records cannot be read: List, All and Missing have given all the others.
	ErrRows   = errors.New("records cannot be read")
	ErrClosed = errors.New("the store is closed")
	ErrLocked = errors.New("the data directory is in use by another process")
	ErrFormat = errors.New("the data directory was written by another version")
	// ErrUnavailable: nothing can be written at present; see Trouble.
	ErrUnavailable = errors.New("the store cannot be written to at present")
)

// Record is one durable object. The store indexes Key, and (Parent, Rank) within a collection; Value and Payload it does not look into.
type Record struct {
	Collection string // "sessions", "runs", …
	Key        string // unique within the collection
	Parent     string // what it belongs to; "" = nothing
	Rank       int64  // order among the records of one parent
	Count      int64  // changed by Batch.Add
	Value      []byte // always read with the record
	Payload    []byte // a small one is stored with the record; a large one goes to the journal and is nil when the record is read: see Store.Payload
	Ref        Ref    // where a large payload lies; the store sets it
}

// Ref is the place of a payload in the journal; the zero Ref means none.
type Ref struct {
	Segment int64 // from 1
	Offset  int64 // of the entry in the segment's file
	Length  int64 // of the payload, without the entry's header
}

// Batch is a set of changes that become durable together, in the order of the fields.
type Batch struct {
	DeleteUnder []ParentKey // all records of a parent
	Delete      []RecordKey // missing ones are ignored
	Put         []Record    // insert or replace whole
	Release     []Span      // the payloads of these records are given up; the records stay
	Add         []Record    // Count is added to the stored one; the other fields are written only when the record is new, and Parent and Rank are always the same; no Payload
}

// RecordKey names a record.
type RecordKey struct{ Collection, Key string }

// ParentKey names the records of a parent.
type ParentKey struct{ Collection, Parent string }

// Span names the records of a parent whose ranks are in a range.
type Span struct {
	Collection, Parent string
	Range              Range
}

// Range selects ranks: From ≤ rank < To; the zero Range selects all.
type Range struct{ From, To int64 }

// Store is a durable set of records. All methods may be called concurrently.
type Store interface {
	// Commit makes a batch durable and visible to every later read; batches take effect in the order of the calls. When ctx ends first the batch
	// may or may not take effect; the same holds for ErrUnavailable. The batch's slices belong to the store from then on: they must not be changed.
	Commit(ctx context.Context, b Batch) error
	// Get reads one record. ErrNotFound if there is none. What is read must not be changed.
	Get(ctx context.Context, collection, key string) (Record, error)
	// List reads the records of a parent in order of rank (then key), at most limit (0 = all).
	List(ctx context.Context, collection, parent string, r Range, limit int) ([]Record, error)
	// Page reads some of the records of a parent, and tells whether there are more behind them. It reads no more than the page and a bound, however many there are; what is passed over is read by key only. Not for
	// Operations and Results.
	Page(ctx context.Context, collection, parent string, q PageQuery) (page []Record, more bool, err error)
	// Count tells how many records of a parent have a rank in the range, without reading their values. Not for Operations and Results.
	Count(ctx context.Context, collection, parent string, r Range) (int, error)
	// Parents lists the parents in a collection behind a name, in order, at most limit. One that has lost its last records a moment ago may be among them; "" never is.
	Parents(ctx context.Context, collection, after string, limit int) ([]string, error)
	// Large lists the records of a parent whose payloads lie in the journal, in order of rank and key.
	Large(ctx context.Context, collection, parent string) ([]Record, error)
	// All calls yield with every record of a collection in order of rank (then key) until it returns an error.
	All(ctx context.Context, collection string, yield func(Record) error) error
	// Missing lists the records of a collection whose key does not exist in another one, in order of parent, rank and key.
	Missing(ctx context.Context, collection, other string) ([]Record, error)
	// Payload gives the payload of a record that was read, from the journal if it lies there. ErrCorrupt if the journal does not hold it whole; nil if there is none.
	Payload(ctx context.Context, r Record) ([]byte, error)
	// Err is nil while new work can be taken, else a *Trouble. Commit may succeed all the same: the room that Options.Reserve keeps is for what was accepted before.
	Err() error
	// Room is Err once more bytes of the data directory's disk are taken, by files that the store does not write: nil, or a *Trouble.
	Room(bytes int64) error
	// Compact removes journal segments that no record refers to.
	Compact(ctx context.Context) error
	// Backup writes what was committed before the call, and perhaps some of what is committed meanwhile, into a folder that is made or is empty, for Restore. The store is used as ever
	// meanwhile. It is the same for every driver: a checksummed file of all records, and the journal's segments, by hard link where the file system has them. Every record's
	// checksum is checked on the way: ErrCorrupt if one is damaged. The folder is whole once Backup has returned nil, and Restore refuses it otherwise.
	Backup(ctx context.Context, dir string) error
	// Damage lists what was found damaged in what the store keeps since it was opened, each once, in the order it was found. The store goes on beside it: what is damaged
	// gives ErrCorrupt when it is read.
	Damage() []Finding
	// Close finishes accepted commits and releases everything.
	Close() error
}
