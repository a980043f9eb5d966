package model_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// chains is a device that is said to know no segments, so that every sum of a product is one chain.
type chains struct{ tensor.Device }

func (chains) Segmented() bool { return false }

// BenchmarkSegments tells what it costs that one device sums in segments, as ranks do, instead of in chains: the processor time of both, turn about in one process, for training passes of 128 and of 512 tokens, and decoding of one sequence and of
// eight, with an adapter of rank 32.
//
//	go test -bench Segments -benchtime 5x -cpu 1 -run none ./backends/internal/model
func BenchmarkSegments(b *testing.B) {
	random := func(write func(dir string) error) string {
		dir := b.TempDir()
		if err := write(dir); err != nil {
			b.Fatal(err)
		}
		return dir
	}
	for _, c := range []struct{ name, dir string }{
		{"built-in model", "../../../configs/models/tiny-chat"},
		{"two layers of Qwen3-0.6B", random(func(dir string) error { return writeRandomModelOf(dir, 2, 16384) })},
		{"a layer of 32 experts of Qwen3-30B-A3B", random(writeRandomExperts)},
		{"four layers of Qwen3.5-0.8B", random(writeRandomHybrid)},
	} {
		for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			b.Run(fmt.Sprintf("%s/%v", c.name, d), func(b *testing.B) {
				var both [2]*benchmarked // chains, segments
				for i := range both {
					device, err := cpu.New(cpu.Options{Threads: runtime.GOMAXPROCS(0)})
					if err != nil {
						b.Fatal(err)
					}
					defer device.Close()
					if i == 0 {
						device = chains{device}
					}
					m, err := model.Load(context.Background(), c.dir, device, architectures.All(), model.LoadOptions{DType: d})
					if err != nil {
						b.Fatal(err)
					}
					defer m.Free()
					q := &benchmarked{m: m, dtype: d, work: m.NewWorkspace(), tokens: make([]int32, benchmarkTokens)}
					defer q.work.Free()
					if q.pages, err = m.NewPages(8 * (decodeContext/tensor.PageSize + 1)); err != nil {
						b.Fatal(err)
					}
					defer q.pages.Free()
					if m.Recurrent() {
						if q.states, err = m.NewStates(8); err != nil {
							b.Fatal(err)
						}
						defer q.states.Free()
					}
					for i := range q.tokens {
						q.tokens[i] = int32(i * 7919 % m.Config.VocabSize)
					}
					q.adapter(b, 0)
					defer q.adapters[0].Free()
					both[i] = q
				}
				for _, tokens := range []int{128, 512} {
					b.Run(fmt.Sprintf("train/tokens=%d", tokens), func(b *testing.B) {
						both[0].compare(b, both[0].trainOf(b, tokens), both[1].trainOf(b, tokens))
					})
				}
				for _, sequences := range []int{1, 8} {
					b.Run(fmt.Sprintf("decode/sequences=%d", sequences), func(b *testing.B) {
						steps := func(q *benchmarked) func() {
							step := q.decode(b, sequences, func(int) *lora.Weights { return q.adapters[0] })
							return func() {
								for range 10 {
									step()
								}
							}
						}
						both[0].compare(b, steps(both[0]), steps(both[1]))
					})
				}
			})
		}
	}
}

// writeRandomExperts writes a layer of Qwen3-30B-A3B with fewer experts and a small vocabulary.
func writeRandomExperts(dir string) error {
	const hidden, heads, kv, headDim, experts, width, vocab = 2048, 32, 4, 128, 32, 768, 4096
	var all randomTensors
	all.add("model.embed_tokens.weight", vocab, hidden)
	all.add("model.norm.weight", hidden)
	const p = "model.layers.0."
	all.add(p+"self_attn.q_proj.weight", heads*headDim, hidden)
	all.add(p+"self_attn.k_proj.weight", kv*headDim, hidden)
	all.add(p+"self_attn.v_proj.weight", kv*headDim, hidden)
	all.add(p+"self_attn.o_proj.weight", hidden, heads*headDim)
	all.add(p+"self_attn.q_norm.weight", headDim)
	all.add(p+"self_attn.k_norm.weight", headDim)
	all.add(p+"mlp.gate.weight", experts, hidden)
	all.add(p+"mlp.experts.gate_up_proj", experts, 2*width, hidden)
	all.add(p+"mlp.experts.down_proj", experts, hidden, width)
	all.add(p+"input_layernorm.weight", hidden)
	all.add(p+"post_attention_layernorm.weight", hidden)
	return all.write(dir, map[string]any{"architectures": []string{"Qwen3MoeForCausalLM"}, "num_hidden_layers": 1, "hidden_size": hidden, "intermediate_size": width, "num_attention_heads": heads, "num_key_value_heads": kv,
		"head_dim": headDim, "vocab_size": vocab, "max_position_embeddings": 4096, "rope_theta": 1e6, "tie_word_embeddings": true, "num_experts": experts, "num_experts_per_tok": 8, "moe_intermediate_size": width, "norm_topk_prob": true})
}

// writeRandomHybrid writes four layers of Qwen3.5-0.8B, three of linear attention and one of attention, with a small vocabulary.
func writeRandomHybrid(dir string) error {
	const hidden, heads, kv, headDim, width, vocab, linearHeads, linearDim, kernel = 1024, 8, 2, 256, 3584, 4096, 16, 128, 4
	const values = linearHeads * linearDim
	var all randomTensors
	all.add("model.embed_tokens.weight", vocab, hidden)
	all.add("model.norm.weight", hidden)
	for i := range 4 {
		p := fmt.Sprintf("model.layers.%d.", i)
		all.add(p+"mlp.gate_proj.weight", width, hidden)
		all.add(p+"mlp.up_proj.weight", width, hidden)
		all.add(p+"mlp.down_proj.weight", hidden, width)
		all.add(p+"input_layernorm.weight", hidden)
		all.add(p+"post_attention_layernorm.weight", hidden)
		if i == 3 {
			all.add(p+"self_attn.q_proj.weight", 2*heads*headDim, hidden)
			all.add(p+"self_attn.k_proj.weight", kv*headDim, hidden)
			all.add(p+"self_attn.v_proj.weight", kv*headDim, hidden)
			all.add(p+"self_attn.o_proj.weight", hidden, heads*headDim)
			all.add(p+"self_attn.q_norm.weight", headDim)
			all.add(p+"self_attn.k_norm.weight", headDim)
			continue
		}
		all.add(p+"linear_attn.in_proj_qkv.weight", 3*values, hidden)
		all.add(p+"linear_attn.in_proj_z.weight", values, hidden)
		all.add(p+"linear_attn.in_proj_a.weight", linearHeads, hidden)
		all.add(p+"linear_attn.in_proj_b.weight", linearHeads, hidden)
		all.add(p+"linear_attn.conv1d.weight", 3*values, 1, kernel)
		all.add(p+"linear_attn.A_log", linearHeads)
		all.add(p+"linear_attn.dt_bias", linearHeads)
		all.add(p+"linear_attn.norm.weight", linearDim)
		all.add(p+"linear_attn.out_proj.weight", hidden, values)
	}
	return all.write(dir, map[string]any{"architectures": []string{"Qwen3_5ForCausalLM"}, "num_hidden_layers": 4, "hidden_size": hidden, "intermediate_size": width, "num_attention_heads": heads, "num_key_value_heads": kv,
		"head_dim": headDim, "vocab_size": vocab, "max_position_embeddings": 4096, "tie_word_embeddings": true, "linear_num_key_heads": linearHeads, "linear_num_value_heads": linearHeads, "linear_key_head_dim": linearDim,
		"linear_value_head_dim": linearDim, "linear_conv_kernel_dim": kernel, "rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}})
}

// trainOf is train of one sequence of so many tokens.
func (q *benchmarked) trainOf(b *testing.B, tokens int) func() {
	b.Helper()
	short := *q
	short.tokens = q.tokens[:tokens]
	return short.trainTokens(b, tokens, 1, false, false)
}
