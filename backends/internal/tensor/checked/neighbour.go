package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// remote is what devices have that are not the processor: memory of their own, work that goes on after an operation has returned, a library for what they exchange, draws, derivatives of losses, work that is given to them as a whole, operations that are one, a type of their own for what is kept, memory that operations take beside their arguments, and products that end in what comes next.
type remote interface {
	tensor.OwnMemory
	tensor.Neighbour
	tensor.Linker
	tensor.Drawer
	tensor.Differentiator
	tensor.Recorder
	tensor.Paced
	tensor.Rated
	tensor.Routed
	tensor.Fuser
	tensor.Keeper
	tensor.Scratcher
	tensor.Finisher
}

// remoteDevice is device for kernels that are remote as well.
type remoteDevice struct {
	*drawingDevice
	remote remote
}

// base gives the part that all devices of this package have; nil if d is not one of them.
func base(d tensor.Device) *device {
	switch d := d.(type) {
	case *device:
		return d
	case *drawingDevice:
		return d.device
	case *remoteDevice:
		return d.device
	}
	return nil
}

// FreeMemory implements tensor.OwnMemory.
func (d *remoteDevice) FreeMemory() (int64, error) {
	if c := d.check("free memory"); c.err != nil {
		return 0, c.err
	}
	return d.remote.FreeMemory()
}

// TotalMemory implements tensor.OwnMemory.
func (d *remoteDevice) TotalMemory() (int64, error) {
	if c := d.check("total memory"); c.err != nil {
		return 0, c.err
	}
	return d.remote.TotalMemory()
}

// Reach implements tensor.Neighbour.
func (d *remoteDevice) Reach(other tensor.Device) error {
	c := d.check("reach")
	o := c.open(other)
	if c.err != nil {
		return c.err
	}
	return d.remote.Reach(o)
}

// NewMark implements tensor.Neighbour.
func (d *remoteDevice) NewMark() (tensor.Mark, error) {
	if c := d.check("mark"); c.err != nil {
		return nil, c.err
	}
	m, err := d.remote.NewMark()
	if err != nil {
		return nil, err
	}
	return mark{m, d.device}, nil
}

type mark struct {
	tensor.Mark
	device *device
}

func (m mark) Before(later tensor.Device) error {
	c := m.device.check("mark")
	o := c.open(later)
	if c.err != nil {
		return c.err
	}
	return m.Mark.Before(o)
}

// open gives the kernels of another device.
func (c *check) open(d tensor.Device) tensor.Device {
	b := base(d)
	switch {
	case b == nil:
		c.fail("%T is no device that it could work with", d)
	case b.closed:
		c.fail("%s is closed", b.name)
	default:
		return b.kernels
	}
	return nil
}
