package nn

import "testing"

// Steps of gradients end where a group of positions does: at multiples of 16 of a position and at ends of sequences; without positions anywhere.
func TestGroupEnd(t *testing.T) {
	var positions []int32
	for _, n := range []int32{40, 5, 20} {
		for p := range n {
			positions = append(positions, p)
		}
	}
	for _, c := range []struct{ from, to, want int }{{0, 16, 16}, {0, 31, 16}, {16, 33, 32}, {0, 15, 0}, {32, 39, 32}, {32, 40, 40}, {32, 44, 40}, {40, 45, 45}, {45, 60, 45}, {45, 61, 61}, {45, 64, 61}} {
		if got := groupEnd(positions, c.from, c.to); got != c.want {
			t.Errorf("rows from %d to %d: a step ends at %d, want %d", c.from, c.to, got, c.want)
		}
	}
	if got := groupEnd(nil, 3, 7); got != 7 {
		t.Errorf("without positions a step ends at %d, want 7", got)
	}
}
