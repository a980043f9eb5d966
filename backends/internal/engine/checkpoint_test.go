package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	if _, ok := tensorsOf(t, filepath.Join(path, plugins.AdapterWeightsFile))["base_model.model.lm_head.lora_A.weight"]; !ok {
		t.Error("a head that is the embedding's does not have the name by which nobody takes it for the embedding")
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

// TestTrainingCheckpointForOthers: a checkpoint with the modules that are trained here comes out as PEFT has them, when it is loaded to be sampled and written again.
func TestTrainingCheckpointForOthers(t *testing.T) {
	e := openModel(t, "phi3")
	d := create(t, e, "a", 1, 4)
	if _, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "frozen", Path: d.save(plugins.ScopeOptimizer), Scope: plugins.ScopeWeights, Frozen: true}); err != nil {
		t.Fatal(err)
	}
	frozen := &driver{t: t, e: e, adapter: "frozen"}
	got, want := frozen.saved(plugins.ExportPEFT), d.saved(plugins.ExportPEFT)
	for _, file := range []string{plugins.AdapterWeightsFile, plugins.AdapterConfigFile} {
		a, err := os.ReadFile(filepath.Join(got, file))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(want, file))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s is not that of the run", file)
		}
	}
	if _, joined := tensorsOf(t, filepath.Join(got, plugins.AdapterWeightsFile))["base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight"]; !joined {
		t.Error("the modules are apart")
	}
}
