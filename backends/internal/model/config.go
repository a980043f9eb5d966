package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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

	// What an architecture may support or not; its Check decides.
	AttentionBias bool
	MLPBias       bool
	SlidingWindow bool // some layer attends to a window only
}

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
	TieWordEmbeddings     bool            `json:"tie_word_embeddings"`
	HiddenAct             *string         `json:"hidden_act"`
	AttentionBias         bool            `json:"attention_bias"`
	MLPBias               bool            `json:"mlp_bias"`
	UseSlidingWindow      bool            `json:"use_sliding_window"`
	SlidingWindow         *int            `json:"sliding_window"`
	BOS                   tokenIDs        `json:"bos_token_id"`
	EOS                   tokenIDs        `json:"eos_token_id"`
	PAD                   tokenIDs        `json:"pad_token_id"`
	LayerTypes            []string        `json:"layer_types"`
	PartialRotaryFactor   *float64        `json:"partial_rotary_factor"`
	QuantizationConfig    json.RawMessage `json:"quantization_config"`
	Weights               *string         `json:"transformers_weights"`
	RopeTheta             *float64        `json:"rope_theta"`
	RopeScaling           *ropeJSON       `json:"rope_scaling"`    // transformers 4
	RopeParameters        *ropeJSON       `json:"rope_parameters"` // transformers 5
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

type ropeJSON struct {
	RopeTheta           *float64 `json:"rope_theta"`
	RopeType            *string  `json:"rope_type"`
	Type                *string  `json:"type"` // older name of rope_type
	Factor              *float64 `json:"factor"`
	LowFreqFactor       *float64 `json:"low_freq_factor"`
	HighFreqFactor      *float64 `json:"high_freq_factor"`
	OriginalMax         *int     `json:"original_max_position_embeddings"`
	PartialRotaryFactor *float64 `json:"partial_rotary_factor"`
}

// readConfig reads a model directory's config.json. It also gives the file's bytes.
func readConfig(dir string) (*Config, []byte, error) {
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
	c, err := parseConfig(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", configFile, err)
	}
	return c, raw, nil
}

func parseConfig(raw []byte) (*Config, error) {
	var j configJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return nil, err
	}
	if len(j.Architectures) != 1 {
		return nil, fmt.Errorf("architectures is %q: it must name one architecture", j.Architectures)
	}
	c := &Config{Architecture: j.Architectures[0], TieWordEmbeddings: j.TieWordEmbeddings, AttentionBias: j.AttentionBias, MLPBias: j.MLPBias, SlidingWindow: j.UseSlidingWindow}
	for _, f := range []struct {
		name     string
		value    *int
		fallback int // 0 = required
		most     int
		to       *int
	}{
		{"num_hidden_layers", j.NumHiddenLayers, 0, 1 << 10, &c.Layers},
		{"hidden_size", j.HiddenSize, 0, 1 << 18, &c.HiddenSize},
		{"intermediate_size", j.IntermediateSize, 0, 1 << 20, &c.IntermediateSize},
		{"num_attention_heads", j.NumAttentionHeads, 0, 1 << 12, &c.Heads},
		{"num_key_value_heads", j.NumKeyValueHeads, deref(j.NumAttentionHeads), 1 << 12, &c.KVHeads},
		{"vocab_size", j.VocabSize, 0, 1 << 24, &c.VocabSize},
		{"max_position_embeddings", j.MaxPositionEmbeddings, 0, 1 << 24, &c.MaxPositionEmbeddings},
		{"head_dim", j.HeadDim, -1, 1 << 12, &c.HeadDim},
	} {
		switch {
		case f.value == nil && f.fallback == 0:
			return nil, fmt.Errorf("%s is missing", f.name)
		case f.value == nil && f.name == "head_dim":
			if c.HiddenSize%c.Heads != 0 {
				return nil, fmt.Errorf("head_dim is missing, and hidden_size %d is not a multiple of num_attention_heads %d", c.HiddenSize, c.Heads)
			}
			*f.to = c.HiddenSize / c.Heads
		case f.value == nil:
			*f.to = f.fallback
		default:
			*f.to = *f.value
		}
		if *f.to < 1 || *f.to > f.most {
			return nil, fmt.Errorf("%s is %d, it must be in 1 … %d", f.name, *f.to, f.most)
		}
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
	if len(j.QuantizationConfig) > 0 && string(j.QuantizationConfig) != "null" {
		return nil, errors.New("quantization_config is set: quantized weights are not supported, only F32, BF16 and F16")
	}
	if j.Weights != nil {
		return nil, fmt.Errorf("transformers_weights is %.80q: weights are read from model.safetensors or its shards only; give the file that name and take the key out", *j.Weights)
	}
	for i, t := range j.LayerTypes {
		switch t {
		case "full_attention":
		case "sliding_attention":
			c.SlidingWindow = true
		default:
			return nil, fmt.Errorf("layer_types[%d] is %.40q, only full_attention is supported", i, t)
		}
	}
	if len(j.LayerTypes) != 0 && len(j.LayerTypes) != c.Layers {
		return nil, fmt.Errorf("layer_types has %d entries for %d layers", len(j.LayerTypes), c.Layers)
	}
	if j.SlidingWindow != nil && *j.SlidingWindow < 0 {
		return nil, fmt.Errorf("sliding_window is %d, it must be at least 0", *j.SlidingWindow)
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

// rope reads the settings of rotary positions from wherever they are.
func (j *configJSON) rope(c *Config) error {
	r, where := j.RopeScaling, "rope_scaling"
	switch {
	case j.RopeParameters == nil && r == nil:
		r = &ropeJSON{}
	case r == nil || *r == ropeJSON{} && j.RopeParameters != nil:
		r, where = j.RopeParameters, "rope_parameters"
	case j.RopeParameters != nil && j.RopeParameters.RopeTheta != nil && r.RopeTheta == nil && j.RopeTheta == nil:
		// transformers takes rope_scaling in place of all of rope_parameters, and then its default.
		return fmt.Errorf("rope_scaling goes before rope_parameters and has no rope_theta: write it there")
	}
	theta := r.RopeTheta
	if theta == nil {
		theta = j.RopeTheta
	}
	c.Rope.Theta = 10000 // the default of transformers
	if theta != nil {
		c.Rope.Theta = *theta
	}
	// Also those that another one goes before: a file that says such a thing is not to be trusted.
	thetas := []*float64{&c.Rope.Theta, j.RopeTheta}
	for _, r := range []*ropeJSON{j.RopeScaling, j.RopeParameters} {
		if r != nil {
			thetas = append(thetas, r.RopeTheta)
		}
	}
	for _, theta := range thetas {
		if theta != nil && !(*theta > 1 && *theta < math.MaxFloat32) {
			return fmt.Errorf("rope_theta is %v, it must be above 1 and finite", *theta)
		}
	}
	for _, f := range []*float64{j.PartialRotaryFactor, r.PartialRotaryFactor} {
		if f != nil && *f != 1 {
			return fmt.Errorf("partial_rotary_factor is %v, only 1 is supported", *f)
		}
	}
	kind := r.RopeType
	if kind == nil {
		kind = r.Type
	}
	if kind == nil || *kind == "default" {
		return nil
	}
	if *kind != "llama3" {
		return fmt.Errorf("%s: rope_type is %.40q, only default and llama3 are supported", where, *kind)
	}
	if r.OriginalMax == nil || *r.OriginalMax < 1 || *r.OriginalMax > 1<<24 {
		return fmt.Errorf("%s: original_max_position_embeddings must be in 1 … %d", where, 1<<24)
	}
	s := &nn.Llama3Scaling{OriginalPositions: *r.OriginalMax}
	for _, f := range []struct {
		name  string
		value *float64
		to    *float64
	}{{"factor", r.Factor, &s.Factor}, {"low_freq_factor", r.LowFreqFactor, &s.LowFrequencyFactor}, {"high_freq_factor", r.HighFreqFactor, &s.HighFrequencyFactor}} {
		if f.value == nil || !(*f.value > 0 && *f.value < 1e6) {
			return fmt.Errorf("%s: %s must be above 0 and below 1000000", where, f.name)
		}
		*f.to = *f.value
	}
	if s.HighFrequencyFactor <= s.LowFrequencyFactor {
		return fmt.Errorf("%s: high_freq_factor %v is not above low_freq_factor %v", where, s.HighFrequencyFactor, s.LowFrequencyFactor)
	}
	c.Rope.Llama3 = s
	return nil
}

func deref(p *int) int {
	if p == nil {
		return 0
	}
	return *p
}
