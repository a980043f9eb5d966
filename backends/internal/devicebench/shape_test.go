package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// smallFamilies are the families' configurations with every size cut down.
func smallFamilies(t *testing.T) []shape {
	t.Helper()
	var all []shape
	for _, s := range []shape{qwen30B.some(2, mixture), qwen27B.some(4, hybrid), gptOSS.some(2, sinks)} {
		c := s.Family.Config
		if text, ok := c["text_config"].(map[string]any); ok {
			c = text
		}
		for name, value := range map[string]int{"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 4,
			"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "num_experts": 8, "num_local_experts": 8,
			"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16} {
			if _, has := c[name]; has {
				c[name] = value
			}
		}
		if rope, ok := c["rope_parameters"].(map[string]any); ok {
			rope["mrope_section"] = []int{1, 1, 0} // of 16 · 0.25 / 2 pairs
		}
		all = append(all, s)
	}
	return append(all, tiny.Shape)
}

// Every family's model is written from its configuration alone, in a form that loads: no tensor is missing and none is too many. No two rows of a matrix
// are equal, and no two matrices begin alike.
func TestProvide(t *testing.T) {
	for _, s := range smallFamilies(t) {
		t.Run(s.Name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "model")
			if err := s.provide(dir); err != nil {
				t.Fatal(err)
			}
			d, err := cpu.New(cpu.Options{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			m, err := model.Load(t.Context(), dir, d, architectures.All(), model.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m.Free()
		})
	}
	p := newPattern()
	var of [2]bytes.Buffer
	for i := range of {
		if err := p.write(&of[i], i, []int{4096, 1024}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for i := range of {
		for r := range 4096 {
			seen[string(of[i].Bytes()[2048*r:2048*(r+1)])] = true
		}
	}
	if len(seen) != 2*4096 {
		t.Errorf("%d rows of 8,192 are different", len(seen))
	}
	for i := 0; i < of[0].Len(); i += 2 {
		if exponent := int(of[0].Bytes()[i+1]&0x7f)<<1 | int(of[0].Bytes()[i])>>7; exponent != 127-6 {
			t.Fatalf("element %d has the exponent %d", i/2, exponent-127)
		}
	}
}

// A folder with the same model is taken as it is, one of another model is written anew, and one that has something else is left alone.
func TestProvideAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	s := tiny.Shape
	if err := s.provide(dir); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "own")
	write(t, own, "")
	if err := s.provide(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(own); err != nil {
		t.Errorf("the same model is written anew: %v", err)
	}
	s.Layers++
	if err := s.provide(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(own); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another model is not written anew: %v", err)
	}
	var config struct {
		Layers int `json:"num_hidden_layers"`
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(dir, "config.json"))), &config); err != nil || config.Layers != s.Layers {
		t.Errorf("it has %d layers, want %d: %v", config.Layers, s.Layers, err)
	}
	foreign := t.TempDir()
	write(t, filepath.Join(foreign, "mine"), "")
	if err := s.provide(foreign); err == nil || !strings.Contains(err.Error(), "is no folder of a model of devicebench") {
		t.Errorf("a folder with something else: %v", err)
	}
	if read(t, filepath.Join(foreign, "mine")) != "" {
		t.Error("it was changed")
	}
}
