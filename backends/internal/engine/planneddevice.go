package engine

import (
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// plannedDevice opens a device that need not be there, over which a plan is made: it has a name, and nothing is computed.
func plannedDevice(c Config) (tensor.Device, error) {
	if isCUDA(c.Device) {
		return &plannedGPU{dry.Remote{Blocks: c.inBlocks()}, c.Device}, nil
	}
	return &plannedProcessor{name: c.Device}, nil
}

// plannedProcessor is a processor. It has an address of its own, by which ranks are told apart.
type plannedProcessor struct {
	dry.Device
	name string
}

// Name implements tensor.Device.
func (d *plannedProcessor) Name() string { return d.name }

// plannedGPU is a GPU.
type plannedGPU struct {
	dry.Remote
	name string
}

var (
	_ tensor.OwnMemory = (*plannedGPU)(nil)
	_ tensor.Recorder  = (*plannedGPU)(nil)
	_ tensor.Linker    = (*plannedGPU)(nil)
)

// Name implements tensor.Device.
func (d *plannedGPU) Name() string { return d.name }

// FreeMemory implements tensor.OwnMemory: what bounds it is the plan's limit.
func (d *plannedGPU) FreeMemory() (int64, error) { return unlimited, nil }

// TotalMemory implements tensor.OwnMemory. The plan's limit is what counts.
func (d *plannedGPU) TotalMemory() (int64, error) { return unlimited, nil }

// Record implements tensor.Recorder.
func (d *plannedGPU) Record(f func() error) error { return f() }

// LimitRecorded implements tensor.Recorder.
func (d *plannedGPU) LimitRecorded(int64) {}

// Link implements tensor.Linker: nothing is exchanged.
func (d *plannedGPU) Link(devices []tensor.Device, _ tensor.LinkOptions) ([]tensor.Link, error) {
	links := make([]tensor.Link, len(devices))
	for i := range links {
		links[i] = noLink{}
	}
	return links, nil
}

type noLink struct{ tensor.Link }

func (noLink) Close() error { return nil }
