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
	NewP, NewM, NewV, P, M, V, G                            View
	Beta1, Rest1, Beta2, Rest2, Decay, MinusRate, Eps, Root float32
}

// AdamWSums are float64 numbers that AdamW has told the device to compute.
type AdamWSums struct {
	sums   Sums
	jobs   int
	pieces []int // of each job's NewP; nil = they are not fetched
}

// Wait gives Σ x² of each job's G, then of each one's NewP, of each one's NewM and of each one's NewV, and the sums of the pieces of each job's NewP if AdamW was asked for them. It waits as Sums.Wait does.
func (s AdamWSums) Wait() (sums []float64, pieces [][]float64, err error) {
	all, err := s.sums.Wait()
	if err != nil {
		return nil, nil, err
	}
	sums, all = all[:4*s.jobs], all[4*s.jobs:]
	for _, n := range s.pieces {
		pieces, all = append(pieces, all[:n]), all[n:]
	}
	return sums, pieces, nil
}

const (
	_ = uint(unsafe.Sizeof(AdamWJob{}) - C.sizeof_adamw_job)
	_ = uint(C.sizeof_adamw_job - unsafe.Sizeof(AdamWJob{}))
)

// sumJob is one matrix of a sum of squares, where the sums of its pieces are, and the largest norm that its factor allows.
type sumJob struct {
	x            View
	first, count int64
	most         float64
}

const (
	_ = uint(unsafe.Sizeof(sumJob{}) - C.sizeof_sum_squares_job)
	_ = uint(C.sizeof_sum_squares_job - unsafe.Sizeof(sumJob{}))
)

// sumList is what SumSquares and AdamW sum at once.
type sumList struct {
	jobs           []sumJob
	pieces, blocks int64
}

func (l *sumList) add(x View, most float64) {
	n := x.Rows * ((x.Cols + C.SUM_PIECE - 1) / C.SUM_PIECE)
	l.jobs = append(l.jobs, sumJob{x: x, first: l.pieces, count: n, most: most})
	l.pieces += n
	l.blocks = max(l.blocks, (n+C.SUM_PIECES-1)/C.SUM_PIECES)
}

// launch writes the sums of the list at jobs, and the factors unless their address is 0.
func (l *sumList) launch(v *Device, jobs, partial, sums, factors Address) error {
	n := int64(len(l.jobs))
	a := C.sum_squares_arguments{jobs: C.uint64_t(jobs), partial: C.uint64_t(partial), sums: C.uint64_t(sums), factors: C.uint64_t(factors)}
	if l.blocks > 0 {
		if err := v.launch(kSumSquares, l.blocks, n, 1, bytesIn(&a)); err != nil {
			return err
		}
	}
	return v.launch(kSumPartials, n, 1, 1, bytesIn(&a))
}

// Sums are float64 numbers that the device has been told to compute.
type Sums struct {
	fetch *Fetch
	n     int
}

// Wait gives them; it waits for the stream unless the host has done so since. It is called once.
func (s Sums) Wait() ([]float64, error) {
	sums := make([]float64, s.n)
	if s.fetch == nil {
		return sums, nil
	}
	return sums, s.fetch.Wait(bytesOf(sums))
}

// SumSquares sums x² of each of xs in float64, in a fixed order, all in one launch. It does not wait.
func (v *Device) SumSquares(xs []View) (sums Sums, err error) {
	if len(xs) == 0 {
		return sums, nil
	}
	var l sumList
	for _, x := range xs {
		l.add(x, 0)
	}
	n := len(xs)
	at, err := v.Alloc(8 * (n + int(l.pieces)))
	if err != nil {
		return sums, err
	}
	defer func() { err = errors.Join(err, v.Free(at)) }()
	list, release, err := v.Put(bytesOf(l.jobs))
	if err != nil {
		return sums, err
	}
	if err := errors.Join(l.launch(v, list, at+Address(8*n), at, 0), release()); err != nil {
		return sums, err
	}
	sums.n = n
	sums.fetch, err = v.Fetch(at, 8*n)
	return sums, err
}

// AdamW runs all jobs, none of which is empty: m' = b1·m + (1-b1)·g, v' = b2·v + (1-b2)·g², p' = Decay·p + MinusRate·m'/(√v'/Root + eps), for the gradient times min(1, most/(‖G‖ + 1e-6)) where
// the job's most is not 0. New values may overwrite old ones. With pieces, the sums of the pieces of NewP come too. The number of launches does not depend on that of jobs, and the host does not wait.
func (v *Device) AdamW(jobs []AdamWJob, most []float64, pieces bool) (sums AdamWSums, err error) {
	if len(jobs) == 0 {
		return sums, nil
	}
	var gradients, written sumList
	var widest int64
	for i := range jobs {
		j := &jobs[i]
		widest = max(widest, j.P.Rows*((j.P.Cols+C.PIECE-1)/C.PIECE))
		gradients.add(j.G, most[i])
		written.add(j.NewP, 0)
	}
	for i := range jobs {
		written.add(jobs[i].NewM, 0)
	}
	for i := range jobs {
		written.add(jobs[i].NewV, 0)
	}
	n := len(jobs)
	sums.jobs, sums.sums.n = n, 4*n
	if pieces {
		for _, j := range written.jobs[:n] {
			sums.pieces = append(sums.pieces, int(j.count))
			sums.sums.n += int(j.count)
		}
	}
	// Sums of gradients, sums of what is written, partial sums of either, factors. Of the partial sums those of the new weights are the first.
	at, err := v.Alloc(8*(4*n+int(written.pieces)) + 4*n)
	if err != nil {
		return sums, err
	}
	defer func() { err = errors.Join(err, v.Free(at)) }()
	partial := at + Address(8*4*n)
	factors := partial + Address(8*written.pieces)
	lists, release, err := v.putAll(bytesOf(gradients.jobs), bytesOf(jobs), bytesOf(written.jobs))
	if err != nil {
		return sums, err
	}
	a := C.adamw_arguments{jobs: C.uint64_t(lists[1]), factors: C.uint64_t(factors)}
	err = gradients.launch(v, lists[0], partial, at, factors)
	if err == nil {
		err = v.launch(kAdamW, min(widest, maxX), int64(n), 1, bytesIn(&a))
	}
	if err == nil {
		err = written.launch(v, lists[2], partial, at+Address(8*n), 0)
	}
	if err := errors.Join(err, release()); err != nil {
		return sums, err
	}
	sums.sums.fetch, err = v.Fetch(at, 8*sums.sums.n)
	return sums, err
}
