package cuda

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// Reach implements tensor.Neighbour: devices on one GPU share its context, and another GPU's memory is mapped where the hardware has peer access. A peer that was reached before
// stays so.
func (d *device) Reach(other tensor.Device) error {
	o, ok := other.(*device)
	if !ok {
		return fmt.Errorf("cuda: %s cannot reach the memory of a %T", d.name, other)
	}
	if o.v.Ordinal() == d.v.Ordinal() {
		return nil
	}
	enabled, err := d.v.EnablePeer(o.v)
	if err != nil {
		return d.failed("reach "+o.name, err)
	}
	if !enabled {
		return fmt.Errorf("cuda: %s cannot reach the memory of %s: this machine has no peer access between them (nvidia-smi topo -p2p r shows it)", d.name, o.name)
	}
	return nil
}

// NewMark implements tensor.Neighbour.
func (d *device) NewMark() (tensor.Mark, error) {
	e, err := d.v.NewEvent(false)
	if err != nil {
		return nil, d.failed("mark", err)
	}
	return &mark{device: d, event: e}, nil
}

type mark struct {
	device *device
	event  *cudart.Event
}

func (m *mark) Set() error { return m.device.failed("mark", m.event.Record()) }

func (m *mark) Before(later tensor.Device) error {
	d, ok := later.(*device)
	if !ok {
		return fmt.Errorf("cuda: a %T cannot wait for %s", later, m.device.name)
	}
	return d.failed("wait for "+m.device.name, m.event.Order(d.v))
}

func (m *mark) Free() error { return m.device.failed("mark", m.event.Free()) }
