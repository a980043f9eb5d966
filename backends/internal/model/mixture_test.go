package model_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// mixtureConfig is a small model with experts: its first layer has none, its last one's router is zero, so that every token goes to the same experts and the others get none, and the one between has two equal rows.
func mixtureConfig() map[string]any {
	return map[string]any{
		"architectures": []string{"Qwen3MoeForCausalLM"}, "num_hidden_layers": 3, "hidden_size": 40, "intermediate_size": 72, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
		"vocab_size": 128, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
		"norm_topk_prob": false, "mlp_only_layers": []int{0}, "tie_word_embeddings": false,
	}
}

// mixtureTensors are the names and shapes of that model's tensors.
func mixtureTensors(c map[string]any) map[string][]int {
	n := func(key string) int { return c[key].(int) }
	d, v, hd, e, f := n("hidden_size"), n("vocab_size"), n("head_dim"), n("num_experts"), n("moe_intermediate_size")
	dense, _ := c["mlp_only_layers"].([]int)
	shapes := map[string][]int{"model.embed_tokens.weight": {v, d}, "model.norm.weight": {d}, "lm_head.weight": {v, d}}
	for i := range n("num_hidden_layers") {
		p := fmt.Sprintf("model.layers.%d.", i)
		q, k := n("num_attention_heads")*hd, n("num_key_value_heads")*hd
		for name, shape := range map[string][]int{"input_layernorm": {d}, "post_attention_layernorm": {d}, "self_attn.q_norm": {hd}, "self_attn.k_norm": {hd},
			"self_attn.q_proj": {q, d}, "self_attn.k_proj": {k, d}, "self_attn.v_proj": {k, d}, "self_attn.o_proj": {d, q}} {
			shapes[p+name+".weight"] = shape
		}
		if slices.Contains(dense, i) {
			w := n("intermediate_size")
			shapes[p+"mlp.gate_proj.weight"], shapes[p+"mlp.up_proj.weight"], shapes[p+"mlp.down_proj.weight"] = []int{w, d}, []int{w, d}, []int{d, w}
			continue
		}
		shapes[p+"mlp.gate.weight"] = []int{e, d}
		for j := range e {
			x := fmt.Sprintf("%smlp.experts.%d.", p, j)
			shapes[x+"gate_proj.weight"], shapes[x+"up_proj.weight"], shapes[x+"down_proj.weight"] = []int{f, d}, []int{f, d}, []int{d, f}
		}
	}
	return shapes
}

// mixtureDirectory writes the model with random weights; change, unless nil, has its word about each tensor.
func mixtureDirectory(t *testing.T, config map[string]any, change func(name string, values []float32)) string {
	t.Helper()
	shapes := mixtureTensors(config)
	r := rand.New(rand.NewPCG(21, 22))
	all := tensors{}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		size := 1
		for _, n := range shapes[name] {
			size *= n
		}
		values := make([]float32, size)
		for i := range values {
			values[i] = float32(0.2 * r.NormFloat64())
			if strings.Contains(name, "norm") {
				values[i] += 1
			}
		}
		if change != nil {
			change(name, values)
		}
		all[name] = matrix{shapes[name], values}
	}
	return modelOf(t, config, all)
}

// mixture is that directory.
func mixture(t *testing.T) string {
	c := mixtureConfig()
	d := c["hidden_size"].(int)
	return mixtureDirectory(t, c, func(name string, values []float32) {
		switch name {
		case "model.layers.1.mlp.gate.weight":
			copy(values[4*d:5*d], values[1*d:2*d])
		case "model.layers.2.mlp.gate.weight":
			clear(values)
		}
	})
}

// lawful are models that the promises on bits are checked with: those of goldens that are named, and one with experts.
func lawful(t *testing.T, names ...string) map[string]string {
	t.Helper()
	dirs := map[string]string{"mixture": mixture(t)}
	for _, name := range names {
		dirs[name] = unpack(t, name)
	}
	return dirs
}

// ownExperts makes an adapter that has an A and a B for every expert, as PEFT does; of a model without experts one that trains attention only.
func (b *bench) ownExperts(rank int, seed uint64) *lora.Weights {
	b.t.Helper()
	modules := slices.Clone(b.Modules)
	experts := false
	for i, m := range modules {
		if m.Experts > 0 {
			experts = true
			var err error
			if modules[i], err = m.WithCopies(m.Experts, m.Experts); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	l, err := lora.NewLayout(modules, rank, func(m lora.Module) bool { return m.Group == lora.Attention || experts && m.Group == lora.MLP })
	if err != nil {
		b.t.Fatal(err)
	}
	return b.fill(l, seed)
}

type publishedMixture struct {
	name                                       string
	hidden, layers, heads, kvHeads, experts, k int
	width                                      int
	mlp, attention, unembed                    int
}

func (p publishedMixture) config() map[string]any {
	c := mixtureConfig()
	c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"] = p.hidden, p.layers, p.heads, p.kvHeads
	c["num_experts"], c["num_experts_per_tok"], c["moe_intermediate_size"], c["head_dim"], c["vocab_size"], c["mlp_only_layers"] = p.experts, p.k, p.width, 128, 151_936, []int{}
	return c
}

// publishedMixtures are the official service's counts of parameters for each unit of rank.
var publishedMixtures = []publishedMixture{
	{"Qwen3-30B-A3B", 2048, 48, 32, 4, 128, 8, 768, 14_450_688, 835_584, 153_984},
	{"Qwen3-235B-A22B", 4096, 94, 64, 4, 128, 8, 1536, 56_598_528, 3_176_448, 156_032},
}

// The numbers of parameters are those that the official service counts.
func TestParametersOfPublishedMixtures(t *testing.T) {
	for _, p := range publishedMixtures {
		t.Run(p.name, func(t *testing.T) {
			modules := headerModules(t, p.config())
			for _, rank := range []int{1, 32} {
				for _, groups := range []struct {
					attention, mlp, unembed bool
					want                    int
				}{{true, false, false, p.attention}, {false, true, false, p.mlp}, {false, false, true, p.unembed}, {true, true, true, p.attention + p.mlp + p.unembed}} {
					l, err := (&model.Model{Modules: modules}).Layout(rank, groups.attention, groups.mlp, groups.unembed)
					if err != nil {
						t.Fatal(err)
					}
					if l.Size != rank*groups.want {
						t.Errorf("rank %d of %+v: %d parameters", rank, groups, l.Size)
					}
				}
			}
		})
	}
}

// A rank of a model that is cut, or a copy of one that is sharded, holds its part of the experts and of all else that there is much of.
func TestPublishedMixturesAreCut(t *testing.T) {
	for _, p := range publishedMixtures {
		t.Run(p.name, func(t *testing.T) {
			p.layers = 3
			dir := t.TempDir()
			raw, err := json.Marshal(p.config())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
				t.Fatal(err)
			}
			size := func(copies, ranks int) model.Size {
				s, err := model.MeasureWeights(t.Context(), dir, architectures.All(), model.LoadOptions{Sizes: true}, copies, ranks)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			whole := float64(size(1, 1).All)
			for _, n := range []int{2, 4} {
				for _, s := range []model.Size{size(1, n), size(n, 1)} {
					if part := float64(s.Rank) * float64(n) / whole; part > 1.03 {
						t.Errorf("%d ranks or copies hold %.3f of the whole each, want 1/%d", n, part/float64(n), n)
					}
				}
			}
		})
	}
}

// headerModules gives the modules of a model of which there are no weights: a file of zeros that takes no disk.
func headerModules(t *testing.T, config map[string]any) []lora.Module {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	writeHoles(t, filepath.Join(dir, "model.safetensors"), mixtureTensors(config))
	modules, err := model.ReadModules(context.Background(), dir, architectures.All())
	if err != nil {
		t.Fatal(err)
	}
	return modules
}

// writeHoles writes a file of tensors in bfloat16 whose data are a hole.
func writeHoles(t *testing.T, path string, shapes map[string][]int) {
	t.Helper()
	type entry struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header, at := map[string]entry{}, 0
	names := make([]string, 0, len(shapes))
	for n := range shapes {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		size := 2
		for _, k := range shapes[n] {
			size *= k
		}
		header[n] = entry{"BF16", shapes[n], [2]int{at, at + size}}
		at += size
	}
	raw, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	for len(raw)%8 != 0 {
		raw = append(raw, ' ')
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	length := make([]byte, 8)
	for i := range length {
		length[i] = byte(len(raw) >> (8 * i))
	}
	if _, err := f.Write(append(length, raw...)); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(int64(8+len(raw)) + int64(at)); err != nil {
		t.Fatal(err)
	}
}

// What a model with experts must have is refused by name.
func TestMixtureRefused(t *testing.T) {
	for _, c := range []struct {
		name, key string
		value     any
		want      string
	}{
		{"more than there are", "num_experts_per_tok", 7, "num_experts_per_tok is 7"},
		{"none", "num_experts_per_tok", 0, "num_experts_per_tok is 0"},
		{"no number", "num_experts", nil, "num_experts is missing"},
		{"another number", "num_local_experts", 5, "num_local_experts 5"},
		{"no width", "moe_intermediate_size", nil, "moe_intermediate_size is missing"},
		{"another width", "moe_intermediate_size", 25, "gate_proj.weight\" has shape [24 40]"},
		{"a shared expert", "shared_expert_intermediate_size", 8, "shared_expert_intermediate_size is 8"},
		{"fewer experts than in the files", "num_experts", 5, "has shape [6 40]"},
		{"more sparse layers than in the files", "mlp_only_layers", []int{}, "model.layers.0.mlp.gate.weight"},
		{"a step", "decoder_sparse_step", 2, "model.layers.2.mlp.gate_proj.weight"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := mixture(t)
			j := mixtureConfig()
			if j[c.key] = c.value; c.value == nil {
				delete(j, c.key)
			}
			raw, err := json.Marshal(j)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
				t.Fatal(err)
			}
			device, err := cpu.New(cpu.Options{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer device.Close()
			m, err := model.Load(context.Background(), dir, device, architectures.All(), model.LoadOptions{})
			if err == nil {
				m.Free()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// remodel is what a test does to a model.
type remodel = func(text map[string]any, all tensors)

// What is wrong with a model that has experts beside a shared one, among layers of linear attention, is refused by the name of the key or of the tensor.
func TestSharedExpertRefused(t *testing.T) {
	const layer = "model.language_model.layers.0."
	without := func(name string) remodel {
		return func(_ map[string]any, all tensors) { delete(all, name) }
	}
	shaped := func(name string, shape ...int) remodel {
		return func(_ map[string]any, all tensors) {
			n := 1
			for _, s := range shape {
				n *= s
			}
			all[name] = matrix{shape, make([]float32, n)}
		}
	}
	key := func(name string, value any) remodel {
		return func(text map[string]any, _ tensors) {
			if text[name] = value; value == nil {
				delete(text, name)
			}
		}
	}
	value := func(name string, at int, v float64) remodel {
		return func(_ map[string]any, all tensors) { all[name].values[at] = float32(v) }
	}
	for _, c := range []struct {
		name   string
		change remodel
		want   string
	}{
		{"no shared expert in the files", without(layer + "mlp.shared_expert.up_proj.weight"), layer + "mlp.shared_expert.up_proj.weight\" is missing"},
		{"no gate of the shared expert", without(layer + "mlp.shared_expert_gate.weight"), layer + "mlp.shared_expert_gate.weight\" is missing"},
		{"no shared expert in the configuration", key("shared_expert_intermediate_size", nil), "shared_expert_intermediate_size is missing"},
		{"a shared expert of no width", key("shared_expert_intermediate_size", 0), "shared_expert_intermediate_size is missing"},
		{"a shared expert of another width", key("shared_expert_intermediate_size", 41), "shared_expert.gate_proj.weight\" has shape [40 64]"},
		{"a gate for each element", shaped(layer+"mlp.shared_expert_gate.weight", 64, 64), "shared_expert_gate.weight\" has shape [64 64]"},
		{"no experts", without(layer + "mlp.experts.down_proj"), layer + "mlp.experts.down_proj\" is missing"},
		{"experts of another shape", shaped(layer+"mlp.experts.gate_up_proj", 8, 42, 64), "gate_up_proj\" has shape [8 42 64]"},
		{"fewer experts", shaped(layer+"mlp.experts.down_proj", 7, 64, 20), "down_proj\" has shape [7 64 20]"},
		{"experts in both forms", shaped(layer+"mlp.experts.0.down_proj.weight", 64, 20), "experts.0.down_proj.weight\" is not known"},
		{"no router", without(layer + "mlp.gate.weight"), layer + "mlp.gate.weight\" is missing"},
		{"more experts for a token than there are", key("num_experts_per_tok", 9), "num_experts_per_tok is 9"},
		{"layers that are fewer", key("layer_types", []string{"linear_attention"}), "layer_types has 1 entries for 2 layers"},
		{"a layer of another kind", key("layer_types", []string{"linear_attention", "linear_attention"}), "layers.1.linear_attn"},
		{"a decay that is no number", value(layer+"linear_attn.A_log", 1, math.NaN()), "linear_attn.A_log\" has a value that is not finite"},
		{"a gate without end", value(layer+"mlp.shared_expert_gate.weight", 3, math.Inf(1)), "shared_expert_gate.weight\" has a value that is not finite"},
		{"an expert that is no number", value(layer+"mlp.experts.down_proj", 1000, math.NaN()), "experts.down_proj\" has a value that is not finite"},
		{"another model's tensor", shaped(layer+"mlp.shared_experts.up_proj.weight", 2, 2), "shared_experts.up_proj.weight\" is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := unpack(t, "qwen3.5-moe")
			config, all := configOf(t, from), arrays(t, from)
			c.change(config["text_config"].(map[string]any), all)
			if _, _, err := load(t, modelOf(t, config, all), model.LoadOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// NaN in an adapter's experts stays with its own sequences: others' log-probabilities and gradients keep their bits, whatever experts the tokens that are not numbers choose.
func TestNaNInExpertsStays(t *testing.T) {
	b := newBench(t, mixture(t), tensor.Float32, 2)
	r := rand.New(rand.NewPCG(31, 32))
	bad, good := b.randomAdapter(4, 1, true, true, true), b.randomAdapter(8, 2, true, true, true)
	for i, m := range b.Modules {
		if m.Experts == 0 || m.Kind() != lora.ExpertUp {
			continue
		}
		x := bad.Masters.A(i)
		if err := b.device.Upload(x, slices.Repeat([]float32{float32(math.NaN())}, x.Rows*x.Cols)); err != nil {
			t.Fatal(err)
		}
	}
	if err := bad.Pack(); err != nil {
		t.Fatal(err)
	}
	tokens, targets, weights := b.randomTokens(r, 60), b.randomTokens(r, 60), slices.Repeat([]float32{1}, 60)
	own := b.example(good, tokens, targets, weights)
	own.Gradient = b.gradient(good.Layout())
	want := b.train(model.TrainOptions{}, own)[0].Logprobs
	sums := b.download(own.Gradient.Flat)
	spoilt := b.example(bad, b.randomTokens(r, 40), b.randomTokens(r, 40), weights[:40])
	spoilt.Gradient = b.gradient(bad.Layout())
	own = b.example(good, tokens, targets, weights)
	own.Gradient = b.gradient(good.Layout())
	outcomes, err := b.Train(b.work, b.pages, []model.Example{spoilt, own}, model.TrainOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if outcomes[0].Err == nil || outcomes[1].Err != nil {
		t.Errorf("errors %v and %v", outcomes[0].Err, outcomes[1].Err)
	}
	if !slices.Equal(outcomes[1].Logprobs, want) || !slices.Equal(b.download(own.Gradient.Flat), sums) {
		t.Error("another adapter's results changed")
	}
}

// A pass over more tokens than go through a mixture at once has the bits of its sequences one by one, whichever adapters they have.
func TestMixtureOfManyTokens(t *testing.T) {
	const sequences, length = 5, 450 // the last one is in two parts
	b := newBench(t, mixture(t), tensor.Float32, 2)
	r := rand.New(rand.NewPCG(41, 42))
	adapters := []*lora.Weights{b.ownExperts(4, 1), b.randomAdapter(8, 2, true, true, true)}
	var tokens, targets [sequences][]int32
	var weights [sequences][]float32
	for i := range sequences {
		tokens[i], targets[i], weights[i] = b.randomTokens(r, length), b.randomTokens(r, length), slices.Repeat([]float32{1}, length)
	}
	run := func(o model.TrainOptions, together bool) (outcomes []model.Outcome, sums [2][]float32) {
		var gradients [2]*lora.Gradient
		for i, a := range adapters {
			gradients[i] = b.gradient(a.Layout())
		}
		var examples []model.Example
		for i := range sequences {
			e := b.example(adapters[i%2], tokens[i], targets[i], weights[i])
			e.Gradient = gradients[i%2]
			if examples = append(examples, e); together {
				continue
			}
			outcomes = append(outcomes, b.train(o, e)...)
		}
		if together {
			outcomes = b.train(o, examples...)
		}
		for i, g := range gradients {
			sums[i] = b.download(g.Flat)
		}
		return outcomes, sums
	}
	want, sums := run(model.TrainOptions{}, false)
	for name, o := range map[string]model.TrainOptions{"at once": {}, "in steps": {StepWork: 3e6}, "recomputed": {Recompute: true}} {
		got, same := run(o, true)
		for i := range want {
			if !slices.Equal(got[i].Logprobs, want[i].Logprobs) || !slices.Equal(got[i].Loads, want[i].Loads) {
				t.Errorf("%s: log-probabilities or loads of sequence %d differ", name, i)
			}
		}
		for i := range sums {
			if !slices.Equal(same[i], sums[i]) {
				t.Errorf("%s: gradients of adapter %d differ", name, i)
			}
		}
	}
}
