package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/parallel"
	"github.com/tinsmith/tinsmith/backends/internal/sample"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// replica is one place where passes run: a copy of the base model on one device, or cut over several (its ranks), with the memory of the passes. This is the seam between the engine and parallelism. The engine's goroutine
// decides what runs, and owns everything that belongs to adapters, on the home device; a replica takes batches through the model. With one replica of one rank that goroutine runs the passes itself, on the home device;
// otherwise every rank has a goroutine and a device of its own, and passes of several replicas run at once.
//
// Ranks can address the memory of the home device, so adapters are there once, whatever the number of replicas. The frozen base and the packed matrices of adapters are there once for each memory: the processor's, or a GPU's.
type replica struct {
	team    *parallel.Team
	homes   *homes
	devices []tensor.Device // by rank; of its own unless it runs on the home device
	models  []*model.Model  // by rank
	sampler *sampler        // nil: it does not sample
	trainer *trainer        // nil: it does not train
}

// each runs f on every rank at once; see parallel.Team.Run for yield. What yield does may call it again.
func (r *replica) each(f func(rank int) error, yield func() error) error {
	return r.team.Run(r.ordered(f), yield)
}

// ordered gives f with its place among other devices' work: a rank's device comes after what the homes have been given before, and the homes after what it has been given by f.
func (r *replica) ordered(f func(rank int) error) func(rank int) error {
	return func(rank int) error {
		if err := r.homes.before(r.devices[rank]); err != nil {
			return err
		}
		err := f(rank)
		return errors.Join(err, r.homes.after(r.devices[rank]))
	}
}

// point is what a pass of a rank calls between its steps.
func (r *replica) point(rank int) func() error { return func() error { return r.team.Point(rank) } }

// close frees the replica's memory and ends its ranks. A home that is the replica's device stays open.
func (r *replica) close() error {
	var errs []error
	errs = append(errs, r.each(func(rank int) error {
		if r.sampler != nil {
			r.sampler.free(rank)
			if rank == 0 {
				r.sampler.crew.close()
				r.sampler.masking.close()
			}
		}
		if r.trainer != nil {
			r.trainer.free(rank)
		}
		if rank < len(r.models) && !r.homes.has(r.models[rank].Device) {
			r.models[rank].Free()
		}
		return nil
	}, nil))
	errs = append(errs, r.team.Close())
	for _, d := range r.devices {
		if !r.homes.has(d) {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// openReplicas opens the devices of a configuration, those of one key of it, one replica for each group of names; first is the number of the first one among all ranks. A single device that would be the only one is the home device itself.
func (e *Engine) openReplicas(l *loaded, key string, groups [][]string, first int, threads func() int) ([]*replica, error) {
	var replicas []*replica
	for _, names := range groups {
		r := &replica{homes: &l.homes}
		if len(l.config.Training) == 1 && len(names) == 1 && len(l.config.Sampling) == 0 {
			r.team, r.devices = parallel.Inline(), []tensor.Device{l.device}
			return []*replica{r}, nil
		}
		for _, name := range names {
			c := l.config
			c.Device, c.Threads = name, threads()
			d, err := e.options.OpenDevice(c)
			if err == nil {
				r.devices = append(r.devices, d)
				_, err = l.homes.open(e, l.config, name)
			}
			if err != nil {
				err = l.config.opening(err)
				for _, open := range r.devices {
					err = errors.Join(err, open.Close())
				}
				return replicas, plugins.Invalidf(key, "%v", err)
			}
		}
		r.team = parallel.NewTeam(r.devices, parallel.Options{First: first, Total: l.config.ranks(), Patience: e.options.Patience, Lost: e.options.Lost})
		first += len(names)
		replicas = append(replicas, r)
		if l.config.NCCL && len(r.devices) > 1 {
			if err := r.link(l.config); err != nil {
				return replicas, plugins.Invalidf("backend.comm", "%v", err)
			}
		}
	}
	return replicas, nil
}

// link has the replica's ranks exchange through NCCL.
func (r *replica) link(c Config) error {
	d, ok := r.devices[0].(tensor.Linker)
	if !ok {
		return fmt.Errorf("%s has no NCCL", r.devices[0].Name())
	}
	links, err := d.Link(r.devices, tensor.LinkOptions{DirectAccess: c.NCCLPeerToPeer})
	if err != nil {
		return err
	}
	r.team.Link(links)
	return nil
}

// loadModels reads the base model for all replicas, and notes where adapters' matrices are needed.
func (l *loaded) loadModels(ctx context.Context) error {
	shared, places := map[string][]*model.Model{}, map[string]int{}
	sets := [][]*replica{l.training}
	if len(l.config.Sampling) > 0 {
		sets = append(sets, l.sampling)
	}
	for _, set := range sets {
		var err error
		if l.config.ShardBase && len(set) > 1 {
			err = l.loadShards(ctx, set)
		} else {
			err = l.loadShared(ctx, set, shared)
		}
		if err != nil {
			return err
		}
		for _, r := range set {
			l.placeAdapters(r, places)
			for rank, m := range r.models {
				if c := r.team.Comm(rank); c != nil {
					m.Comm = c
				}
			}
		}
	}
	l.model = l.training[0].models[0]
	if models := l.training[0].models; len(models) > 1 {
		for _, m := range models {
			l.cuts = append(l.cuts, m.Parts)
		}
	}
	return nil
}

// loadShared reads the model once for each way of cutting it and each memory; the other replicas of that kind share it.
func (l *loaded) loadShared(ctx context.Context, replicas []*replica, shared map[string][]*model.Model) error {
	for _, r := range replicas {
		ranks, kind := len(r.devices), memories(r.devices)
		models := shared[kind]
		if models == nil {
			devices := r.devices
			if ranks == 1 {
				devices = []tensor.Device{l.homes.of(r.devices[0])} // with all threads
			}
			var err error
			if models, err = model.LoadCut(ctx, l.files.dir, devices, l.files.registry, l.files.options); err != nil {
				return err
			}
			shared[kind] = models
			l.countWeights(models)
			if ranks == 1 {
				l.whole = append(l.whole, models[0])
			} else {
				r.models = models // on its own devices, to be freed with it
			}
		}
		for rank := len(r.models); rank < ranks; rank++ {
			m := models[rank]
			if r.devices[rank] != m.Device {
				m = m.Share(r.devices[rank])
			}
			r.models = append(r.models, m)
		}
	}
	return nil
}

// loadShards reads the model for replicas that share its weights out, each rank's on its own device.
func (l *loaded) loadShards(ctx context.Context, replicas []*replica) error {
	var devices [][]tensor.Device
	for _, r := range replicas {
		devices = append(devices, r.devices)
	}
	copies, err := model.LoadSharded(ctx, l.files.dir, devices, l.files.registry, l.files.options)
	if err != nil {
		return err
	}
	for i, r := range replicas {
		r.models = copies[i]
		l.countWeights(r.models)
	}
	return nil
}

// countWeights notes the memory of models that have been loaded.
func (l *loaded) countWeights(models []*model.Model) {
	if l.weightsAt == nil {
		l.weightsAt = make([]int64, len(l.homes.devices))
	}
	for _, m := range models {
		l.weights += m.WeightBytes()
		l.weightsAt[l.homes.index(m.Device)] += m.WeightBytes()
	}
}

// placeAdapters says where the matrices of adapters are that a replica's models use: replicas that cut the model alike, on the same memories, use the same.
func (l *loaded) placeAdapters(r *replica, places map[string]int) {
	kind := memories(r.devices)
	first, ok := places[kind]
	if !ok {
		first = len(l.places)
		places[kind] = first
		for rank, m := range r.models {
			place := lora.Place{Device: l.homes.of(r.devices[rank])}
			if len(r.models) > 1 {
				place.Parts = m.Parts
			}
			l.places = append(l.places, place)
		}
	}
	for rank, m := range r.models {
		m.Place = first + rank
	}
}

// reduction sums the gradient of an operation with n data.
func (l *loaded) reduction(layout *lora.Layout, n int) (*lora.Reduction, error) {
	if l.cuts == nil {
		return lora.NewReduction(l.device, layout, n, func() (*lora.Gradient, error) { return l.adapters.gradient(layout) }, l.adapters.giveGradient), nil
	}
	return lora.NewCutReduction(l.device, layout, l.cuts, n, l.adapters.gradient, l.adapters.giveGradient)
}

// concurrently runs f for 0 … n-1 at once and returns when all have ended, with the first error in order. yield, which may be nil, runs on the caller's goroutine, soon after one of them has called its own yield; its error
// is what their yields return from then on. One alone runs on the caller's goroutine.
func concurrently(n int, yield func() error, f func(i int, yield func() error) error) error {
	if n == 1 {
		return f(0, yield)
	}
	reached, done := make(chan struct{}, 1), make(chan struct{}, n)
	var stop atomic.Pointer[error]
	var pass func() error
	if yield != nil {
		pass = func() error {
			select {
			case reached <- struct{}{}:
			default:
			}
			if err := stop.Load(); err != nil {
				return *err
			}
			return nil
		}
	}
	errs := make([]error, n)
	for i := range n {
		go func() {
			errs[i] = f(i, pass)
			done <- struct{}{}
		}()
	}
	for left := n; left > 0; {
		select {
		case <-done:
			left--
		case <-reached:
			if stop.Load() == nil {
				if err := yield(); err != nil {
					stop.Store(&err)
				}
			}
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// hold has the replicas that both train and sample do nothing but sample until release is called: a training pass stands still at its next point.
func (l *loaded) hold() (release func()) {
	var held []func()
	for _, r := range l.sampling {
		if r.trainer != nil {
			held = append(held, r.team.Hold())
		}
	}
	return func() {
		for _, f := range held {
			f()
		}
	}
}

// newSampler gives a replica memory to sample with.
func (r *replica) newSampler(positions int, config *Config, threads int, memory *budget) error {
	count := positions / kvcache.PageSize
	slots := config.runningSlots(r.models[0]) + snapshotSlots(r.models[0], count)
	p := &sampler{replica: r, memory: memory, prefill: config.PrefillTokens, cache: kvcache.NewWithStates(count, slots), crew: newCrew(threads), masking: newMasking(threads, r.models[0].Config.VocabSize), workspaces: make([]*model.Workspace, len(r.models)), pages: make([]tensor.Pages, len(r.models)), states: make([]*model.States, len(r.models)),
		ranks: make([]samplingRank, len(r.models)), scratch: make([]sample.Scratch, max(1, threads))}
	p.pass, p.prepareRanks = r.ordered(p.runRank), r.ordered(p.prepareRank)
	p.adjustRow, p.drawRows, p.topRows = p.adjust, p.drawRow, p.topRow
	r.sampler = p
	if err := r.each(func(rank int) (err error) {
		p.workspaces[rank] = r.models[rank].NewWorkspace()
		p.ranks[rank] = samplingRank{sampler: p, rank: rank, model: r.models[rank], workspace: p.workspaces[rank]}
		p.ranks[rank].visit = p.ranks[rank].visitLogits
		if p.pages[rank], err = r.models[rank].NewPages(count); err != nil {
			return capacity(fmt.Sprintf("memory for keys and values of %d tokens (backend.kv_cache_tokens)", positions), err)
		}
		if !r.models[rank].Recurrent() {
			return nil
		}
		if p.states[rank], err = r.models[rank].NewStates(slots); err != nil {
			return capacity(fmt.Sprintf("memory for the states of %d sequences (backend.max_batch) and snapshots", slots), err)
		}
		return nil
	}, nil); err != nil {
		return err
	}
	p.lends = p.discard(kvcache.Block{})
	return nil
}

func (p *sampler) free(rank int) {
	if p.workspaces[rank] != nil {
		p.workspaces[rank].Free()
	}
	if p.pages[rank] != nil {
		p.pages[rank].Free()
	}
	if p.states[rank] != nil {
		p.states[rank].Free()
	}
}

// newTrainer gives a replica memory to train with, which it takes as it needs it.
func (r *replica) newTrainer(l *loaded) {
	r.trainer = &trainer{pages: make([]tensor.Pages, len(r.models))}
	for rank, m := range r.models {
		memory := l.memories[l.homes.index(r.devices[rank])]
		r.trainer.memory = append(r.trainer.memory, memory)
		w := m.NewWorkspace()
		w.Bound(memory.room)
		r.trainer.workspaces = append(r.trainer.workspaces, w)
	}
}

// free gives a rank's memory back, which can be taken again.
func (t *trainer) free(rank int) {
	t.workspaces[rank].Free()
	t.freePages(rank)
}

func (t *trainer) freePages(rank int) {
	if p := t.pages[rank]; p != nil {
		t.memory[rank].give(int64(p.Bytes()))
		p.Free()
		t.pages[rank] = nil
	}
}

// bytes is the device memory of all ranks. The replica does not train meanwhile.
func (t *trainer) bytes() int64 {
	var n int64
	for rank := range t.workspaces {
		n += t.rankBytes(rank)
	}
	return n
}

func (t *trainer) rankBytes(rank int) int64 {
	n := t.workspaces[rank].Bytes()
	if p := t.pages[rank]; p != nil {
		n += int64(p.Bytes())
	}
	return n
}

// split tells whether sampling has devices of its own.
func (l *loaded) split() bool { return l.sampling[0].trainer == nil }
