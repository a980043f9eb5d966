package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// LossTerm is one target's term of a loss: the derivative by its log-probability lp, of which Recorded is another one, with r = exp(lp - Recorded) and clip(r) = min(max(r, Low), High). Row is that of its logits.
type LossTerm struct {
	Low, High, Beta  float64
	Weight, Recorded float32
	Row, Form        int32
}

// The forms of derivatives.
const (
	LossLinear    = C.LOSS_LINEAR    // -Weight
	LossRatio     = C.LOSS_RATIO     // -clip(r)·Weight
	LossClipped   = C.LOSS_CLIPPED   // -r·Weight where r·Weight ≤ clip(r)·Weight, else 0
	LossQuadratic = C.LOSS_QUADRATIC // -(Weight - Beta·(lp - Recorded))
)

const (
	_ = uint(unsafe.Sizeof(LossTerm{}) - C.sizeof_loss_term)
	_ = uint(C.sizeof_loss_term - unsafe.Sizeof(LossTerm{}))
)

// Differentiate subtracts from values, one per term, the log-sum-exp of the term's row, and writes the derivatives by the results to slopes, unless its address is 0.
func (v *Device) Differentiate(slopes, values, lse View, terms []LossTerm) error {
	at, release, err := v.Put(bytesOf(terms))
	if err != nil {
		return err
	}
	a := C.differentiate_arguments{slopes: slopes.c(), values: values.c(), lse: lse.c(), terms: C.uint64_t(at)}
	return errors.Join(v.rowwise(kDifferentiate, 1, values.Cols, bytesIn(&a)), release())
}
