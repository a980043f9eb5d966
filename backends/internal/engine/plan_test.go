package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// startShape loads a model of random weights on a device with hooks.
func startShape(t *testing.T, s shape, context int, section string) (*Engine, *faulty) {
	t.Helper()
	var f *faulty
	o := testOptions()
	o.Registry = architectures.All()
	o.OpenDevice = func(c Config) (tensor.Device, error) {
		d, err := cpu.New(cpu.Options{Threads: c.Threads})
		f = &faulty{Device: d}
		return f, err
	}
	e := New(o)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	if err := writeModelOf(dir, s, context); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "random", Config: []byte(section), Scratch: t.TempDir()}, nil); err != nil {
		t.Fatal(err)
	}
	return e, f
}

// middling takes a few MiB for the activations of 100 tokens.
var middling = shape{tinyVocabulary, 128, 512, 4, 4, 2, 32}

// wholeDatum is one sequence for cross_entropy.
func wholeDatum(random *rand.Rand, n int) plugins.Datum {
	d := plugins.Datum{Tokens: randomTokens(random, n), Targets: randomTokens(random, n), K: 1, Weights: make([]float32, n)}
	for i := range d.Weights {
		d.Weights[i] = random.Float32()
	}
	return d
}

// Where the device has memory for a few data at once only, passes are cut smaller until they fit, and give the bits that they give in one piece. When there is more again, they grow.
func TestPassesAreCutSmaller(t *testing.T) {
	random := rand.New(rand.NewPCG(10, 10))
	var data [][]plugins.Datum
	for range 3 {
		var one []plugins.Datum
		for range 13 {
			one = append(one, wholeDatum(random, 40+random.IntN(40)))
		}
		data = append(data, one)
	}
	play := func(prepare func(e *Engine, f *faulty)) (weights []map[string][]float32, logprobs [][]float32, largest int) {
		e, f := startShape(t, middling, 1024, `{"recompute": "off", "threads": 1}`)
		hook(t, e, func() {
			f.gather = func(ids []int32) error { largest = max(largest, len(ids)); return nil }
		})
		var drivers []*driver
		for i := range data {
			drivers = append(drivers, create(t, e, fmt.Sprint("a", i), uint64(i), 4))
		}
		prepare(e, f)
		results := make([]plugins.ForwardBackwardResult, len(data))
		release := block(t, e, nil)
		var calls []func()
		for i, d := range drivers {
			calls = append(calls, func() { results[i] = d.pass(data[i]) })
		}
		calls = append(calls, func() {
			eventually(t, "all wait", func() bool { return e.status(time.Now()).QueuedTraining == len(data) })
			release()
		})
		together(calls...)
		for i, d := range drivers {
			d.step()
			weights = append(weights, d.weights())
			logprobs = append(logprobs, results[i].Logprobs...)
		}
		return weights, logprobs, largest
	}
	wantWeights, wantLogprobs, whole := play(func(*Engine, *faulty) {})
	noRoom := fmt.Errorf("no room in the test: %w", tensor.ErrMemory)
	for _, c := range []struct {
		name   string
		refuse func(f *faulty, refused func() error)
	}{
		{"at once", func(f *faulty, refused func() error) {
			f.alloc = func(bytes int) error {
				if bytes > 16<<20 {
					return refused()
				}
				return nil
			}
		}},
		{"when they are tried again alone", func(f *faulty, refused func() error) {
			broken, note := false, f.gather
			f.gather = func(ids []int32) error {
				if !broken {
					broken = true
					return errors.New("the device is on fire")
				}
				if len(ids) > 200 {
					return refused()
				}
				return note(ids)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused := 0
			gotWeights, gotLogprobs, largest := play(func(e *Engine, f *faulty) {
				hook(t, e, func() {
					c.refuse(f, func() error { refused++; return noRoom })
				})
			})
			if refused == 0 {
				t.Fatal("the device has refused nothing: the test shows nothing")
			}
			t.Logf("%d allocations refused; the largest pass had %d rows, without bounds %d", refused, largest, whole)
			for i := range wantWeights {
				equalTensors(t, fmt.Sprint("run ", i), gotWeights[i], wantWeights[i])
			}
			for i := range wantLogprobs {
				equalBits(t, fmt.Sprint("datum ", i), gotLogprobs[i], wantLogprobs[i])
			}
		})
	}
	bounded := passBound{}
	bounded.tooMuch(12)
	for range patience {
		bounded.through()
	}
	if bounded.grow(); bounded.data != 12 {
		t.Errorf("after %d passes with at most 6 data the bound is %d, want 12", patience, bounded.data)
	}
}

// An operation of more data than a bound lasts for comes to its end where the device never has memory for twice as many: a bound that grew in the middle of it would have it begin again and again.
func TestManyDataInSmallPasses(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 13))
	var data []plugins.Datum
	for range 5 * patience {
		data = append(data, wholeDatum(random, 2))
	}
	play := func(most int) (weights map[string][]float32, largest, passes int) {
		e, f := startShape(t, shape{tinyVocabulary, 16, 32, 1, 1, 1, 16}, 1024, `{"threads": 1}`)
		hook(t, e, func() {
			f.gather = func(ids []int32) error {
				if passes++; passes > 4*len(data) {
					return errors.New("the operation begins again and again")
				}
				if most > 0 && len(ids) > most {
					return fmt.Errorf("no room in the test: %w", tensor.ErrMemory)
				}
				largest = max(largest, len(ids))
				return nil
			}
		})
		d := create(t, e, "a", 1, 4)
		for range 2 { // the second one begins with a bound
			d.pass(data)
		}
		d.step()
		return d.weights(), largest, passes
	}
	want, whole, _ := play(0)
	got, largest, passes := play(5)
	t.Logf("%d passes of %d rows at most, without bounds %d", passes, largest, whole)
	equalTensors(t, "weights", got, want)
}

// One datum for which the activations cannot be kept is computed twice, with the same bits; one that does not fit even so is refused with the numbers, and its run goes on.
func TestDatumAlone(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 11))
	large, small := []plugins.Datum{wholeDatum(random, 10), wholeDatum(random, 1000)}, []plugins.Datum{wholeDatum(random, 20)}
	finish := func(e *Engine, d *driver) map[string][]float32 {
		d.pass(small)
		d.pass(large)
		d.step()
		return d.weights()
	}
	e, _ := startShape(t, middling, 1024, `{"threads": 1, "kv_cache_tokens": 1024}`)
	want := finish(e, create(t, e, "a", 1, 4))

	e, _ = startShape(t, middling, 1024, `{"threads": 1, "kv_cache_tokens": 1024}`)
	d := create(t, e, "a", 1, 4)
	bound := func(recompute bool, factor float64) (bytes int64) {
		hook(t, e, func() {
			l := e.loaded
			l.shrink()
			n, err := l.datumBytes(1000, 4, recompute)
			if err != nil {
				t.Fatal(err)
			}
			bytes = int64(float64(n) * factor)
			l.memory.limit.Store(l.memory.used.Load() + bytes)
			// The plan, made for more memory, keeps activations.
			l.plan.training = 1 << 40
		})
		return bytes
	}
	kept, again := bound(false, 1), bound(true, 1.3)
	if again >= kept*9/10 {
		t.Fatalf("computing again takes %d bytes, keeping %d: the test shows nothing", again, kept)
	}
	equalTensors(t, "computed again", finish(e, d), want)

	bound(true, 0.5)
	_, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Data: large, Loss: "cross_entropy"})
	var own *plugins.Error
	if !errors.As(err, &own) || own.Kind != plugins.KindCapacity || own.Field != "data[1]" || !strings.Contains(own.Message, "1000 tokens") || !strings.Contains(own.Message, "MiB") {
		t.Errorf("a datum that does not fit: %v", err)
	}
	d.pass(small)
	d.step()
}

// A datum as long as the context of 32,768 tokens trains, with activations kept and computed again, and the bits are equal.
func TestLongestDatum(t *testing.T) {
	if testing.Short() {
		t.Skip("attention over 32,768 tokens takes eight seconds of processor time: not with -short")
	}
	const longest = 32768
	random := rand.New(rand.NewPCG(12, 12))
	datum := wholeDatum(random, longest)
	var want map[string][]float32
	var logprobs []float32
	for _, recompute := range []string{"off", "on"} {
		e, _ := startShape(t, shape{tinyVocabulary, 16, 32, 1, 1, 1, 16}, longest, `{"recompute": "`+recompute+`"}`)
		d := create(t, e, "a", 1, 4)
		r := d.pass([]plugins.Datum{datum})
		d.step()
		got := d.weights()
		if want == nil {
			want, logprobs = got, r.Logprobs[0]
			continue
		}
		equalTensors(t, "weights", got, want)
		equalBits(t, "log-probabilities", r.Logprobs[0], logprobs)
	}
}

// The plan's shares stay within the limit, it chooses passes and recomputation by it, what is configured holds, and what cannot be is refused.
func TestMemoryPlan(t *testing.T) {
	dir := t.TempDir()
	if err := writeModelOf(dir, shape{4096, 256, 768, 8, 8, 4, 32}, 4096); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		section   string
		check     func(p memoryPlan) bool
		message   string // of the refusal
		recompute bool   // a pass of that many tokens computes its activations again
	}{
		{section: `{"memory_mib": 8192}`, check: func(p memoryPlan) bool {
			return p.batchTokens == mostTokens && p.cycleTokens == 32*mostTokens && p.positions == 1<<16
		}},
		{section: `{"memory_mib": 700}`, check: func(p memoryPlan) bool { return p.batchTokens < mostTokens && p.batchTokens >= leastKept }},
		{section: `{"memory_mib": 160}`, check: func(p memoryPlan) bool { return p.batchTokens <= mostTokens }, recompute: true},
		{section: `{"memory_mib": 400, "batch_tokens": 1000, "cycle_tokens": 5000, "recompute": "off", "kv_cache_tokens": 4096, "adapter_memory_mib": 33, "training_memory_mib": 44}`,
			check: func(p memoryPlan) bool {
				return p.batchTokens == 1000 && p.cycleTokens == 5000 && p.positions == 4096 && p.adapters == 33<<20 && p.training == 44<<20
			}},
		{section: `{"memory_mib": 20}`, message: "memory_mib"},
		{section: `{"memory_mib": 200, "kv_cache_tokens": 100000}`, message: "kv_cache_tokens"},
	} {
		t.Run(c.section, func(t *testing.T) {
			e := open(t)
			_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Config: []byte(c.section)}, nil)
			if c.message != "" {
				if err == nil || !strings.Contains(err.Error(), c.message) {
					t.Errorf("got %v, want %q", err, c.message)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			hook(t, e, func() {
				p := e.loaded.plan
				if sum := p.weights + p.sampling + p.cache + p.adapters + p.training; sum > p.limit && !strings.Contains(c.section, "adapter") {
					t.Errorf("the shares %+v are %d together", p, sum)
				}
				if !c.check(p) {
					t.Errorf("plan %+v", p)
				}
				kept, err := e.loaded.batchBytes(p.batchTokens, false)
				if again := kept > p.training; err != nil || again != c.recompute && p.recompute == RecomputeAuto {
					t.Errorf("passes of %d tokens are computed again: %v, %v", p.batchTokens, again, err)
				}
			})
		})
	}
}

// A model that does not fit is refused before its weights are read, with what they take and what they would take of each of several devices.
func TestModelDoesNotFit(t *testing.T) {
	of := func(s shape) string {
		dir := t.TempDir()
		if err := writeModelOf(dir, s, 1024); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	even, odd := of(shape{8192, 256, 768, 24, 8, 4, 32}), of(shape{8192, 192, 768, 6, 3, 3, 32})
	const none = "neither the plugin tensorparallel nor shard_base of the plugin dataparallel makes it fit up to 64 devices with as much each"
	for _, c := range []struct{ dir, plugin, section, want, not string }{
		{even, "single", `{"memory_mib": 50}`, "the model's weights take 80 MiB; the limit is 50 MiB (backend.memory_mib); cut over 2 devices with as much each (plugin tensorparallel) the weights take 40 MiB of each, and the sampler 6 MiB; " +
			"shared out over 4 (plugin dataparallel with shard_base: true) they take 20 MiB of each, layers that are put together 15 MiB, and the sampler 10 MiB; processors share one memory, so more of them make no room", ""},
		{even, "single", `{"memory_mib": 1}`, none, ""},
		{even, "single", `{"memory_mib": 42}`, "; cut over 4 devices", ""}, // two hold the weights, but not the sampler
		{even, "dataparallel", `{"devices": ["cpu", "cpu"], "shard_base": true, "memory_mib": 60}`, "the model's weights take 80 MiB; the limit is 60 MiB", "shared out over 2"},
		{even, "single", `{"memory_mib": 85}`, "the model's weights take 80 MiB and its sampler 10 MiB; the limit is 85 MiB (backend.memory_mib); cut over 2 devices", ""},
		{even, "single", `{"memory_mib": 85}`, "; the sampler is smaller with less than backend.max_batch 64 and backend.prefill_tokens 512", ""},
		{even, "tensorparallel", `{"devices": ["cpu", "cpu"], "memory_mib": 50}`, "; cut over 4 devices", "cut over 2 devices"},
		{odd, "single", `{"memory_mib": 15}`, "; cut over 3 devices", ""}, // neither two nor four cut it
		{odd, "tensorparallel", `{"devices": ["cpu", "cpu", "cpu"], "memory_mib": 2}`, none, "cut over"},
	} {
		o := testOptions()
		o.Plugin = c.plugin
		e := New(o)
		packed := false
		_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: c.dir, Config: []byte(c.section)}, func(p plugins.LoadProgress) { packed = packed || p.Stage == "pack" })
		if plugins.KindOf(err) != plugins.KindInvalid || !strings.Contains(fmt.Sprint(err), c.want) || c.not != "" && strings.Contains(fmt.Sprint(err), c.not) {
			t.Errorf("%s: %v\nwant %q, and not %q", c.section, err, c.want, c.not)
		}
		if packed != strings.Contains(fmt.Sprint(err), "its sampler") {
			t.Errorf("%s: weights were read: %v", c.section, packed)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The memory of training passes is given back after a while without any, and at once what was taken beyond the share of training.
func TestTrainingMemoryShrinks(t *testing.T) {
	e, _ := startShape(t, middling, 1024, `{"threads": 1}`)
	hook(t, e, func() { e.restAfter = time.Millisecond })
	d := create(t, e, "a", 1, 4)
	data := []plugins.Datum{wholeDatum(rand.New(rand.NewPCG(13, 13)), 900)}
	d.pass(data)
	held := func() (n int64) {
		hook(t, e, func() { n = e.loaded.trainingBytes() })
		return n
	}
	eventually(t, "the memory is given back", func() bool { return held() == 0 })
	hook(t, e, func() { e.restAfter = time.Hour })
	d.pass(data)
	if held() == 0 {
		t.Error("the memory was given back at once")
	}
	hook(t, e, func() { e.loaded.plan.training = 1 << 20 })
	d.pass(data)
	if n := held(); n != 0 {
		t.Errorf("%d bytes are held beyond the share of training", n)
	}
	d.step()
	kept := func() (kept bool) {
		hook(t, e, func() { _, kept = e.loaded.restsSince() })
		return kept
	}
	if !kept() {
		t.Error("a step freed a version, and nothing will give its memory back")
	}
	hook(t, e, func() { e.restAfter = time.Millisecond })
	eventually(t, "the memory of freed versions is given back", func() bool { return !kept() })
	if _, err := collect(context.Background(), e, ask("q", "a", []int32{1}, 1, 3)); err != nil {
		t.Error(err)
	}
}

// Where nobody has set a context it is as long as trains alone: a datum of that length does, in an operation of several, with an adapter of the rank that the plan is made for, and one page more does not fit where it was shortened.
// A context that was set stays, and what it cannot do is said.
func TestContextIsWhatTrains(t *testing.T) {
	dir := t.TempDir()
	const longest = 4096
	if err := writeModelOf(dir, middling, longest); err != nil {
		t.Fatal(err)
	}
	load := func(t *testing.T, plugin, section string) (*Engine, plugins.ModelInfo, string) {
		t.Helper()
		var log bytes.Buffer
		o := testOptions()
		o.Plugin, o.Log = plugin, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		e := New(o)
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		info, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "middling", Config: []byte(section), Scratch: t.TempDir()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e, info, log.String()
	}
	row := func(info plugins.ModelInfo) string {
		for _, s := range info.Memory {
			if s.Name == "longest datum" {
				return s.Detail
			}
		}
		return ""
	}
	// train gives the error of an operation whose last datum has so many tokens.
	train := func(t *testing.T, e *Engine, tokens int) error {
		random := rand.New(rand.NewPCG(31, 31))
		var data []plugins.Datum
		for range 7 {
			data = append(data, wholeDatum(random, 10))
		}
		d := create(t, e, "a", 1, referenceRank)
		_, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Data: append(data, wholeDatum(random, tokens)), Loss: "cross_entropy"})
		if err == nil {
			d.step()
		}
		return err
	}
	for _, c := range []struct {
		plugin, section string
		shortened       bool
	}{
		{pluginSingle, `{"memory_mib": 50}`, true},
		{pluginSingle, `{"memory_mib": 64}`, true},
		{pluginSingle, `{"memory_mib": 80}`, true},
		{pluginSingle, `{"memory_mib": 64, "kv_cache_tokens": 4096, "recompute": "on"}`, true},
		{pluginSingle, `{"memory_mib": 64, "recompute": "off"}`, true},
		{pluginSingle, `{"memory_mib": 300}`, false},
		{pluginDataParallel, `{"memory_mib": 64, "devices": ["cpu", "cpu"]}`, true},
		{pluginTensorParallel, `{"memory_mib": 64, "devices": ["cpu", "cpu"]}`, true},
	} {
		t.Run(c.plugin+" "+c.section, func(t *testing.T) {
			e, info, log := load(t, c.plugin, c.section)
			n := info.MaxContextLength
			t.Logf("%d tokens; %s %s", n, row(info), log)
			if c.shortened != (n < longest) || n < leastContext || n%tensor.PageSize != 0 || !strings.HasPrefix(row(info), fmt.Sprintf("%d tokens", n)) || !strings.HasSuffix(row(info), ": fits") || c.shortened != strings.Contains(row(info), "of the model's 4096") || log != "" {
				t.Errorf("%d tokens, %q, log %q", n, row(info), log)
			}
			hook(t, e, func() {
				l, p := e.loaded, e.loaded.plan
				p.devices = slices.Clone(p.devices)
				layout, err := l.referenceLayout(referenceRank)
				if err != nil {
					t.Fatal(err)
				}
				l.setCache(&p, p.positions, n+tensor.PageSize)
				if fits, need, most, err := l.datumFits(&p, layout); err != nil || c.shortened && fits {
					t.Errorf("a page more takes %d of %d bytes: %v", need, most, err)
				}
			})
			if err := train(t, e, n); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("set", func(t *testing.T) {
		e, info, log := load(t, pluginSingle, `{"memory_mib": 64, "max_context_length": 4096}`)
		if info.MaxContextLength != longest || strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "tokens=4096") || !strings.Contains(log, "limit=\"64 MiB\"") || !strings.Contains(row(info), "does not fit") {
			t.Errorf("%d tokens, %q, log %q", info.MaxContextLength, row(info), log)
		}
		if err := train(t, e, longest); !errors.Is(err, plugins.ErrTooLarge) {
			t.Errorf("a datum of that length: %v", err)
		}
	})
	t.Run("no adapter", func(t *testing.T) {
		_, info, log := load(t, pluginSingle, `{"memory_mib": 14}`)
		if info.MaxContextLength != leastContext || strings.Count(log, "no adapter of the rank") != 1 {
			t.Errorf("%d tokens, log %q", info.MaxContextLength, log)
		}
	})
	t.Run("changed", func(t *testing.T) {
		e, info, _ := load(t, pluginSingle, `{"memory_mib": 40}`)
		if _, err := e.Configure(t.Context(), plugins.ConfigureRequest{Config: []byte(`{"memory_mib": 60}`)}); err != nil {
			t.Fatal(err)
		}
		hook(t, e, func() {
			if n := e.loaded.plan.context; n != info.MaxContextLength {
				t.Errorf("the context is %d after it was %d", n, info.MaxContextLength)
			}
		})
	})
}
