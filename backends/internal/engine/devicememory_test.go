package engine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart/shim"
	"github.com/tinsmith/tinsmith/plugins"
)

// One device's budget ends where its memory does, whatever the others have left, and the backend's counts the same bytes.
func TestBudgetsOfDevices(t *testing.T) {
	p := memoryPlan{limit: 300, devices: []deviceMemory{{name: "cuda:0", limit: 100, weights: 40}, {name: "cuda:1", limit: 200, weights: 40, cache: 30}}, weights: 80, cache: 30}
	all, homes := budgets(&p)
	if all.free() != 190 || homes[0].free() != 60 || homes[1].free() != 130 {
		t.Fatalf("free: %d, %d and %d", all.free(), homes[0].free(), homes[1].free())
	}
	err := homes[0].room(61)
	if !errors.Is(err, tensor.ErrMemory) || !strings.Contains(fmt.Sprint(err), "that the backend may take of cuda:0 (backend.memory_mib)") {
		t.Errorf("more than the device has: %v", err)
	}
	if err := errors.Join(homes[0].room(60), homes[1].room(130)); err != nil || all.free() != 0 {
		t.Errorf("%v; %d are left of all", err, all.free())
	}
	_ = homes[1].room(-30)
	if all.free() != 30 || homes[0].free() != 0 || homes[1].free() != 30 {
		t.Errorf("free after giving: %d, %d and %d", all.free(), homes[0].free(), homes[1].free())
	}
	all.limit.Store(270) // of a configuration that has changed
	if homes[1].take(1) || homes[1].used.Load() != 170 || all.used.Load() != 270 {
		t.Errorf("more than all have was taken: %d and %d", homes[1].used.Load(), all.used.Load())
	}
	one, same := budgets(&memoryPlan{limit: 10, devices: []deviceMemory{{limit: 10}}})
	if len(same) != 1 || same[0] != one {
		t.Error("one device has a budget beside the backend's")
	}
}

// The plan over several GPUs keeps to what each of them has: the fullest decides, and messages and the table name it.
func TestMemoryOfSeveralGPUs(t *testing.T) {
	const total, taken = 96 << 20, 48 << 20
	libraries := []string{shim.Require(t, shim.Options{})}
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	t.Setenv("FAKE_CUDA_MEMORY", strconv.Itoa(total))
	other, err := cuda.New(cuda.Options{Device: "cuda:1", Libraries: libraries}) // somebody else's work
	if err != nil {
		t.Fatal(err)
	}
	held, err := other.Alloc(tensor.Float32, taken/4/1024, 1024)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		other.Free(held)
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
	load := func(t *testing.T, plugin, section string) (*Engine, plugins.ModelInfo, error) {
		o := gpuOptions(plugin, libraries)
		e := New(o)
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		dir := t.TempDir()
		if err := writeModelOf(dir, shape{4096, 128, 256, 2, 4, 4, 32}, 4096); err != nil {
			t.Fatal(err)
		}
		info, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: []byte(section)}, nil)
		return e, info, err
	}
	for _, c := range []struct{ name, plugin, section string }{
		{"copies", pluginDataParallel, `{"devices": ["cuda:0", "cuda:1"], "max_batch": 4, "prefill_tokens": 64}`},
		{"shared-out weights", pluginDataParallel, `{"devices": ["cuda:0", "cuda:1"], "shard_base": true, "max_batch": 4, "prefill_tokens": 64}`},
		{"a cut", pluginTensorParallel, `{"devices": ["cuda:0", "cuda:1"], "max_batch": 4, "prefill_tokens": 64}`},
		{"one trains, one samples", pluginDataParallel, `{"devices": ["cuda:0"], "sample_devices": ["cuda:1"], "max_batch": 4, "prefill_tokens": 64}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, info, err := load(t, c.plugin, c.section)
			if err != nil {
				t.Fatal(err)
			}
			var p memoryPlan
			hook(t, e, func() { p = e.loaded.plan })
			var sum deviceMemory
			for i, d := range p.devices {
				if d.name != "cuda:"+strconv.Itoa(i) || d.rest()-d.training <= 0 || d.weights <= 0 {
					t.Errorf("shares of %+v", d)
				}
				sum.limit, sum.weights, sum.sampling, sum.cache, sum.training = sum.limit+d.limit, sum.weights+d.weights, sum.sampling+d.sampling, sum.cache+d.cache, sum.training+d.training
			}
			if len(p.devices) != 2 || p.devices[0].limit-p.devices[1].limit < taken*8/10 {
				t.Errorf("limits of %+v", p.devices)
			}
			if sum.limit != p.limit || sum.weights != p.weights || sum.sampling != p.sampling || sum.cache != p.cache || p.training-sum.training > 2 || sum.training > p.training {
				t.Errorf("the devices have %+v together, the plan is %+v", sum, p)
			}
			var rows []string
			for _, s := range info.Memory {
				if strings.HasPrefix(s.Name, "cuda:") && s.Bytes > 0 && strings.Contains(s.Detail, "keys and values") {
					rows = append(rows, s.Name)
				}
			}
			if fmt.Sprint(rows) != "[cuda:0 cuda:1]" {
				t.Errorf("the table has the devices %v", rows)
			}
		})
	}
	for _, c := range []struct {
		section, field, want string
		kind                 plugins.Kind
	}{
		{`{"devices": ["cuda:0", "cuda:1"], "kv_cache_tokens": 25000, "max_batch": 4, "prefill_tokens": 64}`, "backend.kv_cache_tokens", " of cuda:1; the limit is ", plugins.KindCapacity},
		{`{"devices": ["cuda:0", "cuda:1"], "memory_mib": 4}`, "backend.memory_mib", "take 4 MiB of cuda:0; the limit is 2 MiB (backend.memory_mib)", plugins.KindInvalid},
		{`{"devices": ["cuda:0", "cuda:1"], "memory_mib": 8}`, "backend.memory_mib", " of cuda:0; the limit is 4 MiB (backend.memory_mib)", plugins.KindInvalid},
	} {
		_, _, err := load(t, pluginDataParallel, c.section)
		var own *plugins.Error
		if !errors.As(err, &own) || own.Field != c.field || own.Kind != c.kind || !strings.Contains(own.Message, c.want) {
			t.Errorf("%s: %v, want %q", c.section, err, c.want)
		}
	}
}

// On devices with memory of their own passes keep their activations in half of what weights and cache leave, beside what adapters need or were given; on processors, whose memory others use, in no more than passes of the default
// size and the longest sequence take. What is configured holds on both.
func TestTrainingShare(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	t.Setenv("FAKE_CUDA_DEVICES", "8")
	t.Setenv("FAKE_CUDA_MAJOR", "8")
	plain, manyTokens := t.TempDir(), t.TempDir() // where the second one is cut, the first GPU has more for an adapter than for passes
	if err := errors.Join(writeModelOf(plain, shape{4096, 128, 256, 2, 4, 4, 32}, 4096), writeModelOf(manyTokens, shape{1 << 16, 64, 128, 1, 8, 8, 16}, 256)); err != nil {
		t.Fatal(err)
	}
	const gpus, processors, tight = "gpus", "processors", "tight"
	for _, c := range []struct{ name, plugin, section, what string }{
		{"a GPU", pluginSingle, `{"device": "cuda:0"}`, gpus},
		{"a GPU's limit", pluginSingle, `{"device": "cuda:0", "memory_mib": 900}`, gpus},
		{"a GPU whose context is set", pluginSingle, `{"device": "cuda:0", "max_context_length": 100, "kv_cache_tokens": 1024}`, gpus},
		{"copies on two", pluginDataParallel, `{"devices": ["cuda:0", "cuda:1"]}`, gpus},
		{"two copies on a GPU", pluginDataParallel, `{"devices": ["cuda:0", "cuda:0"]}`, gpus},
		{"three copies on two", pluginDataParallel, `{"devices": ["cuda:0", "cuda:0", "cuda:1"]}`, gpus},
		{"shared-out weights", pluginDataParallel, `{"devices": ["cuda:0", "cuda:1"], "shard_base": true}`, gpus},
		{"a cut", pluginTensorParallel, `{"devices": ["cuda:0", "cuda:1"]}`, gpus},
		{"copies of a cut", pluginDataParallel, `{"devices": [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]]}`, gpus},
		{"one trains, one samples", pluginDataParallel, `{"devices": ["cuda:0"], "sample_devices": ["cuda:1"]}`, gpus},
		{"adapters have less than half", pluginSingle, `{"device": "cuda:0", "adapter_memory_mib": 100}`, gpus},
		{"adapters have more than half", pluginSingle, `{"device": "cuda:0", "adapter_memory_mib": 600}`, "given"},
		{"adapters have more than half of two", pluginDataParallel, `{"devices": ["cuda:0", "cuda:1"], "adapter_memory_mib": 800}`, "given"},
		{"half is too little for passes of the default size", pluginSingle, `{"device": "cuda:0", "memory_mib": 60}`, tight},
		{"half would leave the first GPU too little for an adapter", pluginTensorParallel, `{"devices": ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"], "memory_mib": 1350, "max_batch": 4, "prefill_tokens": 4}`, "a step"},
		{"training's share is set", pluginSingle, `{"device": "cuda:0", "training_memory_mib": 77}`, "set"},
		{"training's share of a processor is set", pluginSingle, `{"device": "cpu", "memory_mib": 1024, "training_memory_mib": 77}`, "set"},
		{"a processor", pluginSingle, `{"device": "cpu", "memory_mib": 1024}`, processors},
		{"processors", pluginDataParallel, `{"devices": ["cpu", "cpu"], "memory_mib": 1024}`, processors},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := gpuOptions(c.plugin, libraries)
			if strings.Contains(c.section, "cpu") {
				o = testOptions()
				o.Plugin = c.plugin
			}
			e := New(o)
			t.Cleanup(func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
			dir := plain
			if c.what == "a step" {
				dir = manyTokens
			}
			if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Config: []byte(c.section)}, nil); err != nil {
				t.Fatal(err)
			}
			hook(t, e, func() {
				l, p := e.loaded, e.loaded.plan
				layout, err := l.referenceLayout(referenceRank)
				kept, keptErr := l.batchBytes(mostTokens, false)
				longest, longestErr := l.datumBytes(p.context, referenceRank, true)
				if err := errors.Join(err, keptErr, longestErr); err != nil {
					t.Fatal(err)
				}
				half := int64(math.MaxInt64)
				adapters := l.withOptimizer(layout)
				for i := range p.devices {
					d := &p.devices[i]
					half = min(half, d.whole(d.rest()/2))
					given := int64(float64(p.adapters) * float64(adapters[i]) / float64(adapters.total()))
					if left := d.rest() - d.training - given; c.what != "set" && left < -int64(len(adapters)) {
						t.Errorf("training has %d of %s and adapters %d, %d more than there is", d.training, d.name, given, -left)
					}
				}
				copies := int64(len(l.training))
				least := min(max(copies*kept, longest), half)
				var ok bool
				switch c.what {
				case gpus:
					ok = p.training == half && half > least
				case processors:
					ok = p.training == least && half > least
				case tight:
					ok = p.training == half && half < copies*kept
				case "given": // more than without the rule, and no more than adapters leave
					ok = p.training > least && p.training < half && p.adapters == l.config.AdapterMemory
				case "a step":
					ok = p.training > least && p.training < half
				case "set":
					ok = p.training == 77<<20
				}
				if !ok {
					t.Errorf("training has %d, passes of the default size take %d, half is %d; adapters have %d", p.training, copies*kept, half, p.adapters)
				}
				if need := l.adapters.stepBytes(layout); c.what != "set" && need > p.adapters {
					t.Errorf("a step of an adapter takes %d, and adapters have %d", need, p.adapters)
				}
				if c.what == gpus || c.what == processors {
					if p.batchTokens != mostTokens {
						t.Errorf("passes of %d tokens", p.batchTokens)
					}
					pass := training{replica: l.training[0], tokens: 2 * mostTokens, pages: pagesOf(make([]int32, 2*mostTokens)), rank: referenceRank, backward: true}
					if err := l.chooseRecompute(&pass); err != nil || pass.recompute != (c.what == processors) {
						t.Errorf("a pass of %d tokens is computed again: %v, %v", pass.tokens, pass.recompute, err)
					}
				}
			})
		})
	}
}

// What the message about a model that does not fit recommends fits, and it is never what was refused.
func TestWhatIsRecommendedFits(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	t.Setenv("FAKE_CUDA_DEVICES", "8")
	t.Setenv("FAKE_CUDA_MAJOR", "8")
	load := func(dir, plugin string, devices, each int, more string) error {
		o := gpuOptions(plugin, libraries)
		e := New(o)
		list := `"device": "cuda:0"`
		if plugin != pluginSingle {
			var names []string
			for i := range devices {
				names = append(names, fmt.Sprintf(`"cuda:%d"`, i))
			}
			list = `"devices": [` + strings.Join(names, ", ") + `]`
		}
		_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Config: fmt.Appendf(nil, `{%s, "memory_mib": %d, "max_batch": 16%s}`, list, devices*each, more)}, nil)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		return err
	}
	for name, s := range map[string]shape{"cut over 2 and 4": {8192, 128, 256, 2, 4, 4, 32}, "cut over 3": {8192, 192, 384, 2, 3, 3, 32}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := writeModelOf(dir, s, 1024); err != nil {
				t.Fatal(err)
			}
			for _, from := range []struct {
				plugin, more string
				devices      int
			}{{pluginSingle, "", 1}, {pluginTensorParallel, "", s.heads - 2*(1-s.heads%2)}, {pluginDataParallel, `, "shard_base": true`, 2}} {
				seen := map[string]bool{}
				for _, each := range []int{5, 6, 8, 12} {
					err := load(dir, from.plugin, from.devices, each, from.more)
					if err == nil {
						break
					}
					for _, way := range []struct{ said, plugin, more string }{{"; cut over %d devices", pluginTensorParallel, ""}, {"; shared out over %d (", pluginDataParallel, `, "shard_base": true`}} {
						for n := range maxRanks + 1 {
							said := fmt.Sprintf(way.said, n)
							if !strings.Contains(err.Error(), said) || seen[said] || n > 8 { // of which there are no more
								continue
							}
							seen[said] = true
							if way.plugin == from.plugin && n <= from.devices {
								t.Errorf("%d devices of %d MiB for %s: %v", from.devices, each, from.plugin, err)
							}
							if err := load(dir, way.plugin, n, each, way.more); err != nil {
								t.Errorf("%d devices of %d MiB for %s, which were recommended: %v", n, each, way.plugin, err)
							}
						}
					}
				}
				t.Logf("%s over %d: %v", from.plugin, from.devices, seen)
				if len(seen) == 0 && from.devices < s.heads {
					t.Errorf("%s: nothing was recommended", from.plugin)
				}
			}
		})
	}
}

// A datum as long as the context that the plan has chosen trains on GPUs too, which lend no pages, and where its parts are small enough to be rounded up.
func TestContextIsWhatTrainsOnGPUs(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	t.Setenv("FAKE_CUDA_MAJOR", "8")
	dir := t.TempDir()
	if err := writeModelOf(dir, shape{tinyVocabulary, 64, 1024, 1, 2, 2, 32}, 4096); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ plugin, section string }{
		{pluginSingle, `{"device": "cuda:0", "memory_mib": 36}`},
		{pluginTensorParallel, `{"devices": ["cuda:0", "cuda:1"], "memory_mib": 54}`},
		{pluginDataParallel, `{"devices": ["cuda:0", "cuda:1"], "memory_mib": 72}`},
	} {
		t.Run(c.plugin, func(t *testing.T) {
			o := gpuOptions(c.plugin, libraries)
			e := New(o)
			t.Cleanup(func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
			info, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "wide", Config: []byte(c.section), Scratch: t.TempDir()}, nil)
			if err != nil {
				t.Fatal(err)
			}
			n := info.MaxContextLength
			if row := info.Memory[len(info.Memory)-1]; n >= 4096 || row.Detail != fmt.Sprintf("%d tokens of the model's 4096: fits", n) {
				t.Errorf("%d tokens: %+v", n, row)
			}
			d := create(t, e, "a", 1, referenceRank)
			d.pass([]plugins.Datum{wholeDatum(rand.New(rand.NewPCG(32, 32)), n)})
			d.step()
		})
	}
}

// What adapters have on each GPU is counted there: masters and moments on the first, the matrices that passes read on all. Where the second one is full its matrices make room, and moments, which it has none of, stay.
func TestAdaptersOnSeveralGPUs(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	t.Setenv("FAKE_CUDA_MAJOR", "8")
	o := gpuOptions(pluginDataParallel, libraries)
	e := New(o)
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	dir := t.TempDir()
	if err := writeTiny(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Scratch: t.TempDir(), Config: []byte(`{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`)}, nil); err != nil {
		t.Fatal(err)
	}
	create(t, e, "a", 1, 4)
	var matrices int64
	hook(t, e, func() {
		l, a := e.loaded, e.runs["a"].latest
		matrices = a.weights.weights().PlaceBytes(1)
		var taken [2]int64
		for i := range taken {
			taken[i] = l.memories[i].used.Load() - l.plan.devices[i].fixed()
		}
		if matrices == 0 || taken[1] != matrices || taken[0]+taken[1] != l.adapters.used || l.adapters.used != a.weights.bytes+a.moments.bytes {
			t.Errorf("%v bytes are taken, %d of adapters; the matrices have %d", taken, l.adapters.used, matrices)
		}
		l.memories[1].limit.Store(l.memories[1].used.Load() + matrices - 1)
	})
	create(t, e, "b", 2, 4)
	hook(t, e, func() {
		l, a := e.loaded, e.runs["a"].latest
		if a.weights.content != nil || a.moments.content == nil || l.adapters.inFiles.Load() != a.weights.bytes || l.memories[1].free() != matrices-1 {
			t.Errorf("weights in memory: %v, moments: %v, %d bytes in files, %d free", a.weights.content != nil, a.moments.content != nil, l.adapters.inFiles.Load(), l.memories[1].free())
		}
	})
}

// A model that a GPU has no room for is refused with the figures: before its weights are read if that can be seen, and as a lack of memory, not as a mistake in its files, if it cannot.
func TestGPUWithoutRoom(t *testing.T) {
	const staging = 8 << 20
	for _, c := range []struct{ name, variable, value, field, want string }{
		{"less than the limit", "FAKE_CUDA_MEMORY", strconv.Itoa(staging + 2<<20), "backend.memory_mib", "the model's weights take 4 MiB; the limit is 64 MiB (backend.memory_mib), and 2 MiB are free; cut over 4 devices"},
		{"taken meanwhile", "FAKE_CUDA_FAIL", "cuMemAlloc_v2:3:2", "", "memory for the model's weights: load model: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			libraries := []string{shim.Require(t, shim.Options{})}
			t.Setenv("FAKE_CUDA_MAJOR", "8")
			t.Setenv(c.variable, c.value)
			o := gpuOptions(pluginSingle, libraries)
			e := New(o)
			dir := t.TempDir()
			if err := writeModelOf(dir, shape{4096, 128, 256, 2, 4, 4, 32}, 4096); err != nil {
				t.Fatal(err)
			}
			_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: []byte(`{"device": "cuda:0", "memory_mib": 64, "max_batch": 4, "prefill_tokens": 64}`)}, nil)
			var own *plugins.Error
			if !errors.As(err, &own) || own.Kind != plugins.KindCapacity || own.Field != c.field || !strings.Contains(own.Message, c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
