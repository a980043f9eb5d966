package merge

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// writeStacked writes an adapter of two experts with rank 1, as checkpoints have it; more has further tensors and their shapes.
func writeStacked(t *testing.T, more map[string][]int64) string {
	t.Helper()
	const p = "base_model.model.model.layers.0.mlp.experts."
	shapes := map[string][]int64{
		p + "w1.lora_A.weight": {1, 1, 3}, p + "w1.lora_B.weight": {2, 2, 1}, p + "w3.lora_A.weight": {1, 1, 3}, p + "w3.lora_B.weight": {2, 2, 1},
		p + "w2.lora_A.weight": {2, 1, 2}, p + "w2.lora_B.weight": {1, 3, 1}, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": {1, 3},
	}
	for name, shape := range more {
		shapes[name] = shape
	}
	names := make([]string, 0, len(shapes))
	for name := range shapes {
		names = append(names, name)
	}
	slices.Sort(names)
	entries, at := map[string]entry{}, int64(0)
	var data []byte
	for i, name := range names {
		size := int64(4)
		for _, n := range shapes[name] {
			size *= n
		}
		entries[name] = entry{"F32", shapes[name], [2]int64{at, at + size}}
		at += size
		for k := range size {
			data = append(data, byte(17*i+int(k)))
		}
	}
	head, err := encodeHeader(names, entries)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		plugins.AdapterWeightsFile: append(head, data...), plugins.ManifestFile: []byte("{}"),
		plugins.AdapterConfigFile: []byte(`{"r": 1, "target_modules": ["q_proj", "w1", "w3", "w2"], "alpha_pattern": {"model.layers.0.mlp.experts.w1": 3, "model.layers.0.self_attn.q_proj": 4}}`),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func tensorBytes(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	path := filepath.Join(dir, plugins.AdapterWeightsFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := readTensors(t.Context(), Directory(dir), File{plugins.AdapterWeightsFile, int64(len(raw))})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for name, x := range tensors {
		all[name] = raw[x.offset : x.offset+x.size]
	}
	return all
}

func TestSeparateExperts(t *testing.T) {
	dir := writeStacked(t, nil)
	before := tensorBytes(t, dir)
	if err := SeparateExperts(t.Context(), dir, true); err != nil {
		t.Fatal(err)
	}
	after := tensorBytes(t, dir)
	if len(after) != 13 {
		t.Errorf("%d tensors, want 13", len(after))
	}
	const p = "base_model.model.model.layers.0.mlp.experts."
	for name, want := range map[string][]byte{
		p + "0.gate_proj.lora_A.weight": before[p+"w1.lora_A.weight"], p + "1.gate_proj.lora_A.weight": before[p+"w1.lora_A.weight"],
		p + "0.up_proj.lora_B.weight": before[p+"w3.lora_B.weight"][:8], p + "1.up_proj.lora_B.weight": before[p+"w3.lora_B.weight"][8:],
		p + "1.down_proj.lora_A.weight": before[p+"w2.lora_A.weight"][8:], p + "1.down_proj.lora_B.weight": before[p+"w2.lora_B.weight"],
		"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": before["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"],
	} {
		if !slices.Equal(after[name], want) || want == nil {
			t.Errorf("%s is %v, want %v", name, after[name], want)
		}
	}
	var c struct {
		Targets []string           `json:"target_modules"`
		Alphas  map[string]float64 `json:"alpha_pattern"`
		Rank    int                `json:"r"`
	}
	text, err := os.ReadFile(filepath.Join(dir, plugins.AdapterConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Targets, []string{"q_proj", "gate_proj", "up_proj", "down_proj"}) || c.Alphas["model.layers.0.mlp.experts.[0-9]+.gate_proj"] != 3 || c.Alphas["model.layers.0.self_attn.q_proj"] != 4 || c.Rank != 1 {
		t.Errorf("configuration %s", text)
	}
	if _, err := os.Stat(filepath.Join(dir, plugins.ManifestFile)); err == nil {
		t.Error("the manifest is still there")
	}
	again := tensorBytes(t, dir)
	if err := SeparateExperts(t.Context(), dir, true); err != nil || len(tensorBytes(t, dir)) != len(again) {
		t.Errorf("a second time: %v", err)
	}
}

// An adapter that is merged is not read by PEFT: layers with experts and layers without go together, and each expert has its scale.
func TestSeparateExpertsToMerge(t *testing.T) {
	dir := writeStacked(t, map[string][]int64{
		"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": {3, 1},
		"base_model.model.model.layers.1.mlp.up_proj.lora_A.weight":      {1, 3}, "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight": {3, 1},
	})
	path := filepath.Join(dir, plugins.AdapterConfigFile)
	text := `{"r": 1, "target_modules": ["q_proj", "up_proj", "w1", "w3", "w2"], "alpha_pattern": {"model.layers.0.mlp.experts.w1": 3, "model.layers.0.mlp.experts.w2": 5, "model.layers.0.mlp.experts.w3": 6, "model.layers.0.self_attn.q_proj": 4, "model.layers.1.mlp.up_proj": 7}}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SeparateExperts(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	a, err := openAdapter(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	scales := map[string]float64{}
	for name, m := range a.modules {
		scales[name] = m.scale
	}
	const p = "model.layers.0.mlp.experts."
	if want := map[string]float64{
		p + "0.gate_proj": 3, p + "1.gate_proj": 3, p + "0.down_proj": 5, p + "1.down_proj": 5, p + "0.up_proj": 6, p + "1.up_proj": 6, "model.layers.0.self_attn.q_proj": 4, "model.layers.1.mlp.up_proj": 7,
	}; !maps.Equal(scales, want) {
		t.Errorf("scales %v, want %v", scales, want)
	}
}

func TestSeparateExpertsRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		more map[string][]int64
		want string
	}{
		{"a layer without experts", map[string][]int64{"base_model.model.model.layers.1.mlp.up_proj.lora_A.weight": {1, 3}}, "PEFT reads wrong"},
		{"other numbers of experts", map[string][]int64{"base_model.model.model.layers.1.mlp.experts.w1.lora_A.weight": {3, 1, 3}}, "others are of 3 experts"},
		{"no experts", map[string][]int64{"base_model.model.model.layers.1.mlp.experts.w1.lora_A.weight": {1, 3}}, "not that of a matrix for each expert"},
		{"experts without end", map[string][]int64{"base_model.model.model.layers.1.mlp.experts.w1.lora_A.weight": {1 << 40, 0, 3}}, "of at most 4096"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := writeStacked(t, c.more)
			if err := SeparateExperts(t.Context(), dir, true); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
