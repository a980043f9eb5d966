package engine

import (
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// weightsKey is the setting that Config.FP8 is read from.
const weightsKey = "backend.weights"

// fp8 is what becomes of weights in FP8 on a device like this: by themselves they are kept where it has kernels for them, because the results are the same, in half the memory, and decoding reads half of it.
func (c *Config) fp8(device tensor.Device) model.FP8 {
	if c.FP8 == model.FP8Auto && !device.HasE4M3() {
		return model.FP8Expanded
	}
	return c.FP8
}
