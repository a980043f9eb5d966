package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// absentWeights stand for the files of a model's weights where they are not all there (LoadOptions.Sizes): a tensor has the shape that config.json makes it have. They have no data.
type absentWeights struct {
	dtype string
	names map[string]bool // by the index; nil: they are not known, and every tensor that is needed is there
	found []Stated        // what has been looked for, of a rank
}

// Stated is a tensor that config.json makes a model have.
type Stated struct {
	Name  string
	Shape []int
}

// StatedTensors lists the tensors that the config.json of a directory without weights makes them have, in the order in which loading looks for them. Experts are fused where the family has that form.
func StatedTensors(ctx context.Context, dir string, registry Registry) ([]Stated, error) {
	d, err := openDirectory(dir, registry, 1, LoadOptions{Sizes: true})
	if err != nil {
		return nil, fmt.Errorf("stated tensors: %w", err)
	}
	if d.files.absent == nil {
		return nil, errors.Join(fmt.Errorf("stated tensors: %s has its weights", dir), d.files.Close())
	}
	_, err = d.pack(ctx, [][]tensor.Device{{dry.Device{}}}, LoadOptions{Sizes: true}, &gauge{})
	if err := errors.Join(err, d.files.Close()); err != nil {
		return nil, fmt.Errorf("stated tensors: %w", err)
	}
	var all []Stated
	seen := map[string]bool{}
	for _, t := range d.files.absent.found {
		if !seen[t.Name] {
			seen[t.Name] = true
			all = append(all, t)
		}
	}
	return all, nil
}

// Weights is where the sizes of a model's weights are known from.
type Weights string

// The kinds.
const (
	WeightsInFiles  Weights = "the headers of the weights' files"  // all files are there
	WeightsInIndex  Weights = "config.json and the weights' index" // some are missing; which tensors there are is known
	WeightsInConfig Weights = "config.json alone"                  // nothing else is there, or the index names quantized tensors
)

// How the names of a layer's tensors end that have all of its experts.
const (
	fusedGateUp = ".mlp.experts.gate_up_proj"
	fusedDown   = ".mlp.experts.down_proj"
)

// Found is what of a directory is seen before its weights are.
type Found struct {
	Weights      Weights
	MaxPositions int
}

// FindWeights tells where a directory's weights are known from.
func FindWeights(dir string, registry Registry) (Found, error) {
	c, _, err := readConfig(dir, registry)
	if err != nil {
		return Found{}, err
	}
	names, there, err := safetensors.ModelTensors(dir)
	f := Found{WeightsInIndex, c.MaxPositionEmbeddings}
	switch {
	case there:
		f.Weights = WeightsInFiles
	case names == nil || c.Quantization != nil:
		f.Weights = WeightsInConfig
	}
	return f, err
}

// openWeights opens the files of a directory's weights; where they are not all there and sizes alone are asked for, what stands for them.
func openWeights(dir string, c *Config, raw []byte, o LoadOptions) (weightFiles, error) {
	if o.Sizes {
		names, there, err := safetensors.ModelTensors(dir)
		if err != nil {
			return weightFiles{}, err
		}
		if !there {
			absent := &absentWeights{dtype: fileType(raw)}
			if c.Quantization == nil { // quantized tensors come with others, of shapes that do not matter
				absent.names = names
			}
			return weightFiles{Collection: &safetensors.Collection{}, nested: absent.nested(), absent: absent}, nil
		}
	}
	collection, err := safetensors.OpenModel(dir)
	if err != nil {
		return weightFiles{}, err
	}
	return nameWeights(collection), nil
}

// nested tells whether the names are of a text model among others.
func (a *absentWeights) nested() bool {
	for n := range a.names {
		if strings.HasPrefix(n, nestedPrefix) {
			return true
		}
	}
	return false
}

// has tells whether there is a tensor of a name in the files. Of names that are not known experts are fused, which are fewer, and what a model can do without is not there.
func (a *absentWeights) has(name string) bool {
	if a.names != nil {
		return a.names[name]
	}
	return strings.HasSuffix(name, fusedGateUp) || strings.HasSuffix(name, fusedDown)
}

// stated is a tensor that config.json makes a model have, without its data.
func (l *Loader) stated(name string, shape []int) (safetensors.Tensor, error) {
	t := safetensors.Tensor{Name: l.files.inFile(name), DType: l.files.absent.dtype, Shape: shape}
	if l.files.absent.names != nil && !l.files.absent.names[t.Name] {
		return t, fmt.Errorf("the index of the weights has no tensor %q, which the configuration makes the model have", t.Name)
	}
	l.used[t.Name] = true
	if l.model.Rank == 0 && l.copy == 0 {
		l.files.absent.found = append(l.files.absent.found, Stated{t.Name, slices.Clone(shape)})
	}
	return t, nil
}

// Names lists the tensors' names as far as they are known, sorted.
func (f weightFiles) Names() []string {
	if f.absent != nil {
		return slices.Sorted(maps.Keys(f.absent.names))
	}
	return f.Collection.Names()
}

// fileType is the type of the weights by config.json, as a header would have it: what transformers has written them in. bfloat16 where it does not say.
func fileType(raw []byte) string {
	type typed struct {
		Type json.RawMessage `json:"dtype"`       // transformers 5
		Old  json.RawMessage `json:"torch_dtype"` // transformers 4
	}
	var c struct {
		typed
		Text typed `json:"text_config"`
	}
	_ = json.Unmarshal(raw, &c) // it has been read; what is of another form than these keys have says nothing
	for _, t := range []json.RawMessage{c.Type, c.Old, c.Text.Type, c.Text.Old} {
		var name string
		if json.Unmarshal(t, &name) != nil || name == "" {
			continue
		}
		if strings.TrimPrefix(name, "torch.") == "float32" {
			return "F32"
		}
		break // both types of 16 bits are loaded as bfloat16
	}
	return "BF16"
}
