package engine

import "testing"

// TestWindowsOnRanks: layers that attend to a window have the bits of one device over ranks, on copies, and on copies that share the weights out.
func TestWindowsOnRanks(t *testing.T) {
	for _, name := range []string{"mistral-window", "qwen3-window"} {
		t.Run(name, func(t *testing.T) {
			dir, c := hybridGolden(t, name), cutModel{vocabulary: 96, steps: 2}
			want := trainAndSample(t, placeModel(t, dir, placement{plugin: "single", section: `{"threads": 1}`}, testOptions()), c)
			for _, p := range []placement{ranksOf(2, "float32"), copies[0], sharded[0]} {
				equalHistories(t, trainAndSample(t, placeModel(t, dir, p, testOptions()), c), want)
			}
		})
	}
}
