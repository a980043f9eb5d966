package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
)

// Weights in blocks, and products with them by bulk copies, are a module of their own for Hopper (kernels/bulk.cu), which is loaded when it is asked for. Nobody has run them on a GPU yet: CheckBulk says whether they give the bits of
// the other kernels there, and whether they take less time.

// bulkModule is their file.
const bulkModule = "sm_90a_bulk"

// kBulk is the first of the numbers of its kernels, behind those of warpgroups.
const kBulk = kWarpgroup + 8

// The kernels by warps are in the order of warpShapes, and of routedShapes.
const (
	kProductBlocks           = kBulk
	kProductBlocksTransposed = kProductBlocks + 5
	kRoutedBlocks            = kProductBlocks + 10
	kRoutedBlocksTransposed  = kRoutedBlocks + 3
	kProductBulk             = kRoutedBlocks + 6
	kProductBulkWide         = kProductBulk + 1
	kProductBulkTransposed   = kProductBulk + 2
	kProductBulkGated        = kProductBulk + 4
	kNarrowBlocks            = kProductBulk + 5
	kProductCluster          = kProductBulk + 6 // of each of clusterShapes
	kBehindClusters          = kProductCluster + 4
)

// What blocks of the kernels have.
const (
	bulkRows        = 128
	bulkColumns     = 128
	wideBulkColumns = 256
	bulkCluster     = 2
	bulkThreads     = 384
	bulkPlaces      = 6 // for tiles in shared memory
	wideBulkPlaces  = 4
)

// bulkShared is the shared memory of a block: places for tiles of x and w with rows of 128 bytes, two mbarriers for each, and what is lost because they begin at a multiple of 1,024.
func bulkShared(columns, places int) int { return places*((bulkRows+columns)*128+16) + 1024 }

var bulkKernels = func() (table []kernel) {
	for _, family := range []struct {
		name   string
		shapes []warpShape
	}{{"product_blocks", warpShapes}, {"routed_blocks", routedShapes}} {
		for _, transposed := range []bool{false, true} {
			for _, s := range family.shapes {
				table = append(table, s.kernel(family.name, transposed))
			}
		}
	}
	narrow, wide := bulkShared(bulkColumns, bulkPlaces), bulkShared(wideBulkColumns, wideBulkPlaces)
	table = append(table, kernel{"product_bulk", bulkThreads, narrow}, kernel{"product_bulk_wide", bulkThreads, wide}, kernel{"product_bulk_transposed", bulkThreads, narrow},
		kernel{"product_bulk_transposed_wide", bulkThreads, wide}, kernel{"product_bulk_gated", bulkThreads, wide}, kernel{"narrow_blocks", 256, 0})
	for _, s := range clusterShapes {
		table = append(table, s.kernel())
	}
	return table
}()

// Bulk says whether the device has what products by bulk copies take: Hopper does.
func (i Information) Bulk() bool { return i.Warpgroups() }

// UseBulk compiles the kernels for weights of BFloat16Blocks, which can be used from then on. Only devices whose Information has Bulk can.
func (v *Device) UseBulk() error {
	if v.c == nil {
		return errClosed
	}
	if v.bulk {
		return nil
	}
	text, err := module(bulkModule)
	if err == nil {
		err = v.loadModule(2, bulkModule, text, kBulk, bulkKernels)
	}
	v.bulk = err == nil
	return err
}

// Bulk says whether the device can use weights of BFloat16Blocks.
func (v *Device) Bulk() bool { return v.bulk }

// BlockSide is how many rows and columns a block of a weight of BFloat16Blocks has.
const BlockSide = C.BLOCK_SIDE

// InBlocks says whether a weight of so many rows and columns can be of BFloat16Blocks, where it takes what it takes as BFloat16.
func InBlocks(out, in int64) bool {
	return out > 0 && in > 0 && out%BlockSide == 0 && in%BlockSide == 0
}

// leastBulkDepth is the inner axis from which on bulk copies pay. An estimate, as for warpgroups.
const leastBulkDepth = leastGroupDepth

// bulkTile chooses the kernel of a product by bulk copies; false if few rows, a short inner axis, several weights or where y lies make it one for warps.
func (v *Device) bulkTile(y, x View, groups []RowGroup, transposed bool) (tile, bool) {
	if len(groups) != 1 {
		return tile{}, false
	}
	g := &groups[0]
	if !InBlocks(g.Weight.Out, g.Weight.In) { // a part of a weight in blocks
		return tile{}, false
	}
	rows, columns, depth := g.To-g.From, outputsOf(g.Weight, transposed), g.depth(transposed)
	if g.From != 0 || rows != x.Rows || rows < bulkRows || depth < leastBulkDepth || x.Cols != depth || g.Factor != 0 || y.At%8 != 0 || y.Stride%2 != 0 {
		return tile{}, false
	}
	pairs, clusters := (rows+bulkCluster*bulkRows-1)/(bulkCluster*bulkRows), max(1, int64(v.multiprocessors)/bulkCluster)
	if 4*pairs*((columns+bulkColumns-1)/bulkColumns) < clusters {
		return tile{}, false
	}
	rounds := func(width int64) int64 { return (pairs*((columns+width-1)/width) + clusters - 1) / clusters }
	shape := tile{kernel: kProductBulk, rows: bulkRows, columns: bulkColumns}
	if 8*rounds(wideBulkColumns) <= 5*rounds(bulkColumns) { // as for warpgroups
		shape = tile{kernel: kProductBulkWide, rows: bulkRows, columns: wideBulkColumns}
	}
	if transposed {
		shape.kernel += kProductBulkTransposed - kProductBulk
	}
	return shape, true
}

// bulkGrid is how many blocks have the tiles of an output: as many as there are multiprocessors, in whole clusters, or fewer.
func (v *Device) bulkGrid(rows, columns, width int64) int64 {
	tiles := (rows + bulkCluster*bulkRows - 1) / (bulkCluster * bulkRows) * ((columns + width - 1) / width)
	return bulkCluster * min(tiles, max(1, int64(v.multiprocessors)/bulkCluster))
}

// Result is what becomes of a product's chains.
type Result int32

// The results. Add is y = add + the chain's value, element by element; Narrow rounds the chain's value to y's type, which is bfloat16.
const (
	Store  Result = C.BULK_STORE
	Add    Result = C.BULK_ADD
	Narrow Result = C.BULK_NARROW
)

// bulkProduct is a product by bulk copies: y (+)= x · wᵀ, or x · w.
type bulkProduct struct {
	y, x, add              View
	xType                  Type
	w                      Weight // of BFloat16Blocks
	tail                   tailRows
	tailWeight             Weight // of BFloat16; At 0: none
	result                 Result
	transposed, accumulate bool
}

// productByBulk does it with a tile. The rows of x are put in blocks first, unless products that have them in common have done so; those of the tail are rounded where kernels cannot have them as they are. Errors that wrap ErrOutOfMemory
// come before anything is done.
func (v *Device) productByBulk(p bulkProduct, shape tile) (err error) {
	a := C.bulk_arguments{y: p.y.c(), add: p.add.c(), w: p.w.c(), rows: C.int64_t(p.x.Rows), accumulate: flag(p.accumulate), result: C.int32_t(p.result)}
	x, giveX, err := v.inBlocks(p.x, p.xType)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, giveX()) }()
	a.x = C.uint64_t(x)
	if p.tailWeight.At != 0 {
		tail, give, failed := v.tailInChunks(p.tail, depthOf(p.tailWeight, p.transposed))
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, give()) }()
		a.tail_x, a.tail = tail.c(), p.tailWeight.c()
	}
	columns := outputsOf(p.w, p.transposed)
	return v.launch(shape.kernel, v.bulkGrid(p.x.Rows, columns, shape.columns), 1, 1, bytesIn(&a))
}

func nothing() error { return nil }

// tailInChunks gives the rows of a tail so deep as bfloat16 at multiples of 16 bytes, with zeros behind its depth to a multiple of 8.
func (v *Device) tailInChunks(tail tailRows, depth int64) (x View, give func() error, err error) {
	if inChunks(tail.x, tail.xType) && depth%8 == 0 {
		return tail.x, nothing, nil
	}
	if x, err = v.narrowRows(tail.x, tail.xType); err != nil {
		return View{}, nil, err
	}
	return x, func() error { return v.giveScratch(x.At) }, nil
}

// inBlocks gives the rows of x, whose columns are a multiple of BlockSide, rounded and in blocks, with rows of zeros to a multiple of bulkRows; those that products have in common once for all.
func (v *Device) inBlocks(x View, xType Type) (at Address, give func() error, err error) {
	s := &v.rows
	shared := s.x == x && s.xType == xType
	if shared && s.blocks != 0 {
		return s.blocks, nothing, nil
	}
	rows := (x.Rows + bulkRows - 1) / bulkRows * bulkRows
	if at, err = v.takeScratch(int(2 * rows * x.Cols)); err != nil {
		return 0, nil, err
	}
	a := C.narrow_blocks_arguments{x: x.c(), y: C.uint64_t(at), rows: C.int64_t(x.Rows), x_type: C.int32_t(xType)}
	if err := v.launch(kNarrowBlocks, rows, min((x.Cols+2047)/2048, maxY), 1, bytesIn(&a)); err != nil {
		return 0, nil, errors.Join(err, v.giveScratch(at))
	}
	if shared {
		s.keep(at, &s.blocks)
		return at, nothing, nil
	}
	return at, func() error { return v.giveScratch(at) }, nil
}

// GatedProduct is hidden = gate · sigmoid(gate) · up of products of the rows of X with Gate and Up, which have one shape and are of BFloat16Blocks. Tails, row by row as BFloat16, are added to each; without groups there is none, and those
// of a group are for all rows. Hidden, and KeptGate and KeptUp where these have addresses, are bfloat16.
type GatedProduct struct {
	Hidden, KeptGate, KeptUp, X View
	XType                       Type
	Gate, Up                    Weight
	GateTail, UpTail            Tail
}

// GatedProducts does p in one launch, with the bits of two products with tails and of SwiGLUKeep of them; false if it is not for bulk copies, and nothing was done.
func (v *Device) GatedProducts(p GatedProduct) (done bool, err error) {
	if p.Gate.Out != p.Up.Out || p.Gate.In != p.Up.In {
		return false, fmt.Errorf("gated product: gate is %d × %d and up %d × %d", p.Gate.Out, p.Gate.In, p.Up.Out, p.Up.In)
	}
	if !v.Gates(p) {
		return false, nil
	}
	done, err = v.gatedByBulk(p)
	return done, ifMemory(err)
}

// Gates says whether GatedProducts does p, if there is memory for it.
func (v *Device) Gates(p GatedProduct) bool {
	if p.Gate.Out != p.Up.Out || p.Gate.In != p.Up.In || !v.bulk || !p.fits() {
		return false
	}
	_, ok := v.bulkTile(View{}, p.X, []RowGroup{{To: p.X.Rows, Weight: p.Gate}}, false)
	return ok
}

// fits says whether the kernel takes what p writes and adds.
func (p *GatedProduct) fits() bool {
	even := func(y View) bool { return y.At%4 == 0 && y.Stride%2 == 0 }
	if !even(p.Hidden) || !even(p.KeptGate) || !even(p.KeptUp) {
		return false
	}
	for _, t := range []Tail{p.GateTail, p.UpTail} {
		if len(t.Groups) == 0 {
			continue
		}
		g := t.Groups[0]
		if len(t.Groups) > 1 || g.From != 0 || g.To != p.X.Rows || g.Factor != 0 || g.Weight.Out != p.Gate.Out || g.Weight.In == 0 || g.Weight.In != t.X.Cols && g.Weight.In%8 != 0 {
			return false
		}
	}
	return true
}

// gatedByBulk is GatedProducts of however few rows. Errors that wrap ErrOutOfMemory come before anything is done.
func (v *Device) gatedByBulk(p GatedProduct) (done bool, err error) {
	if !p.fits() {
		return false, nil
	}
	tails := []Tail{p.GateTail, p.UpTail}
	a := C.bulk_gated_arguments{hidden: p.Hidden.c(), kept_gate: p.KeptGate.c(), kept_up: p.KeptUp.c(), gate: p.Gate.c(), up: p.Up.c(), rows: C.int64_t(p.X.Rows)}
	x, giveX, err := v.inBlocks(p.X, p.XType)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, giveX()) }()
	a.x = C.uint64_t(x)
	for i, t := range tails {
		if len(t.Groups) == 0 {
			continue
		}
		rows, give, failed := v.tailInChunks(tailRows{t.X, t.XType}, t.Groups[0].Weight.In)
		if failed != nil {
			return false, failed
		}
		defer func() { err = errors.Join(err, give()) }()
		if i == 0 {
			a.gate_tail_x, a.gate_tail = rows.c(), t.Groups[0].Weight.c()
		} else {
			a.up_tail_x, a.up_tail = rows.c(), t.Groups[0].Weight.c()
		}
	}
	const width = wideBulkColumns / 2
	return true, v.launch(kProductBulkGated, v.bulkGrid(p.X.Rows, p.Gate.Out, width), 1, 1, bytesIn(&a))
}

// ifMemory is err, unless it is for want of memory: then there is another way.
func ifMemory(err error) error {
	if errors.Is(err, ErrOutOfMemory) {
		return nil
	}
	return err
}

// IntoProduct is Product of all rows of X with one weight of BFloat16Blocks, and Tail's, whose chains become what Result says; Add is what is added.
type IntoProduct struct {
	Result     Result
	Y, Add, X  View
	XType      Type
	Weight     Weight
	Tail       Tail // without groups there is none
	Transposed bool
}

// Ends says whether ProductInto does p, if there is memory for it.
func (v *Device) Ends(p *IntoProduct) bool {
	_, ok := v.endingTile(p)
	return ok
}

func (v *Device) endingTile(p *IntoProduct) (tile, bool) {
	groups := []RowGroup{{To: p.X.Rows, Weight: p.Weight}}
	shape, ok := v.bulkTile(p.Y, p.X, groups, p.Transposed)
	if !ok || !v.bulk || p.Result == Add && (p.Add.At%8 != 0 || p.Add.Stride%2 != 0) {
		return tile{}, false
	}
	return shape, len(p.Tail.Groups) == 0 || v.bulkRides(groups[0], p.Tail, p.Transposed)
}

// ProductInto does p in one launch; false if it is not for bulk copies, and nothing was done.
func (v *Device) ProductInto(p IntoProduct) (done bool, err error) {
	shape, ok := v.endingTile(&p)
	if !ok {
		return false, nil
	}
	b := bulkProduct{y: p.Y, x: p.X, add: p.Add, xType: p.XType, w: p.Weight, result: p.Result, transposed: p.Transposed}
	if len(p.Tail.Groups) > 0 {
		b.tail, b.tailWeight = tailRows{p.Tail.X, p.Tail.XType}, p.Tail.Groups[0].Weight
	}
	err = v.productByBulk(b, shape)
	return err == nil, ifMemory(err)
}

// bulkRides says whether a tail rides in a product by bulk copies: it is one adapter's, of all rows.
func (v *Device) bulkRides(base RowGroup, tail Tail, transposed bool) bool {
	if len(tail.Groups) != 1 || tail.Groups[0].From != base.From || tail.Groups[0].To != base.To {
		return false
	}
	_, rest, ride := v.withTails(base, tail, transposed)
	return ride && len(rest) == 0
}
