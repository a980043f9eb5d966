package engine

import (
	"context"
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// memoryPlan shares the memory of a backend out. Only the shares of adapters and training are bounds for themselves; what one of the others does not use may be used for a long training sequence. It
// belongs to the device goroutine.
type memoryPlan struct {
	limit    int64          // of all shares together
	source   string         // of the limit: a key of the configuration, or "machine"
	devices  []deviceMemory // the same by home; what has to fit, fits each of them
	weights  int64
	sampling int64 // scratch memory of the samplers of all replicas
	cache    int64 // keys and values of sampling, of all replicas
	recorded int64 // what devices keep recorded work in, at most
	exchange int64 // what ranks exchange values through, where they do so by NCCL
	adapters int64
	training int64 // activations, keys and values of training passes, of all replicas at once

	positions   int // of each cache
	kept        int // of its pages, that are never given back: one sequence of the longest length always has a place
	context     int // tokens of a sequence at most
	batchTokens int // of one training pass
	cycleTokens int // of one clock cycle
	recompute   Recompute
}

// Sizes of training passes that are chosen automatically: as many tokens as mostTokens, and at least leastKept before activations are computed again rather than kept. Larger passes are hardly faster.
const (
	mostTokens  = 2048
	leastKept   = 512
	leastTokens = 64
	// passesPerCycle is how many passes of training a clock cycle has at most.
	passesPerCycle = 32
	// referenceRank is the rank of the adapters that the plan is made for; larger ones take more, which is seen when they come.
	referenceRank = 32
)

// fromMachine is the source of a limit that nobody has set.
const fromMachine = "machine"

// unlimited stands for the memory of a system that does not tell how much it has.
const unlimited = math.MaxInt64 / 8

// planMemory shares the limit out. What is configured holds; what is not is chosen so that training passes of 2,048 tokens keep their activations if half of what weights and cache leave is enough, and one sequence of the
// longest length can be trained: where nobody has set that length, it is as long as can be trained. Devices' own memory is nobody else's, so there passes keep their activations in all of that half. before is the plan that is replaced while the backend runs, whose cache stays; nil for the first.
func (l *loaded) planMemory(ctx context.Context, limits memoryLimits, before *memoryPlan) (memoryPlan, error) {
	c := &l.config
	p := memoryPlan{limit: limits.total(), source: limits.source, weights: l.weights, recompute: c.Recompute}
	layout, err := l.referenceLayout(referenceRank)
	if err != nil {
		return p, err
	}
	samplerModels := l.sampling[0].models
	sampling, err := samplerModels[0].MeasureForward(c.PrefillTokens+c.MaxBatch, c.MaxBatch, layout)
	if err != nil {
		return p, internal("plan the memory", err)
	}
	trainers := int64(len(l.training))
	p.sampling = int64(len(l.sampling)) * int64(len(samplerModels)) * (sampling.Bytes() + int64(c.runningSlots(samplerModels[0]))*samplerModels[0].StateBytes())
	p.devices = l.deviceMemories(limits, sampling.Bytes())
	for i := range p.devices {
		d := &p.devices[i]
		if before != nil { // what is there stays
			d.recorded = before.devices[i].recorded
		}
		p.recorded += d.recorded
		p.exchange += d.exchange
	}
	pages := int64(math.MaxInt64) // that a quarter of what is left holds, on each device
	for i := range p.devices {
		d := &p.devices[i]
		if d.rest() <= 0 {
			return p, &plugins.Error{Kind: limits.refusal(), Field: memoryKey, Message: fmt.Sprintf("the model's weights take %s and its sampler %s%s; the limit is %s (%s)%s%s", mebibytes(d.weights), mebibytes(d.sampling), p.on(d), mebibytes(d.limit), p.source, l.room(ctx, d.limit), l.smallerSampler(d, sampling.Bytes(), layout))}
		}
		if d.page > 0 {
			page := d.page
			if d.state > 0 {
				page += d.page / 4 // snapshots
			}
			pages = min(pages, d.rest()/4/page)
		}
	}
	positions, context := 0, 0
	if before != nil {
		positions, context = before.positions, before.context
	} else if positions, context, err = cacheSize(*c, samplerModels, pages*pagesBytes(samplerModels)); err != nil {
		return p, err
	}
	l.setCache(&p, positions, context)
	for i := range p.devices {
		if d := &p.devices[i]; d.rest() <= 0 {
			return p, &plugins.Error{Kind: limits.refusal(), Field: "backend.kv_cache_tokens", Message: fmt.Sprintf("keys and values of %d tokens take %s%s; the limit is %s (%s), of which weights and the sampler take %s", p.positions, mebibytes(d.cache), p.on(d), mebibytes(d.limit), p.source, mebibytes(d.weights+d.sampling))}
		}
	}
	if before == nil && c.MaxContextLength == 0 {
		if err := l.shortenContext(&p, layout); err != nil {
			return p, err
		}
	}
	half := int64(math.MaxInt64) // what training passes take at most, of all devices: half of what is left of the one with the least
	for i := range p.devices {
		d := &p.devices[i]
		half = min(half, d.whole(d.rest()/2))
	}
	if p.training = c.TrainingMemory; p.training == 0 {
		kept, err := l.batchBytes(mostTokens, false)
		if err != nil {
			return p, err
		}
		longest, err := l.datumBytes(p.context, referenceRank, c.Recompute != RecomputeOff)
		if err != nil {
			return p, err
		}
		p.training = min(max(trainers*kept, longest), half)
		if l.homes.ownMemory() && p.limit < unlimited {
			p.training = max(p.training, min(half, l.besideAdapters(&p, layout)))
		}
	}
	for i := range p.devices {
		p.devices[i].training = p.devices[i].part(p.training)
	}
	if p.adapters = c.AdapterMemory; p.adapters == 0 {
		p.adapters = l.adapterShare(&p, layout)
	}
	if p.batchTokens, err = l.chooseBatch(&p); err != nil {
		return p, err
	}
	if p.cycleTokens = c.CycleTokens; p.cycleTokens == 0 {
		p.cycleTokens = passesPerCycle * p.batchTokens
	}
	return p, nil
}

// besideAdapters is what is left of all devices together, by the one with the least, beside what adapters have been given or, where that is not set, what a step of one like those of a layout takes.
func (l *loaded) besideAdapters(p *memoryPlan, layout *lora.Layout) int64 {
	const steps = 3 // a step has weights and moments twice, and the gradient beside them: less than three times all
	one, left := l.withOptimizer(layout), int64(math.MaxInt64)
	for i, bytes := range one {
		adapters := steps * bytes
		if set := l.config.AdapterMemory; set > 0 {
			adapters = int64(float64(set) * (float64(bytes) / float64(one.total())))
		}
		d := &p.devices[i]
		left = min(left, d.whole(d.rest()-adapters))
	}
	return left
}

// withOptimizer is what an adapter like those of a layout takes at each home, its moments included.
func (l *loaded) withOptimizer(layout *lora.Layout) byHome {
	shape := l.weightShape()
	one := shape.estimate(layout)
	one[0] += 2 * lora.ParameterBytes(layout)
	return one
}

// adapterShare is what adapters like one of a layout, with its optimizer, may take of all devices together: what is left of the one that they fill first.
func (l *loaded) adapterShare(p *memoryPlan, layout *lora.Layout) int64 {
	one := l.withOptimizer(layout)
	share := int64(unlimited)
	for i, bytes := range one {
		left := p.devices[i].rest() - p.devices[i].training
		switch total := one.total(); {
		case bytes == total: // all are there
			share = min(share, left)
		case bytes > 0:
			share = min(share, int64(min(float64(left)*(float64(total)/float64(bytes)), unlimited)))
		}
	}
	return max(share, 1)
}

// chooseBatch gives the tokens of a training pass: as configured, or the most that fit, with activations kept if that is allowed and leastKept tokens of them fit.
func (l *loaded) chooseBatch(p *memoryPlan) (int, error) {
	if l.config.BatchTokens > 0 {
		return l.config.BatchTokens, nil
	}
	share := p.training / int64(len(l.training))
	largest := func(least int, recompute bool) (int, error) {
		for n := mostTokens; n > least; n /= 2 {
			bytes, err := l.batchBytes(n, recompute)
			if err != nil || bytes <= share {
				return n, err
			}
		}
		bytes, err := l.batchBytes(least, recompute)
		if err != nil || bytes > share {
			return 0, err
		}
		return least, nil
	}
	if p.recompute != RecomputeOn {
		least := leastKept
		if p.recompute == RecomputeOff {
			least = leastTokens
		}
		if n, err := largest(least, false); err != nil || n > 0 {
			return n, err
		}
	}
	n, err := largest(leastTokens, p.recompute != RecomputeOff)
	return max(n, leastTokens), err
}

// cacheSize gives the positions of the cache of keys and values (a multiple of a page) and the longest sequence. What is configured holds, or fails. What is automatic: the cache has room for two of the longest
// sequences, 65,536 positions at least, but takes no more than share bytes; the longest sequence is the model's, or what the cache can hold.
func cacheSize(config Config, models []*model.Model, share int64) (positions, context int, err error) {
	context = models[0].MaxContext
	if config.KVCacheTokens > 0 {
		positions = wholePages(config.KVCacheTokens)
	} else {
		positions = automaticPositions(context)
		each := pagesBytes(models) / kvcache.PageSize
		if int64(positions)*each > share {
			positions = max(int(share/each)/kvcache.PageSize, 1) * kvcache.PageSize
		}
	}
	if context > positions {
		if config.MaxContextLength > 0 || config.KVCacheTokens > 0 {
			return 0, 0, plugins.Invalidf("backend.kv_cache_tokens", "%d positions of keys and values cannot hold one sequence of %d tokens: set max_context_length to %d or less, or kv_cache_tokens to %d or more",
				positions, context, positions, context)
		}
		context = positions
	}
	return positions, context, nil
}

// wholePages rounds positions up.
func wholePages(n int) int { return (n + kvcache.PageSize - 1) / kvcache.PageSize * kvcache.PageSize }

// automaticPositions is what a cache has where memory does not bound it: two of the longest sequences, 65,536 at least.
func automaticPositions(context int) int { return wholePages(max(2*context, 1<<16)) }

// pageBytes is the memory of one page of keys and values.
func pageBytes(m *model.Model) int64 {
	return int64(2*m.Config.AttentionLayers()*m.KVHeads()*m.Config.HeadDim*kvcache.PageSize) * int64(m.DType.Size())
}

// pagesBytes is the memory of one page on all ranks of a replica.
func pagesBytes(models []*model.Model) int64 {
	var n int64
	for _, m := range models {
		n += pageBytes(m)
	}
	return n
}

// passBytes is the memory of a training pass that takes so much of a workspace, and so many pages, on all ranks of a replica.
func (l *loaded) passBytes(m model.Memory, pages int) int64 {
	return int64(len(l.training[0].models))*m.Bytes() + l.pagesBytes(pages)
}

// pagesBytes is the memory of so many pages of keys and values of training, on all ranks of a replica.
func (l *loaded) pagesBytes(pages int) (bytes int64) {
	for _, m := range l.training[0].models {
		n := int64(pages) * pageBytes(m)
		if l.homes.ownMemory() {
			n = tensor.OwnMemoryBytes(n)
		}
		bytes += n
	}
	return bytes
}

// passPages bounds the pages of a pass of so many tokens: many sequences that hardly fill a page would otherwise take far more memory than their activations.
func passPages(tokens int) int { return 2 * ((tokens + kvcache.PageSize - 1) / kvcache.PageSize) }

// batchBytes is the memory of a training pass over so many tokens of any number of sequences.
func (l *loaded) batchBytes(tokens int, recompute bool) (int64, error) {
	m, err := l.measure(tokens, referenceRank, recompute)
	return l.passBytes(m, passPages(tokens)), err
}

// datumBytes is the memory of a training pass over one sequence.
func (l *loaded) datumBytes(tokens, rank int, recompute bool) (int64, error) {
	m, err := l.measure(tokens, rank, recompute)
	return l.passBytes(m, (tokens+kvcache.PageSize-1)/kvcache.PageSize), err
}

// measurement is what measure has been asked.
type measurement struct {
	tokens, rank int
	recompute    bool
	logits       int // bytes, see LogitsBytes
}

// measure tells what a training pass takes of a rank's workspace: of so many tokens, rounded up, with adapters of a rank at most.
func (l *loaded) measure(tokens, rank int, recompute bool) (model.Memory, error) {
	const step = 64
	k := measurement{(tokens + step - 1) / step * step, rank, recompute, l.files.options.LogitsBytes}
	if known, ok := l.measured[k]; ok {
		return known, nil
	}
	layout, err := l.referenceLayout(rank)
	if err != nil {
		return model.Memory{}, err
	}
	n, err := l.training[0].models[0].MeasureTraining(k.tokens, layout, recompute)
	if err != nil {
		return n, internal("plan the memory", err)
	}
	if len(l.measured) >= maxMeasured {
		clear(l.measured)
	}
	l.measured[k] = n
	return n, nil
}

// maxMeasured bounds what is kept of measure's answers.
const maxMeasured = 4096

func (l *loaded) referenceLayout(rank int) (*lora.Layout, error) {
	layout, err := l.model.Layout(rank, true, true, true)
	if err != nil {
		return nil, internal("plan the memory", err)
	}
	return layout, nil
}

// fixed is what is taken at first, whether it is used or not: all but what adapters and training passes take as they need it. Pages of keys and values can be given back, see pages.go; the rest is taken for as long
// as the backend lives.
func (p *memoryPlan) fixed() int64 { return p.weights + p.sampling + p.cache + p.recorded + p.exchange }

// shares gives the plan for people to read.
func (l *loaded) shares() []plugins.MemoryShare {
	p := &l.plan
	limit := plugins.MemoryShare{Name: "limit", Bytes: p.limit, Detail: "by " + p.source}
	switch {
	case p.limit == unlimited:
		limit.Bytes, limit.Detail = 0, "none: the system does not tell how much memory it has"
	case p.source == fromMachine:
		limit.Detail = "nine tenths of what is free on this machine; backend.memory_mib sets another"
	}
	weights := fmt.Sprintf("%d parameters in %s", l.model.Parameters, l.model.DType)
	if l.model.FP8 {
		weights += ", those that the files have in FP8 kept so"
	}
	if l.config.ShardBase {
		weights += fmt.Sprintf(", shared out over %d copies", len(l.training))
		if m, err := l.measure(1, referenceRank, true); err == nil {
			weights += fmt.Sprintf("; a rank puts layers together in %s for training and in as much for sampling, counted there", mebibytes(m.Gathered))
		}
	}
	cacheDetail := fmt.Sprintf("%d tokens", p.positions)
	if n := l.returnable(p); n > 0 {
		cacheDetail += fmt.Sprintf("; what is not in use of %s is lent to training and adapters", mebibytes(n))
	}
	out := []plugins.MemoryShare{
		limit,
	}
	if len(p.devices) > 1 {
		for i := range p.devices {
			out = append(out, p.devices[i].share())
		}
	}
	out = append(out, []plugins.MemoryShare{
		{Name: "weights", Bytes: p.weights, Detail: weights},
		{Name: "sampler", Bytes: p.sampling, Detail: fmt.Sprintf("%d sequences and %d tokens of prompts at once", l.config.MaxBatch, l.config.PrefillTokens)},
		{Name: "keys and values", Bytes: p.cache, Detail: cacheDetail},
	}...)
	if p.recorded > 0 {
		out = append(out, plugins.MemoryShare{Name: "recorded steps", Bytes: p.recorded, Detail: "at most, for devices to start steps again that come again"})
	}
	if p.exchange > 0 {
		out = append(out, plugins.MemoryShare{Name: "exchange", Bytes: p.exchange, Detail: "for what ranks add up, beside what NCCL takes itself"})
	}
	if layout, err := l.referenceLayout(referenceRank); err == nil {
		one := l.adapters.weightBytes(layout) + 2*lora.ParameterBytes(layout)
		out = append(out, plugins.MemoryShare{Name: "adapters", Bytes: p.adapters, Detail: fmt.Sprintf("%d of rank %d with their optimizer, %s each; more go to files while they are idle", p.adapters/one, referenceRank, mebibytes(one))})
	}
	kept, keptErr := l.batchBytes(p.batchTokens, false)
	again, againErr := l.batchBytes(p.batchTokens, true)
	if keptErr == nil && againErr == nil {
		out = append(out, plugins.MemoryShare{Name: "training", Bytes: p.training, Detail: fmt.Sprintf("passes of %d tokens take %s, recomputed %s; recompute %s", p.batchTokens, mebibytes(kept), mebibytes(again), p.recompute)})
	}
	if layout, err := l.referenceLayout(referenceRank); err == nil {
		if fits, longest, most, err := l.datumFits(p, layout); err == nil {
			detail := fmt.Sprintf("%d tokens", p.context)
			if own := l.model.MaxContext; p.context < own {
				detail += fmt.Sprintf(" of the model's %d", own)
			}
			if fits {
				detail += ": fits"
			} else {
				detail += fmt.Sprintf(": does not fit and is refused; %s can be had", mebibytes(max(most, 0)))
			}
			out = append(out, plugins.MemoryShare{Name: "longest datum", Bytes: longest, Detail: detail})
		}
	}
	return out
}
