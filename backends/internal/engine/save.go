package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/transfer"
)

// Ends of the names of Adam's moments in a checkpoint.
const (
	suffixFirst  = ".exp_avg"
	suffixSecond = ".exp_avg_sq"
)

// SaveAdapter writes a checkpoint. An operation with a position holds its run up until the files are written; the rest of the engine goes on.
func (e *Engine) SaveAdapter(ctx context.Context, req plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	invalid := req.Validate()
	if req.Position != 0 {
		result, err := e.submit(ctx, req.Adapter, func(r *run, o *operation) {
			o.kind, o.position = kindSave, req.Position
			o.host = func() { e.saveInOrder(r, o, &req, invalid) }
		})
		if err != nil {
			return plugins.SaveAdapterResult{}, err
		}
		return result.(plugins.SaveAdapterResult), nil
	}
	if invalid != nil {
		return plugins.SaveAdapterResult{}, invalid
	}
	s, err := e.beginSave(&req)
	if err != nil {
		return plugins.SaveAdapterResult{}, err
	}
	result, err := e.write(s)
	e.mu.Lock()
	e.endSaving(s)
	e.mu.Unlock()
	e.background.Done()
	return result, err
}

// beginSave holds the version that a save outside the order names.
func (e *Engine) beginSave(req *plugins.SaveAdapterRequest) (*saving, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.accept(); err != nil {
		return nil, err
	}
	r, err := e.find(req.Adapter)
	if err != nil {
		return nil, err
	}
	v, err := e.resolve(r, req.Version)
	if err != nil {
		return nil, err
	}
	s := &saving{request: req, run: r, version: v}
	if err := e.startSaving(s); err != nil {
		return nil, err
	}
	e.background.Add(1)
	return s, nil
}

// startSaving holds the version as far as the save goes. The caller holds mu.
func (e *Engine) startSaving(s *saving) error {
	switch {
	case s.request.Scope == plugins.ScopeWeights:
		e.hold(s.version)
	case s.run.frozen:
		return plugins.Invalidf("scope", "adapter %q is only to be sampled: it has weights only", s.request.Adapter)
	case s.version.bare:
		return plugins.Invalidf("scope", "version %d of adapter %q is kept to be sampled: its optimizer state is gone", s.version.number, s.request.Adapter)
	default:
		e.holdTraining(s.version)
	}
	return nil
}

// endSaving gives up what startSaving holds. The caller holds mu.
func (e *Engine) endSaving(s *saving) {
	if s.request.Scope == plugins.ScopeWeights {
		e.release(s.version)
	} else {
		e.releaseTraining(s.version)
	}
}

// saveInOrder runs a save at its turn, on the device goroutine, and leaves the writing to a goroutine of its own.
func (e *Engine) saveInOrder(r *run, o *operation, req *plugins.SaveAdapterRequest, invalid error) {
	s := &saving{request: req, run: r}
	e.mu.Lock()
	if invalid == nil && r.broken != nil {
		invalid = r.brokenError()
	}
	if !r.deleted && invalid == nil {
		s.version, s.window = r.latest, r.window
		invalid = e.startSaving(s)
	}
	if r.deleted || invalid != nil {
		r.busy = false
		r.decide(o, nil, invalid)
		e.mu.Unlock()
		return
	}
	e.background.Add(1)
	e.mu.Unlock()
	go func() {
		defer e.background.Done()
		result, err := e.write(s)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.endSaving(s)
		r.busy = false
		r.decide(o, result, err)
		e.wake.Signal()
	}()
}

// saving is a checkpoint that is being written.
type saving struct {
	request *plugins.SaveAdapterRequest
	run     *run
	version *version
	window  window // with an accumulator
}

// write writes the checkpoint's directory: under a temporary name beside its place, every file synced, the marker of completeness last, then renamed. So it is there as a whole or not at all.
func (e *Engine) write(s *saving) (result plugins.SaveAdapterResult, err error) {
	req, v := s.request, s.version
	if _, err := os.Lstat(req.Path); !errors.Is(err, fs.ErrNotExist) {
		return result, plugins.Invalidf("path", "%s exists", req.Path)
	}
	temporary, err := os.MkdirTemp(filepath.Dir(req.Path), "."+filepath.Base(req.Path)+".tmp-")
	if err != nil {
		return result, internal("save the adapter", err)
	}
	defer func() {
		if err != nil {
			err = internal("save the adapter", err)
			_ = os.RemoveAll(temporary) // what is left has a name that nobody reads
		}
	}()
	w := &checkpointWriter{engine: e, directory: temporary, sums: map[string]string{}}
	if err := w.all(s); err != nil {
		return result, err
	}
	if err := transfer.SyncFolder(temporary); err != nil {
		return result, err
	}
	if err := os.Rename(temporary, req.Path); err != nil {
		return result, err
	}
	if err := transfer.SyncFolder(filepath.Dir(req.Path)); err != nil {
		return result, err
	}
	return plugins.SaveAdapterResult{Bytes: w.bytes, Version: v.number, Step: v.step}, nil
}

// checkpointWriter writes the files of one checkpoint.
type checkpointWriter struct {
	engine    *Engine
	directory string
	bytes     int64
	sums      map[string]string
}

// all writes every file of the checkpoint.
func (w *checkpointWriter) all(s *saving) error {
	v, l, req := s.version, w.engine.loaded, s.request
	names := lora.PEFT
	switch {
	case req.ExportNames == plugins.ExportTinker && !l.info.TiedHead: // who reads those names takes a tied head's for the embedding's
		names = lora.Tinker
	case req.ExportNames == plugins.ExportPEFT && l.model.NestedNames: // other names are loaded as no adapter, with a warning
		names = lora.NestedPEFT
	}
	form := stackedExperts
	if req.ExportNames == plugins.ExportPEFT && !req.StackedExperts {
		var err error
		if form, err = l.expertForm(v.layout); err != nil {
			return err
		}
	}
	var fused map[string]fusedModule
	if req.Scope == plugins.ScopeWeights && req.ExportNames == plugins.ExportPEFT { // a file for others: what is only read here keeps modules as they are
		fused = l.fusedModules(v.layout)
	}
	if err := w.fused(plugins.AdapterWeightsFile, names, fused, form, v.weights, ""); err != nil {
		return err
	}
	if req.Scope >= plugins.ScopeOptimizer {
		if err := w.tensors(plugins.OptimizerFile, lora.PEFT, v.moments, suffixFirst, suffixSecond); err != nil {
			return err
		}
	}
	m := plugins.Manifest{
		Scope: req.Scope.String(), BaseModel: l.name, ModelHash: l.info.ModelHash, Engine: w.engine.options.Version, Topology: w.engine.options.Plugin + " " + l.info.Device,
		Arithmetic: l.info.Arithmetic, Rank: s.run.config.Rank, Seed: s.run.config.Seed, TrainAttn: s.run.config.TrainAttention, TrainMLP: s.run.config.TrainMLP, TrainUnembed: s.run.config.TrainUnembed,
		Step: v.step, Version: v.number, Metadata: req.Metadata, SHA256: w.sums,
	}
	if !v.layout.Scaling.Plain() {
		m.Format = plugins.ScaledFormat
	}
	if req.Scope == plugins.ScopeAccumulator {
		m.WindowPasses = s.window.passes
		if s.window.failure != nil {
			m.WindowFailure, m.WindowFailureKind = s.window.failure.Error(), plugins.KindOf(s.window.failure).String()
		}
		// The run waits for this save, so nobody changes its accumulator.
		var accumulator *spillable
		if err := w.engine.onDevice(func() error {
			accumulator = s.run.accumulator
			return nil
		}); err != nil {
			return err
		}
		if accumulator == nil {
			if err := w.zeros(plugins.AccumulatorFile, v.layout); err != nil {
				return err
			}
		} else if err := w.tensors(plugins.AccumulatorFile, lora.PEFT, accumulator, ""); err != nil {
			return err
		}
	}
	config, err := encodePEFT(l.name, v.layout, fused, names, form)
	if err != nil {
		return err
	}
	if err := w.plain(plugins.AdapterConfigFile, config); err != nil {
		return err
	}
	nothing := sha256.Sum256(nil) // the marker's content, which is written last
	w.sums[plugins.CompleteFile] = hex.EncodeToString(nothing[:])
	manifest, err := m.Encode()
	if err != nil {
		return err
	}
	if err := w.plain(plugins.ManifestFile, manifest); err != nil {
		return err
	}
	return w.plain(plugins.CompleteFile, nil)
}

// tensors writes a file of a block's parameters, with a suffix behind the tensors' names for each.
func (w *checkpointWriter) tensors(file string, names lora.Names, block *spillable, suffixes ...string) error {
	return w.fused(file, names, nil, stackedExperts, block, suffixes...)
}

// fused is tensors for a file in which some modules are fused, and layers of experts have a form.
func (w *checkpointWriter) fused(file string, names lora.Names, fused map[string]fusedModule, form expertForm, block *spillable, suffixes ...string) error {
	c := &blockCopy{engine: w.engine, block: block, form: form, visit: w.engine.visit}
	sources := c.sources(names, fused, suffixes...)
	return w.file(file, func(out io.Writer) (int64, [sha256.Size]byte, error) { return safetensors.Write(out, nil, sources) })
}

// zeros writes a file of parameters that are all zero.
func (w *checkpointWriter) zeros(file string, layout *lora.Layout) error {
	var sources []safetensors.Source
	if err := eachTensor(layout, func(name string, shape []int) error {
		sources = append(sources, safetensors.Float32Source(name, shape, func() ([]float32, error) { return make([]float32, elements(shape)), nil }))
		return nil
	}); err != nil {
		return err
	}
	return w.file(file, func(out io.Writer) (int64, [sha256.Size]byte, error) { return safetensors.Write(out, nil, sources) })
}

// plain writes a file of bytes.
func (w *checkpointWriter) plain(name string, content []byte) error {
	return w.file(name, func(out io.Writer) (int64, [sha256.Size]byte, error) {
		n, err := out.Write(content)
		return int64(n), sha256.Sum256(content), err
	})
}

// file writes and syncs one file and notes its size and checksum.
func (w *checkpointWriter) file(name string, content func(io.Writer) (int64, [sha256.Size]byte, error)) error {
	f, err := os.OpenFile(filepath.Join(w.directory, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, sum, err := content(f)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	w.bytes += n
	w.sums[name] = hex.EncodeToString(sum[:])
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
