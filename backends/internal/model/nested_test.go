package model_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen3"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// among makes a directory's model the text model among others: its tensors under model.language_model, its settings in text_config, and tensors of the others beside them.
func among(t *testing.T, dir string) {
	t.Helper()
	damage(t, dir, func(s *safetensors.Source, data []byte) ([]byte, bool) {
		if rest, ok := strings.CutPrefix(s.Name, "model."); ok {
			s.Name = "model.language_model." + rest
		}
		return data, true
	})
	path := filepath.Join(dir, "model.safetensors")
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	all := []safetensors.Source{{Name: "model.visual.patch_embed.proj.weight", DType: "BF16", Shape: []int{2, 3, 1, 1, 2}, Write: writes(make([]byte, 24))}, {Name: "mtp.fc.weight", DType: "F32", Shape: []int{1, 2}, Write: writes(make([]byte, 8))}}
	for _, name := range f.Names() {
		x, _ := f.Tensor(name)
		all = append(all, safetensors.Source{Name: name, DType: x.DType, Shape: x.Shape, Write: writes(slices.Clone(x.Data))})
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
	text := configOf(t, dir)
	outer := map[string]any{"architectures": text["architectures"], "tie_word_embeddings": text["tie_word_embeddings"], "vision_config": map[string]any{}}
	text = maps.Clone(text)
	delete(text, "architectures")
	outer["text_config"] = text
	raw, err := json.Marshal(outer)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNamesOfOthersRefused: transformers would load a plain family's model with such names as one without weights.
func TestNamesOfOthersRefused(t *testing.T) {
	dir := unpack(t, "qwen3")
	damage(t, dir, func(s *safetensors.Source, data []byte) ([]byte, bool) {
		s.Name = strings.Replace(s.Name, "model.", "model.language_model.", 1)
		return data, true
	})
	if _, _, err := load(t, dir, model.LoadOptions{}); err == nil || !strings.Contains(err.Error(), "of several kinds of input, which architecture Qwen3ForCausalLM does not have") {
		t.Errorf("error %v", err)
	}
}

// TestTextModelAmongOthers: the same model under other names is the same to the bit, and LoRA's modules have the names that they always have.
func TestTextModelAmongOthers(t *testing.T) {
	a := qwen3.Architecture()
	a.NestedConfig, a.Ignored = true, []string{"model.visual.", "mtp."}
	open := func(dir string, a model.Architecture) (*bench, error) {
		device, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := device.Close(); err != nil {
				t.Error(err)
			}
		})
		m, err := model.Load(context.Background(), dir, device, model.Registry{qwen3.Name: a}, model.LoadOptions{})
		if err != nil {
			return nil, err
		}
		t.Cleanup(m.Free)
		b := &bench{t: t, device: device, Model: m, work: m.NewWorkspace()}
		t.Cleanup(b.work.Free)
		if b.pages, err = m.NewPages(8); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.pages.Free)
		return b, nil
	}
	dir := unpack(t, "qwen3")
	plain := newBench(t, dir, tensor.Float32, 1)
	tokens := []int32{1, 2, 3, 4, 5, 6}
	want := plain.scored(nil, tokens, tokens, []int{6})
	among(t, dir)
	b, err := open(dir, a)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.scored(nil, tokens, tokens, []int{6}); !slices.Equal(got, want) {
		t.Error("log-probabilities differ")
	}
	if !slices.Equal(b.Modules, plain.Modules) || b.Parameters != plain.Parameters {
		t.Errorf("%d parameters, %d of the plain model; modules %v", b.Parameters, plain.Parameters, b.Modules[:1])
	}
	for _, c := range []struct {
		name   string
		change func(a *model.Architecture)
		want   string
	}{
		{"a family without others", func(a *model.Architecture) { a.NestedConfig = false }, "text_config is set, which a model of architecture Qwen3ForCausalLM does not have"},
		{"tensors that are not left out", func(a *model.Architecture) { a.Ignored = []string{"mtp."} }, `tensor "model.visual.patch_embed.proj.weight" is not known`},
	} {
		other := a
		c.change(&other)
		if _, err := open(dir, other); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	rename := func(s *safetensors.Source, data []byte) ([]byte, bool) {
		return data, s.Name != "model.language_model.layers.1.mlp.up_proj.weight"
	}
	damage(t, dir, rename)
	if _, err := open(dir, a); err == nil || !strings.Contains(err.Error(), `tensor "model.language_model.layers.1.mlp.up_proj.weight" is missing`) {
		t.Errorf("error %v", err)
	}
}
