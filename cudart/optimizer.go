package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// AdamWJob is one arena in a step: the next weights and moments from the present ones and the gradient. The scalars are combined in float64 before they are rounded: Decay is
// 1 - rate·weight decay, MinusRate is -rate/(1 - beta1^t), Root is √(1 - beta2^t), Rest1 and Rest2 are 1 - beta.
type AdamWJob struct {
	NewP, NewM, NewV, P, M, V, G                                       View
	Beta1, Rest1, Beta2, Rest2, Decay, MinusRate, Eps, GradScale, Root float32
	_                                                                  float32
}

const (
	_ = uint(unsafe.Sizeof(AdamWJob{}) - C.sizeof_adamw_job)
	_ = uint(C.sizeof_adamw_job - unsafe.Sizeof(AdamWJob{}))
)

// AdamW runs all jobs in one launch: m' = b1·m + (1-b1)·g, v' = b2·v + (1-b2)·g², p' = Decay·p + MinusRate·m'/(√v'/Root + eps). New values may overwrite old ones.
func (v *Device) AdamW(jobs []AdamWJob) error {
	var pieces int64
	for _, j := range jobs {
		pieces = max(pieces, j.P.Rows*((j.P.Cols+C.PIECE-1)/C.PIECE))
	}
	if pieces == 0 {
		return nil
	}
	at, release, err := v.Put(bytesOf(jobs))
	if err != nil {
		return err
	}
	a := C.adamw_arguments{jobs: C.uint64_t(at), count: C.int64_t(len(jobs))}
	return errors.Join(v.launch(kAdamW, min(pieces, maxX), int64(len(jobs)), 1, unsafe.Pointer(&a)), release())
}

// SumSquares gives Σ x² in float64, in a fixed order. It waits for the stream.
func (v *Device) SumSquares(x View) (sum float64, err error) {
	if x.empty() {
		return 0, nil
	}
	blocks := (x.Rows*x.Cols + C.SUM_PIECE - 1) / C.SUM_PIECE
	at, err := v.Alloc(int(8 * (blocks + 1)))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, v.Free(at)) }()
	a := C.sum_squares_arguments{x: x.c(), partial: C.uint64_t(at + 8)}
	if err := v.launch(kSumSquares, blocks, 1, 1, unsafe.Pointer(&a)); err != nil {
		return 0, err
	}
	b := C.sum_partials_arguments{partial: C.uint64_t(at + 8), sum: C.uint64_t(at), count: C.int64_t(blocks)}
	if err := v.launch(kSumPartials, 1, 1, 1, unsafe.Pointer(&b)); err != nil {
		return 0, err
	}
	err = v.Download(unsafe.Slice((*byte)(unsafe.Pointer(&sum)), 8), at, 8, 8, 1)
	return sum, err
}
