// Command single is the backend plugin for one device, the processor or a GPU: it serves and trains one model. The gateway starts it.
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
		Plugin: "single", Version: version, Registry: architectures.All(),
		OpenDevice: func(c engine.Config) (tensor.Device, error) {
			return device.Open(device.Options{Name: c.Device, Threads: c.Threads, CUDALibraries: c.CUDALibraries, Products: c.Products, Attention: c.Attention, Gradients: c.Gradients, Launches: c.Launches, Weights: c.Weights, Remember: device.CacheFolder(), Lost: plugins.Exit})
		},
	}))
}
