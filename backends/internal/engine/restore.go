package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// LoadAdapter reads a checkpoint of ours, or a PEFT adapter of any origin. The files are read and verified before the adapter is touched: a load that fails changes nothing, but what comes behind it in the
// order fails as well, because it was meant for the weights that did not come.
func (e *Engine) LoadAdapter(ctx context.Context, req plugins.LoadAdapterRequest) (plugins.AdapterInfo, error) {
	invalid := req.Validate()
	if req.Position == 0 {
		if invalid != nil {
			return plugins.AdapterInfo{}, invalid
		}
		return e.begin(ctx, req.Adapter, req, func(r *run, l *loaded) {
			if err := e.inBackground(func() {
				c, err := l.read(&req)
				if err == nil {
					err = e.onDevice(func() error {
						if err := e.inVain(r); err != nil {
							return err
						}
						v, g, err := l.restore(r.id, c, c.layout, !req.Frozen)
						if err != nil {
							return err
						}
						r.layout, r.config, r.notices, r.frozen, r.accumulator, r.window, r.next = c.layout, c.config, c.notices, req.Frozen, g, c.window, req.Version
						e.finish(r, v, nil)
						return nil
					})
				}
				if err != nil {
					e.finish(r, nil, err)
				}
			}); err != nil {
				e.finish(r, nil, err)
			}
		})
	}
	result, err := e.submit(ctx, req.Adapter, func(r *run, o *operation) {
		o.kind, o.position = kindLoad, req.Position
		o.host = func() {
			if err := e.inBackground(func() { e.replace(r, o, &req, invalid) }); err != nil {
				e.endLoad(r, o, nil, nil, err)
			}
		}
	})
	if err != nil {
		return plugins.AdapterInfo{}, err
	}
	info := result.(plugins.AdapterInfo)
	info.Config.Modules = slices.Clone(info.Config.Modules)
	return info, nil
}

// inBackground runs host work on a goroutine that Close waits for.
func (e *Engine) inBackground(f func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return errClosed
	}
	e.background.Go(f)
	return nil
}

// replace loads a checkpoint as the next version of a run, at the operation's turn.
func (e *Engine) replace(r *run, o *operation, req *plugins.LoadAdapterRequest, invalid error) {
	err := invalid
	var c *checkpoint
	if err == nil {
		c, err = e.loaded.read(req)
	}
	if err == nil {
		err = c.fits(r)
	}
	if err != nil {
		e.endLoad(r, o, nil, nil, err)
		return
	}
	if err := e.onDevice(func() error {
		v, g, err := e.loaded.restore(r.id, c, c.layout, true) // with the checkpoint's scale, which may be another one
		if err != nil {
			return err
		}
		e.mu.Lock()
		deleted, misnumbered := r.deleted, r.numbered(req.Version)
		e.mu.Unlock()
		if deleted || misnumbered != nil {
			e.loaded.free(v)
			e.loaded.adapters.drop(g)
			if misnumbered != nil {
				return misnumbered
			}
			return errClosed // nobody waits for the answer: the operation was ended with the adapter
		}
		e.loaded.freeAccumulator(r)
		r.accumulator = g
		e.mu.Lock()
		r.layout, r.config.Alpha, r.window = c.layout, c.config.Alpha, c.window
		e.mu.Unlock()
		e.endLoad(r, o, v, c.notices, nil)
		return nil
	}); err != nil {
		e.endLoad(r, o, nil, nil, err)
	}
}

// numbered gives the next version the number that a load asks for, if it does. The caller holds mu.
func (r *run) numbered(version int64) error {
	if version == 0 {
		return nil
	}
	if version < r.next {
		return plugins.Invalidf("version", "%d is not allowed: %d or more, above the latest version", version, r.next)
	}
	r.next = version
	return nil
}

// endLoad decides a load: v becomes the latest version, or the run is broken until another load succeeds.
func (e *Engine) endLoad(r *run, o *operation, v *version, notices []string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.deleted {
		if v != nil {
			e.dead = append(e.dead, v)
			e.wake.Signal()
		}
		return
	}
	r.busy, r.broken = false, err
	if err != nil {
		r.decide(o, nil, err)
	} else {
		e.publish(r, v)
		r.decide(o, plugins.AdapterInfo{Config: r.config, Version: v.number, Step: v.step, Bytes: v.size, Notices: notices}, nil)
	}
	e.wake.Signal()
}

// checkpoint is what was read from a directory, verified, in Go memory.
type checkpoint struct {
	config      plugins.AdapterConfig
	layout      *lora.Layout
	notices     []string // about a foreign adapter, see plugins.AdapterInfo
	step        int64
	weights     map[string][]float32 // by PEFT name
	moments     map[string][]float32 // by PEFT name and suffix; nil without optimizer state
	accumulator map[string][]float32 // nil without
	window      window
}

// fits tells whether the checkpoint has the shape of an adapter that exists.
func (c *checkpoint) fits(r *run) error {
	same := c.layout.Rank == r.layout.Rank
	for i, m := range r.layout.Modules {
		same = same && c.layout.Has(i) == r.layout.Has(i)
		if same && r.layout.Has(i) && m != c.layout.Modules[i] {
			a, b := c.layout.Modules[i].Copies()
			mine, its := m.Copies()
			return plugins.Invalidf("lora_config", "the checkpoint has %d A and %d B of %s, the adapter has %d and %d", a, b, m.Name, mine, its)
		}
	}
	if !same {
		return plugins.Invalidf("lora_config", "the checkpoint has rank %d on %s, the adapter has rank %d on %s", c.layout.Rank, strings.Join(c.layout.Kinds(), ", "), r.layout.Rank, strings.Join(r.layout.Kinds(), ", "))
	}
	return nil
}

// restore makes a version, and the accumulated gradient if there is one, on the device goroutine.
func (l *loaded) restore(adapter string, c *checkpoint, layout *lora.Layout, moments bool) (v *version, accumulator *spillable, err error) {
	v, err = l.emptyVersion(adapter, layout, moments)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			l.free(v)
			l.adapters.drop(accumulator)
			v, accumulator, err = nil, nil, internal("load the adapter", err)
		}
	}()
	if err = l.upload(v.weights.weights().Masters, c.weights, ""); err != nil {
		return
	}
	if err = v.weights.weights().Pack(); err != nil {
		return
	}
	switch {
	case !moments:
	case c.moments == nil:
		if err = v.moments.state().Zero(); err != nil {
			return
		}
	default:
		state := v.moments.state()
		if err = l.upload(state.M, c.moments, suffixFirst); err != nil {
			return
		}
		if err = l.upload(state.V, c.moments, suffixSecond); err != nil {
			return
		}
		state.Step, v.step = c.step, c.step
	}
	l.written(v)
	if c.accumulator != nil {
		if accumulator, err = l.adapters.make(fmt.Sprintf("gradient of adapter %q", adapter), gradientContent, layout); err != nil {
			return
		}
		if err = l.upload(accumulator.gradient().Parameters, c.accumulator, ""); err != nil {
			return
		}
		l.adapters.done(accumulator)
	}
	return
}

func (l *loaded) upload(p *lora.Parameters, values map[string][]float32, suffix string) error {
	return p.Each(func(name string, t tensor.Tensor) error { return l.device.Upload(t, values[name+suffix]) })
}

// read reads a directory as far as the request's scope goes, and verifies it: checksums, base model, names, shapes, and that every value is finite.
func (l *loaded) read(req *plugins.LoadAdapterRequest) (*checkpoint, error) {
	d := directory{path: req.Path}
	if _, err := os.Stat(req.Path); err != nil {
		return nil, &plugins.Error{Kind: plugins.KindNotFound, Field: "path", Message: fmt.Sprintf("no checkpoint: %v", err)}
	}
	manifest, err := d.manifest()
	switch {
	case err != nil:
		return nil, err
	case manifest == nil && req.Scope != plugins.ScopeWeights:
		return nil, plugins.Invalidf("path", "%s has no %s: only weights can be loaded", req.Path, plugins.ManifestFile)
	case manifest != nil:
		if err := manifest.Check(l.info.ModelHash, req.Scope); err != nil {
			return nil, err
		}
		d.sums = manifest.SHA256
		if _, err := d.text(plugins.CompleteFile); err != nil {
			return nil, err
		}
	}
	text, err := d.text(plugins.AdapterConfigFile)
	if err != nil {
		return nil, err
	}
	config, err := decodePEFT(text, l.info.MaxRank)
	if err != nil {
		return nil, err
	}
	c := &checkpoint{}
	if err := l.readWeights(c, d, config, manifest == nil); err != nil {
		return nil, err
	}
	if manifest == nil {
		c.notices = config.notices
	}
	if manifest != nil {
		c.config.Seed = manifest.Seed
	}
	if req.Scope >= plugins.ScopeOptimizer {
		if c.moments, err = l.readParameters(c.layout, d, plugins.OptimizerFile, suffixFirst, suffixSecond); err != nil {
			return nil, err
		}
		for name, values := range c.moments {
			if i := slices.IndexFunc(values, func(v float32) bool { return v < 0 }); i >= 0 && strings.HasSuffix(name, suffixSecond) {
				return nil, plugins.Invalidf("path", "%s: tensor %q: value %d is %v: a second moment is not negative", plugins.OptimizerFile, name, i, values[i])
			}
		}
		c.step = manifest.Step
	}
	if req.Scope == plugins.ScopeAccumulator {
		if c.accumulator, err = l.readParameters(c.layout, d, plugins.AccumulatorFile, ""); err != nil {
			return nil, err
		}
		c.window.passes = manifest.WindowPasses
		if manifest.WindowFailure != "" {
			kind, _ := plugins.ParseKind(manifest.WindowFailureKind) // an unknown one is internal
			c.window.failure = &plugins.Error{Kind: kind, Message: manifest.WindowFailure}
		}
	}
	return c, nil
}

// readWeights finds out which modules a file's tensors belong to, and reads them. Those of a foreign adapter may be smaller than the layout has them, see foreignConfig.fit.
func (l *loaded) readWeights(c *checkpoint, d directory, config *foreignConfig, foreign bool) (err error) {
	limit, copies := l.largest(1), &baseCopies{loaded: l}
	defer func() { err = errors.Join(err, copies.close()) }()
	if foreign {
		limit += copies.limit()
	}
	f, err := d.tensors(plugins.AdapterWeightsFile, limit)
	if err != nil {
		return err
	}
	defer f.Close()
	modules := map[string]int{}
	for i, m := range l.model.Modules {
		modules[m.Name] = i
	}
	has := map[string]bool{}
	experts := newExpertFiles(l.model.Modules, l.model.PEFTExperts)
	stored := map[string]string{} // PEFT name → the file's name
	fused := &fusedLoRA{l, config, map[string]map[string]string{}, map[string][]float32{}}
	for _, name := range f.Names() {
		module, matrix, ok := lora.ParseTensorName(name)
		i, known := modules[module]
		if ok {
			switch mine, err := experts.take(module, matrix, name); {
			case err != nil:
				return err
			case mine:
				c.config.TrainMLP = true
				continue
			}
		}
		if ok && !known {
			switch taken, err := fused.take(module, matrix, name); {
			case err != nil:
				return err
			case taken:
				continue
			}
		}
		if !ok || !known {
			if base, ok := copies.mayBe(name); ok && foreign {
				if err := copies.compare(f, name, base); err != nil {
					return err
				}
				continue
			}
			if strings.Contains(name, ".lora_embedding_") {
				return plugins.Invalidf("path", "tensor %.200q is LoRA on the embedding, which is not supported: train without it in target_modules, and on a tied model without ensure_weight_tying", name)
			}
			return plugins.Invalidf("path", "tensor %.200q belongs to no module of this model", name)
		}
		canonical := lora.TensorName(module, matrix, lora.PEFT)
		if other, twice := stored[canonical]; twice {
			return plugins.Invalidf("path", "tensors %.200q and %.200q are the same", other, name)
		}
		stored[canonical] = name
		has[module] = true
		c.trains(l.model.Modules[i].Group)
	}
	parts, err := fused.split(f)
	if err != nil {
		return err
	}
	for _, name := range parts {
		if has[name] {
			return plugins.Invalidf("path", "%s holds LoRA of %s alone and with others as one", plugins.AdapterWeightsFile, name)
		}
		has[name] = true
		c.trains(l.model.Modules[modules[name]].Group)
	}
	pairs, err := experts.read(f, config)
	if err != nil {
		return err
	}
	own, err := withCopies(l.model.Modules, pairs)
	if err != nil {
		return err
	}
	for name, p := range pairs {
		has[name] = true
		config.own[name] = ownRank{p.rank, p.alpha}
	}
	if len(has) == 0 {
		return plugins.Invalidf("path", "%s holds no LoRA tensor", plugins.AdapterWeightsFile)
	}
	var ranks []int // in the file, by module
	if c.layout, ranks, err = config.fit(own, func(m lora.Module) bool { return has[m.Name] }, !foreign); err != nil {
		return err
	}
	c.config.Rank, c.config.Modules, c.config.Alpha = c.layout.Rank, c.layout.Kinds(), c.layout.Alpha()
	c.weights = map[string][]float32{}
	for i, m := range c.layout.Modules {
		if !c.layout.Has(i) {
			continue
		}
		if p, ok := pairs[m.Name]; ok {
			c.weights[lora.TensorName(m.Name, "A", lora.PEFT)] = p.a.padded(c.layout.Rank, m.In)
			c.weights[lora.TensorName(m.Name, "B", lora.PEFT)] = p.b.padded(m.Out, c.layout.Rank)
			continue
		}
		for k, shape := range [2][]int{{ranks[i], m.In}, {m.Out, ranks[i]}} {
			name := lora.TensorName(m.Name, string("AB"[k]), lora.PEFT)
			values := fused.values[name]
			if values == nil {
				if values, err = readTensor(f, plugins.AdapterWeightsFile, stored[name], name, shape); err != nil {
					return err
				}
			}
			c.weights[name] = padded(values, shape, matrixShapes(c.layout, m)[k])
		}
	}
	return nil
}

// trains notes that the adapter has modules of a group.
func (c *checkpoint) trains(g lora.Group) {
	switch g {
	case lora.Attention:
		c.config.TrainAttention = true
	case lora.MLP:
		c.config.TrainMLP = true
	case lora.Unembed:
		c.config.TrainUnembed = true
	}
}

// padded puts a matrix into a larger one of zeros.
func padded(values []float32, from, to []int) []float32 {
	if slices.Equal(from, to) {
		return values
	}
	all := make([]float32, to[0]*to[1])
	for row := range from[0] {
		copy(all[row*to[1]:], values[row*from[1]:][:from[1]])
	}
	return all
}

// largest is the most bytes that a file of so many values per parameter can have on this model.
func (l *loaded) largest(values int64) int64 {
	var n int64
	for _, m := range l.model.Modules {
		n += int64(m.In+m.Out) * int64(l.info.MaxRank) * 2 * int64(max(m.Experts, 1)) // fused gates and ups have zeros for each other
	}
	if l.model.Wholes != nil { // B has zeros beside the blocks of modules that are fused
		n *= mostFused
	}
	return 4*values*n + maxText
}

// readParameters reads a file that has every tensor of a layout under each suffix, and nothing else.
func (l *loaded) readParameters(layout *lora.Layout, d directory, file string, suffixes ...string) (map[string][]float32, error) {
	f, err := d.tensors(file, l.largest(int64(len(suffixes))))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string][]float32{}
	if err := eachTensor(layout, func(name string, shape []int) error {
		for _, s := range suffixes {
			if all[name+s], err = readTensor(f, file, name+s, name+s, shape); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, name := range f.Names() {
		if all[name] == nil {
			return nil, plugins.Invalidf("path", "%s: tensor %.200q belongs to no parameter of the adapter", file, name)
		}
	}
	return all, nil
}

// eachTensor visits the tensors of a layout by their PEFT names.
func eachTensor(layout *lora.Layout, visit func(name string, shape []int) error) error {
	for i, m := range layout.Modules {
		if !layout.Has(i) {
			continue
		}
		for k, shape := range matrixShapes(layout, m) {
			if err := visit(lora.TensorName(m.Name, string("AB"[k]), lora.PEFT), shape); err != nil {
				return err
			}
		}
	}
	return nil
}

// matrixShapes are those of a module's A and B; of a layer of experts with the number of copies before.
func matrixShapes(l *lora.Layout, m lora.Module) [2][]int {
	if m.Experts > 0 {
		a, b := m.Copies()
		return [2][]int{{a, l.Rank, m.In}, {b, m.Out, l.Rank}}
	}
	return [2][]int{{l.Rank, m.In}, {m.Out, l.Rank}}
}

// elements is how many a shape has.
func elements(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// readTensor reads one tensor, which the file has under the name stored, and checks its shape and values.
func readTensor(f *safetensors.File, file, stored, name string, shape []int) ([]float32, error) {
	t, ok := f.Tensor(stored)
	if !ok {
		return nil, plugins.Invalidf("path", "%s: tensor %q is missing", file, name)
	}
	if !slices.Equal(t.Shape, shape) {
		return nil, plugins.Invalidf("path", "%s: tensor %q has shape %v, expected %v", file, stored, t.Shape, shape)
	}
	values, err := t.Float32s()
	if err != nil {
		return nil, plugins.Invalidf("path", "%s: tensor %q: %v", file, stored, err)
	}
	for i, v := range values {
		if !finite(float64(v)) {
			return nil, &plugins.Error{Kind: plugins.KindNotFinite, Field: name, Message: fmt.Sprintf("value %d in %s is %v", i, file, v)}
		}
	}
	return values, nil
}
