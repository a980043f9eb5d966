package model_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// writeRandomFP8 writes layers of the shape of Qwen3-4B in FP8, with random weights and a small vocabulary.
func writeRandomFP8(dir string, layers int) error {
	const hidden, ffn, heads, kv, headDim, vocab, block = 2560, 9728, 32, 8, 128, 4096, 128
	config := map[string]any{"architectures": []string{"Qwen3ForCausalLM"}, "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": ffn,
		"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": headDim, "vocab_size": vocab, "max_position_embeddings": 4096, "rope_theta": 1e6, "tie_word_embeddings": true,
		"quantization_config": map[string]any{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": []int{block, block}}}
	r := rand.New(rand.NewPCG(1, 2))
	var all randomTensors
	add := func(name, dtype string, size int, value func(b []byte), shape ...int) {
		n := size
		for _, s := range shape {
			n *= s
		}
		all = append(all, safetensors.Source{Name: name, DType: dtype, Shape: shape, Write: func(w io.Writer) error {
			data := make([]byte, n)
			for i := 0; i < n; i += size {
				value(data[i : i+size])
			}
			_, err := w.Write(data)
			return err
		}})
	}
	plain := func(name string, shape ...int) {
		add(name, "BF16", 2, func(b []byte) { binary.LittleEndian.PutUint16(b, uint16(121<<7|r.Uint32()&0x807f)) }, shape...)
	}
	linear := func(name string, out, in int) {
		add(name, "F8_E4M3", 1, func(b []byte) { b[0] = byte(r.Uint32())&0x87 | 0x30 }, out, in)
		add(name+"_scale_inv", "F32", 4, func(b []byte) { binary.LittleEndian.PutUint32(b, math.Float32bits(0.02+0.01*r.Float32())) }, (out+block-1)/block, (in+block-1)/block)
	}
	plain("model.embed_tokens.weight", vocab, hidden)
	plain("model.norm.weight", hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		linear(p+"self_attn.q_proj.weight", heads*headDim, hidden)
		linear(p+"self_attn.k_proj.weight", kv*headDim, hidden)
		linear(p+"self_attn.v_proj.weight", kv*headDim, hidden)
		linear(p+"self_attn.o_proj.weight", hidden, heads*headDim)
		plain(p+"self_attn.q_norm.weight", headDim)
		plain(p+"self_attn.k_norm.weight", headDim)
		linear(p+"mlp.gate_proj.weight", ffn, hidden)
		linear(p+"mlp.up_proj.weight", ffn, hidden)
		linear(p+"mlp.down_proj.weight", hidden, ffn)
		plain(p+"input_layernorm.weight", hidden)
		plain(p+"post_attention_layernorm.weight", hidden)
	}
	return all.write(dir, config)
}

// BenchmarkFP8 runs a model with weights kept in FP8 and with those expanded to bfloat16 in turn: decoding of some sequences together, and training passes. It says how many times as fast the best run of the first is.
//
//	go test -bench FP8 -benchtime 10x -cpu 2 -run none ./backends/internal/model
func BenchmarkFP8(b *testing.B) {
	dir := b.TempDir()
	if err := writeRandomFP8(dir, 4); err != nil {
		b.Fatal(err)
	}
	var both [2]*benchmarked
	for i, fp8 := range []model.FP8{model.FP8Kept, model.FP8Expanded} {
		device, err := cpu.New(cpu.Options{Threads: runtime.GOMAXPROCS(0)})
		if err != nil {
			b.Fatal(err)
		}
		defer device.Close()
		m, err := model.Load(context.Background(), dir, device, architectures.All(), model.LoadOptions{FP8: fp8})
		if err != nil {
			b.Fatal(err)
		}
		defer m.Free()
		q := &benchmarked{m: m, dtype: tensor.BFloat16, work: m.NewWorkspace(), tokens: make([]int32, benchmarkTokens)}
		defer q.work.Free()
		if q.pages, err = m.NewPages(mixedAdapters * (decodeContext/tensor.PageSize + 1)); err != nil {
			b.Fatal(err)
		}
		defer q.pages.Free()
		defer q.adapter(b, 0).Free()
		both[i] = q
	}
	measure := func(name string, pass func(q *benchmarked) func()) {
		b.Run(name, func(b *testing.B) {
			best, passes := [2]float64{math.Inf(1), math.Inf(1)}, [2]func(){pass(both[0]), pass(both[1])}
			runtime.LockOSThread() // of one thread the processor time counts
			defer runtime.UnlockOSThread()
			for b.Loop() {
				for i, f := range passes {
					start := cpu.Clock(both[i].m.Device)
					f()
					best[i] = min(best[i], cpu.Clock(both[i].m.Device)-start)
				}
			}
			b.ReportMetric(best[0]*1e3, "ms")
			b.ReportMetric(best[1]*1e3, "bf16-ms")
			b.ReportMetric(best[1]/best[0], "×bf16")
			b.ReportMetric(float64(both[0].m.WeightBytes())/float64(both[1].m.WeightBytes()), "of-its-bytes")
		})
	}
	for _, n := range []int{1, 2, 4, 8, 16} {
		measure(fmt.Sprintf("decode=%d", n), func(q *benchmarked) func() { return q.decode(b, n, func(int) *lora.Weights { return nil }) })
	}
	measure("train", func(q *benchmarked) func() { return q.train(b, 1, false, false) })
}
