package model

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"
)

// mixture is a configuration of a model with experts that is accepted.
func mixture() map[string]any {
	j := plain()
	maps.Copy(j, map[string]any{"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "norm_topk_prob": true})
	delete(j, "rope_scaling")
	return j
}

// hybrid is one of a model with layers of linear attention.
func hybrid() map[string]any {
	j := plain()
	maps.Copy(j, map[string]any{"num_hidden_layers": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 5, "linear_value_head_dim": 3, "linear_conv_kernel_dim": 4,
		"mamba_ssm_dtype": "float32", "attn_output_gate": true, "head_dim": 8, "rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": []int{1, 0, 0}}})
	delete(j, "rope_theta")
	delete(j, "rope_scaling")
	return j
}

// nested is a configuration that has one in text_config.
func nested(text map[string]any) map[string]any {
	text = maps.Clone(text)
	name := text["architectures"]
	delete(text, "architectures")
	return map[string]any{"architectures": name, "text_config": text, "tie_word_embeddings": true, "vision_config": map[string]any{"depth": 1}}
}

func TestConfigOfExperts(t *testing.T) {
	j := mixture()
	maps.Copy(j, map[string]any{"num_local_experts": 8, "decoder_sparse_step": 2, "num_hidden_layers": 6, "mlp_only_layers": []int{3}, "shared_expert_intermediate_size": 9})
	c, err := parseConfig(encode(t, j))
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	if want := (&MoE{Experts: 8, PerToken: 2, Width: 6, Shared: 9, Normalised: &yes, SparseStep: 2, Dense: []int{3}}); !reflect.DeepEqual(c.MoE, want) {
		t.Errorf("%+v, want %+v", c.MoE, want)
	}
	for i, want := range []bool{false, true, false, false, false, true} {
		if c.Sparse(i) != want {
			t.Errorf("layer %d has experts: %v", i, !want)
		}
	}
	if w := c.widths(); !reflect.DeepEqual(w, []int{6, 7, 9}) {
		t.Errorf("widths %v", w)
	}
	delete(j, "num_experts")
	delete(j, "intermediate_size")
	delete(j, "mlp_only_layers")
	j["decoder_sparse_step"] = 1
	if c, err = parseConfig(encode(t, j)); err != nil || c.MoE.Experts != 8 || !reflect.DeepEqual(c.widths(), []int{6, 9}) {
		t.Errorf("as transformers 5 writes it: %+v, %v", c, err)
	}
}

func TestConfigOfLinearAttention(t *testing.T) {
	c, err := parseConfig(encode(t, hybrid()))
	if err != nil {
		t.Fatal(err)
	}
	if want := (&DeltaNet{KeyHeads: 2, ValueHeads: 4, KeyHeadDim: 5, ValueHeadDim: 3, Kernel: 4}); !reflect.DeepEqual(c.DeltaNet, want) {
		t.Errorf("%+v, want %+v", c.DeltaNet, want)
	}
	if c.RotaryDim != 2 || c.OutputGate == nil || !*c.OutputGate || c.Rope.Theta != 1e7 {
		t.Errorf("%+v", c)
	}
	for i, kind := range c.LayerTypes {
		if want := i%4 == 3; (kind == FullAttention) != want || (kind == LinearAttention) == want {
			t.Errorf("layer %d has %s", i, kind)
		}
	}
	j := hybrid()
	j["full_attention_interval"] = 2
	if c, err = parseConfig(encode(t, j)); err != nil || c.LayerTypes[0] != LinearAttention || c.LayerTypes[1] != FullAttention {
		t.Errorf("%+v: %v", c, err)
	}
}

// TestDefaultRotation: a family's class in transformers may turn a part of each head where the configuration does not say how much.
func TestDefaultRotation(t *testing.T) {
	registry := Registry{"Qwen3ForCausalLM": {Defaults: Defaults{RotaryFactor: 0.25}}}
	for _, c := range []struct {
		name   string
		change func(j, rope map[string]any)
		want   int // of 16 elements
	}{
		{"not said", func(_, _ map[string]any) {}, 4},
		{"no settings at all", func(j, _ map[string]any) { delete(j, "rope_parameters") }, 4},
		{"among the settings", func(_, rope map[string]any) { rope["partial_rotary_factor"] = 0.5 }, 8},
		{"beside them", func(j, _ map[string]any) { j["partial_rotary_factor"] = 0.5 }, 8},
		{"among the settings, and the family's beside them", func(j, rope map[string]any) { rope["partial_rotary_factor"], j["partial_rotary_factor"] = 0.5, 0.25 }, 8},
		{"null", func(j, _ map[string]any) { j["partial_rotary_factor"] = nil }, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, rope := hybrid(), map[string]any{"rope_type": "default", "rope_theta": 1e7}
			j["head_dim"], j["rope_parameters"] = 16, rope
			c.change(j, rope)
			for _, raw := range [][]byte{encode(t, j), encode(t, nested(j))} {
				if config, err := registry.parseConfig(raw); err != nil || config.RotaryDim != c.want {
					t.Errorf("%v, want %d: %v", config, c.want, err)
				}
			}
		})
	}
}

// TestNestedConfig: the settings are those of text_config; of the whole model are its architecture and whether its matrices are tied.
func TestNestedConfig(t *testing.T) {
	j := nested(mixture())
	text := j["text_config"].(map[string]any)
	text["tie_word_embeddings"] = false
	text["architectures"] = []string{"Other"}
	j["hidden_size"] = text["hidden_size"]
	j["max_position_embeddings"] = 7 // not read
	c, err := parseConfig(encode(t, j))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Nested || c.Architecture != "Qwen3ForCausalLM" || !c.TieWordEmbeddings || c.HiddenSize != 10 || c.MaxPositionEmbeddings != 100 || c.MoE.Experts != 8 {
		t.Errorf("%+v", c)
	}
	j["hidden_size"], j["rms_norm_eps"] = json.RawMessage("1e1"), json.RawMessage("0.00001000") // other writings of the same numbers
	if _, err = parseConfig(encode(t, j)); err != nil {
		t.Error(err)
	}
	delete(j, "tie_word_embeddings")
	if c, err = parseConfig(encode(t, j)); err != nil || c.TieWordEmbeddings {
		t.Errorf("tied: %+v, %v", c, err)
	}
	for _, f := range []struct {
		name   string
		change func(j, text map[string]any)
		want   string
	}{
		{"no object", func(j, _ map[string]any) { j["text_config"] = []int{1} }, "text_config"},
		{"in itself", func(_, text map[string]any) { text["text_config"] = map[string]any{} }, "text_config has a text_config itself"},
		{"another size", func(j, _ map[string]any) { j["hidden_size"] = 11 }, "hidden_size is 11, and 10 in text_config: they must be equal"},
		{"other experts", func(j, _ map[string]any) { j["num_experts"] = 9 }, "num_experts is 9, and 8 in text_config"},
		{"a size of the whole model alone", func(j, text map[string]any) { delete(text, "hidden_size"); j["hidden_size"] = 10 }, "text_config: hidden_size is missing"},
		{"the architecture of the part alone", func(j, text map[string]any) {
			delete(j, "architectures")
			text["architectures"] = []string{"Qwen3ForCausalLM"}
		}, "architectures is []"},
		{"a bad value", func(_, text map[string]any) { text["num_experts_per_tok"] = 9 }, "text_config: num_experts_per_tok is 9, it must be in 1 … 8"},
		{"two quantizations", func(j, text map[string]any) {
			j["quantization_config"], text["quantization_config"] = map[string]any{"quant_method": "fp8"}, map[string]any{"quant_method": "mxfp4"}
		}, "quantization_config is there twice"},
	} {
		t.Run(f.name, func(t *testing.T) {
			j := nested(mixture())
			f.change(j, j["text_config"].(map[string]any))
			if _, err := parseConfig(encode(t, j)); err == nil || !strings.Contains(err.Error(), f.want) {
				t.Errorf("error %v, want %q", err, f.want)
			}
		})
	}
}

func TestConfigsOfFamiliesRefused(t *testing.T) {
	for _, c := range []struct {
		name, key string
		base      func() map[string]any
		value     any
		want      string
	}{
		{"two numbers of experts", "num_local_experts", mixture, 7, "num_experts is 8 and num_local_experts 7: they must be equal"},
		{"more than there are", "num_experts_per_tok", mixture, 9, "num_experts_per_tok is 9, it must be in 1 … 8"},
		{"none", "num_experts_per_tok", mixture, 0, "num_experts_per_tok is 0"},
		{"no experts", "num_experts", mixture, 0, "num_experts is 0"},
		{"a width below zero", "moe_intermediate_size", mixture, -1, "moe_intermediate_size is -1"},
		{"a shared width without end", "shared_expert_intermediate_size", mixture, 1 << 30, "shared_expert_intermediate_size is 1073741824"},
		{"no step", "decoder_sparse_step", mixture, 0, "decoder_sparse_step is 0"},
		{"a layer that is not there", "mlp_only_layers", mixture, []int{2}, "mlp_only_layers has 2"},
		{"a layer twice", "mlp_only_layers", mixture, []int{1, 1}, "mlp_only_layers has 1"},
		{"value heads that do not group", "linear_num_value_heads", hybrid, 3, "linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2"},
		{"heads without end", "linear_num_key_heads", hybrid, 1 << 20, "linear_num_key_heads is 1048576"},
		{"no kernel", "linear_conv_kernel_dim", hybrid, 0, "linear_conv_kernel_dim is 0"},
		{"states of bfloat16", "mamba_ssm_dtype", hybrid, "bfloat16", `mamba_ssm_dtype is "bfloat16"`},
		{"an interval of nothing", "full_attention_interval", hybrid, 0, "full_attention_interval is 0"},
		{"another partial rotation", "partial_rotary_factor", hybrid, 0.5, "partial_rotary_factor is 0.5, and 0.25 among the settings"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := c.base()
			j[c.key] = c.value
			if _, err := parseConfig(encode(t, j)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestFeatures: what a family does not have is refused by the name of the key.
func TestFeatures(t *testing.T) {
	experts := Features{Experts: true}
	for _, c := range []struct {
		name     string
		base     func() map[string]any
		change   func(j map[string]any)
		features Features
		want     string // "" = accepted
	}{
		{"experts", mixture, func(map[string]any) {}, experts, ""},
		{"experts of another family", mixture, func(map[string]any) {}, Features{}, "num_experts is 8"},
		{"experts that are not there", plain, func(map[string]any) {}, experts, "num_experts is missing"},
		{"experts without a width", mixture, func(j map[string]any) { delete(j, "moe_intermediate_size") }, experts, "moe_intermediate_size is missing"},
		{"a shared expert", mixture, func(j map[string]any) { j["shared_expert_intermediate_size"] = 4 }, experts, "shared_expert_intermediate_size is 4"},
		{"no shared expert", mixture, func(map[string]any) {}, Features{Experts: true, SharedExpert: true}, "shared_expert_intermediate_size is missing"},
		{"linear attention", hybrid, func(map[string]any) {}, Features{LinearAttention: true, PartialRotary: true}, ""},
		{"linear attention of another family", hybrid, func(map[string]any) {}, Features{PartialRotary: true}, "linear_num_key_heads is 2"},
		{"linear attention that is not there", plain, func(map[string]any) {}, Features{LinearAttention: true}, "linear_num_key_heads is missing"},
		{"partial rotation", hybrid, func(map[string]any) {}, Features{LinearAttention: true}, "partial_rotary_factor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := c.base()
			c.change(j)
			config, err := parseConfig(encode(t, j))
			if err != nil {
				t.Fatal(err)
			}
			if err := config.Check(c.features); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
