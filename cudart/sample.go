package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// Adjustment is a change to one element: x becomes x / Divisor where it is positive and x · Divisor elsewhere, then Less is subtracted and More added.
type Adjustment struct {
	Row, Column         int32
	Divisor, Less, More float32
}

// Draw says how a row's token is drawn: its number in [0, 1), and what top-k (0: off), top-p (1: off) and min-p (0: off) leave of the row. TopK 1 takes the likeliest.
type Draw struct {
	U, TopP, MinP float64
	TopK          int64
}

const (
	_ = uint(unsafe.Sizeof(Adjustment{}) - C.sizeof_adjustment)
	_ = uint(C.sizeof_adjustment - unsafe.Sizeof(Adjustment{}))
	_ = uint(unsafe.Sizeof(Draw{}) - C.sizeof_draw)
	_ = uint(C.sizeof_draw - unsafe.Sizeof(Draw{}))
)

// AdjustElements changes elements of x, none of them twice.
func (v *Device) AdjustElements(x View, list []Adjustment) error {
	at, release, err := v.Put(bytesOf(list))
	if err != nil {
		return err
	}
	a := C.adjust_arguments{x: x.c(), list: C.uint64_t(at), count: C.int64_t(len(list))}
	return errors.Join(v.rowwise(kAdjustElements, 1, int64(len(list)), bytesIn(&a)), release())
}

// MaskColumns sets elements of x to -Inf: in row rows[i], in the columns for which the i-th mask of bits has none, a mask being a word for every 64 columns. No row comes twice. The masks go through the staging memory, as many rows at
// once as it has room for.
func (v *Device) MaskColumns(x View, rows []int32, bits []uint64) error {
	words := int((x.Cols + 63) / 64)
	if words == 0 {
		return nil
	}
	for most := max(1, stageHalf/(8*words)); len(rows) > 0; {
		n := min(most, len(rows))
		if err := v.maskRows(x, rows[:n], bits[:n*words], words); err != nil {
			return err
		}
		rows, bits = rows[n:], bits[n*words:]
	}
	return nil
}

func (v *Device) maskRows(x View, rows []int32, bits []uint64, words int) error {
	which, releaseRows, err := v.Put(bytesOf(rows))
	if err != nil {
		return err
	}
	masks, release, err := v.Put(bytesOf(bits))
	if err != nil {
		return errors.Join(err, releaseRows())
	}
	a := C.mask_arguments{x: x.c(), rows: C.uint64_t(which), bits: C.uint64_t(masks), words: C.int64_t(words)}
	return errors.Join(v.rowwise(kMaskColumns, int64(len(rows)), x.Cols, bytesIn(&a)), release(), releaseRows())
}

// DrawTokens draws a token from every row of logits, whose softmax is probs, and writes its column and its logit to the row of y.
func (v *Device) DrawTokens(y, logits, probs View, draws []Draw) error {
	if logits.empty() {
		return nil
	}
	at, release, err := v.Put(bytesOf(draws))
	if err != nil {
		return err
	}
	a := C.draw_arguments{y: y.c(), logits: logits.c(), probs: probs.c(), draws: C.uint64_t(at)}
	return errors.Join(v.launch(kDrawTokens, logits.Rows, 1, 1, bytesIn(&a)), release())
}
