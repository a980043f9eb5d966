package cudart

/*
#include "driver.h"
*/
import "C"

import "errors"

// Weights in eight bits: each element is a number of the type E4M3 times a scale in float32, rounded once to bfloat16, and products with them have the bits of those with the weight of bfloat16 that has these elements. They are expanded
// by the kernels by warps, which read half of the bytes; or, for so many rows that each tile of the weight would be expanded many times, a part at a time before a product with bfloat16 weights, as which that part may then be one of
// warpgroups or of cuBLASLt.

// E4M3Rows is how many rows have scales in common.
const E4M3Rows = C.E4M3_ROWS

// Numbers of the kernels for weights in eight bits, in the order of e4m3Kernels.
const (
	kPackE4M3 = kE4M3 + iota
	kGatherE4M3
	kExpandE4M3
	kProductE4M3                               // of each of e4m3Shapes
	kProductE4M3Transposed = kProductE4M3 + 5  // likewise
	kRoutedE4M3            = kProductE4M3 + 10 // of each of routedE4M3Shapes
	kRoutedE4M3Transposed  = kRoutedE4M3 + 3   // likewise
	kBehindE4M3            = kRoutedE4M3Transposed + 3
)

// e4m3Shape is a shape of product_e4m3.cu: the tile, the threads of a block, how deep the tiles of x and of w are, and how many of both it has room for.
type e4m3Shape struct {
	rows, columns, threads, depth, places int
}

// e4m3Shapes have the rows and columns of warpShapes, in their order; routedE4M3Shapes those of routedShapes.
var (
	e4m3Shapes       = []e4m3Shape{{16, 32, 64, 64, 12}, {32, 32, 128, 64, 8}, {64, 32, 128, 64, 8}, {64, 96, 128, 64, 4}, {128, 128, 256, 32, 4}}
	routedE4M3Shapes = []e4m3Shape{e4m3Shapes[0], e4m3Shapes[3], e4m3Shapes[4]}
)

// kernel gives the shape's kernel. Beside the places there are two tiles of w as bfloat16, whose rows, like those of x, are 8 elements longer than they need to be.
func (s e4m3Shape) kernel(name string, transposed bool) kernel {
	of := warpShape{s.rows, s.columns, s.threads, s.depth, s.places, 2}.kernel(name, transposed)
	of.shared += s.places * s.columns * s.depth
	return of
}

var e4m3Kernels = func() []kernel {
	table := []kernel{{"pack_e4m3", 256, 0}, {"gather_e4m3", 256, 0}, {"expand_e4m3", 256, 0}}
	for _, family := range []struct {
		name   string
		shapes []e4m3Shape
	}{{"product_e4m3", e4m3Shapes}, {"routed_e4m3", routedE4M3Shapes}} {
		for _, transposed := range []bool{false, true} {
			for _, s := range family.shapes {
				table = append(table, s.kernel(family.name, transposed))
			}
		}
	}
	return table
}()

// E4M3GroupBytes is what E4M3Rows rows of a weight of so many columns take, with a scale for each run of columns: rows of whole multiples of 16 numbers, then the scales.
func E4M3GroupBytes(in, columns int64) int64 {
	across := (in + columns - 1) / columns
	return E4M3Rows*((in+15)/16*16) + (across+3)/4*16
}

// PackE4M3 writes rows [row, row+rows) of w, of Type E4M3, from contiguous numbers, and their scales from as many rows of them, float32.
func (v *Device) PackE4M3(w Weight, row, rows int64, numbers, scales Address) error {
	a := C.pack_e4m3_arguments{w: w.c(), codes: C.uint64_t(numbers), scales: C.uint64_t(scales), row: C.int64_t(row), rows: C.int64_t(rows)}
	return v.rowwise(kPackE4M3, rows, w.In, bytesIn(&a))
}

// gatherE4M3 is GatherRows of a weight in eight bits.
func (v *Device) gatherE4M3(y View, w Weight, ids Address) error {
	a := C.gather_arguments{y: y.c(), w: w.c(), ids: C.uint64_t(ids), _type: C.E4M3}
	return v.rowwise(kGatherE4M3, y.Rows, y.Cols, bytesIn(&a))
}

// leastExpandedRows is from how many rows on parts of a weight are expanded before they are multiplied, in memory of expandedBytes at most. Warpgroups, which are twice as fast, pay for it from leastExpandedGroupRows on: to expand takes
// about as long as the kernels by warps do for 128 rows. Estimates: neither way has been measured on a device.
const (
	leastExpandedRows      = 512
	leastExpandedGroupRows = 256
	expandedBytes          = 64 << 20
)

func (v *Device) expandsFrom() int64 {
	if v.warpgroups {
		return leastExpandedGroupRows
	}
	return leastExpandedRows
}

// productExpanded is Product of many rows with a weight in eight bits; false where there are few, or no memory to expand it in. An element of the output is in one part, so its chain is whole.
func (v *Device) productExpanded(y, x View, xType Type, groups []RowGroup, transposed, accumulate bool) (done bool, err error) {
	if len(groups) != 1 || groups[0].To-groups[0].From < v.expandsFrom() {
		return false, nil
	}
	g := groups[0]
	if !inChunks(x, xType) {
		to, failed := v.rounded(x, xType)
		if errors.Is(failed, ErrOutOfMemory) {
			return false, nil
		}
		if failed != nil {
			return false, failed
		}
		defer func() { err = errors.Join(err, v.giveRounded(to)) }()
		x, xType = to, BFloat16
	}
	outputs := outputsOf(g.Weight, transposed)
	step := v.expandedOutputs(g.Weight, transposed)
	part := g.Weight.expanded(0, min(step, outputs), transposed)
	if part.At, err = v.takeScratch(int(2 * part.Out * part.Pitch)); err != nil {
		if errors.Is(err, ErrOutOfMemory) {
			err = nil
		}
		return false, err
	}
	defer func() { err = errors.Join(err, v.giveScratch(part.At)) }()
	for from := int64(0); from < outputs; from += step {
		to := g.Weight.expanded(from, min(from+step, outputs), transposed)
		to.At = part.At
		a := C.expand_e4m3_arguments{w: g.Weight.c(), to: to.c(), row: C.int64_t(from)}
		if transposed {
			a.row, a.column = 0, C.int64_t(from)
		}
		const perBlock = 256 * 16
		if err := v.launch(kExpandE4M3, to.Out, min((to.Pitch+perBlock-1)/perBlock, maxY), 1, bytesIn(&a)); err != nil {
			return true, err
		}
		own := []RowGroup{{From: g.From, To: g.To, Weight: to, Factor: g.Factor, Round: g.Round}}
		columns := View{At: y.At + Address(4*from), Rows: y.Rows, Cols: min(step, outputs-from), Stride: y.Stride}
		if err := v.product(columns, x, xType, own, tailRows{}, BFloat16, transposed, accumulate); err != nil {
			return true, err
		}
	}
	return true, nil
}

// expandedOutputs is how many outputs of a product a part has: as many tiles as there is memory for.
func (v *Device) expandedOutputs(w Weight, transposed bool) int64 {
	const least = wideGroupColumns
	return max(least, int64(v.expandedBytes)/(2*(depthOf(w, transposed)+8))/least*least)
}

// expanded is the part of the weight for outputs [from, to), as bfloat16.
func (w Weight) expanded(from, to int64, transposed bool) Weight {
	part := Weight{Out: to - from, In: w.In}
	if transposed {
		part = Weight{Out: w.Out, In: to - from}
	}
	part.Pitch = (part.In + 7) / 8 * 8
	return part
}

// kernelFor is the number of the kernel that does what kernel k by warps does with weights of bfloat16, with weights of type t.
func kernelFor(k int, t Type) int {
	product, routed := kProduct, kRouted
	switch t {
	case E4M3:
		product, routed = kProductE4M3, kRoutedE4M3
	case BFloat16Blocks:
		product, routed = kProductBlocks, kRoutedBlocks
	}
	if k >= kRouted {
		return k - kRouted + routed
	}
	return k - kProduct + product
}

// byWarps tells whether kernel k is one of products of several parts, by warps of blocks or of clusters.
func byWarps(k int) bool {
	return k >= kProduct && k < kAttention || k >= kProductE4M3 && k < kRoutedE4M3 || k >= kProductBlocks && k < kRoutedBlocks || k >= kProductCluster && k < kBehindClusters
}
