package cuda

import (
	"log/slog"
	"os"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/checked"
	"github.com/tinsmith/tinsmith/cudart"
)

// TimesVariable is an environment variable that, if not empty, has every device time its kernels from its opening on and write the sums to the log when it
// is closed.
const TimesVariable = "TINSMITH_KERNEL_TIMES"

// TimeKernels has a device of this package time what it is given, or ends that; see cudart.Device.TimeKernels. False if d is another device, without
// kernels to time.
func TimeKernels(d tensor.Device, on bool) bool {
	own, ok := checked.Kernels(d).(*device)
	if ok {
		own.v.TimeKernels(on)
	}
	return ok
}

// KernelTimes gives what has been timed so far; see cudart.Device.KernelTimes. It may be called on any goroutine, also after d was closed; nothing for
// another device.
func KernelTimes(d tensor.Device) []cudart.KernelTime {
	if own, ok := checked.Kernels(d).(*device); ok {
		return own.v.KernelTimes()
	}
	return nil
}

func (d *device) logTimes() {
	if os.Getenv(TimesVariable) == "" {
		return
	}
	for _, k := range d.v.KernelTimes() {
		slog.Info("kernel times", "device", d.name, "kernel", k.Name, "launches", k.Launches, "seconds", k.Seconds)
	}
}
