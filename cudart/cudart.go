// Package cudart is NVIDIA GPUs for Go: the driver, memory, streams, graphs, and Tinsmith's kernels as functions over device addresses. Nothing of CUDA is linked: the driver is
// loaded when Open is called, so the same binary starts on a machine without one, and no toolkit is needed. The package knows no tensor, no model and nothing else of
// Tinsmith; it checks no shape. Package tensor/cuda does both.
//
// The kernels are CUDA C++ in kernels, compiled to PTX beforehand (make kernels) and by the driver for the device that is there. The folder shim runs the same text on a
// processor, behind a driver of its own, and that is how they are tested without a GPU. Products by warpgroups, for Hopper, are a module of their own that a device uses on request (UseWarpgroups), and
// that can be compared with the other products on the device itself (CheckWarpgroups). So can weights in blocks, whose products bulk copies feed (UseBulk, CheckBulk), products of few rows with these by clusters (UseClusters, CheckClusters), attention by warpgroups (UseGroupAttention, CheckGroupAttention), gradients of adapters on tensor cores (UseOuterGroups, CheckOuterGroups),
// and products by cuBLASLt (UseCuBLASLt, CheckCuBLASLt), which like NCCL is loaded when it is asked for.
package cudart

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// Options say how the driver is found.
type Options struct {
	// Directories are searched for a library before the system's. The first that has it decides: if that one cannot be used, no other is taken. Empty entries are left out.
	Directories []string
}

// Driver is the loaded driver. It may be used by several goroutines.
type Driver struct {
	c       *C.driver
	path    string
	version int
	absent  bool // see Absent
}

// ErrNoDriver is what Open's error wraps when no driver library was found: an ordinary machine without an NVIDIA GPU.
var ErrNoDriver = errors.New("no CUDA driver was found")

// leastVersion is the first driver that reads the PTX version of the kernels: CUDA 12.0 (driver 525).
const leastVersion = 12000

// noDevices is what a machine has that lacks a driver, or whose driver finds nothing.
const noDevices = "this machine has 0 CUDA devices that this process may use"

// codeNoDevice is CUDA_ERROR_NO_DEVICE, with which a driver answers at its start that finds no device.
const codeNoDevice = 100

// moduleLoading says when the driver loads a kernel to a device. By itself it does so at the first launch, for which it may wait for what runs there: a kernel of NCCL that waits for another device, whose launches wait for that.
const (
	moduleLoading = "CUDA_MODULE_LOADING"
	eagerly       = "EAGER" // all when a device is opened
)

// Open loads the driver and starts it, with all kernels to be loaded when a device is opened unless the environment says CUDA_MODULE_LOADING: the first one that is new enough and has every function, where none of the given folders has one. The error says that there are no devices and names what was looked for and where, and
// every driver that was found with its version and what is wrong with it.
func Open(o Options) (*Driver, error) {
	d := &Driver{c: (*C.driver)(C.calloc(1, C.sizeof_driver))}
	t := table{at: unsafe.Pointer(d.c), functions: C.cuda_functions[:], least: leastVersion, says: "supports CUDA", text: versionText, version: func() int {
		var version C.int
		if C.cuda_call_version(d.c, &version) != 0 { // also a stub, which is there for linkers only
			return 0
		}
		return int(version)
	}}
	var err error
	if d.path, d.version, err = t.find([]string{"libcuda.so.1"}, o.Directories); err != nil {
		C.free(unsafe.Pointer(d.c))
		if errors.Is(err, errAbsent) {
			return nil, fmt.Errorf("%s: %w: %w", noDevices, ErrNoDriver, err)
		}
		return nil, fmt.Errorf("%s: the CUDA driver: %w", noDevices, err)
	}
	if _, set := os.LookupEnv(moduleLoading); !set {
		if err := os.Setenv(moduleLoading, eagerly); err != nil { // of the C library as well, where the driver reads it
			d.Close()
			return nil, err
		}
	}
	if err := d.failed("cuInit", C.cuda_call_init(d.c)); err != nil {
		path := d.path
		d.Close()
		var own *Error
		if errors.As(err, &own) && own.Code == codeNoDevice {
			visible := ""
			if list, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
				visible = fmt.Sprintf(" (CUDA_VISIBLE_DEVICES is %q)", list)
			}
			return nil, fmt.Errorf("%s%s, says the driver %s: %w", noDevices, visible, path, err)
		}
		return nil, err
	}
	C.library_keep(unsafe.Pointer(d.c)) // as NCCL and cuBLASLt, which use it
	return d, nil
}

// versionText gives "12.8" for 12080.
func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// Path is where the driver was found.
func (d *Driver) Path() string { return d.path }

// Version is the newest CUDA that the driver supports, as 1000·major + 10·minor.
func (d *Driver) Version() int { return d.version }

// Close gives the driver back, which stays in memory. All devices must have been closed.
func (d *Driver) Close() {
	if d.c != nil {
		C.library_close(unsafe.Pointer(d.c))
		C.free(unsafe.Pointer(d.c))
		d.c = nil
	}
}

// Devices is the number of devices that this process may use (CUDA_VISIBLE_DEVICES).
func (d *Driver) Devices() (int, error) {
	var n C.int
	err := d.failed("cuDeviceGetCount", C.cuda_call_count(d.c, &n))
	return int(n), err
}

// Error is a call of the driver that failed.
type Error struct {
	Call string // the driver's function, or the operation
	Code int
	Name string // CUDA_ERROR_…
	Text string
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code)
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// ErrDeviceLost is wrapped by errors after which the device's context is of no more use: a kernel that faulted, a memory error that cannot be corrected. The process must end.
var ErrDeviceLost = errors.New("the CUDA device is lost")

// ErrOutOfMemory is wrapped when device memory does not suffice.
var ErrOutOfMemory = errors.New("not enough device memory")

// Is makes errors.Is see the two classes.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrOutOfMemory:
		return e.Code == 2
	case ErrDeviceLost:
		return lost(e.Code)
	}
	return false
}

// lost tells the driver's sticky errors: uncorrectable memory errors, faults, asserts and time-outs of kernels, a device that went away, and all others after which cuda.h says that the process must end or that the context
// cannot be used. kernels/headers.hpp compares the numbers with cuda.h.
func lost(code int) bool {
	switch code {
	case 46, 214, 220, // the device is unavailable; an uncorrectable memory error; one of NVLink
		226,                     // an exception that the GPU has contained
		700, 702, 709, 710, 714, // an illegal address; a time-out; the context is destroyed; an assert; the hardware's stack
		715, 716, 717, 718, 719, // an illegal instruction; a misaligned address; an address of another space; the program counter; any other fault
		721, 810, 911, 999: // a leak of tensor memory; the MPS server has ended this client; an external device; unknown
		return true
	}
	return false
}

func (d *Driver) failed(call string, code C.cuda_result) error {
	if code == 0 {
		return nil
	}
	e := &Error{Call: call, Code: int(code), Name: "CUDA error"}
	if name := C.cuda_call_error_name(d.c, code); name != nil {
		e.Name = C.GoString(name)
	}
	if text := C.cuda_call_error_text(d.c, code); text != nil {
		e.Text = C.GoString(text)
	}
	return e
}
