package cudart

/*
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"encoding/hex"
	"errors"
	"fmt"
	"unsafe"
)

// Address is a place in device memory. It is an integer: Go never follows it.
type Address = uint64

// Device is one GPU: its context, one stream, memory and kernels. Operations are put into the stream in the order of the calls and return before they are done; Download and
// Synchronize wait. One goroutine at a time may use a device; it need not stay on one thread.
type Device struct {
	driver          *Driver
	c               *C.device
	name            string
	major, minor    int
	multiprocessors int
	expandedBytes   int  // of parts of weights in eight bits
	shared          int  // most dynamic shared memory of a block, bytes
	warpgroups      bool // products of many rows use them; their module has been loaded
	bulk            bool // the module for weights in blocks has been loaded
	clusters        bool // products of few rows with these are by clusters
	outerGroups     bool // the module for outer products by groups of rows has been loaded
	groupAttention  bool // attention of many rows uses warpgroups; its module has been loaded
	rows            sharedRows
	riding          []RowGroup // see ProductWithTail; kept, as separate is, so that nothing is allocated
	separate        []RowGroup
	parts           []part // see Products; kept likewise, as ownRows is
	ownRows         []roundedRows
	library         *library // nil: cuBLASLt is not used
	pool            pool
	scratch         scratch
	gpu             *gpu // nil while it is being opened
	stage           staging
	fetches         fetches
	recorder        recorder
	times           times
	aside           bool     // what is put into the stream goes into the second one; see Aside
	counted         []Launch // see Absent
}

// Information about a device that needs no context.
type Information struct {
	Name            string
	Major, Minor    int // compute capability
	Multiprocessors int
	Memory          int64  // bytes
	Clock           int64  // of the multiprocessors at most, in Hz; 0: the driver does not tell
	UUID            string // in hexadecimal digits; that of the part where the device is one (MIG)
}

// BFloat16Rate is how many operations a second the tensor cores do at most in products of bfloat16 with sums in float32; 0 if that is not known. Multiplication and addition are two.
func (i Information) BFloat16Rate() float64 {
	perClock := 512.0 // of a multiprocessor: GeForce of Ampere, Ada and Blackwell, and what is not known
	switch {
	case i.Major == 8 && i.Minor == 0:
		perClock = 2048
	case i.Major == 9:
		perClock = 4096
	case i.Major == 10:
		perClock = 8192
	}
	return perClock * float64(i.Multiprocessors) * float64(i.Clock)
}

// Float32Rate is likewise for products of float32, by fused multiply-adds.
func (i Information) Float32Rate() float64 {
	perClock := 256.0
	if i.Major == 8 && i.Minor == 0 {
		perClock = 128
	}
	return perClock * float64(i.Multiprocessors) * float64(i.Clock)
}

// Attribute numbers of the driver.
const (
	attributeClock           = 13 // kHz
	attributeMultiprocessors = 16
	attributeMajor           = 75
	attributeMinor           = 76
	attributeSharedMemory    = 97 // most dynamic shared memory of a block
)

// leastMajor is the first compute capability that the kernels run on: Ampere, for bfloat16 in tensor cores and asynchronous copies.
const leastMajor = 8

// Information describes device ordinal, from 0.
func (d *Driver) Information(ordinal int) (Information, error) {
	var i Information
	var name [256]C.char
	if err := d.failed("cuDeviceGetName", C.cuda_call_name(d.c, C.int(ordinal), &name[0], C.int(len(name)))); err != nil {
		return i, err
	}
	i.Name = C.GoString(&name[0])
	var bytes C.size_t
	if err := d.failed("cuDeviceTotalMem", C.cuda_call_memory(d.c, C.int(ordinal), &bytes)); err != nil {
		return i, err
	}
	i.Memory = int64(bytes)
	for attribute, to := range map[C.int]*int{attributeMultiprocessors: &i.Multiprocessors, attributeMajor: &i.Major, attributeMinor: &i.Minor} {
		var v C.int
		if err := d.failed("cuDeviceGetAttribute", C.cuda_device_attribute(d.c, C.int(ordinal), attribute, &v)); err != nil {
			return i, err
		}
		*to = int(v)
	}
	var clock C.int
	if C.cuda_device_attribute(d.c, C.int(ordinal), attributeClock, &clock) == 0 {
		i.Clock = 1000 * int64(clock)
	}
	var uuid [16]C.uchar
	if err := d.failed("cuDeviceGetUuid", C.cuda_call_uuid(d.c, C.int(ordinal), &uuid[0])); err != nil {
		return i, err
	}
	i.UUID = hex.EncodeToString(C.GoBytes(unsafe.Pointer(&uuid[0]), C.int(len(uuid))))
	return i, nil
}

// Open takes device ordinal (from 0), compiles the kernels for it and reserves staging memory. The caller closes it.
func (d *Driver) Open(ordinal int) (*Device, error) {
	n, err := d.Devices()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("cuda:%d: this machine has %d CUDA devices, numbered from 0", ordinal, n)
	}
	info, err := d.Information(ordinal)
	if err != nil {
		return nil, fmt.Errorf("cuda:%d: %w", ordinal, err)
	}
	if info.Major < leastMajor {
		return nil, fmt.Errorf("cuda:%d: %s has compute capability %d.%d: %d.0 is needed", ordinal, info.Name, info.Major, info.Minor, leastMajor)
	}
	v := &Device{driver: d, name: info.Name, major: info.Major, minor: info.Minor, multiprocessors: info.Multiprocessors, expandedBytes: expandedBytes}
	v.c = (*C.device)(C.calloc(1, C.sizeof_device))
	v.c.d, v.c.ordinal = d.c, C.int(ordinal)
	v.pool.init(v)
	if err := v.start(); err != nil {
		return nil, fmt.Errorf("cuda:%d: %w", ordinal, errors.Join(err, v.Close()))
	}
	v.enter()
	return v, nil
}

func (v *Device) start() error {
	if err := v.driver.failed("opening the device", C.cuda_device_open(v.c)); err != nil {
		return err
	}
	var shared C.int
	if err := v.driver.failed("cuDeviceGetAttribute", C.cuda_device_attribute(v.driver.c, v.c.ordinal, attributeSharedMemory, &shared)); err != nil {
		return err
	}
	v.shared = int(shared)
	if err := v.loadKernels(); err != nil {
		return err
	}
	return v.stage.init(v)
}

// Close frees what the device has and gives it back. Memory that has not been freed is an error that counts it; the device is closed all the same. Another Close does nothing.
func (v *Device) Close() error {
	if v.c == nil {
		return nil
	}
	v.leave()
	err := errors.Join(v.leaveLibrary(), v.recorder.close(v), v.stage.close(v), v.fetches.close(v), v.ReleaseScratch(), v.pool.close(), v.times.close(v))
	if code := C.cuda_device_close(v.c); code != 0 {
		err = errors.Join(err, v.driver.failed("closing the device", code))
	}
	C.free(unsafe.Pointer(v.c))
	v.c = nil
	return err
}

// Ordinal is the device's number, from 0.
func (v *Device) Ordinal() int { return int(v.c.ordinal) }

// Name is the product's name, like "NVIDIA H200".
func (v *Device) Name() string { return v.name }

// Capability is the compute capability, like 9, 0.
func (v *Device) Capability() (major, minor int) { return v.major, v.minor }

// Multiprocessors is their number.
func (v *Device) Multiprocessors() int { return v.multiprocessors }

// DriverVersion is Driver.Version of the device's driver.
func (v *Device) DriverVersion() int { return v.driver.version }

// Memory gives the bytes that are free, those the pool keeps for reuse not counted, and all.
func (v *Device) Memory() (free, total int64, err error) {
	var f, t C.size_t
	err = v.failed("cuMemGetInfo", C.cuda_device_memory_info(v.c, &f, &t))
	return int64(f), int64(t), err
}

// Synchronize waits until all that was put into the stream is done, and gives the first error of it. What Put gave before is then gone.
func (v *Device) Synchronize() error {
	if err := v.wait(); err != nil {
		return err
	}
	v.stage.rewind()
	v.recorder.free(v)
	return nil
}

// wait is Synchronize that leaves what Put gave.
func (v *Device) wait() error {
	err := v.inStream("cuStreamSynchronize", func() C.cuda_result { return C.cuda_device_synchronize(v.c) })
	if err == nil {
		v.fetches.waits++
		err = v.times.settle(v)
	}
	return err
}

// Zero clears bytes of memory.
func (v *Device) Zero(to Address, bytes int) error {
	if bytes == 0 {
		return nil
	}
	return v.inStream("cuMemsetD8", func() C.cuda_result { return C.cuda_device_zero(v.c, C.uint64_t(to), C.size_t(bytes)) })
}

// Copy copies bytes from a device, which may be another, into v's memory, in v's stream. What the other device has under way must have been waited for (Event).
func (v *Device) Copy(to Address, from *Device, source Address, bytes int) error {
	if bytes == 0 {
		return nil
	}
	return v.inStream("cuMemcpyDtoD", func() C.cuda_result {
		return C.cuda_device_copy(v.c, C.uint64_t(to), from.c, C.uint64_t(source), C.size_t(bytes))
	})
}

// EnablePeer lets v read the memory of peer directly, where the hardware can; without it copies go through the host.
func (v *Device) EnablePeer(peer *Device) (bool, error) {
	var enabled C.int
	err := v.failed("cuCtxEnablePeerAccess", C.cuda_device_enable_peer(v.c, peer.c, &enabled))
	return enabled != 0, err
}

func (v *Device) failed(call string, code C.cuda_result) error {
	if code == 0 {
		return nil
	}
	return v.driver.failed(call, code)
}
