package cuda

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

var errNoE4M3 = errors.New("cuda: there are no kernels for matrices in eight bits yet")

// HasE4M3 implements tensor.Device: weights of FP8 files are expanded to bfloat16 when they are loaded.
func (d *device) HasE4M3() bool { return false }

// NewE4M3Matrix implements tensor.Device.
func (d *device) NewE4M3Matrix(int, int, int) (tensor.Matrix, error) { return nil, errNoE4M3 }

// PackE4M3 implements tensor.Device.
func (d *device) PackE4M3(tensor.Matrix, int, int, []byte, []float32) error { return errNoE4M3 }
