package cuda

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// HasRecurrence implements tensor.Recurrence: there are no kernels for it yet, and models that need it are refused when they are loaded.
func (d *device) HasRecurrence() bool { return false }

func (d *device) withoutRecurrence(op string) error {
	return fmt.Errorf("%s: %s: this device has no kernel for it", d.Name(), op)
}

func (d *device) Conv(_, _, _, _ tensor.Tensor, _ []tensor.StateRun) error {
	return d.withoutRecurrence("conv")
}

func (d *device) ConvBackward(_, _, _, _ tensor.Tensor, _ []tensor.StateRun) error {
	return d.withoutRecurrence("conv backward")
}

func (d *device) DeltaRule(_ tensor.Tensor, _ tensor.DeltaInputs, _ tensor.Tensor, _ []tensor.StateRun) error {
	return d.withoutRecurrence("delta rule")
}

func (d *device) DeltaRuleBackward(_, _, _, _ tensor.Tensor, _ tensor.DeltaInputs, _ []tensor.StateRun) error {
	return d.withoutRecurrence("delta rule backward")
}

func (d *device) GatedNorm(_, _, _, _ tensor.Tensor, _ float32) error {
	return d.withoutRecurrence("gated norm")
}

func (d *device) GatedNormBackward(_, _, _, _, _, _ tensor.Tensor, _ float32) error {
	return d.withoutRecurrence("gated norm backward")
}

func (d *device) SigmoidGate(_, _, _ tensor.Tensor) error {
	return d.withoutRecurrence("sigmoid gate")
}

func (d *device) SigmoidGateBackward(_, _, _, _, _ tensor.Tensor) error {
	return d.withoutRecurrence("sigmoid gate backward")
}
