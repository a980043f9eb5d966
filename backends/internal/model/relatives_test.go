package model_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
)

// rows are those of a matrix.
func (a matrix) rows() [][]float32 {
	return slices.Collect(slices.Chunk(a.values, a.shape[len(a.shape)-1]))
}

// matrices are those of a stack.
func (a matrix) matrices() []matrix {
	var all []matrix
	for v := range slices.Chunk(a.values, a.shape[1]*a.shape[2]) {
		all = append(all, matrix{a.shape[1:], v})
	}
	return all
}

func stackOf(rows [][]float32) matrix {
	return matrix{[]int{len(rows), len(rows[0])}, slices.Concat(rows...)}
}

func (a matrix) transposed() matrix {
	t := matrix{[]int{a.shape[1], a.shape[0]}, make([]float32, len(a.values))}
	for i, row := range a.rows() {
		for j, v := range row {
			t.values[j*a.shape[0]+i] = v
		}
	}
	return t
}

func arrays(t *testing.T, dir string) tensors {
	t.Helper()
	f := open(t, dir, "model.safetensors")
	all := tensors{}
	for _, name := range f.Names() {
		x, _ := f.Tensor(name)
		all[name] = matrix{x.Shape, f.floats(name)}
	}
	return all
}

// modelOf writes a model.
func modelOf(t *testing.T, config map[string]any, all tensors) string {
	t.Helper()
	dir := directory{t, t.TempDir()}
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	dir.file("config.json", string(raw))
	dir.whole("model.safetensors", all)
	return dir.path
}

// next writes a Qwen3.5 with experts as a Qwen3-Next: the rows of linear attention's projections by key heads, and each expert's matrices apart.
func next(t *testing.T, dir string) string {
	t.Helper()
	config := configOf(t, dir)["text_config"].(map[string]any)
	config["architectures"] = []string{"Qwen3NextForCausalLM"}
	n := func(key string) int { return int(config[key].(float64)) }
	heads, dim, each := n("linear_num_key_heads"), n("linear_key_head_dim"), n("linear_num_value_heads")/n("linear_num_key_heads")
	values, width := each*n("linear_value_head_dim"), n("moe_intermediate_size")
	from, to := arrays(t, dir), tensors{"mtp.norm.weight": {[]int{1}, []float32{1}}}
	for name, a := range from {
		own := strings.Replace(name, "model.language_model.", "model.", 1)
		at := func(suffix, instead string) (string, bool) {
			p, ok := strings.CutSuffix(own, suffix)
			return p + instead, ok
		}
		other := func(suffix string) [][]float32 { return from[name[:strings.LastIndex(name, "in_proj")]+suffix].rows() }
		if p, ok := at("in_proj_qkv.weight", "in_proj_qkvz.weight"); ok {
			qkv, z := a.rows(), other("in_proj_z.weight")
			var rows [][]float32
			for h := range heads {
				rows = slices.Concat(rows, qkv[h*dim:(h+1)*dim], qkv[(heads+h)*dim:(heads+h+1)*dim], qkv[2*heads*dim+h*values:2*heads*dim+(h+1)*values], z[h*values:(h+1)*values])
			}
			to[p] = stackOf(rows)
		} else if p, ok := at("in_proj_a.weight", "in_proj_ba.weight"); ok {
			var rows [][]float32
			for h := range heads {
				rows = slices.Concat(rows, other("in_proj_b.weight")[h*each:(h+1)*each], a.rows()[h*each:(h+1)*each])
			}
			to[p] = stackOf(rows)
		} else if p, ok := at("gate_up_proj", ""); ok {
			for e, m := range a.matrices() {
				to[fmt.Sprint(p, e, ".gate_proj.weight")], to[fmt.Sprint(p, e, ".up_proj.weight")] = stackOf(m.rows()[:width]), stackOf(m.rows()[width:])
			}
		} else if p, ok := at("experts.down_proj", "experts."); ok {
			for e, m := range a.matrices() {
				to[fmt.Sprint(p, e, ".down_proj.weight")] = m
			}
		} else if _, ok := at("in_proj_z.weight", ""); ok {
		} else if _, ok := at("in_proj_b.weight", ""); ok {
		} else {
			to[own] = a
		}
	}
	return modelOf(t, config, to)
}

// vision writes a Qwen3, with experts or without, as a Qwen3-VL: its settings in text_config, its tensors below model.language_model, and its experts stacked and transposed.
func vision(t *testing.T, dir, architecture string) string {
	t.Helper()
	text := configOf(t, dir)
	tied := text["tie_word_embeddings"]
	section := int(text["head_dim"].(float64))/2 - 2
	scaling := map[string]any{"rope_type": "default", "mrope_interleaved": true, "mrope_section": []int{section, 1, 1}}
	if rope, ok := text["rope_parameters"].(map[string]any); ok {
		text["rope_theta"] = rope["rope_theta"]
		delete(text, "rope_parameters")
	}
	text["rope_scaling"] = scaling
	to := tensors{"model.visual.pos_embed.weight": {[]int{2, 3}, make([]float32, 6)}}
	stacks := map[string][]matrix{}
	from := arrays(t, dir)
	for _, name := range slices.Sorted(maps.Keys(from)) {
		own, text := strings.CutPrefix(name, "model.")
		if text {
			own = "model.language_model." + own
		} else {
			own = name
		}
		before, behind, expert := strings.Cut(own, ".experts.")
		if !expert {
			to[own] = from[name]
			continue
		}
		number, kind, _ := strings.Cut(behind, ".")
		if before += ".experts."; kind == "gate_proj.weight" {
			up := from[strings.Replace(name, "gate_proj", "up_proj", 1)]
			stacks[before+"gate_up_proj"] = append(stacks[before+"gate_up_proj"], stackOf(append(from[name].rows(), up.rows()...)).transposed())
		} else if kind == "down_proj.weight" {
			stacks[before+"down_proj"] = append(stacks[before+"down_proj"], from[name].transposed())
		}
		if len(number) != 1 {
			t.Fatal("experts are not in order")
		}
	}
	for name, stack := range stacks {
		a := matrix{append([]int{len(stack)}, stack[0].shape...), nil}
		for _, m := range stack {
			a.values = append(a.values, m.values...)
		}
		to[name] = a
	}
	return modelOf(t, map[string]any{"architectures": []string{architecture}, "text_config": text, "tie_word_embeddings": tied, "vision_config": map[string]any{"depth": 1}}, to)
}

// TestRelatives: the same weights as another family's files have them give the same bits, in training and in sampling.
func TestRelatives(t *testing.T) {
	normalised := mixtureConfig()
	normalised["norm_topk_prob"], normalised["mlp_only_layers"], normalised["moe_intermediate_size"] = true, []int{}, normalised["hidden_size"].(int)/2 // of gate and up together the shape does not tell whether they are transposed
	type pair struct{ name, dir, relative string }
	qwen3, experts := unpack(t, "qwen3"), mixtureDirectory(t, normalised, nil)
	pairs := []pair{{"Qwen3-VL", qwen3, vision(t, qwen3, "Qwen3VLForConditionalGeneration")}, {"Qwen3-VL with experts", experts, vision(t, experts, "Qwen3VLMoeForConditionalGeneration")}}
	for _, dir := range hybrids(t) {
		if filepath.Base(dir) == "qwen3.5-moe" {
			pairs = append(pairs, pair{"Qwen3-Next", dir, next(t, dir)})
		}
	}
	for _, p := range pairs {
		for _, d := range dtypes {
			t.Run(p.name+"/"+d.String(), func(t *testing.T) {
				var logprobs, gradient []float32
				for i, dir := range []string{p.dir, p.relative} {
					b := newBench(t, dir, d, 2)
					r := rand.New(rand.NewPCG(41, 42))
					w := b.randomAdapter(4, 1, true, true, true)
					e := b.example(w, b.randomTokens(r, 70), b.randomTokens(r, 70), slices.Repeat([]float32{1}, 70))
					e.Gradient = b.gradient(w.Layout())
					got := b.train(model.TrainOptions{}, e)[0].Logprobs
					sums := b.download(e.Gradient.Flat)
					if i == 0 {
						logprobs, gradient = got, sums
						continue
					}
					if !slices.Equal(got, logprobs) || !slices.Equal(sums, gradient) {
						t.Error("the relative gives other bits")
					}
					if sampled := b.scored(w, e.Tokens, e.Targets, []int{33, 37}); !slices.Equal(sampled, logprobs) {
						t.Error("the sampler gives other bits")
					}
				}
			})
		}
	}
}
