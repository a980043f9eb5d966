package engine

import (
	"context"
	"encoding/json"
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

func (d *driver) save(scope plugins.Scope) string {
	d.t.Helper()
	path := filepath.Join(d.t.TempDir(), "checkpoint")
	if _, err := d.e.SaveAdapter(context.Background(), plugins.SaveAdapterRequest{Adapter: d.adapter, Position: d.position(), Scope: scope, Path: path}); err != nil {
		d.t.Fatal(err)
	}
	return path
}

func load(t testing.TB, e *Engine, id, path string, scope plugins.Scope) *driver {
	t.Helper()
	if _, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: id, Path: path, Scope: scope}); err != nil {
		t.Fatal(err)
	}
	return &driver{t: t, e: e, adapter: id}
}

// A run that was saved in the middle of a window and loaded, into a new adapter, an existing one, or another process, goes on with the same bits.
func TestResume(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	var data [][]plugins.Datum
	for range 6 {
		data = append(data, randomData(random, 3, 50))
	}
	e := start(t, `{"threads": 1}`)
	a := create(t, e, "a", 1, 8)
	a.pass(data[0])
	a.step()
	a.pass(data[1])
	path := a.save(plugins.ScopeAccumulator)
	finish := func(d *driver) map[string][]float32 {
		d.pass(data[2])
		d.step()
		d.pass(data[3])
		d.step()
		return d.weights()
	}
	want := finish(a)

	equalTensors(t, "new adapter", finish(load(t, e, "b", path, plugins.ScopeAccumulator)), want)
	equalTensors(t, "another process", finish(load(t, start(t, ""), "a", path, plugins.ScopeAccumulator)), want)
	c := create(t, e, "c", 9, 8)
	c.pass(data[4])
	c.step()
	c.pass(data[5])
	info, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "c", Position: c.position(), Path: path, Scope: plugins.ScopeAccumulator})
	if err != nil {
		t.Fatal(err)
	}
	if info.Version != 2 || info.Step != 1 || info.Config.Seed != 9 {
		t.Errorf("loaded as version %d step %d seed %d; want 2, 1, 9", info.Version, info.Step, info.Config.Seed)
	}
	equalTensors(t, "existing adapter", finish(c), want)

	// Weights alone start Adam anew and have no accumulated gradient.
	w := load(t, e, "w", path, plugins.ScopeWeights)
	got := finish(w)
	if same := maps.EqualFunc(got, want, slices.Equal[[]float32]); same {
		t.Error("loading weights alone has brought the optimizer's state along")
	}
}

func TestCheckpointFiles(t *testing.T) {
	e := start(t, "")
	d := create(t, e, "a", 1, 2)
	d.pass(randomData(rand.New(rand.NewPCG(5, 5)), 2, 20))
	d.step()
	path := filepath.Join(t.TempDir(), "c")
	result, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "a", Position: d.position(), Scope: plugins.ScopeOptimizer, Path: path, ExportNames: plugins.ExportTinker,
		Metadata: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	var size int64
	for _, f := range entries {
		names = append(names, f.Name())
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if want := []string{"adapter_config.json", "adapter_model.safetensors", "checkpoint.json", "checkpoint_complete", "optimizer.safetensors"}; !slices.Equal(names, want) {
		t.Errorf("files %v, want %v", names, want)
	}
	if result.Bytes != size || result.Version != 1 || result.Step != 1 {
		t.Errorf("result %+v, want %d bytes of version 1, step 1", result, size)
	}
	if _, ok := tensorsOf(t, filepath.Join(path, plugins.AdapterWeightsFile))["base_model.model.model.unembed_tokens.lora_A.weight"]; !ok {
		t.Error("the output head does not have its Tinker name")
	}
	text, err := os.ReadFile(filepath.Join(path, plugins.ManifestFile))
	if err != nil {
		t.Fatal(err)
	}
	var m plugins.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	if m.Scope != "optimizer" || m.BaseModel != "tiny" || m.Rank != 2 || m.Metadata["k"] != "v" || len(m.SHA256) != 4 || m.Topology != "single cpu" {
		t.Errorf("manifest %+v", m)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("temporary directories are left: %v", left)
	}
	if _, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "a", Version: plugins.LatestVersion, Path: path}); !errors.Is(err, plugins.ErrInvalid) {
		t.Errorf("a checkpoint was written over another: %v", err)
	}
	load(t, e, "b", path, plugins.ScopeOptimizer)
}

// Whatever happens to a file of a checkpoint, loading it fails with a reason and makes no adapter. Without its marker or in part, as a crash might leave it, it is no checkpoint either.
func TestDamagedCheckpoint(t *testing.T) {
	e := start(t, "")
	d := create(t, e, "a", 1, 2)
	d.pass(randomData(rand.New(rand.NewPCG(6, 6)), 2, 20))
	d.step()
	good := d.save(plugins.ScopeAccumulator)
	for _, file := range []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile, plugins.OptimizerFile, plugins.AccumulatorFile, plugins.CompleteFile, plugins.ManifestFile} {
		for name, damage := range map[string]func(path string, content []byte) error{
			"missing": func(path string, _ []byte) error { return os.Remove(path) },
			"cut":     func(path string, content []byte) error { return os.WriteFile(path, content[:len(content)*2/3], 0o644) },
			"flipped": func(path string, content []byte) error { return os.WriteFile(path, flip(content), 0o644) },
			"link": func(path string, _ []byte) error {
				return errors.Join(os.Remove(path), os.Symlink(filepath.Join(good, file), path))
			},
			"directory": func(path string, _ []byte) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) },
		} {
			if file == plugins.CompleteFile && (name == "cut" || name == "flipped") {
				continue // it is empty
			}
			t.Run(file+" "+name, func(t *testing.T) {
				bad := filepath.Join(t.TempDir(), "bad")
				if err := os.CopyFS(bad, os.DirFS(good)); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(bad, file)
				content, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := damage(path, content); err != nil {
					t.Fatal(err)
				}
				_, err = e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "bad", Path: bad, Scope: plugins.ScopeAccumulator})
				if !errors.Is(err, plugins.ErrInvalid) {
					t.Fatalf("got %v", err)
				}
				if _, err := e.Pin(t.Context(), plugins.PinRequest{Adapter: "bad", Name: "p"}); !errors.Is(err, plugins.ErrNotFound) {
					t.Fatalf("a failed load has made an adapter: %v", err)
				}
			})
		}
	}
	load(t, e, "good", good, plugins.ScopeAccumulator)
}

func flip(content []byte) []byte {
	c := slices.Clone(content)
	c[len(c)-len(c)/4-1] ^= 4
	return c
}

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
		if shape == nil {
			shape = []int{len(v)}
		}
		sources = append(sources, safetensors.Float32Source(name, shape, func() ([]float32, error) { return v, nil }))
	}
	f, err := os.Create(filepath.Join(dir, plugins.AdapterWeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := safetensors.Write(f, nil, sources); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, plugins.AdapterConfigFile), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestForeignAdapter(t *testing.T) {
	e := start(t, "")
	const b = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"
	for _, c := range []struct {
		name, config string
		factor       float64
	}{
		{"alpha 32", `{"peft_type": "LORA", "r": 3, "lora_alpha": 32}`, 1},
		{"alpha 6", `{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none", "modules_to_save": null, "rank_pattern": {}, "use_dora": false}`, 6.0 / 32},
		{"rank-stabilised", `{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_rslora": true}`, 6 * math.Sqrt(3) / 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := foreign(t, c.config, nil)
			info, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: c.name, Path: path, Frozen: true})
			if err != nil {
				t.Fatal(err)
			}
			if info.Config.Rank != 3 || !slices.Equal(info.Config.Modules, []string{"q_proj", "down_proj"}) || !info.Config.TrainAttention || !info.Config.TrainMLP || info.Config.TrainUnembed {
				t.Errorf("configuration %+v", info.Config)
			}
			d := &driver{t: t, e: e, adapter: c.name}
			got := d.weights()
			want := tensorsOf(t, filepath.Join(path, plugins.AdapterWeightsFile))
			for i := range want[b] {
				want[b][i] = float32(float64(want[b][i]) * c.factor)
			}
			equalBits(t, "B", got[b], want[b])
			if _, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: c.name, Position: 1, Loss: "cross_entropy"}); !errors.Is(err, plugins.ErrInvalid) {
				t.Errorf("a frozen adapter was trained: %v", err)
			}
			if _, err := collect(t.Context(), e, ask("q", c.name, []int32{1, 2}, 1, 3)); err != nil {
				t.Error(err)
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
		{"DoRA", with(`"use_dora": true`), "use_dora true", nil, plugins.ErrInvalid},
		{"bias", with(`"bias": "all"`), `bias "all"`, nil, plugins.ErrInvalid},
		{"modules to save", with(`"modules_to_save": ["lm_head"]`), "modules_to_save", nil, plugins.ErrInvalid},
		{"ranks by module", with(`"rank_pattern": {"q_proj": 4}`), "rank_pattern", nil, plugins.ErrInvalid},
		{"alphas by module", with(`"alpha_pattern": {"q_proj": 4}`), "alpha_pattern", nil, plugins.ErrInvalid},
		{"unknown module", plain, `base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight" belongs to no module`,
			func(v map[string][]float32) {
				v["base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"] = []float32{1}
			}, plugins.ErrInvalid},
		{"unknown tensor", plain, `lora_magnitude_vector" belongs to no module`,
			func(v map[string][]float32) {
				v["base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"] = []float32{1}
			}, plugins.ErrInvalid},
		{"half a pair", plain, a + `" is missing`, func(v map[string][]float32) { delete(v, a) }, plugins.ErrInvalid},
		{"nothing", plain, "holds no tensor", func(v map[string][]float32) { clear(v) }, plugins.ErrInvalid},
		{"not finite", plain, "value 5", func(v map[string][]float32) { v[a][5] = float32(math.NaN()) }, plugins.ErrNotFinite},
		{"not finite when scaled", `{"peft_type": "LORA", "r": 3, "lora_alpha": 1e6}`, "is not finite",
			func(v map[string][]float32) {
				v["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"][1] = 3e38
			}, plugins.ErrInvalid},
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

// A load that fails leaves weights and pins alone, and fails what comes behind it until another load succeeds.
func TestFailedLoadInOrder(t *testing.T) {
	e := start(t, "")
	d := create(t, e, "a", 1, 4)
	other := create(t, e, "b", 1, 8).save(plugins.ScopeWeights)
	own := d.save(plugins.ScopeWeights)
	before := d.weights()
	if _, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "a", Position: d.position(), Path: other}); !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), "rank 8") {
		t.Fatalf("another rank was loaded: %v", err)
	}
	if _, err := e.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: "a", Position: d.position(), Adam: adamDefaults}); !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), "an earlier load failed") {
		t.Errorf("a step behind a failed load: %v", err)
	}
	equalTensors(t, "weights", d.weights(), before)
	if _, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "a", Position: d.position(), Path: own}); err != nil {
		t.Fatal(err)
	}
	d.step()
}

func FuzzDecodePEFT(f *testing.F) {
	f.Add([]byte(`{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_rslora": true}`))
	f.Add([]byte(`{"r": -1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := decodePEFT(text, lora.MaxRank)
		if err == nil && (s.rank < 1 || s.rank > lora.MaxRank || !(s.factor > 0)) {
			t.Errorf("accepted %s as %+v", text, s)
		}
	})
}
