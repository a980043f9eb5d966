package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
)

// Heads are rows of queries, keys and values as products gave them, each row as many heads as there are times the head dimension.
type Heads struct {
	Queries, Keys, Values View
	QueryHeads, KeyHeads  int64
	// Where TurnHeads writes queries and keys, rounded to bfloat16; At 0: nowhere.
	KeptQueries, KeptKeys View
	// The types of Queries and Keys for TurnHeadsBackward; for TurnHeads they are Float32.
	QueryType, KeyType Type
	// The scales of an RMSNorm of every head of queries and of keys; 0: none.
	QueryScale, KeyScale Address
	QueryEps, KeyEps     float32
	// The table of rotary positions, and the rows' positions (int32) in it.
	Table     View
	Positions []int32
}

// TurnHeads writes normed and turned queries to q, in type t, and stores normed and turned keys, and values, at the positions of sequences: RMSNorm, Rope and WritePages in one pass, with their bits. q may be the
// queries if t is Float32. What the products gave is kept where there is a place for it.
func (v *Device) TurnHeads(q View, t Type, h Heads, c Cache, layer int64, sequences []Sequence) error {
	if q.Rows == 0 {
		return nil
	}
	at, release, err := v.putAll(bytesOf(h.Positions), bytesOf(slotsOf(sequences, q.Rows)))
	if err != nil {
		return err
	}
	a := C.heads_arguments{q: q.c(), queries: h.Queries.c(), keys: h.Keys.c(), values: h.Values.c(), kept_queries: h.KeptQueries.c(), kept_keys: h.KeptKeys.c(), table: h.Table.c(), query_scale: C.uint64_t(h.QueryScale), key_scale: C.uint64_t(h.KeyScale),
		positions: C.uint64_t(at[0]), slots: C.uint64_t(at[1]), c: c.c(), layer: C.int64_t(layer), query_heads: C.int64_t(h.QueryHeads), query_eps: C.float(h.QueryEps), key_eps: C.float(h.KeyEps),
		q_type: C.int32_t(t)}
	return errors.Join(v.launch(headsKernel(kHeads, kHeadsWide, c.Dim), q.Rows, blocksOfHeads(h.QueryHeads+2*h.KeyHeads), 1, bytesIn(&a)), release())
}

// TurnHeadsBackward makes dq and dk, the gradients by what TurnHeads gave, those by the queries and keys: Rope's inverse and RMSNormBackward in one pass, with their bits. Queries and Keys are read where they have a
// norm, Values not.
func (v *Device) TurnHeadsBackward(dq, dk View, h Heads) error {
	if dq.Rows == 0 {
		return nil
	}
	if dim := dq.Cols / h.QueryHeads; dim > MaxHeadDim {
		return fmt.Errorf("head dimension %d: must be at most %d", dim, MaxHeadDim)
	}
	at, release, err := v.Put(bytesOf(h.Positions))
	if err != nil {
		return err
	}
	a := C.heads_backward_arguments{dq: dq.c(), dk: dk.c(), queries: h.Queries.c(), keys: h.Keys.c(), table: h.Table.c(), query_scale: C.uint64_t(h.QueryScale), key_scale: C.uint64_t(h.KeyScale),
		positions: C.uint64_t(at), query_heads: C.int64_t(h.QueryHeads), key_heads: C.int64_t(h.KeyHeads), query_eps: C.float(h.QueryEps), key_eps: C.float(h.KeyEps),
		query_type: C.int32_t(h.QueryType), key_type: C.int32_t(h.KeyType)}
	return errors.Join(v.launch(headsKernel(kHeadsBackward, kHeadsBackwardWide, dq.Cols/h.QueryHeads), dq.Rows, blocksOfHeads(h.QueryHeads+h.KeyHeads), 1, bytesIn(&a)), release())
}

// headsKernel is the one for heads of a dimension.
func headsKernel(narrow, wide int, dim int64) int {
	if dim > 128 {
		return wide
	}
	return narrow
}

// blocksOfHeads is how many blocks of eight warps the heads of a row take.
func blocksOfHeads(heads int64) int64 { return (heads + 7) / 8 }
