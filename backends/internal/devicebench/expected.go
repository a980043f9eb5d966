package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart"
)

// expectation is what the model of cost says of a device and a workload.
type expectation struct {
	gpu   gpu
	known bool // else nothing is expected of the device
	pass  planned
	step  planned
}

// expect plans the workload for the device that it runs on, with training cut as it was.
func (b *bench) expect(ctx context.Context, cut passes) (e expectation, err error) {
	if e.gpu, e.known = gpuOf(b.Device); !e.known {
		return e, nil
	}
	w := b.workload
	w.Context += w.Generated / 2 // as decoding has on average
	e.pass, e.step, err = w.plan(ctx, b.dir, e.gpu.kind, max(1, cut.tokens/w.Length), !cut.kept)
	if err != nil {
		return e, fmt.Errorf("predict: %w", err)
	}
	return e, nil
}

func (e *expectation) training() string {
	if !e.known {
		return ""
	}
	return e.gpu.summary(e.pass)
}

func (e *expectation) decoding() string {
	if !e.known {
		return ""
	}
	return e.gpu.summary(e.step)
}

// utilization says what share of the stated peak so many tokens a second are.
func (e *expectation) utilization(rate float64) string {
	if !e.known {
		return ""
	}
	return fmt.Sprintf(", MFU %.0f %% of %.0f TFLOP/s", 100*rate*e.pass.modelFLOP()/float64(e.pass.tokens)/(e.gpu.peak*1e12), e.gpu.peak)
}

// kernelTime is what a kernel took, and what was expected; of everything that a pass launched.
type kernelTime struct {
	Kernel             string
	Launches           float64
	Seconds, Predicted float64
	FLOP, Bytes        float64
}

// trainingKernels times a pass over all sequences by kernel. Timed kernels do not overlap, so it takes longer than the pass itself.
func (b *bench) trainingKernels(ctx context.Context, e expectation, cut passes) ([]kernelTime, error) {
	measured, err := b.timed(func() error {
		_, err := b.pass(ctx, "a", b.data(b.Sequences))
		return err
	})
	if err != nil {
		return nil, err
	}
	return e.beside(measured, 1, e.pass, float64(b.Sequences*b.Length)/float64(max(1, cut.tokens/b.Length)*b.Length)), nil
}

// decodingKernels times a decoding step: what generating many tokens takes more than generating one, by step.
func (b *bench) decodingKernels(ctx context.Context, e expectation, adapters []string) ([]kernelTime, error) {
	times := map[int]map[string]cudart.KernelTime{}
	for _, n := range []int{1, b.Generated} {
		some := *b
		some.Generated = n
		var err error
		if times[n], err = b.timed(func() error {
			_, err := some.decodeOnce(ctx, adapters)
			return err
		}); err != nil {
			return nil, err
		}
	}
	steps := map[string]cudart.KernelTime{}
	for name, k := range times[b.Generated] {
		once := times[1][name]
		if k.Launches > once.Launches && k.Seconds > once.Seconds {
			steps[name] = cudart.KernelTime{Name: name, Launches: k.Launches - once.Launches, Seconds: k.Seconds - once.Seconds}
		}
	}
	return e.beside(steps, max(1, b.Generated-1), e.step, 1), nil
}

// timed gives the times of the kernels that f launches on the bench's device.
func (b *bench) timed(f func() error) (map[string]cudart.KernelTime, error) {
	before := map[string]cudart.KernelTime{}
	for _, k := range cuda.KernelTimes(b.device) {
		before[k.Name] = k
	}
	if !cuda.TimeKernels(b.device, true) {
		return nil, fmt.Errorf("device %s has no kernels to time", b.device.Name())
	}
	err := f()
	cuda.TimeKernels(b.device, false)
	times := map[string]cudart.KernelTime{}
	for _, k := range cuda.KernelTimes(b.device) {
		k.Launches, k.Seconds = k.Launches-before[k.Name].Launches, k.Seconds-before[k.Name].Seconds
		if k.Launches > 0 {
			times[k.Name] = k
		}
	}
	return times, err
}

// beside puts what was measured, shared out over so many repetitions, beside what is expected of so many times a plan; the longest first.
func (e *expectation) beside(measured map[string]cudart.KernelTime, repetitions int, p planned, times float64) (all []kernelTime) {
	known := map[string]kernelTime{}
	for name, k := range measured {
		known[name] = kernelTime{Kernel: name, Launches: float64(k.Launches) / float64(repetitions), Seconds: k.Seconds / float64(repetitions)}
	}
	if e.known {
		by, _ := e.gpu.costs(p)
		for _, c := range by {
			k := known[c.Kernel]
			k.Kernel, k.Predicted, k.FLOP, k.Bytes = c.Kernel, times*c.Seconds, times*c.FLOP, times*c.Bytes
			known[c.Kernel] = k
		}
	}
	for _, k := range known {
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b kernelTime) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(b.Predicted, a.Predicted), strings.Compare(a.Kernel, b.Kernel))
	})
	return all
}

// rates says what a kernel reached.
func (k kernelTime) rates() string {
	var all []string
	if k.Seconds > 0 && k.FLOP > 0 {
		all = append(all, fmt.Sprintf("%.3g TFLOP/s", k.FLOP/k.Seconds/1e12))
	}
	if k.Seconds > 0 && k.Bytes > 0 {
		all = append(all, fmt.Sprintf("%.3g GB/s", k.Bytes/k.Seconds/1e9))
	}
	return strings.Join(all, ", ")
}
