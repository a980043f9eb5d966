package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// LossTerm is one target's term of a loss: the derivative by its log-probability lp, of which Recorded is another one, with r = exp(lp - Recorded), or the ratio of datum Datum, and clip(r) = min(max(r, Low), High). Row is that of its logits.
type LossTerm struct {
	Low, High, Beta  float64
	Weight, Recorded float32
	Row, Form        int32
	Datum, _         int32
}

// RatioPosition is a position that counts in its datum's ratio: its log-probability is the Column-th, and Recorded another one.
type RatioPosition struct {
	Column   int32
	Recorded float32
}

// The forms of derivatives.
const (
	LossLinear    = C.LOSS_LINEAR    // -Weight
	LossRatio     = C.LOSS_RATIO     // -clip(r)·Weight
	LossClipped   = C.LOSS_CLIPPED   // -r·Weight where r·Weight ≤ clip(r)·Weight, else 0
	LossQuadratic = C.LOSS_QUADRATIC // -(Weight - Beta·(lp - Recorded))
	LossDatum     = C.LOSS_DATUM     // as LossClipped, with the datum's ratio
)

const (
	_ = uint(unsafe.Sizeof(LossTerm{}) - C.sizeof_loss_term)
	_ = uint(C.sizeof_loss_term - unsafe.Sizeof(LossTerm{}))
	_ = uint(unsafe.Sizeof(RatioPosition{}) - C.sizeof_ratio_position)
	_ = uint(C.sizeof_ratio_position - unsafe.Sizeof(RatioPosition{}))
)

// Differentiate subtracts from values, one per term, the log-sum-exp of the term's row, and writes the derivatives by the results to slopes, unless its address is 0. ratios are float64
// numbers that DatumRatios has written; 0 if no term has one.
func (v *Device) Differentiate(slopes, values, lse View, ratios Address, terms []LossTerm) error {
	at, release, err := v.Put(bytesOf(terms))
	if err != nil {
		return err
	}
	a := C.differentiate_arguments{slopes: slopes.c(), values: values.c(), lse: lse.c(), ratios: C.uint64_t(ratios), terms: C.uint64_t(at)}
	return errors.Join(v.rowwise(kDifferentiate, 1, values.Cols, bytesIn(&a)), release())
}

// DatumRatios writes count numbers in float64 to ratios, a multiple of 8: exp of the mean of lp - Recorded over the datum's positions, summed in their order; 1 without any. positions lists RatioPositions in device memory, and ends,
// of int32, where those of each datum end.
func (v *Device) DatumRatios(ratios Address, logprobs View, positions, ends Address, count int) error {
	a := C.datum_ratios_arguments{logprobs: logprobs.c(), ratios: C.uint64_t(ratios), positions: C.uint64_t(positions), ends: C.uint64_t(ends)}
	return v.launch(kDatumRatios, int64(count), 1, 1, bytesIn(&a))
}
