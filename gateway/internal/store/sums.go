package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Every row of the database carries checksums over all its columns, and every reading checks them. There is one for what is always there (the head) and one for the payload, because payloads
// are given up by a statement over many rows; to the head's the count is added, so that a statement that adds to a count adds the same to the sum. The rows of older formats have none (NULL),
// as long as they are not written again. No bytes and none at all (nil) are the same: the drivers do not always keep them apart.

// sum is a checksum in a row.
type sum struct {
	value int64
	known bool // false in the rows of older formats
}

// Scan implements sql.Scanner.
func (s *sum) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*s = sum{}
	case int64:
		*s = sum{v, true}
	default:
		return fmt.Errorf("a checksum is %T", v)
	}
	return nil
}

// summer computes checksums. One goroutine uses it at a time.
type summer struct{ scratch []byte }

// head is the checksum over everything of a record but its payload.
func (s *summer) head(r *Record) int64 {
	b := s.scratch[:0]
	for _, name := range [...]string{r.Collection, r.Key, r.Parent} {
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Rank))
	b = binary.AppendUvarint(b, uint64(len(r.Value)))
	s.scratch = b
	return small(crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, r.Value)) + r.Count
}

// payload is the checksum over a record's payload and where it lies; 0 if it has none, and only then.
func (s *summer) payload(r *Record) int64 {
	if len(r.Payload) == 0 && r.Ref == (Ref{}) {
		return 0
	}
	b := s.scratch[:0]
	for _, n := range [...]int64{r.Ref.Segment, r.Ref.Offset, r.Ref.Length} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = binary.AppendUvarint(b, uint64(len(r.Payload)))
	s.scratch = b
	return above(0, small(crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, r.Payload)))
}

// blockHead is the checksum over what a block always has.
func (s *summer) blockHead(parent string, first, last int64, heads []byte) int64 {
	b := append(s.scratch[:0], parent...)
	b = binary.LittleEndian.AppendUint64(b, uint64(first))
	b = binary.LittleEndian.AppendUint64(b, uint64(last))
	s.scratch = b
	return small(crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, heads))
}

// What the checksum over the payloads of one of a block's collections is without payloads.
const (
	partGone  = 0 // the collection's records are not in the block
	partEmpty = 1 // they have no payloads
)

// part is the checksum over the payloads of one of a block's collections.
func (s *summer) part(present bool, payloads []byte) int64 {
	switch {
	case !present:
		return partGone
	case payloads == nil:
		return partEmpty
	}
	return above(partEmpty, small(crc32.Checksum(payloads, castagnoli)))
}

// small makes of a checksum a number that the database holds in four bytes.
func small(crc uint32) int64 { return int64(int32(crc)) }

// above keeps checksums apart from the numbers up to last that mean something else.
func above(last, crc int64) int64 {
	if crc >= 0 && crc <= last {
		return last + 1
	}
	return crc
}

// damagedRow is the error for a row whose checksum does not fit.
func damagedRow(collection, key, what string) error {
	return fmt.Errorf("%w: %s %q: %s", ErrCorrupt, collection, key, what)
}

// check compares a record with the checksums of its row.
func (s *summer) check(r *Record, head, payload sum) error {
	switch {
	case head.known != payload.known:
		return damagedRow(r.Collection, r.Key, "one of its row's checksums is missing")
	case !head.known:
		return nil
	case head.value != s.head(r):
		return damagedRow(r.Collection, r.Key, "the checksum of its row does not fit")
	case payload.value != s.payload(r):
		return damagedRow(r.Collection, r.Key, "the checksum of its payload does not fit")
	}
	return nil
}

// checkPart compares a block, or one collection of it, with the checksums of its row.
func (s *summer) checkPart(parent string, first, last int64, heads []byte, collection string, present bool, payloads []byte, head, part sum) error {
	damaged := func(what string) error {
		return damagedRow(collection, fmt.Sprintf("%s to %d", placedKey(parent, first), last), what)
	}
	switch {
	case head.known != part.known:
		return damaged("one of its block's checksums is missing")
	case !head.known:
		return nil
	case head.value != s.blockHead(parent, first, last, heads):
		return damaged("the checksum of its block does not fit")
	case part.value != s.part(present, payloads):
		return damaged("the checksum of its block's payloads does not fit")
	}
	return nil
}
