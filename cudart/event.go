package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"time"
	"unsafe"
)

// Event marks a point in a device's stream.
type Event struct {
	device *Device
	handle unsafe.Pointer
}

// NewEvent makes an event; timed ones can be subtracted. The caller frees it before the device is closed.
func (v *Device) NewEvent(timed bool) (*Event, error) {
	e := &Event{device: v}
	var flag C.int
	if timed {
		flag = 1
	}
	return e, v.failed("cuEventCreate", C.cuda_event_new(v.c, &e.handle, flag))
}

// Record sets the event behind what the stream has.
func (e *Event) Record() error {
	return e.device.inStream("cuEventRecord", func() C.cuda_result { return C.cuda_event_record(e.device.c, e.handle) })
}

// Wait waits until the event's point is reached.
func (e *Event) Wait() error {
	return e.device.failed("cuEventSynchronize", C.cuda_event_wait(e.device.c, e.handle))
}

// Order makes what comes next in v's stream wait for the event, which may be another device's. The host does not wait.
func (e *Event) Order(v *Device) error {
	return v.inStream("cuStreamWaitEvent", func() C.cuda_result { return C.cuda_event_order(v.c, e.handle) })
}

// Since gives the time on the device from another timed event to this one; both must have been reached.
func (e *Event) Since(from *Event) (time.Duration, error) {
	var ms C.float
	err := e.device.failed("cuEventElapsedTime", C.cuda_event_elapsed(e.device.c, from.handle, e.handle, &ms))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}

// Free gives the event back.
func (e *Event) Free() error {
	return e.device.failed("cuEventDestroy", C.cuda_event_free(e.device.c, e.handle))
}

// Aside has what launch puts into the stream run in a second one, beside what the stream is given next: after all that the stream has been given before, and before what it is given after join, which is called once. launch
// may copy between devices and launch kernels; it may neither allocate, upload, download nor wait.
func (v *Device) Aside(launch func() error) (join func() error, err error) {
	begin, err := v.NewEvent(false)
	if err != nil {
		return nil, err
	}
	end, err := v.NewEvent(false)
	if err != nil {
		return nil, errors.Join(err, begin.Free())
	}
	err = begin.Record()
	if err == nil {
		err = v.inStream("cuStreamCreate", func() C.cuda_result { return C.cuda_device_turn(v.c) })
	}
	if err == nil {
		v.aside = true
		if err = begin.Order(v); err == nil {
			err = launch()
		}
		v.aside = false
		err = errors.Join(err, end.Record(), v.inStream("cuCtxSetCurrent", func() C.cuda_result { return C.cuda_device_turn(v.c) }))
	}
	err = errors.Join(err, begin.Free())
	if err != nil {
		return nil, errors.Join(err, end.Order(v), end.Free()) // what has been launched is not overtaken
	}
	return func() error { return errors.Join(end.Order(v), end.Free()) }, nil
}
