package model

import (
	"fmt"
	"strings"
	"testing"
)

func TestModuleNames(t *testing.T) {
	const module = "model.layers.3.self_attn.q_proj"
	for _, c := range []struct {
		pattern string
		want    bool
	}{
		{module, true},
		{"model.layers.3", true},
		{"model", true},
		{"model.layers.*.self_attn", true},
		{"model.layers.?", true},
		{"model.layers.[0-5]", true},
		{"*q_proj", true},
		{"model.layers.30", false},
		{"model.layers.3.", false},
		{"q_proj", false},
		{"model.layers.[", false},
		{"re:.*", false},
		{"", false},
	} {
		n, err := newModuleNames([]string{"lm_head", c.pattern, "other"})
		if err != nil {
			t.Fatal(err)
		}
		if got := n.has(module); got != c.want {
			t.Errorf("%q: %v", c.pattern, got)
		}
	}
	if many, err := newModuleNames(nil); err != nil || many.has(module) || many.has("") {
		t.Errorf("none: %v", err)
	}
}

// TestManyModuleNames: a model names tens of thousands of modules one by one, but patterns no more than a few.
func TestManyModuleNames(t *testing.T) {
	for _, c := range []struct {
		end   string
		n     int
		fails bool
	}{{"", 100000, false}, {".*", mostGlobs, false}, {".*", mostGlobs + 1, true}} {
		j := plain()
		var names []string
		for i := range c.n {
			names = append(names, fmt.Sprint("a.", i, c.end))
		}
		j["quantization_config"] = map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": names}
		config, err := parseConfig(encode(t, j))
		if c.fails {
			if err == nil || !strings.Contains(err.Error(), "more than 256 patterns") {
				t.Errorf("%d: error %v", c.n, err)
			}
			continue
		}
		if err != nil || !config.Quantization.keeps("b", fmt.Sprint("a.", c.n-1, ".b")) || config.Quantization.keeps("b") {
			t.Errorf("%d names with %q: %v", c.n, c.end, err)
		}
	}
}
