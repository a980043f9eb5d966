// Package device opens devices by the names that configurations use. It knows every kind of device, and nothing of what runs on one.
package device

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart"
)

// Options choose a device.
type Options struct {
	// Name is "cpu", "cuda:N", or "auto": cuda:0 where it can be used, else cpu.
	Name string
	// Threads is for the processor; see cpu.Options.
	Threads int
	// CUDALibraries are folders that CUDA's libraries are looked for in before the system's.
	CUDALibraries []string
	// Products and Weights are for a GPU's products; see cuda.Options.
	Products string
	Weights  [][2]int
	// Attention, Gradients and Launches are for a GPU; see cuda.Options.
	Attention, Gradients, Launches string
	// Remember is a folder for what was found out about a GPU's products; see cuda.Options and CacheFolder.
	Remember string
	// Lost is called when the device is of no more use and the process should end; see cuda.Options.
	Lost func(error)
	// Log hears why "auto" left a GPU unused; nil is slog's default. A machine without a driver is no reason to speak.
	Log *slog.Logger
}

// CacheFolder is where programs keep what was found out about GPUs, see Options.Remember: in the user's cache directory; "" if there is none.
func CacheFolder() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "tinsmith", "products")
}

// Open opens a device. The caller closes it.
func Open(o Options) (tensor.Device, error) {
	gpu := func(name string) (tensor.Device, error) {
		return cuda.New(cuda.Options{Device: name, Libraries: o.CUDALibraries, Products: o.Products, Attention: o.Attention, Gradients: o.Gradients, Launches: o.Launches, Weights: o.Weights, Remember: o.Remember, Lost: o.Lost})
	}
	processor := func() (tensor.Device, error) { return cpu.New(cpu.Options{Threads: o.Threads}) }
	switch _, isCUDA := cuda.Ordinal(o.Name); {
	case o.Name == "cpu":
		return processor()
	case isCUDA:
		return gpu(o.Name)
	case o.Name == "auto":
		d, err := gpu("cuda:0")
		if err == nil || errors.Is(err, cuda.ErrProducts) || errors.Is(err, cuda.ErrAttention) || errors.Is(err, cuda.ErrGradients) || errors.Is(err, cuda.ErrLaunches) {
			return d, err
		}
		if !errors.Is(err, cudart.ErrNoDriver) {
			log := o.Log
			if log == nil {
				log = slog.Default()
			}
			log.Warn("the GPU is not used", "error", err)
		}
		return processor()
	}
	return nil, fmt.Errorf("device %q: must be cpu, cuda:N (N from 0) or auto", o.Name)
}
