package engine

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
)

// placement is a plugin and its section.
type placement struct{ name, plugin, section string }

var copies = []placement{
	{"2 copies", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu", "cpu"], "threads": 2}`},
	{"3 copies in small batches", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu", "cpu", "cpu"], "threads": 3, "batch_tokens": 24, "prefill_tokens": 7}`},
	{"1 copy", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu"]}`},
	{"11 copies", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu"], "threads": 2}`},
}

var sharded = []placement{
	{"2 copies with shared-out weights", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu", "cpu"], "shard_base": true, "threads": 2}`},
	{"3 copies with shared-out weights in small batches", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu", "cpu", "cpu"], "shard_base": true, "threads": 3, "batch_tokens": 24, "prefill_tokens": 7, "recompute": "on"}`},
	{"two train and three sample, each with shared-out weights", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu", "cpu"], "sample_devices": ["cpu", "cpu", "cpu"], "shard_base": true, "threads": 2}`},
}

var cuts = []placement{
	{"2 ranks", "tensorparallel", `{"plugin": "tensorparallel", "devices": ["cpu", "cpu"], "threads": 2}`},
	{"4 ranks, each key head on two", "tensorparallel", `{"plugin": "tensorparallel", "devices": ["cpu", "cpu", "cpu", "cpu"], "threads": 4, "batch_tokens": 24, "prefill_tokens": 7}`},
	{"2 copies of 2 ranks", "dataparallel", `{"plugin": "dataparallel", "devices": [["cpu", "cpu"], ["cpu", "cpu"]], "threads": 4}`},
	{"3 copies of 2 ranks with shared-out weights", "dataparallel", `{"plugin": "dataparallel", "devices": [["cpu", "cpu"], ["cpu", "cpu"], ["cpu", "cpu"]], "shard_base": true, "threads": 6}`},
}

var splits = []placement{
	{"one device trains, one samples", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu"], "sample_devices": ["cpu"], "threads": 2}`},
	{"two copies train, three sample", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu", "cpu"], "sample_devices": ["cpu", "cpu", "cpu"], "threads": 2}`},
}

var mixed = []placement{
	{"a cut model trains, copies sample", "tensorparallel", `{"plugin": "tensorparallel", "devices": ["cpu", "cpu"], "sample_devices": ["cpu", "cpu"], "sample_plugin": "dataparallel", "threads": 4}`},
	{"a copy trains, a cut model samples", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu"], "sample_devices": ["cpu", "cpu"], "sample_plugin": "tensorparallel", "threads": 3}`},
	{"a cut model trains, another one samples", "tensorparallel", `{"plugin": "tensorparallel", "devices": ["cpu", "cpu"], "sample_devices": ["cpu", "cpu"], "threads": 4}`},
}

// place loads the test model as a placement says.
func place(t testing.TB, p placement) *Engine {
	t.Helper()
	return placeWith(t, p, testOptions())
}

func placeWith(t testing.TB, p placement, o Options) *Engine {
	t.Helper()
	dir := t.TempDir()
	if err := writeTiny(dir); err != nil {
		t.Fatal(err)
	}
	return placeModel(t, dir, p, o)
}

// placeModel loads the model of a directory as a placement says.
func placeModel(t testing.TB, dir string, p placement, o Options) *Engine {
	t.Helper()
	o.Plugin = p.plugin
	e := New(o)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: []byte(p.section)}, nil); err != nil {
		t.Fatal(err)
	}
	return e
}

// A rank of a cut model gathers the rows of all of a pass's tokens at once, whichever ranks have them.
func TestRanksGatherOnce(t *testing.T) {
	for _, p := range cuts {
		t.Run(p.name, func(t *testing.T) {
			var passes atomic.Int32 // that have gathered, on all ranks
			o := testOptions()
			o.OpenDevice = func(c Config) (tensor.Device, error) {
				d, err := cpu.New(cpu.Options{Threads: c.Threads})
				return &faulty{Device: d, gather: func(ids []int32) error { passes.Add(1); return nil }}, err
			}
			e := placeWith(t, p, o)
			d := create(t, e, "a", 1, 2)
			random := rand.New(rand.NewPCG(4, 5))
			for range 3 {
				passes.Store(0)
				d.pass([]plugins.Datum{wholeDatum(random, 20)})
				if ranks := int32(len(e.loaded.training[0].models)); passes.Load() != ranks {
					t.Errorf("rows are gathered %d times for 20 tokens on %d ranks", passes.Load(), ranks)
				}
			}
		})
	}
}

// history is everything that a client sees of a run, by name.
type history struct {
	floats map[string][]float32
	tokens map[string][]int32
	norms  map[string]float64 // of the gradient, the adapter, and the adapter's modules of each kind, after steps
}

// normed keeps what a step tells.
func (h *history) normed(step string, metrics map[string]float64) {
	if h.norms == nil {
		h.norms = map[string]float64{}
	}
	for name, v := range metrics {
		if strings.HasSuffix(name, "_norm") || strings.HasPrefix(name, plugins.AdapterNormOf("")) {
			h.norms[step+" "+name] = v
		}
	}
}

// live trains two adapters over a few steps, on operations of several sizes that are sent ahead, and samples from them on the way: alone, in a group, scored, with every setting.
func live(t testing.TB, e *Engine) history {
	t.Helper()
	h := history{floats: map[string][]float32{}, tokens: map[string][]int32{}}
	setVocabulary(t, e)
	cases := constrainedCases(t)
	for a, rank := range []int{4, 8} {
		d := create(t, e, fmt.Sprint("run", a), uint64(a+1), rank)
		random := rand.New(rand.NewPCG(3, uint64(a)))
		for s, n := range []int{1, 5, 16, 19} {
			first := randomData(random, n, 40)
			second := randomData(random, 1+n/2, 90)
			for i, data := range [][]plugins.Datum{first, second} {
				for k, lp := range d.pass(data).Logprobs {
					h.floats[fmt.Sprint("logprobs ", a, s, i, k)] = lp
				}
			}
			h.normed(fmt.Sprint("step ", a, s), d.step().Metrics)
			q := ask(fmt.Sprint("q", a, s), d.adapter, randomTokens(random, 5+40*s), 1+s, 12)
			q.PromptLogprobs, q.TopKPromptLogprobs, q.TopKSampledLogprobs = s%2 == 1, s, 3
			if s == 2 {
				q.TopK, q.TopP, q.MinP, q.FrequencyPenalty, q.PresencePenalty, q.RepetitionPenalty, q.Temperature = 20, 0.9, 0.01, 0.5, 0.25, 1.2, 0.8
				q.LogitBias = map[int32]float64{3: 2, 88: 1}
			}
			out, err := collect(t.Context(), e, q)
			if err != nil {
				t.Fatal(err)
			}
			h.floats[fmt.Sprint("prompt ", a, s)] = append(out.prompt.Logprobs, out.prompt.Top.Logprobs...)
			for i, sequence := range out.sequences {
				h.tokens[fmt.Sprint("sample ", a, s, i)] = append(sequence.Tokens, sequence.Top.IDs...)
				h.floats[fmt.Sprint("sample ", a, s, i)] = append(sequence.Logprobs, sequence.Top.Logprobs...)
			}
		}
		for _, c := range cases {
			q := ask(fmt.Sprint(c.name, a), d.adapter, randomTokens(random, 11), 2, 16)
			c.set(&q)
			out, err := collect(t.Context(), e, q)
			if err != nil {
				t.Fatal(err)
			}
			for i, sequence := range out.sequences {
				h.tokens[fmt.Sprint("sample ", c.name, a, i)] = append(sequence.Tokens, sequence.Top.IDs...)
				h.floats[fmt.Sprint("sample ", c.name, a, i)] = slices.Concat(sequence.Logprobs, sequence.Top.Logprobs, sequence.ConstraintLogprobs)
			}
		}
		for name, w := range d.weights() {
			h.floats[fmt.Sprint("weights ", a, name)] = w
		}
	}
	return h
}

func equalHistories(t testing.TB, a, b history) {
	t.Helper()
	equalTensors(t, "floats", a.floats, b.floats)
	if !maps.Equal(a.norms, b.norms) {
		t.Fatalf("norms differ:\n%v\n%v", a.norms, b.norms)
	}
	if len(a.tokens) == 0 || fmt.Sprint(a.tokens) != fmt.Sprint(b.tokens) {
		t.Fatalf("samples differ:\n%v\n%v", a.tokens, b.tokens)
	}
}

// Weights, log-probabilities and samples are those of one device, bit for bit, whatever the number of copies and the cut of the batches.
func TestCopiesEqualSingle(t *testing.T) {
	want := live(t, place(t, placement{plugin: "single", section: `{"threads": 1}`}))
	const steps, kinds = 2 * 4, 8 // of two adapters; seven of a layer, and the head
	if len(want.norms) != steps*(2+kinds) {
		t.Fatalf("%d norms of %d steps: %v", len(want.norms), steps, want.norms)
	}
	for _, p := range slices.Concat(copies, splits, sharded) {
		t.Run(p.name, func(t *testing.T) { equalHistories(t, live(t, place(t, p)), want) })
	}
}

// What ranks hold of weights that are shared out, and of those that they put together, is what the plan says.
func TestShardedMemoryPlan(t *testing.T) {
	const copies = 3
	e := place(t, placement{plugin: "dataparallel", section: `{"devices": ["cpu", "cpu", "cpu"], "shard_base": true, "threads": 3, "memory_mib": 400}`})
	live(t, e)
	hook(t, e, func() {
		l := e.loaded
		var weights, sampling, gathered int64
		for _, r := range l.replicas {
			weights += r.models[0].WeightBytes()
			sampling += r.sampler.workspaces[0].Bytes()
			m, err := r.models[0].MeasureForward(1, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			gathered += m.Gathered
		}
		const leastArena = 2 * 4 << 20 // what a workspace takes at least
		if weights != l.plan.weights || gathered == 0 || sampling > max(l.plan.sampling, copies*leastArena+gathered) {
			t.Errorf("weights of %d, %d planned; samplers hold %d with %d of gathered weights, %d planned", weights, l.plan.weights, sampling, gathered, l.plan.sampling)
		}
		if used := l.memory.used.Load(); used > l.plan.limit || used < l.plan.fixed() {
			t.Errorf("%d of %d bytes are used, %d for good", used, l.plan.limit, l.plan.fixed())
		}
		for _, s := range l.shares() {
			if s.Name == "weights" && !strings.Contains(s.Detail, "shared out over 3 copies; a rank puts layers together in") {
				t.Errorf("weights: %s", s.Detail)
			}
		}
	})
}

// nearHistories compares what is computed in another order: log-probabilities and weights are nearly equal. Samples are not compared: where two tokens are nearly equally likely, rounding decides.
func nearHistories(t *testing.T, got, want history) {
	t.Helper()
	nearHistoriesTo(t, got, want, 2e-3)
}

// nearHistoriesTo is nearHistories to a share of the largest value.
func nearHistoriesTo(t *testing.T, got, want history, tolerance float64) {
	t.Helper()
	compared := 0
	for name, w := range want.floats {
		if strings.HasPrefix(name, "sample") {
			continue
		}
		compared++
		g := got.floats[name]
		if len(g) != len(w) {
			t.Fatalf("%s: %d values and %d", name, len(g), len(w))
		}
		var off, scale float64
		for i := range w {
			if math.IsNaN(float64(w[i])) && math.IsNaN(float64(g[i])) || w[i] == unscored {
				continue
			}
			off, scale = max(off, math.Abs(float64(g[i]-w[i]))), max(scale, math.Abs(float64(w[i])))
		}
		if !(off <= tolerance*scale) {
			t.Errorf("%s: off by %v of %v", name, off, scale)
		}
	}
	if compared == 0 {
		t.Fatal("nothing was compared")
	}
}

// A model that is cut computes what the whole one does, bit for bit, whatever the cut of the batches and the number of its copies.
func TestCutsEqualSingle(t *testing.T) {
	for _, dtype := range []string{"float32", "bfloat16"} {
		section := func(s, more string) string { return strings.Replace(s, "{", `{"dtype": "`+dtype+`", `+more, 1) }
		want := live(t, place(t, placement{plugin: "single", section: section(`{"threads": 1}`, "")}))
		for _, p := range slices.Concat(cuts, mixed) {
			t.Run(dtype+" "+p.name, func(t *testing.T) {
				plain := p.section
				p.section = section(plain, "")
				equalHistories(t, live(t, place(t, p)), want)
				if dtype == "bfloat16" {
					p.section = section(plain, `"max_batch": 2, "recompute": "on", `)
					equalHistories(t, live(t, place(t, p)), want)
				}
			})
		}
	}
}

// Placements keep the contract. The plain ones are tested with their programs.
func TestContractOfPlacements(t *testing.T) {
	for _, p := range []placement{cuts[2], splits[1], mixed[2], sharded[2]} {
		t.Run(p.name, func(t *testing.T) { contractOf(t, written(writeTiny), p) })
	}
	for _, p := range []placement{cuts[0], sharded[0]} {
		t.Run("linear attention and experts, "+p.name, func(t *testing.T) { contractOf(t, written(expertHybrid.write), p) })
	}
	t.Run("gpt-oss, "+cuts[0].name, func(t *testing.T) { contractOf(t, gptOSS{}.write, cuts[0]) })
}

// written gives a directory that a model is written to.
func written(write func(dir string) error) func(t testing.TB) string {
	return func(t testing.TB) string {
		t.Helper()
		dir := t.TempDir()
		if err := write(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
}

// contractOf checks that a model keeps the contract under a placement.
func contractOf(t *testing.T, write func(t testing.TB) string, p placement) {
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		e := placeModel(t, write(t), p, testOptions())
		const places = 8
		hook(t, e, func() { e.loaded.config.MaxBatch = places })
		return plugintest.Subject{Backend: e, Model: e.loaded.info, Places: places}
	})
}

// Work that is sent at once to many copies, training and sampling mixed, gives what it gives alone.
func TestCopiesUnderLoad(t *testing.T) {
	want := live(t, place(t, placement{plugin: "single", section: `{"threads": 1}`}))
	for _, p := range []placement{copies[1], splits[1], sharded[0], sharded[2]} {
		t.Run(p.name, func(t *testing.T) { underLoad(t, p, want) })
	}
}

// Likewise for models that are cut.
func TestCutsUnderLoad(t *testing.T) {
	want := live(t, place(t, placement{plugin: "single", section: `{"threads": 1}`}))
	for _, p := range []placement{cuts[0], cuts[3], mixed[2]} {
		t.Run(p.name, func(t *testing.T) { underLoad(t, p, want) })
	}
}

func underLoad(t *testing.T, p placement, want history) {
	e := place(t, p)
	e.interval = 0 // sampling at every point of training
	stop := make(chan struct{})
	crowd := make(chan struct{})
	go func() {
		defer close(crowd)
		random := rand.New(rand.NewPCG(9, 9))
		d := create(t, e, "crowd", 5, 16)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			together(func() { d.pass(randomData(random, 6, 60)); d.step() }, func() {
				if _, err := collect(t.Context(), e, ask(fmt.Sprint("crowd", i), "crowd", []int32{1, 2, 3}, 4, 20)); err != nil {
					t.Error(err)
				}
			}, func() {
				if _, err := collect(t.Context(), e, ask(fmt.Sprint("base", i), "", []int32{int32(i % tinyVocabulary), 2, 3}, 2, 30)); err != nil {
					t.Error(err)
				}
			})
		}
	}()
	got := live(t, e)
	close(stop)
	<-crowd
	equalHistories(t, got, want)
}

// A checkpoint that was written under one placement goes on under another.
func TestResumeElsewhere(t *testing.T) {
	data := randomData(rand.New(rand.NewPCG(4, 4)), 9, 50)
	writer := create(t, place(t, placement{plugin: "single", section: `{"threads": 1}`}), "a", 3, 8)
	writer.pass(data)
	writer.step()
	writer.pass(data)
	path := writer.save(plugins.ScopeAccumulator)
	writer.step()
	want := history{floats: writer.weights(), tokens: map[string][]int32{"": {}}}
	for _, p := range []placement{copies[0], cuts[0], cuts[1], mixed[0], sharded[0], cuts[3]} {
		t.Run(p.name, func(t *testing.T) {
			d := load(t, place(t, p), "b", path, plugins.ScopeAccumulator)
			back := load(t, place(t, placement{plugin: "single", section: `{"threads": 1}`}), "c", d.save(plugins.ScopeAccumulator), plugins.ScopeAccumulator)
			d.step()
			back.step()
			equalTensors(t, "there", d.weights(), want.floats)
			equalTensors(t, "and back", back.weights(), want.floats)
		})
	}
}

// What the model does not allow is refused with the setting that asks for it and with what is allowed.
func TestSettingsThatTheModelRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := writeTiny(dir); err != nil {
		t.Fatal(err)
	}
	const cut = "4 heads, 2 key-value heads and an MLP of 48 cannot be cut over 3 devices: 1, 2, 4 are possible"
	for _, c := range []struct{ plugin, section, field, want string }{
		{"tensorparallel", `{"devices": ["cpu", "cpu", "cpu"]}`, "backend.devices", cut},
		{"tensorparallel", `{"devices": ["cpu"], "sample_devices": ["cpu", "cpu", "cpu"]}`, "backend.sample_devices", cut},
		{"dataparallel", `{"devices": [["cpu", "cpu", "cpu"]]}`, "backend.devices", cut},
		{"single", `{"max_context_length": 100000}`, "backend.max_context_length", "context of 100000 tokens is not in 1 … "},
	} {
		o := testOptions()
		o.Plugin = c.plugin
		e := New(o)
		_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: []byte(c.section)}, nil)
		var refusal *plugins.Error
		if !errors.As(err, &refusal) || refusal.Kind != plugins.KindInvalid || refusal.Field != c.field || !strings.Contains(refusal.Message, c.want) {
			t.Errorf("%s: %v", c.section, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
