package programtest

import (
	"fmt"
	"os"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/backends/internal/engine"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// FaultSuffix is what the name of the file with a fault has behind the program's.
const FaultSuffix = ".fault"

// Faulty makes devices that do what a file beside the program says, "hang 1" or "panic 1" for rank 1: the rank that is meant removes the file and does it, in the next pass.
func Faulty(open func(engine.Config) (tensor.Device, error)) func(engine.Config) (tensor.Device, error) {
	var opened atomic.Int64
	return func(c engine.Config) (tensor.Device, error) {
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
	program, err := os.Executable()
	if err != nil {
		panic(err)
	}
	file := program + FaultSuffix
	told, err := os.ReadFile(file)
	if err != nil {
		return // none
	}
	for _, do := range []string{"hang", "panic"} {
		if string(told) == fmt.Sprint(do, " ", f.rank) && os.Remove(file) == nil {
			if do == "hang" {
				select {}
			}
			panic("told to panic")
		}
	}
}
