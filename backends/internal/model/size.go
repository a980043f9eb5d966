package model

import (
	"context"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// Size is the device memory that a model will take, in bytes.
type Size struct {
	All      int64 // weights of all ranks of all copies
	Rank     int64 // weights of the rank that takes the most
	Gathered int64 // beside it, of each workspace: weights that are put together, where the model is sharded
	Sampler  int64 // of a rank: the workspace of the pass that was asked for, what is gathered in it included
	Page     int64 // of a rank: one page of keys and values
}

// Sampling is the pass that Size.Sampler is of, see MeasureForward: so many tokens, of which so many are selected, with adapters of a rank.
type Sampling struct {
	Tokens, Selected, Rank int
	Remote                 bool // on a device with memory of its own
}

// MeasureWeights tells, from the headers of a model directory's files, what LoadSharded will take for so many copies over so many ranks: it fails where that would, but for memory.
func MeasureWeights(ctx context.Context, dir string, registry Registry, o LoadOptions, copies, ranks int) (Size, error) {
	return MeasureModel(ctx, dir, registry, o, copies, ranks, nil)
}

// MeasureModel is MeasureWeights with what a pass of sampling takes beside them; nil: without it.
func MeasureModel(ctx context.Context, dir string, registry Registry, o LoadOptions, copies, ranks int, sampling *Sampling) (Size, error) {
	devices := make([][]tensor.Device, copies)
	for c := range devices {
		for range ranks {
			var d tensor.Device = dry.Device{}
			if sampling != nil && sampling.Remote {
				d = dry.Remote{} // which refuses what such devices do
			}
			devices[c] = append(devices[c], d)
		}
	}
	models, err := measured(ctx, dir, registry, o, devices)
	if err != nil {
		return Size{}, err
	}
	var s Size
	for c, ranks := range models {
		for _, m := range ranks {
			bytes := m.WeightBytes()
			s.All, s.Rank = s.All+bytes, max(s.Rank, bytes)
			if g := newGatherer(m); g != nil && c == 0 { // all copies put the same together
				if err := g.reserve(); err != nil {
					return Size{}, fmt.Errorf("load model: %w", err)
				}
				s.Gathered = max(s.Gathered, g.bytes)
			}
		}
	}
	if sampling != nil {
		if err := s.measure(models[0][0], sampling); err != nil {
			return Size{}, fmt.Errorf("load model: %w", err)
		}
	}
	return s, nil
}

// measured gives the model over devices without memory, copies of ranks, from the headers of its files.
func measured(ctx context.Context, dir string, registry Registry, o LoadOptions, devices [][]tensor.Device) ([][]*Model, error) {
	d, err := openDirectory(dir, registry, len(devices[0]), o)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	models, err := d.pack(ctx, devices, o, &gauge{})
	if err := errors.Join(err, d.files.Close()); err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	return models, nil
}

// measure notes what a rank takes beside the weights.
func (s *Size) measure(rank *Model, sampling *Sampling) error {
	m := *rank
	if sampling.Remote {
		m.Device = dry.Remote{}
	}
	layout, err := m.Layout(sampling.Rank, true, true, true)
	if err != nil {
		return err
	}
	pass, err := m.MeasureForward(sampling.Tokens, sampling.Selected, layout)
	if err != nil {
		return err
	}
	page, err := m.NewPages(1)
	if err != nil {
		return err
	}
	const snapshots = 2 // at least, beside the sequences' states
	s.Sampler, s.Page = pass.Bytes()+int64(sampling.Selected+snapshots)*m.StateBytes(), int64(page.Bytes())
	return nil
}

// MeasurePass tells, from the headers of a model directory's files, what MeasureTraining would of the model on one device with memory of its own, with adapters of a rank; and the bytes of one page of keys and values.
func MeasurePass(ctx context.Context, dir string, registry Registry, o LoadOptions, tokens, rank int, recompute bool) (pass Memory, page int64, err error) {
	models, err := measured(ctx, dir, registry, o, [][]tensor.Device{{dry.Remote{}}})
	if err != nil {
		return Memory{}, 0, err
	}
	m := models[0][0]
	layout, err := m.Layout(rank, true, true, true)
	if err != nil {
		return Memory{}, 0, err
	}
	if pass, err = m.MeasureTraining(tokens, layout, recompute); err != nil {
		return Memory{}, 0, err
	}
	one, err := m.NewPages(1)
	if err != nil {
		return Memory{}, 0, err
	}
	return pass, int64(one.Bytes()), nil
}
