package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
)

// gptOSS is a small gpt-oss of random weights with a window of 20 positions in two of three layers; its experts are quantized or not.
type gptOSS struct {
	quantized    bool
	heads, width int // 0 = 4 and 32
}

// eachGPTOSS runs a test of both.
func eachGPTOSS(t *testing.T, test func(t *testing.T, m gptOSS)) {
	for _, m := range []gptOSS{{}, {quantized: true}} {
		t.Run(fmt.Sprintf("quantized %v", m.quantized), func(t *testing.T) { test(t, m) })
	}
}

// write writes the model's directory.
func (m gptOSS) write(t testing.TB) string {
	t.Helper()
	const hidden, kvHeads, headDim, experts = 32, 2, 16, 5
	heads, width := cmp.Or(m.heads, 4), cmp.Or(m.width, 32)
	layers := []string{"sliding_attention", "full_attention", "sliding_attention"}
	settings := map[string]any{
		"architectures": []string{"GptOssForCausalLM"}, "num_hidden_layers": len(layers), "hidden_size": hidden, "intermediate_size": width, "num_attention_heads": heads, "num_key_value_heads": kvHeads,
		"head_dim": headDim, "vocab_size": tinyVocabulary, "max_position_embeddings": tinyContext, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": true,
		"layer_types": layers, "sliding_window": 20, "num_local_experts": experts, "num_experts_per_tok": 2, "swiglu_limit": 7.0, "rope_theta": 150000.0,
		"rope_scaling": map[string]any{"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 64},
	}
	if m.quantized {
		settings["quantization_config"] = map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": []string{"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}
	}
	random := rand.New(rand.NewPCG(7, 9))
	var sources []safetensors.Source
	add := func(name string, scale, mean float64, shape ...int) {
		values := make([]float32, elements(shape))
		for i := range values {
			values[i] = float32(mean + scale*random.NormFloat64())
		}
		sources = append(sources, safetensors.Float32Source(name, shape, func() ([]float32, error) { return values, nil }))
	}
	stack := func(name string, out, in int) {
		if !m.quantized {
			add(name, 0.4, 0, experts, in, out)
			return
		}
		for _, part := range []struct {
			suffix       string
			shape        []int
			least, count uint // of values
		}{{"_blocks", []int{experts, out, in / 32, 16}, 0, 256}, {"_scales", []int{experts, out, in / 32}, 123, 3}} { // 1/16 to 1/4
			data := make([]byte, elements(part.shape))
			for i := range data {
				data[i] = byte(part.least + random.UintN(part.count))
			}
			sources = append(sources, safetensors.Source{Name: name + part.suffix, DType: "U8", Shape: part.shape, Write: func(w io.Writer) error {
				_, err := w.Write(data)
				return err
			}})
		}
	}
	add("model.embed_tokens.weight", 0.25, 0, tinyVocabulary, hidden)
	add("lm_head.weight", 0.25, 0, tinyVocabulary, hidden)
	add("model.norm.weight", 0.1, 1, hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm.weight", 0.1, 1, hidden)
		add(p+"post_attention_layernorm.weight", 0.1, 1, hidden)
		for _, x := range []struct {
			name    string
			out, in int
		}{{"q_proj", heads * headDim, hidden}, {"k_proj", kvHeads * headDim, hidden}, {"v_proj", kvHeads * headDim, hidden}, {"o_proj", hidden, heads * headDim}} {
			add(p+"self_attn."+x.name+".weight", 0.2, 0, x.out, x.in)
			add(p+"self_attn."+x.name+".bias", 0.2, 0, x.out)
		}
		add(p+"self_attn.sinks", 1, 0, heads)
		add(p+"mlp.router.weight", 0.3, 0, experts, hidden)
		add(p+"mlp.router.bias", 0.1, 0, experts)
		stack(p+"mlp.experts.gate_up_proj", 2*width, hidden)
		add(p+"mlp.experts.gate_up_proj_bias", 0.3, 0, experts, 2*width)
		stack(p+"mlp.experts.down_proj", hidden, width)
		add(p+"mlp.experts.down_proj_bias", 0.3, 0, experts, hidden)
	}
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = safetensors.Write(f, nil, sources)
	config, marshalled := json.Marshal(settings)
	if err := errors.Join(err, marshalled, f.Close(), os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (m gptOSS) load(t testing.TB, b plugins.Backend, section string) plugins.ModelInfo {
	t.Helper()
	info, err := b.Load(t.Context(), plugins.LoadRequest{ModelDir: m.write(t), Name: "gpt-oss", Config: []byte(section)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func (m gptOSS) start(t testing.TB, section string) *Engine {
	t.Helper()
	e := open(t)
	m.load(t, e, section)
	return e
}

// alone gives what each of requests has in an engine of its own.
func (m gptOSS) alone(t *testing.T, requests ...plugins.SampleRequest) [][]plugins.SampledTokens {
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

func TestContractOfGPTOSS(t *testing.T) {
	eachGPTOSS(t, func(t *testing.T, m gptOSS) {
		plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
			e, starve := starvable(t)
			return plugintest.Subject{Backend: e, Model: m.load(t, e, ""), Starve: starve, Shrink: shrinkable(t, e)}
		})
	})
}

// A prompt whose beginning is cached, longer than the window, gives the bits of one that was computed whole, and so does what was preempted.
func TestGPTOSSCachedAndPreempted(t *testing.T) {
	m := gptOSS{}
	random := rand.New(rand.NewPCG(2, 5))
	prompt := randomTokens(random, 266)
	first := ask("first", "", prompt, 4, 70)
	want := m.alone(t, first)[0]
	e := m.start(t, `{"prefill_tokens": 100}`)
	for _, cached := range []int{0, 256} {
		got, err := collect(t.Context(), e, first)
		if err != nil || got.prompt.CachedTokens != cached {
			t.Errorf("%d cached, %v; want %d", got.prompt.CachedTokens, err, cached)
		}
		equalSamples(t, fmt.Sprint(cached, " cached"), got.sequences, want)
	}
	turn := ask("second", "", slices.Concat(prompt, want[3].Tokens, []int32{1, 2, 3}), 1, 9)
	next, err := collect(t.Context(), e, turn)
	if err != nil || next.prompt.CachedTokens != 320 {
		t.Errorf("the second turn took %d tokens from the first, want 320 of 335: %v", next.prompt.CachedTokens, err)
	}
	equalSamples(t, "a second turn", next.sequences, m.alone(t, turn)[0])

	var requests []plugins.SampleRequest
	for i := range 5 {
		requests = append(requests, ask(fmt.Sprint("q", i), "", randomTokens(random, 20+30*i), 2, 150))
	}
	wanted := m.alone(t, requests...)
	dir := m.write(t)
	for _, p := range []placement{
		{"one device", "single", `{"max_context_length": 320, "kv_cache_tokens": 640, "max_batch": 6}`},
		{"2 ranks", "tensorparallel", `{"devices": ["cpu", "cpu"], "max_context_length": 320, "kv_cache_tokens": 640, "max_batch": 6}`},
	} {
		crowded := placeModel(t, dir, p, testOptions())
		for i, got := range collectAll(t, crowded, requests) {
			equalSamples(t, fmt.Sprint(p.name, ", request ", i), got.sequences, wanted[i])
		}
		if s := crowded.status(time.Now()); s.WaitingSamples != 0 {
			t.Errorf("%s: %d samples wait", p.name, s.WaitingSamples)
		}
	}
}

// Copies, with shared-out weights too, ranks and a split have the bits of one device, whether experts are quantized or not, and so have more threads, smaller batches and layers that are computed again: in training, and in sampling
// with every setting and under masks.
func TestGPTOSSPlacements(t *testing.T) {
	eachGPTOSS(t, func(t *testing.T, m gptOSS) {
		dir := m.write(t)
		want := live(t, placeModel(t, dir, placement{plugin: "single", section: `{"threads": 1}`}, testOptions()))
		again := []placement{
			{"one thread more, layers computed again", "single", `{"threads": 2, "recompute": "on", "batch_tokens": 70}`},
			{"2 ranks, layers computed again", "tensorparallel", `{"devices": ["cpu", "cpu"], "threads": 2, "recompute": "on", "batch_tokens": 70, "max_batch": 2}`},
		}
		for _, p := range slices.Concat([]placement{copies[0], copies[1], sharded[0], splits[0]}, again, cuts, mixed) {
			t.Run(p.name, func(t *testing.T) { equalHistories(t, live(t, placeModel(t, dir, p, testOptions())), want) })
		}
	})
}

// An adapter comes back bit for bit from the forms that it leaves in, on one device and on ranks. For PEFT gate and up are one parameter, whose rows take turns; files in which each of them has all of the rank are read too.
func TestGPTOSSExports(t *testing.T) {
	for _, p := range []placement{{name: "one device", plugin: "single", section: "{}"}, cuts[0], cuts[1]} {
		t.Run(p.name, func(t *testing.T) { gptOSSExports(t, placeModel(t, gptOSS{}.write(t), p, testOptions())) })
	}
}

func gptOSSExports(t *testing.T, e *Engine) {
	a := create(t, e, "a", 1, 4)
	data := randomData(rand.New(rand.NewPCG(5, 5)), 3, 40)
	a.pass(data)
	a.step()
	want := a.weights()
	const experts, width, rank, p = 5, 32, 4, "base_model.model.model.layers.1.mlp.experts."
	for _, names := range []string{plugins.ExportTinker, plugins.ExportPEFT} {
		path, err := a.saveAs(names, false)
		if err != nil {
			t.Fatal(err)
		}
		equalTensors(t, names, load(t, e, "from "+names, path, plugins.ScopeWeights).weights(), want)
		if names == plugins.ExportTinker {
			continue
		}
		both, gate, up := tensorsOf(t, filepath.Join(path, plugins.AdapterWeightsFile))[p+"base_layer.lora_B.weight"], want[p+"w1.lora_B.weight"], want[p+"w3.lora_B.weight"]
		at := func(row, i, e int) float32 { return both[(row*2*rank+i)*experts+e] }
		for e := range experts {
			for o := range width {
				for i := range rank {
					from := (e*width+o)*rank + i
					if at(2*o, i, e) != gate[from] || at(2*o+1, rank+i, e) != up[from] || at(2*o, rank+i, e) != 0 || at(2*o+1, i, e) != 0 {
						t.Fatalf("expert %d, row %d, column %d: not what gate and up have", e, o, i)
					}
				}
			}
		}
		var config struct {
			Parameters []string           `json:"target_parameters"`
			Ranks      map[string]int     `json:"rank_pattern"`
			Alphas     map[string]float64 `json:"alpha_pattern"`
		}
		text, err := os.ReadFile(filepath.Join(path, plugins.AdapterConfigFile))
		if err = errors.Join(err, json.Unmarshal(text, &config)); err != nil {
			t.Fatal(err)
		}
		const parameter = "model.layers.1.mlp.experts.gate_up_proj"
		if !slices.Equal(config.Parameters, []string{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}) || config.Ranks[parameter] != 2*rank || config.Alphas[parameter] != 64 {
			t.Errorf("%s", text)
		}
		// One value where only the other one's half has some: both have all of the rank then.
		whole := rewrite(t, path, string(text), func(v map[string][]float32, _ map[string][]int) {
			v[p+"base_layer.lora_B.weight"][(2*rank+1)*experts+3] = 0.5
		})
		b := load(t, e, "whole", whole, plugins.ScopeWeights).weights()
		for name, odd := range map[string]bool{"w1": false, "w3": true} {
			got := b[p+name+".lora_B.weight"]
			for e := range experts {
				for o := range width {
					for i := range 2 * rank {
						row := 2 * o
						if odd {
							row++
						}
						value := at(row, i, e)
						if row == 1 && i == 1 && e == 3 {
							value = 0.5
						}
						if got[(e*width+o)*2*rank+i] != value {
							t.Fatalf("%s: expert %d, row %d, column %d is %v, want %v", name, e, o, i, got[(e*width+o)*2*rank+i], value)
						}
					}
				}
			}
		}
	}
}
