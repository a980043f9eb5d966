package model

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/plugins/modelfile"
)

const (
	configFile = "config.json"
	maxConfig  = 1 << 20 // bytes
)

// Config is what config.json says, checked: every size is positive and small enough that products of two of them fit an int.
type Config struct {
	Architecture          string
	Layers                int
	HiddenSize            int
	IntermediateSize      int
	Heads, KVHeads        int
	HeadDim               int
	VocabSize             int
	MaxPositionEmbeddings int
	RMSNormEps            float32
	TieWordEmbeddings     bool // as the files have it: not with two matrices that differ, whatever config.json says
	Rope                  nn.Rope
	RotaryDim             int // elements of a head, the first ones, that positions turn: even, at most HeadDim

	// What an architecture may support or not; its Check decides.
	Nested        bool     // the settings are those of text_config
	LayerTypes    []string // of each layer: FullAttention, SlidingAttention or LinearAttention
	AttentionBias bool
	MLPBias       bool
	SlidingWindow bool // some layer attends to a window only
	Window        int  // positions of it; 0 = not given
	OutputGate    *bool
	StillLayers   []bool // of each layer, whether positions turn nothing in it; nil = in all they do
	MoE           *MoE
	DeltaNet      *DeltaNet
	Quantization  *Quantization // nil: the files hold floating-point numbers as they are

	given map[string]bool // the keys that are there, and whether they have a value
}

// The types of layers.
const (
	FullAttention    = "full_attention"
	SlidingAttention = "sliding_attention"
	LinearAttention  = "linear_attention"
)

// configJSON is config.json as transformers 4 and 5 write it. Keys that do not change the arithmetic of the text model are not read.
type configJSON struct {
	Architectures         []string        `json:"architectures"`
	NumHiddenLayers       *int            `json:"num_hidden_layers"`
	HiddenSize            *int            `json:"hidden_size"`
	IntermediateSize      *int            `json:"intermediate_size"`
	NumAttentionHeads     *int            `json:"num_attention_heads"`
	NumKeyValueHeads      *int            `json:"num_key_value_heads"`
	HeadDim               *int            `json:"head_dim"`
	VocabSize             *int            `json:"vocab_size"`
	MaxPositionEmbeddings *int            `json:"max_position_embeddings"`
	RMSNormEps            *float64        `json:"rms_norm_eps"`
	TieWordEmbeddings     *bool           `json:"tie_word_embeddings"`
	HiddenAct             *string         `json:"hidden_act"`
	AttentionBias         bool            `json:"attention_bias"`
	MLPBias               bool            `json:"mlp_bias"`
	UseSlidingWindow      bool            `json:"use_sliding_window"`
	SlidingWindow         *int            `json:"sliding_window"`
	MaxWindowLayers       *int            `json:"max_window_layers"`
	BOS                   tokenIDs        `json:"bos_token_id"`
	EOS                   tokenIDs        `json:"eos_token_id"`
	PAD                   tokenIDs        `json:"pad_token_id"`
	LayerTypes            []string        `json:"layer_types"`
	PartialRotaryFactor   *float64        `json:"partial_rotary_factor"`
	OriginalMax           *int            `json:"original_max_position_embeddings"`
	QuantizationConfig    json.RawMessage `json:"quantization_config"`
	CompressionConfig     json.RawMessage `json:"compression_config"` // older name of it
	Weights               *string         `json:"transformers_weights"`
	RopeTheta             *float64        `json:"rope_theta"`
	RopeScaling           *ropeJSON       `json:"rope_scaling"`    // transformers 4
	RopeParameters        *ropeJSON       `json:"rope_parameters"` // transformers 5
	FullAttentionInterval *int            `json:"full_attention_interval"`
	AttentionOutputGate   *bool           `json:"attn_output_gate"`
	NoRopeLayers          []int           `json:"no_rope_layers"`
	NoRopeInterval        *int            `json:"no_rope_layer_interval"`
	moeJSON
	deltaNetJSON

	defaultRotaryFactor *float64 // nil = 1
	familyRotaryFactor  float64  // Defaults.RotaryFactor
	windowed            Windows
}

// tokenIDs is one token id, a list of them, or nothing.
type tokenIDs []int64

// UnmarshalJSON implements json.Unmarshaler.
func (l *tokenIDs) UnmarshalJSON(b []byte) error {
	var one *int64
	if json.Unmarshal(b, &one) == nil {
		if one != nil {
			*l = tokenIDs{*one}
		}
		return nil
	}
	return json.Unmarshal(b, (*[]int64)(l))
}

// Defaults are what keys mean that config.json does not have, where families differ.
type Defaults struct {
	Tied         bool    // tie_word_embeddings
	RotaryFactor float64 // partial_rotary_factor; 0 = 1
	ExpertWidth  bool    // moe_intermediate_size is intermediate_size
	Window       int     // sliding_window; 0 = none
	Windows      Windows // whatever keys there are
}

// readConfig reads a model directory's config.json, with the defaults of its architecture. It also gives the file's bytes.
func readConfig(dir string, registry Registry) (*Config, []byte, error) {
	path := filepath.Join(dir, configFile)
	// Opening a pipe waits for its other end.
	if info, err := os.Stat(path); err != nil {
		return nil, nil, err
	} else if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, nil, err
	}
	if len(raw) > maxConfig {
		return nil, nil, fmt.Errorf("%s is larger than %d bytes", configFile, maxConfig)
	}
	if err := modelfile.Placeholder(raw); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", configFile, err)
	}
	c, err := registry.parseConfig(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", configFile, err)
	}
	return c, raw, nil
}

func (r Registry) parseConfig(raw []byte) (*Config, error) {
	raw, nested, err := textConfig(raw)
	if err != nil {
		return nil, err
	}
	var j configJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return nil, err
	}
	if len(j.Architectures) != 1 {
		return nil, fmt.Errorf("architectures is %q: it must name one architecture", j.Architectures)
	}
	keys := given(raw)
	j.setDefaults(r[j.Architectures[0]].Defaults, keys)
	c, err := j.config()
	if err != nil && nested {
		err = fmt.Errorf("%s: %w", textConfigKey, err)
	}
	if err != nil {
		return nil, err
	}
	c.Nested, c.given = nested, keys
	c.given["rope_theta"] = j.hasTheta()
	return c, nil
}

// setDefaults gives keys that are absent what they mean then.
func (j *configJSON) setDefaults(d Defaults, keys map[string]bool) {
	if j.TieWordEmbeddings == nil {
		j.TieWordEmbeddings = &d.Tied
	}
	if _, there := keys["sliding_window"]; !there && d.Window != 0 {
		j.SlidingWindow = &d.Window
	}
	j.windowed, j.familyRotaryFactor = d.Windows, d.RotaryFactor
	if d.ExpertWidth && j.MoEIntermediateSize == nil {
		j.MoEIntermediateSize = j.IntermediateSize
	}
	if _, there := keys["partial_rotary_factor"]; !there && d.RotaryFactor != 0 { // null is 1, as in transformers
		j.defaultRotaryFactor = &d.RotaryFactor
	}
}

// config checks the settings of the text model.
func (j *configJSON) config() (*Config, error) {
	c := &Config{Architecture: j.Architectures[0], TieWordEmbeddings: *j.TieWordEmbeddings, AttentionBias: j.AttentionBias, MLPBias: j.MLPBias, SlidingWindow: j.UseSlidingWindow, OutputGate: j.AttentionOutputGate}
	if err := j.sizes(c); err != nil {
		return nil, err
	}
	if c.Heads%c.KVHeads != 0 {
		return nil, fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	}
	if c.HeadDim%2 != 0 {
		return nil, fmt.Errorf("head_dim is %d, it must be even", c.HeadDim)
	}
	eps := 1e-6 // the default of transformers for all our architectures
	if j.RMSNormEps != nil {
		eps = *j.RMSNormEps
	}
	c.RMSNormEps = float32(eps)
	if !(c.RMSNormEps > 0 && eps < 1) { // what float32 rounds to zero divides by zero
		return nil, fmt.Errorf("rms_norm_eps is %v, it must be below 1 and above 0 in float32", eps)
	}
	if j.HiddenAct != nil && *j.HiddenAct != "silu" {
		return nil, fmt.Errorf("hidden_act is %.40q, only silu is supported", *j.HiddenAct)
	}
	quantization, err := j.quantization()
	if err != nil {
		return nil, err
	}
	c.Quantization = quantization
	if j.Weights != nil {
		return nil, fmt.Errorf("transformers_weights is %.80q: weights are read from model.safetensors or its shards only; give the file that name and take the key out", *j.Weights)
	}
	if err := j.layers(c); err != nil {
		return nil, err
	}
	if c.MoE, err = j.moe(c); err != nil {
		return nil, err
	}
	if c.DeltaNet, err = j.deltaNet(); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		ids  tokenIDs
	}{{"bos_token_id", j.BOS}, {"eos_token_id", j.EOS}, {"pad_token_id", j.PAD}} {
		for _, id := range f.ids {
			if id < 0 || id >= int64(c.VocabSize) {
				return nil, fmt.Errorf("%s is %d, it must be in 0 … %d, the vocabulary", f.name, id, c.VocabSize-1)
			}
		}
	}
	return c, j.rope(c)
}

// given lists the keys of a JSON object, and tells which have a value.
func given(raw []byte) map[string]bool {
	var all map[string]json.RawMessage
	_ = json.Unmarshal(raw, &all) // it is one: it has been read
	keys := map[string]bool{}
	for k, v := range all {
		keys[k] = !absent(v)
	}
	return keys
}

// size is a whole number of a configuration.
type size struct {
	name  string
	value *int
	most  int
	to    *int
}

// read checks a number that is in 1 … most.
func (s size) read() error {
	if s.value == nil {
		return fmt.Errorf("%s is missing", s.name)
	}
	if *s.value < 1 || *s.value > s.most {
		return fmt.Errorf("%s is %d, it must be in 1 … %d", s.name, *s.value, s.most)
	}
	*s.to = *s.value
	return nil
}

// The most of some sizes.
const (
	mostHidden = 1 << 18
	mostWidth  = 1 << 20 // of an MLP
	mostHeads  = 1 << 12 // and of elements of one
)

func (j *configJSON) sizes(c *Config) error {
	if j.IntermediateSize == nil && j.hasExperts() { // all of its layers may have experts
		j.IntermediateSize = j.MoEIntermediateSize
	}
	if j.NumKeyValueHeads == nil {
		j.NumKeyValueHeads = j.NumAttentionHeads
	}
	for _, s := range []size{
		{"num_hidden_layers", j.NumHiddenLayers, 1 << 10, &c.Layers},
		{"hidden_size", j.HiddenSize, mostHidden, &c.HiddenSize},
		{"intermediate_size", j.IntermediateSize, mostWidth, &c.IntermediateSize},
		{"num_attention_heads", j.NumAttentionHeads, mostHeads, &c.Heads},
		{"num_key_value_heads", j.NumKeyValueHeads, mostHeads, &c.KVHeads},
		{"vocab_size", j.VocabSize, 1 << 24, &c.VocabSize},
		{"max_position_embeddings", j.MaxPositionEmbeddings, mostPositions, &c.MaxPositionEmbeddings},
	} {
		if err := s.read(); err != nil {
			return err
		}
	}
	if j.HeadDim == nil {
		if c.HiddenSize%c.Heads != 0 {
			return fmt.Errorf("head_dim is missing, and hidden_size %d is not a multiple of num_attention_heads %d", c.HiddenSize, c.Heads)
		}
		each := c.HiddenSize / c.Heads
		j.HeadDim = &each
	}
	return size{"head_dim", j.HeadDim, mostHeads, &c.HeadDim}.read()
}
