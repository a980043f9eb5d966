package model

import (
	"reflect"
	"strings"
	"testing"
)

// TestWindows: which layers attend to a window is what a family's class in transformers makes of the keys.
func TestWindows(t *testing.T) {
	const f, s = FullAttention, SlidingAttention
	type keys map[string]any
	for _, c := range []struct {
		name    string
		windows Windows
		keys    keys
		want    []string // types of layers
		refused string
	}{
		{"all, with a window", EveryWindow, keys{"sliding_window": 9}, []string{s, s, s, s}, ""},
		{"all, with the family's window", EveryWindow, keys{}, []string{s, s, s, s}, ""},
		{"all, with none", EveryWindow, keys{"sliding_window": nil}, []string{f, f, f, f}, ""},
		{"all, with one of all positions", EveryWindow, keys{"sliding_window": 100}, []string{f, f, f, f}, ""},
		{"all, with one of no position", EveryWindow, keys{"sliding_window": 0}, nil, "sliding_window is 0, it must be at least 1"},
		{"all, but not by layer_types", EveryWindow, keys{"sliding_window": 9, "layer_types": []string{s, f, s, s}}, nil, "layer_types[1] is full_attention, but sliding_window is 9, for all layers"},
		{"all, also by layer_types", EveryWindow, keys{"sliding_window": 9, "layer_types": []string{s, s, s, s}}, []string{s, s, s, s}, ""},
		{"a type without a window", EveryWindow, keys{"sliding_window": nil, "layer_types": []string{f, f, s, f}}, nil, "layer_types[2] is sliding_attention, but"},
		{"where it is used", UsedWindows, keys{"use_sliding_window": true, "sliding_window": 9}, []string{s, s, s, s}, ""},
		{"where it is not used", UsedWindows, keys{"sliding_window": 9}, []string{f, f, f, f}, ""},
		{"upper layers", UpperWindows, keys{"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 3}, []string{f, f, f, s}, ""},
		{"upper layers, of which there are none", UpperWindows, keys{"use_sliding_window": true, "sliding_window": 9}, []string{f, f, f, f}, ""},
		{"upper layers, with the family's window", UpperWindows, keys{"use_sliding_window": true, "max_window_layers": 0}, []string{s, s, s, s}, ""},
		{"upper layers that are not used", UpperWindows, keys{"use_sliding_window": false, "sliding_window": 9, "max_window_layers": 0}, []string{f, f, f, f}, ""},
		{"upper layers without a window", UpperWindows, keys{"use_sliding_window": true, "sliding_window": nil, "max_window_layers": 0}, []string{f, f, f, f}, ""},
		{"types go before", UpperWindows, keys{"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 3, "layer_types": []string{s, f, s, f}}, []string{s, f, s, f}, ""},
		{"types of what is not used", UpperWindows, keys{"sliding_window": 9, "layer_types": []string{s, f, s, f}}, nil, "layer_types[0] is sliding_attention, but use_sliding_window is not true"},
		{"no number of layers", UpperWindows, keys{"use_sliding_window": true, "max_window_layers": -1}, nil, "max_window_layers is -1"},
		{"still layers", StillWindows, keys{"use_sliding_window": true, "sliding_window": 9, "no_rope_layers": []int{1, 0, 1, 0}}, []string{f, s, f, s}, ""},
		{"still layers that are not used", StillWindows, keys{"sliding_window": 9, "no_rope_layers": []int{1, 0, 1, 0}}, []string{f, f, f, f}, ""},
		{"too wide", EveryWindow, keys{"sliding_window": 40000, "max_position_embeddings": 50000}, nil, "sliding_window is 40000, at most 32768"},
		{"of a family without", TypedWindows, keys{"use_sliding_window": true}, nil, "a sliding window is in use"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := plain()
			j["num_hidden_layers"] = 4
			for k, v := range c.keys {
				j[k] = v
			}
			registry := Registry{"Qwen3ForCausalLM": {Defaults: Defaults{Windows: c.windows, Window: 30}}}
			config, err := registry.parseConfig(encode(t, j))
			if err == nil {
				err = config.Check(Features{StillLayers: true, Window: c.windows != TypedWindows})
			}
			switch {
			case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("error %v, want %q", err, c.refused)
			case c.refused == "" && (err != nil || !reflect.DeepEqual(config.LayerTypes, c.want)):
				t.Errorf("%+v, want %v: %v", config, c.want, err)
			}
		})
	}
}
