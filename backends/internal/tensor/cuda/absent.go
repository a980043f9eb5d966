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
// where it has them, has found equal bits, computes nothing (dry.Is), and counts what it would launch: launches gives that since its last call. Of o only
// Attention and Gradients count, as if checks had found them to pay. The caller closes the device.
func NewAbsent(kind string, o Options) (d tensor.Device, launches func() []cudart.Launch, err error) {
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
	info, err := driver.Information(ordinal)
	if err != nil {
		return nil, nil, fmt.Errorf("cuda: %w", err)
	}
	if !info.Warpgroups() {
		if o.Attention == AttentionWarpgroups || o.Gradients == GradientsTensorCores {
			return nil, nil, fmt.Errorf("cuda: %s has no kernels for attention by warpgroups, nor for gradients on tensor cores: these are for Hopper", kind)
		}
		return checked.New(own), v.Launches, nil
	}
	if err = v.UseWarpgroups(true); err == nil && o.Attention == AttentionWarpgroups {
		err = v.UseGroupAttention(true)
	}
	if err == nil && o.Gradients == GradientsTensorCores {
		err = v.UseOuterGroups()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cuda: %w", err)
	}
	return checked.New(own), v.Launches, nil
}

// ComputesNothing is what dry.Is asks.
func (d *device) ComputesNothing() bool { return d.v.Absent() }
