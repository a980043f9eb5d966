package engine

import (
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
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
)

// writeMixture writes a Qwen3-MoE of random weights: layers from dense on have experts, those before have none.
func writeMixture(t testing.TB, dense int) string {
	t.Helper()
	return writeMixtureOf(t, dense, mixtureShape{32, 24, 2, 5, tinyContext})
}

// mixtureShape is what differs among the models of writeMixtureOf.
type mixtureShape struct{ hidden, width, layers, experts, context int }

func writeMixtureOf(t testing.TB, dense int, s mixtureShape) string {
	t.Helper()
	return writeMixtureWith(t, dense, s, 4, 48)
}

// mixtureSizes are what ranks share out of a Qwen3-MoE.
type mixtureSizes struct{ width, heads, intermediate int }

// write is writeMixture of these sizes.
func (s mixtureSizes) write(t testing.TB, dense int) string {
	t.Helper()
	return writeMixtureWith(t, dense, mixtureShape{32, s.width, 2, 5, tinyContext}, s.heads, s.intermediate)
}

// writeMixtureWith is writeMixtureOf with so many heads, and another width of the layers without experts.
func writeMixtureWith(t testing.TB, dense int, s mixtureShape, heads, intermediate int) string {
	t.Helper()
	const kvHeads, headDim = 2, 16
	hidden, width, layers, experts := s.hidden, s.width, s.layers, s.experts
	dir := t.TempDir()
	var only []int
	for i := range dense {
		only = append(only, i)
	}
	config, err := json.Marshal(map[string]any{
		"architectures": []string{"Qwen3MoeForCausalLM"}, "model_type": "qwen3_moe", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": intermediate,
		"num_attention_heads": heads, "num_key_value_heads": kvHeads, "head_dim": headDim, "vocab_size": tinyVocabulary, "max_position_embeddings": s.context,
		"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
		"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": width, "norm_topk_prob": true, "mlp_only_layers": only,
	})
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(7, 7))
	var sources []safetensors.Source
	add := func(name string, shape ...int) {
		values := make([]float32, elements(shape))
		for i := range values {
			values[i] = float32(0.2 * random.NormFloat64())
			if strings.Contains(name, "norm") {
				values[i]++
			}
		}
		sources = append(sources, safetensors.Float32Source(name, shape, func() ([]float32, error) { return values, nil }))
	}
	add("model.embed_tokens.weight", tinyVocabulary, hidden)
	add("lm_head.weight", tinyVocabulary, hidden)
	add("model.norm.weight", hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm.weight", hidden)
		add(p+"post_attention_layernorm.weight", hidden)
		add(p+"self_attn.q_norm.weight", headDim)
		add(p+"self_attn.k_norm.weight", headDim)
		add(p+"self_attn.q_proj.weight", heads*headDim, hidden)
		add(p+"self_attn.k_proj.weight", kvHeads*headDim, hidden)
		add(p+"self_attn.v_proj.weight", kvHeads*headDim, hidden)
		add(p+"self_attn.o_proj.weight", hidden, heads*headDim)
		if i < dense {
			add(p+"mlp.gate_proj.weight", intermediate, hidden)
			add(p+"mlp.up_proj.weight", intermediate, hidden)
			add(p+"mlp.down_proj.weight", hidden, intermediate)
			continue
		}
		add(p+"mlp.gate.weight", experts, hidden)
		add(p+"mlp.experts.gate_up_proj", experts, 2*width, hidden)
		add(p+"mlp.experts.down_proj", experts, hidden, width)
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := safetensors.Write(f, nil, sources); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func startMixture(t testing.TB, dense int, section string) *Engine {
	t.Helper()
	e := open(t)
	if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: writeMixture(t, dense), Name: "tiny", Config: []byte(section)}, nil); err != nil {
		t.Fatal(err)
	}
	return e
}

// saveAs writes the latest weights under names, with experts stacked or as the names have them.
func (d *driver) saveAs(names string, stacked bool) (string, error) {
	d.t.Helper()
	path := filepath.Join(d.t.TempDir(), "checkpoint")
	_, err := d.e.SaveAdapter(d.t.Context(), plugins.SaveAdapterRequest{Adapter: d.adapter, Version: plugins.LatestVersion, Path: path, ExportNames: names, StackedExperts: stacked})
	return path, err
}

// A run on a model with experts that was saved in the middle of a window, and evicted meanwhile, goes on with the same bits.
func TestResumeMixture(t *testing.T) {
	for _, dense := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d layers without experts", dense), func(t *testing.T) {
			random := rand.New(rand.NewPCG(4, 4))
			var data [][]plugins.Datum
			for range 4 {
				data = append(data, randomData(random, 3, 50))
			}
			e := startMixture(t, dense, `{"threads": 1}`)
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
			equalTensors(t, "another process", finish(load(t, startMixture(t, dense, ""), "a", path, plugins.ScopeAccumulator)), want)
		})
	}
}

// An adapter comes back bit for bit from every form that it can be written in, and goes on as it would have.
func TestMixtureExports(t *testing.T) {
	e := startMixture(t, 0, "")
	a := create(t, e, "a", 1, 4)
	random := rand.New(rand.NewPCG(5, 5))
	data, prompt := randomData(random, 3, 40), []int32{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}
	a.pass(data)
	a.step()
	want, logprobs := a.weights(), a.prompted(prompt)
	var trained map[string][]float32
	for _, c := range []struct {
		names, head, sample string
		shape               []int
		tensors             int
		stacked             bool
	}{
		{"", "lm_head", "model.layers.1.mlp.experts.w1.lora_B", []int{5, 24, 4}, 2*(8+6) + 2, false},
		{plugins.ExportTinker, "model.unembed_tokens", "model.layers.0.mlp.experts.w2.lora_B", []int{1, 32, 4}, 2*(8+6) + 2, true},
		{plugins.ExportPEFT, "lm_head", "model.layers.1.mlp.experts.4.down_proj.lora_A", []int{4, 24}, 2*(8+5*6) + 2, false},
		{plugins.ExportPEFT, "lm_head", "model.layers.1.mlp.experts.w1.lora_B", []int{5, 24, 4}, 2*(8+6) + 2, true},
	} {
		t.Run(fmt.Sprintf("names %s stacked %v", c.names, c.stacked), func(t *testing.T) {
			path, err := a.saveAs(c.names, c.stacked)
			if err != nil {
				t.Fatal(err)
			}
			f, err := safetensors.Open(filepath.Join(path, plugins.AdapterWeightsFile))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, ok := f.Tensor("base_model.model." + c.head + ".lora_A.weight"); !ok {
				t.Errorf("no head %s", c.head)
			}
			if x, ok := f.Tensor("base_model.model." + c.sample + ".weight"); !ok || !slices.Equal(x.Shape, c.shape) {
				t.Errorf("%s has shape %v, want %v", c.sample, x.Shape, c.shape)
			}
			if n := len(f.Names()); n != c.tensors {
				t.Errorf("%d tensors, want %d", n, c.tensors)
			}
			b := load(t, e, fmt.Sprint("b", c.names, c.stacked), path, plugins.ScopeWeights)
			equalTensors(t, "weights", b.weights(), want)
			equalBits(t, "log-probabilities", b.prompted(prompt), logprobs)
			b.pass(data)
			b.step()
			if trained == nil {
				trained = b.weights()
			}
			equalTensors(t, "after training", b.weights(), trained)
		})
	}
	mixed := create(t, startMixture(t, 1, ""), "a", 1, 4)
	if _, err := mixed.saveAs(plugins.ExportPEFT, false); err == nil || !strings.Contains(err.Error(), "PEFT reads an adapter on both wrong") {
		t.Errorf("error %v", err)
	}
	for names, stacked := range map[string]bool{plugins.ExportTinker: false, plugins.ExportPEFT: true} {
		if _, err := mixed.saveAs(names, stacked); err != nil {
			t.Errorf("names %s: %v", names, err)
		}
	}
	if _, err := mixed.e.CreateAdapter(t.Context(), plugins.CreateAdapterRequest{Adapter: "attention", Config: plugins.AdapterConfig{Rank: 4, Seed: 1, TrainAttention: true}}); err != nil {
		t.Fatal(err)
	}
	if _, err := (&driver{t: t, e: mixed.e, adapter: "attention"}).saveAs(plugins.ExportPEFT, false); err != nil {
		t.Errorf("an adapter without LoRA on experts: %v", err)
	}
}

// rewrite makes a foreign adapter of a checkpoint: change has its tensors and their shapes.
func rewrite(t *testing.T, from, config string, change func(values map[string][]float32, shapes map[string][]int)) string {
	t.Helper()
	dir := t.TempDir()
	f, err := safetensors.Open(filepath.Join(from, plugins.AdapterWeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	values, shapes := tensorsOf(t, filepath.Join(from, plugins.AdapterWeightsFile)), map[string][]int{}
	for _, n := range f.Names() {
		x, _ := f.Tensor(n)
		shapes[n] = slices.Clone(x.Shape)
	}
	change(values, shapes)
	var sources []safetensors.Source
	for name, v := range values {
		sources = append(sources, safetensors.Float32Source(name, shapes[name], func() ([]float32, error) { return v, nil }))
	}
	writeAdapterFiles(t, dir, config, sources)
	return dir
}

// Files with an A and a B for every expert stay so; files that cannot be right are refused by name.
func TestForeignExperts(t *testing.T) {
	e := startMixture(t, 0, "")
	a := create(t, e, "a", 1, 4)
	a.pass(randomData(rand.New(rand.NewPCG(5, 5)), 3, 40))
	a.step()
	apart, err := a.saveAs(plugins.ExportPEFT, false)
	if err != nil {
		t.Fatal(err)
	}
	stacked, err := a.saveAs("", false)
	if err != nil {
		t.Fatal(err)
	}
	const config = `{"peft_type": "LORA", "r": 4, "lora_alpha": 32}`
	const p = "base_model.model.model.layers.1.mlp.experts."
	// One element of one expert's A makes them all their own.
	own := load(t, e, "own", rewrite(t, apart, config, func(v map[string][]float32, _ map[string][]int) { v[p+"3.gate_proj.lora_A.weight"][0]++ }), plugins.ScopeWeights)
	weights := own.weights()
	if n := len(weights[p+"w1.lora_A.weight"]); n != 5*4*32 {
		t.Errorf("%d values of A, want one for each expert", n)
	}
	if n := len(weights[p+"w2.lora_B.weight"]); n != 5*32*4 {
		t.Errorf("%d values of B, want one for each expert", n)
	}
	own.pass(randomData(rand.New(rand.NewPCG(6, 6)), 3, 40))
	own.step()
	path, err := own.saveAs("", false)
	if err != nil {
		t.Fatal(err)
	}
	equalTensors(t, "trained on", load(t, e, "again", path, plugins.ScopeWeights).weights(), own.weights())
	if err := func() error {
		_, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "a", Position: a.position(), Path: path})
		return err
	}(); err == nil || !strings.Contains(err.Error(), "the checkpoint has 5 A and 5 B") {
		t.Errorf("another number of copies: error %v", err)
	}
	// An adapter of PEFT on the last layers only that was not trained yet has B of zeros, one for each expert.
	fresh := load(t, e, "fresh", rewrite(t, apart, config, func(v map[string][]float32, _ map[string][]int) {
		for name := range v {
			switch {
			case !strings.Contains(name, "down_proj"):
				delete(v, name)
			case strings.Contains(name, "lora_B"):
				clear(v[name])
			}
		}
	}), plugins.ScopeWeights)
	if n := len(fresh.weights()[p+"w2.lora_B.weight"]); n != 5*32*4 {
		t.Errorf("%d values of B, want one for each expert", n)
	}
	for _, c := range []struct {
		name, from string
		change     func(v map[string][]float32, s map[string][]int)
		want       string
	}{
		{"an expert is missing", apart, func(v map[string][]float32, _ map[string][]int) { delete(v, p+"2.up_proj.lora_B.weight") }, `experts.2.up_proj.lora_B.weight" is missing`},
		{"an expert that there is not", apart, func(v map[string][]float32, s map[string][]int) {
			v[p+"5.up_proj.lora_B.weight"], s[p+"5.up_proj.lora_B.weight"] = v[p+"2.up_proj.lora_B.weight"], s[p+"2.up_proj.lora_B.weight"]
		}, "is of expert 5: the model has 5"},
		{"another shape", apart, func(_ map[string][]float32, s map[string][]int) { s[p+"2.up_proj.lora_B.weight"] = []int{4, 24} }, "has shape [4 24], expected [24 4]"},
		{"a stack of some", stacked, func(v map[string][]float32, s map[string][]int) {
			v[p+"w1.lora_B.weight"], s[p+"w1.lora_B.weight"] = v[p+"w1.lora_B.weight"][:4*24*4], []int{4, 24, 4}
		}, "has shape [4 24 4], expected [5 24 4]"},
		{"one expert in both", stacked, func(v map[string][]float32, s map[string][]int) {
			v[p+"w1.lora_B.weight"], s[p+"w1.lora_B.weight"] = v[p+"w1.lora_B.weight"][:24*4], []int{1, 24, 4}
		}, "have one expert"},
		{"two forms", stacked, func(v map[string][]float32, s map[string][]int) {
			v[p+"0.gate_proj.lora_A.weight"], s[p+"0.gate_proj.lora_A.weight"] = make([]float32, 4*32), []int{4, 32}
		}, "is there"},
		{"not finite", stacked, func(v map[string][]float32, _ map[string][]int) { v[p+"w2.lora_A.weight"][7] = float32(math.NaN()) }, "NaN"},
		{"an expert's number as no program writes it", apart, func(v map[string][]float32, s map[string][]int) {
			v[p+"02.up_proj.lora_B.weight"], s[p+"02.up_proj.lora_B.weight"] = v[p+"2.up_proj.lora_B.weight"], s[p+"2.up_proj.lora_B.weight"]
		}, "belongs to no module"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "bad", Path: rewrite(t, c.from, config, c.change)})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// Names of experts are compared with keys of a configuration as often as takes seconds, not hours.
func TestKeysForExpertsAreBounded(t *testing.T) {
	keys := map[string]int{}
	for i := range maxPatterns {
		keys[fmt.Sprintf("no_module_%d.*", i)] = 4
	}
	patterns, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	config, err := decodePEFT([]byte(`{"peft_type": "LORA", "r": 4, "lora_alpha": 32, "rank_pattern": `+string(patterns)+`}`), 512)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		experts int
		want    string
	}{{5, ""}, {1<<12 + 1, "rank_pattern and alpha_pattern have 4096 keys, too many to be compared"}} {
		m := lora.ExpertModule("model.layers.1.mlp.experts.w1", c.experts, 24, 32)
		x := newExpertFiles([]lora.Module{m}, 0)
		if _, err := x.take("model.layers.1.mlp.experts.0.gate_proj", "A", "a tensor"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := x.scaling(config, m); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d experts: error %v, want %q", c.experts, err, c.want)
		}
	}
}

// Adapters on mixtures of experts in all forms that there are mean what they mean to PEFT, and the forms of one adapter have the same bits here.
func TestExpertAdapterGoldens(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set: no adapters that PEFT wrote for models with experts")
	}
	for _, name := range []string{"qwen3-moe", "qwen3-moe-mixed", "qwen3.5-moe"} {
		model, families := filepath.Join(root, "goldens", "torch", name), filepath.Join(root, "families", name)
		e := openGolden(t, model)
		base := tokensOf(t, filepath.Join(model, "base.safetensors"))
		var first map[string][]float32
		for _, c := range []struct{ adapter, values string }{
			{filepath.Join(families, "tinker"), filepath.Join(families, "tinker.safetensors")},
			{filepath.Join(families, "peft-2d"), filepath.Join(families, "tinker.safetensors")},
			{filepath.Join(families, "peft-fused"), filepath.Join(families, "tinker.safetensors")},
			{filepath.Join(model, "lora"), filepath.Join(model, "lora.safetensors")},
			{filepath.Join(model, "lora-unembed"), filepath.Join(model, "lora-unembed.safetensors")},
		} {
			if _, err := os.Stat(c.adapter); err != nil {
				continue // PEFT cannot read that form of this model
			}
			t.Run(name+"/"+filepath.Base(c.adapter), func(t *testing.T) {
				d := load(t, e, c.adapter, absolute(t, c.adapter), plugins.ScopeWeights)
				want := tensorsOf(t, c.values)
				for n := range 5 {
					tokens := base[fmt.Sprint(n)]
					if len(tokens) < 2 {
						continue
					}
					got := d.prompted(tokens)
					for i, w := range want[fmt.Sprintf("logprobs.%d", n)][:len(tokens)-1] {
						if math.Abs(float64(got[i])-float64(w)) > 1e-4 {
							t.Fatalf("sequence %d: log-probability %d is %v, want %v", n, i, got[i], w)
						}
					}
				}
				weights := d.weights()
				if strings.HasPrefix(filepath.Base(c.adapter), "lora") {
					return
				}
				if first == nil {
					first = maps.Clone(weights)
				}
				equalTensors(t, "the same adapter in another form", weights, first)
			})
		}
		if name == "qwen3.5-moe" {
			t.Run(name+"/export", func(t *testing.T) { exportsAsConverted(t, e, families) })
		}
	}
}

// exportsAsConverted: what leaves for PEFT is bit for bit what another program made of the same adapter, which PEFT was seen to load.
func exportsAsConverted(t *testing.T, e *Engine, families string) {
	path, err := load(t, e, "leaves", filepath.Join(families, "tinker"), plugins.ScopeWeights).saveAs(plugins.ExportPEFT, false)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]float32{}
	for name, values := range tensorsOf(t, filepath.Join(path, plugins.AdapterWeightsFile)) {
		got[strings.Replace(name, "model.language_model.", "model.", 1)] = values // there it is the class of the text model alone
	}
	equalTensors(t, "as PEFT reads it", got, tensorsOf(t, filepath.Join(families, "peft-fused", plugins.AdapterWeightsFile)))
	var config struct {
		Ranks      map[string]int     `json:"rank_pattern"`
		Alphas     map[string]float64 `json:"alpha_pattern"`
		Targets    []string           `json:"target_modules"`
		Parameters []string           `json:"target_parameters"`
	}
	text, err := os.ReadFile(filepath.Join(path, plugins.AdapterConfigFile))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	const experts = "model.language_model.layers.1.mlp.experts."
	if err != nil || config.Ranks[experts+"gate_up_proj"] != 16 || config.Alphas[experts+"gate_up_proj"] != 64 || config.Alphas[experts+"down_proj"] != 32 ||
		!slices.Equal(config.Parameters, []string{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}) || !slices.Contains(config.Targets, "up_proj") || slices.Contains(config.Targets, "w1") {
		t.Errorf("%s: %v", text, err)
	}
}

// TestExportsOfFamilies: of models whose experts, projections and names PEFT has each in its way, an adapter leaves in the form that it was seen to read, and comes back bit for bit.
func TestExportsOfFamilies(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set")
	}
	for _, c := range []struct {
		name, prefix string
		tensors      map[string][]int // some of the file's, and their shapes
		parameters   []string
		targets      []string
	}{
		{"qwen3-next", "model.", map[string][]int{"linear_attn.in_proj_qkvz.lora_B": {192, 16}, "mlp.experts.base_layer.lora_B": {40, 64}, "mlp.experts.lora_A": {32, 20}, "mlp.shared_expert.up_proj.lora_A": {4, 64}},
			[]string{"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight", "mlp.shared_expert.down_proj.weight"},
			[]string{"in_proj_qkvz", "k_proj", "lm_head", "o_proj", "out_proj", "q_proj", "v_proj"}},
		{"layout-qwen3-vl-moe", "model.language_model.", map[string][]int{"mlp.experts.base_layer.lora_A": {64, 64}, "mlp.experts.lora_B": {64, 32}, "self_attn.q_proj.lora_A": {4, 64}},
			[]string{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}, []string{"k_proj", "lm_head", "o_proj", "q_proj", "v_proj"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := openGolden(t, filepath.Join(root, "families", c.name))
			own := create(t, e, "own", 3, 4)
			prompt := randomTokensOf(rand.New(rand.NewPCG(3, 4)), 500, 60)
			own.pass([]plugins.Datum{{Tokens: prompt[:59], Targets: prompt[1:], K: 1, Weights: slices.Repeat([]float32{1}, 59)}})
			own.step()
			path := own.saved(plugins.ExportPEFT)
			for name, shape := range c.tensors {
				if got := shapeOf(t, filepath.Join(path, plugins.AdapterWeightsFile), "base_model.model."+c.prefix+"layers.0."+name+".weight"); !slices.Equal(got, shape) {
					t.Errorf("%s has shape %v, want %v", name, got, shape)
				}
			}
			var config struct{ Targets, Parameters []string }
			text, err := os.ReadFile(filepath.Join(path, plugins.AdapterConfigFile))
			if err == nil {
				err = json.Unmarshal([]byte(strings.NewReplacer("target_modules", "Targets", "target_parameters", "Parameters").Replace(string(text))), &config)
			}
			slices.Sort(config.Targets)
			if err != nil || !slices.Equal(config.Targets, c.targets) || !slices.Equal(config.Parameters, c.parameters) {
				t.Errorf("%s: %v", text, err)
			}
			if err := os.Remove(filepath.Join(path, plugins.ManifestFile)); err != nil {
				t.Fatal(err)
			}
			back := load(t, e, "back", path, plugins.ScopeWeights)
			equalBits(t, "as it came back", back.prompted(prompt), own.prompted(prompt))
			equalTensors(t, "as it came back", back.weights(), own.weights())
		})
	}
}

// tokensOf reads the sequences of a golden model by number.
func tokensOf(t *testing.T, path string) map[string][]int32 {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]int32{}
	for _, name := range f.Names() {
		number, ok := strings.CutPrefix(name, "tokens.")
		if !ok {
			continue
		}
		x, _ := f.Tensor(name)
		for at := 0; at < len(x.Data); at += 8 {
			all[number] = append(all[number], int32(x.Data[at])|int32(x.Data[at+1])<<8|int32(x.Data[at+2])<<16)
		}
	}
	return all
}

// The balance of experts is counted as the official service names it, and is the same however data are cut and by whichever replica they are computed.
func TestMetricsOfExperts(t *testing.T) {
	data := randomData(rand.New(rand.NewPCG(5, 5)), 5, 60)
	var want map[string]float64
	for _, section := range []string{"", `{"threads": 1, "recompute": "on"}`} {
		d := create(t, startMixture(t, 1, section), "a", 1, 4)
		got := d.pass(data).Metrics
		delete(got, "clock_cycle:unique")
		if want == nil {
			want = got
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", section, got, want)
		}
		for _, name := range []string{"e_frac_with_tokens:mean", "e_frac_oversubscribed:mean", "e_max_violation:mean", "e_max_violation:max", "e_min_violation:mean"} {
			if v, ok := got[name]; !ok || !finite(v) {
				t.Errorf("%s is %v", name, v)
			}
		}
		if v := got["e_frac_with_tokens:mean"]; !(v > 0 && v <= 1) {
			t.Errorf("e_frac_with_tokens:mean is %v", v)
		}
	}
}

// A model with experts has the bits of one device, whatever the number of copies and of ranks, and the cut of the batches.
func TestMixturePlacements(t *testing.T) {
	dir := writeMixture(t, 1)
	want := live(t, placeModel(t, dir, placement{plugin: "single", section: `{"threads": 1}`}, testOptions()))
	small := placement{"two threads, small batches", "single", `{"threads": 2, "batch_tokens": 24, "prefill_tokens": 7, "recompute": "on"}`}
	for _, p := range slices.Concat([]placement{small, copies[0], copies[1], splits[1]}, sharded, cuts, mixed) {
		t.Run(p.name, func(t *testing.T) { equalHistories(t, live(t, placeModel(t, dir, p, testOptions())), want) })
	}
}

// A model with experts keeps the contract.
func TestContractOfMixture(t *testing.T) {
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		e := open(t)
		info, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: writeMixture(t, 0), Name: "tiny"}, func(plugins.LoadProgress) {})
		if err != nil {
			t.Fatal(err)
		}
		return plugintest.Subject{Backend: e, Model: info}
	})
}
