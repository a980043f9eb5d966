// Command dataparallel is the backend plugin for several devices of which each has a copy of the model: sequences of training are spread over them, and requests to sample. The gateway starts it.
package main

import (
	"github.com/tinsmith/tinsmith/backends/internal/engine"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/device"
	"github.com/tinsmith/tinsmith/plugins"
)

// version is set when a release is built.
var version = "development"

func main() {
	plugins.Serve(engine.New(engine.Options{
		Plugin: "dataparallel", Version: version, Registry: architectures.All(),
		OpenDevice: open, Patience: plugins.Patience(), Lost: plugins.Exit,
	}))
}

// open opens a rank's device. Tests put faults into it.
var open = func(c engine.Config) (tensor.Device, error) {
	return device.Open(device.Options{Name: c.Device, Threads: c.Threads, CUDALibraries: c.CUDALibraries, Products: c.Products, Attention: c.Attention, Gradients: c.Gradients, Launches: c.Launches, Weights: c.Weights, Remember: device.CacheFolder(), Lost: plugins.Exit})
}
