// Package architectures lists the model architectures that Tinsmith has.
package architectures

import (
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/gptoss"
	"github.com/tinsmith/tinsmith/backends/internal/model/llama"
	"github.com/tinsmith/tinsmith/backends/internal/model/mistral"
	"github.com/tinsmith/tinsmith/backends/internal/model/phi3"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen2"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen3"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen35"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen35moe"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen3moe"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen3next"
	"github.com/tinsmith/tinsmith/backends/internal/model/qwen3vl"
	"github.com/tinsmith/tinsmith/backends/internal/model/smollm3"
)

// All gives every architecture under its Hugging Face name.
func All() model.Registry {
	return model.Registry{
		gptoss.Name:   gptoss.Architecture(),
		llama.Name:    llama.Architecture(),
		mistral.Name:  mistral.Architecture(),
		phi3.Name:     phi3.Architecture(),
		qwen2.Name:    qwen2.Architecture(),
		qwen3.Name:    qwen3.Architecture(),
		qwen3moe.Name: qwen3moe.Architecture(),
		smollm3.Name:  smollm3.Architecture(),

		qwen35.Name:       qwen35.Architecture(),
		qwen35.NestedName: qwen35.Architecture(),

		qwen35moe.Name:       qwen35moe.Architecture(),
		qwen35moe.NestedName: qwen35moe.Architecture(),
		qwen3next.Name:       qwen3next.Architecture(),
		qwen3vl.Name:         qwen3vl.Architecture(),
		qwen3vl.ExpertsName:  qwen3vl.ExpertsArchitecture(),
	}
}
