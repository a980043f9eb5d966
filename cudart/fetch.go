package cudart

/*
#include <string.h>
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"
)

// fetches is pinned host memory that copies from the device go to while the host goes on, and a count of the host's waits.
type fetches struct {
	all   []unsafe.Pointer
	free  [32][]unsafe.Pointer // by the logarithm of their size
	waits uint64
}

// leastFetch is the logarithm of the smallest piece.
const leastFetch = 12

// Fetch is a copy from device memory that has been put into the stream.
type Fetch struct {
	device *Device
	memory unsafe.Pointer
	size   int // logarithm
	bytes  int
	waits  uint64 // that the host had done by then
}

// Fetch puts a copy of bytes to the host into the stream, behind what it has; the memory may be written again by what is put there next. Wait, called once, gives them.
func (v *Device) Fetch(from Address, bytes int) (*Fetch, error) {
	if v.c == nil {
		return nil, errClosed
	}
	s := &v.fetches
	f := &Fetch{device: v, size: max(leastFetch, bits.Len(uint(max(bytes, 1)-1))), bytes: bytes, waits: s.waits}
	if f.size >= len(s.free) {
		return nil, fmt.Errorf("a copy of %d bytes to the host at once", bytes)
	}
	if list := s.free[f.size]; len(list) > 0 {
		f.memory, s.free[f.size] = list[len(list)-1], list[:len(list)-1]
	} else {
		var code C.cuda_result
		launches.without(func() { code = C.cuda_device_alloc_host(v.c, C.size_t(1)<<f.size, &f.memory) })
		if err := v.failed("cuMemHostAlloc", code); err != nil {
			return nil, err
		}
		s.all = append(s.all, f.memory)
	}
	if err := v.inStream("cuMemcpyDtoH", func() C.cuda_result {
		return C.cuda_device_download(v.c, f.memory, C.uint64_t(from), C.size_t(bytes), C.size_t(bytes), 1)
	}); err != nil {
		s.free[f.size] = append(s.free[f.size], f.memory)
		return nil, err
	}
	return f, nil
}

// Wait copies what was fetched to data, of as many bytes. It waits for the stream unless the host has done so since.
func (f *Fetch) Wait(data []byte) error {
	v, s := f.device, &f.device.fetches
	if v.c == nil {
		return errClosed
	}
	if f.waits == s.waits {
		if err := v.Synchronize(); err != nil {
			return err // the memory is left to close: the device may still write to it
		}
	}
	if len(data) > 0 {
		C.memcpy(unsafe.Pointer(&data[0]), f.memory, C.size_t(len(data)))
	}
	s.free[f.size] = append(s.free[f.size], f.memory)
	return nil
}

// close gives the memory back. Nothing is under way.
func (s *fetches) close(v *Device) error {
	var errs []error
	launches.without(func() {
		for _, memory := range s.all {
			errs = append(errs, v.failed("cuMemFreeHost", C.cuda_device_free_host(v.c, memory)))
		}
	})
	*s = fetches{}
	return errors.Join(errs...)
}
