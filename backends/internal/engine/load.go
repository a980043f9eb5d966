package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/plugins"
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
	device, err := e.options.OpenDevice(config)
	if err != nil {
		return nil, plugins.Invalidf("backend.device", "%v", err)
	}
	l := &loaded{config: config, device: device, name: req.Name}
	defer func() {
		if err != nil {
			if closing := errors.Join(l.close(), device.Close()); closing != nil {
				e.log.Error("closing the device", "error", closing)
			}
		}
	}()
	if err := e.open(l); err != nil {
		return nil, err
	}
	progress(plugins.LoadProgress{Stage: "map"})
	err = l.loadModels(ctx, req.ModelDir, e.options.Registry, model.LoadOptions{
		DType: config.DType, MaxContext: config.MaxContextLength,
		Progress: func(done, total int64) { progress(plugins.LoadProgress{Stage: "pack", Done: done, Total: total}) },
	})
	if err != nil {
		return nil, plugins.Invalidf("model_dir", "%v", err)
	}
	m := l.model
	l.weightBytes, l.vocabulary = m.WeightBytes(), m.Config.VocabSize
	positions, context, err := cacheSize(config, m)
	if err != nil {
		return nil, err
	}
	l.context = context
	for _, r := range l.sampling {
		if err := r.newSampler(positions, max(1, config.Threads/len(l.sampling))); err != nil {
			return nil, err
		}
	}
	for _, r := range l.training {
		r.newTrainer()
	}
	e.pace = newPace(max(1, config.Threads/config.ranks()), m.Parameters)
	if l.adapters, err = newResidency(device, m.DType, req.Scratch, adapterMemory(config)); err != nil {
		return nil, err
	}
	e.counters.pagesFree.Store(l.pagesFree())
	l.info = plugins.ModelInfo{
		Architecture: m.Config.Architecture, Parameters: m.Parameters, Layers: m.Config.Layers, HiddenSize: m.Config.HiddenSize, VocabSize: m.Config.VocabSize, MaxContextLength: context,
		DType: m.DType.String(), Device: config.devices(), Arithmetic: device.Arithmetic() + "/" + m.DType.String(), ModelHash: m.Hash, MaxRank: lora.MaxRank,
	}
	progress(plugins.LoadProgress{Stage: "ready", Done: l.weightBytes, Total: l.weightBytes})
	return l, nil
}

// cacheSize gives the positions of the cache of keys and values (a multiple of a page) and the longest sequence. What is configured holds, or fails. What is automatic: the cache has room for two of the longest
// sequences, 65,536 positions at least, but takes no more than a quarter of the memory that is available; the longest sequence is the model's, or what the cache can hold.
func cacheSize(config Config, m *model.Model) (positions, context int, err error) {
	roundUp := func(n int) int { return (n + kvcache.PageSize - 1) / kvcache.PageSize * kvcache.PageSize }
	context = m.MaxContext
	if config.KVCacheTokens > 0 {
		positions = roundUp(config.KVCacheTokens)
	} else {
		positions = roundUp(max(2*context, 1<<16))
		each := int64(2 * m.Config.Layers * m.Config.KVHeads * m.Config.HeadDim * m.DType.Size())
		if available, ok := availableMemory(); ok && int64(positions)*each > available/4 {
			positions = max(int(available/4/each)/kvcache.PageSize, 1) * kvcache.PageSize
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

// adapterMemory is the limit for what adapters take, in bytes.
func adapterMemory(config Config) int64 {
	if config.AdapterMemory > 0 {
		return config.AdapterMemory
	}
	if available, ok := availableMemory(); ok {
		return available / 2
	}
	return math.MaxInt64
}

// availableMemory is what the system can give without swapping, where it tells.
func availableMemory() (int64, bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 3 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
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
	l.training, err = e.openReplicas(l, c.Training, threads)
	l.replicas = l.training
	if err != nil {
		return err
	}
	l.sampling = l.training
	if len(c.Sampling) > 0 {
		l.sampling, err = e.openReplicas(l, c.Sampling, threads)
		l.replicas = append(slices.Clone(l.training), l.sampling...)
	}
	return err
}

// pagesFree is the number of pages for keys and values that can be had, on all replicas.
func (l *loaded) pagesFree() int64 {
	n := 0
	for _, r := range l.sampling {
		n += r.sampler.cache.Available()
	}
	return int64(n)
}

// close gives back all device memory but that of adapters, and closes all devices but the home device, on the device goroutine.
func (l *loaded) close() error {
	var errs []error
	for _, r := range l.replicas {
		errs = append(errs, r.close(l.device))
	}
	if l.model != nil {
		l.model.Free()
	}
	return errors.Join(errs...)
}
