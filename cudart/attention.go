package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// What attention is cut into: keys of a page, keys after which the running softmax begins anew, items (a row and a query head of a group) of a block.
const (
	PageKeys      = C.PAGE_KEYS
	restartKeys   = C.RESTART_KEYS
	manyItems     = 64
	fewItems      = 16
	backwardItems = 32
	// of the kernels with tensor cores
	tensorKeysItems    = 32
	tensorQueriesItems = 64
	wholeKeysDim       = 128 // the largest head dimension whose gradients of keys one block has, not two of half the columns each
	sharedPad          = 8
)

// MaxHeadDim is the largest head dimension that attention has kernels for.
const MaxHeadDim = 256

// Cache is pages of keys and values for attention: [layer][page][keys of every head, then values of every head][PageKeys][Dim], in Type.
type Cache struct {
	At                        Address
	Layers, Pages, Heads, Dim int64
	Type                      Type
}

func (c Cache) c() C.cache {
	return C.cache{at: C.uint64_t(c.At), pages: C.int64_t(c.Pages), heads: C.int64_t(c.Heads), dim: C.int64_t(c.Dim), _type: C.int32_t(c.Type)}
}

// Supports says whether the device can run every attention kernel over such pages: a head dimension that there is none for, or a block that needs more shared memory than the device
// has (float32 pages of heads over 64 take 113 KiB in the gradient, those over 128 209 KiB, and bfloat16 pages of heads over 128 take 141 KiB in decoding; devices of compute capability 8.0 have 163, those of 8.6, 8.9 and 12.0 have 99), is an error.
func (v *Device) Supports(c Cache) error {
	for _, family := range [][2]int{{kAttention, kTensorAttention}, {kAttentionFew, kTensorAttentionFew}, {kAttentionPart, kTensorAttentionPart},
		{kAttentionBackwardKeys, kTensorAttentionBackwardKeys}, {kAttentionBackwardQueries, kTensorAttentionBackwardQueries}} {
		k, err := c.kernel(family[0], family[1])
		if err != nil {
			return err
		}
		if err := v.fits(k); err != nil {
			return err
		}
	}
	return nil
}

// Bytes is the size of all pages.
func (c Cache) Bytes() int64 {
	size := int64(4)
	if c.Type == BFloat16 {
		size = 2
	}
	return c.Layers * c.Pages * 2 * c.Heads * PageKeys * c.Dim * size
}

// Sequence is a part of a batch: rows [Row, Row+Count) at positions from First on; Pages hold all positions up to the last. AttentionBackward computes the share of keys
// [KeysFrom, KeysTo) and rows [RowsFrom, RowsTo), multiples of PageKeys but for the sequence's end; the others do not look at these. A row sees Window positions at most, its own among them, and the running
// softmax does not restart; 0: all.
type Sequence struct {
	Row, Count, First int64
	Pages             []int32
	KeysFrom, KeysTo  int64
	RowsFrom, RowsTo  int64
	Window            int64
}

// CopyPage makes page to of every layer hold what page from holds, or zeros if from is -1.
func (v *Device) CopyPage(c Cache, to, from int32) error {
	a := C.copy_page_arguments{c: c.c(), layers: C.int64_t(c.Layers), to: C.int64_t(to), from: C.int64_t(from)}
	return v.rowwise(kCopyPage, c.Layers, 2*c.Heads*PageKeys*c.Dim, bytesIn(&a))
}

// WritePages stores rows of keys and values in the cache's type at the positions of sequences.
func (v *Device) WritePages(c Cache, layer int64, keys, values View, sequences []Sequence) error {
	if keys.Rows == 0 {
		return nil
	}
	at, release, err := v.Put(bytesOf(slotsOf(sequences, keys.Rows)))
	if err != nil {
		return err
	}
	a := C.write_pages_arguments{c: c.c(), k: keys.c(), v: values.c(), slots: C.uint64_t(at), layer: C.int64_t(layer)}
	return errors.Join(v.rowwise(kWritePages, keys.Rows, keys.Cols, bytesIn(&a)), release())
}

// slotsOf gives where a batch's rows have their keys and values, as kernels take it: -1 is nowhere.
func slotsOf(sequences []Sequence, rows int64) []int64 {
	slots := make([]int64, rows)
	for i := range slots {
		slots[i] = -1
	}
	for _, s := range sequences {
		for i := range s.Count {
			position := s.First + i
			slots[s.Row+i] = int64(s.Pages[position/PageKeys])*PageKeys + position%PageKeys
		}
	}
	return slots
}

// attentionLists are the sequences of a batch as kernels read them.
type attentionLists struct {
	sequences []C.sequence
	pages     []int32
	tiles     []C.attention_tile
}

func lists(sequences []Sequence) *attentionLists {
	l := &attentionLists{}
	for _, s := range sequences {
		l.sequences = append(l.sequences, C.sequence{row: C.int64_t(s.Row), count: C.int64_t(s.Count), first: C.int64_t(s.First), first_page: C.int64_t(len(l.pages)),
			keys_from: C.int64_t(s.KeysFrom), keys_to: C.int64_t(s.KeysTo), rows_from: C.int64_t(s.RowsFrom), rows_to: C.int64_t(s.RowsTo), window: C.int64_t(s.Window)})
		l.pages = append(l.pages, s.Pages...)
	}
	return l
}

// cut makes tiles of at most size units from those of each sequence, [from, to). Those that take longest come first, whichever sequences they are of: blocks begin in their order, and one that begins last is waited for. work says how
// long one takes that begins at a unit; it counts in any unit.
func (l *attentionLists) cut(size int64, units func(s C.sequence) (from, to int64), work func(s C.sequence, unit int64) int64) {
	type timed struct {
		work int64
		tile C.attention_tile
	}
	var all []timed
	for i, s := range l.sequences {
		from, to := units(s)
		for at := from; at < to; at += size {
			all = append(all, timed{work(s, at), C.attention_tile{sequence: C.int32_t(i), item: C.int32_t(at)}})
		}
	}
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(b.work, a.work) })
	l.tiles = l.tiles[:0]
	for _, t := range all {
		l.tiles = append(l.tiles, t.tile)
	}
}

// keysSeen is how many keys the last of so many items of a sequence sees, which begin at one.
func keysSeen(s C.sequence, item, items, group int64) int64 {
	position := int64(s.first) + (min(item+items, int64(s.count)*group)-1)/group
	if s.window > 0 {
		return min(position+1, int64(s.window))
	}
	return position + 1
}

// pagesOf are the pages of a sequence that get gradients: those of its range of keys that a row of its range sees.
func pagesOf(s C.sequence) (from, to int64) {
	return int64(s.keys_from) / PageKeys, (min(int64(s.keys_to), int64(s.rows_to)) + PageKeys - 1) / PageKeys
}

// rowsSeeing is how many rows of a sequence see the first key of a page.
func rowsSeeing(s C.sequence, page int64) int64 {
	from := max(int64(s.rows_from), page*PageKeys)
	if s.window > 0 {
		return min(int64(s.rows_to), page*PageKeys+PageKeys-1+int64(s.window)) - from
	}
	return int64(s.rows_to) - from
}

// put copies the lists to the device; the addresses are those of sequences, tiles and pages.
func (v *Device) put(l *attentionLists) (sequences, tiles, pages C.uint64_t, release func() error, err error) {
	at, release, err := v.putAll(bytesOf(l.sequences), bytesOf(l.tiles), bytesOf(l.pages))
	if err != nil {
		return 0, 0, 0, nil, err
	}
	return C.uint64_t(at[0]), C.uint64_t(at[1]), C.uint64_t(at[2]), release, nil
}

// TensorCores tells whether attention over the cache multiplies bfloat16 values with tensor cores: then queries, probabilities and the gradients that go into products are rounded to
// bfloat16. Otherwise it computes in float32. It depends on the type and the head dimension only, so that prefill, decoding and training are one arithmetic.
func (c Cache) TensorCores() bool { return c.Type == BFloat16 && c.Dim%8 == 0 }

// kernel gives the one of a family for the cache's head dimension; tensor is the family with tensor cores.
func (c Cache) kernel(family, tensor int) (int, error) {
	dims := headDims[:]
	if c.TensorCores() {
		family, dims = tensor, tensorHeadDims[:]
	}
	for i, have := range dims {
		if c.Dim <= have {
			return family + i, nil
		}
	}
	return 0, fmt.Errorf("head dimension %d: must be at most %d", c.Dim, MaxHeadDim)
}

// Attention writes o = softmax(scale · q·K)·V for every row of the sequences and every query head, group of them per key head, and the log-sum-exp unless lse.At is 0. A row's keys
// are those of its sequence up to its own position, or the last ones of these (Sequence.Window). q may be bfloat16 where tensor cores are used (Cache.TensorCores). With a kept that has an address, the rows go
// there, rounded to bfloat16, and what they hold in o is undefined.
func (v *Device) Attention(kept, o, lse, q View, qType Type, c Cache, layer int64, sequences []Sequence, group int64, scale float32) (err error) {
	var mostItems, longest, items int64 // longest is of those whose softmax restarts
	for _, s := range sequences {
		mostItems = max(mostItems, s.Count*group)
		items += s.Count * group
		if s.Window == 0 {
			longest = max(longest, s.First+s.Count)
		}
	}
	if items == 0 {
		return nil
	}
	family, tensor, size, parts := kAttention, kTensorAttention, int64(manyItems), int64(1)
	if mostItems <= fewItems {
		family, tensor, size = kAttentionFew, kTensorAttentionFew, fewItems
		// Few long sequences do not fill the device: every part of the keys becomes a block of its own. The bits are the same.
		if longest > restartKeys && int64(len(sequences))*c.Heads < 2*int64(v.multiprocessors) {
			family, tensor, parts = kAttentionPart, kTensorAttentionPart, (longest+restartKeys-1)/restartKeys
		}
	}
	k, err := c.kernel(family, tensor)
	if err != nil {
		return err
	}
	if v.byWarpgroups(c) && mostItems > manyItems {
		rows, give, ok, failed := v.roundedForAttention(tailRows{q, qType})
		if failed != nil {
			return failed
		}
		if ok { // else there is no memory for them
			defer func() { err = errors.Join(err, give()) }()
			k, size, q, qType = k+kGroupAttention-kTensorAttention, groupItems, rows[0], BFloat16
		}
	}
	l := lists(sequences)
	l.cut(size, func(s C.sequence) (from, to int64) { return 0, int64(s.count) * group }, func(s C.sequence, item int64) int64 { return keysSeen(s, item, size, group) })
	at, tiles, pages, release, err := v.put(l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if kept.At != 0 && !c.TensorCores() {
		to := kept
		defer func() {
			if err == nil {
				err = v.roundSequences(to, o, sequences)
			}
		}()
		kept = View{}
	}
	a := C.attention_arguments{kept: kept.c(), o: o.c(), lse: lse.c(), q: q.c(), c: c.c(), sequences: at, tiles: tiles, pages: pages,
		layer: C.int64_t(layer), group: C.int64_t(group), part_count: C.int64_t(parts), scale: C.float(scale), q_type: C.int32_t(qType)}
	if parts > 1 {
		var workspace Address
		if workspace, err = v.takeScratch(int(q.Rows * c.Heads * group * parts * (c.Dim + 2) * 4)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.giveScratch(workspace)) }()
		a.parts = C.uint64_t(workspace)
	}
	if err := v.launch(k, int64(len(l.tiles)), c.Heads, parts, bytesIn(&a)); err != nil || parts == 1 {
		return err
	}
	return v.launch(kAttentionMerge, int64(len(l.tiles)), c.Heads, 1, bytesIn(&a))
}

// roundSequences rounds the sequences' rows of float32 to bfloat16.
func (v *Device) roundSequences(y, x View, sequences []Sequence) error {
	for _, s := range sequences {
		to, from := y, x
		to.At, to.Rows = y.At+Address(2*s.Row*y.Stride), s.Count
		from.At, from.Rows = x.At+Address(4*s.Row*x.Stride), s.Count
		if err := v.Round(to, BFloat16, from, Float32); err != nil {
			return err
		}
	}
	return nil
}

// AttentionBackward overwrites dq, dk and dv of the sequences' rows for the gradient dout of o, which is of oType. Every sequence begins at position 0, and lse is what Attention wrote. Of a sequence with a
// range of keys it overwrites dk and dv of these, and adds to dq unless the range begins at 0; of one with a range of rows it does so for dq of these, and adds to dk and dv of keys before them. q is as in Attention.
func (v *Device) AttentionBackward(dq, dk, dv, dout, o View, oType Type, lse, q View, qType Type, c Cache, layer int64, sequences []Sequence, group int64, scale float32) (err error) {
	keys, err := c.kernel(kAttentionBackwardKeys, kTensorAttentionBackwardKeys)
	if err != nil {
		return err
	}
	queries, err := c.kernel(kAttentionBackwardQueries, kTensorAttentionBackwardQueries)
	if err != nil || q.empty() {
		return err
	}
	delta, err := v.takeScratch(int(q.Rows * c.Heads * group * 4))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.giveScratch(delta)) }()
	a := C.attention_backward_arguments{dq: dq.c(), dk: dk.c(), dv: dv.c(), dout: dout.c(), o: o.c(), lse: lse.c(), q: q.c(), c: c.c(), delta: C.uint64_t(delta),
		layer: C.int64_t(layer), group: C.int64_t(group), scale: C.float(scale), q_type: C.int32_t(qType), o_type: C.int32_t(oType)}
	queriesItems, keysParts := int64(backwardItems), int64(1)
	a._type = C.FLOAT32
	if c.TensorCores() {
		queriesItems, a._type = tensorQueriesItems, C.BFLOAT16
		if c.Dim > wholeKeysDim {
			keysParts = 2
		}
	}
	if err := v.launch(kAttentionDelta, q.Rows, 1, 1, bytesIn(&a)); err != nil {
		return err
	}
	pagesAtOnce := int64(1)
	if v.byWarpgroups(c) {
		rows, give, ok, err := v.roundedForAttention(tailRows{dout, Float32}, tailRows{q, qType})
		if err != nil {
			return err
		}
		if ok { // else there is no memory for them
			defer func() { err = errors.Join(err, give()) }()
			keys, queries = keys+kGroupAttentionBackwardKeys-kTensorAttentionBackwardKeys, queries+kGroupAttentionBackwardQueries-kTensorAttentionBackwardQueries
			queriesItems, pagesAtOnce = groupItems, groupPages
			a.dout, a.q, a.q_type = rows[0].c(), rows[1].c(), C.BFLOAT16
		}
	}
	l := lists(sequences)
	for _, step := range []struct {
		kernel int
		grid   func(tiles int64) (x, y, z int64)
		size   int64
		units  func(s C.sequence) (from, to int64)
		work   func(s C.sequence, unit int64) int64
	}{
		// The heads of a page are blocks after one another: with all pages of a head first, the longest ones of the last head would begin when the device is nearly done.
		{keys, func(tiles int64) (x, y, z int64) { return tiles * c.Heads, 1, keysParts }, pagesAtOnce, pagesOf, rowsSeeing},
		{queries, func(tiles int64) (x, y, z int64) { return tiles, c.Heads, 1 }, queriesItems, func(s C.sequence) (from, to int64) {
			return max(int64(s.keys_from), int64(s.rows_from)) * group, int64(s.rows_to) * group
		}, func(s C.sequence, item int64) int64 { return keysSeen(s, item, queriesItems, group) }},
	} {
		l.cut(step.size, step.units, step.work)
		if len(l.tiles) == 0 {
			continue
		}
		x, y, z := step.grid(int64(len(l.tiles)))
		var release func() error
		if a.sequences, a.tiles, a.pages, release, err = v.put(l); err != nil {
			return err
		}
		if err := errors.Join(v.launch(step.kernel, x, y, z, bytesIn(&a)), release()); err != nil {
			return err
		}
	}
	return nil
}
