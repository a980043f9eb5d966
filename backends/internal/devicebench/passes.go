package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/engine"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// passes is how training is cut: tokens of a pass, the memory for it, and whether activations are kept for the way back or computed again.
type passes struct {
	tokens int
	bytes  int64
	kept   bool
}

func (p passes) String() string {
	if p.kept {
		return fmt.Sprintf("passes of %d tokens, activations kept", p.tokens)
	}
	return fmt.Sprintf("passes of %d tokens, activations recomputed", p.tokens)
}

// section is the settings that have training cut so. Nothing is left to the engine, so that what is reported is what was done.
func (p passes) section() string {
	recompute := map[bool]string{true: "off", false: "on"}[p.kept]
	return fmt.Sprintf(`, "batch_tokens": %d, "training_memory_mib": %d, "recompute": %q`, p.tokens, max(1, p.bytes>>20), recompute)
}

// pick gives the ways to cut training, the best first: as many tokens as fit beside what else there is with activations kept; then, as the last, as many as fit with activations recomputed. need tells what a pass takes.
func pick(batches []int, left int64, need func(tokens int, recompute bool) (int64, error)) (all []passes, err error) {
	for _, kept := range []bool{true, false} {
		for i, n := range batches {
			bytes, err := need(n, !kept)
			if err != nil {
				return nil, err
			}
			if bytes <= left || !kept && i == len(batches)-1 {
				all = append(all, passes{n, max(1, min(bytes, left)), kept})
				if !kept {
					break
				}
			}
		}
	}
	return all, nil
}

// adapterBytes is the most that an adapter takes: float32 weights, gradient, and two moments of the optimizer, of everything that is trained.
func (s shape) adapterBytes(rank int) (int64, error) {
	all, err := s.matrices()
	var n int64
	for _, m := range all {
		d := len(m.shape)
		switch {
		case d == 2 && (s.Tied || !strings.HasSuffix(m.name, embeddingTensor)):
			n += int64(m.shape[0] + m.shape[1])
		case d == 3 && strings.Contains(m.name, expertsTensor): // of each, and twice where gate and up are one tensor
			n += int64(m.shape[0]) * 2 * int64(m.shape[1]+m.shape[2])
		}
	}
	return 4 * 4 * int64(rank) * n, err
}

// share is a line of the plan of memory; 0 if there is none.
func (b *bench) share(name string) int64 {
	for _, s := range b.memory {
		if s.Name == name {
			return s.Bytes
		}
	}
	return 0
}

// left is the memory for training beside weights, sampler, keys and values, by the engine's plan, and so many adapters.
func (b *bench) left(adapters int) (int64, error) {
	shares := map[string]int64{}
	for _, s := range b.memory {
		shares[s.Name] = s.Bytes
	}
	each, err := b.Shape.adapterBytes(b.Rank)
	if err != nil {
		return 0, err
	}
	bytes := shares["limit"] - int64(adapters)*each
	for _, name := range []string{"weights", "sampler", "keys and values"} {
		if shares[name] == 0 {
			return 0, fmt.Errorf("the backend's plan of memory lacks %q: %v", name, b.memory)
		}
		bytes -= shares[name]
	}
	return bytes - shares["recorded steps"], nil
}

// train gives the shortest time of a pass over all sequences, shared out over adapters, cut in the best way that there is memory for, and this way.
func (b *bench) train(ctx context.Context, adapters []string) (time.Duration, passes, error) {
	left, err := b.left(len(adapters))
	if err != nil {
		return 0, passes{}, err
	}
	limit := b.share("limit") // of what is free, which is all but some: the engine goes by all
	options := model.LoadOptions{DType: tensor.BFloat16, LogitsBytes: engine.LogitsBytes(limit+limit/20, b.share("weights"))}
	ways, err := pick(b.Batches, left, func(tokens int, recompute bool) (int64, error) {
		m, page, err := model.MeasurePass(ctx, b.dir, architectures.All(), options, tokens, b.Rank, recompute)
		pages := int64(2 * ((tokens + tensor.PageSize - 1) / tensor.PageSize)) // as the engine bounds them
		return m.Bytes() + pages*page + 1<<20, err                             // the setting is of whole MiB, rounded down
	})
	if err != nil {
		return 0, passes{}, err
	}
	return firstWithRoom(ways, func(way passes) (time.Duration, error) {
		if _, err := b.Configure(ctx, plugins.ConfigureRequest{Config: []byte(b.section + way.section() + "}")}); err != nil {
			return 0, err
		}
		return b.pace(ctx, adapters)
	})
}

// firstWithRoom measures the first of several ways that memory does not lack for, and says which: the plan is an estimate. The last one's error counts, and every other error.
func firstWithRoom(ways []passes, measure func(way passes) (time.Duration, error)) (time.Duration, passes, error) {
	for i, way := range ways {
		best, err := measure(way)
		if err != nil && plugins.NoRoom(err) && i < len(ways)-1 {
			continue
		}
		return best, way, err
	}
	return 0, passes{}, errors.New("there is no number of tokens to train with")
}
