package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"
)

// pool keeps freed memory for the next allocation of its size, so that a step which repeats calls the driver for none. Because a device has one stream, memory may be given
// again at once: what uses it next comes after what used it last. A GPU may be opened several times, by ranks that work on it: what one of its devices keeps the others lack, so they may take it from each other's pools.
type pool struct {
	device *Device
	mu     sync.Mutex
	free   map[int][]Address // by rounded size
	taken  map[Address]int   // rounded sizes
	cached int               // bytes in free
}

// gpu is the open devices of one GPU. Each GPU has a lock of its own: who holds it waits for work there, which may be waiting for what another rank is about to launch on another GPU.
type gpu struct {
	mu   sync.Mutex
	open []*Device
}

// gpus are known by their contexts.
var gpus = struct {
	mu    sync.Mutex
	known map[unsafe.Pointer]*gpu
}{known: map[unsafe.Pointer]*gpu{}}

func gpuOf(context unsafe.Pointer) *gpu {
	gpus.mu.Lock()
	defer gpus.mu.Unlock()
	if gpus.known[context] == nil {
		gpus.known[context] = &gpu{}
	}
	return gpus.known[context]
}

// enter says that others may take what v's pool keeps, until leave.
func (v *Device) enter() {
	g := gpuOf(v.c.context)
	g.mu.Lock()
	defer g.mu.Unlock()
	v.gpu, g.open = g, append(g.open, v)
}

func (v *Device) leave() {
	if g := v.gpu; g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.open = slices.DeleteFunc(g.open, func(d *Device) bool { return d == v })
	}
}

// makeRoom gives the driver what the pools of the GPU's devices keep, if with that there may be room for size bytes more; false if nothing was done.
func (v *Device) makeRoom(size int) (bool, error) {
	g := v.gpu
	if g == nil { // it is being opened
		return false, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	free, _, err := v.Memory()
	kept := int64(0)
	for _, d := range g.open {
		kept += d.pool.kept()
	}
	if err != nil || kept == 0 || free+kept < int64(size) {
		return false, err
	}
	for _, d := range g.open {
		err = errors.Join(err, d.pool.giveBack())
	}
	return true, err
}

func (p *pool) init(v *Device) {
	p.device, p.free, p.taken = v, map[int][]Address{}, map[Address]int{}
}

// rounded gives the size that is asked of the driver: multiples of 512 bytes below 1 MiB, of 2 MiB (the driver's page) above.
func rounded(bytes int) int {
	unit := 512
	if bytes > 1<<20 {
		unit = 2 << 20
	}
	return max(1, (bytes+unit-1)/unit) * unit
}

// Alloc gives memory of at least bytes, aligned to 512 bytes, with any content. An error wraps ErrOutOfMemory when the device has too little.
func (v *Device) Alloc(bytes int) (Address, error) {
	p := &v.pool
	if v.c == nil {
		return 0, errClosed
	}
	if bytes < 0 {
		return 0, fmt.Errorf("alloc of %d bytes", bytes)
	}
	size := rounded(bytes)
	if a, ok := p.take(size); ok {
		return a, nil
	}
	a, err := p.fromDriver(size)
	if errors.Is(err, ErrOutOfMemory) { // memory of other sizes may do
		room, failed := v.makeRoom(size)
		if failed != nil {
			return 0, failed
		}
		if room {
			a, err = p.fromDriver(size)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%d bytes: %w", size, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[a] = size
	return a, nil
}

// take gives memory that is kept, if there is some of this size.
func (p *pool) take(size int) (Address, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.free[size]
	if len(list) == 0 {
		return 0, false
	}
	a := list[len(list)-1]
	p.free[size] = list[:len(list)-1]
	p.cached -= size
	p.taken[a] = size
	return a, true
}

// kept is the bytes that nobody uses.
func (p *pool) kept() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.cached)
}

var errClosed = errors.New("the device is closed")

func (p *pool) fromDriver(size int) (Address, error) {
	var a C.uint64_t
	var code C.cuda_result
	launches.without(func() { code = C.cuda_device_alloc(p.device.c, C.size_t(size), &a) })
	return Address(a), p.device.failed("cuMemAlloc", code)
}

// giveBack frees what nobody uses, on any goroutine.
func (p *pool) giveBack() error {
	p.mu.Lock()
	all := p.free
	p.free, p.cached = map[int][]Address{}, 0
	p.mu.Unlock()
	v := p.device
	err := v.flush() // what was put off before the memory was freed may use it
	err = errors.Join(err, v.failed("cuCtxSynchronize", C.cuda_device_finish(v.c)))
	launches.without(func() {
		for _, list := range all {
			for _, a := range list {
				err = errors.Join(err, v.failed("cuMemFree", C.cuda_device_free(v.c, C.uint64_t(a))))
			}
		}
	})
	return err
}

// Trim gives the driver all that the pool keeps, so that other processes can have it: the next allocations ask the driver again. Where there is something to give it waits for everything that the GPU has been given. Graphs that
// have addresses of that memory may stay: a graph gets the addresses of each start before it (startGraph).
func (v *Device) Trim() error {
	if v.c == nil {
		return errClosed
	}
	if v.pool.kept() == 0 {
		return nil
	}
	return v.pool.giveBack()
}

// Free takes memory back that Alloc gave. Freeing twice, or what Alloc did not give, is an error.
func (v *Device) Free(a Address) error {
	p := &v.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	size, ok := p.taken[a]
	if !ok {
		return fmt.Errorf("free: %#x is no allocation of this device, or was freed before", a)
	}
	delete(p.taken, a)
	p.free[size] = append(p.free[size], a)
	p.cached += size
	return nil
}

// Allocations is how many have not been freed, the device's own scratch memory left out.
func (v *Device) Allocations() int {
	if v.scratch.at != 0 {
		return len(v.pool.taken) - 1
	}
	return len(v.pool.taken)
}

func (p *pool) close() error {
	if p.device.c.context == nil {
		return nil
	}
	err := p.giveBack()
	if n := len(p.taken); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d allocations have not been freed", n))
		launches.without(func() {
			for a := range p.taken {
				err = errors.Join(err, p.device.failed("cuMemFree", C.cuda_device_free(p.device.c, C.uint64_t(a))))
			}
		})
		clear(p.taken)
	}
	return err
}
