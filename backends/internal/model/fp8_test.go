package model_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// numbersOfFP8 are those that are not negative, ascending.
var numbersOfFP8 = func() (all []float32) {
	for code := range 0x7f {
		v := math.Ldexp(float64(8+code&7), code>>3-10)
		if code < 8 {
			v = math.Ldexp(float64(code), -9)
		}
		all = append(all, float32(v))
	}
	return all
}()

// inFP8 tells whether files of FP8 have a weight so.
func inFP8(name string) bool {
	for _, other := range []string{"in_proj_a", "in_proj_b", "conv1d"} { // in_proj_ba too
		if strings.Contains(name, other) {
			return false
		}
	}
	return strings.HasSuffix(name, "_proj") || strings.Contains(name, "_proj.weight") || strings.Contains(name, "in_proj") || strings.Contains(name, ".out_proj")
}

// asFP8 writes a model with its weights in FP8, with a scale for each block, to one directory, and the model in bfloat16 that it stands for to another one. Scales are of float32, or of bfloat16 as most files have them.
func asFP8(t *testing.T, from string, block [2]int, scaleType string, r *rand.Rand) (eight, plain string) {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(from, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var files, whole []safetensors.Source
	add := func(list *[]safetensors.Source, name, dtype string, shape []int, data []byte) {
		*list = append(*list, safetensors.Source{Name: name, DType: dtype, Shape: shape, Write: writes(data)})
	}
	narrow := func(values []float32) []byte {
		var data []byte
		for _, v := range values {
			data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(safetensors.RoundBFloat16(v))>>16))
		}
		return data
	}
	for _, name := range f.Names() {
		x, _ := f.Tensor(name)
		values, err := x.Float32s()
		if err != nil {
			t.Fatal(err)
		}
		if !inFP8(name) || len(x.Shape) < 2 {
			dtype, data := x.DType, slices.Clone(x.Data)
			if len(x.Shape) > 1 {
				dtype, data = "BF16", narrow(values)
			}
			add(&files, name, dtype, x.Shape, data)
			add(&whole, name, dtype, x.Shape, data)
			continue
		}
		n, out, in := 1, x.Shape[len(x.Shape)-2], x.Shape[len(x.Shape)-1]
		if len(x.Shape) == 3 {
			n = x.Shape[0]
		}
		down, across := (out+block[0]-1)/block[0], (in+block[1]-1)/block[1]
		scales, codes := make([]float32, n*down*across), make([]byte, len(values))
		for i := range scales {
			scales[i] = float32(math.Ldexp(1+r.Float64(), -9-r.IntN(3))) * float32(1-2*r.IntN(2))
			if scaleType == "BF16" {
				scales[i] = safetensors.RoundBFloat16(scales[i])
			}
		}
		for i, v := range values {
			e, row, col := i/(out*in), i/in%out, i%in
			scale := scales[(e*down+row/block[0])*across+col/block[1]]
			at, _ := slices.BinarySearch(numbersOfFP8, float32(math.Abs(float64(v/scale))))
			code := byte(min(at, len(numbersOfFP8)-1))
			number := numbersOfFP8[code]
			if v/scale < 0 {
				code, number = code|0x80, -number
			}
			codes[i], values[i] = code, number*scale
		}
		shape := []int{down, across}
		if len(x.Shape) == 3 {
			shape = []int{n, down, across}
		}
		var scaleData []byte
		if scaleType == "BF16" {
			scaleData = narrow(scales)
		} else {
			for _, s := range scales {
				scaleData = binary.LittleEndian.AppendUint32(scaleData, math.Float32bits(s))
			}
		}
		add(&files, name, "F8_E4M3", x.Shape, codes)
		add(&files, name+"_scale_inv", scaleType, shape, scaleData)
		add(&whole, name, "BF16", x.Shape, narrow(values))
	}
	raw, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dirs [2]string
	for i, list := range [][]safetensors.Source{files, whole} {
		dirs[i] = t.TempDir()
		if err := os.WriteFile(filepath.Join(dirs[i], "config.json"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := os.Create(filepath.Join(dirs[i], "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := safetensors.Write(out, nil, list); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
	}
	set(t, dirs[0], "quantization_config", map[string]any{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": block[:]})
	return dirs[0], dirs[1]
}

// everything is what passes of training and sampling give, with LoRA on all modules and on none.
func (b *bench) everything() (all [][]float32) {
	b.t.Helper()
	r := rand.New(rand.NewPCG(6, 7))
	tokens, targets := b.randomTokens(r, 100), b.randomTokens(r, 100)
	weights := slices.Repeat([]float32{1}, 100)
	for _, w := range []*lora.Weights{nil, b.randomAdapter(8, 1, true, true, true)} {
		for _, recompute := range []bool{false, true} {
			var examples []model.Example
			var g *lora.Gradient
			if w != nil {
				g = b.gradient(w.Layout())
			}
			for _, n := range []int{1, 7, 30, 100} { // of rows, as products take them in several ways
				e := b.example(w, tokens[:n], targets[:n], weights[:n])
				e.Gradient = g
				examples = append(examples, e)
			}
			for _, some := range [][]model.Example{examples[:1], examples[1:2], examples[2:]} {
				for _, o := range b.train(model.TrainOptions{Recompute: recompute}, some...) {
					all = append(all, o.Logprobs)
				}
			}
			if w != nil {
				for i := range b.Modules {
					if w.Layout().Has(i) {
						all = append(all, b.download(g.Modules(0)[i].A), b.download(g.Modules(0)[i].B))
					}
				}
			}
		}
		all = append(all, b.scored(w, tokens, targets, []int{40, 1, 1, 1, 13, 44}))
	}
	return all
}

// TestFP8InMemory: a model whose weights are kept in FP8 has the bits of the one in bfloat16 that its files stand for, in training and in sampling, and takes what was said before that it would.
func TestFP8InMemory(t *testing.T) {
	for name, dir := range lawful(t, "llama", "qwen3", "phi3", "qwen3.5", "qwen3.5-moe", "qwen3-moe-mixed") {
		for _, c := range []struct {
			block [2]int
			scale string
		}{{[2]int{128, 128}, "BF16"}, {[2]int{32, 16}, "F32"}} {
			t.Run(fmt.Sprint(name, c.block), func(t *testing.T) {
				eight, plain := asFP8(t, dir, c.block, c.scale, rand.New(rand.NewPCG(3, 4)))
				want, expanded, kept := newBench(t, plain, 0, 2), newBenchWith(t, eight, 2, model.LoadOptions{FP8: model.FP8Expanded}), newBenchWith(t, eight, 2, model.LoadOptions{FP8: model.FP8Kept})
				if want.DType != tensor.BFloat16 || want.FP8 || expanded.FP8 || !kept.FP8 || kept.DType != tensor.BFloat16 || kept.Hash != expanded.Hash || kept.Parameters != want.Parameters {
					t.Errorf("type %v, in FP8 %v, %v and %v; %d parameters for %d", want.DType, want.FP8, expanded.FP8, kept.FP8, kept.Parameters, want.Parameters)
				}
				if kept.WeightBytes() >= expanded.WeightBytes() || expanded.WeightBytes() != want.WeightBytes() {
					t.Errorf("%d bytes in FP8, %d expanded, %d in bfloat16", kept.WeightBytes(), expanded.WeightBytes(), want.WeightBytes())
				}
				for fp8, b := range map[model.FP8]*bench{model.FP8Auto: kept, model.FP8Expanded: expanded} {
					s, err := model.MeasureWeights(context.Background(), eight, architectures.All(), model.LoadOptions{FP8: fp8, Sizes: true}, 1, 1)
					if err != nil || s.All != b.WeightBytes() {
						t.Errorf("measured %d bytes (%v), it takes %d", s.All, err, b.WeightBytes())
					}
				}
				results := want.everything()
				for i, b := range []*bench{expanded, kept} {
					got := b.everything()
					if len(got) != len(results) {
						t.Fatalf("%d results, want %d", len(got), len(results))
					}
					for k := range results {
						if !slices.Equal(got[k], results[k]) {
							t.Fatalf("model %d of expanded and kept: result %d of %d differs", i, k, len(results))
						}
					}
				}
			})
		}
	}
}

// TestFP8SharedOut: copies that share out weights in FP8 put them together in FP8.
func TestFP8SharedOut(t *testing.T) {
	for _, name := range []string{"qwen3", "phi3"} {
		t.Run(name, func(t *testing.T) {
			eight, plain := asFP8(t, unpack(t, name), [2]int{128, 128}, "F32", rand.New(rand.NewPCG(3, 5)))
			want := newBench(t, plain, 0, 1).everything()
			expanded := shards(t, eight, model.LoadOptions{FP8: model.FP8Expanded}, 2)
			taken := int64(0)
			for i, b := range shards(t, eight, model.LoadOptions{FP8: model.FP8Kept}, 2) {
				taken += b.WeightBytes()
				for k, got := range b.everything() {
					if !slices.Equal(got, want[k]) {
						t.Fatalf("copy %d: result %d differs", i, k)
					}
				}
				if b.WeightBytes() >= expanded[i].WeightBytes() {
					t.Errorf("copy %d takes %d bytes, expanded %d", i, b.WeightBytes(), expanded[i].WeightBytes())
				}
			}
			if size, err := model.MeasureWeights(context.Background(), eight, architectures.All(), model.LoadOptions{FP8: model.FP8Kept, Sizes: true}, 2, 1); err != nil || size.All != taken {
				t.Errorf("two copies take %d bytes, %d were said before, %v", taken, size.All, err)
			}
		})
	}
}

// TestFP8NotKept: what cannot be kept as it is has the same bits, expanded: blocks that groups of rows do not lie in, and scales with which values are below the normal numbers.
func TestFP8NotKept(t *testing.T) {
	dir := unpack(t, "qwen3")
	t.Run("blocks", func(t *testing.T) {
		for _, block := range [][2]int{{24, 128}, {32, 15}} {
			eight, plain := asFP8(t, dir, block, "F32", rand.New(rand.NewPCG(3, 6)))
			want, got := newBench(t, plain, 0, 1).everything(), newBench(t, eight, 0, 1).everything()
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("blocks of %v: results differ", block)
			}
		}
	})
	t.Run("scales", func(t *testing.T) {
		eight, _ := asFP8(t, dir, [2]int{128, 128}, "F32", rand.New(rand.NewPCG(3, 6)))
		damage(t, eight, func(s *safetensors.Source, data []byte) ([]byte, bool) {
			if strings.HasSuffix(s.Name, "layers.1.self_attn.q_proj.weight_scale_inv") {
				binary.LittleEndian.PutUint32(data, math.Float32bits(0x1p-120))
			}
			return data, true
		})
		kept, expanded := newBench(t, eight, 0, 1), newBenchWith(t, eight, 1, model.LoadOptions{FP8: model.FP8Expanded})
		if !slices.EqualFunc(kept.everything(), expanded.everything(), slices.Equal) {
			t.Error("results differ")
		}
	})
}

// TestFP8Refused: weights that are asked for in FP8 and cannot be had so.
func TestFP8Refused(t *testing.T) {
	eight, plain := asFP8(t, unpack(t, "qwen3"), [2]int{128, 128}, "F32", rand.New(rand.NewPCG(3, 7)))
	for _, c := range []struct {
		name, dir string
		dtype     tensor.DType
		want      string
	}{
		{"plain", plain, 0, "the model's files are not of FP8"},
		{"int4", unpack(t, "int4"), 0, "the model's files are not of FP8"},
		{"float32", eight, tensor.Float32, "they are kept in models of bfloat16 only, this one is loaded as float32"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, _, err := load(t, c.dir, model.LoadOptions{FP8: model.FP8Kept, DType: c.dtype}); !errors.Is(err, model.ErrFP8) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if _, _, err := load(t, c.dir, model.LoadOptions{DType: c.dtype}); err != nil {
				t.Error(err)
			}
		})
	}
}
