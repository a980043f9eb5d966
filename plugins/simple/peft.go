package simple

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

// peftConfig is what Hugging Face PEFT needs of adapter_config.json.
type peftConfig struct {
	PEFTType      string   `json:"peft_type"`
	TaskType      string   `json:"task_type"`
	BaseModel     string   `json:"base_model_name_or_path"`
	Rank          int      `json:"r"`
	Alpha         float64  `json:"lora_alpha"`
	Rooted        bool     `json:"use_rslora,omitempty"`
	Dropout       float64  `json:"lora_dropout"`
	Bias          string   `json:"bias"`
	TargetModules []string `json:"target_modules"`
	InferenceMode bool     `json:"inference_mode"`
}

// peftRead are the keys that are read, or that change nothing of what an adapter computes, whatever their value.
var peftRead = strings.Fields(`peft_type task_type base_model_name_or_path r lora_alpha use_rslora lora_dropout target_modules exclude_modules inference_mode auto_mapping revision peft_version
	layers_to_transform layers_pattern qalora_group_size ensure_weight_tying`)

// peftOwnBase are the values of init_lora_weights under which the base model stays as it is.
var peftOwnBase = []string{"true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`}

// checkPEFT refuses by name what is not plain LoRA of one rank and scale on the base as it is: every key that is not known to be harmless must be empty.
func checkPEFT(text []byte) error {
	var options map[string]json.RawMessage
	if err := json.Unmarshal(text, &options); err != nil {
		return plugins.Invalidf("path", "%s: %v", plugins.AdapterConfigFile, err)
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		value := strings.Join(strings.Fields(string(options[name])), "")
		switch {
		case slices.Contains(peftRead, name), slices.Contains([]string{"null", "false", "{}", "[]", `"none"`}, value):
		case name == "init_lora_weights" && slices.Contains(peftOwnBase, value):
		default:
			return plugins.Invalidf("path", "%s: %.100s %.100s is not supported: plain LoRA only", plugins.AdapterConfigFile, name, value)
		}
	}
	return nil
}
