package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/goldenfiles"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
)

// hybridModel is a small model with linear attention, with so many experts in each layer, of which a token takes two and a shared one.
type hybridModel int

const (
	denseHybrid  hybridModel = 0
	expertHybrid hybridModel = 5
)

// eachHybrid tests with both.
func eachHybrid(t *testing.T, test func(t *testing.T, m hybridModel)) {
	t.Run("dense", func(t *testing.T) { test(t, denseHybrid) })
	t.Run("experts", func(t *testing.T) { test(t, expertHybrid) })
}

// write writes the directory of a model of two layers of linear attention and one of attention.
func (m hybridModel) write(dir string) error {
	return writeLayers(dir, m, "linear_attention", "full_attention", "linear_attention")
}

// writeLayers writes the directory of a model with such layers.
func writeLayers(dir string, experts hybridModel, layers ...string) error {
	return hybridSizes{heads: 4, keyHeads: 2, valueHeads: 4}.write(dir, experts, layers...)
}

// hybridSizes are what ranks share out of a model with linear attention.
type hybridSizes struct{ heads, keyHeads, valueHeads int }

// write is writeLayers of these sizes.
func (s hybridSizes) write(dir string, experts hybridModel, layers ...string) error {
	const hidden, width, kvHeads, headDim, keyDim, valueDim, kernel = 32, 48, 2, 16, 12, 20, 4
	heads, keyHeads, valueHeads := s.heads, s.keyHeads, s.valueHeads
	settings := map[string]any{
		"architectures": []string{"Qwen3_5ForCausalLM"}, "num_hidden_layers": len(layers), "hidden_size": hidden, "intermediate_size": width, "num_attention_heads": heads, "num_key_value_heads": kvHeads,
		"head_dim": headDim, "vocab_size": tinyVocabulary, "max_position_embeddings": tinyContext, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "hidden_act": "silu",
		"layer_types":          layers,
		"linear_num_key_heads": keyHeads, "linear_num_value_heads": valueHeads, "linear_key_head_dim": keyDim, "linear_value_head_dim": valueDim, "linear_conv_kernel_dim": kernel,
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
	}
	if experts > 0 {
		maps.Copy(settings, map[string]any{"architectures": []string{"Qwen3_5MoeForCausalLM"}, "num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": width, "shared_expert_intermediate_size": width})
	}
	config, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(7, 8))
	var sources []safetensors.Source
	add := func(name string, scale float64, shape ...int) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(scale * random.NormFloat64())
		}
		sources = append(sources, safetensors.Float32Source(name, shape, func() ([]float32, error) { return values, nil }))
	}
	keys, values := keyHeads*keyDim, valueHeads*valueDim
	add("model.embed_tokens.weight", 0.25, tinyVocabulary, hidden)
	add("model.norm.weight", 0.1, hidden)
	for i, kind := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm.weight", 0.1, hidden)
		add(p+"post_attention_layernorm.weight", 0.1, hidden)
		mlp := p + "mlp."
		if experts > 0 {
			add(mlp+"gate.weight", 0.2, int(experts), hidden)
			add(mlp+"experts.gate_up_proj", 0.2, int(experts), 2*width, hidden)
			add(mlp+"experts.down_proj", 0.2, int(experts), hidden, width)
			add(mlp+"shared_expert_gate.weight", 0.2, 1, hidden)
			mlp += "shared_expert."
		}
		add(mlp+"gate_proj.weight", 0.2, width, hidden)
		add(mlp+"up_proj.weight", 0.2, width, hidden)
		add(mlp+"down_proj.weight", 0.2, hidden, width)
		if kind == "full_attention" {
			add(p+"self_attn.q_norm.weight", 0.1, headDim)
			add(p+"self_attn.k_norm.weight", 0.1, headDim)
			add(p+"self_attn.q_proj.weight", 0.2, 2*heads*headDim, hidden)
			add(p+"self_attn.k_proj.weight", 0.2, kvHeads*headDim, hidden)
			add(p+"self_attn.v_proj.weight", 0.2, kvHeads*headDim, hidden)
			add(p+"self_attn.o_proj.weight", 0.2, hidden, heads*headDim)
			continue
		}
		add(p+"linear_attn.in_proj_qkv.weight", 0.2, 2*keys+values, hidden)
		add(p+"linear_attn.in_proj_z.weight", 0.2, values, hidden)
		add(p+"linear_attn.in_proj_a.weight", 0.2, valueHeads, hidden)
		add(p+"linear_attn.in_proj_b.weight", 0.2, valueHeads, hidden)
		add(p+"linear_attn.conv1d.weight", 0.5, 2*keys+values, 1, kernel)
		add(p+"linear_attn.A_log", 1, valueHeads)
		add(p+"linear_attn.dt_bias", 1, valueHeads)
		add(p+"linear_attn.norm.weight", 1, valueDim)
		add(p+"linear_attn.out_proj.weight", 0.2, hidden, values)
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, err := safetensors.Write(f, nil, sources); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

// start is start for the model.
func (m hybridModel) start(t testing.TB, section string) *Engine {
	t.Helper()
	e := open(t)
	m.load(t, e, section)
	return e
}

func (m hybridModel) load(t testing.TB, b plugins.Backend, section string) plugins.ModelInfo {
	t.Helper()
	dir := t.TempDir()
	if err := m.write(dir); err != nil {
		t.Fatal(err)
	}
	info, err := b.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "hybrid", Config: []byte(section)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestContractOfHybrid(t *testing.T) {
	eachHybrid(t, func(t *testing.T, m hybridModel) {
		plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
			e, starve := starvable(t)
			return plugintest.Subject{Backend: e, Model: m.load(t, e, ""), Starve: starve, Shrink: shrinkable(t, e)}
		})
	})
}

// alone gives what each of requests has in an engine of its own.
func (m hybridModel) alone(t *testing.T, requests []plugins.SampleRequest) [][]plugins.SampledTokens {
	t.Helper()
	var all [][]plugins.SampledTokens
	for _, q := range requests {
		got, err := collect(t.Context(), m.start(t, `{}`), q)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got.sequences)
	}
	return all
}

func equalSamples(t *testing.T, what string, got, want []plugins.SampledTokens) {
	t.Helper()
	for i := range want {
		if !slices.Equal(got[i].Tokens, want[i].Tokens) {
			t.Fatalf("%s: sequence %d has other tokens", what, i)
		}
		equalBits(t, what, got[i].Logprobs, want[i].Logprobs)
	}
}

// TestSnapshotHitsAndMisses: a sequence that goes on from a snapshot, of a prompt, of an answer or of what two prompts have in common, has the bits of one that was computed whole.
func TestSnapshotHitsAndMisses(t *testing.T) { eachHybrid(t, snapshotHitsAndMisses) }

func snapshotHitsAndMisses(t *testing.T, m hybridModel) {
	random := rand.New(rand.NewPCG(2, 5))
	prompt := randomTokens(random, 266)
	first := ask("first", "", prompt, 4, 70)
	want := m.alone(t, []plugins.SampleRequest{first})[0]
	e := m.start(t, `{"prefill_tokens": 100}`)
	got, err := collect(t.Context(), e, first)
	if err != nil || got.prompt.CachedTokens != 0 {
		t.Fatalf("%d cached, %v", got.prompt.CachedTokens, err)
	}
	equalSamples(t, "at first", got.sequences, want)
	again, err := collect(t.Context(), e, first)
	if err != nil || again.prompt.CachedTokens != 256 {
		t.Errorf("%d cached, %v; want 256", again.prompt.CachedTokens, err)
	}
	equalSamples(t, "from the prompt's snapshot", again.sequences, want)

	turn := ask("second", "", slices.Concat(prompt, want[3].Tokens, []int32{1, 2, 3}), 1, 9)
	next, err := collect(t.Context(), e, turn)
	if err != nil || next.prompt.CachedTokens != 320 {
		t.Errorf("the second turn took %d tokens from the first, want 320 of 335: %v", next.prompt.CachedTokens, err)
	}
	equalSamples(t, "from an answer's snapshot", next.sequences, m.alone(t, []plugins.SampleRequest{turn})[0])

	// Prompts of different ends at the same moment: one waits for the state where the other leaves it.
	common := randomTokens(random, 150)
	var requests []plugins.SampleRequest
	for i := range 3 {
		requests = append(requests, ask(fmt.Sprint("end", i), "", slices.Concat(common, randomTokens(random, 60)), 1, 5))
	}
	before := e.status(time.Now()).PrefillTokens
	release := block(t, e, nil)
	results := make([]sampled, len(requests))
	var calls []func()
	for i := range requests {
		calls = append(calls, func() {
			var err error
			if results[i], err = collect(t.Context(), e, requests[i]); err != nil {
				t.Error(err)
			}
		})
	}
	calls = append(calls, func() {
		eventually(t, "all wait", func() bool { return e.status(time.Now()).WaitingSamples == 3 })
		release()
	})
	together(calls...)
	if n := e.status(time.Now()).PrefillTokens - before; n != 210+2*(210-128) {
		t.Errorf("%d tokens of prompts were computed, want %d", n, 210+2*(210-128))
	}
	for i, w := range m.alone(t, requests) {
		equalSamples(t, "from a common beginning", results[i].sequences, w)
	}
}

// TestHybridPreempted: sequences that lose their pages and states to others are computed again with the same bits; so are those beside which snapshots have no room.
func TestHybridPreempted(t *testing.T) { eachHybrid(t, hybridPreempted) }

func hybridPreempted(t *testing.T, m hybridModel) {
	random := rand.New(rand.NewPCG(2, 6))
	var requests []plugins.SampleRequest
	for i := range 5 {
		requests = append(requests, ask(fmt.Sprint("q", i), "", randomTokens(random, 20+30*i), 2, 150))
	}
	want := m.alone(t, requests)
	e := m.start(t, `{"max_context_length": 320, "kv_cache_tokens": 640, "max_batch": 6}`)
	for i, got := range collectAll(t, e, requests) {
		equalSamples(t, fmt.Sprint("request ", i), got.sequences, want[i])
	}
	hook(t, e, func() {
		if free := e.loaded.sampling[0].sampler.cache.Available(); free != 10 {
			t.Errorf("%d pages can be had of 10", free)
		}
	})
}

// hybridGolden gives the folder of a golden model with linear attention, which has an adapter in the official layout.
func hybridGolden(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	goldenfiles.Unpack(t, filepath.Join("..", "model", "testdata", name), dir)
	return dir
}

// TestFusedProjections: three modules leave for PEFT as the one that its model has, in three blocks, and come back with the same bits; what PEFT made of the one is read as the three.
func TestFusedProjections(t *testing.T) {
	t.Run("qwen3.5", func(t *testing.T) { fusedProjections(t, "qwen3.5", "model.") })
	t.Run("qwen3.5-moe", func(t *testing.T) { fusedProjections(t, "qwen3.5-moe", "model.language_model.") })
}

// fusedProjections has PEFT's names of modules begin with prefix.
func fusedProjections(t *testing.T, model, prefix string) {
	dir := hybridGolden(t, model)
	e := openGolden(t, dir)
	own := load(t, e, "own", filepath.Join(dir, "tinker"), plugins.ScopeWeights)
	prompt := randomTokensOf(rand.New(rand.NewPCG(3, 4)), 500, 70)
	want, weights := own.prompted(prompt), own.weights()

	exported := filepath.Join(t.TempDir(), "exported")
	if _, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "own", Version: plugins.LatestVersion, Path: exported, ExportNames: plugins.ExportPEFT}); err != nil {
		t.Fatal(err)
	}
	fused := tensorsOf(t, filepath.Join(exported, plugins.AdapterWeightsFile))
	const rank, in, out = 8, 64, 192
	a, b := fused["base_model.model."+prefix+"layers.0.linear_attn.in_proj_qkv.lora_A.weight"], fused["base_model.model."+prefix+"layers.0.linear_attn.in_proj_qkv.lora_B.weight"]
	if len(a) != 3*rank*in || len(b) != out*3*rank {
		t.Fatalf("A has %d values and B %d", len(a), len(b))
	}
	if _, ok := fused["base_model.model."+prefix+"layers.0.linear_attn.in_proj_q.lora_A.weight"]; ok {
		t.Error("in_proj_q is there beside in_proj_qkv")
	}
	var config struct {
		TargetModules []string           `json:"target_modules"`
		Ranks         map[string]int     `json:"rank_pattern"`
		Alphas        map[string]float64 `json:"alpha_pattern"`
	}
	text, err := os.ReadFile(filepath.Join(exported, plugins.AdapterConfigFile))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil || config.Ranks[prefix+"layers.0.linear_attn.in_proj_qkv"] != 3*rank || config.Alphas[prefix+"layers.0.linear_attn.in_proj_qkv"] != 96 || !slices.Contains(config.TargetModules, "in_proj_qkv") || slices.Contains(config.TargetModules, "in_proj_k") {
		t.Errorf("%s: %v", text, err)
	}
	back := load(t, e, "back", exported, plugins.ScopeWeights)
	equalBits(t, "as it came back", back.prompted(prompt), want)
	for name, values := range back.weights() {
		equalBits(t, name, values, weights[name])
	}

	names := filepath.Join(t.TempDir(), "tinker")
	if _, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "own", Version: plugins.LatestVersion, Path: names, ExportNames: plugins.ExportTinker}); err != nil {
		t.Fatal(err)
	}
	if apart := tensorsOf(t, filepath.Join(names, plugins.AdapterWeightsFile)); len(apart["base_model.model.model.layers.0.linear_attn.in_proj_k.lora_B.weight"]) != 64*rank {
		t.Error("the official names are not those of three modules")
	}
}

// TestNestedNames: an adapter on a model whose files have other parts leaves for PEFT with the names of that class, and comes back.
func TestNestedNames(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set")
	}
	e := openGolden(t, filepath.Join(root, "families", "published-qwen3.5"))
	own := create(t, e, "own", 3, 4)
	prompt := randomTokensOf(rand.New(rand.NewPCG(3, 4)), 500, 40)
	own.pass([]plugins.Datum{{Tokens: prompt[:39], Targets: prompt[1:], K: 1, Weights: slices.Repeat([]float32{1}, 39)}})
	own.step()
	want := own.prompted(prompt)
	path := own.saved(plugins.ExportPEFT)
	tensors := tensorsOf(t, filepath.Join(path, plugins.AdapterWeightsFile))
	if _, ok := tensors["base_model.model.model.language_model.layers.0.linear_attn.in_proj_qkv.lora_A.weight"]; !ok {
		t.Error("the names are not those of the class that loads the files")
	}
	if err := os.Remove(filepath.Join(path, plugins.ManifestFile)); err != nil {
		t.Fatal(err)
	}
	back := load(t, e, "back", path, plugins.ScopeWeights)
	equalBits(t, "as it came back", back.prompted(prompt), want)
}

// TestFusedProjectionsOfPEFT has PEFT's own files, with LoRA on in_proj_a and in_proj_b too.
func TestFusedProjectionsOfPEFT(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set")
	}
	dir := filepath.Join(root, "goldens", "torch", "qwen3.5")
	e := openGolden(t, dir)
	for _, adapter := range []string{"lora", "lora-unembed"} {
		d := load(t, e, adapter, filepath.Join(dir, adapter), plugins.ScopeWeights)
		base, err := safetensors.Open(filepath.Join(dir, "base.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer base.Close()
		values, err := safetensors.Open(filepath.Join(dir, adapter+".safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer values.Close()
		for _, n := range []string{"2", "3", "4"} {
			tokens, targets, want := ids(t, base, "tokens."+n), ids(t, base, "targets."+n), doubles(t, values, "logprobs_f64."+n)
			result := d.pass([]plugins.Datum{{Tokens: tokens, Targets: targets, K: 1, Weights: slices.Repeat([]float32{1}, len(tokens))}})
			for i, v := range want {
				if got := float64(result.Logprobs[0][i]); !(math.Abs(got-v) <= 1e-4) {
					t.Fatalf("%s, sequence %s: log-probability %d is %v, want %v", adapter, n, i, got, v)
				}
			}
		}
	}
	prompt := randomTokensOf(rand.New(rand.NewPCG(3, 4)), 500, 70)
	tinker := load(t, e, "tinker", filepath.Join(root, "families", "qwen3.5", "tinker"), plugins.ScopeWeights)
	converted := load(t, e, "converted", filepath.Join(root, "families", "qwen3.5", "peft-2d"), plugins.ScopeWeights)
	equalBits(t, "converted for PEFT by another program", converted.prompted(prompt), tinker.prompted(prompt))
}

func ids(t *testing.T, f *safetensors.File, name string) []int32 {
	t.Helper()
	x, ok := f.Tensor(name)
	if !ok || x.DType != "I64" {
		t.Fatalf("no %s", name)
	}
	v := make([]int32, len(x.Data)/8)
	for i := range v {
		v[i] = int32(binary.LittleEndian.Uint64(x.Data[8*i:]))
	}
	return v
}

func doubles(t *testing.T, f *safetensors.File, name string) []float64 {
	t.Helper()
	x, ok := f.Tensor(name)
	if !ok || x.DType != "F64" {
		t.Fatalf("no %s", name)
	}
	v := make([]float64, len(x.Data)/8)
	for i := range v {
		v[i] = math.Float64frombits(binary.LittleEndian.Uint64(x.Data[8*i:]))
	}
	return v
}

// TestHybridPlacements: copies, with their weights shared out or not, a split and a model that is cut have the bits of one device.
func TestHybridPlacements(t *testing.T) { eachHybrid(t, hybridPlacements) }

func hybridPlacements(t *testing.T, m hybridModel) {
	random := rand.New(rand.NewPCG(5, 5))
	var data []plugins.Datum
	for i := range 5 {
		tokens := randomTokens(random, 10+31*i)
		n := len(tokens) - 1
		data = append(data, plugins.Datum{Tokens: tokens[:n], Targets: tokens[1:], K: 1, Weights: slices.Repeat([]float32{1}, n)})
	}
	prompt := randomTokens(random, 90)
	type outcome struct {
		weights map[string][]float32
		samples []plugins.SampledTokens
	}
	run := func(e *Engine) (o outcome) {
		d := create(t, e, "a", 1, 4)
		for range 2 {
			d.pass(data)
			d.step()
		}
		o.weights = d.weights()
		got, err := collect(t.Context(), e, ask("q", "a", prompt, 4, 20))
		if err != nil {
			t.Fatal(err)
		}
		o.samples = got.sequences
		return o
	}
	want := run(m.start(t, `{"threads": 1}`))
	dir := t.TempDir()
	if err := m.write(dir); err != nil {
		t.Fatal(err)
	}
	placements := slices.Concat([]placement{copies[0], copies[1], splits[0], {"one thread more, layers computed again", "single", `{"threads": 2, "recompute": "on", "batch_tokens": 70}`}}, sharded, mixed, []placement{cuts[0], cuts[2], cuts[3]})
	for _, p := range placements {
		t.Run(p.name, func(t *testing.T) {
			got := run(placeModel(t, dir, p, testOptions()))
			for name, values := range want.weights {
				equalBits(t, name, got.weights[name], values)
			}
			equalSamples(t, "samples", got.samples, want.samples)
		})
	}
}
