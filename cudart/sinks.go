package cudart

/*
#include "driver.h"
*/
import "C"

// Sinks of attention, and experts with biases and a clamped gated product.

// Clamp are the settings of a clamped gated product: y = (u + 1) · g · sigmoid(Alpha · g) with g = min(gate, Limit) and u = up within ±Limit.
type Clamp struct{ Alpha, Limit float32 }

// Sink multiplies o, row by row and head by head, with what a softmax that has a score more, the head's sink, leaves for the others, and makes lse the log-sum-exp with it. sinks has one row, of an element for each head. With a
// kept that has an address the product goes there, rounded to bfloat16, and o stays as it is.
func (v *Device) Sink(kept, o, lse, sinks View) error {
	if o.empty() {
		return nil
	}
	a := C.sink_arguments{kept: kept.c(), o: o.c(), lse: lse.c(), sinks: sinks.c()}
	return v.launch(kSink, o.Rows, 1, 1, bytesIn(&a))
}

// SwiGLUClamped writes a clamped gated product to y, in type t; gate and up are of type from. Where keptGate and keptUp have addresses, gate and up, of float32 then, are written there, rounded to bfloat16.
func (v *Device) SwiGLUClamped(y View, t Type, keptGate, keptUp, gate, up View, from Type, c Clamp) error {
	a := C.swiglu_clamped_arguments{alpha: C.float(c.Alpha), limit: C.float(c.Limit),
		of: C.swiglu_arguments{y: y.c(), gate: gate.c(), up: up.c(), kept_gate: keptGate.c(), kept_up: keptUp.c(), y_type: C.int32_t(t), from_type: C.int32_t(from)}}
	return v.rowwise(kSwiGLUClamped, y.Rows, y.Cols, bytesIn(&a))
}

// SwiGLUClampedBackward overwrites dgate and dup, as SwiGLUBackward does.
func (v *Device) SwiGLUClampedBackward(dgate, dup, dy, gate, up View, from Type, c Clamp) error {
	a := C.swiglu_clamped_backward_arguments{alpha: C.float(c.Alpha), limit: C.float(c.Limit),
		of: C.swiglu_backward_arguments{dgate: dgate.c(), dup: dup.c(), dy: dy.c(), gate: gate.c(), up: up.c(), from_type: C.int32_t(from)}}
	return v.rowwise(kSwiGLUClampedBackward, dy.Rows, dy.Cols, bytesIn(&a))
}

// AddRouted adds to each row of the table the row of bias that its expert has.
func (v *Device) AddRouted(rows, bias View, table ExpertTable) error {
	a := C.add_routed_arguments{table: table.c(), rows: rows.c(), bias: bias.c()}
	return v.rowwise(kAddRouted, rows.Rows, rows.Cols, bytesIn(&a))
}

// AddRoutedBackward is dp[token, slot] += ⟨dy[token], bias[choice[token, slot]]⟩, by 16 lanes and one tree.
func (v *Device) AddRoutedBackward(dp, dy, bias, choice View) error {
	if dp.empty() {
		return nil
	}
	a := C.add_routed_backward_arguments{dp: dp.c(), dy: dy.c(), bias: bias.c(), choice: choice.c()}
	const slots = 16 // of a block
	return v.launch(kAddRoutedBackward, (dp.Rows*dp.Cols+slots-1)/slots, 1, 1, bytesIn(&a))
}
