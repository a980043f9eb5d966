package model_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

var quantized = []string{"fp8", "int4", "int8", "gptq", "gptq-order", "awq"}

// TestQuantizedFiles: the model is the one in bfloat16 that the files stand for, in its own type and in float32.
func TestQuantizedFiles(t *testing.T) {
	for _, name := range quantized {
		t.Run(name, func(t *testing.T) {
			dir, parameters := unpack(t, name), int64(164400)
			if strings.HasPrefix(name, "gptq") || name == "awq" { // these are smaller
				parameters = 39136
			}
			base := open(t, dir, "base.safetensors")
			b := newBench(t, dir, tensor.Float32, 2)
			for _, n := range []string{"0", "1", "2"} {
				got := b.train(model.TrainOptions{}, b.example(nil, base.ids("tokens."+n), base.ids("targets."+n), nil))[0].Logprobs
				if d := furthest(got, base.doubles("logprobs_f64."+n)); !(d <= 1e-4) {
					t.Errorf("sequence %s: log-probabilities are off by %g", n, d)
				}
			}
			if own := newBench(t, dir, 0, 1); own.DType != tensor.BFloat16 || own.Parameters != b.Parameters || own.Parameters != parameters {
				t.Errorf("type %v, %d parameters, %d in float32", own.DType, own.Parameters, b.Parameters)
			}
			// Copies that share the rows out unpack them too.
			tokens := base.ids("tokens.2")
			want := b.scored(nil, tokens, base.ids("targets.2"), []int{len(tokens)})
			for i, c := range shards(t, dir, model.LoadOptions{DType: tensor.Float32}, 2) {
				if got := c.scored(nil, tokens, base.ids("targets.2"), []int{len(tokens)}); !slices.Equal(got, want) {
					t.Errorf("copy %d: log-probabilities differ", i)
				}
			}
		})
	}
}

// change is what a test does to a quantized model's tensors; false takes one away.
type change func(s *safetensors.Source, data []byte) ([]byte, bool)

// damage rewrites a model with some tensors changed, whatever their types.
func damage(t *testing.T, dir string, c change) {
	t.Helper()
	path := filepath.Join(dir, "model.safetensors")
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []safetensors.Source
	for _, name := range f.Names() {
		x, _ := f.Tensor(name)
		s := safetensors.Source{Name: name, DType: x.DType, Shape: x.Shape}
		data, keep := c(&s, slices.Clone(x.Data))
		if s.Write = writes(data); keep {
			all = append(all, s)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, _, err := safetensors.Write(out, nil, all); err != nil {
		t.Fatal(err)
	}
}

func TestQuantizedFilesRefused(t *testing.T) {
	const q = "model.layers.0.self_attn.q_proj"
	on := func(name string, f func(s *safetensors.Source, data []byte) ([]byte, bool)) change {
		return func(s *safetensors.Source, data []byte) ([]byte, bool) {
			if s.Name != q+name {
				return data, true
			}
			return f(s, data)
		}
	}
	fill := func(values ...byte) func(*safetensors.Source, []byte) ([]byte, bool) {
		return func(_ *safetensors.Source, data []byte) ([]byte, bool) {
			return append(values, data[len(values):]...), true
		}
	}
	typed := func(dtype string, shape ...int) func(*safetensors.Source, []byte) ([]byte, bool) {
		return func(s *safetensors.Source, data []byte) ([]byte, bool) {
			s.DType, s.Shape = dtype, shape
			return data, true
		}
	}
	gone := func(*safetensors.Source, []byte) ([]byte, bool) { return nil, false }
	nothing := func(_ *safetensors.Source, data []byte) ([]byte, bool) { return data, true }
	for _, c := range []struct {
		name, model string
		change      change
		key         string // of quantization_config that is set, with value; "" = none
		value       any
		want        string
	}{
		{"scale of zero", "fp8", on(".weight_scale_inv", fill(0, 0)), "", nil, `tensor "` + q + `.weight_scale_inv" has 0 as scale 0`},
		{"scale that is no number", "fp8", on(".weight_scale_inv", fill(0, 0x3f, 0xc0, 0x7f)), "", nil, `tensor "` + q + `.weight_scale_inv" has NaN as scale 1`},
		{"value that is no number", "fp8", on(".weight", fill(1, 0x7f)), "", nil, `tensor "` + q + `.weight" has a value that is not finite with its scale`},
		{"value beyond bfloat16", "fp8", on(".weight_scale_inv", fill(0x7f, 0x7f)), "", nil, `tensor "` + q + `.weight" has a value that is not finite with its scale`},
		{"scales of bytes", "fp8", on(".weight_scale_inv", typed("I16", 2, 2)), "", nil, `tensor "` + q + `.weight_scale_inv" has type I16`},
		{"scales of another shape", "fp8", on(".weight_scale_inv", typed("BF16", 4, 1)), "", nil, `tensor "` + q + `.weight_scale_inv" has shape [4 1], the configuration makes it [2 2]`},
		{"no scales", "fp8", on(".weight_scale_inv", gone), "", nil, `tensor "` + q + `.weight_scale_inv" is missing`},
		{"weights of another type", "fp8", on(".weight", typed("F8_E5M2", 160, 160)), "", nil, `tensor "` + q + `.weight" has type F8_E5M2`},
		{"weights of another shape", "fp8", on(".weight", typed("F8_E4M3", 80, 320)), "", nil, `tensor "` + q + `.weight" has shape [80 320]`},
		{"blocks of another size", "fp8", nothing, "weight_block_size", []int{64, 64}, `has shape [2 2], the configuration makes it [3 3]`},
		{"no blocks", "fp8", nothing, "weight_block_size", nil, "weight_block_size must be two numbers"},
		{"blocks of nothing", "fp8", nothing, "weight_block_size", []int{128, 0}, "weight_block_size[1] is 0"},
		{"another kind of eight bits", "fp8", nothing, "fmt", "e5m2", `fmt is "e5m2"`},
		{"fixed activations", "fp8", nothing, "activation_scheme", "static", `activation_scheme is "static"`},
		{"a module that is not quantized", "fp8", nothing, "modules_to_not_convert", []string{"model.layers.*.self_attn"}, `quantization_config says that ` + q + ` is not quantized`},
		{"another method", "fp8", nothing, "quant_method", "bitsandbytes", `quant_method is "bitsandbytes": quantized weights are read of the methods awq, compressed-tensors, fp8, gptq and mxfp4 only; take the model that is not quantized, from which`},
		{"no method that is known", "fp8", nothing, "quant_method", "hqq", `quant_method is "hqq"`},
		{"plain weights in eight bits", "fp8", nothing, "quant_method", "mxfp4", `tensor "` + q + `.weight" has type F8_E4M3, only F32, BF16 and F16 are supported`},
		{"a value beside its scale", "fp8", on(".weight", func(s *safetensors.Source, data []byte) ([]byte, bool) {
			s.DType = "BF16"
			return append(data, data...), true
		}), "", nil, `tensor "` + q + `.weight_scale_inv" is not known`},
		{"packed scale of zero", "int4", on(".weight_scale", fill(0, 0)), "", nil, `tensor "` + q + `.weight_scale" has 0 as scale 0`},
		{"packed scale that is no number", "int8", on(".weight_scale", fill(0x80, 0x7f)), "", nil, `tensor "` + q + `.weight_scale" has +Inf as scale 0`},
		{"packed shape", "int4", on(".weight_shape", fill(159)), "", nil, `tensor "` + q + `.weight_shape" has 159 as number 0, the configuration makes it 160`},
		{"packed shape of another type", "int4", on(".weight_shape", typed("F64", 2)), "", nil, `tensor "` + q + `.weight_shape" has type F64`},
		{"no packed shape", "int4", on(".weight_shape", gone), "", nil, `tensor "` + q + `.weight_shape" is missing`},
		{"packed in another type", "int4", on(".weight_packed", typed("F32", 160, 20)), "", nil, `tensor "` + q + `.weight_packed" has type F32, it must be I32`},
		{"packed in another shape", "int4", on(".weight_packed", typed("I32", 80, 40)), "", nil, `tensor "` + q + `.weight_packed" has shape [80 40], the configuration makes it [160 20]`},
		{"zero points", "int4", func(s *safetensors.Source, data []byte) ([]byte, bool) {
			if s.Name == q+".weight_shape" {
				s.Name = q + ".weight_zero_point"
			}
			return data, true
		}, "", nil, `tensor "` + q + `.weight_zero_point" is there: only symmetric weights`},
		{"a packed module that is not quantized", "int4", nothing, "ignore", []string{q}, `quantization_config says that ` + q + ` is not quantized`},
		{"GPTQ of three bits", "gptq", nothing, "bits", 3, "bits is 3, only 4 and 8 are supported"},
		{"GPTQ of more bits than there are", "gptq", nothing, "bits", 8, `tensor "` + q + `.qweight" has shape [8 64], the configuration makes it [16 64]`},
		{"GPTQ in groups of another size", "gptq", nothing, "group_size", 64, `tensor "` + q + `.scales" has shape [2 64], the configuration makes it [1 64]`},
		{"GPTQ in whole rows", "gptq", nothing, "group_size", -1, `tensor "` + q + `.scales" has shape [2 64], the configuration makes it [1 64]`},
		{"GPTQ in groups of nothing", "gptq", nothing, "group_size", 0, "group_size is 0, it must be in 1"},
		{"GPTQ without a size of groups", "gptq", nothing, "group_size", nil, "group_size is missing"},
		{"GPTQ for a kernel", "gptq", nothing, "is_marlin_format", true, "is_marlin_format is true"},
		{"GPTQ in a third form", "gptq", nothing, "checkpoint_format", "marlin", `checkpoint_format is "marlin", only gptq and gptq_v2`},
		{"GPTQ in words of 16 bits", "gptq", nothing, "pack_dtype", "int16", `pack_dtype is "int16", only int32`},
		{"GPTQ's scale of zero", "gptq", on(".scales", fill(0, 0)), "", nil, `tensor "` + q + `.scales" has 0 as scale 0`},
		{"GPTQ's integers in another type", "gptq", on(".qweight", typed("F32", 8, 64)), "", nil, `tensor "` + q + `.qweight" has type F32, it must be I32`},
		{"GPTQ without zero points", "gptq", on(".qzeros", gone), "", nil, `tensor "` + q + `.qzeros" is missing`},
		{"GPTQ's zero point that readers take differently", "gptq", on(".qzeros", fill(0xf0)), "", nil, `tensor "` + q + `.qzeros" has 15 as number 1: as checkpoint_format gptq has it, it is 0 to some readers and 16 to others`},
		{"GPTQ's groups beyond the last", "gptq", on(".g_idx", fill(2)), "", nil, `tensor "` + q + `.g_idx" has 2 as number 0, it must be in 0 … 1`},
		{"GPTQ's groups below the first", "gptq", on(".g_idx", fill(255, 255, 255, 255)), "", nil, `tensor "` + q + `.g_idx" has -1 as number 0`},
		{"GPTQ's groups in another type", "gptq", on(".g_idx", typed("F32", 64)), "", nil, `tensor "` + q + `.g_idx" has type F32`},
		{"GPTQ's bias of a model without", "gptq", func(s *safetensors.Source, data []byte) ([]byte, bool) {
			if s.Name == "model.layers.0.self_attn.o_proj.bias" {
				data[0] = 1
			}
			return data, true
		}, "", nil, `tensor "model.layers.0.self_attn.o_proj.bias" is not known`},
		{"AWQ of eight bits", "awq", nothing, "bits", 8, "bits is 8, only 4 is supported"},
		{"AWQ in another order", "awq", nothing, "version", "gemv", `version is "gemv", only gemm is supported`},
		{"an AWQ module that is not quantized", "awq", nothing, "modules_to_not_convert", []string{q}, `quantization_config says that ` + q + ` is not quantized`},
		{"AWQ that is GPTQ", "awq", nothing, "quant_method", "gptq", `tensor "` + q + `.qweight" has shape [64 8], the configuration makes it [8 64]`},
		{"another packing", "int4", nothing, "format", "marlin-24", `config_groups["group_0"]: format is "marlin-24"`},
		{"sparse", "int4", nothing, "sparsity_config", map[string]any{"format": "sparse-24-bitmask"}, `sparsity_config: format is "sparse-24-bitmask"`},
		{"transformed", "int4", nothing, "transform_config", map[string]any{"config_groups": map[string]any{"a": 1}}, "transform_config is set"},
		{"quantized keys and values", "int4", nothing, "kv_cache_scheme", map[string]any{"num_bits": 8, "type": "float"}, "kv_cache_scheme is set"},
		{"quantized inputs", "int4", nothing, "config_groups", activations("input_activations"), "input_activations is set: only activations that are not quantized"},
		{"quantized outputs", "int4", nothing, "config_groups", activations("output_activations"), "output_activations is set"},
		{"no groups", "int4", nothing, "config_groups", map[string]any{}, "config_groups has 0 groups"},
		{"two groups", "int4", nothing, "config_groups", map[string]any{"a": map[string]any{}, "b": map[string]any{}}, "config_groups has 2 groups"},
		{"three bits", "int4", nothing, "config_groups", group("num_bits", 3), `weights are "int" of 3 bits`},
		{"floating point", "int4", nothing, "config_groups", group("type", "float"), `weights are "float" of 4 bits`},
		{"zero points in the configuration", "int4", nothing, "config_groups", group("symmetric", false), "symmetric is false"},
		{"another strategy", "int4", nothing, "config_groups", group("strategy", "tensor"), `strategy is "tensor"`},
		{"groups of nothing", "int4", nothing, "config_groups", group("group_size", 0), "group_size must be in 1"},
		{"groups of another size", "int4", nothing, "config_groups", group("group_size", 64), `has shape [160 5], the configuration makes it [160 3]`},
		{"columns in another order", "int4", nothing, "config_groups", group("actorder", "group"), "actorder is"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := unpack(t, c.model)
			damage(t, dir, c.change)
			if c.key != "" {
				section := configOf(t, dir)["quantization_config"].(map[string]any)
				section[c.key] = c.value
				set(t, dir, "quantization_config", section)
			}
			for _, fp8 := range []model.FP8{model.FP8Auto, model.FP8Expanded} {
				if _, _, err := load(t, dir, model.LoadOptions{FP8: fp8}); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
			}
		})
	}
}

// activations is a config_groups that quantizes some.
func activations(key string) map[string]any {
	all := group("num_bits", 4)
	all["group_0"].(map[string]any)[key] = map[string]any{"num_bits": 8, "type": "int", "dynamic": true}
	return all
}

// group is a config_groups with a setting of its weights changed.
func group(key string, value any) map[string]any {
	weights := map[string]any{"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}
	weights[key] = value
	return map[string]any{"group_0": map[string]any{"weights": weights}}
}
