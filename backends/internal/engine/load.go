package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/constraint"
)

// Load reads the base model. It is called once; after a failure the process is of no more use.
func (e *Engine) Load(ctx context.Context, req plugins.LoadRequest, progress func(plugins.LoadProgress)) (plugins.ModelInfo, error) {
	e.mu.Lock()
	if e.loading {
		e.mu.Unlock()
		return plugins.ModelInfo{}, plugins.Invalidf("", "load was called before; a backend process loads one model")
	}
	e.loading = true
	e.mu.Unlock()
	config, err := ParseConfig(e.options.Plugin, req.Config)
	if err != nil {
		return plugins.ModelInfo{}, err
	}
	if info, err := os.Stat(req.ModelDir); errors.Is(err, fs.ErrNotExist) {
		return plugins.ModelInfo{}, &plugins.Error{Kind: plugins.KindNotFound, Field: "model_dir", Message: fmt.Sprintf("%q does not exist", req.ModelDir)}
	} else if err != nil {
		return plugins.ModelInfo{}, plugins.Invalidf("model_dir", "%v", err)
	} else if !info.IsDir() {
		return plugins.ModelInfo{}, plugins.Invalidf("model_dir", "%q is not a directory", req.ModelDir)
	}
	if progress == nil {
		progress = func(plugins.LoadProgress) {}
	}
	// The device goroutine loads; progress is reported here, so that it never comes after this call has returned.
	reports := make(chan plugins.LoadProgress, 16)
	var l *loaded
	result := make(chan error, 1)
	work := func() {
		var err error
		l, err = e.load(ctx, config, req, func(p plugins.LoadProgress) {
			select {
			case reports <- p:
			case <-ctx.Done():
			case <-e.quit: // nobody hears it
			}
		})
		if err == nil {
			e.mu.Lock()
			e.loaded = l
			e.mu.Unlock()
		}
		result <- err
	}
	if !e.call(work) {
		return plugins.ModelInfo{}, errClosed
	}
	for {
		select {
		case p := <-reports:
			progress(p)
		case err := <-result:
			for len(reports) > 0 {
				progress(<-reports)
			}
			if err != nil {
				if ctx.Err() != nil {
					return plugins.ModelInfo{}, plugins.Cancelled(ctx.Err())
				}
				return plugins.ModelInfo{}, err
			}
			return l.info, nil
		case <-ctx.Done():
			// The load looks at the context itself; its end is waited for, because it holds the device.
			select {
			case <-result:
			case <-e.quit:
			}
			return plugins.ModelInfo{}, plugins.Cancelled(ctx.Err())
		case <-e.quit:
			return plugins.ModelInfo{}, errClosed
		}
	}
}

// load opens the device and reads the model, on the device goroutine.
func (e *Engine) load(ctx context.Context, config Config, req plugins.LoadRequest, progress func(plugins.LoadProgress)) (result *loaded, err error) {
	if err := e.findWeights(ctx, &config, req.ModelDir); err != nil {
		return nil, err
	}
	opened := opening(e.openingPace, openingTime, progress)
	defer opened()
	device, err := e.options.OpenDevice(config)
	if err != nil {
		key := "backend.devices"
		if e.options.Plugin != pluginDataParallel && e.options.Plugin != pluginTensorParallel {
			key = "backend.device"
		}
		return nil, plugins.Invalidf(key, "%v", config.opening(err))
	}
	if len(config.Training) == 1 && slices.Equal(config.Training[0], []string{"auto"}) {
		config.Training = [][]string{{device.Name()}}
	}
	l := &loaded{config: config, device: device, homes: homes{devices: []tensor.Device{device}}, name: req.Name, section: slices.Clone(req.Config), spills: req.Scratch != "", measured: map[measurement]model.Memory{}}
	defer func() {
		if err != nil {
			if closing := errors.Join(l.close(), l.homes.close()); closing != nil {
				e.log().Error("closing the device", "error", closing)
			}
		}
	}()
	l.files = modelFiles{req.ModelDir, e.options.Registry, model.LoadOptions{
		DType: config.DType, FP8: config.fp8(device), MaxContext: config.MaxContextLength,
		Progress: func(done, total int64) { progress(plugins.LoadProgress{Stage: "pack", Done: done, Total: total}) },
	}}
	if err := e.arrange(ctx, l, func() (memoryLimits, error) {
		limits := memoryLimit(config, l.homes.devices)
		opened()
		progress(plugins.LoadProgress{Stage: "map"})
		return limits, nil
	}); err != nil {
		return nil, err
	}
	m := l.model
	l.limitRecorded()
	l.memory, l.memories = budgets(&l.plan)
	for _, r := range l.sampling {
		if err := r.newSampler(l.plan.positions, &config, max(1, config.Threads/len(l.sampling)), l.memory); err != nil {
			return nil, err
		}
	}
	for _, r := range l.training {
		r.newTrainer(l)
	}
	e.pace = newPace(isCUDA(device.Name()), peakRate(device, m.DType), max(1, config.Threads/config.ranks()), m.Parameters)
	if l.adapters, err = newResidency(device, l.weightShape(), req.Scratch, req.Reserve, l.plan.adapters, l.memories); err != nil {
		return nil, err
	}
	l.adapters.relieve, l.adapters.most = l.relieve, func(home int) int64 { return l.mostAt(&l.plan, home) }
	e.counters.pagesFree.Store(l.pagesFree())
	l.info = plugins.ModelInfo{
		Architecture: m.Config.Architecture, Parameters: m.Parameters, Layers: m.Config.Layers, HiddenSize: m.Config.HiddenSize, VocabSize: m.Config.VocabSize, MaxContextLength: l.plan.context,
		DType: m.DType.String(), Device: config.devices(), Arithmetic: l.arithmetic(), Products: l.homes.routes(), ModelHash: m.Hash, MaxRank: lora.MaxRank, TiedHead: m.Config.TieWordEmbeddings, Memory: l.shares(),
	}
	l.rules = constraint.NewCompiler(&l.info)
	if l.cut(l.training) != l.cut(l.sampling) {
		e.log().Warn("training and sampling cut the model differently: their log-probabilities of a token differ by rounding", "training", len(l.training[0].models), "sampling", len(l.sampling[0].models))
	}
	for _, note := range m.Notes {
		e.log().Warn("the model's files do not agree", "model_dir", req.ModelDir, "reason", note)
	}
	if long, _ := m.LongFactors(); long {
		e.log().Info("positions turn by long_factor, in short texts too: max_context_length of original_max_position_embeddings or less has short_factor",
			"context", m.MaxContext, "original_max_position_embeddings", m.Config.Rope.LongRoPE.OriginalPositions)
	}
	e.warn(l)
	progress(plugins.LoadProgress{Stage: "ready", Done: l.plan.weights, Total: l.plan.weights})
	return l, nil
}

// arrange opens the replicas' devices, beside the home device, reads the base model of l.files, if it fits, and shares the memory out that limit gives, which is asked when all devices are open.
func (e *Engine) arrange(ctx context.Context, l *loaded, limit func() (memoryLimits, error)) error {
	if err := e.open(l); err != nil {
		return err
	}
	if err := l.connect(); err != nil {
		return plugins.Invalidf("backend.devices", "%v", err)
	}
	limits, err := limit()
	if err != nil {
		return err
	}
	weights, err := l.sizeOfAll(ctx)
	if err != nil {
		return err
	}
	l.files.options.LogitsBytes = limits.logits(weights)
	if err := l.checkFit(ctx, limits, weights); err != nil {
		return err
	}
	if err := l.loadModels(ctx); errors.Is(err, tensor.ErrMemory) { // somebody else has taken it since it was looked for
		return capacity("memory for the model's weights", err)
	} else if errors.Is(err, model.ErrFP8) {
		return plugins.Invalidf(weightsKey, "%v", err)
	} else if err != nil {
		return plugins.Invalidf("model_dir", "%v", err)
	}
	l.vocabulary = l.model.Config.VocabSize
	l.plan, err = l.planMemory(ctx, limits, nil)
	return err
}

// peakRate is a device's, for products with weights of a type; 0 if it does not tell.
func peakRate(d tensor.Device, weights tensor.DType) float64 {
	if rated, ok := d.(tensor.Rated); ok {
		return rated.PeakRate(weights)
	}
	return 0
}

// arithmetic names what decides about bits: the device's kernels, the type, and over how many ranks the model is cut where that gives other bits than one that is whole, for training and, where that differs, for sampling.
func (l *loaded) arithmetic() string {
	name := tensor.ArithmeticOf(l.device, l.model.DType) + "/" + l.model.DType.String()
	if long, ok := l.model.LongFactors(); long {
		name += "/long_factor"
	} else if ok {
		name += "/short_factor"
	}
	train, sample := l.cut(l.training), l.cut(l.sampling)
	if train > 1 || sample > 1 {
		name += fmt.Sprintf("/cut over %d ranks", train)
	}
	if train != sample {
		name += fmt.Sprintf(", for sampling over %d", sample)
	}
	return name
}

// cut is over how many ranks the model is cut as far as bits tell: 1 if they are those of a whole one.
func (l *loaded) cut(replicas []*replica) int {
	if models := replicas[0].models; !models[0].Segmented() {
		return len(models)
	}
	return 1
}

// open opens the replicas' devices.
func (e *Engine) open(l *loaded) (err error) {
	c := l.config
	ranks := c.ranks()
	opened := 0
	threads := func() int { // a share of all threads for each rank
		opened++
		return max(1, opened*c.Threads/ranks-(opened-1)*c.Threads/ranks)
	}
	l.training, err = e.openReplicas(l, "backend.devices", c.Training, 0, threads)
	l.replicas = l.training
	if err != nil {
		return err
	}
	l.sampling = l.training
	if len(c.Sampling) > 0 {
		l.sampling, err = e.openReplicas(l, "backend.sample_devices", c.Sampling, len(slices.Concat(c.Training...)), threads)
		l.replicas = append(slices.Clone(l.training), l.sampling...)
	}
	return err
}

// pagesFree is the number of pages for keys and values that no sequence holds, on all replicas, those that were given back among them.
func (l *loaded) pagesFree() int64 {
	n := 0
	for _, r := range l.sampling {
		n += r.sampler.cache.Available() + r.sampler.cache.Absent()
	}
	return int64(n)
}

// close gives back all device memory but that of adapters, and closes all devices but the homes, on the device goroutine.
func (l *loaded) close() error {
	var errs []error
	if l.config.ShardBase { // devices may still be reading each other's weights
		for _, r := range l.replicas {
			errs = append(errs, r.each(func(rank int) error {
				if rank < len(r.models) {
					return r.models[rank].Finish()
				}
				return nil
			}, nil))
		}
	}
	for _, r := range l.replicas {
		errs = append(errs, r.close())
	}
	for _, m := range l.whole {
		m.Free()
	}
	return errors.Join(errs...)
}
