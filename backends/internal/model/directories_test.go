package model_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

const (
	embedding = "model.embed_tokens.weight"
	head      = "lm_head.weight"
)

// matrix is a float32 tensor in memory.
type matrix struct {
	shape  []int
	values []float32
}

// flipped has the rows in the opposite order.
func (m matrix) flipped() matrix {
	width := m.shape[1]
	out := matrix{m.shape, nil}
	for row := m.shape[0] - 1; row >= 0; row-- {
		out.values = append(out.values, m.values[row*width:(row+1)*width]...)
	}
	return out
}

type tensors map[string]matrix

// with has one tensor more, or another one.
func (w tensors) with(name string, m matrix) tensors {
	w = maps.Clone(w)
	w[name] = m
	return w
}

// directory is a model's that tests fill.
type directory struct {
	*testing.T
	path string
}

func (d directory) file(name, content string) {
	d.Helper()
	if err := os.WriteFile(filepath.Join(d.path, name), []byte(content), 0o600); err != nil {
		d.Fatal(err)
	}
}

// whole writes tensors to one file.
func (d directory) whole(name string, w tensors) {
	d.Helper()
	var all []safetensors.Source
	for n, m := range w {
		all = append(all, safetensors.Float32Source(n, m.shape, func() ([]float32, error) { return m.values, nil }))
	}
	f, err := os.Create(filepath.Join(d.path, name))
	if err != nil {
		d.Fatal(err)
	}
	defer f.Close()
	if _, _, err := safetensors.Write(f, nil, all); err != nil {
		d.Fatal(err)
	}
}

func shard(i int) string { return fmt.Sprintf("model-0000%d-of-00002.safetensors", i+1) }

// index writes an index that places tensors, of which there are the given names, in shards.
func (d directory) index(names []string, place func(i int) int) {
	d.Helper()
	at := map[string]string{}
	for i, n := range names {
		at[n] = shard(place(i))
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{}, "weight_map": at})
	if err != nil {
		d.Fatal(err)
	}
	d.file("model.safetensors.index.json", string(b))
}

// sharded writes the first half of the tensors, by name, to one shard and the rest to another.
func (d directory) sharded(w tensors) {
	d.Helper()
	names := slices.Sorted(maps.Keys(w))
	half := len(names) / 2
	parts := [2]tensors{{}, {}}
	place := func(i int) int { return min(i/half, 1) }
	for i, n := range names {
		parts[place(i)][n] = w[n]
	}
	for i, p := range parts {
		d.whole(shard(i), p)
	}
	d.index(names, place)
}

// newDirectory has the configuration of the golden qwen3, and gives its tensors.
func newDirectory(t *testing.T) (directory, tensors) {
	t.Helper()
	d := directory{t, unpack(t, "qwen3")}
	f, err := safetensors.Open(filepath.Join(d.path, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tensors{}
	for _, n := range f.Names() {
		x, _ := f.Tensor(n)
		values, err := x.Float32s()
		if err != nil {
			t.Fatal(err)
		}
		w[n] = matrix{x.Shape, values}
	}
	if err := os.Remove(filepath.Join(d.path, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	return d, w
}

func even(i int) int { return i % 2 }

// TestDirectories: of files that do not agree the model is loaded that transformers loads (testdata/directories.py), or none.
func TestDirectories(t *testing.T) {
	raw, err := os.ReadFile("testdata/directories.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string][]float64
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	type made = func(d directory, w tensors)
	for _, c := range []struct {
		name string // in testdata/directories.json where it is loaded
		make made
		note string // part of a warning
		want string // part of the error of one that is refused
	}{
		{name: "two heads", make: func(d directory, w tensors) { d.whole("model.safetensors", w.with(head, w[embedding].flipped())) }, note: "tie_word_embeddings"},
		{name: "equal heads", make: func(d directory, w tensors) { d.whole("model.safetensors", w.with(head, w[embedding])) }},
		{name: "head only", make: func(d directory, w tensors) {
			w = w.with(head, w[embedding])
			delete(w, embedding)
			d.whole("model.safetensors", w)
		}},
		{name: "two heads in shards", make: func(d directory, w tensors) { d.sharded(w.with(head, w[embedding].flipped())) }, note: "tie_word_embeddings"},
		{name: "whole file beside other shards", make: func(d directory, w tensors) {
			d.sharded(w.with(embedding, w[embedding].flipped()))
			d.whole("model.safetensors", w)
		}, note: "model.safetensors.index.json beside it"},
		{name: "whole file beside a stale index", make: func(d directory, w tensors) {
			d.index(slices.Sorted(maps.Keys(w)), even)
			d.whole("model.safetensors", w)
		}, note: "model.safetensors.index.json beside it"},
		{name: "index that mixes shards up", make: func(d directory, w tensors) {
			d.sharded(w)
			d.index(slices.Sorted(maps.Keys(w)), even)
		}},
		{name: "index without a tensor", make: func(d directory, w tensors) {
			d.sharded(w)
			d.index(slices.DeleteFunc(slices.Sorted(maps.Keys(w)), func(n string) bool { return n == "model.norm.weight" }), even)
		}},
		{name: "another embedding in the other shard", make: func(d directory, w tensors) {
			d.sharded(w)
			names := slices.Sorted(maps.Keys(w))
			last := tensors{embedding: w[embedding].flipped()}
			for _, n := range names[len(names)/2:] {
				last[n] = w[n]
			}
			d.whole(shard(1), last)
		}, want: "shards of two versions are mixed"},
		{name: "adapter among the files", make: func(d directory, w tensors) {
			d.whole("model.safetensors", w)
			d.file("adapter_config.json", "{}")
		}, want: "`tinsmith import`"},
		{name: "names without the model's prefix", make: func(d directory, w tensors) {
			bare := tensors{}
			for n, m := range w {
				bare[strings.TrimPrefix(n, "model.")] = m
			}
			d.whole("model.safetensors", bare)
		}, want: "the files are of the bare model without its head"},
		{name: "other file in the configuration", make: func(d directory, w tensors) {
			d.whole("other.safetensors", w)
			set(d.T, d.path, "transformers_weights", "other.safetensors")
		}, want: `transformers_weights is "other.safetensors"`},
		{name: "configuration is a page", make: func(d directory, w tensors) {
			d.whole("model.safetensors", w)
			d.file("config.json", "<!DOCTYPE html><html></html>")
		}, want: "config.json: holds a web page"},
		{name: "configuration is a pointer", make: func(d directory, w tensors) {
			d.whole("model.safetensors", w)
			d.file("config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 700\n")
		}, want: "config.json: holds a Git LFS pointer in place of its 700 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, w := newDirectory(t)
			c.make(d, w)
			if c.want != "" {
				if _, _, err := load(t, d.path, model.LoadOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				return
			}
			b := newBench(t, d.path, tensor.Float32, 1)
			base := open(t, d.path, "base.safetensors")
			want, got := golden[c.name], b.scored(nil, base.ids("tokens.1"), base.ids("targets.1"), []int{7})
			if d := furthest(got, want); !(d <= 1e-4) {
				t.Errorf("log-probabilities are off by %g of transformers'", d)
			}
			if notes := strings.Join(b.Notes, "; "); (notes != "") != (c.note != "") || !strings.Contains(notes, c.note) {
				t.Errorf("warned of %q, want %q", notes, c.note)
			}
		})
	}
}

// TestTiedInAnotherType: heads of two types tie when their values are the same.
func TestTiedInAnotherType(t *testing.T) {
	for _, c := range []struct {
		name string
		last byte // of the head, in BF16
		tied bool
	}{{"equal", 0, true}, {"another value", 1, false}} {
		t.Run(c.name, func(t *testing.T) {
			d, w := newDirectory(t)
			w = w.with(embedding, matrix{w[embedding].shape, make([]float32, len(w[embedding].values))})
			d.whole(shard(0), w)
			f, err := os.Create(filepath.Join(d.path, shard(1)))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			zeros := make([]byte, 2*len(w[embedding].values))
			zeros[len(zeros)-2] = c.last
			if _, _, err := safetensors.Write(f, nil, []safetensors.Source{{Name: head, DType: "BF16", Shape: w[embedding].shape, Write: func(out io.Writer) error {
				_, err := out.Write(zeros)
				return err
			}}}); err != nil {
				t.Fatal(err)
			}
			d.index([]string{embedding, head}, even)
			if b := newBench(t, d.path, tensor.Float32, 1); b.Config.TieWordEmbeddings != c.tied {
				t.Errorf("tied: %v", b.Config.TieWordEmbeddings)
			}
		})
	}
}
