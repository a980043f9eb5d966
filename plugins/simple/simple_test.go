package simple

import (
	"math"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// TestPhilox compares with the known-answer vectors that come with Random123.
func TestPhilox(t *testing.T) {
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			counter: [4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, key: [2]uint32{0xffffffff, 0xffffffff},
			want: [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			counter: [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, key: [2]uint32{0xa4093822, 0x299f31d0},
			want: [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

// TestStoppedGradients checks the losses whose gradient is by definition not the derivative of their value.
func TestStoppedGradients(t *testing.T) {
	d := plugins.Datum{
		Tokens: []int32{1, 2, 3}, Targets: []int32{2, 3, 4}, K: 1,
		Logprobs: []float32{-1, -3, -1}, Advantages: []float32{2, -1, 0}, SequenceRatioMask: []float32{1, 1, 0},
	}
	lp := []float64{-1.5, -0.5, -2}
	s := math.Exp(((-1.5 + 1) + (-0.5 + 3)) / 2)
	for _, c := range []struct {
		loss   string
		config map[string]float64
		want   []float64
	}{
		{"cispo", map[string]float64{plugins.ClipLow: 0, plugins.ClipHigh: 4}, []float64{-2 * math.Exp(-0.5), 4, 0}},
		{"stable_reinforce", map[string]float64{plugins.RatioCap: 2}, []float64{-2 * math.Exp(-0.5), 2, 0}},
		{"gspo", map[string]float64{plugins.ClipLow: 0.8, plugins.ClipHigh: 1.2}, []float64{0, s, 0}},
	} {
		t.Run(c.loss, func(t *testing.T) {
			_, got := lossOf(c.loss, c.config, &d, lp)
			for i := range got {
				if math.Abs(got[i]-c.want[i]) > 1e-12 {
					t.Errorf("position %d: %v, want %v", i, got[i], c.want[i])
				}
			}
		})
	}
}

// TestFilters checks which tokens top-k, top-p and min-p leave.
func TestFilters(t *testing.T) {
	row := []float64{math.Log(0.1), math.Log(0.4), math.Log(0.3), math.Log(0.2)}
	for _, c := range []struct {
		name string
		req  plugins.SampleRequest
		want []int32
	}{
		{"none", plugins.SampleRequest{Temperature: 1, TopP: 1}, []int32{0, 1, 2, 3}},
		{"greedy", plugins.SampleRequest{Temperature: 0, TopP: 1}, []int32{1}},
		{"top-k 2", plugins.SampleRequest{Temperature: 1, TopP: 1, TopK: 2}, []int32{1, 2}},
		{"top-p 0.6", plugins.SampleRequest{Temperature: 1, TopP: 0.6}, []int32{1, 2}},
		{"top-p after top-k", plugins.SampleRequest{Temperature: 1, TopP: 0.5, TopK: 2}, []int32{1}},
		{"min-p 0.6", plugins.SampleRequest{Temperature: 1, TopP: 1, MinP: 0.6}, []int32{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := map[int32]bool{}
			for i := range 1000 {
				seen[drawFrom(&c.req, row, false, float64(i)/1000)] = true
			}
			if len(seen) != len(c.want) {
				t.Errorf("drawn tokens %v, want %v", seen, c.want)
			}
			for _, w := range c.want {
				if !seen[w] {
					t.Errorf("token %d was never drawn", w)
				}
			}
		})
	}
}

// TestCheckPEFT: what is more than plain LoRA is refused by name.
func TestCheckPEFT(t *testing.T) {
	plain := `"peft_type": "LORA", "r": 8, "lora_alpha": 16, "lora_dropout": 0.1, "bias": "none", "target_modules": ["q_proj"], "rank_pattern": {}, "use_dora": false, "modules_to_save": null`
	for more, refused := range map[string]string{
		``: "", `, "init_lora_weights": true`: "", `, "init_lora_weights": "gaussian"`: "", `, "qalora_group_size": 16`: "",
		`, "use_dora": true`:                 "use_dora",
		`, "rank_pattern": {"q_proj": 4}`:    "rank_pattern",
		`, "alpha_pattern": {"q_proj": 4}`:   "alpha_pattern",
		`, "init_lora_weights": "pissa"`:     "init_lora_weights",
		`, "modules_to_save": ["lm_head"]`:   "modules_to_save",
		`, "some_later_config": {"a": 1}`:    "some_later_config",
		`, "target_parameters": ["experts"]`: "target_parameters",
	} {
		err := checkPEFT([]byte("{" + plain + more + "}"))
		if (err == nil) != (refused == "") || err != nil && !strings.Contains(err.Error(), refused+" ") {
			t.Errorf("with %s: error %v, want one that names %q", more, err, refused)
		}
	}
}
