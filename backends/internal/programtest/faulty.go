package programtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/engine"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// DriverVariable has a program print the folder of the CUDA driver that needs no GPU, for `cuda_libraries`, instead of what it is for; nothing where that cannot be built.
const DriverVariable = "TINSMITH_TEST_DRIVER"

// FaultSuffix is what the name of the file with a fault has behind the program's.
const FaultSuffix = ".fault"

// Faulty makes devices that do what a file beside the program says, "hang 1" or "panic 1" for rank 1: the rank that is meant removes the file and does it, in the next pass. "lose 1" has CUDA's device 1 fail as soon as
// something waits for it; CUDA's devices have no other faults, and are two of the driver that needs no GPU.
func Faulty(open func(engine.Config) (tensor.Device, error)) func(engine.Config) (tensor.Device, error) {
	var opened atomic.Int64
	return func(c engine.Config) (tensor.Device, error) {
		if strings.HasPrefix(c.Device, "cuda:") {
			fakeDevices()
			return open(c)
		}
		d, err := open(c)
		// The first one is the home device, which is no rank.
		if rank := opened.Add(1) - 2; err == nil && rank >= 0 {
			d = &faulty{d, d.(tensor.Drawer), rank}
		}
		return d, err
	}
}

// faulty is a rank's device, a processor's with all that it implements: it computes what the program does without faults.
type faulty struct {
	tensor.Device
	tensor.Drawer
	rank int64
}

// RMSNorm is an operation of every pass and every rank.
func (f *faulty) RMSNorm(y, x, weight tensor.Tensor, eps float32) error {
	f.fault()
	return f.Device.RMSNorm(y, x, weight, eps)
}

func (f *faulty) fault() {
	for _, do := range []string{"hang", "panic"} {
		if told(fmt.Sprint(do, " ", f.rank)) {
			if do == "hang" {
				select {}
			}
			panic("told to panic")
		}
	}
}

// told tells whether the file beside the program says this, and removes it then.
func told(fault string) bool {
	program, err := os.Executable()
	if err != nil {
		panic(err)
	}
	file := program + FaultSuffix
	says, err := os.ReadFile(file)
	return err == nil && string(says) == fault && os.Remove(file) == nil
}

// fakeDevices tells the driver that needs no GPU how many devices there are, and waits for the fault of the second one.
var fakeDevices = sync.OnceFunc(func() {
	const failing = "FAKE_CUDA_FAIL"
	// Older than those whose warpgroups would be tried in another process at every start. The variable of the fault is there from the start, so that setting it moves no other one while the driver reads.
	for name, value := range map[string]string{"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_MAJOR": "8", failing: "nothing"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	go func() {
		for !told("lose 1") {
			time.Sleep(time.Millisecond)
		}
		if err := os.Setenv(failing, "cuStreamSynchronize:1:719:1"); err != nil {
			panic(err)
		}
	}()
})

// printDriver is what DriverVariable asks for.
func printDriver() error {
	dir, err := shim.Directory(context.Background(), shim.Options{})
	if errors.Is(err, shim.ErrNoCompiler) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = fmt.Print(dir)
	return err
}
