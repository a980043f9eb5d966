package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"fmt"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Ceilings are the most that a device's threads and instruction set can do on this processor, as measured: what benchmarks are compared with.
type Ceilings struct {
	Float32, BFloat16 float64 // floating-point operations per second of products, a multiply-add counting two
	Read              float64 // bytes per second read from memory
}

// Measure takes the best of some short runs, about a second in all. The device must be one of this package's.
func Measure(of tensor.Device) (Ceilings, error) {
	d, ok := of.(*device)
	if !ok || d.c == nil {
		return Ceilings{}, fmt.Errorf("cpu: measure: %T is not an open device of this package", of)
	}
	const mib = 512
	memory, err := d.memory("measure", mib<<20)
	if err != nil {
		return Ceilings{}, err
	}
	defer d.release(memory, mib<<20)
	best := func(runs int, f func() float64) float64 {
		var most float64
		for range runs {
			start := time.Now()
			amount := f()
			most = max(most, amount/time.Since(start).Seconds())
		}
		return most
	}
	// Written pages differ from the one page of zeros that untouched memory is.
	buffer := tensor.Tensor{Buffer: &tensor.Buffer{Addr: memory, Bytes: mib << 20}, Rows: mib, Cols: 1 << 18, Stride: 1 << 18, DType: tensor.Float32}
	if err := d.Zero(buffer); err != nil {
		return Ceilings{}, err
	}
	return Ceilings{
		Float32:  best(20, func() float64 { return float64(C.op_peak(d.c, C.FLOAT32)) }),
		BFloat16: best(20, func() float64 { return float64(C.op_peak(d.c, C.BFLOAT16)) }),
		Read: best(5, func() float64 {
			C.op_read(d.c, C.uintptr_t(memory), mib)
			return mib << 20
		}),
	}, nil
}
