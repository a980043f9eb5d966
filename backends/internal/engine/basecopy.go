package engine

import (
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

// baseCopies compares weights of the base model that lie in a foreign adapter's file with those of the model that is served. PEFT puts a copy of the output head beside LoRA on it, and with save_embedding_layers copies of
// the head and the embedding, and loads them in place of the base model's: an equal copy changes nothing and is left out, another one makes another base model.
type baseCopies struct {
	loaded *loaded
	files  *safetensors.Collection // the model's, opened when the first copy is found
}

// mayBe tells whether a tensor has the name of a weight of the base model, and which.
func (b *baseCopies) mayBe(name string) (base string, ok bool) {
	module, base, ok := lora.ParseBaseCopy(name)
	if !ok {
		return "", false
	}
	return base, module == embeddingModule || slices.ContainsFunc(b.loaded.model.Modules, func(m lora.Module) bool { return m.Name == module })
}

// Modules that share their weight in a model with tied embeddings.
const (
	embeddingModule = "model.embed_tokens"
	headModule      = "lm_head"
)

// compare refuses the tensor name of f unless it is a copy of the model's weight base. Adapters are also trained on a base that was loaded with less precision: a copy that is the weight rounded to it counts as equal.
func (b *baseCopies) compare(f *safetensors.File, name, base string) error {
	if b.files == nil {
		files, err := safetensors.OpenModel(b.loaded.files.dir)
		if err != nil {
			return internal("compare a copy of the base model's weight", err)
		}
		b.files = files
	}
	own, ok := b.files.Tensor(base)
	if !ok && b.loaded.model.Config.TieWordEmbeddings {
		for _, module := range []string{embeddingModule, headModule} { // whichever of the two the model's files have
			if base == embeddingModule+".weight" || base == headModule+".weight" {
				if own, ok = b.files.Tensor(module + ".weight"); ok {
					break
				}
			}
		}
	}
	if !ok {
		return plugins.Invalidf("path", "tensor %.200q is a copy of a base model's weight, and the model that is served has no such weight", name)
	}
	theirs, _ := f.Tensor(name)
	if !slices.Equal(theirs.Shape, own.Shape) {
		return plugins.Invalidf("path", "tensor %.200q is a copy of the base model's weight with shape %v; that of the model that is served is %v: the adapter belongs to another base model, or its vocabulary was resized", name, theirs.Shape, own.Shape)
	}
	sizes := map[string]int{"F32": 4, "BF16": 2, "F16": 2}
	size, ownSize := sizes[theirs.DType], sizes[own.DType]
	if size == 0 || ownSize == 0 {
		return plugins.Invalidf("path", "tensor %.200q is a copy of the base model's weight of type %.20s, which cannot be compared: F32, BF16, F16", name, theirs.DType)
	}
	// The weight as it is, rounded to bfloat16, rounded to half precision: one of them must be the copy, all of it.
	roundings := []func(float32) float32{func(v float32) float32 { return v }, safetensors.RoundBFloat16, safetensors.RoundFloat16}
	const chunk = 1 << 20
	n := len(own.Data) / ownSize
	for from := 0; from < n; from += chunk {
		to := min(n, from+chunk)
		want, err := safetensors.Tensor{Name: base, DType: own.DType, Data: own.Data[from*ownSize : to*ownSize]}.Float32s()
		if err != nil {
			return internal("compare a copy of the base model's weight", err)
		}
		got, err := safetensors.Tensor{Name: name, DType: theirs.DType, Data: theirs.Data[from*size : to*size]}.Float32s()
		if err != nil {
			return plugins.Invalidf("path", "%v", err)
		}
		at, equal := 0, roundings[:0:0]
		for _, round := range roundings {
			i := differs(got, want, round)
			if i < 0 {
				equal = append(equal, round)
			}
			at = max(at, i)
		}
		if roundings = equal; len(roundings) == 0 {
			return plugins.Invalidf("path", "tensor %.200q is a copy of the base model's weight and differs from that of the model that is served (value %d is %v, not %v): the adapter belongs to another base model, or that weight was trained too, which plain LoRA cannot hold",
				name, from+at, got[at], want[at])
		}
	}
	return nil
}

// differs gives the first place where got is not want rounded; -1 if there is none.
func differs(got, want []float32, round func(float32) float32) int {
	for i, v := range want {
		if got[i] != round(v) { // NaN is no copy of anything
			return i
		}
	}
	return -1
}

// limit is the most bytes that copies of all weights can have.
func (b *baseCopies) limit() int64 { return 4 * b.loaded.model.Parameters }

// close closes the model's files.
func (b *baseCopies) close() error {
	if b.files == nil {
		return nil
	}
	if err := b.files.Close(); err != nil {
		return fmt.Errorf("close the model's files: %w", err)
	}
	return nil
}
