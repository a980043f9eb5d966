package model

import (
	"maps"
	"testing"
)

func TestMetricsOfLoads(t *testing.T) {
	loads := Loads(nil).Add(Loads{3, 0, 5, 0 /* layer 2 */, 2, 2, 2, 2}).Add(Loads{1, 0, 7, 0, 4, 4, 4, 4})
	want := map[string]float64{"e_frac_with_tokens:mean": (0.5 + 1) / 2, "e_frac_oversubscribed:mean": 0.125, "e_max_violation:mean": 1, "e_max_violation:max": 2, "e_min_violation:mean": -0.5}
	loads[4], loads[5], loads[6], loads[7] = 6, 6, 6, 6
	if got := loads.Metrics(4); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Loads(nil).Metrics(0); got != nil {
		t.Errorf("a model without experts: %v", got)
	}
}
