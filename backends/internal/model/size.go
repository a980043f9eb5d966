package model

import (
	"context"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// Size is the device memory that a model's weights will take, in bytes.
type Size struct {
	All      int64 // of all ranks of all copies
	Rank     int64 // of the rank that takes the most
	Gathered int64 // beside it, of each workspace: weights that are put together, where the model is sharded
}

// MeasureWeights tells, from the headers of a model directory's files, what LoadSharded will take for so many copies over so many ranks: it fails where that would, but for memory.
func MeasureWeights(ctx context.Context, dir string, registry Registry, o LoadOptions, copies, ranks int) (Size, error) {
	devices := make([][]tensor.Device, copies)
	for c := range devices {
		for range ranks {
			devices[c] = append(devices[c], dry.Device{})
		}
	}
	d, err := openDirectory(dir, registry, ranks, o)
	if err != nil {
		return Size{}, fmt.Errorf("load model: %w", err)
	}
	models, err := d.pack(ctx, devices, o, &gauge{})
	if err := errors.Join(err, d.files.Close()); err != nil {
		return Size{}, fmt.Errorf("load model: %w", err)
	}
	var s Size
	for _, ranks := range models {
		for _, m := range ranks {
			bytes := m.WeightBytes()
			s.All, s.Rank = s.All+bytes, max(s.Rank, bytes)
			if g := newGatherer(m); g != nil {
				if err := g.reserve(); err != nil {
					return Size{}, fmt.Errorf("load model: %w", err)
				}
				s.Gathered = max(s.Gathered, g.bytes)
			}
		}
	}
	return s, nil
}
