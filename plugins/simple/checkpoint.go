package simple

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/transfer"
)

// Files of one scope, without those of the scopes below it.
const (
	suffixFirst  = ".exp_avg"
	suffixSecond = ".exp_avg_sq"
)

// SaveAdapter implements plugins.Backend.
func (b *Backend) SaveAdapter(ctx context.Context, req plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	if req.Position != 0 {
		return ordered(ctx, b, req.Adapter, req.Position, false, func(a *adapter) (plugins.SaveAdapterResult, error) {
			if err := b.turn(a, "save_adapter"); err != nil {
				return plugins.SaveAdapterResult{}, err
			}
			return b.save(a, b.latest(a), &req)
		})
	}
	if err := req.Validate(); err != nil {
		return plugins.SaveAdapterResult{}, err
	}
	b.mu.Lock()
	err := b.accept()
	var a *adapter
	if err == nil {
		a, err = b.find(req.Adapter)
	}
	if err != nil {
		b.mu.Unlock()
		return plugins.SaveAdapterResult{}, err
	}
	v := a.latest
	if req.Version != plugins.LatestVersion {
		v = a.versions[req.Version]
	}
	if v == nil {
		b.mu.Unlock()
		return plugins.SaveAdapterResult{}, &plugins.Error{Kind: plugins.KindNotFound, Field: "version", Message: fmt.Sprintf("adapter %.200q has no version %d any more or yet", req.Adapter, req.Version)}
	}
	v.users++
	b.begin()
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		a.release(v)
		b.end()
		b.mu.Unlock()
	}()
	if err := b.before(ctx, "save_adapter"); err != nil {
		return plugins.SaveAdapterResult{}, err
	}
	return b.save(a, v, &req)
}

// save writes a version and, with ScopeAccumulator, the adapter's window.
func (b *Backend) save(a *adapter, v *version, req *plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	if err := req.Validate(); err != nil {
		return plugins.SaveAdapterResult{}, err
	}
	if req.Scope > plugins.ScopeWeights && v.first == nil {
		return plugins.SaveAdapterResult{}, plugins.Invalidf("scope", "adapter %.200q is only to be sampled: it has weights only", a.id)
	}
	if _, err := os.Lstat(req.Path); !errors.Is(err, fs.ErrNotExist) {
		return plugins.SaveAdapterResult{}, plugins.Invalidf("path", "%s exists", req.Path)
	}
	config, _ := json.MarshalIndent(peftConfig{
		PEFTType: "LORA", TaskType: "CAUSAL_LM", BaseModel: b.name, Rank: a.config.Rank, Alpha: v.Layout.Alpha, Bias: "none", TargetModules: b.moduleNames(v.Layout), InferenceMode: true,
	}, "", "  ")
	files := map[string][]byte{
		plugins.AdapterConfigFile:  config,
		plugins.AdapterWeightsFile: b.encode(v.Layout, req.ExportNames, []string{""}, v.Values),
		plugins.CompleteFile:       nil,
	}
	m := plugins.Manifest{
		Scope: req.Scope.String(), BaseModel: b.name, ModelHash: b.info.ModelHash, Engine: b.options.Version, Topology: b.options.Topology, Arithmetic: b.info.Arithmetic,
		Rank: a.config.Rank, Seed: a.config.Seed, TrainAttn: a.config.TrainAttention, TrainMLP: a.config.TrainMLP, TrainUnembed: a.config.TrainUnembed,
		Step: v.step, Version: v.number, Metadata: req.Metadata, SHA256: map[string]string{},
	}
	if v.Layout.Alpha != loraAlpha {
		m.Format = plugins.ScaledFormat
	}
	if req.Scope >= plugins.ScopeOptimizer {
		files[plugins.OptimizerFile] = b.encode(v.Layout, plugins.ExportPEFT, []string{suffixFirst, suffixSecond}, v.first, v.second)
	}
	if req.Scope == plugins.ScopeAccumulator {
		files[plugins.AccumulatorFile] = b.encode(v.Layout, plugins.ExportPEFT, []string{""}, a.accumulated)
		m.WindowPasses = a.passes
		if a.failure != nil {
			m.WindowFailure, m.WindowFailureKind = a.failure.Error(), a.failure.Kind.String()
		}
	}
	var bytes int64
	for name, content := range files {
		sum := sha256.Sum256(content)
		m.SHA256[name] = hex.EncodeToString(sum[:])
		bytes += int64(len(content))
	}
	manifest, err := m.Encode()
	if err != nil {
		return plugins.SaveAdapterResult{}, fmt.Errorf("save adapter: %w", err)
	}
	files[plugins.ManifestFile] = manifest
	if err := writeDirectory(req.Path, files); err != nil {
		return plugins.SaveAdapterResult{}, fmt.Errorf("save adapter: %w", err)
	}
	return plugins.SaveAdapterResult{Bytes: bytes + int64(len(manifest)), Version: v.number, Step: v.step}, nil
}

func (b *Backend) encode(l *Layout, exportNames string, suffixes []string, flats ...[]float32) []byte {
	var names []string
	var shapes [][]int
	var values [][]float32
	for i, suffix := range suffixes {
		for _, t := range l.Tensors {
			names = append(names, b.tensorName(t, exportNames)+suffix)
			shapes = append(shapes, t.Shape)
			values = append(values, flats[i][t.Offset:][:t.Size()])
		}
	}
	return encodeSafetensors(names, shapes, values)
}

// writeDirectory writes files under a temporary name, syncs, and renames: the directory appears whole or not at all.
func writeDirectory(path string, files map[string][]byte) (err error) {
	temporary, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(temporary)
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := writeSynced(filepath.Join(temporary, name), files[name]); err != nil {
			return err
		}
	}
	if err := transfer.SyncFolder(temporary); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return transfer.SyncFolder(filepath.Dir(path))
}

func writeSynced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// loaded is what a checkpoint held.
type loaded struct {
	config  plugins.AdapterConfig
	version *version
	grad    []float32
	passes  int
	failure *plugins.Error
	notices []string
}

// LoadAdapter implements plugins.Backend.
func (b *Backend) LoadAdapter(ctx context.Context, req plugins.LoadAdapterRequest) (plugins.AdapterInfo, error) {
	if req.Position == 0 {
		b.mu.Lock()
		err := b.accept()
		old := b.adapters[req.Adapter]
		b.mu.Unlock()
		if err != nil {
			return plugins.AdapterInfo{}, err
		}
		if old != nil && old.origin == any(req) {
			return old.created, nil
		}
		if err := b.before(ctx, "load_adapter"); err != nil {
			return plugins.AdapterInfo{}, err
		}
		l, err := b.read(&req)
		if err != nil {
			return plugins.AdapterInfo{}, err
		}
		l.version.number = req.Version
		info, err := b.install(req.Adapter, req, l.config, l.version, req.Frozen)
		info.Notices = l.notices
		if err == nil && l.grad != nil {
			b.restoreWindow(req.Adapter, l)
		}
		return info, err
	}
	return ordered(ctx, b, req.Adapter, req.Position, true, func(a *adapter) (plugins.AdapterInfo, error) {
		info, err := b.replace(a, &req)
		if err != nil {
			a.broken = asError(err)
		}
		return info, err
	})
}

// restoreWindow gives a freshly loaded adapter its accumulated gradient, before anybody can know the adapter.
func (b *Backend) restoreWindow(id string, l *loaded) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.adapters[id]; a != nil && a.next == 1 {
		a.accumulated, a.passes, a.failure = l.grad, l.passes, l.failure
	}
}

// replace loads a checkpoint as the next version of an adapter that exists.
func (b *Backend) replace(a *adapter, req *plugins.LoadAdapterRequest) (plugins.AdapterInfo, error) {
	if err := b.before(context.Background(), "load_adapter"); err != nil {
		return plugins.AdapterInfo{}, err
	}
	l, err := b.read(req)
	if err != nil {
		return plugins.AdapterInfo{}, err
	}
	if l.config.Rank != a.layout.Rank || !sameModules(l.version.Layout, a.layout) {
		return plugins.AdapterInfo{}, plugins.Invalidf("lora_config", "the checkpoint has rank %d on %s, the adapter has rank %d on %s",
			l.config.Rank, strings.Join(b.moduleNames(l.version.Layout), ", "), a.layout.Rank, strings.Join(a.config.Modules, ", "))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	next := a.latest.number + 1
	if req.Version != 0 {
		if req.Version < next {
			return plugins.AdapterInfo{}, plugins.Invalidf("version", "%d is not allowed: %d or more, above the latest version", req.Version, next)
		}
		next = req.Version
	}
	l.version.number = next
	a.layout, a.config.Alpha = l.version.Layout, l.version.Layout.Alpha // it differs in its scale only
	a.publish(l.version)
	a.accumulated, a.passes, a.failure, a.broken = make([]float32, a.layout.Total), l.passes, l.failure, nil
	if l.grad != nil {
		a.accumulated = l.grad
	}
	return plugins.AdapterInfo{Config: a.config, Version: l.version.number, Step: l.version.step, Bytes: l.version.bytes()}, nil
}

// read reads and verifies a checkpoint directory of ours or a PEFT adapter of any origin.
func (b *Backend) read(req *plugins.LoadAdapterRequest) (*loaded, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	files, manifest, err := b.readFiles(req)
	if err != nil {
		return nil, err
	}
	if err := checkPEFT(files[plugins.AdapterConfigFile]); err != nil {
		return nil, err
	}
	var peft peftConfig
	if err := json.Unmarshal(files[plugins.AdapterConfigFile], &peft); err != nil {
		return nil, plugins.Invalidf("path", "%s: %v", plugins.AdapterConfigFile, err)
	}
	if peft.Rank < 1 || peft.Rank > b.info.MaxRank {
		return nil, plugins.Invalidf("path", "%s: r %d is not allowed: 1 to %d", plugins.AdapterConfigFile, peft.Rank, b.info.MaxRank)
	}
	if !(peft.Alpha > 0) || math.IsInf(peft.Alpha, 0) {
		return nil, plugins.Invalidf("path", "%s: lora_alpha %v is not allowed: a finite number above 0", plugins.AdapterConfigFile, peft.Alpha)
	}
	entries, values, err := decodeSafetensors(files[plugins.AdapterWeightsFile])
	if err != nil {
		return nil, plugins.Invalidf("path", "%s: %v", plugins.AdapterWeightsFile, err)
	}
	s, err := b.layoutOf(entries, peft.Rank)
	if err != nil {
		return nil, err
	}
	v := &version{Weights: NewWeights(s)}
	if v.Values, err = b.collect(s, values, "", plugins.AdapterWeightsFile); err != nil {
		return nil, err
	}
	if s.Alpha = peft.Alpha; peft.Rooted {
		s.Alpha *= math.Sqrt(float64(peft.Rank))
	}
	l := &loaded{version: v, config: plugins.AdapterConfig{Rank: peft.Rank, Alpha: s.Alpha}}
	for i, p := range s.Pairs {
		switch g := b.modules[i].Group; {
		case p.A == nil:
		case g == Attention:
			l.config.TrainAttention = true
		case g == MLP:
			l.config.TrainMLP = true
		default:
			l.config.TrainUnembed = true
		}
	}
	if manifest != nil {
		l.config.Seed = manifest.Seed
	} else if peft.Dropout != 0 {
		l.notices = []string{fmt.Sprintf("lora_dropout %v is not applied when it is trained on here", peft.Dropout)}
	}
	if req.Frozen {
		return l, nil
	}
	v.first, v.second = make([]float32, s.Total), make([]float32, s.Total)
	if req.Scope >= plugins.ScopeOptimizer {
		_, moments, err := decodeSafetensors(files[plugins.OptimizerFile])
		if err != nil {
			return nil, plugins.Invalidf("path", "%s: %v", plugins.OptimizerFile, err)
		}
		if v.first, err = b.collect(s, moments, suffixFirst, plugins.OptimizerFile); err != nil {
			return nil, err
		}
		if v.second, err = b.collect(s, moments, suffixSecond, plugins.OptimizerFile); err != nil {
			return nil, err
		}
		v.step = manifest.Step
	}
	if req.Scope == plugins.ScopeAccumulator {
		_, grad, err := decodeSafetensors(files[plugins.AccumulatorFile])
		if err != nil {
			return nil, plugins.Invalidf("path", "%s: %v", plugins.AccumulatorFile, err)
		}
		if l.grad, err = b.collect(s, grad, "", plugins.AccumulatorFile); err != nil {
			return nil, err
		}
		l.passes = manifest.WindowPasses
		if manifest.WindowFailure != "" {
			kind, _ := plugins.ParseKind(manifest.WindowFailureKind)
			l.failure = &plugins.Error{Kind: kind, Message: manifest.WindowFailure}
		}
	}
	return l, nil
}

// readFiles reads what a scope needs and verifies it against the manifest, which is nil for a foreign adapter.
func (b *Backend) readFiles(req *plugins.LoadAdapterRequest) (map[string][]byte, *plugins.Manifest, error) {
	if _, err := os.Stat(req.Path); err != nil {
		return nil, nil, &plugins.Error{Kind: plugins.KindNotFound, Field: "path", Message: fmt.Sprintf("no checkpoint: %v", err)}
	}
	everything := NewLayout(b.modules, b.info.MaxRank, func(int) bool { return true })
	limit := 8*int64(everything.Total) + maxHeaderBytes // of the largest file, with both moments
	var manifest *plugins.Manifest
	raw, err := readBounded(filepath.Join(req.Path, plugins.ManifestFile), maxHeaderBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if req.Scope != plugins.ScopeWeights {
			return nil, nil, plugins.Invalidf("path", "%s has no %s: only weights can be loaded", req.Path, plugins.ManifestFile)
		}
	case err != nil:
		return nil, nil, plugins.Invalidf("path", "%v", err)
	default:
		if manifest, err = plugins.ParseManifest(raw); err != nil {
			return nil, nil, err
		}
		if err := manifest.Check(b.info.ModelHash, req.Scope); err != nil {
			return nil, nil, err
		}
	}
	names := []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile}
	if req.Scope >= plugins.ScopeOptimizer {
		names = append(names, plugins.OptimizerFile)
	}
	if req.Scope == plugins.ScopeAccumulator {
		names = append(names, plugins.AccumulatorFile)
	}
	files := map[string][]byte{}
	for _, name := range names {
		if files[name], err = readBounded(filepath.Join(req.Path, name), limit); err != nil {
			return nil, nil, plugins.Invalidf("path", "%v", err)
		}
		sum := sha256.Sum256(files[name])
		if manifest != nil && manifest.SHA256[name] != hex.EncodeToString(sum[:]) {
			return nil, nil, plugins.Invalidf("path", "%s does not have the checksum that %s states", name, plugins.ManifestFile)
		}
	}
	return files, manifest, nil
}

// layoutOf finds out which modules a file's tensors belong to and checks their shapes.
func (b *Backend) layoutOf(entries map[string]tensorEntry, rank int) (*Layout, error) {
	everything := NewLayout(b.modules, rank, func(int) bool { return true })
	owners := map[string]int{}
	for _, t := range everything.Tensors {
		for _, name := range b.namesRead(t) {
			owners[name] = t.Module
		}
	}
	has := make([]bool, len(b.modules))
	for name := range entries {
		i, known := owners[name]
		if !known {
			return nil, plugins.Invalidf("path", "tensor %.200q belongs to no module of this model", name)
		}
		has[i] = true
	}
	l := NewLayout(b.modules, rank, func(i int) bool { return has[i] })
	if l.Total == 0 {
		return nil, plugins.Invalidf("path", "%s holds no tensor", plugins.AdapterWeightsFile)
	}
	for _, t := range l.Tensors {
		name := b.nameIn(entries, t)
		e, ok := entries[name]
		if !ok {
			return nil, plugins.Invalidf("path", "tensor %q is missing", name)
		}
		if !slices.Equal(e.Shape, t.Shape) {
			return nil, plugins.Invalidf("path", "tensor %q has shape %v, expected %v", name, e.Shape, t.Shape)
		}
	}
	return l, nil
}

// nameIn gives the name that a tensor has in a file, or would have if it were there.
func (b *Backend) nameIn(entries map[string]tensorEntry, t *Tensor) string {
	names := b.namesRead(t)
	for _, name := range names {
		if _, ok := entries[name]; ok {
			return name
		}
	}
	return names[0]
}

// sameModules tells whether two layouts have LoRA on the same modules.
func sameModules(x, y *Layout) bool {
	return slices.EqualFunc(x.Pairs, y.Pairs, func(p, q Pair) bool { return (p.A == nil) == (q.A == nil) })
}

// collect puts a file's tensors into one flat slice.
func (b *Backend) collect(l *Layout, values map[string][]float32, suffix, file string) ([]float32, error) {
	flat := make([]float32, l.Total)
	for _, t := range l.Tensors {
		var v []float32
		for _, name := range b.namesRead(t) {
			if found, ok := values[name+suffix]; ok {
				v = found
			}
		}
		if len(v) != t.Size() {
			return nil, plugins.Invalidf("path", "%s: tensor %q has %d values, expected %d", file, b.tensorName(t, plugins.ExportPEFT)+suffix, len(v), t.Size())
		}
		copy(flat[t.Offset:], v)
	}
	if err := b.checkFinite(l, flat, "file "+file); err != nil {
		return nil, err
	}
	return flat, nil
}
