package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// KeptType implements tensor.Keeper.
func (d *remoteDevice) KeptType(weights tensor.DType) tensor.DType { return d.remote.KeptType(weights) }
