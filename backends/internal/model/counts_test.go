package model

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// shaped gives the model of a configuration over a device without memory, from a file that has nothing but the tensors' names and shapes.
func shaped(t *testing.T, config map[string]any, names map[string][]int) *Model {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	header, end := map[string]any{}, 0
	for name, shape := range names {
		n := 2
		for _, s := range shape {
			n *= s
		}
		header[name] = map[string]any{"dtype": "BF16", "shape": shape, "data_offsets": []int{end, end + n}}
		end += n
	}
	if raw, err = json.Marshal(header); err != nil {
		t.Fatal(err)
	}
	for len(raw)%8 != 0 {
		raw = append(raw, ' ')
	}
	path := filepath.Join(dir, "model.safetensors")
	if err := os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))), raw...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(8+len(raw)+end)); err != nil {
		t.Fatal(err)
	}
	family := func(f Features) Architecture {
		return Architecture{NestedConfig: true, OnePlusNorms: true, Recurrence: true, Check: func(c *Config) error { return CheckHybrid(c, f) },
			Layer: func(ctx context.Context, l *Loader, i int) (nn.Layer, error) {
				return l.HybridLayer(ctx, i, HybridOptions{})
			}}
	}
	registry := Registry{"Qwen3_5ForConditionalGeneration": family(Features{}), "Qwen3_5MoeForConditionalGeneration": family(Features{Experts: true, SharedExpert: true})}
	models, err := measured(context.Background(), dir, registry, LoadOptions{MaxContext: 1024}, [][]tensor.Device{{dry.Device{}}})
	if err != nil {
		t.Fatal(err)
	}
	return models[0][0]
}

// hybridTensors are those of a model in the published layout.
func hybridTensors(hidden, layers, heads, kvHeads, width, experts, keyHeads, valueHeads, vocabulary int, tied bool) map[string][]int {
	const dim, small, prefix = 256, 128, "model.language_model."
	all := map[string][]int{prefix + "embed_tokens.weight": {vocabulary, hidden}, prefix + "norm.weight": {hidden}}
	if !tied {
		all["lm_head.weight"] = []int{vocabulary, hidden}
	}
	mixed, values := 2*keyHeads*small+valueHeads*small, valueHeads*small
	for i := range layers {
		layer := fmt.Sprintf("%slayers.%d.", prefix, i)
		put := func(name string, shape ...int) { all[layer+name] = shape }
		put("input_layernorm.weight", hidden)
		put("post_attention_layernorm.weight", hidden)
		mlp := "mlp."
		if experts > 0 {
			put("mlp.gate.weight", experts, hidden)
			put("mlp.experts.gate_up_proj", experts, 2*width, hidden)
			put("mlp.experts.down_proj", experts, hidden, width)
			put("mlp.shared_expert_gate.weight", 1, hidden)
			mlp = "mlp.shared_expert."
		}
		put(mlp+"gate_proj.weight", width, hidden)
		put(mlp+"up_proj.weight", width, hidden)
		put(mlp+"down_proj.weight", hidden, width)
		if i%4 == 3 {
			put("self_attn.q_proj.weight", 2*heads*dim, hidden)
			put("self_attn.k_proj.weight", kvHeads*dim, hidden)
			put("self_attn.v_proj.weight", kvHeads*dim, hidden)
			put("self_attn.o_proj.weight", hidden, heads*dim)
			put("self_attn.q_norm.weight", dim)
			put("self_attn.k_norm.weight", dim)
			continue
		}
		put("linear_attn.in_proj_qkv.weight", mixed, hidden)
		put("linear_attn.in_proj_z.weight", values, hidden)
		put("linear_attn.in_proj_a.weight", valueHeads, hidden)
		put("linear_attn.in_proj_b.weight", valueHeads, hidden)
		put("linear_attn.conv1d.weight", mixed, 1, 4)
		put("linear_attn.A_log", valueHeads)
		put("linear_attn.dt_bias", valueHeads)
		put("linear_attn.norm.weight", small)
		put("linear_attn.out_proj.weight", hidden, values)
	}
	return all
}

// TestPublishedCounts: parameters of an adapter on the published shapes, as the official service counts them.
func TestPublishedCounts(t *testing.T) {
	for _, s := range []struct {
		name                                                                 string
		hidden, layers, heads, kvHeads, width, experts, keyHeads, valueHeads int // the width of each expert, and of the shared one
		tied                                                                 bool
		mlp, attention, unembed                                              int // for each unit of rank
	}{
		{"4B", 2560, 32, 16, 4, 9216, 0, 16, 32, true, 1130496, 897024, 250880},
		{"9B", 4096, 32, 16, 4, 12288, 0, 16, 32, false, 1572864, 1130496, 252416},
		{"27B", 5120, 64, 24, 4, 17408, 0, 16, 48, false, 4325376, 2965504, 253440},
		{"35B-A3B", 2048, 40, 16, 2, 512, 256, 16, 32, false, 16281600, 1013760, 250368},
		{"397B-A17B", 4096, 60, 32, 2, 1024, 512, 16, 64, false, 96030720, 2841600, 252416},
	} {
		t.Run(s.name, func(t *testing.T) {
			text := map[string]any{
				"hidden_size": s.hidden, "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "num_key_value_heads": s.kvHeads, "head_dim": 256,
				"vocab_size": 248320, "max_position_embeddings": 262144, "linear_num_key_heads": s.keyHeads, "linear_num_value_heads": s.valueHeads, "linear_key_head_dim": 128,
				"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "attn_output_gate": true, "rope_parameters": map[string]any{"rope_theta": 1e7, "partial_rotary_factor": 0.25}}
			architecture := "Qwen3_5ForConditionalGeneration"
			if s.experts == 0 {
				text["intermediate_size"] = s.width
			} else {
				architecture = "Qwen3_5MoeForConditionalGeneration"
				text["num_experts"], text["num_experts_per_tok"], text["moe_intermediate_size"], text["shared_expert_intermediate_size"] = s.experts, 8, s.width, s.width
			}
			c := map[string]any{"architectures": []string{architecture}, "tie_word_embeddings": s.tied, "text_config": text}
			m := shaped(t, c, hybridTensors(s.hidden, s.layers, s.heads, s.kvHeads, s.width, s.experts, s.keyHeads, s.valueHeads, 248320, s.tied))
			if want := int64(s.layers/4*3) * int64(s.valueHeads*128*128+3*(2*s.keyHeads+s.valueHeads)*128) * 4; m.StateBytes() != want {
				t.Errorf("a slot has %d bytes, want %d", m.StateBytes(), want)
			}
			for _, g := range []struct {
				attention, mlp, unembed bool
				want                    int
			}{{true, false, false, s.attention}, {false, true, false, s.mlp}, {false, false, true, s.unembed}, {true, true, true, s.attention + s.mlp + s.unembed}} {
				l, err := m.Layout(32, g.attention, g.mlp, g.unembed)
				if err != nil {
					t.Fatal(err)
				}
				if l.Size != 32*g.want {
					t.Errorf("%+v: %d parameters", g, l.Size)
				}
			}
		})
	}
}
