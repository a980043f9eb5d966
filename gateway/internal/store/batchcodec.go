package store

import (
	"encoding/binary"
	"fmt"
)

// The content of a group in the commit log: batches one behind the other, each with the lists of Batch in their order. Integers are varints, text and bytes have their length in front;
// that of bytes is one more than it is, and 0 for nil.

func appendBatch(b []byte, x Batch) []byte {
	b = binary.AppendUvarint(b, uint64(len(x.DeleteUnder)))
	for _, k := range x.DeleteUnder {
		b = appendText(appendText(b, k.Collection), k.Parent)
	}
	b = binary.AppendUvarint(b, uint64(len(x.Delete)))
	for _, k := range x.Delete {
		b = appendText(appendText(b, k.Collection), k.Key)
	}
	b = appendRecords(b, x.Put)
	b = binary.AppendUvarint(b, uint64(len(x.Release)))
	for _, s := range x.Release {
		b = appendText(appendText(b, s.Collection), s.Parent)
		b = binary.AppendVarint(binary.AppendVarint(b, s.Range.From), s.Range.To)
	}
	return appendRecords(b, x.Add)
}

func appendRecords(b []byte, list []Record) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, r := range list {
		b = appendText(appendText(appendText(b, r.Collection), r.Key), r.Parent)
		b = binary.AppendVarint(binary.AppendVarint(b, r.Rank), r.Count)
		b = appendBytes(appendBytes(b, r.Value), r.Payload)
		b = binary.AppendVarint(binary.AppendVarint(binary.AppendVarint(b, r.Ref.Segment), r.Ref.Offset), r.Ref.Length)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBytes(b, v []byte) []byte {
	if v == nil {
		return binary.AppendUvarint(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(v))+1), v...)
}

// decodeBatches reads the content of a group. The batches refer to its bytes.
func decodeBatches(b []byte) ([]Batch, error) {
	d := batchDecoder{b: b}
	var list []Batch
	for len(d.b) > 0 && !d.failed {
		var x Batch
		for range d.count() {
			x.DeleteUnder = append(x.DeleteUnder, ParentKey{d.text(), d.text()})
		}
		for range d.count() {
			x.Delete = append(x.Delete, RecordKey{d.text(), d.text()})
		}
		x.Put = d.records()
		for range d.count() {
			x.Release = append(x.Release, Span{d.text(), d.text(), Range{d.int(), d.int()}})
		}
		x.Add = d.records()
		list = append(list, x)
	}
	if d.failed {
		return nil, fmt.Errorf("%w: a batch cannot be decoded", ErrCorrupt)
	}
	return list, nil
}

// batchDecoder reads what appendBatch wrote. After a failure everything reads as zero.
type batchDecoder struct {
	b      []byte
	failed bool
}

func (d *batchDecoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if !d.pass(n) {
		return 0
	}
	return v
}

func (d *batchDecoder) int() int64 {
	v, n := binary.Varint(d.b)
	if !d.pass(n) {
		return 0
	}
	return v
}

// pass goes on behind the n bytes of a number; there was none if n is not positive.
func (d *batchDecoder) pass(n int) bool {
	if n <= 0 {
		d.b, d.failed = nil, true
		return false
	}
	d.b = d.b[n:]
	return true
}

// count reads the number of things that take at least a byte each.
func (d *batchDecoder) count() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.b, d.failed = nil, true
		return 0
	}
	return int(n)
}

func (d *batchDecoder) take(n int) []byte {
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

func (d *batchDecoder) text() string { return string(d.take(d.count())) }

func (d *batchDecoder) bytes() []byte {
	n := d.uint()
	if n == 0 {
		return nil
	}
	if n-1 > uint64(len(d.b)) {
		d.b, d.failed = nil, true
		return nil
	}
	return d.take(int(n - 1))
}

func (d *batchDecoder) records() []Record {
	var list []Record
	for range d.count() {
		list = append(list, Record{
			Collection: d.text(), Key: d.text(), Parent: d.text(), Rank: d.int(), Count: d.int(), Value: d.bytes(), Payload: d.bytes(),
			Ref: Ref{Segment: d.int(), Offset: d.int(), Length: d.int()},
		})
	}
	return list
}
