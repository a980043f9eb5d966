package model_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// rewrite copies a model with some tensors changed: to another shape with the same data, to another name, or away.
func rewrite(t *testing.T, dir string, change func(*safetensors.Source) bool) {
	t.Helper()
	path := filepath.Join(dir, "model.safetensors")
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []safetensors.Source
	for _, name := range f.Names() {
		x, _ := f.Tensor(name)
		values, err := x.Float32s()
		if err != nil {
			t.Fatal(err)
		}
		s := safetensors.Float32Source(name, x.Shape, func() ([]float32, error) { return values, nil })
		if change(&s) {
			all = append(all, s)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, _, err := safetensors.Write(out, nil, all); err != nil {
		t.Fatal(err)
	}
}

// configOf reads config.json.
func configOf(t *testing.T, dir string) map[string]any {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// set changes a value of config.json.
func set(t *testing.T, dir, key string, value any) {
	t.Helper()
	c := configOf(t, dir)
	c[key] = value
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// writes is what a tensor to be written does with bytes in memory.
func writes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

func load(t *testing.T, dir string, o model.LoadOptions) (hash string, parameters int64, err error) {
	t.Helper()
	device, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := device.Close(); err != nil { // a failed load must have freed everything
			t.Error(err)
		}
	}()
	m, err := model.Load(context.Background(), dir, device, architectures.All(), o)
	if err != nil {
		return "", 0, err
	}
	defer m.Free()
	return m.Hash, m.Parameters, nil
}

func TestLoadRefuses(t *testing.T) {
	const q = "model.layers.1.self_attn.q_proj.weight"
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   string
	}{
		{"missing tensor", func(t *testing.T, dir string) {
			rewrite(t, dir, func(s *safetensors.Source) bool { return s.Name != q })
		}, `tensor "` + q + `" is missing`},
		{"wrong shape", func(t *testing.T, dir string) {
			rewrite(t, dir, func(s *safetensors.Source) bool {
				if s.Name == q {
					s.Shape = []int{s.Shape[1], s.Shape[0]}
				}
				return true
			})
		}, `tensor "` + q + `" has shape [64 96], the configuration makes it [96 64]`},
		{"wrong type", func(t *testing.T, dir string) {
			rewrite(t, dir, func(s *safetensors.Source) bool {
				if s.Name == q {
					s.DType = "I32"
				}
				return true
			})
		}, `tensor "` + q + `" has type I32`},
		{"a value that is no number", func(t *testing.T, dir string) {
			rewrite(t, dir, func(s *safetensors.Source) bool {
				if s.Name == q {
					values := make([]float32, s.Shape[0]*s.Shape[1])
					values[len(values)-1] = float32(math.NaN())
					*s = safetensors.Float32Source(s.Name, s.Shape, func() ([]float32, error) { return values, nil })
				}
				return true
			})
		}, `tensor "` + q + `" has a value that is not finite`},
		{"unknown tensor", func(t *testing.T, dir string) {
			rewrite(t, dir, func(s *safetensors.Source) bool {
				s.Name = strings.Replace(s.Name, "layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.other", 1)
				return true
			})
		}, "is missing"},
		{"one tensor too many", func(t *testing.T, dir string) { set(t, dir, "num_hidden_layers", 2); set(t, dir, "layer_types", nil) }, "is not known to architecture Qwen3ForCausalLM"},
		{"another family", func(t *testing.T, dir string) { set(t, dir, "architectures", []string{"Gemma3ForCausalLM"}) },
			`architecture "Gemma3ForCausalLM" is not supported: the supported ones are GptOssForCausalLM, LlamaForCausalLM, `},
		{"attention bias", func(t *testing.T, dir string) { set(t, dir, "attention_bias", true) }, "attention_bias is true"},
		{"no weights", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "model.safetensors")) }, "neither model.safetensors nor"},
		{"no configuration", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "config.json")) }, "config.json"},
		{"untied without a head", func(t *testing.T, dir string) { set(t, dir, "tie_word_embeddings", false) }, `tensor "lm_head.weight" is missing`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := unpack(t, "qwen3")
			c.damage(t, dir)
			if _, _, err := load(t, dir, model.LoadOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	if _, _, err := load(t, unpack(t, "qwen3"), model.LoadOptions{MaxContext: 2000}); err == nil || !strings.Contains(err.Error(), "max_position_embeddings") {
		t.Errorf("a context beyond the model's: %v", err)
	}
}

func TestLoad(t *testing.T) {
	dir := unpack(t, "qwen3")
	var last, all int64
	calls := 0
	hash, parameters, err := load(t, dir, model.LoadOptions{Progress: func(done, total int64) {
		if done < last || done > total {
			t.Errorf("progress went from %d to %d of %d", last, done, total)
		}
		last, all, calls = done, total, calls+1
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(hash) != 64 || parameters*4 != all || last != all || calls < 10 {
		t.Errorf("hash %q, %d parameters, progress %d of %d in %d calls", hash, parameters, last, all, calls)
	}
	again, _, err := load(t, dir, model.LoadOptions{DType: tensor.BFloat16})
	if err != nil || again != hash {
		t.Errorf("hash %s then %s: %v", hash, again, err)
	}
	set(t, dir, "rope_theta", 5)
	if other, _, err := load(t, dir, model.LoadOptions{}); err != nil || other == hash {
		t.Errorf("the hash does not see the configuration: %v", err)
	}
}

// TestHeadSavedUnderItsOwnName: a tied matrix may be in the file as lm_head.weight only.
func TestHeadSavedUnderItsOwnName(t *testing.T) {
	dir := unpack(t, "qwen3")
	rewrite(t, dir, func(s *safetensors.Source) bool {
		s.Name = strings.Replace(s.Name, "model.embed_tokens.weight", "lm_head.weight", 1)
		return true
	})
	if _, _, err := load(t, dir, model.LoadOptions{}); err != nil {
		t.Error(err)
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	device, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err = model.Load(ctx, unpack(t, "qwen3"), device, architectures.All(), model.LoadOptions{Progress: func(int64, int64) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if err := device.Close(); err != nil {
		t.Error(err)
	}
}

func TestPassesRefuse(t *testing.T) {
	b := newBench(t, unpack(t, "qwen3"), tensor.Float32, 1)
	for _, c := range []struct {
		name, want string
		s          model.Sequence
		rows       []int32
	}{
		{"no tokens", "no tokens", model.Sequence{Pages: []int32{0}}, nil},
		{"token beyond the vocabulary", "token 1 is 512", model.Sequence{Tokens: []int32{1, 512}, Pages: []int32{0}}, nil},
		{"negative token", "token 0 is -1", model.Sequence{Tokens: []int32{-1}, Pages: []int32{0}}, nil},
		{"too few pages", "do not hold", model.Sequence{Tokens: []int32{1}, First: 64, Pages: []int32{0}}, nil},
		{"unknown page", "page 64 is not in", model.Sequence{Tokens: []int32{1}, Pages: []int32{64}}, nil},
		{"beyond the context", "not within the context", model.Sequence{Tokens: []int32{1}, First: 1024, Pages: make([]int32, 17)}, nil},
		{"before the start", "not within the context", model.Sequence{Tokens: []int32{1}, First: -1, Pages: []int32{0}}, nil},
		{"row beyond the batch", "selected row 1", model.Sequence{Tokens: []int32{1}, Pages: []int32{0}}, []int32{1}},
		{"rows that do not ascend", "selected row 0", model.Sequence{Tokens: []int32{1, 2}, Pages: []int32{0}}, []int32{1, 0}},
	} {
		if _, err := b.Forward(b.work, model.Batch{Sequences: []model.Sequence{c.s}, Pages: b.pages}, c.rows); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	w := b.randomAdapter(4, 1, true, true, true)
	good := func() model.Example {
		e := b.example(w, []int32{1, 2}, []int32{2, 3}, []float32{1, 1})
		e.Gradient = b.gradient(w.Layout())
		return e
	}
	for _, c := range []struct {
		name, want string
		change     func(*model.Example)
	}{
		{"position", "starts at position 1", func(e *model.Example) { e.First = 1 }},
		{"targets", "3 targets for 2 tokens", func(e *model.Example) { e.Targets = []int32{1, 2, 3} }},
		{"target beyond the vocabulary", "target 1 is 512", func(e *model.Example) { e.Targets = []int32{1, 512} }},
		{"inputs", "needs 2 values of weights", func(e *model.Example) { e.Inputs.Weights = nil }},
		{"gradient of another adapter", "not of the adapter's layout", func(e *model.Example) { e.Gradient = b.gradient(b.randomAdapter(2, 1, true, true, true).Layout()) }},
	} {
		e := good()
		c.change(&e)
		if _, err := b.Train(b.work, b.pages, []model.Example{e}, model.TrainOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}
