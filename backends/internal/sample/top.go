package sample

import (
	"cmp"
	"slices"
)

// Scratch is memory that is used again from row to row. It belongs to one goroutine at a time; its zero value is ready.
type Scratch struct {
	ids   []int32
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
		return sorted(scratch, row, func(int32) bool { return true })[:k]
	}
	order := descending(row)
	// heap holds the best so far with the worst of them at the root.
	heap := slices.Grow(scratch.ids[:0], k)
	worse := func(a, b int32) bool { return order(a, b) > 0 }
	down := func(i int) {
		for {
			c := 2*i + 1
			if c >= len(heap) {
				return
			}
			if c+1 < len(heap) && worse(heap[c+1], heap[c]) {
				c++
			}
			if !worse(heap[c], heap[i]) {
				return
			}
			heap[i], heap[c] = heap[c], heap[i]
			i = c
		}
	}
	for i := range int32(len(row)) {
		if len(heap) < k {
			heap = append(heap, i)
			for c := len(heap) - 1; c > 0; {
				p := (c - 1) / 2
				if !worse(heap[c], heap[p]) {
					break
				}
				heap[c], heap[p] = heap[p], heap[c]
				c = p
			}
			continue
		}
		if row[i] > row[heap[0]] { // an equal value has a higher id and stays out
			heap[0] = i
			down(0)
		}
	}
	slices.SortFunc(heap, order)
	scratch.ids = heap
	return heap
}

// descending compares ids by their values, the larger first, ties by lower id first.
func descending(row []float32) func(a, b int32) int {
	return func(a, b int32) int {
		if c := cmp.Compare(row[b], row[a]); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	}
}

// sorted gives the ids that keep accepts in descending order of their values, in scratch.
func sorted(scratch *Scratch, row []float32, keep func(int32) bool) []int32 {
	ids := scratch.ids[:0]
	for i := range int32(len(row)) {
		if keep(i) {
			ids = append(ids, i)
		}
	}
	slices.SortFunc(ids, descending(row))
	scratch.ids = ids
	return ids
}
