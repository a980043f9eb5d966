package cpu

/*
#include "kernels.h"
*/
import "C"

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

func (d *device) Sink(o, lse, sinks tensor.Tensor) error {
	return failed("sink", C.op_sink(d.c, view(o), view(lse), view(sinks)))
}

func (d *device) SwiGLUClamped(y, gate, up tensor.Tensor, c tensor.Clamp) error {
	return failed("clamped swiglu", C.op_swiglu_clamped(d.c, view(y), view(gate), view(up), C.float(c.Alpha), C.float(c.Limit)))
}

func (d *device) SwiGLUClampedBackward(dgate, dup, dy, gate, up tensor.Tensor, c tensor.Clamp) error {
	return failed("clamped swiglu backward", C.op_swiglu_clamped_backward(d.c, view(dgate), view(dup), view(dy), view(gate), view(up), C.float(c.Alpha), C.float(c.Limit)))
}

func (d *device) AddRouted(rows, bias tensor.Tensor, table tensor.Table) error {
	return failed("routed biases", C.op_add_routed(d.c, view(rows), view(bias), tableOf(table)))
}

func (d *device) AddRoutedBackward(dp, dy, bias, choice tensor.Tensor) error {
	return failed("routed biases backward", C.op_add_routed_backward(d.c, view(dp), view(dy), view(bias), view(choice)))
}
