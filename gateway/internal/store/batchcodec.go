package store

import (
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// The content of a group in the commit log: batches one behind the other, each with the lists of Batch in their order.

func appendBatch(b []byte, x Batch) []byte {
	e := pack.Encoder{B: b}
	e.Uint(uint64(len(x.DeleteUnder)))
	for _, k := range x.DeleteUnder {
		e.Text(k.Collection)
		e.Text(k.Parent)
	}
	e.Uint(uint64(len(x.Delete)))
	for _, k := range x.Delete {
		e.Text(k.Collection)
		e.Text(k.Key)
	}
	encodeRecords(&e, x.Put)
	e.Uint(uint64(len(x.Release)))
	for _, s := range x.Release {
		e.Text(s.Collection)
		e.Text(s.Parent)
		e.Int(s.Range.From)
		e.Int(s.Range.To)
	}
	encodeRecords(&e, x.Add)
	return e.B
}

func encodeRecords(e *pack.Encoder, list []Record) {
	e.Uint(uint64(len(list)))
	for i := range list {
		r := &list[i]
		e.Text(r.Collection)
		e.Text(r.Key)
		e.Text(r.Parent)
		e.Int(r.Rank)
		e.Int(r.Count)
		e.Bytes(r.Value)
		e.Bytes(r.Payload)
		e.Int(r.Ref.Segment)
		e.Int(r.Ref.Offset)
		e.Int(r.Ref.Length)
	}
}

// decodeBatches reads the content of a group. The batches refer to its bytes.
func decodeBatches(b []byte) ([]Batch, error) {
	d := pack.NewDecoder(b)
	var list []Batch
	for d.More() {
		var x Batch
		for range d.Count() {
			x.DeleteUnder = append(x.DeleteUnder, ParentKey{d.Text(), d.Text()})
		}
		for range d.Count() {
			x.Delete = append(x.Delete, RecordKey{d.Text(), d.Text()})
		}
		x.Put = decodeRecords(d)
		for range d.Count() {
			x.Release = append(x.Release, Span{d.Text(), d.Text(), Range{d.Int(), d.Int()}})
		}
		x.Add = decodeRecords(d)
		list = append(list, x)
	}
	if err := d.Err(); err != nil {
		return nil, fmt.Errorf("%w: a batch cannot be decoded: %w", ErrCorrupt, err)
	}
	return list, nil
}

func decodeRecords(d *pack.Decoder) []Record {
	var list []Record
	for range d.Count() {
		list = append(list, Record{
			Collection: d.Text(), Key: d.Text(), Parent: d.Text(), Rank: d.Int(), Count: d.Int(), Value: d.Bytes(), Payload: d.Bytes(),
			Ref: Ref{Segment: d.Int(), Offset: d.Int(), Length: d.Int()},
		})
	}
	return list
}
