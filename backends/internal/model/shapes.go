package model

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// ReadModules gives, from config.json and the headers of a model directory's files, what LoRA can be put on.
func ReadModules(ctx context.Context, dir string, registry Registry) ([]lora.Module, error) {
	models, err := measured(ctx, dir, registry, LoadOptions{}, [][]tensor.Device{{dry.Device{}}})
	if err != nil {
		return nil, err
	}
	return models[0][0].Modules, nil
}

// WeightShapes tells, from the headers of a model directory's files, which shapes (out, in) of bfloat16 weights the ranks of a model multiply with, sorted, if it is cut over each of the given numbers of ranks.
func WeightShapes(ctx context.Context, dir string, registry Registry, o LoadOptions, ranks ...int) ([][2]int, error) {
	have := map[[2]int]bool{}
	for _, n := range ranks {
		devices := make([]tensor.Device, n)
		for i := range devices {
			devices[i] = dry.Device{}
		}
		d, err := openDirectory(dir, registry, n, o)
		if err != nil {
			return nil, fmt.Errorf("load model: %w", err)
		}
		copies, err := d.pack(ctx, [][]tensor.Device{devices}, o, &gauge{})
		if err := errors.Join(err, d.files.Close()); err != nil {
			return nil, fmt.Errorf("load model: %w", err)
		}
		for _, m := range copies[0] {
			for _, w := range m.matrices {
				if w.DType() == tensor.BFloat16 {
					have[[2]int{w.Out(), w.In()}] = true
				}
			}
		}
	}
	shapes := make([][2]int, 0, len(have))
	for s := range have {
		shapes = append(shapes, s)
	}
	sort.Slice(shapes, func(i, j int) bool {
		return shapes[i][0] < shapes[j][0] || shapes[i][0] == shapes[j][0] && shapes[i][1] < shapes[j][1]
	})
	return shapes, nil
}
