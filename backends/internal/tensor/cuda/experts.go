package cuda

import (
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

var errExperts = tensor.ErrNoExperts

// CheckExperts implements tensor.Device.
func (d *device) CheckExperts() error { return errExperts }

// Route implements tensor.Device.
func (d *device) Route(_, _, _ tensor.Tensor, _ bool) error { return errExperts }

// RouteBackward implements tensor.Device.
func (d *device) RouteBackward(_, _, _, _, _ tensor.Tensor, _ bool) error { return errExperts }

// Dispatch implements tensor.Device.
func (d *device) Dispatch(tensor.Table, tensor.Tensor) error { return errExperts }

// MatMulRouted implements tensor.Device.
func (d *device) MatMulRouted(tensor.Table, ...tensor.RoutedProduct) error { return errExperts }

// OuterRouted implements tensor.Device.
func (d *device) OuterRouted(tensor.Table, ...tensor.RoutedOuter) error { return errExperts }

// Spread implements tensor.Device.
func (d *device) Spread(_, _, _ tensor.Tensor, _ tensor.Table, _ bool) error { return errExperts }

// Combine implements tensor.Device.
func (d *device) Combine(_, _, _ tensor.Tensor, _ tensor.Table, _ bool) error { return errExperts }

// CombineBackward implements tensor.Device.
func (d *device) CombineBackward(_, _, _, _ tensor.Tensor, _ tensor.Table) error { return errExperts }
