package merge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

const (
	namePrefix = "base_model.model."
	headName   = "lm_head"
	tinkerHead = "model.unembed_tokens" // the head's name in the Tinker convention
	maxConfig  = 4 << 20
)

// module is the LoRA of one matrix: W gets scale · B·A.
type module struct {
	a, b  tensor // rank × in, out × rank
	rank  int64
	scale float64

	stacked string // the name of the layer of all experts that it is of, with the Tinker service's names; "" = none
}

// adapter is a PEFT directory.
type adapter struct {
	dir     Directory
	modules map[string]*module // by the name of the module: "model.layers.0.self_attn.q_proj", also where the file has "model.language_model.layers…"
	stacks  map[string]*stack  // layers of experts, before they are modules of each
}

// plain are options of a PEFT configuration with the values that leave an adapter plain LoRA, which alone can be merged here.
var plain = map[string][]string{
	"use_dora": {"false"}, "lora_bias": {"false"}, "bias": {`"none"`}, "modules_to_save": {"[]"}, "fan_in_fan_out": {"false"},
	"layer_replication": {"[]"}, "trainable_token_indices": {"[]"}, "target_parameters": {"[]"}, "use_qalora": {"false"}, "alora_invocation_tokens": {"[]"},
}

// openAdapter reads the configuration and the header of an adapter.
func openAdapter(ctx context.Context, dir string) (*adapter, error) {
	a := &adapter{Directory(dir), map[string]*module{}, map[string]*stack{}}
	scale, err := a.readScale(ctx)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(filepath.Join(dir, plugins.AdapterWeightsFile))
	if err != nil {
		return nil, err
	}
	tensors, err := readTensors(ctx, a.dir, File{plugins.AdapterWeightsFile, info.Size()})
	if err != nil {
		return nil, err
	}
	for name, t := range tensors {
		if err := a.take(name, t); err != nil {
			return nil, fmt.Errorf("%s: tensor %.200q: %w", plugins.AdapterWeightsFile, name, err)
		}
	}
	if err := a.expand(); err != nil {
		return nil, fmt.Errorf("%s: %w", plugins.AdapterWeightsFile, err)
	}
	for name, m := range a.modules {
		if m.a.file == "" || m.b.file == "" || m.a.shape[0] != m.b.shape[1] || m.a.shape[0] < 1 {
			return nil, fmt.Errorf("%s: module %.200q has A of shape %v and B of shape %v, which do not fit", plugins.AdapterWeightsFile, name, m.a.shape, m.b.shape)
		}
		m.rank = m.a.shape[0]
		if m.scale, err = scale(cmp.Or(m.stacked, name), m.rank); err != nil {
			return nil, err
		}
	}
	if len(a.modules) == 0 {
		return nil, fmt.Errorf("%s: has no LoRA", plugins.AdapterWeightsFile)
	}
	return a, nil
}

// readScale gives the scale of a module by its name and rank. alpha_pattern is taken as exports have it: each key is a module's whole name.
func (a *adapter) readScale(ctx context.Context) (func(name string, rank int64) (float64, error), error) {
	info, err := os.Stat(filepath.Join(string(a.dir), plugins.AdapterConfigFile))
	if err != nil {
		return nil, err
	}
	text, err := read(ctx, a.dir, File{plugins.AdapterConfigFile, info.Size()}, maxConfig)
	if err != nil {
		return nil, err
	}
	var c struct {
		Alpha  *float64           `json:"lora_alpha"`
		Alphas map[string]float64 `json:"alpha_pattern"`
		Rooted bool               `json:"use_rslora"`
	}
	var options map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(text, &c), json.Unmarshal(text, &options)); err != nil {
		return nil, fmt.Errorf("%s: %w", plugins.AdapterConfigFile, err)
	}
	for name, allowed := range plain {
		value := strings.Join(strings.Fields(string(options[name])), "")
		if value != "" && value != "null" && !strings.Contains("\x00"+strings.Join(allowed, "\x00")+"\x00", "\x00"+value+"\x00") {
			return nil, fmt.Errorf("%s: %s is %.100s; only plain LoRA can be merged", plugins.AdapterConfigFile, name, value)
		}
	}
	alphas := make(map[string]float64, len(c.Alphas))
	for key, alpha := range c.Alphas {
		name := moduleName(key)
		if other, twice := alphas[name]; twice && other != alpha {
			return nil, fmt.Errorf("%s: alpha_pattern has %.200q under two names, with %v and %v", plugins.AdapterConfigFile, name, other, alpha)
		}
		alphas[name] = alpha
	}
	return func(name string, rank int64) (float64, error) {
		alpha, known := alphas[name]
		switch {
		case known:
		case len(alphas) > 0: // a key may be an expression that matches the module
			return 0, fmt.Errorf("%s: alpha_pattern does not name the module %.200q", plugins.AdapterConfigFile, name)
		case c.Alpha == nil:
			return 0, fmt.Errorf("%s: has no lora_alpha", plugins.AdapterConfigFile)
		default:
			alpha = *c.Alpha
		}
		if c.Rooted {
			return alpha / math.Sqrt(float64(rank)), nil
		}
		return alpha / float64(rank), nil
	}, nil
}

// take notes a tensor of the file.
func (a *adapter) take(name string, t tensor) error {
	rest, ok := strings.CutPrefix(name, namePrefix)
	rest, weight := strings.CutSuffix(rest, ".weight")
	name, matrix, found := strings.Cut(rest, ".lora_")
	if !ok || !weight || !found || matrix != "A" && matrix != "B" {
		return errors.New("is not the A or B of a LoRA in PEFT's names")
	}
	name = moduleName(name)
	if expertName.MatchString(name) {
		return a.takeStack(name, matrix, t)
	}
	if len(t.shape) != 2 || !isFloat(t.dtype) {
		return fmt.Errorf("is %s of shape %v, not a matrix of float32, bfloat16 or float16", t.dtype, t.shape)
	}
	m := a.modules[name]
	if m == nil {
		m = &module{}
		a.modules[name] = m
	}
	place := &m.a
	if matrix == "B" {
		place = &m.b
	}
	if place.file != "" {
		return errors.New("is there twice")
	}
	*place = t
	return nil
}

// moduleName is the name that a module has here, by any of those that adapters have it under: the head's in the Tinker convention, and those of a text model among others.
func moduleName(name string) string {
	if name == tinkerHead {
		return headName
	}
	return inAdapter(true, name)
}

// names lists the modules, sorted.
func (a *adapter) names() []string {
	names := make([]string, 0, len(a.modules))
	for name := range a.modules {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// floats reads rows of a matrix of the adapter.
func (a *adapter) floats(ctx context.Context, t tensor, from, rows int64) ([]float32, error) {
	row := t.shape[1] * widths[t.dtype]
	data, err := readPart(ctx, a.dir, t.file, t.offset+from*row, rows*row)
	if err != nil {
		return nil, err
	}
	out := make([]float32, rows*t.shape[1])
	decodeFloats(out, t.dtype, data)
	return out, nil
}

// HasHead tells whether the adapter in a directory is one of the output head too.
func HasHead(ctx context.Context, dir string) (bool, error) {
	info, err := os.Stat(filepath.Join(dir, plugins.AdapterWeightsFile))
	if err != nil {
		return false, err
	}
	tensors, err := readTensors(ctx, Directory(dir), File{plugins.AdapterWeightsFile, info.Size()})
	for name := range tensors {
		if strings.HasPrefix(name, namePrefix+headName+".") || strings.HasPrefix(name, namePrefix+tinkerHead+".") {
			return true, err
		}
	}
	return false, err
}

// UsePEFTNames gives an adapter whose head has its name in the Tinker convention the name that PEFT loads. The checkpoint's manifest, whose checksums are of the file as it was, goes.
func UsePEFTNames(ctx context.Context, dir string) error {
	path := filepath.Join(dir, plugins.AdapterWeightsFile)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	source := Directory(dir)
	tensors, err := readTensors(ctx, source, File{plugins.AdapterWeightsFile, info.Size()})
	if err != nil {
		return err
	}
	names, entries, changed := []string{}, map[string]entry{}, false
	begin := info.Size()
	for _, t := range tensors {
		begin = min(begin, t.offset)
	}
	for name, t := range tensors {
		if rest, ok := strings.CutPrefix(name, namePrefix+tinkerHead+"."); ok {
			name, changed = namePrefix+headName+"."+rest, true
		}
		if _, twice := entries[name]; twice {
			return fmt.Errorf("%s: %.200q is there in both conventions", plugins.AdapterWeightsFile, name)
		}
		names = append(names, name)
		entries[name] = entry{t.dtype, t.shape, [2]int64{t.offset - begin, t.offset - begin + t.size}}
	}
	if !changed {
		return nil
	}
	sort.Slice(names, func(i, j int) bool { return entries[names[i]].Offsets[0] < entries[names[j]].Offsets[0] })
	head, err := encodeHeader(names, entries)
	if err != nil {
		return err
	}
	data, err := source.Open(ctx, plugins.AdapterWeightsFile, begin, info.Size()-begin)
	if err != nil {
		return err
	}
	defer data.Close()
	if err := writeFile(path+".new", func(w io.Writer) error {
		if _, err := w.Write(head); err != nil {
			return err
		}
		_, err := io.Copy(w, data)
		return err
	}); err != nil {
		return err
	}
	for _, name := range []string{plugins.ManifestFile, plugins.CompleteFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(path+".new", path)
}

// writeFile makes a file and has it on disk when it returns.
func writeFile(path string, content func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	if err := errors.Join(content(f), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
