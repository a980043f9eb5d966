package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"fmt"
	"runtime"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/checked"
)

// Ceilings are the most that a device's threads and instruction set can do on this processor, as measured: what benchmarks are compared with.
type Ceilings struct {
	Float32, BFloat16 float64 // floating-point operations per second of products, a multiply-add counting two
	Read              float64 // bytes per second read from memory
}

// Clock is a device's time in seconds: with one thread its processor time, which does not count while a neighbour has the processor, else the time that passes. Only differences
// of it, taken on one locked OS thread, mean something.
func Clock(of tensor.Device) float64 {
	d, ok := checked.Kernels(of).(*device)
	if !ok {
		return 0
	}
	return float64(C.op_clock(d.c))
}

// Measure takes the best of some short runs, about a second in all. The device must be one of this package's.
func Measure(of tensor.Device) (Ceilings, error) {
	d, ok := checked.Kernels(of).(*device)
	if !ok {
		return Ceilings{}, fmt.Errorf("cpu: measure: %s is not a device of this package", of.Name())
	}
	runtime.LockOSThread() // the clock may be this thread's
	defer runtime.UnlockOSThread()
	const mib = 512
	memory, err := memory("measure", mib<<20, true)
	if err != nil {
		return Ceilings{}, err
	}
	defer release(memory, mib<<20)
	best := func(runs int, f func() float64) float64 {
		var most float64
		for range runs {
			start := float64(C.op_clock(d.c))
			amount := f()
			most = max(most, amount/(float64(C.op_clock(d.c))-start))
		}
		return most
	}
	// Written pages differ from the one page of zeros that untouched memory is.
	buffer := tensor.Tensor{Buffer: &tensor.Buffer{Addr: memory, Bytes: mib << 20}, Rows: mib, Cols: 1 << 18, Stride: 1 << 18, DType: tensor.Float32}
	if err := d.Zero(buffer); err != nil {
		return Ceilings{}, err
	}
	read := func(ahead bool) float64 {
		return best(5, func() float64 {
			C.op_read(d.c, C.uintptr_t(memory), mib, C.bool(ahead))
			return mib << 20
		})
	}
	return Ceilings{
		Float32:  best(20, func() float64 { return float64(C.op_peak(d.c, C.FLOAT32)) }),
		BFloat16: best(20, func() float64 { return float64(C.op_peak(d.c, C.BFLOAT16)) }),
		Read:     max(read(false), read(true)),
	}, nil
}
