package model_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
)

// FuzzSizes: whatever config.json and the index of a directory without weights say, sizes are told or refused, and are sizes.
func FuzzSizes(f *testing.F) {
	const common = `"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 32, "max_position_embeddings": 64`
	for _, more := range []string{
		`"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": true, "torch_dtype": "float32"`,
		`"architectures": ["Phi3ForCausalLM"], "sliding_window": null`,
		`"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 4`,
		`"architectures": ["Qwen3_5ForCausalLM"], "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4`,
		`"architectures": ["GptOssForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": true, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "rms_norm_eps": 1e-5,
			"rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32, "truncate": false}, "quantization_config": {"quant_method": "mxfp4"}`,
		`"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [4, 4]}`,
	} {
		f.Add("{"+common+", "+more+"}", "", uint8(1))
		f.Add("{"+common+", "+more+"}", `{"weight_map": {"model.embed_tokens.weight": "a.safetensors"}}`, uint8(2))
	}
	registry := architectures.All()
	f.Fuzz(func(t *testing.T, config, index string, ranks uint8) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if index != "" {
			if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(index), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n := int(ranks%4) + 1
		for _, split := range [][2]int{{1, n}, {n, 1}} {
			s, err := model.MeasureWeights(t.Context(), dir, registry, model.LoadOptions{Sizes: true}, split[0], split[1])
			if err == nil && (s.Rank <= 0 || s.All < s.Rank || s.Gathered < 0) {
				t.Errorf("%d copies over %d ranks: %+v", split[0], split[1], s)
			}
		}
	})
}
