package model

import (
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
)

const (
	textPrefix   = "model."
	nestedPrefix = "model.language_model." // of a text model among others
)

// weightFiles are the tensors of a model directory under the names that architectures have for them: "model.layers.0…", also where the files call the text model model.language_model. The names of modules that LoRA can be put
// on are those too.
type weightFiles struct {
	*safetensors.Collection
	nested bool
	absent *absentWeights // nil: the files are there, and the collection has their tensors
}

// nameWeights finds out how the files name the text model.
func nameWeights(files *safetensors.Collection) weightFiles {
	for _, n := range files.Names() {
		if strings.HasPrefix(n, nestedPrefix) {
			return weightFiles{Collection: files, nested: true}
		}
	}
	return weightFiles{Collection: files}
}

// inFile is the name that a tensor has in the files.
func (f weightFiles) inFile(name string) string {
	if rest, ok := strings.CutPrefix(name, textPrefix); ok && f.nested {
		return nestedPrefix + rest
	}
	return name
}

// Tensor finds a tensor by its architecture's name.
func (f weightFiles) Tensor(name string) (safetensors.Tensor, bool) {
	return f.Collection.Tensor(f.inFile(name))
}

// has tells whether there is a tensor of an architecture's name.
func (f weightFiles) has(name string) bool {
	if f.absent != nil {
		return f.absent.has(f.inFile(name))
	}
	_, ok := f.Tensor(name)
	return ok
}

// ignored tells whether a tensor of the files begins as one of those that an architecture leaves out.
func ignored(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}
