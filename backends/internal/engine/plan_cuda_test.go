package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/parallel"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart/shim"
	"github.com/tinsmith/tinsmith/plugins"
)

// What a training pass takes of a GPU's driver is what the plan says, rows that products round included, and hardly less. With no more memory than that nothing is given back to the driver to make room for it, and shorter passes,
// whatever their lengths, ask the driver for nothing: what the pool has is theirs.
func TestPassOnCUDATakesWhatIsPlanned(t *testing.T) {
	dense := written(func(dir string) error { return writeModelOf(dir, shape{tinyVocabulary, 264, 2048, 1, 2, 1, 32}, 1024) })
	experts := func(t testing.TB) string { return writeMixtureOf(t, 0, mixtureShape{264, 264, 1, 5, 1024}) }
	for _, c := range []struct {
		name      string
		recompute Recompute
		model     func(t testing.TB) string
	}{
		{"kept", RecomputeOff, dense}, {"computed again", RecomputeOn, dense}, {"linear attention", RecomputeOff, written(denseHybrid.write)},
		{"experts", RecomputeOff, experts}, {"experts, computed again", RecomputeOn, experts}, {"gpt-oss", RecomputeOff, func(t testing.TB) string { return gptOSS{}.write(t) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "experts, computed again" && os.Getenv("E2E_LEVEL") != "all" {
				t.Skip("the others have both by themselves; E2E_LEVEL=all runs it")
			}
			passTakesWhatIsPlanned(t, c.recompute, c.model(t))
		})
	}
}

func passTakesWhatIsPlanned(t *testing.T, recompute Recompute, dir string) {
	const longest, rank = 96, 4
	libraries := []string{shim.Require(t, shim.Options{})}
	t.Setenv("FAKE_CUDA_LATE", "1")
	t.Setenv("FAKE_CUDA_FAIL", "")
	lost := 0
	o := testOptions()
	o.Registry = architectures.All()
	o.OpenDevice = func(c Config) (tensor.Device, error) {
		return cuda.New(cuda.Options{Device: c.Device, Libraries: libraries, Lost: func(error) { lost++ }})
	}
	e := New(o)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	section := fmt.Sprintf(`{"device": "cuda:0", "dtype": "bfloat16", "kv_cache_tokens": 1024, "max_batch": 4, "prefill_tokens": 16, "batch_tokens": %d, "recompute": %q}`, longest, recompute)
	if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "random", Config: []byte(section), Scratch: t.TempDir()}, nil); err != nil {
		t.Fatal(err)
	}
	hook(t, e, func() { e.restAfter = time.Hour })
	random := rand.New(rand.NewPCG(3, 3))
	d := create(t, e, "run", 1, rank)
	d.pass([]plugins.Datum{wholeDatum(random, 2)}) // the gradient is there from now on
	var need, within, taken int64
	free := func() (n int64) {
		hook(t, e, func() { n = freeMemory(e.loaded.device) })
		return n
	}
	hook(t, e, func() {
		l := e.loaded
		l.shrink()
		l.trim()
		m, err := l.measure(longest, rank, recompute == RecomputeOn)
		if err != nil {
			t.Fatal(err)
		}
		need, within = m.Reserved()+l.pagesBytes((longest+tensor.PageSize-1)/tensor.PageSize), m.Operations // as the longest datum is planned
		// The gradient of the datum is beside the one that it is added to.
		layout := e.runs["run"].layout
		gradient, err := l.gradientBytes(layout)
		if err != nil {
			t.Fatal(err)
		}
		gradient = tensor.OwnMemoryBytes(gradient) + 4<<10 // and what checks and lists take
		_ = os.Setenv("FAKE_CUDA_MEMORY", strconv.FormatInt(1<<30-freeMemory(l.device)+need+gradient, 10))
		_ = os.Setenv("FAKE_CUDA_FAIL", "cuMemFree_v2:1:719")
		need += gradient
	})
	t.Cleanup(func() { _ = os.Unsetenv("FAKE_CUDA_MEMORY") })
	before := free()
	d.pass([]plugins.Datum{wholeDatum(random, longest)})
	taken = before - free()
	t.Logf("%d bytes of %d that are planned, %d of them for operations", taken, need, within)
	if taken > need || taken <= need-within || lost != 0 {
		t.Errorf("%d bytes were taken and %d are planned, of which %d for operations; memory was given back %d times", taken, need, within, lost)
	}
	hook(t, e, func() { _ = os.Setenv("FAKE_CUDA_FAIL", "cuMemAlloc_v2:1:719") })
	for _, n := range []int{83, 65, 96} {
		d.pass([]plugins.Datum{wholeDatum(random, n)})
		if lost != 0 {
			t.Fatalf("a pass of %d tokens after one of %d asks the driver for memory", n, longest)
		}
	}
	hook(t, e, func() { _ = os.Setenv("FAKE_CUDA_FAIL", "") })
	d.step()
}

// What ranks exchange values through by NCCL is a share of the plan, and what they take: once, at the first pass, and no more for longer ones.
func TestExchangeIsPlanned(t *testing.T) {
	e := placeOnCUDA(t, placement{plugin: pluginTensorParallel, section: `{"devices": ["cuda:0", "cuda:1"], "comm": "nccl", "memory_mib": 900` + smallMemory + `}`}, 2)
	want := parallel.LinkBytes(2)
	var free [3][2]int64 // before the passes, and after each
	look := func(pass int) {
		hook(t, e, func() {
			for i, d := range e.loaded.homes.devices {
				free[pass][i] = freeMemory(d)
			}
		})
	}
	d := create(t, e, "run", 1, 2)
	random := rand.New(rand.NewPCG(3, 3))
	look(0)
	d.pass([]plugins.Datum{wholeDatum(random, 3)})
	look(1)
	d.pass([]plugins.Datum{wholeDatum(random, 90)})
	look(2)
	hook(t, e, func() {
		p := &e.loaded.plan
		if p.exchange != 2*want || p.fixed() != p.weights+p.sampling+p.cache+p.recorded+2*want || e.loaded.memory.used.Load() < p.fixed() {
			t.Errorf("%+v", p)
		}
		for i := range p.devices {
			at := &p.devices[i]
			if at.exchange != want || at.fixed() != at.weights+at.sampling+at.cache+at.recorded+want || at.fixed()+at.training > at.limit {
				t.Errorf("%+v", at)
			}
			if first, second := free[0][i]-free[1][i], free[1][i]-free[2][i]; first < want || second >= want {
				t.Errorf("%s: the first pass takes %d bytes, a longer one %d more; %d are planned for the exchange", at.name, first, second, want)
			}
		}
		if s := e.loaded.shares(); !slices.ContainsFunc(s, func(s plugins.MemoryShare) bool { return s.Name == "exchange" && s.Bytes == 2*want }) {
			t.Errorf("the table is %v", s)
		}
	})
	local := placeOnCUDA(t, placement{plugin: pluginTensorParallel, section: `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, 2)
	hook(t, local, func() {
		if n := local.loaded.plan.exchange; n != 0 {
			t.Errorf("%d bytes are planned for an exchange through each other's memory", n)
		}
	})
}

// What a sampler takes is within the plan, also where whole rows are gathered from ranks whose parts are not equal.
func TestSamplingTakesWhatIsPlanned(t *testing.T) {
	const vocabulary, memory = 4099, `, "kv_cache_tokens": 1024, "max_batch": 24, "prefill_tokens": 24, "dtype": "float32"`
	dir := t.TempDir()
	if err := writeModel(dir, shape{vocabulary, 32, 48, 1, 2, 2, 16}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		placement
		gpus int
	}{
		{placement{"a processor", pluginSingle, `{"device": "cpu"` + memory + `}`}, 0},
		{placement{"two ranks on processors", pluginTensorParallel, `{"devices": ["cpu", "cpu"]` + memory + `}`}, 0},
		{placement{"a GPU", pluginSingle, `{"device": "cuda:0"` + memory + `}`}, 1},
		{placement{"two GPUs", pluginTensorParallel, `{"devices": ["cuda:0", "cuda:1"]` + memory + `}`}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := testOptions()
			if c.gpus > 0 {
				o = optionsOnCUDA(t, c.gpus, cuda.New)
			}
			e := placeModel(t, dir, c.placement, o)
			random := rand.New(rand.NewPCG(3, 3))
			var calls []func()
			for i := range 6 { // together as many sequences as are drawn at once
				q := ask(fmt.Sprint(i), "", randomTokens(random, 25), 4, 8)
				q.Version, q.TopP = 0, 0.9
				calls = append(calls, func() {
					if _, err := collect(t.Context(), e, q); err != nil {
						t.Error(err)
					}
				})
			}
			together(calls...)
			hook(t, e, func() {
				l, c := e.loaded, e.loaded.config
				r := l.sampling[0]
				layout, err := l.referenceLayout(referenceRank)
				if err != nil {
					t.Fatal(err)
				}
				planned, err := r.models[0].MeasureForward(c.PrefillTokens+c.MaxBatch, c.MaxBatch, layout)
				if err != nil {
					t.Fatal(err)
				}
				if all := int64(len(r.models)) * planned.Bytes(); l.plan.sampling != all {
					t.Errorf("%d bytes are planned, %d measured", l.plan.sampling, all)
				}
				for rank, w := range r.sampler.workspaces {
					if n := w.Peak(); n.Scratch > planned.Scratch || n.Kept > planned.Kept || 3*n.Scratch < planned.Scratch {
						t.Errorf("rank %d takes %+v, planned are %+v", rank, n, planned)
					}
				}
			})
		})
	}
}

// limited notes how much memory a device may keep recorded work in.
type limited struct {
	tensor.Device
	tensor.OwnMemory
	tensor.Recorder
	limits *[]int64
}

func (l limited) LimitRecorded(bytes int64) {
	*l.limits = append(*l.limits, bytes)
	l.Recorder.LimitRecorded(bytes)
}

// What GPUs keep recorded steps in is a share of the plan, taken from the beginning, and the devices keep to it; processors have none.
func TestRecordedStepsArePlanned(t *testing.T) {
	var limits []int64
	e := placeOpened(t, placement{plugin: pluginSingle, section: `{"device": "cuda:0", "memory_mib": 500` + smallMemory + `}`}, 1, func(o cuda.Options) (tensor.Device, error) {
		d, err := cuda.New(o)
		if err != nil {
			return nil, err
		}
		return limited{d, d.(tensor.OwnMemory), d.(tensor.Recorder), &limits}, nil
	})
	const want = 5 << 20
	hook(t, e, func() {
		p := e.loaded.plan
		if p.recorded != want || p.fixed() != p.weights+p.sampling+p.cache+want || p.fixed()+p.training+p.adapters > p.limit || e.loaded.memory.used.Load() != p.fixed()+e.loaded.adapters.used {
			t.Errorf("%+v", p)
		}
	})
	if len(limits) != 1 || limits[0] != want {
		t.Errorf("the device was told %v, want %d", limits, want)
	}
	rows := func(e *Engine) (n int64) {
		for _, s := range e.loaded.shares() {
			if s.Name == "recorded steps" {
				n += s.Bytes
			}
		}
		return n
	}
	var told int64
	hook(t, e, func() { told = rows(e) })
	if told != want {
		t.Errorf("the table has %d bytes", told)
	}
	if _, err := e.Configure(t.Context(), plugins.ConfigureRequest{Config: []byte(`{"device": "cuda:0", "memory_mib": 900` + smallMemory + `}`)}); err != nil {
		t.Fatal(err)
	}
	hook(t, e, func() {
		if p := e.loaded.plan; p.recorded != want || p.devices[0].recorded != want {
			t.Errorf("after the limit has changed: %+v", p)
		}
	})
	if n := recordedShare(64<<30, 2); n != 256<<20 {
		t.Errorf("two devices of a large GPU have %d bytes", n)
	}
	processor := place(t, placement{plugin: pluginSingle, section: `{"threads": 1, "memory_mib": 500}`})
	hook(t, processor, func() { told = rows(processor) })
	if told != 0 {
		t.Errorf("a processor has %d bytes for recorded steps", told)
	}
}
