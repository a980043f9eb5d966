package engine

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/plugins"
)

// peftConfig is what Hugging Face PEFT needs of adapter_config.json.
type peftConfig struct {
	Type          string   `json:"peft_type"`
	Task          string   `json:"task_type"`
	BaseModel     string   `json:"base_model_name_or_path"`
	Rank          int      `json:"r"`
	Alpha         float64  `json:"lora_alpha"`
	Dropout       float64  `json:"lora_dropout"`
	Bias          string   `json:"bias"`
	TargetModules []string `json:"target_modules"`
	InferenceMode bool     `json:"inference_mode"`
}

// encodePEFT writes the configuration of an adapter of ours.
func encodePEFT(baseModel string, layout *lora.Layout) ([]byte, error) {
	return json.MarshalIndent(peftConfig{
		Type: "LORA", Task: "CAUSAL_LM", BaseModel: baseModel, Rank: layout.Rank, Alpha: lora.Alpha, Bias: "none", TargetModules: layout.Kinds(), InferenceMode: true,
	}, "", "  ")
}

// scaling is what a PEFT configuration says about an adapter's arithmetic.
type scaling struct {
	rank   int
	factor float64 // B times this makes the scale 32 / rank
}

// Bounds of lora_alpha: far outside of what is used, and inside the range of float32 after rescaling.
const (
	minAlpha = 1e-6
	maxAlpha = 1e9
)

// peftRefused are options that change an adapter's arithmetic in ways that this engine does not have, each with the values that leave it as it is.
var peftRefused = map[string][]string{
	"use_dora": {"false"}, "lora_bias": {"false"}, "bias": {`"none"`}, "modules_to_save": {"[]"}, "rank_pattern": {"{}"}, "alpha_pattern": {"{}"},
	"fan_in_fan_out": {"false"}, "layer_replication": {"[]"}, "trainable_token_indices": {"[]"}, "use_qalora": {"false"}, "alora_invocation_tokens": {"[]"},
	"target_parameters": {"[]"}, "megatron_config": {}, "arrow_config": {},
}

// decodePEFT reads the configuration of an adapter of any origin, and refuses by name what is not plain LoRA.
func decodePEFT(text []byte, maxRank int) (scaling, error) {
	refuse := func(format string, args ...any) (scaling, error) {
		return scaling{}, plugins.Invalidf("path", plugins.AdapterConfigFile+": "+format, args...)
	}
	var options map[string]json.RawMessage
	if err := json.Unmarshal(text, &options); err != nil {
		return refuse("%v", err)
	}
	var c struct {
		Type   string  `json:"peft_type"`
		Rank   int     `json:"r"`
		Alpha  float64 `json:"lora_alpha"`
		Rooted bool    `json:"use_rslora"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return refuse("%v", err)
	}
	if c.Type != "LORA" {
		return refuse("peft_type %.50q is not supported: LORA", c.Type)
	}
	if c.Rank < 1 || c.Rank > maxRank {
		return refuse("r %d is not allowed: 1 to %d", c.Rank, maxRank)
	}
	if !(c.Alpha >= minAlpha && c.Alpha <= maxAlpha) {
		return refuse("lora_alpha %v is not allowed: %v to %v", c.Alpha, minAlpha, maxAlpha)
	}
	for _, name := range sortedKeys(peftRefused) {
		value := strings.Join(strings.Fields(string(options[name])), "")
		if value != "" && value != "null" && !slices.Contains(peftRefused[name], value) {
			return refuse("%s %.100s is not supported: plain LoRA only", name, value)
		}
	}
	s := scaling{rank: c.Rank, factor: c.Alpha / lora.Alpha}
	if c.Rooted { // the scale is alpha / √r
		s.factor *= math.Sqrt(float64(c.Rank))
	}
	return s, nil
}
