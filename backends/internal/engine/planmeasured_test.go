package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// family is a model of one kind, with the tensors that its files have.
type family struct {
	name   string
	config map[string]any
	shapes map[string][]int
}

// families are models of four kinds, in float32, so large that fixed sizes matter little.
func families(layers, hidden, vocabulary, context int) []family {
	const heads, kvHeads, headDim = 4, 2, 32
	common := func(architecture string, more map[string]any) map[string]any {
		c := map[string]any{"architectures": []string{architecture}, "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_attention_heads": heads, "num_key_value_heads": kvHeads,
			"head_dim": headDim, "vocab_size": vocabulary, "max_position_embeddings": context, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "torch_dtype": "float32"}
		for k, v := range more {
			c[k] = v
		}
		return c
	}
	tensors := func(layer func(put func(name string, shape ...int), i int)) map[string][]int {
		all := map[string][]int{"model.embed_tokens.weight": {vocabulary, hidden}, "model.norm.weight": {hidden}}
		for i := range layers {
			put := func(name string, shape ...int) { all[fmt.Sprintf("model.layers.%d.%s", i, name)] = shape }
			put("input_layernorm.weight", hidden)
			put("post_attention_layernorm.weight", hidden)
			layer(put, i)
		}
		return all
	}
	attention := func(put func(name string, shape ...int), gates int) {
		put("self_attn.q_proj.weight", gates*heads*headDim, hidden)
		put("self_attn.k_proj.weight", kvHeads*headDim, hidden)
		put("self_attn.v_proj.weight", kvHeads*headDim, hidden)
		put("self_attn.o_proj.weight", hidden, heads*headDim)
		put("self_attn.q_norm.weight", headDim)
		put("self_attn.k_norm.weight", headDim)
	}
	mlp := func(put func(name string, shape ...int)) {
		put("mlp.gate_proj.weight", 4*hidden, hidden)
		put("mlp.up_proj.weight", 4*hidden, hidden)
		put("mlp.down_proj.weight", hidden, 4*hidden)
	}
	const experts, keyHeads, valueHeads, dim, kernel = 6, 2, 4, 32, 4
	width, mixed := 2*hidden, (2*keyHeads+valueHeads)*dim
	return []family{
		{"dense", common("Qwen3ForCausalLM", nil), tensors(func(put func(string, ...int), _ int) {
			attention(put, 1)
			mlp(put)
		})},
		{"experts", common("Qwen3MoeForCausalLM", map[string]any{"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": width, "norm_topk_prob": true}), tensors(func(put func(string, ...int), _ int) {
			attention(put, 1)
			put("mlp.gate.weight", experts, hidden)
			for e := range experts {
				put(fmt.Sprintf("mlp.experts.%d.gate_proj.weight", e), width, hidden)
				put(fmt.Sprintf("mlp.experts.%d.up_proj.weight", e), width, hidden)
				put(fmt.Sprintf("mlp.experts.%d.down_proj.weight", e), hidden, width)
			}
		})},
		{"recurrent", common("Qwen3_5ForCausalLM", map[string]any{"linear_num_key_heads": keyHeads, "linear_num_value_heads": valueHeads, "linear_key_head_dim": dim, "linear_value_head_dim": dim, "linear_conv_kernel_dim": kernel,
			"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}), tensors(func(put func(string, ...int), i int) {
			mlp(put)
			if i%4 == 3 {
				attention(put, 2)
				return
			}
			put("linear_attn.in_proj_qkv.weight", mixed, hidden)
			put("linear_attn.in_proj_z.weight", valueHeads*dim, hidden)
			put("linear_attn.in_proj_a.weight", valueHeads, hidden)
			put("linear_attn.in_proj_b.weight", valueHeads, hidden)
			put("linear_attn.conv1d.weight", mixed, 1, kernel)
			put("linear_attn.A_log", valueHeads)
			put("linear_attn.dt_bias", valueHeads)
			put("linear_attn.norm.weight", dim)
			put("linear_attn.out_proj.weight", hidden, valueHeads*dim)
		})},
		{"sinks", common("GptOssForCausalLM", map[string]any{"num_local_experts": experts, "num_experts_per_tok": 2, "intermediate_size": width, "attention_bias": true, "sliding_window": 128,
			"layer_types": slices.Repeat([]string{"sliding_attention", "full_attention"}, layers/2), "rope_scaling": map[string]any{"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": context / 8}}),
			tensors(func(put func(string, ...int), _ int) {
				for name, out := range map[string]int{"q_proj": heads * headDim, "k_proj": kvHeads * headDim, "v_proj": kvHeads * headDim} {
					put("self_attn."+name+".weight", out, hidden)
					put("self_attn."+name+".bias", out)
				}
				put("self_attn.o_proj.weight", hidden, heads*headDim)
				put("self_attn.o_proj.bias", hidden)
				put("self_attn.sinks", heads)
				put("mlp.router.weight", experts, hidden)
				put("mlp.router.bias", experts)
				put("mlp.experts.gate_up_proj", experts, hidden, 2*width)
				put("mlp.experts.gate_up_proj_bias", experts, 2*width)
				put("mlp.experts.down_proj", experts, width, hidden)
				put("mlp.experts.down_proj_bias", experts, hidden)
			})},
	}
}

// writeConfig writes a directory that has config.json alone.
func (f *family) writeConfig(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(f.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// write writes one with its weights, which are all zero and take no room on the disk.
func (f *family) write(t *testing.T) string {
	t.Helper()
	dir := f.writeConfig(t)
	header, end := map[string]any{}, 0
	for name, shape := range f.shapes {
		n := 4
		for _, s := range shape {
			n *= s
		}
		header[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{end, end + n}}
		end += n
	}
	raw, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model.safetensors")
	if err := os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))), raw...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(8+len(raw)+end)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeIndex writes one of whose files only the index is there.
func (f *family) writeIndex(t *testing.T, without string) string {
	t.Helper()
	dir := f.writeConfig(t)
	places := map[string]string{}
	for name := range f.shapes {
		if name != without {
			places[name] = "model-00001-of-00001.safetensors"
		}
	}
	raw, err := json.Marshal(map[string]any{"weight_map": places})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// counted is the processor, which counts the memory that it has given.
type counted struct {
	tensor.Device
	mu        sync.Mutex
	now, peak int64
}

func (c *counted) add(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += int64(bytes)
	c.peak = max(c.peak, c.now)
}

func (c *counted) Alloc(d tensor.DType, rows, cols int) (tensor.Tensor, error) {
	t, err := c.Device.Alloc(d, rows, cols)
	if err == nil {
		c.add(t.Buffer.Bytes)
	}
	return t, err
}

func (c *counted) AllocUnset(d tensor.DType, rows, cols int) (tensor.Tensor, error) {
	t, err := c.Device.AllocUnset(d, rows, cols)
	if err == nil {
		c.add(t.Buffer.Bytes)
	}
	return t, err
}

func (c *counted) Free(t tensor.Tensor) {
	c.add(-t.Buffer.Bytes)
	c.Device.Free(t)
}

// NewMatrix counts matrices for good: those of the base model, and of an adapter's first version.
func (c *counted) NewMatrix(d tensor.DType, out, in int) (tensor.Matrix, error) {
	m, err := c.Device.NewMatrix(d, out, in)
	if err == nil {
		c.add(m.Bytes())
	}
	return m, err
}

func (c *counted) NewPages(d tensor.DType, layers, count, heads, headDim int) (tensor.Pages, error) {
	p, err := c.Device.NewPages(d, layers, count, heads, headDim)
	if err == nil {
		c.add(p.Bytes())
	}
	return p, err
}

// TestPlannedIsWhatTheDeviceGives: what a model of each kind takes of the device while a datum as long as the context is trained is what the plan has said, within 2 %.
func TestPlannedIsWhatTheDeviceGives(t *testing.T) {
	const context, rank, layers, hidden = 1024, 8, 8, 128
	for _, f := range families(layers, hidden, 8192, context) {
		dir := f.write(t)
		for _, recompute := range []string{"off", "on"} {
			t.Run(f.name+" recompute "+recompute, func(t *testing.T) {
				section := fmt.Sprintf(`{"device": "cpu", "recompute": %q, "kv_cache_tokens": %d, "max_batch": 4, "prefill_tokens": 16, "memory_mib": 2000, "batch_tokens": %d}`, recompute, 2*context, context)
				p := planOf(t, dir, plugins.PlanRequest{Config: []byte(section), Rank: rank})
				pass := p.Passes[slices.IndexFunc(p.Passes, func(p plugins.PlannedPass) bool { return p.Tokens == context })]
				planned := pass.KeptBytes
				if recompute == "on" {
					planned = pass.RecomputedBytes
				}
				d := p.Placements[0].Devices[0]
				planned += d.WeightBytes + d.SamplerBytes + d.CacheBytes + p.Adapter.WeightBytes + p.Adapter.MomentBytes + p.Adapter.GradientBytes

				var device *counted
				o := testOptions()
				o.OpenDevice = func(c Config) (tensor.Device, error) {
					inner, err := cpu.New(cpu.Options{Threads: c.Threads})
					device = &counted{Device: inner}
					return device, err
				}
				e := New(o)
				t.Cleanup(func() {
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				})
				if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "zero", Config: []byte(section), Scratch: t.TempDir()}, nil); err != nil {
					t.Fatal(err)
				}
				var scratch int64 // of the sampler, which does nothing here
				hook(t, e, func() {
					layout, err := e.loaded.referenceLayout(referenceRank)
					if err != nil {
						t.Fatal(err)
					}
					m, err := e.loaded.model.MeasureForward(16+4, 4, layout)
					if err != nil {
						t.Fatal(err)
					}
					scratch = m.Bytes()
				})
				a := create(t, e, "a", 1, rank)
				a.pass([]plugins.Datum{wholeDatum(rand.New(rand.NewPCG(5, 5)), context)})
				measured := device.peak + scratch
				t.Logf("planned %d bytes, measured %d: %+.2f %%", planned, measured, 100*(float64(planned)/float64(measured)-1))
				if difference := planned - measured; 50*max(difference, -difference) > measured {
					t.Errorf("planned %d bytes, measured %d", planned, measured)
				}
			})
		}
	}
}
