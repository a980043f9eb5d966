package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
)

// pool keeps freed memory for the next allocation of its size, so that a step which repeats calls the driver for none. Because a device has one stream, memory may be given
// again at once: what uses it next comes after what used it last.
type pool struct {
	device *Device
	free   map[int][]Address // by rounded size
	taken  map[Address]int   // rounded sizes
	cached int               // bytes in free
}

func (p *pool) init(v *Device) {
	*p = pool{device: v, free: map[int][]Address{}, taken: map[Address]int{}}
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
	if list := p.free[size]; len(list) > 0 {
		a := list[len(list)-1]
		p.free[size] = list[:len(list)-1]
		p.cached -= size
		p.taken[a] = size
		return a, nil
	}
	a, err := p.fromDriver(size)
	if errors.Is(err, ErrOutOfMemory) && p.cached > 0 { // memory of other sizes may do
		if err := p.giveBack(); err != nil {
			return 0, err
		}
		a, err = p.fromDriver(size)
	}
	if err != nil {
		return 0, fmt.Errorf("%d bytes: %w", size, err)
	}
	p.taken[a] = size
	return a, nil
}

var errClosed = errors.New("the device is closed")

func (p *pool) fromDriver(size int) (Address, error) {
	var a C.uint64_t
	err := p.device.failed("cuMemAlloc", C.cuda_device_alloc(p.device.c, C.size_t(size), &a))
	return Address(a), err
}

// giveBack frees what nobody uses.
func (p *pool) giveBack() error {
	err := p.device.wait()
	for size, list := range p.free {
		for _, a := range list {
			err = errors.Join(err, p.device.failed("cuMemFree", C.cuda_device_free(p.device.c, C.uint64_t(a))))
		}
		delete(p.free, size)
	}
	p.cached = 0
	return err
}

// Free takes memory back that Alloc gave. Freeing twice, or what Alloc did not give, is an error.
func (v *Device) Free(a Address) error {
	p := &v.pool
	size, ok := p.taken[a]
	if !ok {
		return fmt.Errorf("free: %#x is no allocation of this device, or was freed before", a)
	}
	delete(p.taken, a)
	p.free[size] = append(p.free[size], a)
	p.cached += size
	return nil
}

// Allocations is how many have not been freed.
func (v *Device) Allocations() int { return len(v.pool.taken) }

func (p *pool) close() error {
	if p.device.c.context == nil {
		return nil
	}
	err := p.giveBack()
	if n := len(p.taken); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d allocations have not been freed", n))
		for a := range p.taken {
			err = errors.Join(err, p.device.failed("cuMemFree", C.cuda_device_free(p.device.c, C.uint64_t(a))))
		}
		clear(p.taken)
	}
	return err
}
