package cudart

/*
#include <stdlib.h>
#include "driver.h"
#include "nccl.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// NCCL is NVIDIA's library for exchange between GPUs, loaded when OpenNCCL is called. It may be used by several goroutines.
type NCCL struct {
	c       *C.nccl
	path    string
	version int
}

// leastNCCL is the first version for CUDA 12 on Hopper: 2.16.
const leastNCCL = 21600

// OpenNCCL loads libnccl.so.2: the first one that is new enough and has every function, where none of the given folders has one. The error names what was looked for and where, and every one that was found with its version and
// what is wrong with it.
func OpenNCCL(o Options) (*NCCL, error) {
	n := &NCCL{c: (*C.nccl)(C.calloc(1, C.sizeof_nccl))}
	t := table{at: unsafe.Pointer(n.c), functions: C.nccl_functions[:], least: leastNCCL, text: libraryVersionText, version: func() int {
		var version C.int
		if C.nccl_version(n.c, &version) != 0 {
			return 0
		}
		return int(version)
	}}
	var err error
	if n.path, n.version, err = t.find([]string{"libnccl.so.2"}, o.Directories); err != nil {
		C.free(unsafe.Pointer(n.c))
		return nil, err
	}
	C.library_keep(unsafe.Pointer(n.c))
	return n, nil
}

// Path is where the library was found.
func (n *NCCL) Path() string { return n.path }

// Version is like "2.21.5".
func (n *NCCL) Version() string { return libraryVersionText(n.version) }

// Close gives the library back, which stays in memory. All communicators must have been closed.
func (n *NCCL) Close() error {
	if n.c != nil {
		C.library_close(unsafe.Pointer(n.c))
		C.free(unsafe.Pointer(n.c))
		n.c = nil
	}
	return nil
}

// failed makes an error of a code. What fails in NCCL leaves the ranks apart for good: the error wraps ErrDeviceLost.
func (n *NCCL) failed(call string, code C.nccl_result) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s (%d): %w", call, C.GoString(C.nccl_error_text(n.c, code)), int(code), ErrDeviceLost)
}

// Communicator is one device's end of a group. Values are float32, counts in elements; operations are put into the device's stream and return before they are done. All devices of the group are given the same operations in the same order.
type Communicator struct {
	n       *NCCL
	device  *Device
	handle  unsafe.Pointer // nil: closed
	size    int
	section *section // the group's
}

// Connect makes a group over devices, each of another GPU; end i is devices[i]'s. The caller closes all ends before the devices.
func (n *NCCL) Connect(devices []*Device) ([]*Communicator, error) {
	handles, ordinals := make([]unsafe.Pointer, len(devices)), make([]C.int, len(devices))
	seen := map[int]bool{}
	for i, v := range devices {
		if v.c == nil {
			return nil, errClosed
		}
		if ordinals[i] = v.c.ordinal; seen[v.Ordinal()] {
			return nil, fmt.Errorf("NCCL takes each GPU once, and cuda:%d is there twice", v.Ordinal())
		}
		seen[v.Ordinal()] = true
	}
	if err := n.failed("ncclCommInitAll", C.nccl_init(n.c, devices[0].c, &handles[0], C.int(len(devices)), &ordinals[0])); err != nil {
		return nil, err
	}
	ends, group := make([]*Communicator, len(devices)), &section{}
	for i, v := range devices {
		ends[i] = &Communicator{n: n, device: v, handle: handles[i], size: len(devices), section: group}
	}
	return ends, nil
}

// Ready starts what the device has put off (Record), also as a graph that is made for it. It comes before the hosts of the group's devices meet for an operation.
func (c *Communicator) Ready() error { return c.device.flush() }

// Hold has the device launch its kernels one by one until release, which comes when all devices of the group have been given the operations before which their hosts have met: an operation's kernel runs on the first GPU
// that it is launched on and waits there for the others. What makes a graph takes memory, for which the driver may wait for that GPU while it keeps other threads from launching. So does what takes memory otherwise: the
// caller takes none until release, and other goroutines that do wait for it (see launching).
func (c *Communicator) Hold() (release func()) {
	c.device.plain(1)
	launches.enter(c.section)
	return func() {
		launches.leave(c.section)
		c.device.plain(-1)
	}
}

// put has call put an operation into the device's stream.
func (c *Communicator) put(name string, call func() C.nccl_result) error {
	if err := c.device.flush(); err != nil {
		return err
	}
	return c.device.times.around(c.device, name, func() error { return c.n.failed(name, call()) })
}

// Size is the number of devices of the group.
func (c *Communicator) Size() int { return c.size }

// AllGather writes the group's count values each to to, one behind another in the order of the devices; from may be this device's place in to.
func (c *Communicator) AllGather(to, from Address, count int) error {
	return c.put("ncclAllGather", func() C.nccl_result {
		return C.nccl_all_gather(c.n.c, c.device.c, c.handle, C.uint64_t(to), C.uint64_t(from), C.size_t(count))
	})
}

// AllToAll sends part p of from, count values, to device p, and gathers what the devices send to this one in to.
func (c *Communicator) AllToAll(to, from Address, count int) error {
	return c.put("ncclSend and ncclRecv", func() C.nccl_result {
		return C.nccl_all_to_all(c.n.c, c.device.c, c.handle, C.int(c.size), C.uint64_t(to), C.uint64_t(from), C.size_t(count))
	})
}

// Broadcast makes count values what they are on device root.
func (c *Communicator) Broadcast(at Address, count, root int) error {
	return c.put("ncclBroadcast", func() C.nccl_result {
		return C.nccl_broadcast(c.n.c, c.device.c, c.handle, C.uint64_t(at), C.size_t(count), C.int(root))
	})
}

// Send gives count values to a Receive of device to.
func (c *Communicator) Send(from Address, count, to int) error {
	return c.put("ncclSend", func() C.nccl_result {
		return C.nccl_send(c.n.c, c.device.c, c.handle, C.uint64_t(from), C.size_t(count), C.int(to))
	})
}

// Receive takes count values from a Send of device from.
func (c *Communicator) Receive(to Address, count, from int) error {
	return c.put("ncclRecv", func() C.nccl_result {
		return C.nccl_receive(c.n.c, c.device.c, c.handle, C.uint64_t(to), C.size_t(count), C.int(from))
	})
}

// Close ends the communicator after what the device has been given; another Close does nothing.
func (c *Communicator) Close() error {
	if c.handle == nil {
		return nil
	}
	h := c.handle
	c.handle = nil
	return c.n.failed("ncclCommDestroy", C.nccl_destroy(c.n.c, c.device.c, h))
}

// Abort ends it at once, with operations whose other ends do not come.
func (c *Communicator) Abort() error {
	if c.handle == nil {
		return nil
	}
	h := c.handle
	c.handle = nil
	return c.n.failed("ncclCommAbort", C.nccl_abort(c.n.c, c.device.c, h))
}
