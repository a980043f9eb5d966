package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// homes are the devices that the engine's goroutine uses itself, one for each memory that ranks work on: the processor's, or that of each GPU. The first is the home device, which has all of the adapters but the packed matrices
// that passes read: those are at every home. Ranks have devices of their own beside them.
type homes struct{ devices []tensor.Device }

// open gives the home for a rank's device by its name, a new one if there is none yet.
func (h *homes) open(e *Engine, c Config, name string) (tensor.Device, error) {
	for _, d := range h.devices {
		if d.Name() == name {
			return d, nil
		}
	}
	c.Device = name
	d, err := e.options.OpenDevice(c)
	if err != nil {
		return nil, err
	}
	h.devices = append(h.devices, d)
	return d, nil
}

// of gives the home with the memory of a device.
func (h *homes) of(device tensor.Device) tensor.Device {
	return h.devices[h.index(device)]
}

// index is the number of that home.
func (h *homes) index(device tensor.Device) int {
	for i, d := range h.devices {
		if d.Name() == device.Name() {
			return i
		}
	}
	return 0
}

func (h *homes) has(device tensor.Device) bool {
	for _, d := range h.devices {
		if d == device {
			return true
		}
	}
	return false
}

// ownMemory tells whether the homes have memory of their own: all or none do.
func (h *homes) ownMemory() bool {
	_, own := h.devices[0].(tensor.OwnMemory)
	return own
}

// before has a device wait for what the homes have been given, after the homes for what it has been given. They may be called from any goroutine.
func (h *homes) before(device tensor.Device) error {
	for _, d := range h.devices {
		if err := tensor.Await(device, d); err != nil {
			return err
		}
	}
	return nil
}

func (h *homes) after(device tensor.Device) error {
	for _, d := range h.devices {
		if err := tensor.Await(d, device); err != nil {
			return err
		}
	}
	return nil
}

// close closes all of them.
func (h *homes) close() error {
	var errs []error
	for _, d := range h.devices {
		errs = append(errs, d.Close())
	}
	h.devices = nil
	return errors.Join(errs...)
}

// connect lets devices reach the memory that they read and write: all of them the home device's, and the ranks of a model that is cut each other's, unless they exchange through NCCL. What is copied from device to device otherwise
// (weights that are shared out) needs none of this. A rank's device reaches what the home of its GPU does.
func (l *loaded) connect() error {
	home := l.homes.devices[0]
	for _, d := range l.homes.devices[1:] {
		if err := tensor.Reach(d, home); err != nil {
			return fmt.Errorf("%w; adapters and their gradients are in the memory of %s, which all other GPUs read and write, also with comm: nccl", err, home.Name())
		}
	}
	for _, r := range l.replicas {
		if l.config.NCCL {
			break
		}
		if err := tensor.Connect(r.devices); err != nil {
			return fmt.Errorf("%w; the ranks of a model that is cut exchange values through each other's memory, unless with comm: nccl", err)
		}
	}
	return nil
}

// memories names the memories that the ranks of a replica work on, in order: replicas with the same ones can share a model.
func memories(devices []tensor.Device) string {
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name()
	}
	return fmt.Sprintf("%d: %s", len(devices), strings.Join(names, "|"))
}
