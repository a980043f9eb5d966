package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// modelFiles is where a model is loaded from, and how.
type modelFiles struct {
	dir      string
	registry model.Registry
	options  model.LoadOptions
}

// size tells what the weights will take, from the files' headers.
func (f *modelFiles) size(ctx context.Context, copies, ranks int) (model.Size, error) {
	return model.MeasureWeights(ctx, f.dir, f.registry, f.options, copies, ranks)
}

// sizeOfAll is what loadModels will take for the weights of all replicas, at each home.
func (l *loaded) sizeOfAll(ctx context.Context) ([]int64, error) {
	all := make([]int64, len(l.homes.devices))
	shared := map[string]bool{}
	type set struct {
		key      string // the setting that says where they are
		replicas []*replica
	}
	sets := []set{{"backend.devices", l.training}}
	if len(l.config.Sampling) > 0 {
		sets = append(sets, set{"backend.sample_devices", l.sampling})
	}
	for _, set := range sets {
		copies := 1
		if l.config.ShardBase {
			copies = len(set.replicas)
		}
		for i, r := range set.replicas {
			kind := memories(r.devices)
			if copies == 1 && shared[kind] || copies > 1 && i > 0 && len(all) == 1 {
				continue
			}
			shared[kind] = shared[kind] || copies == 1
			s, err := l.files.size(ctx, copies, len(r.devices))
			switch {
			case errors.Is(err, model.ErrCut):
				return nil, plugins.Invalidf(set.key, "%v", err)
			case errors.Is(err, model.ErrContext):
				return nil, plugins.Invalidf("backend.max_context_length", "%v", err)
			case err != nil:
				return nil, plugins.Invalidf("model_dir", "%v", err)
			}
			if len(all) == 1 {
				all[0] += s.All
				continue
			}
			for _, d := range r.devices {
				all[l.homes.index(d)] += s.Rank
			}
		}
	}
	return all, nil
}

// checkFit refuses a model whose weights alone are more than may be taken, before any of them is read.
func (l *loaded) checkFit(ctx context.Context, limits memoryLimits) error {
	weights, err := l.sizeOfAll(ctx)
	if err != nil {
		return err
	}
	for i, limit := range limits.bytes {
		kind, bound := limits.refusal(), fmt.Sprintf("the limit is %s (%s)", mebibytes(limit), limits.source)
		if free := freeMemory(l.homes.devices[i]); free < limit {
			bound += fmt.Sprintf(", and %s are free", mebibytes(free))
			kind, limit = plugins.KindCapacity, free
		}
		if weights[i] < limit {
			continue
		}
		on := ""
		if len(limits.bytes) > 1 {
			on = " of " + l.homes.devices[i].Name()
		}
		return &plugins.Error{Kind: kind, Field: "backend.memory_mib", Message: fmt.Sprintf("the model's weights take %s%s; %s%s", mebibytes(weights[i]), on, bound, l.room(ctx, limit))}
	}
	return nil
}

// freeMemory is what is free of a device's own memory; there is no bound if it has none, or does not tell.
func freeMemory(d tensor.Device) int64 {
	if own, ok := d.(tensor.OwnMemory); ok {
		if free, err := own.FreeMemory(); err == nil {
			return free
		}
	}
	return unlimited
}

// room says, for the message about a model that does not fit, over how many devices like those in use it would, with what it would take of each. It begins with a semicolon, or is empty if that cannot be told.
func (l *loaded) room(ctx context.Context, limit int64) string {
	// least finds the smallest number of devices, and what is taken of each.
	least := func(size func(n int) (model.Size, error)) (n int, s model.Size) {
		for n = 2; n <= maxRanks; n *= 2 {
			s, err := size(n)
			if ctx.Err() != nil {
				return 0, s
			}
			if err == nil && s.Rank+2*s.Gathered < limit {
				return n, s
			}
		}
		return 0, s
	}
	cut, cutSize := least(func(n int) (model.Size, error) { return l.files.size(ctx, 1, n) })
	copies, shardSize := least(func(n int) (model.Size, error) { return l.files.size(ctx, n, 1) })
	text := ""
	if cut > 0 {
		text += fmt.Sprintf("; cut over %d devices with as much each (plugin %s) the weights take %s of each", cut, pluginTensorParallel, mebibytes(cutSize.Rank))
	}
	if copies > 0 {
		text += fmt.Sprintf("; shared out over %d (plugin %s with %s: true) they take %s of each, and %s for layers that are put together", copies, pluginDataParallel, shardBase, mebibytes(shardSize.Rank), mebibytes(2*shardSize.Gathered))
	}
	if text == "" {
		return fmt.Sprintf("; neither the plugin %s nor %s of the plugin %s makes it fit %d devices with as much each", pluginTensorParallel, shardBase, pluginDataParallel, maxRanks)
	}
	if _, own := l.homes.devices[0].(tensor.OwnMemory); !own {
		text += "; processors share one memory, so more of them make no room"
	}
	return text
}
