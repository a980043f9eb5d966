package merge

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	expertCount, expertWidth, expertHidden, expertRank = 3, 3, 6, 2 // a gate and an up are as wide as high
	expertLayer                                        = "model.layers.0.mlp.experts."
)

// officialExperts makes the LoRA of a layer of experts as the Tinker service has it: gates and ups share A, downs B.
func officialExperts(draw *rand.Rand) map[string]matrix {
	adapter := map[string]matrix{}
	for kind, shapes := range map[string][2][]int64{
		"w1": {{1, expertRank, expertHidden}, {expertCount, expertWidth, expertRank}}, "w3": {{1, expertRank, expertHidden}, {expertCount, expertWidth, expertRank}},
		"w2": {{expertCount, expertRank, expertWidth}, {1, expertHidden, expertRank}},
	} {
		for k, shape := range shapes {
			adapter[namePrefix+expertLayer+kind+".lora_"+string("AB"[k])+".weight"] = random(draw, typeFloat32, shape...)
		}
	}
	return adapter
}

// change is scale · B·A of an expert, row by row.
func change(adapter map[string]matrix, kind string, expert int, scale float64) [][]float64 {
	a, b := adapter[namePrefix+expertLayer+kind+".lora_A.weight"], adapter[namePrefix+expertLayer+kind+".lora_B.weight"]
	of := func(m matrix) []float32 {
		n := int(m.shape[1] * m.shape[2])
		at := min(expert, int(m.shape[0])-1) * n
		return m.values[at : at+n]
	}
	columns := int(a.shape[2])
	var rows [][]float64
	for factors := range slices.Chunk(of(b), expertRank) {
		row := make([]float64, columns)
		for k, f := range factors {
			for j := range row {
				row[j] += scale * float64(f) * float64(of(a)[k*columns+j])
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func transposedRows(rows [][]float64) [][]float64 {
	out := make([][]float64, len(rows[0]))
	for _, row := range rows {
		for j, v := range row {
			out[j] = append(out[j], v)
		}
	}
	return out
}

// inTurnsOf has rows of one matrix between those of another.
func inTurnsOf(a, b [][]float64) [][]float64 {
	var rows [][]float64
	for i := range a {
		rows = append(rows, a[i], b[i])
	}
	return rows
}

// TestMergeOfExperts: an adapter in the layout of the Tinker service goes into a base that has each expert's matrices apart, all of a layer in two tensors, or these transposed, with gates and ups behind each other or in turns.
func TestMergeOfExperts(t *testing.T) {
	for _, c := range []struct{ name, architecture, alphas string }{
		{"apart", "Qwen3MoeForCausalLM", ""}, {"stacked", "Qwen3_5MoeForConditionalGeneration", ""}, {"transposed", "Qwen3VLMoeForConditionalGeneration", ""},
		{"not transposed", "Qwen3VLMoeForConditionalGeneration", ""},
		{"in turns", "GptOssForCausalLM", ""}, {"in turns with alphas", "GptOssForCausalLM", `"w1": 4, "w2": 6, "w3": 8`},
		{"with alphas", "Qwen3_5MoeForConditionalGeneration", `"w1": 4, "w2": 6, "w3": 8`},
	} {
		t.Run(c.name, func(t *testing.T) {
			draw := rand.New(rand.NewPCG(7, 8))
			adapter := officialExperts(draw)
			scales := map[string]float64{"w1": 2, "w2": 2, "w3": 2}
			config := `{"peft_type": "LORA", "r": 2, "lora_alpha": 4}`
			if c.alphas != "" {
				scales = map[string]float64{"w1": 2, "w2": 3, "w3": 4}
				config = `{"peft_type": "LORA", "r": 2, "alpha_pattern": {` + strings.ReplaceAll(c.alphas, `"w`, `"`+expertLayer+`w`) + `}}`
			}
			base, want := map[string]matrix{}, map[string][]float64{}
			put := func(name string, shape []int64, rows [][]float64) {
				m := random(draw, typeFloat32, shape...)
				base[name] = m
				for i, v := range slices.Concat(rows...) {
					want[name] = append(want[name], float64(m.values[i])+v)
				}
			}
			var both, downs [][]float64
			for e := range expertCount {
				gate, up, down := change(adapter, "w1", e, scales["w1"]), change(adapter, "w3", e, scales["w3"]), change(adapter, "w2", e, scales["w2"])
				switch c.name {
				case "apart":
					for kind, rows := range map[string][][]float64{"gate_proj": gate, "up_proj": up, "down_proj": down} {
						put(fmt.Sprintf("%s%d.%s.weight", expertLayer, e, kind), []int64{int64(len(rows)), int64(len(rows[0]))}, rows)
					}
				case "in turns", "in turns with alphas":
					both, downs = append(both, transposedRows(inTurnsOf(gate, up))...), append(downs, transposedRows(down)...)
				case "transposed":
					both, downs = append(both, transposedRows(append(gate, up...))...), append(downs, transposedRows(down)...)
				default:
					both, downs = append(append(both, gate...), up...), append(downs, down...)
				}
			}
			if c.name != "apart" {
				for name, rows := range map[string][][]float64{"gate_up_proj": both, "down_proj": downs} {
					put(inFile(true, expertLayer+name), []int64{expertCount, int64(len(rows) / expertCount), int64(len(rows[0]))}, rows)
				}
			}
			baseDir, adapterDir, dir := t.TempDir(), t.TempDir(), t.TempDir()
			file(t, filepath.Join(baseDir, weightsFile), base)
			text(t, filepath.Join(baseDir, configFile), `{"architectures": ["`+c.architecture+`"]}`)
			file(t, filepath.Join(adapterDir, "adapter_model.safetensors"), adapter)
			text(t, filepath.Join(adapterDir, "adapter_config.json"), config)
			if err := mergeInto(t.Context(), dir, Options{Base: Directory(baseDir), Adapter: adapterDir, ShardBytes: shardBytes}); err != nil {
				t.Fatal(err)
			}
			near(t, tensorsOf(t, dir), want)
		})
	}
}

func near(t *testing.T, got map[string]matrix, want map[string][]float64) {
	t.Helper()
	for name, values := range want {
		if len(got[name].values) != len(values) {
			t.Fatalf("%s has %d values, want %d", name, len(got[name].values), len(values))
		}
		for i, v := range got[name].values {
			if math.Abs(float64(v)-values[i]) > 1e-5 {
				t.Fatalf("%s: value %d is %v, want %v", name, i, v, values[i])
			}
		}
	}
}

// TestMergeByKeyHeads: parts whose rows take turns in one tensor.
func TestMergeByKeyHeads(t *testing.T) {
	const layer, heads, columns, rank = "model.layers.0.linear_attn.", 2, 5, 2
	draw := rand.New(rand.NewPCG(9, 10))
	adapter, want := map[string]matrix{}, map[string][]float64{}
	base := map[string]matrix{layer + "in_proj_qkvz.weight": random(draw, typeFloat32, 24, columns), layer + "in_proj_ba.weight": random(draw, typeFloat32, 8, columns)}
	for name, m := range base {
		for _, v := range m.values {
			want[name] = append(want[name], float64(v))
		}
	}
	put := func(tensor, part string, first, each, period int) { // of every period of rows, each from first on
		a, b := random(draw, typeFloat32, rank, columns), random(draw, typeFloat32, int64(heads*each), rank)
		adapter[namePrefix+layer+part+".lora_A.weight"], adapter[namePrefix+layer+part+".lora_B.weight"] = a, b
		for h := range heads {
			for i := range each {
				for j := range columns {
					for k := range rank {
						want[layer+tensor+".weight"][(h*period+first+i)*columns+j] += 2 * float64(b.values[(h*each+i)*rank+k]) * float64(a.values[k*columns+j])
					}
				}
			}
		}
	}
	put("in_proj_qkvz", "in_proj_q", 0, 2, 12)
	put("in_proj_qkvz", "in_proj_k", 2, 2, 12)
	put("in_proj_qkvz", "in_proj_v", 4, 4, 12)
	put("in_proj_qkvz", "in_proj_z", 8, 4, 12)
	put("in_proj_ba", "in_proj_b", 0, 2, 4)
	put("in_proj_ba", "in_proj_a", 2, 2, 4)
	baseDir, adapterDir, dir := t.TempDir(), t.TempDir(), t.TempDir()
	file(t, filepath.Join(baseDir, weightsFile), base)
	file(t, filepath.Join(adapterDir, "adapter_model.safetensors"), adapter)
	text(t, filepath.Join(adapterDir, "adapter_config.json"), `{"r": 2, "lora_alpha": 4}`)
	o := Options{Base: Directory(baseDir), Adapter: adapterDir, ShardBytes: shardBytes}
	for heads, says := range map[string]string{`{}`: "linear_num_key_heads is 0", `{"linear_num_key_heads": 3}`: "which 3 key heads do not share", `{"linear_num_key_heads": -1}`: "linear_num_key_heads is -1"} {
		text(t, filepath.Join(baseDir, configFile), heads)
		if err := mergeInto(t.Context(), t.TempDir(), o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want %q", err, says)
		}
	}
	text(t, filepath.Join(baseDir, configFile), `{"linear_num_key_heads": 2}`)
	if err := mergeInto(t.Context(), dir, o); err != nil {
		t.Fatal(err)
	}
	near(t, tensorsOf(t, dir), want)
}

func TestExpertsRefused(t *testing.T) {
	const w1 = namePrefix + expertLayer + "w1"
	for _, c := range []struct {
		name   string
		change map[string][]int64 // shapes of the adapter's tensors; nil = none
		base   []int64            // the shape of gate_up_proj
		says   string
	}{
		{"no B", map[string][]int64{w1 + ".lora_B.weight": nil}, nil, "which do not fit"},
		{"two numbers of experts", map[string][]int64{w1 + ".lora_A.weight": {2, expertRank, expertHidden}}, nil, "each must be of 3 experts, or of one for all"},
		{"no experts", map[string][]int64{w1 + ".lora_A.weight": {expertRank, expertHidden}}, nil, "not a matrix of float32, bfloat16 or float16 for each of 1 to 4096 experts"},
		{"another rank", map[string][]int64{w1 + ".lora_A.weight": {1, 3, expertHidden}}, nil, "which do not fit"},
		{"another width", nil, []int64{expertCount, 2*expertWidth + 2, expertHidden}, "the adapter's LoRA of"},
		{"other columns", nil, []int64{expertCount, 2 * expertWidth, expertHidden + 1}, "the adapter's LoRA is for"},
		{"a matrix", nil, []int64{expertCount * 2 * expertWidth, expertHidden}, "not that of a matrix for each"},
		{"fewer experts", nil, []int64{expertCount - 1, 2 * expertWidth, expertHidden}, "has no tensor"},
		{"one expert twice", map[string][]int64{namePrefix + expertLayer + "1.gate_proj.lora_A.weight": {expertRank, expertHidden}}, nil, "alone and with all experts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			draw := rand.New(rand.NewPCG(11, 12))
			adapter := officialExperts(draw)
			for name, shape := range c.change {
				if delete(adapter, name); shape != nil {
					adapter[name] = random(draw, typeFloat32, shape...)
				}
			}
			shape := []int64{expertCount, 2 * expertWidth, expertHidden}
			if c.base != nil {
				shape = c.base
			}
			baseDir, adapterDir := t.TempDir(), t.TempDir()
			file(t, filepath.Join(baseDir, weightsFile), map[string]matrix{expertLayer + "gate_up_proj": random(draw, typeFloat32, shape...), expertLayer + "down_proj": random(draw, typeFloat32, expertCount, expertHidden, expertWidth)})
			text(t, filepath.Join(baseDir, configFile), "{}")
			file(t, filepath.Join(adapterDir, "adapter_model.safetensors"), adapter)
			text(t, filepath.Join(adapterDir, "adapter_config.json"), `{"r": 2, "lora_alpha": 4}`)
			if err := mergeInto(t.Context(), t.TempDir(), Options{Base: Directory(baseDir), Adapter: adapterDir, ShardBytes: shardBytes}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}
