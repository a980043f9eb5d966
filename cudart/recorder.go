package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// A launch takes the host some microseconds, which is more than many a kernel of a decoding step takes the device. So what is launched while Record runs is collected, and started as one graph if the same
// launches have come before. How long launches, graphs and changes to them take on a GPU has not been measured: the numbers below are estimates.
const (
	seriesLength = 64  // launches that are started together; the device is busy with them while the host collects the next ones
	firstSeries  = 16  // of the first series, which the device waits for
	leastSeries  = 8   // fewer are not worth a graph
	mostSeries   = 128 // that are remembered
)

// recorder is the launches that have been put off, and the series of them that have come before.
type recorder struct {
	mu        sync.Mutex // events are set and waited for on any goroutine
	depth     int        // of calls of Record
	work      []C.cuda_work
	arguments []byte
	one       []C.cuda_work // what is launched outside of Record, so that it is not allocated each time
	// Lists in staging memory that have been put and not copied yet. All are copied at once, before the launches: nothing that was put off reads what lay there before.
	listsFrom, listsTo int

	number  int // of the next series since Record
	key     []byte
	known   map[string]*series
	clock   int
	retired []graph // may still be running
	nodes   int     // of all graphs, retired ones included
	limit   int64   // bytes that graphs may take; see LimitGraphs
	off     bool    // a call for graphs has failed
	plain   int     // not 0: no graph is made or started
	lost    error   // of graphs that could not be given back
}

// series is launches that have come before, with the same kernels and grids, as the same part of what was recorded.
type series struct {
	seen  []byte // the arguments that they had last
	held  []byte // those of the graph
	graph C.cuda_graph
	nodes int // of the graph
	used  int
}

// graph is one that is not started any more.
type graph struct {
	c     C.cuda_graph
	nodes int
}

// Device memory that a node of a graph is taken to need. Drivers before that of CUDA 12.4 are documented to take 64 KiB for each (PyTorch's notes on CUDA graphs); for later ones there is no figure, and this is to be on the safe side.
const (
	nodeBytes    = 16 << 10
	oldNodeBytes = 64 << 10
	smallNodes   = 12040 // the first version with small ones
)

// defaultGraphBytes is the memory of graphs where LimitGraphs has not been called.
const defaultGraphBytes = 128 << 20

// LimitGraphs bounds the device memory of graphs, by an estimate for each launch: what goes beyond is launched one by one.
func (v *Device) LimitGraphs(bytes int64) {
	v.recorder.mu.Lock()
	defer v.recorder.mu.Unlock()
	v.recorder.limit = max(bytes, 1)
}

// GraphBytes is the estimate for the graphs that there are.
func (v *Device) GraphBytes() int64 {
	v.recorder.mu.Lock()
	defer v.recorder.mu.Unlock()
	return v.graphBytes(v.recorder.nodes)
}

func (v *Device) graphBytes(nodes int) int64 {
	if v.driver.version < smallNodes {
		return int64(nodes) * oldNodeBytes
	}
	return int64(nodes) * nodeBytes
}

// roomForGraph tells whether a graph of so many nodes may be made. Those that have not come for long make room, as soon as they cannot be running any more: of series that take turns the ones that have graphs keep them.
func (v *Device) roomForGraph(nodes int) bool {
	r := &v.recorder
	limit := r.limit
	if limit == 0 {
		limit = defaultGraphBytes
	}
	if v.graphBytes(r.nodes+nodes) <= limit {
		return true
	}
	if v.graphBytes(nodes) > limit || len(r.retired) > 0 { // those will make room
		return false
	}
	var oldest *series
	for _, s := range r.known {
		if s.graph.executable != nil && r.clock-s.used > mostSeries && (oldest == nil || s.used < oldest.used) {
			oldest = s
		}
	}
	if oldest != nil {
		r.retire(oldest)
	}
	return false
}

// Record runs f. Kernels that f launches may be put off until f is through, waits for the device, or gives its stream anything else: copies, events, what belongs to other streams and to NCCL come after all launches
// before them. Results are the same; an error of a launch may be a later call's. Calls may lie in each other.
func (v *Device) Record(f func() error) (err error) {
	r := &v.recorder
	r.mu.Lock()
	if r.depth == 0 {
		r.number = 0
	}
	r.depth++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.depth--
		last := r.depth == 0
		r.mu.Unlock()
		if last {
			if late := v.flush(); late != nil {
				err = errors.Join(err, late)
			}
		}
	}()
	return f()
}

// plain counts who wants no graphs for now.
func (v *Device) plain(more int) {
	v.recorder.mu.Lock()
	defer v.recorder.mu.Unlock()
	v.recorder.plain += more
}

// recording says whether launches are being put off.
func (v *Device) recording() bool {
	v.recorder.mu.Lock()
	defer v.recorder.mu.Unlock()
	return v.recorder.depth > 0
}

// record puts a launch off; outside of Record it is launched.
func (v *Device) record(w C.cuda_work, arguments []byte) error {
	r := &v.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.depth == 0 {
		r.one = append(r.one[:0], w)
		return v.launchAll(r.one, arguments)
	}
	r.arguments = append(r.arguments, make([]byte, -len(r.arguments)&15)...)
	w.at = C.unsigned(len(r.arguments))
	r.work, r.arguments = append(r.work, w), append(r.arguments, arguments...)
	most := seriesLength
	if r.number == 0 {
		most = firstSeries
	}
	if len(r.work) < most {
		return nil
	}
	return v.startRecorded()
}

// recordList puts the copy of a list in staging memory off; outside of Record it is copied.
func (v *Device) recordList(offset, bytes int) error {
	r := &v.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.depth == 0 {
		return v.stage.upload(v, offset, bytes)
	}
	if r.listsTo == 0 {
		r.listsFrom = offset
	}
	r.listsTo = offset + bytes
	return nil
}

// inStream has call put something into the stream, behind what has been put off. The lock is not held then: call may wait, for another device that another goroutine serves.
func (v *Device) inStream(name string, call func() C.cuda_result) error {
	if err := v.flush(); err != nil {
		return err
	}
	put := func() error { return v.failed(name, call()) }
	if strings.HasPrefix(name, "cuMem") { // what takes the device time
		return v.times.around(v, name, put)
	}
	return put()
}

// flush starts what has been put off.
func (v *Device) flush() error {
	v.recorder.mu.Lock()
	defer v.recorder.mu.Unlock()
	return v.startRecorded()
}

// startRecorded is flush for who has the lock. After an error nothing is left to be started.
func (v *Device) startRecorded() error {
	r := &v.recorder
	if r.listsTo > 0 {
		from, to := r.listsFrom, r.listsTo
		r.listsFrom, r.listsTo = 0, 0
		if err := v.stage.upload(v, from, to-from); err != nil {
			r.work, r.arguments = r.work[:0], r.arguments[:0]
			return err
		}
	}
	if len(r.work) == 0 {
		return nil
	}
	work, arguments := r.work, r.arguments
	r.work, r.arguments = r.work[:0], r.arguments[:0]
	r.number++
	if !r.off && r.plain == 0 && !v.driver.absent && len(work) >= leastSeries {
		started, err := v.startGraph(work, arguments)
		if err == nil && started {
			return nil
		}
		if err != nil { // the launches show whether anything else is wrong
			r.off = true
			r.forget()
			slog.Warn("CUDA graphs are not used any more: kernels are launched one by one", "device", fmt.Sprintf("cuda:%d", v.Ordinal()), "error", err)
		}
	}
	return v.launchAll(work, arguments)
}

// launchAll launches one by one.
func (v *Device) launchAll(work []C.cuda_work, arguments []byte) error {
	if v.times.on.Load() {
		for i := range work {
			if err := v.times.around(v, kernelOf(int(work[i].kernel)).name, func() error { return v.launchSeries(work[i:i+1], arguments) }); err != nil {
				return err
			}
		}
		return nil
	}
	return v.launchSeries(work, arguments)
}

func (v *Device) launchSeries(work []C.cuda_work, arguments []byte) error {
	if v.driver.absent {
		return v.count(work, arguments)
	}
	var at C.int
	code := C.cuda_device_launch(v.c, &work[0], C.int(len(work)), (*C.uchar)(&arguments[0]), &at)
	if code == 0 {
		return nil
	}
	return v.failed(kernelOf(int(work[at].kernel)).name, code)
}

// startGraph starts a series as a graph, which is made when the series comes again with mostly the arguments that it had the time before: making one takes longer than the launches, and changing all of one about
// as long. False if the series is to be launched.
func (v *Device) startGraph(work []C.cuda_work, arguments []byte) (bool, error) {
	r := &v.recorder
	r.key = append(append(r.key[:0], byte(r.number), byte(r.number>>8)), bytesOf(work)...)
	s := r.known[string(r.key)]
	if s == nil {
		r.remember(&series{seen: bytes.Clone(arguments)})
		return false, nil
	}
	r.touch(s)
	moved := len(different(work, arguments, s.seen))
	s.seen = append(s.seen[:0], arguments...)
	switch {
	case 2*moved > len(work):
		return false, nil
	case s.graph.executable == nil && !v.roomForGraph(len(work)):
		return false, nil
	case s.graph.executable == nil:
		s.nodes = len(work)
		r.nodes += s.nodes
		var code C.cuda_result
		launches.without(func() {
			code = C.cuda_graph_build(v.c, &s.graph, &work[0], C.int(len(work)), (*C.uchar)(&arguments[0]))
		})
		if err := v.failed("making a graph", code); err != nil {
			return false, err
		}
		s.held = bytes.Clone(arguments)
	default:
		if which := different(work, arguments, s.held); len(which) > 0 {
			if err := v.failed("cuGraphExecKernelNodeSetParams", C.cuda_graph_update(v.c, &s.graph, &which[0], C.int(len(which)), &work[0], (*C.uchar)(&arguments[0]))); err != nil {
				return false, err
			}
			copy(s.held, arguments)
		}
	}
	err := v.failed("cuGraphLaunch", C.cuda_graph_launch(v.c, &s.graph))
	return err == nil, err
}

// different gives the launches whose arguments in a are not those in b.
func different(work []C.cuda_work, a, b []byte) (which []C.int) {
	for i, w := range work {
		if from, to := w.at, w.at+w.bytes; !bytes.Equal(a[from:to], b[from:to]) {
			which = append(which, C.int(i))
		}
	}
	return which
}

// forget retires the graphs of all series.
func (r *recorder) forget() {
	for _, s := range r.known {
		r.retire(s)
	}
	r.known = nil
}

func (r *recorder) touch(s *series) {
	r.clock++
	s.used = r.clock
}

// remember keeps a series under the present key, in the place of the one that has not come for longest if there are too many.
func (r *recorder) remember(s *series) {
	if r.known == nil {
		r.known = map[string]*series{}
	}
	if len(r.known) >= mostSeries {
		var oldest string
		least := r.clock + 1
		for key, other := range r.known {
			if other.used < least {
				oldest, least = key, other.used
			}
		}
		r.retire(r.known[oldest])
		delete(r.known, oldest)
	}
	r.touch(s)
	r.known[string(r.key)] = s
}

func (r *recorder) retire(s *series) {
	if s.graph != (C.cuda_graph{}) {
		r.retired = append(r.retired, graph{c: s.graph, nodes: s.nodes})
		s.graph, s.nodes = C.cuda_graph{}, 0
	}
}

// free gives the graphs back that are not used any more, when the device has done all it was given.
func (r *recorder) free(v *Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.retired) == 0 {
		return
	}
	launches.without(func() { r.freeRetired(v) })
}

func (r *recorder) freeRetired(v *Device) {
	for i := range r.retired {
		r.lost = errors.Join(r.lost, v.failed("cuGraphDestroy", C.cuda_graph_free(v.c, &r.retired[i].c)))
		r.nodes -= r.retired[i].nodes
	}
	r.retired = r.retired[:0]
}

// close gives all graphs back.
func (r *recorder) close(v *Device) error {
	if v.c.context == nil {
		return nil
	}
	err := v.wait()
	r.forget()
	r.free(v)
	return errors.Join(err, r.lost)
}
