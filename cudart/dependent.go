package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
)

// Dependent launches: within a graph a kernel's blocks are placed while the kernel before it still runs, and wait there until it has ended, so that the time between the end of one and the beginning of the next is hidden (programmatic
// dependent launches of Hopper). Every kernel waits before it reads or writes anything, so that what it sees is what it would see without, and so are its
// bits. The two instructions for it are no different from kernel to kernel: they are
// put into the PTX when it is loaded, before a kernel's first instruction.
//
// Products of few rows do one thing before: they ask for their first weights, which nothing writes, so that the second-level cache has them when the wait is
// over. Their sources say so (ask_early and wait_for_launch in kernels/language.h), in
// comments of the PTX that become instructions here, and say where the wait is.
//
// The order of the two matters. A kernel first waits, then lets the next one be placed: so at most two are on the device, and one that has not all of its blocks there yet never waits for room that another one holds.
const waitThenLetIn = "\tgriddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;\n"

// What kernels have in comments: instructions, and where the wait is.
const (
	earlyMark = "\t//early "
	earlyWait = earlyMark + "wait\n"
)

// waiting puts the wait into every kernel of a module: before its first instruction or, in one that asks for memory before, where it says.
func waiting(text []byte) []byte {
	entry, open := []byte(".entry "), []byte("\n{\n")
	out := make([]byte, 0, len(text)+len(text)/64)
	for {
		at := bytes.Index(text, entry)
		if at < 0 {
			return append(out, text...)
		}
		body := bytes.Index(text[at:], open)
		if body < 0 {
			return append(out, text...)
		}
		end := at + body + len(open)
		out = append(out, text[:end]...)
		text = text[end:]
		own := text // of the kernel, to where the next one begins
		if next := bytes.Index(text, entry); next >= 0 {
			own = text[:next]
		}
		if !bytes.Contains(own, []byte(earlyWait)) {
			out = append(out, waitThenLetIn...)
			continue
		}
		text = text[len(own):]
		out = append(out, bytes.ReplaceAll(bytes.Replace(own, []byte(earlyWait), []byte(waitThenLetIn), 1), []byte(earlyMark), []byte("\t"))...)
	}
}

// UseDependentLaunches has launches of graphs overlap from now on. It is called before any other module of kernels is loaded, and before anything is recorded. The error says what is missing; launches are as before then.
func (v *Device) UseDependentLaunches() error {
	switch {
	case v.c == nil:
		return errClosed
	case v.warpgroups || v.bulk || v.outerGroups || v.groupAttention || len(v.recorder.known) > 0:
		return errors.New("launches become dependent before other kernels are loaded and anything is recorded")
	case v.DependentLaunches():
		return nil
	case v.major != 9 || v.minor != 0:
		return fmt.Errorf("dependent launches are for compute capability 9.0, and %s has %d.%d", v.name, v.major, v.minor)
	case v.driver.c.cuGraphAddDependencies_v2 == nil:
		return errors.New("the CUDA driver has no cuGraphAddDependencies_v2, which is in those of CUDA 12.3 and later")
	}
	v.c.dependent = 1
	err := v.loadKernels()
	if err != nil {
		v.c.dependent = 0
	}
	return err
}

// DependentLaunches says whether launches of graphs overlap.
func (v *Device) DependentLaunches() bool { return v.c != nil && v.c.dependent != 0 }

// withoutEdges makes a driver one that has no graphs in which launches overlap, for tests.
func withoutEdges(d *Driver) { d.c.cuGraphAddDependencies_v2 = nil }
