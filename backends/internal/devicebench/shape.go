package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
)

// shape is the size of a model: dense and of the family Qwen3, unless another one is named.
type shape struct {
	Name                                                                 string
	Vocabulary, Hidden, Intermediate, Layers, Heads, KeyHeads, HeadWidth int
	Tied                                                                 bool    // the head is the embedding
	Family                                                               *family `json:",omitempty"`
}

var (
	qwen06B = shape{"Qwen3-0.6B", 151936, 1024, 3072, 28, 16, 8, 128, true, nil}
	qwen8B  = shape{"Qwen3-8B", 151936, 4096, 12288, 36, 32, 8, 128, false, nil}
)

// longest is the context of the models: more than is measured.
const longest = 8192

// matrix is a tensor of a model.
type matrix struct {
	name  string
	shape []int
}

// The part of a tensor's name that says what it is.
const (
	embeddingTensor = "embed_tokens.weight"
	expertsTensor   = ".mlp.experts."
)

// bytes is what a decoding step of so many tokens reads of the weights, in bfloat16: all but an embedding that is not the head, and of experts those that
// are chosen.
func (s shape) bytes(tokens int) (int64, error) {
	all, err := s.matrices()
	var n float64
	for _, m := range all {
		elements := 1.0
		for _, d := range m.shape {
			elements *= float64(d)
		}
		if f := s.Family; f != nil && f.Experts > 0 && strings.Contains(m.name, expertsTensor) {
			elements *= f.chosen(tokens) / float64(f.Experts)
		}
		if s.Tied || !strings.HasSuffix(m.name, embeddingTensor) {
			n += 2 * elements
		}
	}
	return int64(n), err
}

// positionBytes is the keys and values of one token and layer, in bfloat16.
func (s shape) positionBytes() int64 { return int64(2 * 2 * s.KeyHeads * s.HeadWidth) }

// made says in a folder what model it has, and by which rule the weights were made: of another one it is not taken.
const (
	made     = "devicebench.json"
	makeRule = 2
)

// provide writes the model into a folder that may have it already. A folder with the model's mark is whole, also if a process that wrote it was ended.
func (s shape) provide(dir string) error {
	config, err := s.config()
	if err != nil {
		return err
	}
	mark := fmt.Appendf(nil, `{"rule": %d, "config": %s}`, makeRule, config)
	switch there, err := os.ReadFile(filepath.Join(dir, made)); {
	case err == nil && bytes.Equal(there, mark):
		return nil
	case err == nil: // another one of that name
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		if _, err := os.Stat(dir); err == nil {
			return fmt.Errorf("%s is no folder of a model of devicebench: it has no %s", dir, made)
		}
	}
	part := dir + ".part"
	if err := errors.Join(os.RemoveAll(part), os.Mkdir(part, 0o700)); err != nil {
		return err
	}
	if err := s.write(part, config); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	if err := os.WriteFile(filepath.Join(part, made), mark, 0o600); err != nil {
		return err
	}
	return os.Rename(part, dir)
}

// write writes a model directory with random weights in bfloat16, ±[2⁻⁶, 2⁻⁵) in matrices and 1 in norms and biases, in as many files at once as there are
// processors.
func (s shape) write(dir string, config []byte) error {
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		return err
	}
	all, err := s.matrices()
	if err != nil {
		return err
	}
	files := make([][]safetensors.Source, min(runtime.GOMAXPROCS(0), mostFiles))
	sizes, place, pattern := make([]int, len(files)), map[string]string{}, newPattern()
	slices.SortStableFunc(all, func(a, b matrix) int { return cmp.Compare(b.elements(), a.elements()) })
	for i, m := range all { // the largest first, each to the file that has least
		k := slices.Index(sizes, slices.Min(sizes))
		files[k] = append(files[k], safetensors.Source{Name: m.name, DType: "BF16", Shape: m.shape,
			Write: func(w io.Writer) error { return pattern.write(w, i, m.shape) }})
		sizes[k] += m.elements()
		place[m.name] = shardName(k, len(files))
	}
	if err := together(len(files), func(i int) error {
		f, err := os.Create(filepath.Join(dir, shardName(i, len(files))))
		if err != nil {
			return err
		}
		_, _, err = safetensors.Write(f, nil, files[i])
		return errors.Join(err, f.Close())
	}); err != nil {
		return err
	}
	index, err := json.Marshal(map[string]any{"metadata": map[string]any{}, "weight_map": place})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), index, 0o600)
}

// mostFiles bounds how many a model has.
const mostFiles = 16

func shardName(i, n int) string { return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n) }

func (m matrix) elements() int {
	n := 1
	for _, d := range m.shape {
		n *= d
	}
	return n
}

// pattern is random elements that tensors take theirs from, in turn and from another place each. Their number is a prime, so no two rows of a matrix are
// the same, and copying them takes no longer than writing.
type pattern struct{ elements []byte }

func newPattern() *pattern {
	const count = 2097143
	p := &pattern{make([]byte, 2*count)}
	source := rand.NewPCG(1, 1)
	for i := 0; i < len(p.elements); i += 2 {
		const small = 121 << 7 // 2⁻⁶ in bfloat16
		v := uint16(source.Uint64())&0x807f | small
		p.elements[i], p.elements[i+1] = byte(v), byte(v>>8)
	}
	return p
}

// write writes the elements of the number-th tensor.
func (p *pattern) write(w io.Writer, number int, shape []int) error {
	left := 2 * matrix{shape: shape}.elements()
	if len(shape) == 1 {
		const one = 127 << 7 // 1 in bfloat16
		row := make([]byte, left)
		for i := 0; i < left; i += 2 {
			row[i], row[i+1] = one&0xff, one>>8
		}
		_, err := w.Write(row)
		return err
	}
	const apart = 2 * 104729 // bytes between the beginnings of tensors
	for at := number * apart % len(p.elements); left > 0; at = 0 {
		n := min(left, len(p.elements)-at)
		if _, err := w.Write(p.elements[at : at+n]); err != nil {
			return err
		}
		left -= n
	}
	return nil
}
