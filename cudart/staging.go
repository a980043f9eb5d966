package cudart

/*
#include <string.h>
#include "driver.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"hash/maphash"
	"unsafe"
)

// stageHalf is the size of each half of the staging memory.
const stageHalf = 4 << 20

// staging is pinned host memory in two halves, through which all copies go, and device memory of the same layout for arguments that a kernel reads from memory. While the device
// copies from one half the host fills the other; an event per half says when its copies are done.
type staging struct {
	host   unsafe.Pointer
	memory Address
	events [2]unsafe.Pointer
	used   [2]bool // the half's event has been recorded
	half   int
	at     int // the next free byte in the half

	// Lists that lie in each half, by a hash of them: kernels only read them, and most come again in every layer of a pass. They are there until the half is filled anew.
	lists [2]map[uint64]placed
	seed  maphash.Seed
}

// mostRemembered is the longest list that is looked for before it is put again, in bytes: longer ones hardly come twice, and reading them takes longer than a copy.
const mostRemembered = 128 << 10

// placed is a list in staging memory, from an offset on.
type placed struct{ offset, bytes int }

// find gives where a list lies that is the same as data, and whose copy to the device has been put into the stream or will be with the launches that follow; false if there is none.
func (s *staging) find(hash uint64, data []byte) (offset int, found bool) {
	for _, lists := range s.lists {
		if p, ok := lists[hash]; ok && p.bytes == len(data) && bytes.Equal(data, unsafe.Slice((*byte)(unsafe.Add(s.host, p.offset)), p.bytes)) {
			return p.offset, true
		}
	}
	return 0, false
}

// forget has lists of both halves copied again.
func (s *staging) forget() {
	for _, lists := range s.lists {
		clear(lists)
	}
}

func (s *staging) init(v *Device) error {
	var code C.cuda_result
	launches.without(func() { code = C.cuda_device_alloc_host(v.c, 2*stageHalf, &s.host) })
	if err := v.failed("cuMemHostAlloc", code); err != nil {
		return err
	}
	s.seed = maphash.MakeSeed()
	for i := range s.lists {
		s.lists[i] = map[uint64]placed{}
	}
	var err error
	if s.memory, err = v.Alloc(2 * stageHalf); err != nil {
		return err
	}
	for i := range s.events {
		if err := v.failed("cuEventCreate", C.cuda_event_new(v.c, &s.events[i], 0)); err != nil {
			return err
		}
	}
	return nil
}

func (s *staging) close(v *Device) error {
	if v.c.context == nil {
		return nil
	}
	err := v.Synchronize()
	for _, e := range s.events {
		if e != nil {
			err = errors.Join(err, v.failed("cuEventDestroy", C.cuda_event_free(v.c, e)))
		}
	}
	if s.memory != 0 {
		err = errors.Join(err, v.Free(s.memory))
	}
	if s.host != nil {
		launches.without(func() { err = errors.Join(err, v.failed("cuMemFreeHost", C.cuda_device_free_host(v.c, s.host))) })
	}
	*s = staging{}
	return err
}

// rewind begins with the first half again. The device is done with all that was put or copied before, so the same lists in the same order get the same places, and graphs the same arguments.
func (s *staging) rewind() {
	s.half, s.at, s.used = 0, 0, [2]bool{}
	s.forget()
}

// upload copies what lies at an offset to the same place in device memory.
func (s *staging) upload(v *Device, offset, bytes int) error {
	const name = "cuMemcpyHtoD"
	err := v.times.around(v, name, func() error {
		return v.failed(name, C.cuda_device_upload(v.c, C.uint64_t(s.memory)+C.uint64_t(offset), C.size_t(bytes), unsafe.Add(s.host, offset), C.size_t(bytes), 1))
	})
	if err != nil {
		s.forget()
	}
	return err
}

// reserve gives the offset of bytes (at most stageHalf) that no copy under way reads.
func (v *Device) reserve(bytes int) (int, error) {
	s := &v.stage
	bytes = (bytes + 255) &^ 255
	if s.at+bytes > stageHalf {
		if err := v.inStream("cuEventRecord", func() C.cuda_result { return C.cuda_event_record(v.c, s.events[s.half]) }); err != nil {
			return 0, err
		}
		s.used[s.half] = true
		s.half, s.at = 1-s.half, 0
		clear(s.lists[s.half])
		if s.used[s.half] {
			if err := v.failed("cuEventSynchronize", C.cuda_event_wait(v.c, s.events[s.half])); err != nil {
				return 0, err
			}
		}
	}
	at := s.half*stageHalf + s.at
	s.at += bytes
	return at, nil
}

// Upload copies rows of width bytes from host memory, where they lie one behind another, to rows that begin pitch bytes apart. data is rows × width bytes long; it has been
// read when Upload returns.
func (v *Device) Upload(to Address, pitch int, data []byte, width, rows int) error {
	return v.transfer(to, pitch, data, width, width, rows, func(place unsafe.Pointer, piece []byte, at Address, width, rows int) error {
		C.memcpy(place, unsafe.Pointer(&piece[0]), C.size_t(width*rows))
		return v.inStream("cuMemcpyHtoD", func() C.cuda_result {
			return C.cuda_device_upload(v.c, C.uint64_t(at), C.size_t(pitch), place, C.size_t(width), C.size_t(rows))
		})
	})
}

// Download is the reverse of Upload; it waits for all that the stream has before it.
func (v *Device) Download(data []byte, from Address, pitch, width, rows int) error {
	return v.DownloadRows(data, width, from, pitch, width, rows)
}

// DownloadRows is Download to rows that begin apart bytes apart, at least width; what lies between them in data stays as it is.
func (v *Device) DownloadRows(data []byte, apart int, from Address, pitch, width, rows int) error {
	return v.transfer(from, pitch, data, apart, width, rows, func(place unsafe.Pointer, piece []byte, at Address, width, rows int) error {
		if err := v.inStream("cuMemcpyDtoH", func() C.cuda_result {
			return C.cuda_device_download(v.c, place, C.uint64_t(at), C.size_t(pitch), C.size_t(width), C.size_t(rows))
		}); err != nil {
			return err
		}
		if err := v.Synchronize(); err != nil {
			return err
		}
		if apart == width {
			width, rows = width*rows, 1
		}
		for r := range rows {
			C.memcpy(unsafe.Pointer(&piece[r*apart]), unsafe.Add(place, r*width), C.size_t(width))
		}
		return nil
	})
}

// transfer cuts a copy between rows that begin pitch bytes apart on the device and apart bytes apart in data into pieces that fit into half the staging memory: whole rows, or parts of one row.
func (v *Device) transfer(at Address, pitch int, data []byte, apart, width, rows int, move func(place unsafe.Pointer, piece []byte, at Address, width, rows int) error) error {
	if v.c == nil {
		return errClosed
	}
	if width == 0 || rows == 0 {
		return nil
	}
	if pitch == width && apart == width { // one long row
		width, rows = width*rows, 1
	}
	piece := func(data []byte, at Address, width, rows int) error {
		offset, err := v.reserve(width * rows)
		if err != nil {
			return err
		}
		return move(unsafe.Add(v.stage.host, offset), data, at, width, rows)
	}
	if width > stageHalf {
		for r := range rows {
			for c := 0; c < width; c += stageHalf {
				if err := piece(data[r*apart+c:], at+Address(r*pitch+c), min(width-c, stageHalf), 1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	most := stageHalf / width
	for r := 0; r < rows; r += most {
		if err := piece(data[r*apart:], at+Address(r*pitch), width, min(rows-r, most)); err != nil {
			return err
		}
	}
	return nil
}

// Put copies data to a place in device memory that stays as it is for kernels launched before release is called, and before the host waits. It is how kernels get lists: positions, targets, tiles. They
// must not write there: a list that is put again meanwhile is not copied again.
func (v *Device) Put(data []byte) (at Address, release func() error, err error) {
	if v.c == nil {
		return 0, nil, errClosed
	}
	if len(data) > stageHalf {
		if at, err = v.Alloc(len(data)); err != nil {
			return 0, nil, err
		}
		if err := v.Upload(at, len(data), data, len(data), 1); err != nil {
			return 0, nil, errors.Join(err, v.Free(at))
		}
		return at, func() error { return v.Free(at) }, nil
	}
	s, release := &v.stage, func() error { return nil }
	if len(data) == 0 {
		return s.memory, release, nil
	}
	remembered := len(data) <= mostRemembered && !v.aside
	var hash uint64
	if remembered { // the second stream is not ordered with copies of this one that come later, nor this one with its copies
		hash = maphash.Bytes(s.seed, data)
		if offset, found := s.find(hash, data); found {
			return s.memory + Address(offset), release, nil
		}
	}
	offset, err := v.reserve(len(data))
	if err != nil {
		return s.memory, release, err
	}
	C.memcpy(unsafe.Add(s.host, offset), unsafe.Pointer(&data[0]), C.size_t(len(data)))
	if err = v.recordList(offset, len(data)); err == nil && remembered {
		s.lists[offset/stageHalf][hash] = placed{offset, len(data)}
	}
	return s.memory + Address(offset), release, err
}

// putAll is Put for several lists in one copy; each begins at a multiple of 16 bytes.
func (v *Device) putAll(lists ...[]byte) (at []Address, release func() error, err error) {
	var all []byte
	for _, list := range lists {
		all = append(all, make([]byte, -len(all)&15)...)
		at = append(at, Address(len(all)))
		all = append(all, list...)
	}
	base, release, err := v.Put(all)
	for i := range at {
		at[i] += base
	}
	return at, release, err
}

// bytesOf sees a list as its bytes.
func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}
