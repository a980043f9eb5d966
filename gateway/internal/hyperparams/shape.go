package hyperparams

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// shape is what config.json says of the matrices that LoRA is on.
type shape struct {
	ModelType string `json:"model_type"`
	Hidden    int64  `json:"hidden_size"`
	Layers    int64  `json:"num_hidden_layers"`
	Vocab     int64  `json:"vocab_size"`

	Heads      int64    `json:"num_attention_heads"`
	KVHeads    *int64   `json:"num_key_value_heads"`
	HeadDim    int64    `json:"head_dim"`
	Gate       *bool    `json:"attn_output_gate"`
	LayerTypes []string `json:"layer_types"`
	Interval   int64    `json:"full_attention_interval"`
	KeyHeads   int64    `json:"linear_num_key_heads"`
	KeyDim     int64    `json:"linear_key_head_dim"`
	ValueHeads int64    `json:"linear_num_value_heads"`
	ValueDim   int64    `json:"linear_value_head_dim"`

	Intermediate int64   `json:"intermediate_size"`
	Experts      int64   `json:"num_experts"`
	LocalExperts int64   `json:"num_local_experts"` // gpt-oss's name
	ExpertWidth  int64   `json:"moe_intermediate_size"`
	SharedWidth  int64   `json:"shared_expert_intermediate_size"`
	SparseStep   int64   `json:"decoder_sparse_step"`
	DenseLayers  []int64 `json:"mlp_only_layers"`
}

// most bounds every size, so that no sum of products overflows: published models are thousands of times smaller.
const most = 1 << 20

// maxLayers bounds the layers, which are gone through.
const maxLayers = 10_000

// counted are the model types whose matrices parameters knows.
var counted = []string{
	"gpt_oss", "llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_text", "smollm3",
}

// readShape reads config.json. Of models with parts for images it takes the text's.
func readShape(config []byte) (*shape, error) {
	var outer struct {
		ModelType string          `json:"model_type"`
		Text      json.RawMessage `json:"text_config"`
	}
	if err := json.Unmarshal(config, &outer); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	var s shape
	if len(outer.Text) > 0 && string(outer.Text) != "null" {
		config = outer.Text
	}
	if err := json.Unmarshal(config, &s); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	if s.ModelType == "" {
		s.ModelType = outer.ModelType
	}
	if s.Hidden < 1 || s.Hidden > most {
		return nil, fmt.Errorf("config.json: hidden_size is %d; allowed are 1 to %d", s.Hidden, most)
	}
	for name, v := range map[string]int64{
		"num_hidden_layers": s.Layers, "num_attention_heads": s.Heads, "head_dim": s.HeadDim, "full_attention_interval": s.Interval, "linear_num_key_heads": s.KeyHeads,
		"linear_key_head_dim": s.KeyDim, "linear_num_value_heads": s.ValueHeads, "linear_value_head_dim": s.ValueDim, "intermediate_size": s.Intermediate, "num_experts": s.Experts, "num_local_experts": s.LocalExperts,
		"moe_intermediate_size": s.ExpertWidth, "shared_expert_intermediate_size": s.SharedWidth, "decoder_sparse_step": s.SparseStep,
	} {
		if v < 0 || v > most {
			return nil, fmt.Errorf("config.json: %s is %d; allowed are 0 to %d", name, v, most)
		}
	}
	if s.Vocab < 0 || s.Vocab > math.MaxInt32 {
		return nil, fmt.Errorf("config.json: vocab_size is %d", s.Vocab)
	}
	if s.Layers > maxLayers {
		return nil, fmt.Errorf("config.json: num_hidden_layers is %d; allowed are 0 to %d", s.Layers, maxLayers)
	}
	if s.KVHeads != nil && (*s.KVHeads < 0 || *s.KVHeads > most) {
		return nil, errors.New("config.json: num_key_value_heads is not allowed")
	}
	if s.Experts == 0 {
		s.Experts = s.LocalExperts
	}
	if s.HeadDim == 0 && s.Heads > 0 {
		s.HeadDim = s.Hidden / s.Heads
	}
	return &s, nil
}

// parameters counts an adapter of rank 1 on all that is trained by default: each matrix has one row more and one column more. nil where the architecture is not known, or a size is missing.
func (s *shape) parameters() *Parameters {
	if !slices.Contains(counted, s.ModelType) || s.Layers == 0 || s.Heads == 0 || s.HeadDim == 0 || s.Vocab == 0 || s.Intermediate == 0 && s.ExpertWidth == 0 {
		return nil
	}
	p := &Parameters{Unembed: s.Hidden + s.Vocab}
	for layer := range s.Layers {
		p.MLP += s.mlp(layer)
		if s.linear(layer) {
			p.Attn += s.deltaNet()
		} else {
			p.Attn += s.attention()
		}
	}
	return p
}

// attention is q, k, v and o. A gate on the output doubles q.
func (s *shape) attention() int64 {
	q, kv := s.Heads*s.HeadDim, s.Heads*s.HeadDim
	if s.KVHeads != nil {
		kv = *s.KVHeads * s.HeadDim
	}
	in := q
	if s.gated() {
		in *= 2
	}
	return (s.Hidden + in) + 2*(s.Hidden+kv) + (q + s.Hidden)
}

// gated says whether q also gives a gate: of the families with DeltaNet it does by default.
func (s *shape) gated() bool {
	if s.Gate != nil {
		return *s.Gate
	}
	return s.KeyHeads > 0
}

// linear says whether a layer is a DeltaNet.
func (s *shape) linear(layer int64) bool {
	if s.KeyHeads == 0 {
		return false
	}
	if int64(len(s.LayerTypes)) == s.Layers {
		return s.LayerTypes[layer] == "linear_attention"
	}
	interval := s.Interval
	if interval == 0 {
		interval = 4
	}
	return (layer+1)%interval != 0
}

// deltaNet is q, k, v, the gate z, and the way out.
func (s *shape) deltaNet() int64 {
	k, v := s.KeyHeads*s.KeyDim, s.ValueHeads*s.ValueDim
	return 2*(s.Hidden+k) + 3*(s.Hidden+v)
}

// mlp is gate, up and down. Experts share the factor on the side of the hidden state, and each has its own on the other.
func (s *shape) mlp(layer int64) int64 {
	dense := s.Experts == 0 || slices.Contains(s.DenseLayers, layer) || s.SparseStep > 1 && (layer+1)%s.SparseStep != 0
	if dense {
		return 3 * (s.Hidden + s.Intermediate)
	}
	width := s.ExpertWidth
	if width == 0 {
		width = s.Intermediate
	}
	sum := 3 * (s.Hidden + s.Experts*width)
	if s.SharedWidth > 0 {
		sum += 3 * (s.Hidden + s.SharedWidth)
	}
	return sum
}
