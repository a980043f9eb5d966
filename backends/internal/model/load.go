package model

import (
	"context"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Registry has the supported architectures by their Hugging Face name ("Qwen3ForCausalLM"). Package architectures has all of ours.
type Registry map[string]Architecture

// Architecture builds one family of models.
type Architecture struct{}

// LoadOptions are the settings of Load.
type LoadOptions struct {
	DType      tensor.DType // of weights and products; 0 = bfloat16 if the files hold it (or float16), else float32
	MaxContext int          // positions; 0 = what the model allows
	// Progress is called from one goroutine with bytes of weights packed so far and in all.
	Progress func(done, total int64)
}

// Load reads a Hugging Face model directory: config.json and safetensors files, which are mapped and packed piecewise, so no second copy is resident. It fails, naming the cause,
// for an architecture or a configuration value that is not supported, and for missing, surplus or misshapen tensors.
func Load(ctx context.Context, dir string, device tensor.Device, registry Registry, o LoadOptions) (*Model, error) {
	return nil, fmt.Errorf("load: %w", ErrNotImplemented)
}
