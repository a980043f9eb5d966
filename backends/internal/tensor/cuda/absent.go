package cuda

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/checked"
	"github.com/tinsmith/tinsmith/cudart"
)

// NewAbsent opens a GPU that need not be there, of a kind that cudart.AbsentGPUs names. It chooses kernels as a real one would whose check of warpgroups,
// where it has them, has found equal bits, computes nothing (dry.Is), and counts what it would launch: launches gives that since its last call. The caller
// closes the device.
func NewAbsent(kind string) (d tensor.Device, launches func() []cudart.Launch, err error) {
	ordinal := slices.Index(cudart.AbsentGPUs(), kind)
	if ordinal < 0 {
		return nil, nil, fmt.Errorf("cuda: %q is no GPU that is known: must be one of %s", kind, strings.Join(cudart.AbsentGPUs(), ", "))
	}
	driver := cudart.Absent()
	v, err := driver.Open(ordinal)
	if err != nil {
		driver.Close()
		return nil, nil, fmt.Errorf("cuda: %w", err)
	}
	own := &device{v: v, driver: driver, name: fmt.Sprintf("cuda:%d", ordinal)}
	if info, known := driver.Information(ordinal); known == nil && info.Warpgroups() {
		if err := v.UseWarpgroups(true); err != nil {
			return nil, nil, fmt.Errorf("cuda: %w", err)
		}
	}
	return checked.New(own), v.Launches, nil
}

// ComputesNothing is what dry.Is asks.
func (d *device) ComputesNothing() bool { return d.v.Absent() }
