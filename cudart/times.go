package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// KernelTime is what a kernel has taken, or another thing that a stream is given.
type KernelTime struct {
	// Name is the kernel's, or that of a call of the driver, cuBLASLt or NCCL: cuMemcpyHtoD, cuMemcpyDtoH, cuMemcpyDtoD, cuMemsetD8, cublasLtMatmul,
	// ncclAllGather, …
	Name     string
	Launches int
	// Seconds is the sum over the launches, of the device's clock from an event before each to one behind it: some microseconds of a launch are the
	// device's way from one to the next. An operation of NCCL waits for the other devices
	// as well.
	Seconds float64
}

// times are the events around launches.
type times struct {
	on   atomic.Bool
	mu   sync.Mutex       // of the rest
	free []unsafe.Pointer // events
	open []timed          // in the order of the launches
	sums map[string]KernelTime
}

// timed is a launch with the events around it.
type timed struct {
	name     string
	from, to unsafe.Pointer
}

// TimeKernels has what v is given from now on timed, or ends that. While it is, kernels are launched one by one, without graphs, each between two events:
// the whole takes longer, and a kernel of a few microseconds looks longer
// than it is. Results are the same.
func (v *Device) TimeKernels(on bool) {
	switch was := v.times.on.Swap(on); {
	case on && !was:
		v.plain(1)
	case was && !on:
		v.plain(-1)
	}
}

// KernelTimes gives the times of all that was timed before the host last waited for v, those that took longest first; after Close those of all. It may be
// called on any goroutine at any time.
func (v *Device) KernelTimes() []KernelTime {
	v.times.mu.Lock()
	defer v.times.mu.Unlock()
	return slices.SortedFunc(maps.Values(v.times.sums), func(a, b KernelTime) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(a.Name, b.Name))
	})
}

// event gives a timed event that nothing uses.
func (t *times) event(v *Device) (e unsafe.Pointer, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.free); n > 0 {
		e, t.free = t.free[n-1], t.free[:n-1]
		return e, nil
	}
	return e, v.failed("cuEventCreate", C.cuda_event_new(v.c, &e, 1))
}

// record puts an event into the device's stream.
func (t *times) record(v *Device) (e unsafe.Pointer, err error) {
	if e, err = t.event(v); err == nil {
		err = v.failed("cuEventRecord", C.cuda_event_record(v.c, e))
	}
	return e, err
}

// around has launch put something into v's stream, and times it if that is asked for. What launch fails with goes before.
func (t *times) around(v *Device, name string, launch func() error) error {
	if !t.on.Load() {
		return launch()
	}
	from, err := t.record(v)
	if err != nil {
		return err
	}
	if err := launch(); err != nil {
		t.giveBack(from)
		return err
	}
	to, err := t.record(v)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = append(t.open, timed{name, from, to})
	return nil
}

func (t *times) giveBack(events ...unsafe.Pointer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, events...)
}

// settle adds up what is open, after the host has waited for the stream. What went into the second stream may not be through: it is waited for, without the
// lock.
func (t *times) settle(v *Device) error {
	t.mu.Lock()
	open := t.open
	t.open = nil
	t.mu.Unlock()
	for i, launch := range open {
		var ms C.float
		err := v.failed("cuEventSynchronize", C.cuda_event_wait(v.c, launch.to))
		if err == nil {
			err = v.failed("cuEventElapsedTime", C.cuda_event_elapsed(v.c, launch.from, launch.to, &ms))
		}
		if err != nil {
			for _, lost := range open[i:] {
				t.giveBack(lost.from, lost.to)
			}
			return err
		}
		t.add(launch, float64(ms)/1e3)
	}
	return nil
}

func (t *times) add(launch timed, seconds float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sums == nil {
		t.sums = map[string]KernelTime{}
	}
	sum := t.sums[launch.name]
	t.sums[launch.name] = KernelTime{Name: launch.name, Launches: sum.Launches + 1, Seconds: sum.Seconds + seconds}
	t.free = append(t.free, launch.from, launch.to)
}

// close gives the events back, of which none is open any more if the device could be waited for. The sums stay.
func (t *times) close(v *Device) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, launch := range t.open {
		t.free = append(t.free, launch.from, launch.to)
	}
	var errs []error
	for _, e := range t.free {
		errs = append(errs, v.failed("cuEventDestroy", C.cuda_event_free(v.c, e)))
	}
	t.open, t.free = nil, nil
	return errors.Join(errs...)
}
