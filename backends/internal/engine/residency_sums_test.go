package engine

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/plugins"
)

// A sample whose adapter has no room beside what an operation sums between its passes waits for the operation; it does not fail.
func TestSampleBesideSums(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 7))
	e, _, _ := startScratch(t)
	d, large := create(t, e, "a", 1, 4), create(t, e, "b", 2, 64)
	saved := large.save(plugins.ScopeWeights)
	if err := e.DeleteAdapter(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "b", Path: saved, Frozen: true}); err != nil {
		t.Fatal(err)
	}
	hook(t, e, func() {
		m := e.loaded.adapters
		m.limit = m.weightBytes(e.runs["b"].layout) + lora.ParameterBytes(e.runs["a"].layout)/2
		if err := m.trim(); err != nil {
			t.Error(err)
		}
		e.loaded.plan.batchTokens, e.interval, e.turn = 20, 0, 0 // a pass of each datum, and a turn of the sampler behind it
	})
	var data []plugins.Datum
	for range 16 {
		data = append(data, wholeDatum(random, 20))
	}
	release := block(t, e, nil)
	together(func() { d.pass(data) }, func() {
		if _, err := collect(t.Context(), e, ask("q", "b", []int32{1, 2, 3}, 1, 4)); err != nil {
			t.Error(err)
		}
	}, func() {
		eventually(t, "both wait", func() bool { s := e.status(time.Now()); return s.QueuedTraining == 1 && s.WaitingSamples == 1 })
		release()
	})
}

// Copies sum operations of several runs at once. Where memory does not hold all of the sums, none is refused for those of others, and each gives what it gives with room for all.
func TestSumsOfOthers(t *testing.T) {
	const runs, rank, rounds = 4, 16, 4
	play := func(tight bool) (saved []map[string][]byte) {
		e, _, _ := startScratchOn(t, placement{plugin: "dataparallel", section: `{"plugin": "dataparallel", "devices": ["cpu", "cpu", "cpu"], "threads": 2}`})
		drivers := make([]*driver, runs)
		for i := range drivers {
			drivers[i] = create(t, e, fmt.Sprint("r", i), uint64(i), rank)
		}
		if tight {
			hook(t, e, func() {
				e.loaded.plan.batchTokens = 64 // several passes for each operation
				e.loaded.adapters.limit = e.loaded.adapters.stepBytes(e.runs["r0"].layout)
				if err := e.loaded.adapters.trim(); err != nil {
					t.Error(err)
				}
			})
		}
		for round := range rounds {
			var wait []func() float64
			release := block(t, e, nil)
			for i, d := range drivers {
				random := rand.New(rand.NewPCG(uint64(round), uint64(i)))
				for range 2 { // the second is added to the first
					wait = append(wait, d.passCycle(randomData(random, 20+random.IntN(20), 30)))
				}
			}
			release()
			for _, w := range wait {
				w()
			}
			for _, d := range drivers {
				d.step()
			}
		}
		for _, d := range drivers {
			saved = append(saved, archive(t, d.save(plugins.ScopeOptimizer)))
		}
		return saved
	}
	want, got := play(false), play(true)
	for i := range want {
		for name, content := range want[i] {
			if !bytes.Equal(content, got[i][name]) {
				t.Errorf("run %d: %s differs", i, name)
			}
		}
	}
}

// A pass is through, but beside what another sums there is no room for the gradient that its own is added to: it has a cycle for itself then, whether the other is of its own run or not.
func TestGradientBesideSums(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 7))
	first, one := []plugins.Datum{wholeDatum(random, kvcache.PageSize)}, []plugins.Datum{wholeDatum(random, kvcache.PageSize)}
	var many []plugins.Datum
	for range 16 {
		many = append(many, wholeDatum(random, kvcache.PageSize))
	}
	for _, other := range []string{"a", "b"} {
		t.Run("sums of "+other, func(t *testing.T) {
			play := func(tight bool) map[string][]float32 {
				e, f, _ := startScratch(t)
				drivers := map[string]*driver{"a": create(t, e, "a", 1, 16), "b": create(t, e, "b", 2, 16)}
				d := drivers["a"]
				d.pass(first)
				hook(t, e, func() {
					m := e.loaded.adapters
					e.loaded.plan.batchTokens = 16 * kvcache.PageSize // that of a, and all but one of the others: four gradients are summed behind it
					layout := e.runs["a"].layout
					for moved := true; moved; {
						var err error
						if moved, err = m.moveOut(0); err != nil {
							t.Error(err)
						}
					}
					f.gather = func(ids []int32) error {
						if m.limit = unlimited; tight && len(ids) == 16*kvcache.PageSize {
							m.limit = 11 * lora.ParameterBytes(layout) / 2 // with that of a five are in memory
						}
						return nil
					}
				})
				release := block(t, e, nil)
				wait := d.passCycle(one)
				waitOther := drivers[other].passCycle(many)
				release()
				cycle, others := wait(), waitOther()
				if want := map[string]int{"a": -1, "b": 1}[other]; tight && cmp.Compare(cycle, others) != want || !tight && cycle != others {
					t.Errorf("room for all: %v, but a's pass was in cycle %v, that of %s in %v", !tight, cycle, other, others)
				}
				hook(t, e, func() { e.loaded.adapters.limit = unlimited })
				d.step()
				return d.weights()
			}
			equalTensors(t, "weights", play(true), play(false))
		})
	}
}
