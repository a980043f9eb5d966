package engine

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/parallel"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// memoryLimits is what the backend may take, the base model's weights included, of the memory at each home.
type memoryLimits struct {
	bytes  []int64
	source string // a key of the configuration, "machine", or the devices' names
	// stated is what bytes would be at every home that has memory of its own if nothing else used it, or as configured: the same at each start. nil where that is not known, or there is no such memory.
	stated []int64
}

// memoryKey is the setting of the limits, and their source where it is given.
const memoryKey = "backend.memory_mib"

// refusal is the kind of the error about what takes more: a limit that the configuration sets is the same when it is tried again, one of the machine may be higher then.
func (m memoryLimits) refusal() plugins.Kind {
	if m.source == memoryKey {
		return plugins.KindInvalid
	}
	return plugins.KindCapacity
}

// total is that of all homes.
func (m memoryLimits) total() int64 {
	var sum int64
	for _, n := range m.bytes {
		if n >= unlimited {
			return unlimited
		}
		sum += n
	}
	return sum
}

// memoryLimit gives the limits: as configured, an equal part for each home, or nine tenths of what is free before anything is loaded, on the machine or, if the homes have memory of their own, on each of them. The
// last tenth is for what no plan has, as what is lost because memory is given in pieces.
func memoryLimit(c Config, homes []tensor.Device) memoryLimits {
	m := memoryLimits{bytes: make([]int64, len(homes))}
	all := func(bytes int64, source string) memoryLimits {
		for i := range m.bytes {
			m.bytes[i] = bytes
		}
		m.source = source
		return m
	}
	_, isOwn := homes[0].(tensor.OwnMemory)
	if c.Memory > 0 {
		m = all(c.Memory/int64(len(homes)), memoryKey)
		if isOwn {
			m.stated = m.bytes
		}
		return m
	}
	if isOwn {
		var names []string
		stated := make([]int64, len(homes))
		for i, d := range homes {
			own, ok := d.(tensor.OwnMemory)
			if !ok {
				return all(unlimited, "unknown")
			}
			free, err := own.FreeMemory()
			total, errTotal := own.TotalMemory()
			if err != nil || errTotal != nil {
				return all(unlimited, "unknown")
			}
			m.bytes[i], stated[i] = free-free/10, total-total/10
			names = append(names, d.Name())
		}
		m.source, m.stated = strings.Join(names, " + "), stated
		return m
	}
	if free, ok := availableMemory(machine); ok {
		return all(free-free/10, fromMachine)
	}
	return all(unlimited, "unknown")
}

// limits are those that a plan was made for.
func (p *memoryPlan) limits() memoryLimits {
	m := memoryLimits{source: p.source}
	for i := range p.devices {
		m.bytes = append(m.bytes, p.devices[i].limit)
	}
	return m
}

// deviceMemory is a plan's shares at one home.
type deviceMemory struct {
	name                                      string
	limit, weights, sampling, cache, training int64
	recorded                                  int64 // what devices there keep recorded work in, at most; see recordedShare
	recorders                                 int   // how many do
	exchange                                  int64 // what ranks there exchange values through, by NCCL
	page                                      int64 // bytes of one page of keys and values of all samplers there
	state                                     int64 // and of one slot for the states of a sequence; 0: the model has none
	ranks, all                                int   // ranks that train there, and everywhere
}

// fixed is what is taken at first.
func (d *deviceMemory) fixed() int64 {
	return d.weights + d.sampling + d.cache + d.recorded + d.exchange
}

// rest is what is left beside it.
func (d *deviceMemory) rest() int64 { return d.limit - d.fixed() }

// part is the share of ranks there in what all that train take together, and whole the reverse.
func (d *deviceMemory) part(bytes int64) int64 {
	if d.ranks == d.all {
		return bytes
	}
	return bytes / int64(d.all) * int64(d.ranks)
}

func (d *deviceMemory) whole(bytes int64) int64 {
	switch {
	case d.ranks == d.all:
		return bytes
	case d.ranks == 0 || d.limit >= unlimited:
		return math.MaxInt64
	}
	return bytes / int64(d.ranks) * int64(d.all)
}

// share gives the device's for people to read.
func (d *deviceMemory) share() plugins.MemoryShare {
	s := plugins.MemoryShare{Name: d.name, Bytes: d.limit, Detail: fmt.Sprintf("weights %s, sampler %s, keys and values %s, training %s", mebibytes(d.weights), mebibytes(d.sampling), mebibytes(d.cache), mebibytes(d.training))}
	if d.recorded > 0 {
		s.Detail += ", recorded steps " + mebibytes(d.recorded)
	}
	if d.exchange > 0 {
		s.Detail += ", exchange " + mebibytes(d.exchange)
	}
	if d.limit >= unlimited {
		s.Bytes = 0
	}
	return s
}

// recordedShare is the memory that so many devices of one home may keep recorded work in: a hundredth of its limit, but not more than what as many use that record all that comes again.
func recordedShare(limit int64, recorders int) int64 {
	const most = 128 << 20
	return min(limit/100, int64(recorders)*most)
}

// limitRecorded has the devices keep to the plan.
func (l *loaded) limitRecorded() {
	l.eachRecorder(func(home int, r tensor.Recorder) {
		d := &l.plan.devices[home]
		r.LimitRecorded(d.recorded / int64(d.recorders))
	})
}

// eachRecorder visits the ranks' devices that record work, with the home whose memory they use.
func (l *loaded) eachRecorder(visit func(home int, r tensor.Recorder)) {
	seen := map[tensor.Device]bool{}
	for _, r := range slices.Concat(l.training, l.sampling) {
		for _, d := range r.devices {
			if on, ok := d.(tensor.Recorder); ok && !seen[d] {
				seen[d] = true
				visit(l.homes.index(d), on)
			}
		}
	}
}

// on names the device in a message, where there are several.
func (p *memoryPlan) on(d *deviceMemory) string {
	if len(p.devices) == 1 {
		return ""
	}
	return " of " + d.name
}

// deviceMemories gives the shares that are known before the cache has its size; scratch is that of one rank's sampler.
func (l *loaded) deviceMemories(limits memoryLimits, scratch int64) []deviceMemory {
	all := make([]deviceMemory, len(l.homes.devices))
	for i, home := range l.homes.devices {
		all[i] = deviceMemory{name: home.Name(), limit: limits.bytes[i], weights: l.weightsAt[i]}
	}
	for _, r := range l.sampling {
		for rank, m := range r.models {
			d := &all[l.homes.index(r.devices[rank])]
			d.sampling, d.page, d.state = d.sampling+scratch+int64(l.config.runningSlots(m))*m.StateBytes(), d.page+pageBytes(m), d.state+m.StateBytes()
		}
	}
	ranks := 0
	for _, r := range l.training {
		for _, device := range r.devices {
			all[l.homes.index(device)].ranks++
			ranks++
		}
	}
	for _, r := range l.replicas {
		if ranks := len(r.devices); l.config.NCCL && ranks > 1 {
			for _, device := range r.devices {
				all[l.homes.index(device)].exchange += parallel.LinkBytes(ranks)
			}
		}
	}
	l.eachRecorder(func(home int, _ tensor.Recorder) { all[home].recorders++ })
	for i := range all {
		all[i].all = ranks
		all[i].recorded = recordedShare(all[i].limit, all[i].recorders)
	}
	return all
}

// adapterAlone is what one adapter needs at each home while a datum of its own is trained: weights, and the buffers in which the gradients of an operation with several data are summed. Moments and the gradient of earlier
// operations can be in files; where there is no folder for those they are counted too.
func (l *loaded) adapterAlone(layout *lora.Layout) (byHome, error) {
	shape := l.weightShape()
	need := shape.estimate(layout)
	if !l.spills {
		need[0] += 3 * lora.ParameterBytes(layout)
	}
	sum, err := l.gradientBytes(layout)
	need[0] += gradientBuffers(lora.Groups) * sum
	return need, err
}

// gradientBytes is what one gradient that is being summed takes: every rank of a model that is cut has a sum of its own, and of what is not cut each has all.
func (l *loaded) gradientBytes(layout *lora.Layout) (int64, error) {
	if l.cuts == nil {
		return lora.ParameterBytes(layout), nil
	}
	n, err := lora.CutBytes(layout, l.cuts)
	if err != nil {
		return 0, internal("plan the memory", err)
	}
	return n, nil
}

// gradientBuffers is how many gradients an operation with so many data has in memory at once, at least: one for the group that runs, and one for each half that is complete above it. With a datum in every group it is exact.
func gradientBuffers(data int) int64 { return int64(bits.Len(uint(min(data, lora.Groups)))) }

// mostAt is the memory that there can be at a home by a plan for adapters and training passes, with nothing sampled.
func (l *loaded) mostAt(p *memoryPlan, home int) int64 {
	if len(p.devices) == 1 {
		return p.limit - p.fixed() + l.returnable(p)
	}
	return p.devices[home].rest()
}

// mostForDatum is the memory that a training pass over one sequence can have by a plan, beside one adapter like that of a layout and with nothing sampled, on all ranks of the replica that has the least.
func (l *loaded) mostForDatum(p *memoryPlan, layout *lora.Layout) (int64, error) {
	adapter, err := l.adapterAlone(layout)
	if err != nil {
		return 0, err
	}
	if len(p.devices) == 1 {
		return l.mostAt(p, 0) - adapter[0], nil
	}
	most := int64(math.MaxInt64)
	for _, r := range l.training {
		there := make([]int64, len(p.devices))
		for _, device := range r.devices {
			there[l.homes.index(device)]++
		}
		for i, ranks := range there {
			if ranks > 0 {
				most = min(most, (l.mostAt(p, i)-adapter[i])/ranks*int64(len(r.devices)))
			}
		}
	}
	return most, nil
}

// setCache gives a plan's cache of keys and values so many positions, and its sequences so many tokens.
func (l *loaded) setCache(p *memoryPlan, positions, context int) {
	p.positions, p.context = positions, context
	p.kept = (context + kvcache.PageSize - 1) / kvcache.PageSize
	pages := int64(positions / kvcache.PageSize)
	p.cache = int64(len(l.sampling)) * pages * pagesBytes(l.sampling[0].models)
	snapshots := int64(snapshotSlots(l.sampling[0].models[0], int(pages)))
	for i := range p.devices {
		p.devices[i].cache = pages*p.devices[i].page + snapshots*p.devices[i].state
	}
	for _, r := range l.sampling {
		for _, m := range r.models {
			p.cache += snapshots * m.StateBytes()
		}
	}
}

// datumFits tells whether a datum of the longest length trains by a plan, with what it takes and what can be had.
func (l *loaded) datumFits(p *memoryPlan, layout *lora.Layout) (fits bool, need, most int64, err error) {
	if need, err = l.datumNeed(p.context, layout.Rank, p.recompute != RecomputeOff); err != nil {
		return false, 0, 0, err
	}
	most, err = l.mostForDatum(p, layout)
	return need <= most, need, most, err
}

// datumNeed is what a training pass over one sequence takes of the devices, on all ranks of a replica.
func (l *loaded) datumNeed(tokens, rank int, recompute bool) (int64, error) {
	m, err := l.measure(tokens, rank, recompute)
	return int64(len(l.training[0].models))*m.Reserved() + l.pagesBytes((tokens+kvcache.PageSize-1)/kvcache.PageSize), err
}

// longestDatum is the most tokens, whole pages unless it is the context itself, that a datum can have by a plan, with its activations kept or computed again.
func (l *loaded) longestDatum(p *memoryPlan, layout *lora.Layout, recompute bool) (int, error) {
	most, err := l.mostForDatum(p, layout)
	if err != nil {
		return 0, err
	}
	low, high := 0, wholePages(p.context)/kvcache.PageSize // it trains with low pages, and not with more than high
	for low < high {
		middle := (low + high + 1) / 2
		switch need, err := l.datumNeed(middle*kvcache.PageSize, layout.Rank, recompute); {
		case err != nil:
			return 0, err
		case need <= most:
			low = middle
		default:
			high = middle - 1
		}
	}
	return min(low*kvcache.PageSize, p.context), nil
}

// leastContext is what the longest sequence is not made shorter than for training's sake.
const leastContext = 256

// shortenContext lowers a plan's longest sequence, in whole pages, to the longest that trains alone, and the cache with it where that is sized by the sequence. Not below leastContext: a backend may be there to sample only.
func (l *loaded) shortenContext(p *memoryPlan, layout *lora.Layout) error {
	fits, _, _, err := l.datumFits(p, layout)
	if fits || err != nil {
		return err
	}
	most, context := p.positions, p.context
	set := func(tokens int) {
		positions := most
		if l.config.KVCacheTokens == 0 {
			positions = min(most, automaticPositions(tokens))
		}
		l.setCache(p, positions, tokens)
	}
	least := min(leastContext, context)
	low, high := least/kvcache.PageSize, (context-1)/kvcache.PageSize // the answer in pages, unless not even the least trains
	for low < high {
		middle := (low + high + 1) / 2
		set(middle * kvcache.PageSize)
		if fits, _, _, err = l.datumFits(p, layout); err != nil {
			return err
		}
		if fits {
			low = middle
		} else {
			high = middle - 1
		}
	}
	set(max(low*kvcache.PageSize, least))
	return nil
}

// warn says what of a plan cannot be done that its figures promise.
func (e *Engine) warn(l *loaded) {
	p := &l.plan
	layout, err := l.referenceLayout(referenceRank)
	if err != nil {
		return
	}
	if need := l.adapters.stepBytes(layout); need > p.adapters {
		e.log().Warn("no adapter of the rank that the plan is made for can be trained: more memory (backend.memory_mib) or a larger share of it (backend.adapter_memory_mib) is needed",
			"rank", referenceRank, "needed", mebibytes(need), "adapters", mebibytes(p.adapters), "limit", mebibytes(p.limit))
	}
	if fits, need, most, err := l.datumFits(p, layout); err == nil && !fits {
		e.log().Warn("a datum as long as the context cannot be trained and is refused: lower max_context_length, or give more memory (backend.memory_mib)",
			"tokens", p.context, "needed", mebibytes(need), "left", mebibytes(max(most, 0)), "limit", mebibytes(p.limit))
	}
}
