package model

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// operations is a workspace's part in the memory that its device's operations take beside their arguments. The device has one such memory for all workspaces on it, as large as the largest of their parts; each counts its own.
type operations struct {
	device tensor.Scratcher        // nil: they take none
	room   func(bytes int64) error // as Workspace.Bound
	bytes  int64
}

// reserve has the device take as much for passes.
func (o *operations) reserve(bytes int64) error {
	more := bytes - o.bytes
	if o.device == nil || more <= 0 {
		return nil
	}
	if o.room != nil {
		if err := o.room(more); err != nil {
			return fmt.Errorf("memory for operations: %w", err)
		}
	}
	if err := o.device.ReserveScratch(bytes); err != nil {
		if o.room != nil {
			_ = o.room(-more)
		}
		return fmt.Errorf("memory for operations: %w", err)
	}
	o.bytes = bytes
	return nil
}

// free gives the device's memory back. What other workspaces need of it the device takes again when it comes to that.
func (o *operations) free() {
	if o.bytes == 0 {
		return
	}
	o.device.ReleaseScratch()
	if o.room != nil {
		_ = o.room(-o.bytes)
	}
	o.bytes = 0
}
