package engine

import (
	"encoding/json"
	"regexp"
	"testing"
)

// Keys that are compared with the ends of a name match what PEFT's expression of them matches.
func TestPatternKeys(t *testing.T) {
	keys := []string{
		"gate_proj", "experts.[0-9]+.gate_proj", "model.layers.1.mlp.experts.[0-9]+.gate_proj", "layers.1.mlp", "proj", "1.mlp.experts.12.gate_proj", "odel.layers.1.mlp.experts.12.gate_proj",
		".gate_proj", "12.gate_proj.", "...gate_proj", "^gate_proj", "^model.*gate_proj", `.*\.experts\..*`, "gate_proj|up_proj", "[0-9]+", "2.gate_proj", "experts.1..gate_proj",
	}
	names := []string{"model.layers.1.mlp.experts.12.gate_proj", "model.layers.1.mlp.experts.1.gate_proj", "model.layers.1.mlp.gate_proj", "gate_proj", "lm_head", "model.layers.11.mlp.experts.12.up_proj", "12"}
	matched := 0
	for _, key := range keys {
		raw, err := json.Marshal(map[string]float64{key: 7})
		if err != nil {
			t.Fatal(err)
		}
		p, err := parsePattern("rank_pattern", raw, func(float64) bool { return true }, "")
		if err != nil {
			t.Fatal(err)
		}
		whole := regexp.MustCompile(`^(.*\.)?(` + key + `)$`)
		for _, name := range names {
			if got, want := p.of(name, 1) == 7, whole.MatchString(name); got != want {
				t.Errorf("%s matches %s: %v, want %v", key, name, got, want)
			} else if got {
				matched++
			}
		}
	}
	if matched == 0 {
		t.Error("nothing matches")
	}
}
