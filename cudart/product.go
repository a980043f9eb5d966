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

// bfloat16Tile chooses among kernels of equal bits, those by warps: few rows are bound by reading the weights and want many small blocks; large tiles pay when they still fill the device.
func (v *Device) bfloat16Tile(rows, columns int64) tile {
	switch {
	case rows <= 16:
		return tile{0, 16, 64}
	case rows < 128 || columns < 128 || (rows/128)*(columns/128) < int64(v.multiprocessors):
		return tile{1, 64, 64}
	}
	return tile{2, 128, 128}
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
func (v *Device) product(y, x View, xType Type, groups []RowGroup, tail tailRows, t Type, transposed, accumulate bool) error {
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
		var err error
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
		shape = v.bfloat16Tile(rows, columns)
		shape.kernel += kProductFew
		if transposed {
			shape.kernel += kProductTransposedFew - kProductFew
		}
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

// OuterProduct is one job of OuterProducts: G += Aᵀ · B, summed over the rows in ascending order from what G holds or, with First, from zero; there are then rows. The last Apart rows are a chain of their own
// from zero, whose sum is added to G behind the others'.
type OuterProduct struct {
	G, A, B View
	First   bool
	Apart   int64
}

const (
	_ = uint(unsafe.Sizeof(OuterProduct{}) - C.sizeof_outer_product_job)
	_ = uint(C.sizeof_outer_product_job - unsafe.Sizeof(OuterProduct{}))
)

// OuterProducts runs all jobs in one launch. No two may have a G in common.
func (v *Device) OuterProducts(jobs []OuterProduct) error {
	const side = 64
	var tiles []C.outer_tile
	for k, j := range jobs {
		if j.A.Rows == 0 {
			continue
		}
		for i := int64(0); i*side < j.G.Rows; i++ {
			for c := int64(0); c*side < j.G.Cols; c++ {
				tiles = append(tiles, C.outer_tile{job: C.int32_t(k), i: C.int32_t(i), j: C.int32_t(c)})
			}
		}
	}
	if len(tiles) == 0 {
		return nil
	}
	at, release, err := v.putAll(bytesOf(jobs), bytesOf(tiles))
	if err != nil {
		return err
	}
	a := C.outer_arguments{jobs: C.uint64_t(at[0]), tiles: C.uint64_t(at[1])}
	return errors.Join(v.launch(kOuterProduct, int64(len(tiles)), 1, 1, bytesIn(&a)), release())
}
