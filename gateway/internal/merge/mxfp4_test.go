package merge

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	packedExperts, packedHidden, packedWidth = 3, 64, 32
	packedConfig                             = `{"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "swiglu_limit": 7.0}`
	packedQuery                              = "model.layers.0.self_attn.q_proj"
)

// writeBytes writes a file of tensors.
func writeBytes(t testing.TB, path string, tensors map[string]entry, data map[string][]byte) {
	t.Helper()
	names, entries, at := slices.Sorted(maps.Keys(tensors)), map[string]entry{}, int64(0)
	var all []byte
	for _, name := range names {
		n := int64(len(data[name]))
		entries[name] = entry{tensors[name].DType, tensors[name].Shape, [2]int64{at, at + n}}
		all, at = append(all, data[name]...), at+n
	}
	head, err := encodeHeader(names, entries)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(head, all...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// packedModels writes a base in MXFP4, the same one in bfloat16, and an adapter. change may damage the first one.
func packedModels(t *testing.T, change func(tensors map[string]entry, data map[string][]byte)) (quantized, whole, adapter, hash string) {
	t.Helper()
	quantized, whole, adapter = t.TempDir(), t.TempDir(), t.TempDir()
	draw := rand.New(rand.NewPCG(3, 9))
	tensors, data := map[string]entry{}, map[string][]byte{}
	plain, own := map[string]entry{}, map[string][]byte{}
	put := func(name string, m matrix) {
		e := entry{DType: m.dtype, Shape: m.shape}
		tensors[name], data[name], plain[name], own[name] = e, m.bytes(t), e, m.bytes(t)
	}
	put(packedQuery+".weight", random(draw, typeBFloat16, 8, packedHidden))
	put(expertLayer+"gate_up_proj_bias", random(draw, typeBFloat16, packedExperts, 2*packedWidth))
	put(expertLayer+"down_proj_bias", random(draw, typeBFloat16, packedExperts, packedHidden))
	for _, x := range []struct {
		name    string
		out, in int
	}{{"gate_up_proj", 2 * packedWidth, packedHidden}, {"down_proj", packedHidden, packedWidth}} {
		blocks, scales := make([]byte, packedExperts*x.out*x.in/2), make([]byte, packedExperts*x.out*x.in/32)
		for i := range blocks {
			blocks[i] = byte(draw.UintN(256))
		}
		for i := range scales {
			scales[i] = byte(120 + draw.UintN(8))
		}
		name := expertLayer + x.name
		tensors[name+"_blocks"], data[name+"_blocks"] = entry{DType: "U8", Shape: []int64{packedExperts, int64(x.out), int64(x.in) / 32, 16}}, blocks
		tensors[name+"_scales"], data[name+"_scales"] = entry{DType: "U8", Shape: []int64{packedExperts, int64(x.out), int64(x.in) / 32}}, scales
		values := make([]float32, packedExperts*x.in*x.out)
		for i := range values { // expert, column, row
			e, column, row := i/(x.in*x.out), i/x.out%x.in, i%x.out
			code := blocks[((e*x.out+row)*x.in+column)/2] >> (4 * (column % 2)) & 15
			magnitude := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[code&7] * math.Pow(2, float64(scales[((e*x.out+row)*x.in+column)/32])-127)
			if code&8 != 0 {
				magnitude = math.Copysign(magnitude, -1)
			}
			values[i] = float32(magnitude)
		}
		m := matrix{typeBFloat16, []int64{packedExperts, int64(x.in), int64(x.out)}, values}
		plain[name], own[name] = entry{DType: m.dtype, Shape: m.shape}, m.bytes(t)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d\n%s", len(packedConfig), packedConfig)
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		fmt.Fprintf(h, "%q %s %v\n", name, tensors[name].DType, tensors[name].Shape)
		h.Write(data[name])
	}
	if change != nil {
		change(tensors, data)
	}
	writeBytes(t, filepath.Join(quantized, weightsFile), tensors, data)
	writeBytes(t, filepath.Join(whole, weightsFile), plain, own)
	text(t, filepath.Join(quantized, configFile), packedConfig)
	text(t, filepath.Join(whole, configFile), `{"architectures": ["GptOssForCausalLM"], "swiglu_limit": 7.0}`)
	lora := map[string]matrix{namePrefix + packedQuery + ".lora_A.weight": random(draw, typeFloat32, 2, packedHidden), namePrefix + packedQuery + ".lora_B.weight": random(draw, typeFloat32, 8, 2)}
	for kind, shapes := range map[string][2][]int64{"w1": {{1, 2, packedHidden}, {packedExperts, packedWidth, 2}}, "w3": {{1, 2, packedHidden}, {packedExperts, packedWidth, 2}}, "w2": {{packedExperts, 2, packedWidth}, {1, packedHidden, 2}}} {
		for k, shape := range shapes {
			lora[namePrefix+expertLayer+kind+".lora_"+string("AB"[k])+".weight"] = random(draw, typeFloat32, shape...)
		}
	}
	file(t, filepath.Join(adapter, "adapter_model.safetensors"), lora)
	text(t, filepath.Join(adapter, "adapter_config.json"), `{"peft_type": "LORA", "r": 2, "lora_alpha": 4}`)
	return quantized, whole, adapter, hex.EncodeToString(h.Sum(nil))
}

// TestMergeOfMXFP4: a base whose experts are quantized becomes, to the bit, what the same base in bfloat16 becomes, whatever the files are cut into; its hash is that of the quantized files.
func TestMergeOfMXFP4(t *testing.T) {
	quantized, whole, adapter, hash := packedModels(t, nil)
	for _, dtype := range []string{"", "float32"} {
		for _, bytes := range []int64{1, 20_000, shardBytes} {
			t.Run(fmt.Sprintf("type %q files of %d", dtype, bytes), func(t *testing.T) {
				got, want := t.TempDir(), t.TempDir()
				if err := mergeInto(t.Context(), got, Options{Base: Directory(quantized), Adapter: adapter, DType: dtype, BaseHash: hash, ShardBytes: bytes}); err != nil {
					t.Fatal(err)
				}
				if err := mergeInto(t.Context(), want, Options{Base: Directory(whole), Adapter: adapter, DType: dtype, ShardBytes: shardBytes}); err != nil {
					t.Fatal(err)
				}
				merged, other := tensorsOf(t, got), tensorsOf(t, want)
				if !slices.Equal(slices.Sorted(maps.Keys(merged)), slices.Sorted(maps.Keys(other))) {
					t.Fatalf("tensors %v", slices.Sorted(maps.Keys(merged)))
				}
				for name, m := range other {
					if o := merged[name]; o.dtype != m.dtype || !slices.Equal(o.shape, m.shape) || !slices.Equal(o.values, m.values) {
						t.Errorf("%s: %s of shape %v, or its values, are others than %s of %v", name, o.dtype, o.shape, m.dtype, m.shape)
					}
				}
				raw, err := os.ReadFile(filepath.Join(got, configFile))
				if err != nil {
					t.Fatal(err)
				}
				var c map[string]any
				if err := json.Unmarshal(raw, &c); err != nil || c["quantization_config"] != nil || c["torch_dtype"] == nil || c["swiglu_limit"] != 7.0 {
					t.Errorf("%v, %s", err, raw)
				}
			})
		}
	}
	err := mergeInto(t.Context(), t.TempDir(), Options{Base: Directory(quantized), Adapter: adapter, BaseHash: strings.Repeat("0", 64), ShardBytes: shardBytes})
	if err == nil || !strings.Contains(err.Error(), "its hash is") {
		t.Errorf("another base: %v", err)
	}
}

// TestMXFP4Refused: what are not blocks with their scales is refused by name, before anything is written where the header says it.
func TestMXFP4Refused(t *testing.T) {
	const name = expertLayer + "down_proj"
	for _, c := range []struct {
		name   string
		change func(tensors map[string]entry, data map[string][]byte)
		want   string
	}{
		{"no scales", func(tensors map[string]entry, _ map[string][]byte) { delete(tensors, name+"_scales") }, name + `_blocks" has no`},
		{"no blocks", func(tensors map[string]entry, _ map[string][]byte) { delete(tensors, name+"_blocks") }, name + `_scales" is of type U8`},
		{"scales of other experts", func(tensors map[string]entry, data map[string][]byte) {
			tensors[name+"_scales"] = entry{DType: "U8", Shape: []int64{packedExperts - 1, packedHidden, 1}}
			data[name+"_scales"] = data[name+"_scales"][:(packedExperts-1)*packedHidden]
		}, "with a byte for each block"},
		{"blocks of other bytes", func(tensors map[string]entry, _ map[string][]byte) {
			tensors[name+"_blocks"] = entry{DType: "U8", Shape: []int64{packedExperts, packedHidden, 2, 8}}
		}, "not blocks of 16 bytes"},
		{"blocks of another type", func(tensors map[string]entry, _ map[string][]byte) {
			tensors[name+"_blocks"] = entry{DType: "I8", Shape: tensors[name+"_blocks"].Shape}
		}, "are I8 of shape"},
		{"in both forms", func(tensors map[string]entry, data map[string][]byte) {
			tensors[name], data[name] = entry{DType: "F32", Shape: []int64{1}}, make([]byte, 4)
		}, "is there in MXFP4 and without"},
		{"a scale that is no number", func(_ map[string]entry, data map[string][]byte) { data[name+"_scales"][5] = 255 }, "scale 5 of an expert is 255"},
		{"a scale that is too large", func(_ map[string]entry, data map[string][]byte) { data[name+"_scales"][7] = 254 }, "scale 7 of an expert is 254"},
		{"another quantized tensor", func(tensors map[string]entry, data map[string][]byte) {
			tensors["lm_head.weight"], data["lm_head.weight"] = entry{DType: "F8_E4M3", Shape: []int64{4}}, make([]byte, 4)
		}, `"lm_head.weight" is of type F8_E4M3`},
	} {
		t.Run(c.name, func(t *testing.T) {
			base, _, adapter, _ := packedModels(t, c.change)
			err := mergeInto(t.Context(), t.TempDir(), Options{Base: Directory(base), Adapter: adapter, ShardBytes: shardBytes})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
