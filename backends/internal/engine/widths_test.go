package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// ranksOf is a line of configuration for so many ranks.
func ranksOf(n int, dtype string) placement {
	devices := strings.Repeat(`, "cpu"`, n)[2:]
	return placement{fmt.Sprintf("%d ranks", n), "tensorparallel", fmt.Sprintf(`{"devices": [%s], "threads": %d, "dtype": %q}`, devices, n, dtype)}
}

// cutModel is a model that is cut over numbers of ranks.
type cutModel struct {
	name          string
	vocabulary    int
	write         func(t testing.TB) string // its directory
	ranks, others []int                     // others: that have no whole segments
	steps         int                       // of training; 0 = 20
}

func denseModel(name string, s shape, ranks, others []int) cutModel {
	return cutModel{name, s.vocabulary, written(func(dir string) error { return writeModel(dir, s) }), ranks, others, 0}
}

func expertModel(name string, s mixtureSizes, ranks, others []int) cutModel {
	return cutModel{name, tinyVocabulary, func(t testing.TB) string { return s.write(t, 1) }, ranks, others, 0}
}

func linearModel(name string, s hybridSizes, experts hybridModel, ranks, others []int) cutModel {
	write := func(dir string) error {
		return s.write(dir, experts, "linear_attention", "full_attention", "linear_attention")
	}
	return cutModel{name, tinyVocabulary, written(write), ranks, others, 0}
}

func gptOSSModel(name string, m gptOSS, ranks, others []int) cutModel {
	return cutModel{name, tinyVocabulary, m.write, ranks, others, 0}
}

// The widest ones: all that ranks share out divides by eight.
var (
	wideExperts      = expertModel("experts, 8 heads of 2 key heads", mixtureSizes{width: 48, heads: 8, intermediate: 80}, []int{2, 4, 8}, nil)
	wideLinear       = linearModel("linear attention of 8 key heads", hybridSizes{heads: 8, keyHeads: 8, valueHeads: 16}, denseHybrid, []int{2, 4, 8}, nil)
	wideLinearExpert = linearModel("linear attention of 8 key heads and experts", hybridSizes{heads: 8, keyHeads: 8, valueHeads: 16}, expertHybrid, []int{2, 4, 8}, nil)
	wideGPTOSS       = gptOSSModel("gpt-oss, 8 heads of 2 key heads", gptOSS{heads: 8, width: 48}, []int{2, 4, 8}, nil)
)

// Any number of ranks that has whole segments trains and samples what one device does, bit for bit, and has its arithmetic; others name their number. Sizes are such that segments end anywhere, and that key heads are one rank's,
// two ranks', or four ranks'.
func TestWidthsEqualSingle(t *testing.T) {
	single := linearModel("a value head on each of four", hybridSizes{heads: 4, keyHeads: 4, valueHeads: 4}, denseHybrid, []int{2}, []int{4})
	odd := gptOSSModel("gpt-oss of an odd part", gptOSS{heads: 4, width: 20}, []int{2}, []int{4})
	single.steps, odd.steps = 2, 2 // rounding grows with each
	for _, c := range []cutModel{
		denseModel("8 heads of 2 key heads", shape{203, 40, 80, 2, 8, 2, 16}, []int{2, 4, 8}, nil),
		denseModel("8 heads of 1 key head", shape{91, 24, 208, 1, 8, 1, 4}, []int{2, 8}, nil),
		denseModel("12 heads of 2 key heads", shape{300, 36, 132, 2, 12, 2, 10}, []int{2}, []int{4}),
		denseModel("12 heads of 3 key heads", shape{115, 32, 72, 1, 12, 3, 8}, nil, []int{3}),
		denseModel("segments of several blocks", shape{5000, 64, 2320, 1, 8, 8, 64}, []int{2, 8}, nil),
		wideExperts, wideLinear, wideLinearExpert, wideGPTOSS,
		gptOSSModel("gpt-oss in MXFP4", gptOSS{quantized: true, heads: 8, width: 96}, []int{2, 8}, nil),
		expertModel("experts of an odd part", mixtureSizes{width: 20, heads: 4, intermediate: 48}, []int{2}, []int{4}),
		single, odd,
	} {
		for _, dtype := range []string{"float32", "bfloat16"} {
			t.Run(c.name+" "+dtype, func(t *testing.T) { widthsEqualSingle(t, c, dtype) })
		}
	}
}

func widthsEqualSingle(t *testing.T, c cutModel, dtype string) {
	dir := c.write(t)
	var arithmetic string
	run := func(p placement) history {
		e := placeModel(t, dir, p, testOptions())
		arithmetic = e.loaded.info.Arithmetic
		return trainAndSample(t, e, c)
	}
	want := run(placement{plugin: "single", section: fmt.Sprintf(`{"threads": 1, "dtype": %q}`, dtype)})
	one := arithmetic
	for _, threads := range []int{2, 3} {
		equalHistories(t, run(placement{plugin: "single", section: fmt.Sprintf(`{"threads": %d, "dtype": %q}`, threads, dtype)}), want)
	}
	for _, n := range c.ranks {
		equalHistories(t, run(ranksOf(n, dtype)), want)
		if arithmetic != one {
			t.Errorf("%d ranks have the arithmetic %q, one device %q", n, arithmetic, one)
		}
	}
	for _, n := range c.others {
		got := run(ranksOf(n, dtype))
		if dtype == "float32" {
			nearHistories(t, got, want)
		}
		if wantName := fmt.Sprintf("%s/cut over %d ranks", one, n); arithmetic != wantName {
			t.Errorf("%d ranks have the arithmetic %q, want %q", n, arithmetic, wantName)
		}
	}
}

// trainAndSample trains an adapter on sequences of many lengths and samples from it.
func trainAndSample(t *testing.T, e *Engine, c cutModel) history {
	const longest = 60
	vocabulary, steps := c.vocabulary, c.steps
	if steps == 0 {
		steps = 20
	}
	h := history{floats: map[string][]float32{}, tokens: map[string][]int32{}}
	d := create(t, e, "a", 1, 4)
	random := rand.New(rand.NewPCG(5, 5))
	for step := range steps {
		var data []plugins.Datum
		for range 1 + step%3 {
			tokens := randomTokensOf(random, vocabulary, 2+random.IntN(longest))
			data = append(data, plugins.Datum{Tokens: tokens[:len(tokens)-1], Targets: tokens[1:], K: 1})
			weights := make([]float32, len(tokens)-1)
			for i := range weights {
				weights[i] = random.Float32()
			}
			data[len(data)-1].Weights = weights
		}
		for i, lp := range d.pass(data).Logprobs {
			h.floats[fmt.Sprint("log-probabilities ", step, i)] = lp
		}
		d.step()
	}
	q := ask("q", d.adapter, randomTokensOf(random, vocabulary, 70), 3, 20)
	q.TopKSampledLogprobs, q.TopP = 3, 0.95
	out, err := collect(t.Context(), e, q)
	if err != nil {
		t.Fatal(err)
	}
	for i, sequence := range out.sequences {
		h.tokens[fmt.Sprint("sample ", i)] = append(sequence.Tokens, sequence.Top.IDs...)
		h.floats[fmt.Sprint("sample ", i)] = append(sequence.Logprobs, sequence.Top.Logprobs...)
	}
	for name, w := range d.weights() {
		h.floats["weights "+name] = w
	}
	return h
}

// Every loss gives the gradients of one device on 2, 4 and 8 ranks that share out experts, linear attention and attention with sinks, and on copies that share the weights out, bit for bit; data of all losses are in one cycle.
func TestLossesOfFamilies(t *testing.T) {
	for _, c := range []cutModel{wideExperts, wideLinearExpert, wideGPTOSS} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.write(t)
			single := placeModel(t, dir, placement{plugin: "single", section: `{"threads": 1}`}, testOptions())
			run := prepareLosses(t, single, 4, 7, 14)
			want := passLosses(t, single, run, false)
			tellLossesApart(t, run, want)
			for _, p := range slices.Concat([]placement{ranksOf(2, "float32"), ranksOf(4, "float32"), ranksOf(8, "float32"), cuts[3], mixed[0]}, sharded) {
				t.Run(p.name, func(t *testing.T) {
					equalHistories(t, passLosses(t, placeModel(t, dir, p, testOptions()), run, true), want)
				})
			}
		})
	}
}

// A checkpoint in the middle of a window, with its sum of gradients, moves from one device to ranks and to copies that share the weights out and back, and goes on with the same bits.
func TestFamiliesResumeElsewhere(t *testing.T) {
	data := randomData(rand.New(rand.NewPCG(4, 4)), 9, 50)
	for _, c := range []cutModel{wideExperts, wideLinear, wideLinearExpert, wideGPTOSS} {
		dir := c.write(t)
		on := func(p placement) *Engine { return placeModel(t, dir, p, testOptions()) }
		single := placement{plugin: "single", section: `{"threads": 1}`}
		writer := create(t, on(single), "a", 3, 8)
		writer.pass(data)
		writer.step()
		writer.pass(data)
		path := writer.save(plugins.ScopeAccumulator)
		writer.step()
		want := writer.weights()
		for _, p := range []placement{ranksOf(2, "float32"), ranksOf(8, "float32"), sharded[0], cuts[3], mixed[0]} {
			t.Run(c.name+"/"+p.name, func(t *testing.T) {
				d := load(t, on(p), "b", path, plugins.ScopeAccumulator)
				back := load(t, on(single), "c", d.save(plugins.ScopeAccumulator), plugins.ScopeAccumulator)
				d.step()
				back.step()
				equalTensors(t, "there", d.weights(), want)
				equalTensors(t, "and back", back.weights(), want)
				for _, names := range []string{plugins.ExportTinker, plugins.ExportPEFT} {
					one, err := d.saveAs(names, false)
					if err != nil {
						continue // not a form for this model
					}
					other, err := back.saveAs(names, false)
					if err != nil {
						t.Fatal(err)
					}
					equalTensors(t, "export "+names, tensorsOf(t, filepath.Join(one, plugins.AdapterWeightsFile)), tensorsOf(t, filepath.Join(other, plugins.AdapterWeightsFile)))
				}
			})
		}
	}
}

// ownExperts makes of a checkpoint one whose experts have every A and B of their own, scaled in another way.
func ownExperts(t *testing.T, path string, rank, alpha, experts int) string {
	config := fmt.Sprintf(`{"peft_type": "LORA", "r": %d, "lora_alpha": %d}`, rank, alpha)
	return rewrite(t, path, config, func(values map[string][]float32, shapes map[string][]int) {
		random := rand.New(rand.NewPCG(8, uint64(rank)))
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if shape := shapes[name]; len(shape) == 3 && shape[0] == 1 {
				shapes[name] = []int{experts, shape[1], shape[2]}
				values[name] = slices.Repeat(values[name], experts)
				for i := range values[name] {
					values[name][i] += float32(0.1 * random.NormFloat64())
				}
			}
		}
	})
}

// Adapters whose experts have matrices of their own have the bits of one device on ranks, beside others of another scale and rank and beside those whose experts share matrices, all in one batch.
func TestOwnExpertsOnRanks(t *testing.T) {
	const experts = 5
	data := randomData(rand.New(rand.NewPCG(4, 5)), 3, 40)
	for _, c := range []cutModel{wideExperts, wideLinearExpert, wideGPTOSS} {
		for _, dtype := range []string{"float32", "bfloat16"} {
			t.Run(c.name+" "+dtype, func(t *testing.T) {
				dir := c.write(t)
				single := placeModel(t, dir, placement{plugin: "single", section: fmt.Sprintf(`{"threads": 1, "dtype": %q}`, dtype)}, testOptions())
				paths := map[string]string{}
				for i, rank := range []int{4, 8} {
					d := create(t, single, fmt.Sprint("made", rank), uint64(rank), rank)
					d.pass(data)
					d.step()
					paths[fmt.Sprint("shared ", rank)] = d.save(plugins.ScopeWeights)
					stacked, err := d.saveAs("", true)
					if err != nil {
						t.Fatal(err)
					}
					paths[fmt.Sprint("own ", rank)] = ownExperts(t, stacked, rank, []int{24, 5}[i], experts)
				}
				run := func(e *Engine, together bool) map[string][]float32 {
					var done sync.WaitGroup
					drivers, release := map[string]*driver{}, func() {}
					for name, path := range paths {
						drivers[name] = load(t, e, name, path, plugins.ScopeWeights)
					}
					if together {
						release = block(t, e, nil)
					}
					for _, d := range drivers {
						position := d.position()
						done.Go(func() {
							if _, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: position, Data: data, Loss: "cross_entropy"}); err != nil {
								t.Error(err)
							}
						})
						if together {
							eventually(t, "the pass has arrived", func() bool { return arrived(e, d.adapter, position) })
						} else {
							done.Wait()
						}
					}
					release()
					done.Wait()
					all := map[string][]float32{}
					for name, d := range drivers {
						d.step()
						for tensor, w := range d.weights() {
							all[name+" "+tensor] = w
						}
						all[name+" log-probabilities"] = d.prompted([]int32{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8})
					}
					return all
				}
				want := run(single, false)
				for _, n := range []int{2, 8} {
					equalTensors(t, fmt.Sprint(n, " ranks"), run(placeModel(t, dir, ranksOf(n, dtype), testOptions()), true), want)
				}
			})
		}
	}
}

// Sequences on ranks go on from snapshots of prompts and answers as on one device: as many tokens are cached, and the bits are those of sequences that were computed whole.
func TestSnapshotsOnRanks(t *testing.T) {
	for _, c := range []cutModel{wideLinear, wideLinearExpert, wideGPTOSS} {
		dir := c.write(t)
		for _, p := range []placement{ranksOf(2, "float32"), ranksOf(8, "float32"), mixed[1], sharded[0]} {
			t.Run(c.name+"/"+p.name, func(t *testing.T) {
				random := rand.New(rand.NewPCG(2, 5))
				prompt := randomTokens(random, 266)
				whole := func(q plugins.SampleRequest) []plugins.SampledTokens {
					got, err := collect(t.Context(), placeModel(t, dir, placement{plugin: "single", section: `{"threads": 1}`}, testOptions()), q)
					if err != nil {
						t.Fatal(err)
					}
					return got.sequences
				}
				e := placeModel(t, dir, p, testOptions())
				first := ask("first", "", prompt, 4, 70)
				want := whole(first)
				for i, cached := range []int{0, 256} {
					got, err := collect(t.Context(), e, first)
					if err != nil || got.prompt.CachedTokens != cached {
						t.Errorf("time %d: %d cached, want %d: %v", i, got.prompt.CachedTokens, cached, err)
					}
					equalSamples(t, fmt.Sprint("time ", i), got.sequences, want)
				}
				turn := ask("second", "", slices.Concat(prompt, want[3].Tokens, []int32{1, 2, 3}), 1, 9)
				got, err := collect(t.Context(), e, turn)
				if err != nil || got.prompt.CachedTokens != 320 {
					t.Errorf("the second turn took %d tokens from the first, want 320: %v", got.prompt.CachedTokens, err)
				}
				equalSamples(t, "second turn", got.sequences, whole(turn))
			})
		}
	}
}

// chooser is a device that notes which experts tokens choose on it, and with which probabilities.
type chooser struct {
	tensor.Device
	choices [][]float32
}

func (c *chooser) Route(choice, p, logits tensor.Tensor, normalise bool) error {
	if err := c.Device.Route(choice, p, logits, normalise); err != nil {
		return err
	}
	for _, x := range []tensor.Tensor{choice, p} {
		values := make([]float32, x.Rows*x.Cols)
		if err := c.Download(values, x); err != nil {
			return err
		}
		c.choices = append(c.choices, values)
	}
	return nil
}

// On all ranks tokens choose the same experts, with the same probabilities.
func TestRanksChooseTheSameExperts(t *testing.T) {
	for _, c := range []cutModel{wideExperts, wideLinearExpert, wideGPTOSS} {
		t.Run(c.name, func(t *testing.T) {
			var devices []*chooser
			o := testOptions()
			o.OpenDevice = func(c Config) (tensor.Device, error) {
				inner, err := cpu.New(cpu.Options{Threads: c.Threads})
				d := &chooser{Device: inner}
				devices = append(devices, d)
				return d, err
			}
			e := placeModel(t, c.write(t), ranksOf(4, "bfloat16"), o)
			trainAndSample(t, e, c)
			var ranks []*chooser
			for _, d := range devices {
				if len(d.choices) > 0 {
					ranks = append(ranks, d)
				}
			}
			if len(ranks) != 4 {
				t.Fatalf("%d devices have chosen experts, want 4", len(ranks))
			}
			for r, d := range ranks[1:] {
				if len(d.choices) != len(ranks[0].choices) {
					t.Fatalf("rank %d has chosen %d times, rank 0 %d times", r+1, len(d.choices), len(ranks[0].choices))
				}
				for i, values := range d.choices {
					equalBits(t, fmt.Sprintf("choice %d of rank %d", i, r+1), values, ranks[0].choices[i])
				}
			}
		})
	}
}

// What cannot be cut is refused with the numbers that can be.
func TestFamiliesRefuseCuts(t *testing.T) {
	for _, c := range []struct {
		model cutModel
		ranks int
		want  string
	}{
		{wideExperts, 3, "8 heads, 2 key-value heads and an MLP of 48 and 80 cannot be cut over 3 devices: 1, 2, 4, 8 are possible"},
		{expertModel("", mixtureSizes{width: 20, heads: 8, intermediate: 48}, nil, nil), 8, "an MLP of 20 and 48 cannot be cut over 8 devices: 1, 2, 4 are possible"},
		{wideGPTOSS, 3, "8 heads, 2 key-value heads and an MLP of 48 cannot be cut over 3 devices: 1, 2, 4, 8 are possible"},
		{linearModel("", hybridSizes{heads: 8, keyHeads: 2, valueHeads: 4}, expertHybrid, nil, nil), 4, "2 key heads of linear attention and an MLP of 48 cannot be cut over 4 devices: 1, 2 are possible"},
	} {
		o := testOptions()
		o.Plugin = pluginTensorParallel
		e := New(o)
		_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: c.model.write(t), Name: "tiny", Config: []byte(ranksOf(c.ranks, "float32").section)}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d ranks: error %v, want one with %q", c.ranks, err, c.want)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What ranks hold of experts, of linear attention and of attention with sinks, and what a training pass takes on each, is what the plan says.
func TestFamiliesMemoryPlan(t *testing.T) {
	const tokens, rank = 200, 8
	for _, c := range []cutModel{wideExperts, wideLinearExpert, wideGPTOSS} {
		dir := c.write(t)
		for _, p := range []placement{ranksOf(4, "float32"), sharded[0], cuts[3]} {
			t.Run(c.name+"/"+p.name, func(t *testing.T) {
				e := placeModel(t, dir, p, testOptions())
				a := create(t, e, "a", 1, rank)
				a.pass([]plugins.Datum{wholeDatum(rand.New(rand.NewPCG(5, 5)), tokens)})
				hook(t, e, func() {
					l := e.loaded
					layout, err := l.referenceLayout(rank)
					if err != nil {
						t.Fatal(err)
					}
					var weights int64
					taken := false
					for _, r := range l.training {
						for i, m := range r.models {
							weights += m.WeightBytes()
							need, err := m.MeasureTraining(tokens, layout, false)
							if err != nil {
								t.Fatal(err)
							}
							got := r.trainer.workspaces[i].Peak()
							if got.Scratch > need.Scratch || got.Kept > need.Kept || got.Gathered > need.Gathered {
								t.Errorf("rank %d took %+v, measured were %+v", i, got, need)
							}
							taken = taken || got.Scratch == need.Scratch
						}
					}
					if !taken {
						t.Error("no rank took what was measured")
					}
					if weights != l.plan.weights {
						t.Errorf("weights of %d bytes, %d planned", weights, l.plan.weights)
					}
				})
			})
		}
	}
}

// The families as their files hold them (projections by key heads, experts fused, transposed or quantized, rows of several modules in one tensor) have the bits of one device over two ranks and on copies that share the weights out.
func TestGoldenFamiliesOnRanks(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set: no models in the forms that files have")
	}
	for _, name := range []string{"families/fp8-qwen3-moe", "families/gpt-oss", "families/gpt-oss-mxfp4", "families/layout-qwen3-vl-moe", "families/layout-qwen3.5-moe-split", "families/published-qwen3.5", "families/published-qwen3.5-moe", "families/qwen3-next", "families/phi3", "goldens/torch/qwen3-moe"} {
		t.Run(name, func(t *testing.T) {
			dir, c := filepath.Join(root, name), cutModel{vocabulary: 512, steps: 2}
			want := trainAndSample(t, placeModel(t, dir, placement{plugin: "single", section: `{"threads": 1}`}, testOptions()), c)
			for _, p := range []placement{{"2 ranks", "tensorparallel", `{"devices": ["cpu", "cpu"], "threads": 2}`}, sharded[0], cuts[3]} {
				equalHistories(t, trainAndSample(t, placeModel(t, dir, p, testOptions()), c), want)
			}
		})
	}
}

// A plan of models with experts, with linear attention and with sinks has the placements that share them out, and what it says of weights, of samplers and of the cache is what loading takes.
func TestFamiliesPlannedOnRanks(t *testing.T) {
	for _, f := range families(8, 128, 4096, 512)[1:] {
		dir := f.write(t)
		p := planOf(t, dir, plugins.PlanRequest{Config: []byte(`{"memory_mib": 2000}`), Device: "cpu", Devices: 2, Rank: 8})
		for _, name := range []string{"tensorparallel 2", "shard_base 2"} {
			t.Run(f.name+" "+name, func(t *testing.T) {
				at := slices.IndexFunc(p.Placements, func(p plugins.PlannedPlacement) bool { return p.Name == name })
				if at < 0 || p.Placements[at].Reason != "" || len(p.Placements[at].Devices) != 1 {
					t.Fatalf("planned are %+v", p.Placements)
				}
				placed := p.Placements[at]
				section := strings.Replace(string(placed.Config), "{", `{"memory_mib": 2000, "threads": 2, `, 1)
				e := placeModel(t, dir, placement{plugin: placed.Plugin, section: section}, testOptions())
				hook(t, e, func() {
					l := e.loaded.plan
					if d := placed.Devices[0]; d.WeightBytes != l.weights || d.SamplerBytes != l.sampling || d.CacheBytes != l.cache {
						t.Errorf("planned %+v, loaded weights of %d bytes, samplers of %d and a cache of %d", d, l.weights, l.sampling, l.cache)
					}
				})
			})
		}
	}
}
