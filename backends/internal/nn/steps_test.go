package nn

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// recording is a device that computes nothing and remembers what attention's backward pass was asked for.
type recording struct {
	dry.Device
	calls [][]tensor.AttentionRun
}

func (r *recording) AttentionBackward(_, _, _, _, _, _, _ tensor.Tensor, _ tensor.Pages, _ int, runs []tensor.AttentionRun, _ int, _ float32) error {
	r.calls = append(r.calls, append([]tensor.AttentionRun(nil), runs...))
	return nil
}

// However long sequences are, a step of attention's backward pass is no more work than was asked for, or the least that there is; and the steps together are all keys and the rows that see them, in the order in which the device goes on
// with its sums.
func TestAttentionBackwardInSteps(t *testing.T) {
	const heads, headDim = 16, 128
	each := 2.5 * attentionWork(heads, headDim) // of a row and a key
	for _, c := range []struct {
		counts []int
		work   float64
	}{
		{[]int{1}, 1e9}, {[]int{64, 1, 65}, 1e9}, {[]int{32768}, 8e9}, {[]int{8192, 100, 5000}, 3e9}, {[]int{4097}, 1}, {[]int{10000}, 1e18},
	} {
		t.Run(fmt.Sprintf("%v by %.0e", c.counts, c.work), func(t *testing.T) {
			d := &recording{}
			p := &Pass{Device: d, StepWork: c.work}
			row := 0
			for _, n := range c.counts {
				p.Runs = append(p.Runs, tensor.AttentionRun{Row: row, Count: n})
				row += n
			}
			q := tensor.Tensor{Rows: row, Cols: heads * headDim}
			if err := p.attentionBackward(&Attention{Heads: heads, Scale: 1}, q, q, q, q, q, q, q); err != nil {
				t.Fatal(err)
			}
			least := each * tensor.PageSize * leastRowsBackward
			next := map[int][]int{} // by a sequence's first row, the next row of each page of keys
			for i, call := range d.calls {
				work, seen := 0.0, map[int]bool{}
				for _, r := range call {
					if seen[r.Row] {
						t.Fatalf("call %d has the sequence at row %d twice", i, r.Row)
					}
					seen[r.Row] = true
					pages := next[r.Row]
					if pages == nil {
						for from := 0; from < r.Count; from += tensor.PageSize {
							pages = append(pages, from)
						}
						next[r.Row] = pages
					}
					for from := r.KeysFrom; from < r.KeysTo; from += tensor.PageSize {
						page := from / tensor.PageSize
						if page > 0 && pages[page-1] < r.RowsTo {
							t.Fatalf("call %d: rows to %d see keys from %d before those from %d", i, r.RowsTo, from, from-tensor.PageSize)
						}
						if pages[page] != max(r.RowsFrom, from) {
							t.Fatalf("call %d: keys from %d with rows from %d, want %d", i, from, r.RowsFrom, pages[page])
						}
						pages[page] = r.RowsTo
						rows := float64(r.RowsTo - max(r.RowsFrom, from))
						work += each * rows * float64(min(tensor.PageSize, r.Count-from))
					}
				}
				if work > 1.2*c.work && work > 1.2*least {
					t.Errorf("call %d is %.1e operations: %.1e were asked for, the least is %.1e", i, work, c.work, least)
				}
			}
			for _, r := range p.Runs {
				for page, row := range next[r.Row] {
					if row != r.Count {
						t.Errorf("keys from %d of the sequence of %d: rows from %d on are missing", page*tensor.PageSize, r.Count, row)
					}
				}
			}
		})
	}
}

// Runs with states go in order, each whole and once, and no more at a time than reach a step's work.
func TestStateRunsInSteps(t *testing.T) {
	for _, c := range []struct {
		counts []int
		work   float64
		want   []int // runs of each step
	}{
		{[]int{3, 1, 2}, 0, []int{3}},
		{[]int{3, 1, 2}, 1e9, []int{3}},
		{[]int{3, 1, 2, 9, 1}, 40, []int{2, 2, 1}},
		{[]int{100, 1, 100}, 40, []int{1, 2}},
		{[]int{1, 1, 1}, 1, []int{1, 1, 1}},
		{nil, 40, nil},
	} {
		yields := 0
		p := &Pass{Device: &recording{}, StepWork: c.work, Yield: func() error { yields++; return nil }}
		row := 0
		for _, n := range c.counts {
			p.StateRuns = append(p.StateRuns, tensor.StateRun{Row: row, Count: n, Slot: tensor.NoSlot})
			row += n
		}
		var all []tensor.StateRun
		var steps []int
		if err := p.stateRuns(10, func(runs []tensor.StateRun) error {
			all, steps = append(all, runs...), append(steps, len(runs))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(all, p.StateRuns) || !slices.Equal(steps, c.want) {
			t.Errorf("%v by %v: steps of %v runs, want %v; runs %v", c.counts, c.work, steps, c.want, all)
		}
		full := 0 // steps that reach the work, counting what was left of those before
		work := 0.0
		for i, n := 0, 0; n < len(steps); n++ {
			for range steps[n] {
				work += 10 * float64(c.counts[i])
				i++
			}
			if c.work > 0 && work >= c.work {
				full, work = full+1, 0
			}
		}
		if yields != full {
			t.Errorf("%v by %v: %d yields, want %d", c.counts, c.work, yields, full)
		}
	}
}
