package merge

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, base, adapter string, o *Options)
		says   string
	}{
		{"unknown dtype", func(_ *testing.T, _, _ string, o *Options) { o.DType = "int8" }, `dtype: "int8" is not one of bfloat16, float16, float32`},
		{"DoRA", func(t *testing.T, _, adapter string, _ *Options) {
			text(t, filepath.Join(adapter, "adapter_config.json"), `{"r": 7, "lora_alpha": 1, "use_dora": true}`)
		}, "use_dora is true"},
		{"alpha of other modules only", func(t *testing.T, _, adapter string, _ *Options) {
			text(t, filepath.Join(adapter, "adapter_config.json"), `{"r": 7, "lora_alpha": 1, "alpha_pattern": {"q_proj": 2}}`)
		}, "alpha_pattern does not name the module"},
		{"no alpha", func(t *testing.T, _, adapter string, _ *Options) {
			text(t, filepath.Join(adapter, "adapter_config.json"), `{"r": 7}`)
		}, "has no lora_alpha"},
		{"a module that the base does not have", func(t *testing.T, base, _ string, _ *Options) {
			file(t, filepath.Join(base, weightsFile), map[string]matrix{"model.embed_tokens.weight": {typeFloat32, []int64{11, 6}, make([]float32, 66)}})
		}, "has no tensor"},
		{"another shape", func(t *testing.T, base, _ string, _ *Options) {
			file(t, filepath.Join(base, weightsFile), map[string]matrix{
				"lm_head.weight": {typeFloat32, []int64{11, 6}, make([]float32, 66)}, query + ".weight": {typeFloat32, []int64{6, 8}, make([]float32, 48)}, expert + ".weight": {typeFloat32, []int64{6, 5}, make([]float32, 30)},
			})
		}, "has shape [6 8], the adapter's LoRA is for [8 6]"},
		{"quantized", func(t *testing.T, base, _ string, _ *Options) {
			text(t, filepath.Join(base, configFile), `{"quantization_config": {"quant_method": "fp8"}}`)
		}, "is quantized"},
		{"no weights", func(_ *testing.T, base, _ string, _ *Options) { os.Remove(filepath.Join(base, weightsFile)) }, "has neither"},
		{"no configuration", func(_ *testing.T, base, _ string, _ *Options) { os.Remove(filepath.Join(base, configFile)) }, "has no config.json"},
		{"an index that leads out", func(t *testing.T, base, _ string, _ *Options) {
			os.Remove(filepath.Join(base, weightsFile)) // which goes before an index
			text(t, filepath.Join(base, indexFile), `{"weight_map": {"a": "../model.safetensors"}}`)
		}, "is not a .safetensors file of the directory"},
		{"a tensor in two shards", func(t *testing.T, base, _ string, _ *Options) {
			w := tensorsOf(t, base)
			os.Remove(filepath.Join(base, weightsFile))
			file(t, filepath.Join(base, "model-1.safetensors"), w)
			file(t, filepath.Join(base, "model-2.safetensors"), map[string]matrix{"model.norm.weight": w["model.norm.weight"]})
			text(t, filepath.Join(base, indexFile), `{"weight_map": {"model.norm.weight": "model-2.safetensors", "lm_head.weight": "model-1.safetensors"}}`)
		}, `tensor "model.norm.weight" is in model-1.safetensors and in model-2.safetensors`},
		{"a tensor that the index alone has", func(t *testing.T, base, _ string, _ *Options) {
			if err := os.Rename(filepath.Join(base, weightsFile), filepath.Join(base, "model-1.safetensors")); err != nil {
				t.Fatal(err)
			}
			text(t, filepath.Join(base, indexFile), `{"weight_map": {"x": "model-1.safetensors"}}`)
		}, `model-1.safetensors has no tensor "x", nor has another shard`},
		{"a saved web page", func(t *testing.T, base, _ string, _ *Options) {
			text(t, filepath.Join(base, weightsFile), "<!doctype html><html></html>")
		}, "is no safetensors file"},
		{"an adapter of something else", func(t *testing.T, _, adapter string, _ *Options) {
			file(t, filepath.Join(adapter, "adapter_model.safetensors"), map[string]matrix{"base_model.model.x.lora_embedding_A": {typeFloat32, []int64{1}, []float32{1}}})
		}, "is not the A or B of a LoRA"},
		{"half a module", func(t *testing.T, _, adapter string, _ *Options) {
			file(t, filepath.Join(adapter, "adapter_model.safetensors"), map[string]matrix{namePrefix + query + ".lora_A.weight": {typeFloat32, []int64{1, 6}, make([]float32, 6)}})
		}, "which do not fit"},
		{"tensors over each other", func(t *testing.T, base, _ string, _ *Options) {
			raw(t, filepath.Join(base, weightsFile), `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8)
		}, `tensor "b": begins at byte 4 of the data, and the tensor before it ends at 8`},
		{"bytes of no tensor", func(t *testing.T, base, _ string, _ *Options) {
			raw(t, filepath.Join(base, weightsFile), `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 8)
		}, "the file has 8 bytes of data, its tensors 4"},
		{"a matrix without columns", func(t *testing.T, base, adapter string, _ *Options) {
			file(t, filepath.Join(base, weightsFile), map[string]matrix{"x.weight": {typeFloat32, []int64{3, 0}, nil}})
			file(t, filepath.Join(adapter, "adapter_model.safetensors"), map[string]matrix{
				namePrefix + "x.lora_A.weight": {typeFloat32, []int64{1, 0}, nil}, namePrefix + "x.lora_B.weight": {typeFloat32, []int64{3, 1}, make([]float32, 3)},
			})
			text(t, filepath.Join(adapter, "adapter_config.json"), `{"r": 1, "lora_alpha": 1}`)
		}, "has shape [3 0]"},
		{"too large for float16", func(t *testing.T, base, _ string, o *Options) {
			big := matrix{typeFloat32, []int64{1}, []float32{1e6}}
			tensors, _, _, _ := models(t, false, typeFloat32)
			tensors["big"] = big
			file(t, filepath.Join(base, weightsFile), tensors)
			o.DType = "float16"
		}, "does not fit into float16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, baseDir, adapterDir := models(t, false, typeFloat32)
			o := Options{Base: Directory(baseDir), Adapter: adapterDir, ShardBytes: 1 << 30}
			c.damage(t, baseDir, adapterDir, &o)
			if err := mergeInto(t.Context(), t.TempDir(), o); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, expected %q", err, c.says)
			}
		})
	}
}

// raw writes a safetensors file with a header as it is given, before so many bytes of zeros.
func raw(t *testing.T, path, header string, data int) {
	t.Helper()
	content := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	text(t, path, string(append(content, make([]byte, data)...)))
}

// FuzzHeader: whatever a file holds, its tensors lie inside it, and reading them asks for no more than that.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"__metadata__":{"format":"pt"}}`), int64(16))
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`), int64(4))
	f.Add([]byte(`{"a":{"dtype":"I64","shape":[9223372036854775807,2],"data_offsets":[0,4]}}`), int64(4))
	f.Fuzz(func(t *testing.T, raw []byte, data int64) {
		if data < 0 {
			return
		}
		entries, err := parseHeader(raw, data)
		if err != nil {
			return
		}
		for name, e := range entries {
			size := widths[e.DType]
			for _, n := range e.Shape {
				size *= n
			}
			if e.Offsets[0] < 0 || e.Offsets[1] > data || size != e.Offsets[1]-e.Offsets[0] || size < 0 {
				t.Fatalf("%q: %+v in %d bytes", name, e, data)
			}
		}
	})
}

// TestRefusedNames: a module under two names, and some parts of a matrix without the others.
func TestRefusedNames(t *testing.T) {
	const plainName, nestedName = "model.layers.0.self_attn.", "model.language_model.layers.0.self_attn."
	for _, c := range []struct {
		name    string
		modules map[string]int64 // their rows
		alphas  string
		says    string
	}{
		{"under two names", map[string]int64{plainName + "qkv_proj": 8, nestedName + "qkv_proj": 8}, "", "is there twice"},
		{"alpha under two names", map[string]int64{plainName + "qkv_proj": 8}, `{"` + plainName + `qkv_proj": 1, "` + nestedName + `qkv_proj": 2}`, "under two names"},
		{"a part alone", map[string]int64{plainName + "q_proj": 4, plainName + "v_proj": 2}, "", "and none on \"" + plainName + "k_proj\""},
		{"a part and the whole", map[string]int64{plainName + "q_proj": 4, plainName + "qkv_proj": 8}, "", "which is a part of it"},
		{"parts of other sizes", map[string]int64{plainName + "q_proj": 4, plainName + "k_proj": 2, plainName + "v_proj": 3}, "", "the adapter's LoRA is for [9 6]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			draw := rand.New(rand.NewPCG(5, 6))
			adapter := map[string]matrix{}
			for name, rows := range c.modules {
				adapter[namePrefix+name+".lora_A.weight"], adapter[namePrefix+name+".lora_B.weight"] = random(draw, typeFloat32, 2, 6), random(draw, typeFloat32, rows, 2)
			}
			baseDir, adapterDir := t.TempDir(), t.TempDir()
			file(t, filepath.Join(baseDir, weightsFile), map[string]matrix{nestedName + "qkv_proj.weight": random(draw, typeFloat32, 8, 6)})
			text(t, filepath.Join(baseDir, configFile), "{}")
			file(t, filepath.Join(adapterDir, "adapter_model.safetensors"), adapter)
			config := `{"r": 2, "lora_alpha": 4}`
			if c.alphas != "" {
				config = `{"r": 2, "lora_alpha": 4, "alpha_pattern": ` + c.alphas + `}`
			}
			text(t, filepath.Join(adapterDir, "adapter_config.json"), config)
			if err := mergeInto(t.Context(), t.TempDir(), Options{Base: Directory(baseDir), Adapter: adapterDir, ShardBytes: shardBytes}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}
