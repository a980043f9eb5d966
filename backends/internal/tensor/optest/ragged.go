package optest

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// raggedLengths are the numbers of rows at which blocks of 64 begin, end and are one short.
var raggedLengths = []int{1, 63, 64, 65}

// RunRagged checks every operation against the reference at the lengths where a cut into blocks goes wrong most easily: one row, one less than a block, a block, one more; batches with empty
// sequences and sequences of one row between others; and 1, 2 and 17 adapters, some of them without rows. What has no such length is run as RunAll runs it, so that no operation is left out of what a caller
// changes between one RunRagged and the next, such as the order of threads.
func RunRagged(t *testing.T, d tensor.Device, o Options) {
	for _, rows := range raggedLengths {
		t.Run(fmt.Sprintf("%d rows", rows), func(t *testing.T) {
			around := []int{0, 1, rows, 0, 5, 1} // a sequence of that length, and what must not disturb it
			attention := []attentionShape{{around, 4, 2, 24, tensor.Float32}, {around, 4, 2, 64, tensor.BFloat16}, {around, 3, 1, 128, tensor.BFloat16}, {around, 2, 1, 64, tensor.Float32}, {around, 2, 1, 128, tensor.Float32},
				{around, 2, 1, 256, tensor.BFloat16}, {around, 2, 1, 256, tensor.Float32}}
			heads := []headsShape{{attention[0], 16, true}, {attention[1], 64, true}, {attention[2], 128, false}, {attention[5], 64, true}}
			if o.Slow && rows > 1 && rows < 65 {
				attention, heads = attention[:5], heads[:3]
			}
			windows := []windowed{{attention[0], 20}, {attention[1], 64}, {attention[2], 33}}
			kinds := [][]testCase{
				windowedCases(windows, o), clampedCases([][2]int{{rows, 40}, {rows, 300}}),
				productCases([]shape{{rows, 65, 33}, {rows, 33, 65}}), rowCases([][2]int{{rows, 40}, {rows, 300}}, []ropeShape{{rows, 2, 64, 64}}),
				attentionCases(attention, o), lossCases([][3]int{{rows, 513, 2}}), optimizerCases([][2]int{{rows, 65}}),
			}
			if d.HasRecurrence() {
				kinds = append(kinds, convCases([]convShape{{around, 40, 4}}), gateCases([][2]int{{rows, 40}, {rows, 300}}),
					deltaCases([]deltaShape{{around, 2, 4, 20, 24, 0}, {around, 1, 1, 128, 40, 0}, {around, 1, 1, 200, 8, 0}}))
			}
			for _, c := range kinds {
				for _, c := range c {
					t.Run(c.name, func(t *testing.T) { c.check(t, d) })
				}
			}
			if f, ok := d.(tensor.Fuser); ok {
				fused(t, f, d, [][2]int{{rows, 40}, {rows, 300}}, heads)
			}
		})
	}
	for _, adapters := range []int{1, 2, 17} {
		c := groupCase{name: fmt.Sprintf("%d adapters", adapters)}
		at := 0
		for i := range adapters {
			n := []int{64, 65, 0, 1, 63}[i%5]
			c.groups = append(c.groups, adapterRows{at, at + n, []int{8, 33, 1, 16}[i%4]})
			at += n + i%2 // a row of nobody behind every other one
		}
		groupsOf(t, d, []groupCase{c})
	}
	t.Run("layers with one input", func(t *testing.T) { layers(t, d, layersCases()) })
	t.Run("long sequences", func(t *testing.T) {
		for _, c := range longAttentionCases(o) {
			t.Run(c.name, func(t *testing.T) { c.check(t, d) })
		}
		if !o.Slow {
			longCuts(t, d, o)
		}
	})
	t.Run("many rows", func(t *testing.T) { // for which devices may have other products, as for many columns of them
		for _, c := range productCases([]shape{{129, 260, 33}, {129, 33, 260}, {130, 512, 260}, {130, 260, 512}}) {
			t.Run(c.name, func(t *testing.T) { c.check(t, d) })
		}
	})
	t.Run("packing", func(t *testing.T) { packing(t, d) })
	t.Run("packing at once", func(t *testing.T) { repacking(t, d) })
	t.Run("page copies", func(t *testing.T) { pageCopies(t, d) })
	routed := []mixture{{5, 2, 40, 33, 70}, {65, 1, 2, 97, 64}, {300, 1, 1, 40, 33}} // few rows for each expert, more, and many
	for _, c := range append(expertCases(routed, o), biasCases(routed)...) {
		t.Run(c.name, func(t *testing.T) { c.check(t, d) })
	}
	if d.HasE4M3() {
		t.Run("eight bits", func(t *testing.T) { RunE4M3(t, d, Options{Slow: true}) })
	}
	if own, ok := d.(tensor.Drawer); ok {
		t.Run("drawing", func(t *testing.T) { drawing(t, own, d, []int{1500}) }) // more columns than a block has threads
	}
	if own, ok := d.(tensor.Differentiator); ok {
		t.Run("derivatives of losses", func(t *testing.T) { derivatives(t, own, d) })
	}
}
