package cuda

import (
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// Sink implements tensor.Device.
func (d *device) Sink(o, lse, sinks tensor.Tensor) error {
	return d.failed("sink", d.v.Sink(cudart.View{}, view(o), view(lse), view(sinks)))
}

// SinkKeep implements tensor.Fuser.
func (d *device) SinkKeep(kept, o, lse, sinks tensor.Tensor) error {
	return d.failed("sink and keep", d.v.Sink(view(kept), view(o), view(lse), view(sinks)))
}

// SwiGLUClamped implements tensor.Device.
func (d *device) SwiGLUClamped(y, gate, up tensor.Tensor, c tensor.Clamp) error {
	return d.failed("clamped swiglu", d.v.SwiGLUClamped(view(y), typeOf(y.DType), cudart.View{}, cudart.View{}, view(gate), view(up), typeOf(gate.DType), cudart.Clamp(c)))
}

// SwiGLUClampedKeep implements tensor.Fuser.
func (d *device) SwiGLUClampedKeep(y, keptGate, keptUp, gate, up tensor.Tensor, c tensor.Clamp) error {
	return d.failed("clamped swiglu and keep", d.v.SwiGLUClamped(view(y), typeOf(y.DType), view(keptGate), view(keptUp), view(gate), view(up), typeOf(gate.DType), cudart.Clamp(c)))
}

// SwiGLUClampedBackward implements tensor.Device.
func (d *device) SwiGLUClampedBackward(dgate, dup, dy, gate, up tensor.Tensor, c tensor.Clamp) error {
	return d.failed("clamped swiglu backward", d.v.SwiGLUClampedBackward(view(dgate), view(dup), view(dy), view(gate), view(up), typeOf(gate.DType), cudart.Clamp(c)))
}

// AddRouted implements tensor.Device.
func (d *device) AddRouted(rows, bias tensor.Tensor, table tensor.Table) error {
	return d.failed("routed biases", d.v.AddRouted(view(rows), view(bias), tableOf(table)))
}

// AddRoutedBackward implements tensor.Device.
func (d *device) AddRoutedBackward(dp, dy, bias, choice tensor.Tensor) error {
	return d.failed("routed biases backward", d.v.AddRoutedBackward(view(dp), view(dy), view(bias), view(choice)))
}
