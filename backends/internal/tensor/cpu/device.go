// Package cpu is the tensor.Device of the processor: memory from C and kernels in C with vector instructions, chosen when the device is made. It knows no model.
//
// Every kernel is one source compiled for each instruction set. avx2 with fma, avx512 and avx512-bf16 give equal bits (Arithmetic
// "cpu-fma-…"); sse2 has no fused multiply-add and NEON flushes differently, so they have names of their own. So has amx, which is avx512
// but for products of bfloat16 weights: those sum groups of 32 elements as its tiles do, whatever the number of rows
// (kernels_amx_amd64.c says how). What has float32 weights alone is avx512's there too, and has its name (ArithmeticOf). Work is cut over the device's
// threads by rows, columns or heads, never along a sum, so no result depends
// on their number.
package cpu

/*
#cgo CFLAGS: -std=c11 -O3 -fno-strict-aliasing -Wall -Wextra -Wno-unknown-pragmas -pthread
#cgo LDFLAGS: -pthread
#include <stdlib.h>
#include "kernels.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/checked"
)

// Options choose how a device computes. Of the choices only the ISAs "sse2" and, for products of bfloat16 weights, "amx" change a result.
type Options struct {
	// Threads that compute, the calling one included; 0 means one per processor that this process may use.
	Threads int
	// ISA is the instruction set: "sse2", "avx2", "avx512", "avx512bf16", "amx" on amd64, "neon" on arm64; "" means the best this processor has.
	ISA string
}

const maxThreads = 1024

// ISAs lists the instruction sets that New accepts on this processor, the plainest first.
func ISAs() []string {
	var have []string
	for _, isa := range []string{"sse2", "avx2", "avx512", "avx512bf16", "amx", "neon"} {
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
	return checked.New(&device{c: c, arithmetic: C.GoString(C.device_arithmetic(c))}), nil
}

// device is the operations under package checked, which has checked the arguments. One goroutine at a time calls it.
type device struct {
	c          *C.device
	arithmetic string

	// Kept between calls, so that operations do not allocate.
	products     []C.product
	ends         []C.int64_t // of stages, in products
	outer        []C.outer_product
	routed       []C.routed_product
	routedGroups []C.routed_group
	routedOuter  []C.routed_outer
	sources      []C.matrix_source
	sequences    []C.sequence
	pages        []int32
	stateRuns    []C.state_run
}

func (d *device) Name() string       { return "cpu" }
func (d *device) Arithmetic() string { return d.arithmetic }

// ArithmeticOf implements tensor.Typed.
func (d *device) ArithmeticOf(weights tensor.DType) string {
	if weights == tensor.Float32 {
		return C.GoString(C.device_arithmetic_float32(d.c))
	}
	return d.arithmetic
}

func (d *device) Segmented() bool { return true }

// Close ends the threads.
func (d *device) Close() error {
	C.device_free(d.c)
	return nil
}

// failed turns the answer of a C operation into an error.
func failed(op string, code C.int) error {
	if code != 0 {
		return fmt.Errorf("cpu: %s: no memory for intermediate results: %w", op, tensor.ErrMemory)
	}
	return nil
}

func memory(what string, bytes int, cleared bool) (uintptr, error) {
	addr := uintptr(C.memory_new(C.int64_t(bytes), C.bool(cleared)))
	if addr == 0 {
		return 0, fmt.Errorf("cpu: %s: no memory for %d bytes: %w", what, bytes, tensor.ErrMemory)
	}
	return addr, nil
}

func release(addr uintptr, bytes int) { C.memory_free(C.uintptr_t(addr), C.int64_t(bytes)) }

// view is a tensor as C takes it.
func view(t tensor.Tensor) C.view {
	v := C.view{rows: C.int64_t(t.Rows), cols: C.int64_t(t.Cols), stride: C.int64_t(t.Stride), _type: C.int32_t(t.DType)}
	if !t.Empty() {
		v.addr = C.uintptr_t(t.Address())
	}
	return v
}

func (d *device) Alloc(t tensor.DType, rows, cols int) (tensor.Tensor, error) {
	return alloc(t, rows, cols, true)
}

func (d *device) AllocUnset(t tensor.DType, rows, cols int) (tensor.Tensor, error) {
	return alloc(t, rows, cols, false)
}

func alloc(t tensor.DType, rows, cols int, cleared bool) (tensor.Tensor, error) {
	bytes := rows * cols * t.Size()
	addr, err := memory("alloc", bytes, cleared)
	if err != nil {
		return tensor.Tensor{}, err
	}
	return tensor.Tensor{Buffer: &tensor.Buffer{Addr: addr, Bytes: bytes}, Rows: rows, Cols: cols, Stride: cols, DType: t}, nil
}

func (d *device) Free(t tensor.Tensor) { release(t.Buffer.Addr, t.Buffer.Bytes) }

// Trim implements tensor.Device, for all devices of the process.
func (d *device) Trim() { C.memory_trim(0) }

func (d *device) Upload(dst tensor.Tensor, src []float32) error {
	return failed("upload", C.op_upload(d.c, view(dst), (*C.float)(&src[0])))
}

func (d *device) Download(dst []float32, src tensor.Tensor) error {
	return d.DownloadRows(dst, src.Cols, src)
}

func (d *device) DownloadRows(dst []float32, pitch int, src tensor.Tensor) error {
	return failed("download", C.op_download(d.c, (*C.float)(&dst[0]), C.int64_t(pitch), view(src)))
}
