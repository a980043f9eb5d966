package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

// shallow is a model of the same widths that a processor computes soon.
func (s shape) shallow() shape {
	s.Name += ", two layers"
	s.Layers, s.Vocabulary = min(s.Layers, 2), min(s.Vocabulary, 4096)
	return s
}

// gradientTokens bounds a sequence whose gradients are compared.
const gradientTokens = 160

// gradients compares an adapter's gradients on the device, in float32 and in bfloat16, with the processor's in float32, which tests compare with PyTorch's. All begin with the same weights, which are values of bfloat16.
func gradients(ctx context.Context, j job, found func(result)) error {
	w := j.Workload
	w.Shape = w.Shape.shallow()
	w.Length, w.Sequences = min(w.Length, gradientTokens), min(w.Sequences, 2)
	dir := j.Dir + ".shallow"
	if err := w.Shape.provide(dir); err != nil {
		return fmt.Errorf("write the model: %w", err)
	}
	of := func(device, dtype string, begin bool) (all map[string][]float32, err error) {
		b, err := load(ctx, w, dir, "single", fmt.Sprintf(`"device": %q`, device), dtype, j.Libraries)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, b.Close()) }()
		begun := filepath.Join(dir+".scratch", "begun")
		if begin {
			if err := b.begin(ctx, begun); err != nil {
				return nil, err
			}
		}
		return b.gradients(ctx, begun, filepath.Join(dir+".scratch", device+" "+dtype))
	}
	want, err := of("cpu", float32s, true)
	if err != nil {
		return fmt.Errorf("gradients on the processor: %w", err)
	}
	for _, c := range []struct {
		dtype string
		most  float64
		goal  string
	}{
		{float32s, 1e-4, "at most 1e-4"},
		{bfloat16s, 5e-2, "at most 1e-2, or 1.5 × what PyTorch's bfloat16 is off by"}, // the tests with models that PyTorch has computed have its figures
	} {
		got, err := of("cuda:0", c.dtype, false)
		if err != nil {
			return fmt.Errorf("gradients in %s: %w", c.dtype, err)
		}
		off := distance(got, want)
		r := result{Shape: w.Shape.Name, What: "gradients in " + c.dtype + " against the processor's in float32", Measured: fmt.Sprintf("off by %.2g of their norm", off), Goal: c.goal}
		if !(off <= c.most) { // nor is what is not a number
			r.Failure = fmt.Sprintf("off by %g of their norm, more than %g", off, c.most)
		}
		found(r)
	}
	return nil
}

// begin saves what an adapter is after a step, rounded to values of bfloat16: neither of its factors is zero, so both have gradients.
func (b *bench) begin(ctx context.Context, path string) error {
	if err := os.RemoveAll(path); err != nil { // of a process that was ended
		return err
	}
	if err := b.create(ctx, "begun"); err != nil {
		return err
	}
	b.positions["begun"]++
	if _, err := b.SaveAdapter(ctx, plugins.SaveAdapterRequest{Adapter: "begun", Position: b.positions["begun"], Scope: plugins.ScopeWeights, Path: path}); err != nil {
		return err
	}
	file := filepath.Join(path, plugins.AdapterWeightsFile)
	tensors, shapes, err := readTensors(file)
	if err != nil {
		return err
	}
	var sources []safetensors.Source
	for name, values := range tensors {
		for i, v := range values {
			values[i] = nearestBFloat16(v)
		}
		sources = append(sources, safetensors.Float32Source(name, shapes[name], func() ([]float32, error) { return values, nil }))
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, _, err = safetensors.Write(f, nil, sources)
	return errors.Join(err, f.Close(), os.Remove(filepath.Join(path, plugins.ManifestFile))) // which has the checksum of what it was: without, it is anybody's adapter
}

// gradients gives those of a pass with the adapter that begun has, by their names. They are written to path.
func (b *bench) gradients(ctx context.Context, begun, path string) (map[string][]float32, error) {
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	if _, err := b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: "a", Path: begun, Scope: plugins.ScopeWeights}); err != nil {
		return nil, err
	}
	if _, err := b.pass(ctx, "a", b.data(b.Sequences)); err != nil {
		return nil, err
	}
	b.positions["a"]++
	if _, err := b.SaveAdapter(ctx, plugins.SaveAdapterRequest{Adapter: "a", Position: b.positions["a"], Scope: plugins.ScopeAccumulator, Path: path}); err != nil {
		return nil, err
	}
	all, _, err := readTensors(filepath.Join(path, plugins.AccumulatorFile))
	return all, err
}

func readTensors(path string) (values map[string][]float32, shapes map[string][]int, err error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	values, shapes = map[string][]float32{}, map[string][]int{}
	for _, name := range f.Names() {
		t, _ := f.Tensor(name)
		if values[name], err = t.Float32s(); err != nil {
			return nil, nil, err
		}
		shapes[name] = t.Shape
	}
	return values, shapes, nil
}

// nearestBFloat16 rounds to the nearest value, of two the even one.
func nearestBFloat16(v float32) float32 {
	b := math.Float32bits(v)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// distance is the norm of the differences of all tensors relative to that of what is wanted; not a number if they are others.
func distance(got, want map[string][]float32) float64 {
	var square, norm float64
	for name, w := range want {
		g := got[name]
		if len(g) != len(w) || len(got) != len(want) {
			return math.NaN()
		}
		for i, v := range w {
			d := float64(g[i]) - float64(v)
			square += float64(d * d)
			norm += float64(float64(v) * float64(v))
		}
	}
	return math.Sqrt(square / norm)
}
