// Package cpu is the tensor.Device of the processor: memory from C and kernels in C with vector instructions, chosen when the device is made. It knows no model.
//
// Every kernel is one source compiled for each instruction set. avx2 with fma, avx512 and avx512-bf16 give equal bits (Arithmetic "cpu-fma-…"); sse2 has no
// fused multiply-add and NEON flushes differently, so they have names of their own. Work is cut over the device's threads by rows, columns or heads, never along a
// sum, so no result depends on their number.
package cpu

/*
#cgo CFLAGS: -std=c11 -O3 -fno-strict-aliasing -Wall -Wextra -Wno-unknown-pragmas -pthread
#cgo LDFLAGS: -pthread
#include <stdlib.h>
#include "kernels.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"unsafe"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Options choose how a device computes; no choice but the ISA "sse2" changes a result.
type Options struct {
	// Threads that compute, the calling one included; 0 means one per processor that this process may use.
	Threads int
	// ISA is the instruction set: "sse2", "avx2", "avx512", "avx512bf16" on amd64, "neon" on arm64; "" means the best this processor has.
	ISA string
}

const maxThreads = 1024

// ISAs lists the instruction sets that New accepts on this processor, the plainest first.
func ISAs() []string {
	var have []string
	for _, isa := range []string{"sse2", "avx2", "avx512", "avx512bf16", "neon"} {
		if available(isa) {
			have = append(have, isa)
		}
	}
	return have
}

func available(isa string) bool {
	name := C.CString(isa)
	defer C.free(unsafe.Pointer(name))
	return bool(C.isa_available(name))
}

// New starts a device. The caller closes it.
func New(o Options) (tensor.Device, error) {
	threads := o.Threads
	if threads == 0 {
		threads = min(runtime.NumCPU(), maxThreads)
	}
	if threads < 1 || threads > maxThreads {
		return nil, fmt.Errorf("cpu: threads %d: must be 0 (one per processor) to %d", o.Threads, maxThreads)
	}
	if o.ISA != "" && !available(o.ISA) {
		return nil, fmt.Errorf("cpu: isa %q: this processor has %s", o.ISA, strings.Join(ISAs(), ", "))
	}
	name := C.CString(o.ISA)
	defer C.free(unsafe.Pointer(name))
	c := C.device_new(C.int(threads), name)
	if c == nil {
		return nil, fmt.Errorf("cpu: starting %d threads failed", threads)
	}
	return &device{c: c, arithmetic: C.GoString(C.device_arithmetic(c))}, nil
}

// device implements tensor.Device. One goroutine at a time calls it.
type device struct {
	c          *C.device
	arithmetic string
	live       int // allocations not freed

	// Kept between calls, so that operations do not allocate.
	groups    []C.row_group
	outer     []C.outer_product
	sequences []C.sequence
	pages     []int32
	taken     []bool
}

var errClosed = errors.New("cpu: the device is closed")

func (d *device) Name() string       { return "cpu" }
func (d *device) Arithmetic() string { return d.arithmetic }

// Close ends the threads. It is an error if memory has not been freed; the threads end all the same.
func (d *device) Close() error {
	if d.c == nil {
		return nil
	}
	C.device_free(d.c)
	d.c = nil
	if d.live != 0 {
		return fmt.Errorf("cpu: close: %d allocations have not been freed", d.live)
	}
	return nil
}

// failed turns the answer of a C operation into an error.
func failed(op string, code C.int) error {
	if code != 0 {
		return fmt.Errorf("cpu: %s: no memory for intermediate results: %w", op, tensor.ErrMemory)
	}
	return nil
}

// maxElements keeps sizes in bytes, and sums of two of them, within int64.
const maxElements = math.MaxInt64 / 64

// product multiplies sizes; false if one is negative or the product is too large.
func product(sizes ...int) (int, bool) {
	n := 1
	for _, s := range sizes {
		if s < 0 {
			return 0, false
		}
		if s > 0 && n > maxElements/s {
			return 0, false
		}
		n *= s
	}
	return n, true
}

func (d *device) memory(what string, bytes int) (uintptr, error) {
	if d.c == nil {
		return 0, errClosed
	}
	addr := uintptr(C.memory_new(C.int64_t(bytes)))
	if addr == 0 {
		return 0, fmt.Errorf("cpu: %s: no memory for %d bytes: %w", what, bytes, tensor.ErrMemory)
	}
	d.live++
	return addr, nil
}

func (d *device) release(addr uintptr, bytes int) {
	C.memory_free(C.uintptr_t(addr), C.int64_t(bytes))
	d.live--
}

func validType(t tensor.DType) bool { return t == tensor.Float32 || t == tensor.BFloat16 }

func (d *device) Alloc(t tensor.DType, rows, cols int) (tensor.Tensor, error) {
	n, ok := product(rows, cols)
	if !ok || !validType(t) {
		return tensor.Tensor{}, fmt.Errorf("cpu: alloc %d × %d of %v: not a size that can be had", rows, cols, t)
	}
	bytes := n * t.Size()
	addr, err := d.memory("alloc", bytes)
	if err != nil {
		return tensor.Tensor{}, err
	}
	return tensor.Tensor{Buffer: &tensor.Buffer{Addr: addr, Bytes: bytes}, Rows: rows, Cols: cols, Stride: cols, DType: t}, nil
}

func (d *device) Free(t tensor.Tensor) {
	if t.Buffer == nil || t.Buffer.Addr == 0 {
		return
	}
	d.release(t.Buffer.Addr, t.Buffer.Bytes)
	t.Buffer.Addr = 0 // a second Free, or a use after it, is seen
}

func (d *device) Upload(dst tensor.Tensor, src []float32) error {
	c := d.check("upload")
	v := c.float("dst", dst)
	c.length("src", len(src), dst.Rows, dst.Cols)
	if c.err != nil || len(src) == 0 {
		return c.err
	}
	return failed("upload", C.op_upload(d.c, v, (*C.float)(&src[0])))
}

func (d *device) Download(dst []float32, src tensor.Tensor) error {
	c := d.check("download")
	v := c.float("src", src)
	c.length("dst", len(dst), src.Rows, src.Cols)
	if c.err != nil || len(dst) == 0 {
		return c.err
	}
	return failed("download", C.op_download(d.c, (*C.float)(&dst[0]), v))
}
