package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

// foreign writes a PEFT adapter as another program would, for the q_proj of layer 0 and the down_proj of layer 1.
func foreign(t *testing.T, config string, change func(map[string][]float32)) string {
	t.Helper()
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(8, 8))
	values := map[string][]float32{}
	shapes := map[string][]int{
		"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": {3, 32}, "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": {64, 3},
		"base_model.model.model.layers.1.mlp.down_proj.lora_A.weight": {3, 48}, "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight": {32, 3},
	}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		v := make([]float32, shapes[name][0]*shapes[name][1])
		for i := range v {
			v[i] = float32(random.NormFloat64()) / 4
		}
		values[name] = v
	}
	if change != nil {
		change(values)
	}
	var sources []safetensors.Source
	for name, v := range values {
		shape := shapes[name]
		switch {
		case shape == nil:
			shape = []int{len(v)}
		case strings.Contains(name, "lora_A"): // of a rank that change may have made another one
			shape = []int{len(v) / shape[1], shape[1]}
		default:
			shape = []int{shape[0], len(v) / shape[0]}
		}
		sources = append(sources, safetensors.Float32Source(name, shape, func() ([]float32, error) { return v, nil }))
	}
	writeAdapterFiles(t, dir, config, sources)
	return dir
}

// writeAdapterFiles writes an adapter as PEFT does.
func writeAdapterFiles(t *testing.T, dir, config string, sources []safetensors.Source) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, plugins.AdapterWeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := safetensors.Write(f, nil, sources); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, plugins.AdapterConfigFile), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Whatever alpha and rank say, the adapter's factor is PEFT's, and A and B are as they were, but for zeros up to the next power of two.
func TestForeignAdapter(t *testing.T) {
	e := start(t, "")
	const q, down = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
	const qA = "base_model.model." + q + ".lora_A.weight"
	// With q_proj of rank 2 beside down_proj of rank 3.
	smaller := func(v map[string][]float32) {
		for name, values := range v {
			if strings.Contains(name, "q_proj") {
				v[name] = values[:len(values)*2/3]
			}
		}
	}
	for _, c := range []struct {
		name, config string
		change       func(map[string][]float32)
		factors      map[string]float64
		alpha        float64 // that the contract states
		exported     string
	}{
		{"alpha 32", `{"peft_type": "LORA", "r": 3, "lora_alpha": 32}`, nil, map[string]float64{q: 32.0 / 3, down: 32.0 / 3}, 32.0 / 3 * 4, `"lora_alpha": 42.6`},
		{"alpha 6", `{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none", "modules_to_save": null, "rank_pattern": {}, "use_dora": false}`, nil,
			map[string]float64{q: 2, down: 2}, 8, `"lora_alpha": 8,`},
		{"rank-stabilised", `{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_rslora": true}`, nil,
			map[string]float64{q: 6 / math.Sqrt(3), down: 6 / math.Sqrt(3)}, 24 / math.Sqrt(3), `"lora_alpha": 13.8`},
		{"alphas by module", `{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "alpha_pattern": {"layers\\.[1-9].*": 3, "down_proj": 9}}`, nil,
			map[string]float64{q: 2, down: 1}, 0, `"model.layers.1.mlp.down_proj": 4`},
		{"the same alpha by module", `{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "alpha_pattern": {"q_proj": 3, "model.layers.1.mlp.down_proj": 3}}`, nil,
			map[string]float64{q: 1, down: 1}, 4, `"lora_alpha": 4,`},
		{"ranks by module", `{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "rank_pattern": {"(q|k)_proj": 2}}`, smaller, map[string]float64{q: 3, down: 2}, 0, `"model.layers.0.self_attn.q_proj": 12`},
		{"ranks and alphas by module", `{"peft_type": "LORA", "r": 64, "lora_alpha": 6, "rank_pattern": {"q_proj": 2, "down_proj": 3}, "alpha_pattern": {"q_proj": 4}}`, smaller,
			map[string]float64{q: 2, down: 2}, 8, `"r": 4,`},
		{"rank-stabilised ranks by module", `{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_rslora": true, "rank_pattern": {"q_proj": 2}}`, smaller,
			map[string]float64{q: 6 / math.Sqrt(2), down: 6 / math.Sqrt(3)}, 0, `"alpha_pattern"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := foreign(t, c.config, c.change)
			info, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: c.name, Path: path, Frozen: true})
			if err != nil {
				t.Fatal(err)
			}
			if info.Config.Rank != 4 || !slices.Equal(info.Config.Modules, []string{"q_proj", "down_proj"}) || !info.Config.TrainAttention || !info.Config.TrainMLP || info.Config.TrainUnembed {
				t.Errorf("configuration %+v", info.Config)
			}
			if math.Abs(info.Config.Alpha-c.alpha) > 1e-9 {
				t.Errorf("alpha %v, want %v", info.Config.Alpha, c.alpha)
			}
			layout := e.runs[c.name].layout
			for i, m := range layout.Modules {
				if layout.Has(i) && layout.Scale(i) != float32(c.factors[m.Name]) {
					t.Errorf("the factor of %s is %v, want %v", m.Name, layout.Scale(i), float32(c.factors[m.Name]))
				}
			}
			d := &driver{t: t, e: e, adapter: c.name}
			got := d.weights()
			want := tensorsOf(t, filepath.Join(path, plugins.AdapterWeightsFile))
			for name, values := range want {
				if strings.Contains(name, "lora_A") {
					values = append(slices.Clone(values), make([]float32, len(got[name])-len(values))...)
				} else {
					rank := len(want[strings.Replace(name, "lora_B", "lora_A", 1)]) / map[bool]int{true: 32, false: 48}[strings.Contains(name, "q_proj")]
					var rows []float32
					for row := range slices.Chunk(values, rank) {
						rows = append(append(rows, row...), make([]float32, 4-rank)...)
					}
					values = rows
				}
				equalBits(t, name, got[name], values)
			}
			if len(got[qA]) != 4*32 {
				t.Errorf("%s has %d values", qA, len(got[qA]))
			}
			if _, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: c.name, Position: 1, Loss: "cross_entropy"}); !errors.Is(err, plugins.ErrInvalid) {
				t.Errorf("a frozen adapter was trained: %v", err)
			}
			if _, err := collect(t.Context(), e, ask("q", c.name, []int32{1, 2}, 1, 3)); err != nil {
				t.Error(err)
			}

			// What is saved of it is loaded with the same factors, by this program and, without the manifest, by others.
			saved := filepath.Join(t.TempDir(), "saved")
			if _, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: c.name, Version: plugins.LatestVersion, Path: saved}); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(saved, plugins.AdapterConfigFile))
			if err != nil || !strings.Contains(string(text), c.exported) {
				t.Errorf("saved as %s, %v; want %s in it", text, err, c.exported)
			}
			other := t.TempDir()
			if err := os.CopyFS(other, os.DirFS(saved)); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(other, plugins.ManifestFile)); err != nil {
				t.Fatal(err)
			}
			for id, path := range map[string]string{c.name + " again": saved, c.name + " without a manifest": other} {
				load(t, e, id, path, plugins.ScopeWeights)
				again := e.runs[id].layout
				for i, m := range layout.Modules {
					if layout.Has(i) != again.Has(i) || layout.Has(i) && layout.Scale(i) != again.Scale(i) {
						t.Errorf("%s: the factor of %s is %v, was %v", id, m.Name, again.Scale(i), layout.Scale(i))
					}
				}
				equalTensors(t, id, (&driver{t: t, e: e, adapter: id}).weights(), got)
			}
		})
	}
}

// The zeros that fill up a smaller rank stay zeros: training goes on as without them.
func TestTrainingOnPaddedRank(t *testing.T) {
	e := start(t, "")
	d := load(t, e, "a", foreign(t, `{"peft_type": "LORA", "r": 3, "lora_alpha": 6}`, nil), plugins.ScopeWeights)
	before := d.weights()
	random := rand.New(rand.NewPCG(3, 3))
	for range 3 {
		d.pass(randomData(random, 3, 40))
		if _, err := e.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: "a", Position: d.position(), Adam: plugins.AdamParams{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12, WeightDecay: 0.1}}); err != nil {
			t.Fatal(err)
		}
	}
	for name, values := range d.weights() {
		changed := 0
		for i, v := range values {
			padding := strings.Contains(name, "lora_A") && i >= len(values)*3/4 || strings.Contains(name, "lora_B") && i%4 == 3
			if padding && v != 0 {
				t.Fatalf("%s: value %d is %v", name, i, v)
			}
			if v != before[name][i] {
				changed++
			}
		}
		if changed < len(values)/2 {
			t.Errorf("%s: training has changed %d of %d values", name, changed, len(values))
		}
	}
}

// An import by a version that multiplied its scale into B and kept its rank stays as that version stored it: its rank, its bits, alpha 32, and a manifest that old versions read.
func TestImportOfOlderVersion(t *testing.T) {
	e := start(t, "")
	dir := foreign(t, `{"peft_type": "LORA", "r": 3, "lora_alpha": 32}`, nil)
	older := func(dir string) {
		t.Helper()
		m := plugins.Manifest{Scope: "weights", BaseModel: "tiny", ModelHash: e.loaded.info.ModelHash, Rank: 3, TrainAttn: true, TrainMLP: true, SHA256: map[string]string{}}
		if err := os.WriteFile(filepath.Join(dir, plugins.CompleteFile), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile, plugins.CompleteFile} {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(text)
			m.SHA256[file] = hex.EncodeToString(sum[:])
		}
		text, err := m.Encode()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, plugins.ManifestFile), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	older(dir)
	info, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "a", Path: dir})
	if err != nil || info.Config.Rank != 3 || info.Config.Alpha != 32 {
		t.Fatalf("loaded as %+v, %v", info, err)
	}
	d := &driver{t: t, e: e, adapter: "a"}
	equalTensors(t, "weights", d.weights(), tensorsOf(t, filepath.Join(dir, plugins.AdapterWeightsFile)))
	d.pass(randomData(rand.New(rand.NewPCG(3, 3)), 2, 20))
	d.step()
	text, err := os.ReadFile(filepath.Join(d.save(plugins.ScopeOptimizer), plugins.ManifestFile))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := plugins.ParseManifest(text); err != nil || m.Format != 2 || m.Rank != 3 {
		t.Errorf("manifest %s, %v", text, err)
	}
}

// What PEFT would do differently when it trains on is said in a line, and is no reason to refuse.
func TestForeignNotices(t *testing.T) {
	e := start(t, "")
	for _, c := range []struct{ name, option, want string }{
		{"nothing", `"lora_dropout": 0.0, "init_lora_weights": true, "velora_config": null`, ""},
		{"dropout", `"lora_dropout": 0.05`, "lora_dropout 0.05 is not applied"},
		{"frozen B", `"init_lora_weights": "mica"`, "B is trained too"},
		{"compressed gradients", `"velora_config": {"num_groups": 2}`, "velora_config is not applied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			info, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: c.name, Path: foreign(t, `{"peft_type": "LORA", "r": 3, "lora_alpha": 6, `+c.option+`}`, nil)})
			if err != nil || strings.Contains(c.want, "\n") || len(info.Notices) != min(1, len(c.want)) || !strings.Contains(strings.Join(info.Notices, ""), c.want) {
				t.Errorf("notices %q, %v; want %q", info.Notices, err, c.want)
			}
		})
	}
}

func TestForeignAdapterRefused(t *testing.T) {
	e := start(t, "")
	plain := `{"peft_type": "LORA", "r": 3, "lora_alpha": 32}`
	with := func(option string) string { return strings.TrimSuffix(plain, "}") + ", " + option + "}" }
	const a = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
	for _, c := range []struct {
		name, config, message string
		change                func(map[string][]float32)
		kind                  error
	}{
		{"not JSON", `{`, "adapter_config.json", nil, plugins.ErrInvalid},
		{"another method", `{"peft_type": "IA3", "r": 3, "lora_alpha": 32}`, `peft_type "IA3"`, nil, plugins.ErrInvalid},
		{"no rank", `{"peft_type": "LORA", "lora_alpha": 32}`, "r 0", nil, plugins.ErrInvalid},
		{"another rank", `{"peft_type": "LORA", "r": 4, "lora_alpha": 32}`, "shape", nil, plugins.ErrInvalid},
		{"huge rank", `{"peft_type": "LORA", "r": 100000, "lora_alpha": 32}`, "r 100000", nil, plugins.ErrInvalid},
		{"no alpha", `{"peft_type": "LORA", "r": 3}`, "lora_alpha 0", nil, plugins.ErrInvalid},
		{"alpha 0", `{"peft_type": "LORA", "r": 3, "lora_alpha": 0}`, "lora_alpha 0", nil, plugins.ErrInvalid},
		{"alpha of some modules only", `{"peft_type": "LORA", "r": 3, "alpha_pattern": {"q_proj": 4}}`, "lora_alpha 0 of model.layers.1.mlp.down_proj", nil, plugins.ErrInvalid},
		{"DoRA", with(`"use_dora": true`), "use_dora true", nil, plugins.ErrInvalid},
		{"bias", with(`"bias": "all"`), `bias "all"`, nil, plugins.ErrInvalid},
		{"modules to save", with(`"modules_to_save": ["lm_head"]`), "modules_to_save", nil, plugins.ErrInvalid},
		{"ranks that the tensors have not", with(`"rank_pattern": {"q_proj": 4}`), "has shape [3 32], expected [4 32]", nil, plugins.ErrInvalid},
		{"a rank that is none", with(`"rank_pattern": {"q_proj": 1.5}`), `rank_pattern["q_proj"]`, nil, plugins.ErrInvalid},
		{"an alpha that is none", with(`"alpha_pattern": {"q_proj": -1}`), `alpha_pattern["q_proj"]`, nil, plugins.ErrInvalid},
		{"alphas in a list", with(`"alpha_pattern": [4]`), "alpha_pattern [4]", nil, plugins.ErrInvalid},
		{"a pattern twice", with(`"alpha_pattern": {"q_proj": 4, "q_proj": 5}`), "is there twice", nil, plugins.ErrInvalid},
		{"a pattern that only Python has", with(`"alpha_pattern": {"(?=q)q_proj": 4}`), "is not a regular expression that is supported", nil, plugins.ErrInvalid},
		{"a pattern that Python reads otherwise", with(`"alpha_pattern": {"q{,2}_proj": 4}`), "is not a regular expression that is supported", nil, plugins.ErrInvalid},
		{"PiSSA", with(`"init_lora_weights": "pissa"`), "path_initial_model_for_weight_conversion", nil, plugins.ErrInvalid},
		{"PiSSA by iterations", with(`"init_lora_weights": "pissa_niter_16"`), `init_lora_weights "pissa_niter_16"`, nil, plugins.ErrInvalid},
		{"CorDA", with(`"init_lora_weights": "corda"`), `init_lora_weights "corda"`, nil, plugins.ErrInvalid},
		{"OLoRA", with(`"init_lora_weights": "OLoRA"`), `init_lora_weights "OLoRA"`, nil, plugins.ErrInvalid},
		{"LoRA-GA", with(`"init_lora_weights": "lora_ga"`), `init_lora_weights "lora_ga"`, nil, plugins.ErrInvalid},
		{"LoftQ", with(`"init_lora_weights": "loftq"`), "quantized", nil, plugins.ErrInvalid},
		{"a method that came later", with(`"init_lora_weights": "tomorrow"`), `init_lora_weights "tomorrow" is not known`, nil, plugins.ErrInvalid},
		{"a method as a number", with(`"init_lora_weights": 1`), `init_lora_weights 1 is not known`, nil, plugins.ErrInvalid},
		{"BD-LoRA", with(`"use_bdlora": {"nblocks": 2}`), "use_bdlora", nil, plugins.ErrInvalid},
		{"KaSA", with(`"kasa_config": {"beta": 1}`), "kasa_config", nil, plugins.ErrInvalid},
		{"MonteCLoRA", with(`"monteclora_config": {"num_samples": 2}`), "monteclora_config", nil, plugins.ErrInvalid},
		{"a variant that came later", with(`"use_everything": true`), "use_everything", nil, plugins.ErrInvalid},
		{"settings of a variant that came later", with(`"tomorrow_config": {"a": 1}`), "tomorrow_config", nil, plugins.ErrInvalid},
		{"unknown module", plain, `base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight" belongs to no module`,
			func(v map[string][]float32) {
				v["base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"] = []float32{1}
			}, plugins.ErrInvalid},
		{"unknown tensor", plain, `lora_magnitude_vector" belongs to no module`,
			func(v map[string][]float32) {
				v["base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"] = []float32{1}
			}, plugins.ErrInvalid},
		{"LoRA on the embedding", plain, `lora_embedding_A" is LoRA on the embedding`,
			func(v map[string][]float32) { v["base_model.model.model.embed_tokens.lora_embedding_A"] = []float32{1} }, plugins.ErrInvalid},
		{"half a pair", plain, a + `" is missing`, func(v map[string][]float32) { delete(v, a) }, plugins.ErrInvalid},
		{"nothing", plain, "holds no LoRA tensor", func(v map[string][]float32) { clear(v) }, plugins.ErrInvalid},
		{"not finite", plain, "value 5", func(v map[string][]float32) { v[a][5] = float32(math.NaN()) }, plugins.ErrNotFinite},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "x", Path: foreign(t, c.config, c.change)})
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.message) {
				t.Errorf("got %v, want %v with %q", err, c.kind, c.message)
			}
		})
	}
	if _, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "x", Path: "/nonexistent/checkpoint"}); !errors.Is(err, plugins.ErrNotFound) {
		t.Errorf("a missing directory: %v", err)
	}
	if _, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "x", Path: foreign(t, plain, nil), Scope: plugins.ScopeOptimizer}); !errors.Is(err, plugins.ErrInvalid) {
		t.Errorf("an optimizer from nowhere: %v", err)
	}
}

// What leaves A and B as they are is taken: settings of a method that was not used, a method that changes no base.
func TestForeignOptionsTaken(t *testing.T) {
	for _, option := range []string{
		`"init_lora_weights": true`, `"init_lora_weights": false`, `"init_lora_weights": null`, `"init_lora_weights": "gaussian"`, `"init_lora_weights": "eva", "eva_config": {"rho": 2.0}`,
		`"init_lora_weights": "orthogonal"`, `"init_lora_weights": true, "corda_config": {"verbose": false}`, `"loftq_config": {}`, `"use_bdlora": null`, `"use_tomorrow": false`, `"tomorrow_config": null`,
		`"rank_pattern": null, "alpha_pattern": {}`, `"qalora_group_size": 16, "megatron_core": "megatron.core", "runtime_config": {"ephemeral_gpu_offload": false}`,
	} {
		if _, err := decodePEFT([]byte(`{"peft_type": "LORA", "r": 3, "lora_alpha": 6, `+option+`}`), lora.MaxRank); err != nil {
			t.Errorf("%s: %v", option, err)
		}
	}
}

func FuzzDecodePEFT(f *testing.F) {
	f.Add([]byte(`{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_rslora": true}`))
	f.Add([]byte(`{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "rank_pattern": {"q_proj": 5}, "alpha_pattern": {"layers.0.*": 1e12, "lm_head": 2}, "init_lora_weights": "eva"}`))
	f.Add([]byte(`{"r": -1}`))
	modules := []lora.Module{{Name: "model.layers.0.self_attn.q_proj", Group: lora.Attention, Out: 8, In: 4}, {Name: "lm_head", Group: lora.Unembed, Out: 16, In: 4}}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := decodePEFT(text, lora.MaxRank)
		if err != nil {
			return
		}
		layout, ranks, err := c.fit(modules, func(lora.Module) bool { return true }, false)
		if err != nil { // an alpha that is none any more over a larger rank
			return
		}
		for i := range modules {
			if scale := layout.Scale(i); ranks[i] < 1 || ranks[i] > layout.Rank || layout.Rank > lora.MaxRank || !(scale > 0) || !finite(float64(scale)) {
				t.Errorf("accepted %s as rank %d of %d, factor %v", text, ranks[i], layout.Rank, scale)
			}
		}
		config, err := encodePEFT("base", layout, nil, lora.PEFT, stackedExperts)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodePEFT(config, lora.MaxRank)
		if err != nil {
			t.Fatalf("%s became %s, which is refused: %v", text, config, err)
		}
		if same, _, err := again.fit(modules, func(lora.Module) bool { return true }, true); err != nil || same.Rank != layout.Rank || same.Scale(0) != layout.Scale(0) || same.Scale(1) != layout.Scale(1) {
			t.Errorf("%s became %s, which is another adapter: %v", text, config, err)
		}
	})
}
