package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// Mixtures of experts. How many rows an expert has only the device knows, and the host does not wait for it: a launch has blocks for as many tiles as there can be, and those that find nothing to do end. So the launches of a pass are
// the same whatever its tokens choose, and may be those of a graph.

// ExpertTable is which rows are of which expert, in Words: Experts + 1 numbers, where the rows of each begin and the last one's end, then for each of Tokens·Slots rows its token, then its slot, and for each slot its row (int32).
// Products are for experts [From, To).
type ExpertTable struct {
	Words                            Address
	Tokens, Slots, Experts, From, To int64
}

const (
	_ = uint(unsafe.Sizeof(ExpertTable{}) - C.sizeof_expert_table)
	_ = uint(C.sizeof_expert_table - unsafe.Sizeof(ExpertTable{}))
)

func (t *ExpertTable) c() C.expert_table { return *(*C.expert_table)(unsafe.Pointer(t)) }

func (t *ExpertTable) rows() int64 { return t.Tokens * t.Slots }

// tiles is the most tiles of so many rows that rows of experts [From, To) can have.
func (t *ExpertTable) tiles(rows, height int64) int64 {
	experts := min(t.To-t.From, rows) // that have one
	return experts + (rows-experts)/height
}

// Route chooses experts (choice, int32) for the rows of logits, and gives their probabilities: of the logits of those that are chosen, or of all.
func (v *Device) Route(choice, p, logits View, normalise bool) error {
	if choice.empty() {
		return nil
	}
	a := C.route_arguments{choice: choice.c(), p: p.c(), logits: logits.c(), normalise: flag(normalise)}
	return v.launch(kRoute, choice.Rows, 1, 1, bytesIn(&a))
}

// RouteBackward is the gradient by the logits for dp.
func (v *Device) RouteBackward(dlogits, dp, p, choice, logits View, normalise bool) error {
	if choice.empty() {
		return nil
	}
	a := C.route_backward_arguments{dlogits: dlogits.c(), dp: dp.c(), p: p.c(), choice: choice.c(), logits: logits.c(), normalise: flag(normalise)}
	return v.launch(kRouteBackward, choice.Rows, 1, 1, bytesIn(&a))
}

// Dispatch writes the table of a choice. What is no expert's number counts as the nearest that is.
func (v *Device) Dispatch(table ExpertTable, choice View) error {
	if table.rows() > math.MaxInt32 {
		return fmt.Errorf("dispatch: %d rows are too many", table.rows())
	}
	a := C.dispatch_arguments{table: table.c(), choice: choice.c()}
	return v.launch(kDispatch, table.Experts, 1, 1, bytesIn(&a))
}

// Spread is rows[i] = x[i] · p[slot] or, gathered, x[token] · p[slot]; a p without an address is 1, and rows may be x.
func (v *Device) Spread(rows, x, p View, table ExpertTable, gathered bool) error {
	a := C.spread_arguments{table: table.c(), rows: rows.c(), x: x.c(), p: p.c(), gathered: flag(gathered)}
	return v.rowwise(kSpread, rows.Rows, rows.Cols, bytesIn(&a))
}

// Combine is y[token] (+)= Σ p · rows, in the order of slots; a p without an address is 1.
func (v *Device) Combine(y, rows, p View, table ExpertTable, accumulate bool) error {
	a := C.combine_arguments{table: table.c(), y: y.c(), rows: rows.c(), p: p.c(), accumulate: flag(accumulate)}
	return v.rowwise(kCombine, y.Rows, y.Cols, bytesIn(&a))
}

// CombineBackward is dp[slot] = ⟨drows, h⟩ of its row, and then drows is multiplied by p.
func (v *Device) CombineBackward(dp, drows, h, p View, table ExpertTable) error {
	if drows.Rows == 0 {
		return nil
	}
	a := C.combine_backward_arguments{table: table.c(), dp: dp.c(), drows: drows.c(), h: h.c(), p: p.c()}
	const rows = 16 // of a block
	return v.launch(kCombineBackward, (drows.Rows+rows-1)/rows, 1, 1, bytesIn(&a))
}

// RoutedProduct is a product of rows of tokens [First, End) with the matrices of their experts: that of expert 0 is Weight, the next one begins Apart elements later, of Type E4M3 so many bytes. Gathered, X has a row for each token. The rest is as in Product
// and RowGroup.
type RoutedProduct struct {
	Y, X       View
	Weight     Weight
	Apart      int64
	First, End int32
	Factor     float32
	Round      Type
	XType      Type
	Gathered   bool
	Accumulate bool
}

const (
	_ = uint(unsafe.Sizeof(RoutedProduct{}) - C.sizeof_routed_job)
	_ = uint(C.sizeof_routed_job - unsafe.Sizeof(RoutedProduct{}))
)

// routedShapes are the shapes of experts_product.cu, in the order of their kernels.
var routedShapes = []warpShape{{16, 32, 64, 64, 4, 12}, {64, 96, 128, 64, 3, 5}, {128, 128, 256, 32, 4, 4}}

// The most rows that experts have on average for the first of routedShapes, and for the second. These are estimates: an expert's last tile is half empty, and a small tile reads its matrix more often.
const (
	fewRouted  = 16
	someRouted = 192
)

// routedTile chooses among kernels of equal bits.
func (t *ExpertTable) routedTile(rows int64, of Type, transposed bool) tile {
	if of == Float32 {
		if transposed {
			return tile{kernel: kRoutedTransposedFloat32, rows: 64, columns: 64}
		}
		return tile{kernel: kRoutedFloat32, rows: 64, columns: 64}
	}
	shape, average := 0, rows/max(1, min(rows, t.To-t.From))
	if average > someRouted {
		shape = 2
	} else if average > fewRouted {
		shape = 1
	}
	s := tile{kernel: kRouted + shape, rows: int64(routedShapes[shape].rows), columns: int64(routedShapes[shape].columns)}
	if transposed {
		s.kernel += kRoutedTransposed - kRouted
	}
	s.kernel = kernelFor(s.kernel, of)
	return s
}

// RoutedProducts does products with the matrices of experts, of type t, in one launch. The bits of a row are those of Product. What one writes no other may read or write. The list is the device's until it returns.
func (v *Device) RoutedProducts(table ExpertTable, products []RoutedProduct, t Type, transposed bool) (err error) {
	for i := range products {
		if d := depthOf(products[i].Weight, transposed); d > math.MaxInt32 { // the kernels count it in 32 bits
			return fmt.Errorf("routed product: an inner axis of %d elements is too long", d)
		}
	}
	if t != Float32 {
		var own []roundedRows
		defer func() {
			for _, rows := range slices.Backward(own) { // scratch memory is a stack
				err = errors.Join(err, v.giveScratch(rows.to.At))
			}
		}()
		for i := range products {
			p := &products[i]
			if p.XType != Float32 || !deepEnough(p.X) {
				continue
			}
			at := slices.IndexFunc(own, func(r roundedRows) bool { return r.of == p.X })
			if at < 0 {
				to, err := v.narrowRows(p.X, p.XType)
				if errors.Is(err, ErrOutOfMemory) { // the kernels round rows themselves
					continue
				}
				if err != nil {
					return err
				}
				at, own = len(own), append(own, roundedRows{p.X, to})
			}
			p.X, p.XType = own[at].to, BFloat16
		}
	}
	for len(products) > 0 {
		n := min(len(products), maxY)
		if err := v.routedProducts(table, products[:n], t, transposed); err != nil {
			return err
		}
		products = products[n:]
	}
	return nil
}

// putMany copies jobs to own, a launch's arguments, if these have room for all, and the address is 0; or it puts them.
func putMany[T any](v *Device, jobs, own []T) (at Address, release func() error, err error) {
	if len(jobs) <= len(own) {
		copy(own, jobs)
		return 0, func() error { return nil }, nil
	}
	return v.Put(bytesOf(jobs))
}

func (v *Device) routedProducts(table ExpertTable, products []RoutedProduct, t Type, transposed bool) error {
	rows, columns := int64(0), int64(0)
	for i := range products {
		p := &products[i]
		rows, columns = max(rows, int64(p.End-p.First)*table.Slots), max(columns, outputsOf(p.Weight, transposed))
	}
	if rows <= 0 || columns == 0 || table.From >= table.To {
		return nil
	}
	shape := table.routedTile(rows, t, transposed)
	a := C.routed_arguments{table: table.c(), down: C.int64_t(table.tiles(rows, shape.rows))}
	at, release, err := putMany(v, products, unsafe.Slice((*RoutedProduct)(unsafe.Pointer(&a.own[0])), len(a.own)))
	if err != nil {
		return err
	}
	a.jobs = C.uint64_t(at)
	across := (columns + shape.columns - 1) / shape.columns
	return errors.Join(v.launch(shape.kernel, int64(a.down)*across, int64(len(products)), 1, bytesIn(&a)), release())
}

// RoutedOuter is the sums of outer products of each expert's rows that are of tokens [From, To): G has the experts' gradients below each other. With First the chains begin with zero whatever G holds.
type RoutedOuter struct {
	G, A, B  View
	From, To int32
	First    bool
}

const (
	_ = uint(unsafe.Sizeof(RoutedOuter{}) - C.sizeof_routed_outer_job)
	_ = uint(C.sizeof_routed_outer_job - unsafe.Sizeof(RoutedOuter{}))
)

// OuterRouted does all jobs in one launch. No two may have a G in common.
func (v *Device) OuterRouted(table ExpertTable, jobs []RoutedOuter) error {
	for len(jobs) > 0 {
		n := min(len(jobs), maxY)
		tiles := 0
		for _, j := range jobs[:n] {
			tiles = max(tiles, len(outerTiles(nil, 0, min(j.A.Cols, j.B.Cols), max(j.A.Cols, j.B.Cols))))
		}
		if tiles > 0 && table.From < table.To {
			a := C.outer_routed_arguments{table: table.c(), tiles: C.int64_t(tiles)}
			at, release, err := putMany(v, jobs[:n], unsafe.Slice((*RoutedOuter)(unsafe.Pointer(&a.own[0])), len(a.own)))
			if err != nil {
				return err
			}
			a.jobs = C.uint64_t(at)
			if err := errors.Join(v.launch(kOuterRouted, int64(tiles)*(table.To-table.From), int64(n), 1, bytesIn(&a)), release()); err != nil {
				return err
			}
		}
		jobs = jobs[n:]
	}
	return nil
}
