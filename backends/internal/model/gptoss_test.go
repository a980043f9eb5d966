package model_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// What a gpt-oss must have, and what is not there for one, is refused by the name of the key or of the tensor.
func TestGPTOSSRefused(t *testing.T) {
	const layer = "model.layers.0."
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
		return func(config map[string]any, _ tensors) {
			if config[name] = value; value == nil {
				delete(config, name)
			}
		}
	}
	for _, c := range []struct {
		name   string
		change remodel
		want   string
	}{
		{"no window", key("sliding_window", nil), "sliding_window is missing or 0"},
		{"a window of nothing", key("sliding_window", 0), "sliding_window is missing or 0"},
		{"a negative window", key("sliding_window", -1), "sliding_window is -1"},
		{"a wide window", func(c map[string]any, _ tensors) { c["sliding_window"], c["max_position_embeddings"] = 32769, 65536 }, "sliding_window is 32769, at most 32768"},
		{"no types of layers", key("layer_types", nil), "layer_types is missing"},
		{"fewer types of layers", key("layer_types", []string{"full_attention"}), "layer_types has 1 entries for 3 layers"},
		{"a layer of another type", key("layer_types", []string{"full_attention", "linear_attention", "full_attention"}), `layer_types[1] is "linear_attention"`},
		{"no biases", key("attention_bias", false), "attention_bias is false or missing"},
		{"no YaRN", key("rope_parameters", map[string]any{"rope_type": "default", "rope_theta": 1e4}), "another rope_type than yarn"},
		{"no theta", key("rope_parameters", map[string]any{"rope_type": "yarn", "factor": 8.0}), "rope_theta is missing"},
		{"another limit", key("swiglu_limit", 6.5), "swiglu_limit is 6.5, only 7 is supported"},
		{"another width of experts", key("moe_intermediate_size", 16), "moe_intermediate_size is 16, it must be intermediate_size 32"},
		{"a layer without experts", key("mlp_only_layers", []int{1}), "leaves layer 1 without experts"},
		{"a shared expert", key("shared_expert_intermediate_size", 8), "shared_expert_intermediate_size is 8"},
		{"no size of heads", key("head_dim", nil), "head_dim is missing"},
		{"no key heads", key("num_key_value_heads", nil), "num_key_value_heads is missing"},
		{"no eps", key("rms_norm_eps", nil), "rms_norm_eps is missing"},
		{"no experts", key("num_local_experts", nil), "num_experts is missing"},
		{"more experts for a token than there are", key("num_experts_per_tok", 7), "num_experts_per_tok is 7"},
		{"another activation", key("hidden_act", "gelu"), "hidden_act is \"gelu\""},
		{"no sinks", without(layer + "self_attn.sinks"), layer + "self_attn.sinks\" is missing"},
		{"sinks of key heads", shaped(layer+"self_attn.sinks", 2), "self_attn.sinks\" has shape [2]"},
		{"no bias of o", without(layer + "self_attn.o_proj.bias"), layer + "self_attn.o_proj.bias\" is missing"},
		{"no bias of the router", without(layer + "mlp.router.bias"), layer + "mlp.router.bias\" is missing"},
		{"no biases of experts", without(layer + "mlp.experts.gate_up_proj_bias"), layer + "mlp.experts.gate_up_proj_bias\" is missing"},
		{"biases of gates alone", shaped(layer+"mlp.experts.gate_up_proj_bias", 6, 32), "gate_up_proj_bias\" has shape [6 32]"},
		{"biases of fewer experts", shaped(layer+"mlp.experts.down_proj_bias", 5, 48), "down_proj_bias\" has shape [5 48]"},
		{"no last layers", without(layer + "mlp.experts.down_proj"), layer + "mlp.experts.down_proj\" is missing"},
		{"experts of another shape", shaped(layer+"mlp.experts.gate_up_proj", 6, 48, 66), "gate_up_proj\" has shape [6 48 66]"},
		{"a norm of heads", shaped(layer+"self_attn.q_norm.weight", 16), "self_attn.q_norm.weight\" is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := unpack(t, "gpt-oss")
			config, all := configOf(t, from), arrays(t, from)
			c.change(config, all)
			if _, _, err := load(t, modelOf(t, config, all), model.LoadOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// Experts may lie as out × in as well, and a window of all positions is none; the bits are the same.
func TestGPTOSSInOtherForms(t *testing.T) {
	from := unpack(t, "gpt-oss")
	const positions = 200 // of the model
	scores := func(dir string) (all []float32) {
		b := newBench(t, dir, tensor.Float32, 2)
		r := rand.New(rand.NewPCG(3, 4))
		for _, n := range []int{5, 150} {
			all = append(all, b.train(model.TrainOptions{}, b.example(b.randomAdapter(4, 9, true, true, true), b.randomTokens(r, n), b.randomTokens(r, n), nil))[0].Logprobs...)
		}
		return all
	}
	same := func(name string, change remodel, other remodel) {
		t.Run(name, func(t *testing.T) {
			var dirs []string
			for _, f := range []remodel{change, other} {
				config, all := configOf(t, from), arrays(t, from)
				f(config, all)
				dirs = append(dirs, modelOf(t, config, all))
			}
			if !slices.Equal(scores(dirs[0]), scores(dirs[1])) {
				t.Error("other bits")
			}
		})
	}
	same("experts that are not transposed", func(map[string]any, tensors) {}, func(_ map[string]any, all tensors) {
		for name, m := range all {
			if strings.HasSuffix(name, ".experts.gate_up_proj") || strings.HasSuffix(name, ".experts.down_proj") {
				var whole []float32
				for _, w := range m.matrices() {
					whole = append(whole, w.transposed().values...)
				}
				all[name] = matrix{[]int{m.shape[0], m.shape[2], m.shape[1]}, whole}
			}
		}
	})
	same("a window of all positions", func(c map[string]any, _ tensors) {
		c["layer_types"], c["max_position_embeddings"] = []string{"full_attention", "full_attention", "full_attention"}, positions
	}, func(c map[string]any, _ tensors) {
		c["sliding_window"], c["max_position_embeddings"] = positions, positions
	})
}
