package model

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"strings"
	"testing"
)

// plain is a configuration that is accepted.
func plain() map[string]any {
	return map[string]any{
		"architectures": []string{"Qwen3ForCausalLM"}, "num_hidden_layers": 2, "hidden_size": 10, "intermediate_size": 7, "num_attention_heads": 6, "num_key_value_heads": 2,
		"head_dim": 4, "vocab_size": 13, "max_position_embeddings": 100, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
		"rope_theta": 5e5, "rope_scaling": nil, "torch_dtype": "bfloat16", "some_future_key": []int{1},
	}
}

func encode(t testing.TB, c map[string]any) []byte {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parseConfig reads the configuration of an architecture that has no defaults of its own.
func parseConfig(raw []byte) (*Config, error) { return Registry(nil).parseConfig(raw) }

func TestConfig(t *testing.T) {
	c, err := parseConfig(encode(t, plain()))
	if err != nil {
		t.Fatal(err)
	}
	if c.Layers != 2 || c.HiddenSize != 10 || c.IntermediateSize != 7 || c.Heads != 6 || c.KVHeads != 2 || c.HeadDim != 4 || c.VocabSize != 13 || c.MaxPositionEmbeddings != 100 ||
		c.RMSNormEps != 1e-5 || !c.TieWordEmbeddings || c.Rope.Theta != 5e5 || c.Rope.Llama3 != nil {
		t.Errorf("%+v", c)
	}
	j := plain()
	delete(j, "head_dim")
	delete(j, "num_key_value_heads")
	delete(j, "rope_theta")
	j["hidden_size"] = 12
	j["rope_parameters"] = map[string]any{"rope_type": "llama3", "rope_theta": 1e4, "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}
	if c, err = parseConfig(encode(t, j)); err != nil {
		t.Fatal(err)
	}
	if c.HeadDim != 2 || c.KVHeads != 6 || c.Rope.Theta != 1e4 || c.Rope.Llama3 == nil || c.Rope.Llama3.Factor != 8 || c.Rope.Llama3.OriginalPositions != 64 {
		t.Errorf("%+v", c)
	}
}

// Model cards tell people to write rope_scaling into config.json, which may have rope_parameters already: transformers takes rope_scaling in its place.
func TestRopeScalingGoesBeforeRopeParameters(t *testing.T) {
	llama3 := map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}
	for _, c := range []struct {
		name    string
		scaling map[string]any
		theta   any // of the file itself; nil = absent
		llama3  bool
		want    string // of the error; "" = none
	}{
		{"an empty one does not", map[string]any{}, 1e4, false, ""},
		{"another kind", llama3, 1e4, true, ""},
		{"a kind that is not supported", map[string]any{"rope_type": "linear", "factor": 4}, 1e4, false, `rope_scaling: rope_type is "linear"`},
		{"theta would be lost", llama3, nil, false, "has no rope_theta"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := plain()
			delete(j, "rope_theta")
			if c.theta != nil {
				j["rope_theta"] = c.theta
			}
			j["rope_scaling"], j["rope_parameters"] = c.scaling, map[string]any{"rope_type": "default", "rope_theta": 1e4}
			got, err := parseConfig(encode(t, j))
			switch {
			case c.want != "":
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
			case err != nil:
				t.Error(err)
			case got.Rope.Theta != 1e4 || (got.Rope.Llama3 != nil) != c.llama3:
				t.Errorf("%+v", got.Rope)
			}
		})
	}
}

// TestTwoQuantizations: a configuration says one thing only of how weights are stored, also where one part is of the text model.
func TestTwoQuantizations(t *testing.T) {
	method := map[string]any{"quant_method": "mxfp4"}
	j := plain()
	j["quantization_config"], j["compression_config"] = method, method
	whole := nested(plain())
	whole["quantization_config"], whole["text_config"].(map[string]any)["compression_config"] = method, method
	for _, j := range []map[string]any{j, whole} {
		if _, err := parseConfig(encode(t, j)); err == nil || !strings.Contains(err.Error(), "quantization_config and compression_config are both there") {
			t.Errorf("error %v", err)
		}
	}
}

// TestOriginalPositions: transformers takes original_max_position_embeddings of the file itself before that of the settings of positions.
func TestOriginalPositions(t *testing.T) {
	for _, c := range []struct {
		name         string
		outer, inner any // nil = absent
		want         int // 0 = an error
	}{
		{"inside", nil, 32, 32},
		{"outside", 32, nil, 32},
		{"both", 32, 32, 32},
		{"both, and different", 32, 64, 0},
		{"outside, of no positions", 0, nil, 0},
		{"outside, without end", 1 << 30, nil, 0},
	} {
		for _, kind := range []string{"yarn", "llama3"} {
			t.Run(c.name+", "+kind, func(t *testing.T) {
				j, scaling := plain(), map[string]any{"rope_type": kind, "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4}
				if c.outer != nil {
					j["original_max_position_embeddings"] = c.outer
				}
				if c.inner != nil {
					scaling["original_max_position_embeddings"] = c.inner
				}
				j["rope_scaling"] = scaling
				got, err := parseConfig(encode(t, j))
				switch {
				case c.want == 0:
					if err == nil || !strings.Contains(err.Error(), "original_max_position_embeddings") {
						t.Errorf("error %v", err)
					}
				case err != nil:
					t.Error(err)
				case kind == "yarn" && got.Rope.YaRN.OriginalPositions != c.want, kind == "llama3" && got.Rope.Llama3.OriginalPositions != c.want:
					t.Errorf("%+v", got.Rope)
				}
			})
		}
	}
	j := plain()
	j["original_max_position_embeddings"] = 7 // Phi-3 says it of positions that are not stretched too
	if c, err := parseConfig(encode(t, j)); err != nil || c.Rope.YaRN != nil || c.Rope.Llama3 != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestAttentionFactor has what transformers 5.5 multiplies cosines and sines with.
func TestAttentionFactor(t *testing.T) {
	for _, c := range []struct {
		positions, original int
		key                 string
		value               float64
		want                float64
	}{
		{131072, 4096, "", 0, 1.1902380714238083}, // Phi-4-mini's
		{4096, 4096, "", 0, 1},
		{2048, 4096, "", 0, 1},
		{131072, 4096, "factor", 8, 1.118033988749895},
		{131072, 4096, "factor", 0.5, 1},
		{131072, 4096, "attention_factor", 0.5, 0.5},
	} {
		j := plain()
		scaling := map[string]any{"rope_type": "longrope", "short_factor": []int{1, 1}, "long_factor": []int{1, 1}}
		if c.key != "" {
			scaling[c.key] = c.value
		}
		j["max_position_embeddings"], j["original_max_position_embeddings"], j["rope_scaling"] = c.positions, c.original, scaling
		got, err := parseConfig(encode(t, j))
		if err != nil {
			t.Fatal(err)
		}
		if f := got.Rope.LongRoPE.AttentionFactor; math.Abs(f-c.want) > 1e-12 {
			t.Errorf("%d positions of %d, %s %v: %v, want %v", c.positions, c.original, c.key, c.value, f, c.want)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	llama3 := map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}
	with := func(key string, value any) map[string]any {
		m := maps.Clone(llama3)
		m[key] = value
		return m
	}
	longrope := func(key string, value any) map[string]any {
		m := map[string]any{"rope_type": "longrope", "short_factor": []int{1, 1}, "long_factor": []int{1, 1}, "original_max_position_embeddings": 64}
		m[key] = value
		return m
	}
	for _, c := range []struct {
		name, key string
		value     any // nil = absent
		want      string
	}{
		{"no architecture", "architectures", nil, "architectures is"},
		{"two architectures", "architectures", []string{"a", "b"}, "must name one"},
		{"no size", "hidden_size", nil, "hidden_size is missing"},
		{"no layers", "num_hidden_layers", 0, "num_hidden_layers is 0"},
		{"huge size", "vocab_size", 1 << 30, "vocab_size is 1073741824"},
		{"negative", "intermediate_size", -4, "intermediate_size is -4"},
		{"text for a number", "hidden_size", "64", "hidden_size"},
		{"heads do not group", "num_key_value_heads", 4, "not a multiple of num_key_value_heads 4"},
		{"odd head", "head_dim", 3, "must be even"},
		{"no head_dim, and heads do not divide", "head_dim", nil, "head_dim is missing"},
		{"eps", "rms_norm_eps", 0, "rms_norm_eps is 0"},
		{"activation", "hidden_act", "gelu", `hidden_act is "gelu"`},
		{"quantized without a method", "quantization_config", map[string]any{"bits": 4}, `quantization_config: quant_method is ""`},
		{"quantized in a list", "quantization_config", []int{4}, "quantization_config: json"},
		{"quantized under an older name", "compression_config", map[string]any{"quant_method": "x"}, `quant_method is "x"`},
		{"other kind of layer", "layer_types", []string{"full_attention", "chunked_attention"}, `layer_types[1] is "chunked_attention"`},
		{"too few kinds", "layer_types", []string{"full_attention"}, "1 entries for 2 layers"},
		{"theta", "rope_theta", -1, "rope_theta is -1"},
		{"theta 0", "rope_theta", 0, "rope_theta is 0"},
		{"theta that is not used", "rope_parameters", map[string]any{"rope_type": "default", "rope_theta": 0}, "rope_theta is 0"},
		{"theta beyond float32", "rope_theta", 1e300, "rope_theta is 1e+300"},
		{"negative end token", "eos_token_id", -1, "eos_token_id is -1, it must be in 0 … 12"},
		{"negative end token in a list", "eos_token_id", []int{3, -7}, "eos_token_id is -7"},
		{"beginning beyond the vocabulary", "bos_token_id", 13, "bos_token_id is 13"},
		{"padding far beyond", "pad_token_id", int64(1) << 60, "pad_token_id is 1152921504606846976"},
		{"end token of text", "eos_token_id", "</s>", "eos_token_id"},
		{"negative window", "sliding_window", -4096, "sliding_window is -4096"},
		{"layers without end", "num_hidden_layers", 1000000000, "num_hidden_layers is 1000000000"},
		{"no heads", "num_attention_heads", 0, "num_attention_heads is 0"},
		{"no heads for keys", "num_key_value_heads", 0, "num_key_value_heads is 0"},
		{"head beyond 32 bits", "head_dim", int64(1) << 40, "head_dim is 1099511627776"},
		{"size beyond 64 bits", "hidden_size", json.Number("99999999999999999999"), "hidden_size"},
		{"fractional size", "hidden_size", 1.5, "hidden_size"},
		{"eps below float32", "rms_norm_eps", 1e-60, "rms_norm_eps is 1e-60"},
		{"negative eps", "rms_norm_eps", -1e-5, "rms_norm_eps is -1e-05"},
		{"eps of one", "rms_norm_eps", 1, "rms_norm_eps is 1"},
		{"positions without end", "max_position_embeddings", int64(1) << 40, "max_position_embeddings is 1099511627776"},
		{"no positions", "max_position_embeddings", 0, "max_position_embeddings is 0"},
		{"llama3 with a negative factor", "rope_scaling", with("factor", -8), "factor must be above 0"},
		{"llama3 without an end", "rope_scaling", with("high_freq_factor", 1e300), "high_freq_factor must be above 0"},
		{"llama3 the wrong way round", "rope_scaling", with("low_freq_factor", 5), "is not above low_freq_factor"},
		{"rotation beyond the head", "partial_rotary_factor", 1.5, "partial_rotary_factor is 1.5"},
		{"rotation of nothing", "partial_rotary_factor", 0.1, "partial_rotary_factor 0.1 makes positions turn 0 of head_dim 4"},
		{"rotation of half a pair", "partial_rotary_factor", 0.75, "must be an even number"},
		{"two rotations", "rope_parameters", map[string]any{"rope_type": "default", "partial_rotary_factor": 2}, "partial_rotary_factor is 2"},
		{"mrope of another size", "rope_scaling", map[string]any{"type": "default", "mrope_section": []int{1, 1, 1}}, "mrope_section [1 1 1] adds up to 3, it must be 2"},
		{"mrope of four", "rope_scaling", map[string]any{"type": "default", "mrope_section": []int{1, 1, 0, 0}}, "must be three numbers"},
		{"mrope below zero", "rope_scaling", map[string]any{"type": "default", "mrope_section": []int{3, -1, 0}}, "must be three numbers"},
		{"yarn that shrinks", "rope_scaling", map[string]any{"rope_type": "yarn", "factor": 0.5}, "rope_scaling: factor is 0.5, it must be at least 1"},
		{"yarn without end", "rope_scaling", map[string]any{"rope_type": "yarn", "factor": 1e9}, "factor is 1e+09"},
		{"yarn of no positions", "rope_scaling", map[string]any{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"},
		{"yarn the wrong way round", "rope_scaling", map[string]any{"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 32}, "beta_fast 1 is below beta_slow 32"},
		{"yarn with factor 0 of attention", "rope_scaling", map[string]any{"rope_type": "yarn", "factor": 4, "attention_factor": 0}, "attention_factor is 0"},
		{"yarn without a factor", "rope_scaling", map[string]any{"rope_type": "yarn"}, "rope_scaling: factor is missing, and original_max_position_embeddings"},
		{"positions by type of layer", "rope_parameters", map[string]any{"full_attention": map[string]any{"rope_type": "default", "rope_theta": 1e4}, "linear_attention": map[string]any{"rope_type": "default"}},
			`rope_parameters: "full_attention" is an object`},
		{"positions by type of layer among others", "rope_scaling", map[string]any{"rope_type": "default", "x": map[string]any{}}, `rope_scaling: "x" is an object`},
		{"an object for a number", "rope_scaling", map[string]any{"rope_type": "yarn", "factor": map[string]any{}}, `rope_scaling: "factor" is an object`},
		{"positions of no object", "rope_scaling", []int{1}, "json"},
		{"longrope without its length", "rope_scaling", map[string]any{"rope_type": "longrope", "short_factor": []int{1, 1}, "long_factor": []int{1, 1}}, "rope_scaling: original_max_position_embeddings is missing"},
		{"longrope with too few factors", "rope_scaling", longrope("long_factor", []int{1}), "rope_scaling: long_factor has 1 entries, it must have 2"},
		{"longrope without factors", "rope_scaling", longrope("short_factor", nil), "rope_scaling: short_factor has 0 entries"},
		{"longrope with factor 0", "rope_scaling", longrope("short_factor", []int{1, 0}), "rope_scaling: short_factor[1] is 0"},
		{"longrope with a factor below 0", "rope_scaling", longrope("factor", -1), "rope_scaling: factor is -1"},
		{"longrope with attention_factor 0", "rope_scaling", longrope("attention_factor", 0), "rope_scaling: attention_factor is 0"},
		{"longrope of one position", "rope_scaling", longrope("original_max_position_embeddings", 1), "original_max_position_embeddings is 1"},
		{"experts without end", "num_experts", 1 << 20, "num_experts is 1048576, it must be in 1 … 4096"},
		{"experts without a choice", "num_experts", 8, "num_experts_per_tok is missing"},
		{"still layers for another model", "no_rope_layers", []int{1, 0, 1}, "no_rope_layers has 3 entries for 2 layers"},
		{"still layers of another kind", "no_rope_layers", []int{1, 7}, "no_rope_layers[1] is 7"},
		{"part of linear attention", "linear_num_key_heads", 2, "linear_num_value_heads is missing"},
		{"older key", "rope_scaling", map[string]any{"type": "linear", "factor": 4}, `rope_type is "linear"`},
		{"llama3 without its length", "rope_scaling", with("original_max_position_embeddings", nil), "original_max_position_embeddings"},
		{"llama3 with factor 0", "rope_scaling", with("factor", 0), "factor must be above 0"},
		{"llama3 with crossed factors", "rope_scaling", with("low_freq_factor", 4), "not above low_freq_factor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := plain()
			if j[c.key] = c.value; c.value == nil {
				delete(j, c.key)
			}
			if _, err := parseConfig(encode(t, j)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	for key, want := range map[string]any{"layer_types": []string{"full_attention", "linear_attention"}, "partial_rotary_factor": 0.5, "no_rope_layer_interval": 2} {
		j := plain()
		j[key] = want
		c, err := parseConfig(encode(t, j))
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckPlain(c); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: error %v", key, err)
		}
	}
	for key, want := range map[string]string{"attention_bias": "attention_bias is true", "mlp_bias": "mlp_bias is true", "use_sliding_window": "sliding window"} {
		j := plain()
		j[key] = true
		c, err := parseConfig(encode(t, j))
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckPlain(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", key, err)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(encode(f, plain()))
	f.Add([]byte(`{"architectures":["x"],"head_dim":null,"rope_scaling":{"type":"llama3"}}`))
	f.Add([]byte(`[]`))
	f.Add(encode(f, nested(mixture())))
	f.Add(encode(f, hybrid()))
	for _, name := range []string{"fp8", "int4"} {
		raw, err := os.ReadFile("testdata/" + name + "/config.json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parseConfig(raw)
		if err != nil {
			return
		}
		if m := c.MoE; m != nil && (m.Experts < 1 || m.PerToken < 1 || m.PerToken > m.Experts || m.SparseStep < 1 || m.Experts*(2*m.Width+2)*c.HiddenSize <= 0) {
			t.Fatalf("accepted %+v", m)
		}
		if d := c.DeltaNet; d != nil && (d.KeyHeads < 1 || d.ValueHeads%d.KeyHeads != 0 || d.ValueHeads*d.ValueHeadDim*c.HiddenSize <= 0 || d.Kernel < 1) {
			t.Fatalf("accepted %+v", d)
		}
		if len(c.LayerTypes) != c.Layers || c.RotaryDim < 2 || c.RotaryDim%2 != 0 || c.RotaryDim > c.HeadDim {
			t.Fatalf("accepted %+v", c)
		}
		if c.Layers < 1 || c.HiddenSize < 1 || c.Heads < 1 || c.Heads%c.KVHeads != 0 || c.HeadDim < 2 || c.VocabSize < 1 || c.HiddenSize*c.VocabSize <= 0 || c.MaxPositionEmbeddings*c.HeadDim <= 0 {
			t.Fatalf("accepted %+v", c)
		}
	})
}
