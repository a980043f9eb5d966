package cuda

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// CheckSinks implements tensor.SinkDevice.
func (d *device) CheckSinks() error { return tensor.ErrNoSinks }

// Sink implements tensor.SinkDevice.
func (d *device) Sink(_, _, _ tensor.Tensor) error { return tensor.ErrNoSinks }

// SwiGLUClamped implements tensor.SinkDevice.
func (d *device) SwiGLUClamped(_, _, _ tensor.Tensor, _ tensor.Clamp) error { return tensor.ErrNoSinks }

// SwiGLUClampedBackward implements tensor.SinkDevice.
func (d *device) SwiGLUClampedBackward(_, _, _, _, _ tensor.Tensor, _ tensor.Clamp) error {
	return tensor.ErrNoSinks
}

// AddRouted implements tensor.SinkDevice.
func (d *device) AddRouted(_, _ tensor.Tensor, _ tensor.Table) error { return tensor.ErrNoSinks }

// AddRoutedBackward implements tensor.SinkDevice.
func (d *device) AddRoutedBackward(_, _, _, _ tensor.Tensor) error { return tensor.ErrNoSinks }
