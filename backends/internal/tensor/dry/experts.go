package dry

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Route implements tensor.Device.
func (Device) Route(_, _, _ tensor.Tensor, _ bool) error { return nil }

// RouteBackward implements tensor.Device.
func (Device) RouteBackward(_, _, _, _, _ tensor.Tensor, _ bool) error { return nil }

// Dispatch implements tensor.Device.
func (Device) Dispatch(tensor.Table, tensor.Tensor) error { return nil }

// MatMulRouted implements tensor.Device.
func (Device) MatMulRouted(tensor.Table, ...tensor.RoutedProduct) error { return nil }

// OuterRouted implements tensor.Device.
func (Device) OuterRouted(tensor.Table, ...tensor.RoutedOuter) error { return nil }

// Spread implements tensor.Device.
func (Device) Spread(_, _, _ tensor.Tensor, _ tensor.Table, _ bool) error { return nil }

// Combine implements tensor.Device.
func (Device) Combine(_, _, _ tensor.Tensor, _ tensor.Table, _ bool) error { return nil }

// CombineBackward implements tensor.Device.
func (Device) CombineBackward(_, _, _, _ tensor.Tensor, _ tensor.Table, _ tensor.Segments) error {
	return nil
}
