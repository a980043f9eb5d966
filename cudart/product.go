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
	cluster       int64 // how many blocks beside each other share rows; 0: none do
}

// warpShape is a shape of product_bfloat16.cu: the tile, the threads of a block, and how deep and how many the tiles of x and of w are that it has room for.
type warpShape struct {
	rows, columns, threads, depth, xPlaces, wPlaces int
}

// warpShapes are in the order of their kernels.
var warpShapes = []warpShape{{16, 32, 64, 64, 4, 12}, {32, 32, 128, 64, 7, 8}, {64, 32, 128, 64, 4, 12}, {64, 96, 128, 64, 3, 5}, {128, 128, 256, 32, 4, 4}}

// kernel gives the shape's kernel, by what it is called without the shape. A row of a tile in shared memory is 8 elements longer than the tile, against bank conflicts.
func (s warpShape) kernel(name string, transposed bool) kernel {
	w := s.columns * (s.depth + 8)
	if transposed {
		name, w = name+"_transposed", s.depth*(s.columns+8)
	}
	return kernel{fmt.Sprintf("%s_%dx%d", name, s.rows, s.columns), s.threads, 2 * (s.xPlaces*s.rows*(s.depth+8) + s.wPlaces*w)}
}

// warpTile is the tile of shape i.
func warpTile(i int, transposed bool) tile {
	t := tile{kernel: kProduct + i, rows: int64(warpShapes[i].rows), columns: int64(warpShapes[i].columns)}
	if transposed {
		t.kernel += kProductTransposed - kProduct
	}
	return t
}

func largestWarpTile(transposed bool) tile { return warpTile(len(warpShapes)-1, transposed) }

// part is one of the products of a launch: rows of x with the weights of groups, which may have tails of the rows that tail is. Its columns are the widest group's.
type part struct {
	y, x       View
	xType      Type
	groups     []RowGroup
	tail       tailRows
	columns    int64
	accumulate bool
	frozen     bool // nothing writes the weights of groups, see Multiplication
}

// grid is how many tiles of rows and of columns the part has, the latter in whole clusters.
func (p *part) grid(t tile) (down, across int64) {
	for _, g := range p.groups {
		down += (g.To - g.From + t.rows - 1) / t.rows
	}
	wide := t.columns * max(1, t.cluster)
	return down, (p.columns + wide - 1) / wide * max(1, t.cluster)
}

// bfloat16Tile chooses among kernels of equal bits, those by warps. A block reads a row of x and of w for each of its rows and columns, through its multiprocessor's share of the second-level cache; the multiprocessor with
// the most blocks is the last: least is how many rows it reads. So many small tiles are for few outputs, and large ones, which read x less often, for many.
func (v *Device) bfloat16Tile(parts []part, transposed bool) (best tile, least int64) {
	least = math.MaxInt64
	for i := range warpShapes {
		t, blocks, each := warpTile(i, transposed), int64(0), int64(v.multiprocessors)
		for k := range parts {
			down, across := parts[k].grid(t)
			blocks += down * across
		}
		if reads := (blocks + each - 1) / each * (t.rows + t.columns); reads < least {
			best, least = t, reads
		}
	}
	return best, least
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
// holds or with zero; weights of bfloat16, and in eight bits, round x and take 16 steps at once, in
// warps or, after UseWarpgroups, in warpgroups where there are many rows, or after UseCuBLASLt as that library does; of BFloat16Blocks by bulk copies where there are many or, after UseClusters, few. No row may be in two groups.
func (v *Device) Product(y, x View, xType Type, groups []RowGroup, t Type, transposed, accumulate bool) error {
	return v.product(y, x, xType, groups, tailRows{}, t, transposed, accumulate)
}

// product is Product of groups that may have tails, whose rows the tail is; those are of bfloat16.
func (v *Device) product(y, x View, xType Type, groups []RowGroup, tail tailRows, t Type, transposed, accumulate bool) (err error) {
	rows, columns := int64(0), widest(groups, transposed)
	for i := range groups {
		g := &groups[i]
		if g.depth(transposed) > math.MaxInt32 { // the kernels count it in 32 bits
			return fmt.Errorf("product: an inner axis of %d elements is too long", g.depth(transposed))
		}
		rows = max(rows, g.To-g.From)
	}
	if rows == 0 || columns == 0 {
		return nil
	}
	shape := tile{kernel: kProductFloat32, rows: 64, columns: 64}
	if t == BFloat16Blocks {
		if shape, ok := v.bulkTile(y, x, groups, transposed); ok {
			err := v.productByBulk(bulkProduct{y: y, x: x, xType: xType, w: groups[0].Weight, tail: tail, tailWeight: groups[0].tail, transposed: transposed, accumulate: accumulate}, shape)
			if !errors.Is(err, ErrOutOfMemory) { // for rows in blocks; warps need none, and their bits are the same
				return err
			}
		}
	}
	if t != Float32 {
		if x, xType, err = v.sharedRounded(x, xType); err != nil {
			return err
		}
		if tail.x.At == 0 && t == BFloat16 {
			if done, err := v.productByLibrary(y, x, xType, groups, transposed, accumulate); done || err != nil {
				return err
			}
		}
		if v.warpgroups && t == BFloat16 {
			if group, ok := v.warpgroupTile(x, groups, transposed, columns); ok {
				err := v.productByWarpgroups(y, x, xType, groups, tail, group, columns, transposed, accumulate)
				if !errors.Is(err, ErrOutOfMemory) { // for rounded rows; warps need none, and their bits are the same
					return err
				}
			}
		}
		if t == E4M3 {
			if done, err := v.productExpanded(y, x, xType, groups, transposed, accumulate); done || err != nil {
				return err
			}
		}
		given := xType
		if x, xType, err = v.roundedForWarps(x, xType, groups, transposed); err != nil {
			return err
		}
		if xType != given {
			defer func(rounded View) { err = errors.Join(err, v.giveRounded(rounded)) }(x)
		}
	} else if transposed {
		shape.kernel = kProductTransposedFloat32
	}
	p := part{y: y, x: x, xType: xType, groups: groups, tail: tail, columns: columns, accumulate: accumulate}
	if t != Float32 {
		shape = v.fewRowsTile([]part{p}, t, transposed)
	}
	return v.productInTiles(p, shape)
}

// widest gives the columns of the group that has the most.
func widest(groups []RowGroup, transposed bool) (columns int64) {
	for _, g := range groups {
		columns = max(columns, outputsOf(g.Weight, transposed))
	}
	return columns
}

// roundedForWarps gives rows as the kernels by warps are to read them: rounded, where that pays and there is memory. Rows of another type than x has are given back by giveRounded after the launch.
func (v *Device) roundedForWarps(x View, xType Type, groups []RowGroup, transposed bool) (View, Type, error) {
	if xType != Float32 || !narrowsFirst(x, groups, transposed) {
		return x, xType, nil
	}
	to, err := v.rounded(x, xType)
	switch {
	case errors.Is(err, ErrOutOfMemory): // the kernels round rows themselves
		return x, xType, nil
	case err != nil:
		return x, xType, err
	}
	return to, BFloat16, nil
}

// productInTiles launches a kernel over all tiles of a product.
func (v *Device) productInTiles(p part, shape tile) error {
	if byWarps(shape.kernel) {
		return v.productsInTiles([]part{p}, shape)
	}
	a := p.arguments()
	down, across := p.grid(shape)
	release := func() error { return nil }
	if lists := p.lists(shape); lists != nil {
		at, free, err := v.putAll(lists...)
		if err != nil {
			return err
		}
		a.groups, a.tiles, release = C.uint64_t(at[0]), C.uint64_t(at[1]), free
	}
	return errors.Join(v.launch(shape.kernel, down, across, 1, bytesIn(&a)), release())
}

// productsInTiles launches a kernel by warps over all tiles of parts: at most mostProducts, each with rows and columns.
func (v *Device) productsInTiles(parts []part, shape tile) error {
	var a C.products_arguments
	var lists [][]byte
	end := int64(0)
	for i := range a.blocks {
		if i < len(parts) {
			down, across := parts[i].grid(shape)
			end += down * across // the launch refuses what is more than 32 bits
			a.of[i], a.blocks[i].down = parts[i].arguments(), C.int32_t(down)
			lists = append(lists, parts[i].lists(shape)...)
		}
		a.blocks[i].end = C.int32_t(end)
	}
	release := func() error { return nil }
	if len(lists) > 0 {
		at, free, err := v.putAll(lists...)
		if err != nil {
			return err
		}
		release = free
		for i := range parts {
			if len(parts[i].groups) > 1 {
				a.of[i].groups, a.of[i].tiles = C.uint64_t(at[0]), C.uint64_t(at[1])
				at = at[2:]
			}
		}
	}
	return errors.Join(v.launch(shape.kernel, end, 1, 1, bytesIn(&a)), release())
}

// arguments are those of the part but for its lists. The first group is among them also where there is a list: before kernels wait for the launch before they
// compute where its weight lies, and then ask for nothing.
func (p *part) arguments() C.product_arguments {
	a := C.product_arguments{y: p.y.c(), x: p.x.c(), tail_x: p.tail.x.c(), accumulate: flag(p.accumulate), x_type: C.int32_t(p.xType), tail_type: C.int32_t(p.tail.xType)}
	if len(p.groups) > 0 {
		a.only, a.frozen = *(*C.row_group)(unsafe.Pointer(&p.groups[0])), flag(p.frozen && len(p.groups) == 1)
	}
	return a
}

// lists are the groups and the tiles of rows of all of them; none where there is one group.
func (p *part) lists(shape tile) [][]byte {
	if len(p.groups) == 1 {
		return nil
	}
	var tiles []C.product_tile
	for i, g := range p.groups {
		for row := int64(0); row < g.To-g.From; row += shape.rows {
			tiles = append(tiles, C.product_tile{group: C.int32_t(i), row: C.int32_t(row)})
		}
	}
	return [][]byte{bytesOf(p.groups), bytesOf(tiles)}
}
