package cuda

import (
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// HasRecurrence implements tensor.Recurrence.
func (d *device) HasRecurrence() bool { return true }

// states leaves runs in d.stateRuns as kernels read them.
func (d *device) states(runs []tensor.StateRun) []cudart.StateRun {
	d.stateRuns = d.stateRuns[:0]
	for _, r := range runs {
		d.stateRuns = append(d.stateRuns, cudart.StateRun{Row: int64(r.Row), Count: int64(r.Count), Slot: int64(r.Slot)})
	}
	return d.stateRuns
}

func (d *device) Conv(y, x, weight, tails tensor.Tensor, runs []tensor.StateRun) error {
	return d.failed("conv", d.v.Conv(view(y), view(x), view(weight), view(tails), d.states(runs)))
}

func (d *device) ConvBackward(dx, dy, x, weight tensor.Tensor, runs []tensor.StateRun) error {
	return d.failed("conv backward", d.v.ConvBackward(view(dx), view(dy), view(x), view(weight), d.states(runs)))
}

// delta is what the delta rule reads as kernels take it.
func delta(in *tensor.DeltaInputs) cudart.DeltaInputs {
	return cudart.DeltaInputs{Mixed: view(in.Mixed), A: view(in.A), B: view(in.B), ALog: view(in.ALog), Bias: view(in.Bias), KeyHeads: int64(in.KeyHeads), ValueHeads: int64(in.ValueHeads),
		KeyDim: int64(in.KeyDim), ValueDim: int64(in.ValueDim)}
}

func (d *device) DeltaRule(o tensor.Tensor, in tensor.DeltaInputs, states tensor.Tensor, runs []tensor.StateRun) error {
	return d.failed("delta rule", d.v.DeltaRule(view(o), delta(&in), view(states), d.states(runs)))
}

func (d *device) DeltaRuleBackward(dmixed, da, db, do tensor.Tensor, in tensor.DeltaInputs, runs []tensor.StateRun) error {
	return d.failed("delta rule backward", d.v.DeltaRuleBackward(view(dmixed), view(da), view(db), view(do), delta(&in), d.states(runs)))
}

func (d *device) GatedNorm(y, x, z, weight tensor.Tensor, eps float32) error {
	return d.failed("gated norm", d.v.GatedNorm(view(y), view(x), view(z), view(weight).At, eps))
}

func (d *device) GatedNormBackward(dx, dz, dy, x, z, weight tensor.Tensor, eps float32) error {
	return d.failed("gated norm backward", d.v.GatedNormBackward(view(dx), view(dz), view(dy), view(x), view(z), view(weight).At, eps))
}

func (d *device) SigmoidGate(y, x, gate tensor.Tensor) error {
	return d.failed("sigmoid gate", d.v.SigmoidGate(view(y), view(x), view(gate)))
}

func (d *device) SigmoidGateBackward(dx, dgate, dy, x, gate tensor.Tensor) error {
	return d.failed("sigmoid gate backward", d.v.SigmoidGateBackward(view(dx), view(dgate), view(dy), view(x), view(gate)))
}
