package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"slices"
)

// Products with bfloat16 weights round their rows. Where these are float32 and read more than once or twice, a launch of its own rounds them before, for all products that have them in common.

// inChunks says whether rows are bfloat16 at multiples of 16 bytes.
func inChunks(x View, t Type) bool { return t == BFloat16 && x.At%16 == 0 && x.Stride%8 == 0 }

// narrowsFirst says whether rows of float32 are rounded by a launch of their own, all of x: a block that rounds them itself waits for each tile of them. A short inner axis is waited for once or twice, and where the groups
// have few of the rows the launch would be for others.
func narrowsFirst(x View, groups []RowGroup, transposed bool) bool {
	rows := int64(0)
	for _, g := range groups {
		if g.depth(transposed)%8 != 0 {
			return false
		}
		rows += g.To - g.From
	}
	return deepEnough(x) && 2*rows >= x.Rows
}

// leastNarrowDepth is the inner axis from which on rows of float32 are rounded before products.
const leastNarrowDepth = 256

// deepEnough says whether rows are so long that rounding them before pays, and end with a chunk.
func deepEnough(x View) bool { return x.Cols >= leastNarrowDepth && x.Cols%8 == 0 }

// narrowRows gives the rows of x as bfloat16, filled up with zeros to multiples of 16 bytes, in scratch memory that the caller gives back.
func (v *Device) narrowRows(x View, xType Type) (View, error) {
	pitch := (x.Cols + 7) / 8 * 8
	at, err := v.takeScratch(int(x.Rows * pitch * 2))
	if err != nil {
		return View{}, err
	}
	to := View{At: at, Rows: x.Rows, Cols: pitch, Stride: pitch}
	a := C.round_arguments{y: to.c(), x: x.c(), y_type: C.BFLOAT16, x_type: C.int32_t(xType)}
	if err := v.launch(kNarrowRows, x.Rows, min((pitch+2047)/2048, maxY), 1, bytesIn(&a)); err != nil {
		return View{}, errors.Join(err, v.giveScratch(at))
	}
	return to, nil
}

// sharedRows are the rows that several products have in common.
type sharedRows struct {
	x       View
	xType   Type
	rounded View      // for the first product that wanted them so; At 0 before
	failed  error     // of the first that wanted them and had no memory: the others do without too
	blocks  Address   // likewise in blocks (BFloat16Blocks)
	taken   []Address // of these in scratch memory, in the order in which they were taken
}

// keep has rows in scratch memory, that to is to name, stay until the products that have them in common are done.
func (s *sharedRows) keep(at Address, to *Address) {
	*to = at
	s.taken = append(s.taken, at)
}

// rounded gives the rows of x as narrowRows does; those that products have in common are rounded once. The caller gives them back by giveRounded.
func (v *Device) rounded(x View, xType Type) (View, error) {
	s := &v.rows
	if s.x != x || s.xType != xType {
		return v.narrowRows(x, xType)
	}
	if s.rounded.At == 0 && s.failed == nil {
		if s.rounded, s.failed = v.narrowRows(x, xType); s.failed == nil {
			s.keep(s.rounded.At, &s.rounded.At)
		}
	}
	return s.rounded, s.failed
}

// giveRounded gives back what rounded gave; rows in common stay until ShareRows. Whatever gets the memory next comes later in the stream.
func (v *Device) giveRounded(to View) error {
	if to.At == v.rows.rounded.At {
		return nil
	}
	return v.giveScratch(to.At)
}

// sharedRounded gives rows that products have in common as they have been rounded, others as they are. Where they are to be read by several products it rounds them for the first of these.
func (v *Device) sharedRounded(x View, xType Type) (View, Type, error) {
	s := &v.rows
	if s.x != x || s.xType != xType {
		return x, xType, nil
	}
	if xType == Float32 && deepEnough(x) {
		if _, err := v.rounded(x, xType); err != nil && !errors.Is(err, ErrOutOfMemory) {
			return x, xType, err
		}
	}
	if s.rounded.At == 0 {
		return x, xType, nil
	}
	return s.rounded, BFloat16, nil
}

// ShareRows says that products from now on have the rows x in common, which nothing writes until the next call: if the kernels of one of them want rounded rows, the others take these. The zero View ends it. Products with
// other rows may come between.
func (v *Device) ShareRows(x View, xType Type) error {
	var err error
	for _, at := range slices.Backward(v.rows.taken) { // scratch memory is a stack
		err = errors.Join(err, v.giveScratch(at))
	}
	v.rows = sharedRows{x: x, xType: xType, taken: v.rows.taken[:0]}
	return err
}
