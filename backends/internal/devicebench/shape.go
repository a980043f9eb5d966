package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
)

// shape is the size of a model of the family Qwen3.
type shape struct {
	Name                                                                 string
	Vocabulary, Hidden, Intermediate, Layers, Heads, KeyHeads, HeadWidth int
	Tied                                                                 bool // the head is the embedding
}

var (
	qwen06B = shape{"Qwen3-0.6B", 151936, 1024, 3072, 28, 16, 8, 128, true}
	qwen8B  = shape{"Qwen3-8B", 151936, 4096, 12288, 36, 32, 8, 128, false}
)

// longest is the context of the models: more than is measured.
const longest = 8192

// matrix is a tensor of a model.
type matrix struct {
	name  string
	shape []int
}

// matrices are all tensors of the model.
func (s shape) matrices() []matrix {
	all := []matrix{{"model.embed_tokens.weight", []int{s.Vocabulary, s.Hidden}}, {"model.norm.weight", []int{s.Hidden}}}
	if !s.Tied {
		all = append(all, matrix{"lm_head.weight", []int{s.Vocabulary, s.Hidden}})
	}
	for i := range s.Layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		all = append(all, matrix{p + "input_layernorm.weight", []int{s.Hidden}}, matrix{p + "post_attention_layernorm.weight", []int{s.Hidden}},
			matrix{p + "self_attn.q_norm.weight", []int{s.HeadWidth}}, matrix{p + "self_attn.k_norm.weight", []int{s.HeadWidth}},
			matrix{p + "self_attn.q_proj.weight", []int{s.Heads * s.HeadWidth, s.Hidden}}, matrix{p + "self_attn.k_proj.weight", []int{s.KeyHeads * s.HeadWidth, s.Hidden}},
			matrix{p + "self_attn.v_proj.weight", []int{s.KeyHeads * s.HeadWidth, s.Hidden}}, matrix{p + "self_attn.o_proj.weight", []int{s.Hidden, s.Heads * s.HeadWidth}},
			matrix{p + "mlp.gate_proj.weight", []int{s.Intermediate, s.Hidden}}, matrix{p + "mlp.up_proj.weight", []int{s.Intermediate, s.Hidden}}, matrix{p + "mlp.down_proj.weight", []int{s.Hidden, s.Intermediate}})
	}
	return all
}

// bytes is what a decoding step reads of the weights, in bfloat16: all but an embedding that is not the head.
func (s shape) bytes() int64 {
	var n int64
	for _, m := range s.matrices() {
		elements := int64(1)
		for _, d := range m.shape {
			elements *= int64(d)
		}
		if s.Tied || m.name != "model.embed_tokens.weight" {
			n += 2 * elements
		}
	}
	return n
}

// positionBytes is the keys and values of one token, in bfloat16.
func (s shape) positionBytes() int64 { return int64(2 * 2 * s.Layers * s.KeyHeads * s.HeadWidth) }

// provide writes the model into a folder that may have it already. A folder that is there is whole, also if a process that wrote it was ended.
func (s shape) provide(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	part := dir + ".part"
	if err := errors.Join(os.RemoveAll(part), os.Mkdir(part, 0o700)); err != nil {
		return err
	}
	if err := s.write(part); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	return os.Rename(part, dir)
}

// write writes a model directory with random weights in bfloat16: ±[2⁻⁶, 2⁻⁵) in matrices, 1 in norms.
func (s shape) write(dir string) error {
	config, err := json.Marshal(map[string]any{"architectures": []string{"Qwen3ForCausalLM"}, "model_type": "qwen3", "num_hidden_layers": s.Layers, "hidden_size": s.Hidden, "intermediate_size": s.Intermediate,
		"num_attention_heads": s.Heads, "num_key_value_heads": s.KeyHeads, "head_dim": s.HeadWidth, "vocab_size": s.Vocabulary, "max_position_embeddings": longest, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
		"tie_word_embeddings": s.Tied, "hidden_act": "silu"})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		return err
	}
	var sources []safetensors.Source
	for i, m := range s.matrices() {
		sources = append(sources, safetensors.Source{Name: m.name, DType: "BF16", Shape: m.shape, Write: func(w io.Writer) error { return random(w, uint64(i), m.shape) }})
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	_, _, err = safetensors.Write(f, nil, sources)
	return errors.Join(err, f.Close())
}

// random writes the elements of a tensor.
func random(w io.Writer, seed uint64, shape []int) error {
	const one, small = 127 << 7, 121 << 7 // 1 and 2⁻⁶ in bfloat16
	source := rand.NewPCG(seed, 1)
	row, rows := make([]byte, 2*shape[len(shape)-1]), 1
	if len(shape) == 2 {
		rows = shape[0]
	}
	for range rows {
		for i := 0; i < len(row); i += 2 {
			v := uint16(source.Uint64())&0x807f | small
			if len(shape) == 1 {
				v = one
			}
			row[i], row[i+1] = byte(v), byte(v>>8)
		}
		if _, err := w.Write(row); err != nil {
			return err
		}
	}
	return nil
}
