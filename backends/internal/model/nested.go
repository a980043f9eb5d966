package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

const textConfigKey = "text_config"

// outerKeys are read from the whole model's configuration where it has them, and those of text_config not.
var outerKeys = []string{"architectures", "tie_word_embeddings", "quantization_config", "compression_config", "transformers_weights"}

// sizeKeys must not contradict those of text_config, which are the ones that are read.
var sizeKeys = []string{"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps", "hidden_act",
	"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"}

// textConfig gives the configuration of the text model: of a model of several kinds of input what text_config has, with the whole model's own keys; and tells whether it is such a one.
func textConfig(raw []byte) ([]byte, bool, error) {
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(raw, &outer); err != nil {
		return nil, false, err
	}
	if absent(outer[textConfigKey]) {
		return raw, false, nil
	}
	var inner map[string]json.RawMessage
	if err := json.Unmarshal(outer[textConfigKey], &inner); err != nil {
		return nil, false, fmt.Errorf("%s: %w", textConfigKey, err)
	}
	if inner[textConfigKey] != nil {
		return nil, false, fmt.Errorf("%s has a %s itself", textConfigKey, textConfigKey)
	}
	for _, k := range sizeKeys {
		if a, b := outer[k], inner[k]; !absent(a) && !absent(b) && !sameJSON(a, b) {
			return nil, false, fmt.Errorf("%s is %.40s, and %.40s in %s: they must be equal", k, a, b, textConfigKey)
		}
	}
	for _, k := range outerKeys {
		switch a, b := outer[k], inner[k]; {
		case absent(a):
			if k == "architectures" {
				delete(inner, k) // a part's name is not the model's
			}
		case slices.Contains(outerKeys[2:], k) && !absent(b) && !sameJSON(a, b):
			return nil, false, fmt.Errorf("%s is there twice, and otherwise in %s: they must be equal", k, textConfigKey)
		default:
			inner[k] = a
		}
	}
	merged, err := json.Marshal(inner)
	return merged, true, err
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// sameJSON tells whether two values are the same number, or equal but for white space.
func sameJSON(a, b json.RawMessage) bool {
	var p, q float64
	if json.Unmarshal(a, &p) == nil && json.Unmarshal(b, &q) == nil && !absent(a) && !absent(b) {
		return p == q
	}
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}
