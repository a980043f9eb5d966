package engine

import "testing"

// Memory for logits grows with what there is beside weights, within bounds, by the device that has least, and where devices have memory of their own.
func TestLogitsBytes(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name            string
		stated, weights []int64
		want            int
	}{
		{"a processor", nil, []int64{gib}, 0},
		{"a small GPU", []int64{gib}, []int64{gib / 2}, leastLogits},
		{"weights leave nothing", []int64{gib}, []int64{2 * gib}, leastLogits},
		{"24 GiB", []int64{20 * gib}, []int64{2 * gib}, 18 * gib / 160},
		{"an H100", []int64{72 * gib}, []int64{16 * gib}, 56 * gib / 160},
		{"an H200", []int64{127 * gib}, []int64{16 * gib}, mostLogits},
		{"no bound", []int64{unlimited}, []int64{gib}, mostLogits},
		{"the one with least", []int64{72 * gib, 72 * gib, 40 * gib}, []int64{16 * gib, 32 * gib, gib}, 39 * gib / 160},
	} {
		if got := (memoryLimits{stated: c.stated}).logits(c.weights); got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.want)
		}
	}
}
