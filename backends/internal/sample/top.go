package sample

import (
	"math"
	"slices"
)

// Scratch is memory that is used again from row to row. It belongs to one goroutine at a time; its zero value is ready.
type Scratch struct {
	ids   []int32
	keys  []uint64
	mass  []uint64  // by bucket
	probs []float32 // of what is drawn from
}

// Top gives the ids of the k largest values of a row, descending, ties by lower id first. k is at most the row's length. The ids live in scratch, until its next use.
func Top(scratch *Scratch, row []float32, k int) []int32 {
	k = min(k, len(row))
	if k <= 0 {
		return nil
	}
	if k > len(row)/8 { // so many that a heap gains nothing
		ids := scratch.ids[:0]
		for i := range int32(len(row)) {
			ids = append(ids, i)
		}
		return sorted(scratch, row, ids)[:k]
	}
	// heap holds the keys of the best so far with the worst of them, which has the largest key, at the root.
	heap := slices.Grow(scratch.keys[:0], k)[:k]
	for i := range heap {
		heap[i] = key(row[i], int32(i))
	}
	slices.SortFunc(heap, func(a, b uint64) int { // descending, which is a heap
		if a > b {
			return -1
		}
		return 1
	})
	least := row[int32(uint32(heap[0]))]
	for i, x := range row[k:] {
		if !(x > least) { // an equal value has a higher id and stays out
			continue
		}
		heap[0] = key(x, int32(i+k))
		sink(heap)
		least = row[int32(uint32(heap[0]))]
	}
	slices.Sort(heap)
	return scratch.unpack(heap)
}

// sink puts the root of a heap into its place.
func sink(heap []uint64) {
	moved, i := heap[0], 0
	for {
		c := 2*i + 1
		if c >= len(heap) {
			break
		}
		if c+1 < len(heap) && heap[c+1] > heap[c] {
			c++
		}
		if heap[c] <= moved {
			break
		}
		heap[i], i = heap[c], c
	}
	heap[i] = moved
}

// key orders ids by their values, the larger first, and among equal ones the lower id first: those that come first have the smaller key. NaN comes last. Numbers are compared faster than values and ids in turn.
func key(value float32, id int32) uint64 {
	bits := math.Float32bits(value + 0) // -0 becomes 0
	switch {
	case value != value:
		bits = math.MaxUint32
	case int32(bits) >= 0:
		bits = math.MaxInt32 - bits // below those of negative values, which ascend as the values descend
	}
	return uint64(bits)<<32 | uint64(uint32(id))
}

// sorted puts ids, which may be scratch's, into descending order of their values, ties by lower id first, in scratch.
func sorted(scratch *Scratch, row []float32, ids []int32) []int32 {
	keys := scratch.keys[:0]
	for _, id := range ids {
		keys = append(keys, key(row[id], id))
	}
	slices.Sort(keys)
	return scratch.unpack(keys)
}

// unpack gives the ids of keys, which become scratch's.
func (s *Scratch) unpack(keys []uint64) []int32 {
	ids := s.ids[:0]
	for _, k := range keys {
		ids = append(ids, int32(uint32(k)))
	}
	s.keys, s.ids = keys, ids
	return ids
}
