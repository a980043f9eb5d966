package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/cudart"
)

// prediction is what -predict prints.
type prediction struct {
	Model, Device                             string // "": all of both
	Sequences, Length, Streams, Context, Rank int
	Recompute                                 bool
	Attention, Gradients                      string // as in `backend:`; "": kernels by warps, and chains
}

// predicted are the shapes that are known by name.
var predicted = []shape{qwen06B, qwen8B, qwen30B, qwen27B, gptOSS}

func predictedNames() (names []string) {
	for _, s := range predicted {
		names = append(names, s.Name)
	}
	return names
}

// check refuses what no pass can be.
func (p *prediction) check() error {
	if !slices.Contains(cudart.AbsentGPUs(), p.Device) {
		return fmt.Errorf("-device: %q is not known; allowed are %s", p.Device, strings.Join(cudart.AbsentGPUs(), ", "))
	}
	for _, of := range []struct {
		name  string
		value int
		most  int
	}{{"sequences", p.Sequences, 4096}, {"length", p.Length, 1 << 20}, {"streams", p.Streams, 4096}, {"context", p.Context, 1 << 20}, {"rank", p.Rank, 512}} {
		if of.value < 1 || of.value > of.most {
			return fmt.Errorf("-%s is %d; allowed is 1 to %d", of.name, of.value, of.most)
		}
	}
	return nil
}

// workload is the passes' sizes.
func (p *prediction) workload(s shape) workload {
	return workload{Shape: s, Length: p.Length, Streams: p.Streams, Context: p.Context, Generated: 1, Rank: p.Rank, Attention: p.Attention, Gradients: p.Gradients}
}

// run prints the passes of a model on a device by kernel or, without a model, the report's section.
func (p *prediction) run(ctx context.Context, out io.Writer) error {
	if p.Model == "" {
		return p.section(ctx, out)
	}
	g, _ := gpuOf(p.Device)
	write := func(name, dir string, w workload) error {
		training, decoding, err := w.plan(ctx, dir, g.kind, p.Sequences, p.Recompute)
		if err != nil {
			return err
		}
		g.write(out, name, training)
		g.write(out, name, decoding)
		return nil
	}
	if i := slices.IndexFunc(predicted, func(s shape) bool { return s.Name == p.Model }); i >= 0 {
		return predicted[i].sizes(func(dir string) error { return write(p.Model, dir, p.workload(predicted[i])) })
	}
	if _, err := os.Stat(filepath.Join(p.Model, "config.json")); err != nil {
		return fmt.Errorf("-model: %q is neither one of %s nor a folder with a config.json: %w", p.Model, strings.Join(predictedNames(), ", "), err)
	}
	return write(filepath.Base(p.Model), p.Model, p.workload(shape{}))
}

// section is what cudart/REPORT.md has as long as nothing has been measured: all shapes on all devices, and kernel by kernel for an H200.
func (p *prediction) section(ctx context.Context, out io.Writer) error {
	fmt.Fprint(out, `## Predicted, not measured

By `+"`devicebench -predict`"+`: the launches of a training pass (activations kept) and of a decoding step, of the same host code that drives a GPU, over a driver
without one. Of each launch the operations and bytes are counted from its arguments. Its time is the longest of operations at the rate that its class of kernels is
expected to reach, bytes at the speed of a copy, what blocks read through the second-level cache, and its longest chain of dependent steps, and 3 µs of launching
beside. **The rates are estimates**, by counting instructions and reads in the assembler's output (`+"`backends/internal/devicebench/rates.go`"+` has each with its
reason); the launches, operations and bytes are counts. Experts are taken to be chosen with the same likelihood. B200 runs the kernels for sm_80, without its own
tensor-core instructions.

`)
	for _, g := range gpus {
		fmt.Fprintf(out, "* %s\n", g)
	}
	fmt.Fprintf(out, "\n| model | device | %s of %d tokens, rank %d | decoding %d sequences after %d tokens |\n|---|---|---|---|\n",
		count(p.Sequences, "sequence"), p.Length, p.Rank, p.Streams, p.Context)
	type detail struct {
		name  string
		plans []planned
	}
	var details []detail
	var detailed gpu
	for _, s := range predicted {
		if err := s.sizes(func(dir string) error {
			for _, g := range gpus {
				training, decoding, err := p.workload(s).plan(ctx, dir, g.kind, p.Sequences, p.Recompute)
				if err != nil {
					return errors.Join(fmt.Errorf("%s on %s", s.Name, g.kind), err)
				}
				fmt.Fprintf(out, "| %s | %s | %s | %s |\n", s.Name, g.kind, g.summary(training), g.summary(decoding))
				if g.kind == p.Device {
					details, detailed = append(details, detail{s.Name, []planned{training, decoding}}), g
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	fmt.Fprintln(out)
	for _, d := range details {
		for _, plan := range d.plans {
			detailed.write(out, d.name, plan)
		}
	}
	return nil
}
