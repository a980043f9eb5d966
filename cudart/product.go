package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// tile is how many rows and columns of the output a block of a product kernel has.
type tile struct {
	kernel        int
	rows, columns int64
}

// warpShape is a shape of product_bfloat16.cu: the tile, the threads of a block, and how deep and how many the tiles of x and of w are that it has room for.
type warpShape struct {
	rows, columns, threads, depth, xPlaces, wPlaces int
}

// warpShapes are in the order of their kernels.
var warpShapes = []warpShape{{16, 32, 64, 64, 4, 12}, {32, 32, 128, 64, 4, 10}, {64, 32, 128, 64, 4, 12}, {64, 96, 128, 64, 3, 5}, {128, 128, 256, 32, 4, 4}}

// kernel gives the shape's kernel. A row of a tile in shared memory is 8 elements longer than the tile, against bank conflicts.
func (s warpShape) kernel(transposed bool) kernel {
	name, w := "product", s.columns*(s.depth+8)
	if transposed {
		name, w = "product_transposed", s.depth*(s.columns+8)
	}
	return kernel{fmt.Sprintf("%s_%dx%d", name, s.rows, s.columns), s.threads, 2 * (s.xPlaces*s.rows*(s.depth+8) + s.wPlaces*w)}
}

// warpTile is the tile of shape i.
func warpTile(i int, transposed bool) tile {
	t := tile{kProduct + i, int64(warpShapes[i].rows), int64(warpShapes[i].columns)}
	if transposed {
		t.kernel += kProductTransposed - kProduct
	}
	return t
}

func largestWarpTile(transposed bool) tile { return warpTile(len(warpShapes)-1, transposed) }

// bfloat16Tile chooses among kernels of equal bits, those by warps. A block reads a row of x and of w for each of its rows and columns, through its multiprocessor's share of the second-level cache; the multiprocessor with
// the most blocks is the last. So many small tiles are for few outputs, and large ones, which read x less often, for many. The columns are the widest group's.
func (v *Device) bfloat16Tile(groups []RowGroup, columns int64, transposed bool) tile {
	var best tile
	least := int64(math.MaxInt64)
	for i := range warpShapes {
		t, down := warpTile(i, transposed), int64(0)
		for _, g := range groups {
			down += (g.To - g.From + t.rows - 1) / t.rows
		}
		blocks, each := down*((columns+t.columns-1)/t.columns), int64(v.multiprocessors)
		if reads := (blocks + each - 1) / each * (t.rows + t.columns); reads < least {
			best, least = t, reads
		}
	}
	return best
}

// RowGroup is the rows [From, To) of a batch and the weight that is theirs. With Factor not 0 a finished element is multiplied by it and rounded to the values of Round.
type RowGroup struct {
	From, To int64
	Weight   Weight
	Factor   float32
	Round    Type
	tail     Weight // of a ride; At 0: none
}

const (
	_ = uint(unsafe.Sizeof(RowGroup{}) - C.sizeof_row_group)
	_ = uint(C.sizeof_row_group - unsafe.Sizeof(RowGroup{}))
)

// Product is y = x · wᵀ for the rows of every group, or y += x · wᵀ with accumulate: rows of x (float32, or the weights' type t) with every row of w. Transposed, it is x · w: rows of x
// with every column of w. Other rows, and columns beyond a group's weight, stay as they are. An element is one chain over the inner axis in ascending order that begins with what y
// holds or with zero; bfloat16 weights round x and take 16 steps at once, in
// warps or, after UseWarpgroups, in warpgroups where there are many rows, or after UseCuBLASLt as that library does. No row may be in two groups.
func (v *Device) Product(y, x View, xType Type, groups []RowGroup, t Type, transposed, accumulate bool) error {
	return v.product(y, x, xType, groups, tailRows{}, t, transposed, accumulate)
}

// product is Product of groups that may have tails, whose rows the tail is; those are of bfloat16.
func (v *Device) product(y, x View, xType Type, groups []RowGroup, tail tailRows, t Type, transposed, accumulate bool) (err error) {
	var rows, columns int64 // of the largest group
	for i := range groups {
		g := &groups[i]
		if g.depth(transposed) > math.MaxInt32 { // the kernels count it in 32 bits
			return fmt.Errorf("product: an inner axis of %d elements is too long", g.depth(transposed))
		}
		rows = max(rows, g.To-g.From)
		if transposed {
			columns = max(columns, g.Weight.In)
		} else {
			columns = max(columns, g.Weight.Out)
		}
	}
	if rows == 0 || columns == 0 {
		return nil
	}
	shape := tile{kProductFloat32, 64, 64}
	if t == BFloat16 {
		if x, xType, err = v.sharedRounded(x, xType); err != nil {
			return err
		}
		if tail.x.At == 0 {
			if done, err := v.productByLibrary(y, x, xType, groups, transposed, accumulate); done || err != nil {
				return err
			}
		}
		if v.warpgroups {
			if group, ok := v.warpgroupTile(x, groups, transposed, columns); ok {
				err := v.productByWarpgroups(y, x, xType, groups, tail, group, columns, transposed, accumulate)
				if !errors.Is(err, ErrOutOfMemory) { // for rounded rows; warps need none, and their bits are the same
					return err
				}
			}
		}
		if xType == Float32 && narrowsFirst(x, groups, transposed) {
			to, failed := v.rounded(x, xType)
			switch {
			case failed == nil:
				defer func() { err = errors.Join(err, v.giveRounded(to)) }()
				x, xType = to, BFloat16
			case !errors.Is(failed, ErrOutOfMemory): // the kernels round rows themselves where there is no memory
				return failed
			}
		}
		shape = v.bfloat16Tile(groups, columns, transposed)
	} else if transposed {
		shape.kernel = kProductTransposedFloat32
	}
	return v.productInTiles(y, x, xType, groups, tail, shape, columns, accumulate)
}

// productInTiles launches a kernel over all tiles of all groups; columns are those of the widest group.
func (v *Device) productInTiles(y, x View, xType Type, groups []RowGroup, tail tailRows, shape tile, columns int64, accumulate bool) error {
	a := C.product_arguments{y: y.c(), x: x.c(), tail_x: tail.x.c(), accumulate: flag(accumulate), x_type: C.int32_t(xType), tail_type: C.int32_t(tail.xType)}
	across := (columns + shape.columns - 1) / shape.columns
	if len(groups) == 1 {
		a.only = *(*C.row_group)(unsafe.Pointer(&groups[0]))
		return v.launch(shape.kernel, (groups[0].To-groups[0].From+shape.rows-1)/shape.rows, across, 1, bytesIn(&a))
	}
	var tiles []C.product_tile
	for i, g := range groups {
		for row := int64(0); row < g.To-g.From; row += shape.rows {
			tiles = append(tiles, C.product_tile{group: C.int32_t(i), row: C.int32_t(row)})
		}
	}
	at, release, err := v.putAll(bytesOf(groups), bytesOf(tiles))
	if err != nil {
		return err
	}
	a.groups, a.tiles = C.uint64_t(at[0]), C.uint64_t(at[1])
	return errors.Join(v.launch(shape.kernel, int64(len(tiles)), across, 1, bytesIn(&a)), release())
}
