package model_test

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// hybrids lists the folders of models with linear attention.
func hybrids(t *testing.T) []string {
	t.Helper()
	d, err := openDevice(t, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if oneGolden != "" || !d.HasRecurrence() {
		return nil
	}
	return []string{unpack(t, "qwen3.5"), unpack(t, "qwen3.5-moe"), unpack(t, "qwen3-next")}
}

// TestEveryCut: a prompt gives the same bits wherever it is cut, whether a slot goes on or a copy of it does.
func TestEveryCut(t *testing.T) {
	for _, dir := range hybrids(t) {
		for _, d := range dtypes {
			t.Run(filepath.Base(dir)+"/"+d.String(), func(t *testing.T) {
				b := newBench(t, dir, d, 2)
				r := rand.New(rand.NewPCG(21, 22))
				const n = 129
				w := b.randomAdapter(8, 3, true, true, true)
				tokens, targets := b.randomTokens(r, n), b.randomTokens(r, n)
				want := b.train(model.TrainOptions{}, b.example(w, tokens, targets, nil))[0].Logprobs
				for cut := range n + 1 {
					var pieces []int
					for _, p := range []int{cut, n - cut} {
						if p > 0 {
							pieces = append(pieces, p)
						}
					}
					if got := b.scored(w, tokens, targets, pieces); !slices.Equal(got, want) {
						t.Errorf("cut at %d: log-probabilities differ from training's", cut)
					}
				}
			})
		}
	}
}

// TestStateCopies has several sequences go on from copies of one's state, each with tokens of its own, while that one goes on too.
func TestStateCopies(t *testing.T) {
	b := newBench(t, unpack(t, "qwen3.5"), tensor.Float32, 2)
	r := rand.New(rand.NewPCG(23, 24))
	const shared, more, count = 64, 9, 3
	prompt := b.randomTokens(r, shared)
	var all, targets [][]int32
	var want [][]float32
	for range count {
		all, targets = append(all, append(slices.Clone(prompt), b.randomTokens(r, more)...)), append(targets, b.randomTokens(r, shared+more))
		want = append(want, b.scored(nil, all[len(all)-1], targets[len(all)-1], []int{shared + more})[shared:])
	}
	page := b.take(shared)
	b.begin(1)
	if _, err := b.Forward(b.work, model.Batch{Sequences: []model.Sequence{{Tokens: prompt, Pages: page, Slot: 1}}, Pages: b.pages, States: b.states}, nil); err != nil {
		t.Fatal(err)
	}
	batch := model.Batch{Pages: b.pages, States: b.states}
	var rows, wanted []int32
	for i := range count {
		if err := b.states.Copy(1+i, 1); err != nil {
			t.Fatal(err)
		}
		batch.Sequences = append(batch.Sequences, model.Sequence{Tokens: all[i][shared:], First: shared, Pages: append(slices.Clone(page), b.take(more)...), Slot: 1 + i})
		wanted = append(wanted, targets[i][shared:]...)
	}
	for i := range wanted {
		rows = append(rows, int32(i))
	}
	h, err := b.Forward(b.work, batch, rows)
	if err != nil {
		t.Fatal(err)
	}
	var got []float32
	if err := b.Logits(b.work, h, func(row int, logits tensor.Tensor) error {
		lp, _, err := b.Logprobs(b.work, logits, wanted[row:row+logits.Rows], 1)
		got = append(got, lp...)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, slices.Concat(want...)) {
		t.Error("log-probabilities differ from those of whole sequences")
	}
}

// TestHybridRefused: what a model with linear attention cannot be, by name.
func TestHybridRefused(t *testing.T) {
	load := func(devices int, change func(config map[string]any)) error {
		dir := unpack(t, "qwen3.5")
		raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(raw, &config); err != nil {
			t.Fatal(err)
		}
		change(config)
		if raw, err = json.Marshal(config); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		var all []tensor.Device
		for range devices {
			d, err := openDevice(t, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}()
			all = append(all, d)
		}
		models, err := model.LoadCut(t.Context(), dir, all, architectures.All(), model.LoadOptions{})
		for _, m := range models {
			m.Free()
		}
		return err
	}
	if err := load(1, func(map[string]any) {}); err != nil {
		t.Fatal(err)
	}
	if err := load(3, func(map[string]any) {}); !errors.Is(err, model.ErrCut) || !strings.Contains(err.Error(), "key heads of linear attention") {
		t.Errorf("three devices: %v", err)
	}
	for key, value := range map[string]any{
		"attn_output_gate": false, "linear_conv_kernel_dim": 9, "linear_key_head_dim": 512, "linear_value_head_dim": 512, "linear_num_value_heads": 3, "layer_types": []string{"full_attention"}, "linear_num_key_heads": nil,
		"mamba_ssm_dtype": "bfloat16", "attention_bias": true, "num_experts": 4,
	} {
		err := load(1, func(config map[string]any) {
			if config[key] = value; key == "num_experts" {
				config["num_experts_per_tok"] = 2
			}
		})
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s %v: %v", key, value, err)
		}
	}
	for key, want := range map[string]string{"linear_num_key_heads": "in_proj_qkv", "linear_conv_kernel_dim": "conv1d", "num_attention_heads": "q_proj"} {
		err := load(1, func(config map[string]any) {
			config[key] = config[key].(float64) / 2
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("half of %s: %v", key, err)
		}
	}
}

// TestStatesRefused: what cannot go on from where it stands, and slots that are not there.
func TestStatesRefused(t *testing.T) {
	b := newBench(t, unpack(t, "qwen3.5"), tensor.Float32, 1)
	one := func(s model.Sequence, states *model.States) error {
		s.Tokens, s.Pages = []int32{1}, b.take(70)
		_, err := b.Forward(b.work, model.Batch{Sequences: []model.Sequence{s}, Pages: b.pages, States: states}, nil)
		return err
	}
	two := model.Batch{Sequences: []model.Sequence{{Tokens: []int32{1}, Pages: b.take(1), Slot: 2}, {Tokens: []int32{1}, Pages: b.take(1), Slot: 2}}, Pages: b.pages, States: b.states}
	_, sameSlot := b.Forward(b.work, two, nil)
	_, noSlots := newBench(t, unpack(t, "qwen3"), tensor.Float32, 1).NewStates(1)
	for name, err := range map[string]error{
		"no states":    one(model.Sequence{First: 3}, nil),
		"slot":         one(model.Sequence{Slot: b.states.Count()}, b.states),
		"slot below":   one(model.Sequence{Slot: -1}, b.states),
		"slot twice":   sameSlot,
		"other models": noSlots,
		"zero":         b.states.Zero(-1),
		"copy from":    b.states.Copy(0, b.states.Count()),
		"copy to":      b.states.Copy(b.states.Count(), 0),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
