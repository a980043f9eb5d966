package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
)

// family is what a shape of another family than dense Qwen3 has: its config.json, and what of it decides what a decoding step reads.
type family struct {
	Config          map[string]any
	AttentionLayers int // whose keys and values are all read,
	WindowLayers    int // and of these the last Window
	Window          int
	Experts, Chosen int // of a layer; 0: it has none
}

// The shapes of other families: all layers for predictions, and some of them, as wide, for what runs on a device, whose disk has no room for all.
var (
	qwen30B = shape{Name: "Qwen3-30B-A3B", Vocabulary: 151936, Hidden: 2048, Intermediate: 768, Layers: 48, Heads: 32, KeyHeads: 4, HeadWidth: 128,
		Family: mixture(48)}
	qwen27B = shape{Name: "Qwen3.5-27B", Vocabulary: 248320, Hidden: 5120, Intermediate: 17408, Layers: 64, Heads: 24, KeyHeads: 4, HeadWidth: 256,
		Family: hybrid(64)}
	gptOSS = shape{Name: "gpt-oss-20b", Vocabulary: 201088, Hidden: 2880, Intermediate: 2880, Layers: 24, Heads: 64, KeyHeads: 8, HeadWidth: 64,
		Family: sinks(24)}
)

// some is the shape with fewer layers; a multiple of 4 has the family's kinds of layers in its proportion.
func (s shape) some(layers int, of func(layers int) *family) shape {
	s.Name, s.Layers, s.Family = fmt.Sprintf("%s, %d of %d layers", s.Name, layers, s.Layers), layers, of(layers)
	return s
}

func mixture(layers int) *family {
	return &family{AttentionLayers: layers, Experts: 128, Chosen: 8, Config: map[string]any{"architectures": []string{"Qwen3MoeForCausalLM"},
		"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": layers,
		"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
		"moe_intermediate_size": 768, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []int{},
		"vocab_size": 151936, "max_position_embeddings": longest, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false, "hidden_act": "silu"}}
}

func hybrid(layers int) *family {
	return &family{AttentionLayers: layers / 4, Config: map[string]any{"architectures": []string{"Qwen3_5ForConditionalGeneration"},
		"model_type": "qwen3_5", "tie_word_embeddings": false,
		"text_config": map[string]any{"model_type": "qwen3_5_text", "attn_output_gate": true, "full_attention_interval": 4, "head_dim": 256,
			"hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17408, "linear_conv_kernel_dim": 4,
			"linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
			"mamba_ssm_dtype": "float32", "max_position_embeddings": longest, "num_attention_heads": 24,
			"num_hidden_layers": layers, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "vocab_size": 248320,
			"rope_parameters": map[string]any{"mrope_interleaved": true, "mrope_section": []int{11, 11, 10}, "partial_rotary_factor": 0.25,
				"rope_theta": 1e7, "rope_type": "default"}}}}
}

func sinks(layers int) *family {
	kinds := make([]string, layers)
	for i := range kinds {
		kinds[i] = []string{"sliding_attention", "full_attention"}[i%2]
	}
	return &family{AttentionLayers: layers / 2, WindowLayers: layers - layers/2, Window: 128, Experts: 32, Chosen: 4,
		Config: map[string]any{"architectures": []string{"GptOssForCausalLM"}, "model_type": "gpt_oss", "attention_bias": true,
			"attention_dropout": 0.0, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880,
			"initial_context_length": 4096, "layer_types": kinds, "max_position_embeddings": longest,
			"num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": layers, "num_key_value_heads": 8, "num_local_experts": 32,
			"output_router_logits": false, "rms_norm_eps": 1e-5,
			"rope_scaling": map[string]any{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
				"rope_type": "yarn", "truncate": false}, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
			"tie_word_embeddings": false, "use_cache": true, "vocab_size": 201088}}
}

// config is the shape's config.json.
func (s shape) config() ([]byte, error) {
	if s.Family != nil {
		return json.Marshal(s.Family.Config)
	}
	return json.Marshal(map[string]any{"architectures": []string{"Qwen3ForCausalLM"}, "model_type": "qwen3", "num_hidden_layers": s.Layers,
		"hidden_size": s.Hidden, "intermediate_size": s.Intermediate,
		"num_attention_heads": s.Heads, "num_key_value_heads": s.KeyHeads, "head_dim": s.HeadWidth, "vocab_size": s.Vocabulary,
		"max_position_embeddings": longest, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
		"tie_word_embeddings": s.Tied, "hidden_act": "silu"})
}

// sizes writes a folder that has the shape's config.json alone, for f: sizes are told from it.
func (s shape) sizes(f func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("", "devicebench-sizes-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config, err := s.config()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		return err
	}
	return f(dir)
}

// matrices are all tensors of the model, as loading looks for them.
func (s shape) matrices() (all []matrix, err error) {
	err = s.sizes(func(dir string) error {
		stated, err := model.StatedTensors(context.Background(), dir, architectures.All())
		for _, t := range stated {
			all = append(all, matrix{t.Name, t.Shape})
		}
		return err
	})
	return all, err
}

// chosen is how many experts of a layer have a token, of so many tokens each of which chooses any with the same likelihood.
func (f *family) chosen(tokens int) float64 {
	return float64(f.Experts) * (1 - math.Pow(1-float64(f.Chosen)/float64(f.Experts), float64(tokens)))
}

// positions is what a step of one sequence reads of keys and values after so many positions, as a multiple of those of one layer and position.
func (s shape) positions(context int) int {
	if f := s.Family; f != nil {
		return f.AttentionLayers*context + f.WindowLayers*min(context, f.Window)
	}
	return s.Layers * context
}
