package cpu

/*
#include "kernels.h"
*/
import "C"

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// stretch is memory that is copied in one piece.
type stretch struct {
	to, from C.uintptr_t
	bytes    C.int64_t
}

// StartCopies implements tensor.Device. A goroutine copies beside the device's threads, which are for arithmetic.
func (d *device) StartCopies(copies []tensor.MatrixCopy) (func() error, error) {
	stretches := make([]stretch, len(copies))
	for i, j := range copies {
		dst, src := j.Dst.(*matrix), j.Src.(*matrix)
		rows := (src.out + panel - 1) / panel * panel // the last panel is filled up in both
		stretches[i] = stretch{C.uintptr_t(dst.addr + uintptr(dst.rowBytes()*j.Row)), C.uintptr_t(src.addr), C.int64_t(rows * src.rowBytes())}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, s := range stretches {
			C.memory_copy(s.to, s.from, s.bytes)
		}
	}()
	return func() error {
		<-done
		return nil
	}, nil
}
