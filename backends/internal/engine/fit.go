package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/parallel"
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
			case errors.Is(err, model.ErrFP8):
				return nil, plugins.Invalidf(weightsKey, "%v", err)
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

// checkFit refuses a model whose weights alone, which are those of sizeOfAll, are more than may be taken, before any of them is read.
func (l *loaded) checkFit(ctx context.Context, limits memoryLimits, weights []int64) error {
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
		return &plugins.Error{Kind: kind, Field: memoryKey, Message: fmt.Sprintf("the model's weights take %s%s; %s%s", mebibytes(weights[i]), on, bound, l.room(ctx, limit))}
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

// fits tells whether a rank fits a device with so much memory: the weights, the sampler, the keys and values that there are at least, and what training puts together of weights that are shared out.
func (c *Config) fits(s model.Size, limit int64) bool {
	pages := int64(max(1, (c.KVCacheTokens+kvcache.PageSize-1)/kvcache.PageSize))
	return s.Rank+s.Sampler+s.Gathered+pages*s.Page < limit
}

// room says, for the message about a model that does not fit, over how many devices like those in use it would, with what it would take of each. It begins with a semicolon, or is empty if that cannot be told. As many devices
// as there are already, used alike, are what was refused, so it looks for more.
func (l *loaded) room(ctx context.Context, limit int64) string {
	if l.planned { // other placements have plans of their own
		return ""
	}
	c := &l.config
	own := l.homes.ownMemory()
	sampling := &model.Sampling{Tokens: c.PrefillTokens + c.MaxBatch, Selected: c.MaxBatch, Rank: referenceRank, Remote: own}
	size := func(copies, ranks int) (model.Size, bool) {
		s, err := model.MeasureModel(ctx, l.files.dir, l.files.registry, l.files.options, copies, ranks, sampling)
		left := limit
		if own {
			left -= recordedShare(limit, 1)
		}
		if c.NCCL && ranks > 1 {
			left -= parallel.LinkBytes(ranks)
		}
		return s, err == nil && c.fits(s, left)
	}
	ranks := max(len(l.training[0].devices), len(l.sampling[0].devices)) // that a copy is cut over
	cut, cutSize := 0, model.Size{}
	for n := ranks + 1; n <= maxRanks && cut == 0; n++ { // most of them are refused by the configuration alone
		if s, ok := size(1, n); ok {
			cut, cutSize = n, s
		}
	}
	least := 2
	if c.ShardBase {
		least = max(len(l.training), len(l.sampling))*ranks + 1
	}
	// What a copy takes falls with their number, so half of the numbers are left out with each that is tried.
	copies, copiesSize := 0, model.Size{}
	for most := maxRanks; least <= most && ctx.Err() == nil; {
		n := (least + most) / 2
		if s, ok := size(n, 1); ok {
			copies, copiesSize, most = n, s, n-1
		} else {
			least = n + 1
		}
	}
	if ctx.Err() != nil {
		return ""
	}
	text := ""
	if cut > 0 {
		text += fmt.Sprintf("; cut over %d devices with as much each (plugin %s) the weights take %s of each, and the sampler %s", cut, pluginTensorParallel, mebibytes(cutSize.Rank), mebibytes(cutSize.Sampler))
	}
	if copies > 0 {
		text += fmt.Sprintf("; shared out over %d (plugin %s with %s: true) they take %s of each, layers that are put together %s, and the sampler %s", copies, pluginDataParallel, shardBase, mebibytes(copiesSize.Rank), mebibytes(2*copiesSize.Gathered), mebibytes(copiesSize.Sampler-copiesSize.Gathered))
	}
	if text == "" {
		return fmt.Sprintf("; neither the plugin %s nor %s of the plugin %s makes it fit up to %d devices with as much each", pluginTensorParallel, shardBase, pluginDataParallel, maxRanks)
	}
	if !own {
		text += "; processors share one memory, so more of them make no room"
	}
	return text
}

// smallerSampler says, for the message about a device whose weights fit but for the sampler, which settings make that smaller. It begins with a semicolon, or is empty if the smallest sampler does not fit either.
func (l *loaded) smallerSampler(d *deviceMemory, scratch int64, layout *lora.Layout) string {
	least, err := l.sampling[0].models[0].MeasureForward(2, 1, layout)
	if err != nil || d.weights+d.sampling/scratch*least.Bytes() >= d.limit {
		return ""
	}
	return fmt.Sprintf("; the sampler is smaller with less than backend.max_batch %d and backend.prefill_tokens %d", l.config.MaxBatch, l.config.PrefillTokens)
}
