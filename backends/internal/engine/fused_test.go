package engine

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

// saved writes an adapter's newest weights as others read them.
func (d *driver) saved(names string) string {
	d.t.Helper()
	path := filepath.Join(d.t.TempDir(), "saved")
	if _, err := d.e.SaveAdapter(d.t.Context(), plugins.SaveAdapterRequest{Adapter: d.adapter, Version: plugins.LatestVersion, Path: path, ExportNames: names}); err != nil {
		d.t.Fatal(err)
	}
	return path
}

// TestEvenPart: alphas of parts that were added up come back bit for bit.
func TestEvenPart(t *testing.T) {
	quotients := 0 // that are another number
	for k := range 100000 {
		alpha := float64(k+1) / 1000
		for n := 1; n <= mostFused; n++ {
			sum := 0.0
			for range n {
				sum += alpha
			}
			if sum/float64(n) != alpha {
				quotients++
			}
			if got := evenPart(sum, n); got != alpha {
				t.Fatalf("%d times %v: %v", n, alpha, got)
			}
		}
	}
	if quotients == 0 {
		t.Error("every quotient is right too: nothing was shown")
	}
	if got := evenPart(math.Nextafter(3, 4), 3); math.Abs(got-1) > 1e-15 { // nothing makes it
		t.Errorf("%v", got)
	}
}

// TestFusedModules: LoRA on modules that PEFT has as one goes to its parts, and comes out as one; what came out goes in and out again bit for bit.
func TestFusedModules(t *testing.T) {
	e := openModel(t, "phi3")
	const q = "model.layers.0.self_attn.q_proj"
	peft := func(name string) string { return absolute(t, filepath.Join("testdata", "peft", name)) }
	rankOf := func(d *driver) int { return e.runs[d.adapter].layout.Rank }

	diagonal := load(t, e, "diagonal", peft("fused-diagonal"), plugins.ScopeWeights)
	if rankOf(diagonal) != 2 {
		t.Errorf("rank %d, want that of the parts", rankOf(diagonal))
	}
	want := tensorsOf(t, filepath.Join(peft("fused-diagonal"), plugins.AdapterWeightsFile))
	saved := diagonal.saved(plugins.ExportPEFT)
	equalTensors(t, "saved again", tensorsOf(t, filepath.Join(saved, plugins.AdapterWeightsFile)), want)
	var config struct {
		R         int                `json:"r"`
		LoraAlpha float64            `json:"lora_alpha"`
		Ranks     map[string]int     `json:"rank_pattern"`
		Alphas    map[string]float64 `json:"alpha_pattern"`
		Targets   []string           `json:"target_modules"`
	}
	text, err := os.ReadFile(filepath.Join(saved, plugins.AdapterConfigFile))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(config.Targets)
	if config.R != 2 || config.LoraAlpha != 6 || config.Ranks["model.layers.1.self_attn.qkv_proj"] != 6 || config.Alphas["model.layers.1.self_attn.qkv_proj"] != 18 || config.Ranks["model.layers.0.mlp.gate_up_proj"] != 4 ||
		config.Alphas["model.layers.0.self_attn.o_proj"] != 6 || len(config.Ranks) != 4 || len(config.Alphas) != 8 || !slices.Equal(config.Targets, []string{"down_proj", "gate_up_proj", "o_proj", "qkv_proj"}) {
		t.Errorf("saved with %s", text)
	}
	if err := os.Remove(filepath.Join(saved, plugins.ManifestFile)); err != nil {
		t.Fatal(err)
	}
	again := load(t, e, "again", saved, plugins.ScopeWeights)
	equalTensors(t, "loaded again", again.weights(), diagonal.weights())

	// An A that is one is each part's, and is not taken for another's on a diagonal.
	one := load(t, e, "one", peft("fused"), plugins.ScopeWeights)
	weights := one.weights()
	for _, part := range []string{"k_proj", "v_proj"} {
		a := "base_model.model." + strings.Replace(q, "q_proj", part, 1) + ".lora_A.weight"
		equalBits(t, a, weights[a], weights["base_model.model."+q+".lora_A.weight"])
	}
	if notices := e.runs["one"].notices; !slices.ContainsFunc(notices, func(s string) bool {
		return strings.Contains(s, "self_attn.qkv_proj is trained as 3 modules")
	}) {
		t.Errorf("notices %q", notices)
	}
	tokens := []int32{9, 8, 7, 6, 5, 4, 3, 2, 1}
	before := one.prompted(tokens)
	for _, names := range []string{plugins.ExportPEFT, plugins.ExportTinker} {
		id := "one " + names
		other := load(t, e, id, one.saved(names), plugins.ScopeWeights)
		equalBits(t, id, other.prompted(tokens), before)
		equalTensors(t, id, other.weights(), weights)
	}
}

func TestFusedModulesRefused(t *testing.T) {
	e := openModel(t, "phi3")
	const fused = "base_model.model.model.layers.0.self_attn.qkv_proj"
	for _, c := range []struct {
		name   string
		change func(s *safetensors.Source) bool
		config string // in the place of lora_alpha
		want   string
	}{
		{"no B", func(s *safetensors.Source) bool { return s.Name != fused+".lora_B.weight" }, "", "qkv_proj.lora_B.weight\" is missing"},
		{"another shape", func(s *safetensors.Source) bool {
			if s.Name == fused+".lora_B.weight" {
				s.Shape = []int{64, 6}
			}
			return true
		}, "", "has shape [64 6], expected [128 3]"},
		{"alone and as one", func(s *safetensors.Source) bool {
			s.Name = strings.Replace(s.Name, "layers.0.self_attn.o_proj", "layers.0.self_attn.q_proj", 1)
			return true
		}, "", "holds LoRA of model.layers.0.self_attn.q_proj alone and with others as one"},
		{"a rank beyond all bounds", func(*safetensors.Source) bool { return true }, `"rank_pattern": {"qkv_proj": 4096}, `, "rank_pattern"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "peft", "fused"))); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, plugins.AdapterWeightsFile)
			var all []safetensors.Source
			for name, values := range tensorsOf(t, path) {
				shape := shapeOf(t, path, name)
				s := safetensors.Float32Source(name, shape, func() ([]float32, error) { return values, nil })
				if c.change(&s) {
					n := 1
					for _, d := range s.Shape {
						n *= d
					}
					s.Write = safetensors.Float32Source(name, s.Shape, func() ([]float32, error) { return values[:n], nil }).Write
					all = append(all, s)
				}
			}
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, _, err := safetensors.Write(f, nil, all); err != nil {
				t.Fatal(err)
			}
			if c.config != "" {
				text, err := os.ReadFile(filepath.Join(dir, plugins.AdapterConfigFile))
				if err != nil {
					t.Fatal(err)
				}
				changed := strings.Replace(strings.Replace(string(text), `"rank_pattern": {},`, "", 1), `"lora_alpha"`, c.config+`"lora_alpha"`, 1)
				if err := os.WriteFile(filepath.Join(dir, plugins.AdapterConfigFile), []byte(changed), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err = e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: c.name, Path: dir, Scope: plugins.ScopeWeights})
			if !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func shapeOf(t *testing.T, path, name string) []int {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, _ := f.Tensor(name)
	return x.Shape
}
