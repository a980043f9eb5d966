package tinker

import (
	"encoding/json"
	"math"
	"testing"
)

// The SDK writes null for NaN and infinity: a value that was given never becomes the default.
func TestOptimizerSettingsThatAreNull(t *testing.T) {
	var p adamParams
	if err := json.Unmarshal([]byte(`{"learning_rate": null, "beta1": 0.5, "eps": 0}`), &p); err != nil {
		t.Fatal(err)
	}
	a := p.adam()
	if !math.IsNaN(a.LearningRate) {
		t.Errorf("learning_rate null is %v", a.LearningRate)
	}
	if a.Beta1 != 0.5 || a.Beta2 != 0.95 || a.Eps != 0 || a.WeightDecay != 0 || a.GradClipNorm != 0 {
		t.Errorf("%+v", a)
	}
	if err := json.Unmarshal([]byte(`{"beta2": "x"}`), &p); err == nil {
		t.Error("text for a number")
	}
}
