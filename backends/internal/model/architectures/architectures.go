// Package architectures lists the model architectures that Tinsmith has.
package architectures

import (
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/llama"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen2"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen3"
)

// All gives every architecture under its Hugging Face name.
func All() model.Registry {
	return model.Registry{
		llama.Name: llama.Architecture(),
		qwen2.Name: qwen2.Architecture(),
		qwen3.Name: qwen3.Architecture(),
	}
}
