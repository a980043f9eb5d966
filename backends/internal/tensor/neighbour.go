package tensor

import (
	"errors"
	"fmt"
)

// Neighbour is implemented by devices that work beside others on memory that they share, and whose operations return before they are done: one device does not wait for another
// unless it is told to. The processor's devices are done when an operation returns and share memory by nature, so they need none of this.
type Neighbour interface {
	// Reach lets this device's operations read and write the memory of other, which is of the same package. The error says why it cannot.
	Reach(other Device) error
	// NewMark makes a mark, to be freed before the device is closed.
	NewMark() (Mark, error)
}

// Mark is a point in what a device does. Its methods may be called from any goroutine, beside operations of the devices concerned.
type Mark interface {
	// Set puts the mark behind all that its device has been given so far.
	Set() error
	// Before has all that later, of the same package, is given from now on wait for the point where the mark was set last. The caller does not wait.
	Before(later Device) error
	Free() error
}

// Await has all that later is given from now on wait for all that earlier has been given so far. Devices that are no neighbours are done with it already. It may be called from any goroutine.
func Await(later, earlier Device) (err error) {
	n, ok := earlier.(Neighbour)
	if !ok || later == earlier {
		return nil
	}
	m, err := n.NewMark()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Free()) }()
	if err := m.Set(); err != nil {
		return err
	}
	return m.Before(later)
}

// Connect lets every device of a list reach every other one, in both directions.
func Connect(devices []Device) error {
	for _, d := range devices {
		for _, other := range devices {
			if err := Reach(d, other); err != nil {
				return err
			}
		}
	}
	return nil
}

// Reach lets operations of a device read and write the memory of another one, but not the other way round. Devices without memory of their own do so by nature.
func Reach(device, other Device) error {
	if device == other {
		return nil
	}
	n, ok := device.(Neighbour)
	if _, both := other.(Neighbour); ok != both {
		return fmt.Errorf("%s and %s do not share memory: devices that work together are all processors or all GPUs", device.Name(), other.Name())
	}
	if !ok {
		return nil
	}
	return n.Reach(other)
}

// Link is one device's end of a group whose devices exchange tensors through a library made for that (NCCL). Tensors are float32 and contiguous. Operations are ordered with the device's own and return before they
// are done; all devices of the group are given the same ones, in the same order, each on a thread of its own. After an error the group is of no more use.
type Link interface {
	// Ready starts what the device has been given and has put off (Recorder), which may take the driver memory or wait. It comes before the devices' hosts meet for operations.
	Ready() error
	// Hold comes when the hosts of the devices that have part in operations have met, before the first of them, and has the device do no more than launch what it is given, until release: where one device has begun an operation
	// that waits for another, whose host has not launched its part yet, anything else may wait for the first one while it keeps the second one's host from launching. release comes when all have launched their parts.
	Hold() (release func())
	// AllGather writes every device's tensor to dst, one behind another in the order of the devices: rank r's is rows [r·Rows, (r+1)·Rows) of dst, and src may be this device's.
	AllGather(dst, src Tensor) error
	// AllToAll sends the p-th of equally many rows of src to device p, and writes what device p sends to this one to the same rows of dst.
	AllToAll(dst, src Tensor) error
	// Broadcast makes t what it is on device root.
	Broadcast(t Tensor, root int) error
	Send(t Tensor, to int) error
	Recv(t Tensor, from int) error
	// Abort ends operations whose other ends do not come; the link is closed then.
	Abort() error
	Close() error
}

// Linker is implemented by devices that have such a library.
type Linker interface {
	// Link makes a group over devices of the same package, this one among them. The caller closes all ends before the devices.
	Link(devices []Device, o LinkOptions) ([]Link, error)
}

// LinkOptions are the settings of a Linker's library.
type LinkOptions struct {
	// DirectAccess says whether the library may have a GPU read another's memory without a copy in the host's; nil leaves it to the device.
	DirectAccess *bool
}
