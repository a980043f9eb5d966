package model_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// writeRandomModel writes a model directory of the shape of Qwen3-0.6B (or with fewer layers) with random bfloat16 weights.
func writeRandomModel(dir string, layers int) error {
	const hidden, ffn, heads, kv, headDim, vocab = 1024, 3072, 16, 8, 128, 151936
	config, err := json.Marshal(map[string]any{"architectures": []string{"Qwen3ForCausalLM"}, "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": ffn,
		"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": headDim, "vocab_size": vocab, "max_position_embeddings": 4096, "rope_theta": 1e6, "tie_word_embeddings": true})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		return err
	}
	var all []safetensors.Source
	add := func(name string, shape ...int) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		all = append(all, safetensors.Source{Name: name, DType: "BF16", Shape: shape, Write: func(w io.Writer) error {
			r := rand.NewPCG(uint64(n), 1)
			buf := make([]byte, 2*shape[len(shape)-1])
			for done := 0; done < n; done += len(buf) / 2 {
				for i := 0; i < len(buf); i += 8 { // 4 elements of ±[2⁻⁶, 2⁻⁵), or 1 for norms
					u := r.Uint64()
					for j := range 4 {
						v := uint16(u>>(16*j))&0x807f | 121<<7
						if len(shape) == 1 {
							v = 127 << 7
						}
						buf[i+2*j], buf[i+2*j+1] = byte(v), byte(v>>8)
					}
				}
				if _, err := w.Write(buf); err != nil {
					return err
				}
			}
			return nil
		}})
	}
	add("model.embed_tokens.weight", vocab, hidden)
	add("model.norm.weight", hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"self_attn.q_proj.weight", heads*headDim, hidden)
		add(p+"self_attn.k_proj.weight", kv*headDim, hidden)
		add(p+"self_attn.v_proj.weight", kv*headDim, hidden)
		add(p+"self_attn.o_proj.weight", hidden, heads*headDim)
		add(p+"self_attn.q_norm.weight", headDim)
		add(p+"self_attn.k_norm.weight", headDim)
		add(p+"mlp.gate_proj.weight", ffn, hidden)
		add(p+"mlp.up_proj.weight", ffn, hidden)
		add(p+"mlp.down_proj.weight", hidden, ffn)
		add(p+"input_layernorm.weight", hidden)
		add(p+"post_attention_layernorm.weight", hidden)
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	if _, _, err := safetensors.Write(f, nil, all); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// BenchmarkQwen3 measures the shape of Qwen3-0.6B with random weights: a training pass over one sequence of 512 tokens with rank 32 on all modules, and decoding of one sequence.
// With 28 layers it is the real model; with 4 it is quicker to run, and the output head weighs more. The device has as many threads as -cpu says. Processor time per
// operation does not count what other processes took, so on a busy machine it is the figure to compare.
//
//	go test -bench Qwen3/layers=28 -benchtime 3x -cpu 1,2 -run none ./backends/internal/model
func BenchmarkQwen3(b *testing.B) {
	for _, layers := range []int{4, 28} {
		b.Run(fmt.Sprintf("layers=%d", layers), func(b *testing.B) { benchmarkQwen3(b, layers) })
	}
}

// processorSeconds is the processor time that this process has taken.
func processorSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func benchmarkQwen3(b *testing.B, layers int) {
	dir := b.TempDir()
	if err := writeRandomModel(dir, layers); err != nil {
		b.Fatal(err)
	}
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		b.Run(d.String(), func(b *testing.B) {
			device, err := cpu.New(cpu.Options{Threads: runtime.GOMAXPROCS(0)})
			if err != nil {
				b.Fatal(err)
			}
			m, err := model.Load(context.Background(), dir, device, architectures.All(), model.LoadOptions{DType: d})
			if err != nil {
				b.Fatal(err)
			}
			pages, err := m.NewPages(16)
			if err != nil {
				b.Fatal(err)
			}
			l, err := m.Layout(32, true, true, true)
			if err != nil {
				b.Fatal(err)
			}
			w, err := lora.NewWeights(device, l, d)
			if err != nil {
				b.Fatal(err)
			}
			if err := w.Initialize(1); err != nil {
				b.Fatal(err)
			}
			g, err := lora.NewGradient(device, l)
			if err != nil {
				b.Fatal(err)
			}
			crossEntropy, err := loss.New("cross_entropy", nil)
			if err != nil {
				b.Fatal(err)
			}
			const n = 512
			tokens, weights, own := make([]int32, n), make([]float32, n), make([]int32, n/tensor.PageSize)
			for i := range tokens {
				tokens[i], weights[i] = int32(i*7919%m.Config.VocabSize), 1
			}
			for i := range own {
				own[i] = int32(i)
			}
			work := m.NewWorkspace()
			for _, recompute := range []bool{false, true} {
				b.Run(fmt.Sprintf("train/recompute=%v", recompute), func(b *testing.B) {
					pass := func() {
						_, err := m.Train(work, pages, []model.Example{{Sequence: model.Sequence{Adapter: w, Tokens: tokens, Pages: own},
							Targets: tokens, K: 1, Loss: crossEntropy, Inputs: loss.Inputs{Weights: weights}, Gradient: g}}, model.TrainOptions{Recompute: recompute})
						if err != nil {
							b.Fatal(err)
						}
					}
					pass() // the workspace grows
					pass() // and is joined
					before := processorSeconds(b)
					b.ResetTimer()
					for range b.N {
						pass()
					}
					b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "tok/s")
					b.ReportMetric((processorSeconds(b)-before)/float64(b.N), "cpu-s/op")
					b.ReportMetric(float64(work.Bytes())/1e6, "MB")
				})
			}
			for _, adapter := range []*lora.Weights{nil, w} {
				b.Run(fmt.Sprintf("decode/lora=%v", adapter != nil), func(b *testing.B) {
					before := processorSeconds(b)
					for i := range b.N {
						h, err := m.Forward(work, model.Batch{Pages: pages, Sequences: []model.Sequence{{Adapter: adapter, Tokens: tokens[:1], First: 256 + i%128, Pages: own}}}, []int32{0})
						if err != nil {
							b.Fatal(err)
						}
						if err := m.Logits(work, h, func(_ int, logits tensor.Tensor) error {
							_, _, err := m.Logprobs(work, logits, tokens[:1], 1)
							return err
						}); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tok/s")
					b.ReportMetric((processorSeconds(b)-before)/float64(b.N), "cpu-s/op")
				})
			}
			work.Free()
			g.Free()
			w.Free()
			pages.Free()
			m.Free()
			if err := device.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}
