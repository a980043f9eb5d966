package dry

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// HasRecurrence implements tensor.Recurrence.
func (Device) HasRecurrence() bool { return true }

// HasRecurrence implements tensor.Recurrence: as package cuda does.
func (Remote) HasRecurrence() bool { return true }

// ConvBackward implements tensor.Recurrence.
func (r Remote) ConvBackward(_, _, x, weight tensor.Tensor, runs []tensor.StateRun) error {
	return r.takes(tensor.ConvBackwardScratch(x.Cols, weight.Rows, runs))
}

// DeltaRuleBackward implements tensor.Recurrence.
func (r Remote) DeltaRuleBackward(_, _, _, _ tensor.Tensor, in tensor.DeltaInputs, runs []tensor.StateRun) error {
	return r.takes(tensor.DeltaBackwardScratch(&in, runs))
}

// Conv implements tensor.Recurrence.
func (Device) Conv(_, _, _, _ tensor.Tensor, _ []tensor.StateRun) error { return nil }

// ConvBackward implements tensor.Recurrence.
func (Device) ConvBackward(_, _, _, _ tensor.Tensor, _ []tensor.StateRun) error { return nil }

// DeltaRule implements tensor.Recurrence.
func (Device) DeltaRule(_ tensor.Tensor, _ tensor.DeltaInputs, _ tensor.Tensor, _ []tensor.StateRun) error {
	return nil
}

// DeltaRuleBackward implements tensor.Recurrence.
func (Device) DeltaRuleBackward(_, _, _, _ tensor.Tensor, _ tensor.DeltaInputs, _ []tensor.StateRun) error {
	return nil
}

// GatedNorm implements tensor.Recurrence.
func (Device) GatedNorm(_, _, _, _ tensor.Tensor, _ float32) error { return nil }

// GatedNormBackward implements tensor.Recurrence.
func (Device) GatedNormBackward(_, _, _, _, _, _ tensor.Tensor, _ float32) error { return nil }

// SigmoidGate implements tensor.Recurrence.
func (Device) SigmoidGate(_, _, _ tensor.Tensor) error { return nil }

// SigmoidGateBackward implements tensor.Recurrence.
func (Device) SigmoidGateBackward(_, _, _, _, _ tensor.Tensor) error { return nil }
