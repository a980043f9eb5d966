package cpu

/*
#include "kernels.h"
*/
import "C"

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// HasRecurrence implements tensor.Recurrence.
func (d *device) HasRecurrence() bool { return true }

// states leaves runs in d.stateRuns as C reads them.
func (d *device) states(runs []tensor.StateRun) (*C.state_run, C.int64_t) {
	d.stateRuns = d.stateRuns[:0]
	for _, r := range runs {
		d.stateRuns = append(d.stateRuns, C.state_run{row: C.int64_t(r.Row), count: C.int64_t(r.Count), slot: C.int64_t(r.Slot)})
	}
	return &d.stateRuns[0], C.int64_t(len(d.stateRuns))
}

func (d *device) Conv(y, x, weight, tails tensor.Tensor, runs []tensor.StateRun) error {
	r, n := d.states(runs)
	return failed("conv", C.op_conv(d.c, view(y), view(x), view(weight), view(tails), r, n))
}

func (d *device) ConvBackward(dx, dy, x, weight tensor.Tensor, runs []tensor.StateRun) error {
	r, n := d.states(runs)
	return failed("conv backward", C.op_conv_backward(d.c, view(dx), view(dy), view(x), view(weight), r, n))
}

// delta is what the delta rule reads as C takes it.
func delta(in *tensor.DeltaInputs) C.delta_inputs {
	return C.delta_inputs{mixed: view(in.Mixed), a: view(in.A), b: view(in.B), a_log: view(in.ALog), bias: view(in.Bias), key_heads: C.int64_t(in.KeyHeads),
		value_heads: C.int64_t(in.ValueHeads), key_dim: C.int64_t(in.KeyDim), value_dim: C.int64_t(in.ValueDim)}
}

func (d *device) DeltaRule(o tensor.Tensor, in tensor.DeltaInputs, states tensor.Tensor, runs []tensor.StateRun) error {
	r, n := d.states(runs)
	return failed("delta rule", C.op_delta_rule(d.c, view(o), delta(&in), view(states), r, n))
}

func (d *device) DeltaRuleBackward(dmixed, da, db, do tensor.Tensor, in tensor.DeltaInputs, runs []tensor.StateRun) error {
	r, n := d.states(runs)
	return failed("delta rule backward", C.op_delta_rule_backward(d.c, view(dmixed), view(da), view(db), view(do), delta(&in), r, n))
}

func (d *device) GatedNorm(y, x, z, weight tensor.Tensor, eps float32) error {
	return failed("gated norm", C.op_gated_norm(d.c, view(y), view(x), view(z), view(weight), C.float(eps)))
}

func (d *device) GatedNormBackward(dx, dz, dy, x, z, weight tensor.Tensor, eps float32) error {
	return failed("gated norm backward", C.op_gated_norm_backward(d.c, view(dx), view(dz), view(dy), view(x), view(z), view(weight), C.float(eps)))
}

func (d *device) SigmoidGate(y, x, gate tensor.Tensor) error {
	return failed("sigmoid gate", C.op_sigmoid_gate(d.c, view(y), view(x), view(gate)))
}

func (d *device) SigmoidGateBackward(dx, dgate, dy, x, gate tensor.Tensor) error {
	return failed("sigmoid gate backward", C.op_sigmoid_gate_backward(d.c, view(dx), view(dgate), view(dy), view(x), view(gate)))
}
