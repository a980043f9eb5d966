package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// createOnly makes an adapter as clients do, and nothing of it.
func createOnly(t testing.TB, e *Engine, id string, seed uint64, rank int) *driver {
	t.Helper()
	if _, err := e.CreateAdapter(t.Context(), plugins.CreateAdapterRequest{Adapter: id, Config: plugins.AdapterConfig{Rank: rank, Seed: seed, TrainAttention: true, TrainMLP: true, TrainUnembed: true}}); err != nil {
		t.Fatal(err)
	}
	return &driver{t: t, e: e, adapter: id}
}

// An adapter that nobody has used takes neither memory nor files, however many there are; and has the same bits whenever, and however often, its values are computed.
func TestUnusedAdaptersTakeNothing(t *testing.T) {
	e, f, scratch := startScratch(t)
	random := rand.New(rand.NewPCG(3, 4))
	data := randomData(random, 2, 20)
	made := create(t, e, "made", 7, 16)
	unused := createOnly(t, e, "unused", 7, 16)
	var used, inFiles int64
	figures := func() {
		hook(t, e, func() { used, inFiles = e.loaded.adapters.used, e.loaded.adapters.inFiles.Load() })
	}
	figures()
	before := used
	for i := range 50 {
		createOnly(t, e, fmt.Sprint("x", i), uint64(i), 16)
	}
	figures()
	if used != before || inFiles != 0 {
		t.Errorf("50 unused adapters take %d bytes of memory and %d in files", used-before, inFiles)
	}
	// It leaves the memory without a file, and comes back.
	limitTo(t, e, f, "made", 3)
	answer := func(id string) string {
		t.Helper()
		got, err := collect(t.Context(), e, ask("q"+id, id, []int32{1, 2, 3}, 1, 8))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(got.sequences[0].Tokens, got.sequences[0].Logprobs)
	}
	first := answer("unused")
	hook(t, e, func() {
		for {
			if moved, err := e.loaded.adapters.moveOut(0); err != nil || !moved {
				break
			}
		}
		if b := e.runs["unused"].latest.weights; b.content != nil || b.file != "" {
			t.Errorf("in memory: %v, file %q", b.content != nil, b.file)
		}
	})
	if again, want := answer("unused"), answer("made"); first != want || again != want {
		t.Errorf("sampled %s, then %s; one that was made at once gives %s", first, again, want)
	}
	for _, d := range []*driver{made, unused} {
		d.pass(data)
		d.step()
		d.pass(data)
		d.step()
	}
	equalTensors(t, "weights", unused.weights(), made.weights())
	for i := range 50 {
		if err := e.DeleteAdapter(t.Context(), fmt.Sprint("x", i)); err != nil {
			t.Fatal(err)
		}
	}
	figures()
	files, err := os.ReadDir(e.loaded.adapters.directory)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) > 4 {
		t.Errorf("%d files in %s are left of two adapters", len(files), scratch)
	}
}

// No cycle makes more than a few adapters, whatever their runs have ready: others have a turn between.
func TestFewAdaptersAreMadeInACycle(t *testing.T) {
	e, _, _ := startScratch(t)
	random := rand.New(rand.NewPCG(5, 6))
	data := randomData(random, 1, 10)
	const most, n = 4, 5*4 + 1
	old := create(t, e, "old", 1, 4)
	for _, kind := range []string{"steps", "passes"} {
		var all []*driver
		for i := range n {
			d := createOnly(t, e, fmt.Sprint(kind, i), uint64(i), 4)
			all = append(all, d)
			hook(t, e, func() { e.runs[d.adapter].latest.size = mostMade / most }) // as large ones are
		}
		release := block(t, e, nil)
		var group sync.WaitGroup
		var mu sync.Mutex
		cycles := map[int64]int{}
		note := func(cycle int64) {
			mu.Lock()
			defer mu.Unlock()
			cycles[cycle]++
		}
		for _, d := range all {
			group.Go(func() {
				if kind == "steps" {
					note(d.step().Execution.Cycle)
				} else {
					note(d.pass(data).Execution.Cycle)
				}
			})
		}
		var theirs int64
		group.Go(func() { theirs = old.step().Execution.Cycle })
		eventually(t, "all have come", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			ready := 0
			for _, r := range e.order {
				if r.ready() {
					ready++
				}
			}
			return ready == n+1
		})
		release()
		group.Wait()
		least := theirs
		for cycle, made := range cycles {
			least = min(least, cycle)
			if made > most {
				t.Errorf("%s: cycle %d made %d adapters", kind, cycle, made)
			}
		}
		if theirs > least {
			t.Errorf("%s: a run that was made before has its step in cycle %d, the first was %d", kind, theirs, least)
		}
		if len(cycles) != (n+most-1)/most {
			t.Errorf("%s: %d adapters were made in %d cycles", kind, n, len(cycles))
		}
	}
}

// A key whose new adapters would fill cycle after cycle does not keep another key's from its first pass, however long that is.
func TestAdaptersAreMadeByKey(t *testing.T) {
	e := &Engine{lastMade: map[string]int64{}}
	fresh := func(id, ops, key string) *run {
		r := script(id, ops)
		r.latest = &version{weights: &spillable{again: func(content) error { return nil }}, size: mostMade}
		for _, o := range r.queue.waiting {
			o.pass = &plugins.ForwardBackwardRequest{Share: plugins.Share{Key: key}}
		}
		return r
	}
	var runs []*run
	for i := range 20 {
		runs = append(runs, fresh(fmt.Sprint("crowd", i), "p", "crowd"))
	}
	runs = append(runs, fresh("other", "P", "other"))
	tag := 0.0
	for cycle := int64(1); cycle <= 2; cycle++ {
		var taken []series
		taken, tag = plan(runs, 1000, tag, e.turnToMake(runs))
		if len(taken) != 1 {
			t.Fatalf("cycle %d makes %d adapters", cycle, len(taken))
		}
		r := taken[0].run
		if r.id == "other" {
			return
		}
		e.makes(taken[0].passes[0].key(), cycle)
		runs = slices.DeleteFunc(runs, func(other *run) bool { return other == r })
		runs = slices.Insert(runs, 0, fresh(fmt.Sprint("more", cycle), "p", "crowd")) // there are always more
	}
	t.Error("the other key's adapter is not among the first two")
}
