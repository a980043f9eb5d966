package dry

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Sink implements tensor.SinkDevice.
func (Device) Sink(_, _, _ tensor.Tensor) error { return nil }

// SwiGLUClamped implements tensor.SinkDevice.
func (Device) SwiGLUClamped(_, _, _ tensor.Tensor, _ tensor.Clamp) error { return nil }

// SwiGLUClampedBackward implements tensor.SinkDevice.
func (Device) SwiGLUClampedBackward(_, _, _, _, _ tensor.Tensor, _ tensor.Clamp) error { return nil }

// AddRouted implements tensor.SinkDevice.
func (Device) AddRouted(_, _ tensor.Tensor, _ tensor.Table) error { return nil }

// AddRoutedBackward implements tensor.SinkDevice.
func (Device) AddRoutedBackward(_, _, _, _ tensor.Tensor) error { return nil }

// SinkKeep implements tensor.Fuser.
func (Remote) SinkKeep(_, _, _, _ tensor.Tensor) error { return nil }

// SwiGLUClampedKeep implements tensor.Fuser.
func (Remote) SwiGLUClampedKeep(_, _, _, _, _ tensor.Tensor, _ tensor.Clamp) error { return nil }
