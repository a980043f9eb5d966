package cudart

/*
#include <stdlib.h>
#include "absent.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Absent is a driver of GPUs that are not there: its devices, one of each kind that AbsentGPUs names, are opened and used as real ones, choose kernels as
// those would, and compute nothing. What they are given to launch is counted (Device.Launches). Their memory is address space; what is read of it are
// zeros.
func Absent() *Driver {
	d := &Driver{c: (*C.driver)(C.calloc(1, C.sizeof_driver)), path: "none", absent: true}
	C.absent_driver(d.c)
	var version C.int
	C.cuda_call_version(d.c, &version)
	d.version = int(version)
	return d
}

// AbsentGPUs names the devices of Absent in their order: what their kind is called in short.
func AbsentGPUs() []string { return []string{"H100", "H200", "A100", "B200"} }

// Launch is what a kernel was launched for.
type Launch struct {
	Kernel string
	Blocks int64
	// FLOP are the operations that the result needs, a multiplication and an addition two; those of tiles that are cut off at the ends of a matrix, or
	// masked, are not among them. 0 where memory alone counts.
	FLOP float64
	// Bytes are what has to be read and written of memory: every operand once, however often blocks read it through the caches.
	Bytes float64
	// Steps is the longest chain of what a block does one after another: tokens of the delta rule, rows of a sum of outer products, 16 elements of the
	// inner axis of a product by tensor cores; 0 elsewhere.
	Steps int64
}

// Launches gives what has been launched on a device of Absent since the last call, in order.
func (v *Device) Launches() []Launch {
	v.recorder.mu.Lock()
	defer v.recorder.mu.Unlock()
	all := v.counted
	v.counted = nil
	return all
}

// Absent says whether the device is not there (Driver of that name).
func (v *Device) Absent() bool { return v.driver.absent }

// count notes launches in place of launching them; the recorder is locked.
func (v *Device) count(work []C.cuda_work, arguments []byte) error {
	for i := range work {
		w := &work[i]
		name := kernelOf(int(w.kernel)).name
		of := costs[family(name)]
		if of == nil {
			return fmt.Errorf("kernel %s: what it costs is not known", name)
		}
		c := of(grid{int64(w.x), int64(w.y), int64(w.z)}, unsafe.Pointer(&arguments[w.at]))
		v.counted = append(v.counted, Launch{Kernel: name, Blocks: int64(w.x) * int64(w.y) * int64(w.z), FLOP: c.flop, Bytes: c.bytes, Steps: c.steps})
	}
	return nil
}

// listAt is a list that a kernel reads, in the memory of a device of Absent.
func listAt[T any](at C.uint64_t, n int64) []T {
	if n <= 0 || at == 0 {
		return nil
	}
	return unsafe.Slice((*T)(C.absent_memory(at)), n)
}
