package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
)

// Products by warpgroups are a module of their own for Hopper (kernels/warpgroup.cu), which is loaded when it is first used. Nobody has run them on a GPU yet: a device begins without them, and
// CheckWarpgroups says whether they give the bits of the other kernels there.

// warpgroupModule is their file.
const warpgroupModule = "sm_90a_warpgroup"

// kWarpgroup is the first of the numbers of its kernels, behind those of the first module; those for weights in blocks follow, and those of attention.
const kWarpgroup = C.KERNEL_LIMIT - 8 - 32 - 16

const (
	kProductGroup = kWarpgroup + iota
	kProductGroupWide
	kProductGroupTransposed
	kProductGroupTransposedWide
)

// What blocks of the kernels have.
const (
	groupRows        = 128
	groupColumns     = 128
	wideGroupColumns = 256
	groupPlaces      = 3 // for tiles in shared memory
	wideGroupPlaces  = 4
)

// groupShared is the shared memory of a block: places for tiles of x and w with rows of 128 bytes, and what is lost because they begin at a multiple of 1,024.
func groupShared(columns, places int) int { return places*(groupRows+columns)*128 + 1024 }

var warpgroupKernels = []kernel{
	{"product_group", 256, groupShared(groupColumns, groupPlaces)}, {"product_group_wide", 256, groupShared(wideGroupColumns, wideGroupPlaces)},
	{"product_group_transposed", 256, groupShared(groupColumns, groupPlaces)}, {"product_group_transposed_wide", 256, groupShared(wideGroupColumns, wideGroupPlaces)},
}

// Warpgroups says whether the device has them: Hopper does.
func (i Information) Warpgroups() bool { return i.Major == 9 && i.Minor == 0 }

// UseWarpgroups has Product use warpgroups for many rows, or no more. The first use compiles the kernels; where that fails the device goes on without. Only devices whose Information has Warpgroups can.
func (v *Device) UseWarpgroups(use bool) error {
	if v.c == nil {
		return errClosed
	}
	if use && v.c.modules[1] == nil {
		text, err := module(warpgroupModule)
		if err != nil {
			return err
		}
		if err := v.loadModule(1, warpgroupModule, text, kWarpgroup, warpgroupKernels); err != nil {
			return err
		}
	}
	v.warpgroups = use
	return nil
}

// Warpgroups says whether Product uses them.
func (v *Device) Warpgroups() bool { return v.warpgroups }

// leastGroupDepth is the inner axis from which on warpgroups pay: below it a block waits for its first tiles most of the time.
const leastGroupDepth = 256

// warpgroupTile chooses the tile of a product by warpgroups; false if few rows or columns, or a short inner axis, make it one for warps. The columns are the widest group's.
func (v *Device) warpgroupTile(x View, groups []RowGroup, transposed bool, columns int64) (tile, bool) {
	var down, largest int64 // tiles of all groups; rows of the largest
	for _, g := range groups {
		depth := g.depth(transposed)
		if depth < leastGroupDepth || depth != x.Cols && depth%8 != 0 {
			return tile{}, false
		}
		down += (g.To - g.From + groupRows - 1) / groupRows
		largest = max(largest, g.To-g.From)
	}
	if largest < groupRows || columns < groupColumns {
		return tile{}, false
	}
	// Rounds in which all multiprocessors have a block: one of wide blocks takes about as long as 8/5 of those of the others, which read more for each product.
	devices := int64(v.multiprocessors)
	rounds := func(width int64) int64 { return (down*((columns+width-1)/width) + devices - 1) / devices }
	wide, narrow := 8*rounds(wideGroupColumns), 5*rounds(groupColumns) // fifths of a round of narrow blocks
	// A block reads a row of x and of w for each of its rows and columns, as one by warps does, whose tensor cores work at half the rate; so it may read 8/5 of what those do. It is an estimate: neither has been measured.
	_, reads := v.bfloat16Tile([]part{{groups: groups, columns: columns}}, transposed)
	if min(wide, narrow)*(groupRows+groupColumns) > 8*reads {
		return tile{}, false
	}
	if wide <= narrow {
		return tile{kernel: kProductGroupWide, rows: groupRows, columns: wideGroupColumns}, true
	}
	return tile{kernel: kProductGroup, rows: groupRows, columns: groupColumns}, true
}

func (g *RowGroup) depth(transposed bool) int64 { return depthOf(g.Weight, transposed) }

// depthOf is the inner axis of a product with w.
func depthOf(w Weight, transposed bool) int64 {
	if transposed {
		return w.Out
	}
	return w.In
}

// productByWarpgroups is Product with a tile for warpgroups. The rows of x are rounded first, unless they are as the kernels want them: bfloat16, at multiples of 16 bytes, with an inner axis of whole such
// multiples; the tail's likewise. Errors that wrap ErrOutOfMemory come before anything is done.
func (v *Device) productByWarpgroups(y, x View, xType Type, groups []RowGroup, tail tailRows, shape tile, columns int64, transposed, accumulate bool) (err error) {
	fit, tailFits := inChunks(x, xType), inChunks(tail.x, tail.xType)
	for _, g := range groups {
		fit = fit && g.depth(transposed)%8 == 0
		tailFits = tailFits && depthOf(g.tail, transposed)%8 == 0
	}
	if transposed {
		shape.kernel += kProductGroupTransposed - kProductGroup
	}
	if !fit {
		to, failed := v.rounded(x, xType)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, v.giveRounded(to)) }()
		x = to
	}
	if tail.x.At != 0 && !tailFits {
		to, failed := v.narrowRows(tail.x, tail.xType)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, v.giveScratch(to.At)) }()
		tail = tailRows{to, BFloat16}
	}
	return v.productInTiles(part{y: y, x: x, xType: BFloat16, groups: groups, tail: tail, columns: columns, accumulate: accumulate}, shape)
}
