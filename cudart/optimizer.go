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
	return errors.Join(v.launch(kAdamW, min(pieces, maxX), int64(len(jobs)), 1, bytesIn(&a)), release())
}

// sumJob is one matrix of SumSquares, and where the sums of its pieces are.
type sumJob struct {
	x            View
	first, count int64
}

const (
	_ = uint(unsafe.Sizeof(sumJob{}) - C.sizeof_sum_squares_job)
	_ = uint(C.sizeof_sum_squares_job - unsafe.Sizeof(sumJob{}))
)

// SumSquares gives Σ x² of each of xs in float64, in a fixed order, all in one launch. It waits for the stream.
func (v *Device) SumSquares(xs []View) (sums []float64, err error) {
	n := int64(len(xs))
	jobs := make([]sumJob, n)
	var all, blocks int64
	for i, x := range xs {
		jobs[i] = sumJob{x: x, first: all, count: x.Rows * ((x.Cols + C.SUM_PIECE - 1) / C.SUM_PIECE)}
		all += jobs[i].count
		blocks = max(blocks, (jobs[i].count+C.SUM_PIECES-1)/C.SUM_PIECES)
	}
	sums = make([]float64, n)
	if all == 0 {
		return sums, nil
	}
	at, err := v.Alloc(int(8 * (n + all)))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.Free(at)) }()
	list, release, err := v.Put(bytesOf(jobs))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	a := C.sum_squares_arguments{jobs: C.uint64_t(list), partial: C.uint64_t(at) + C.uint64_t(8*n), sums: C.uint64_t(at)}
	if err := v.launch(kSumSquares, blocks, n, 1, bytesIn(&a)); err != nil {
		return nil, err
	}
	if err := v.launch(kSumPartials, n, 1, 1, bytesIn(&a)); err != nil {
		return nil, err
	}
	return sums, v.Download(bytesOf(sums), at, int(8*n), int(8*n), 1)
}
