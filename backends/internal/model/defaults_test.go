package model_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
)

// TestDefaults: keys that config.json does not have mean what they mean to the family's class in transformers.
func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		name, model string
		change      func(j map[string]any)
		want        string // of the error; "" = the model is as before
	}{
		{"SmolLM3 is tied", "smollm3", func(j map[string]any) { delete(j, "tie_word_embeddings") }, ""},
		{"SmolLM3 that is not tied", "smollm3", func(j map[string]any) { j["tie_word_embeddings"] = false }, `tensor "lm_head.weight" is missing`},
		{"Qwen3 is not tied", "qwen3", func(j map[string]any) { delete(j, "tie_word_embeddings") }, `tensor "lm_head.weight" is missing`},
		{"Qwen2 is not tied", "qwen2", func(j map[string]any) { delete(j, "tie_word_embeddings") }, `tensor "lm_head.weight" is missing`},
		{"Llama is not tied", "llama", func(j map[string]any) { delete(j, "tie_word_embeddings") }, ""},
		{"Phi-3 with yarn", "phi3", func(j map[string]any) {
			j["rope_scaling"] = map[string]any{"type": "yarn", "factor": 4, "rope_theta": 1e4, "partial_rotary_factor": 0.75}
		}, "rope_type is llama3 or yarn, only default and longrope are supported for Phi3ForCausalLM"},
		{"Phi-3 with llama3", "phi3", func(j map[string]any) {
			j["rope_parameters"] = map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 4096, "rope_theta": 1e4, "partial_rotary_factor": 0.75}
		}, "rope_type is llama3 or yarn"},
		{"Phi-3 with longrope under its older name", "phi3", func(j map[string]any) {
			factors := []int{1, 2, 3, 4, 5, 6}
			j["rope_scaling"] = map[string]any{"type": "su", "short_factor": factors, "long_factor": factors, "rope_theta": 1e4, "partial_rotary_factor": 0.75}
		}, ""},
		{"Mistral with longrope", "mistral", func(j map[string]any) {
			factors := []int{1, 2, 3, 4, 5, 6, 7, 8}
			j["rope_scaling"] = map[string]any{"type": "longrope", "short_factor": factors, "long_factor": factors, "original_max_position_embeddings": 16, "rope_theta": 1e4}
		}, "rope_type is longrope, only default, llama3 and yarn are supported for MistralForCausalLM"},
		{"Mistral with less positions than the window", "mistral", func(j map[string]any) { delete(j, "sliding_window"); j["max_position_embeddings"] = 4096 }, ""},
		{"Mistral that says it has none", "mistral", func(j map[string]any) { j["sliding_window"] = nil; j["max_position_embeddings"] = 4097 }, ""},
		{"Phi-3 has no window", "phi3", func(j map[string]any) { delete(j, "sliding_window"); j["max_position_embeddings"] = 4097 }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := unpack(t, c.model)
			_, before, err := load(t, dir, model.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			j := configOf(t, dir)
			c.change(j)
			raw, err := json.Marshal(j)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, parameters, err := load(t, dir, model.LoadOptions{})
			switch {
			case c.want == "" && (err != nil || parameters != before):
				t.Errorf("%d parameters, before %d: %v", parameters, before, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
