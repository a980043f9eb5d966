package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/cudart/shim"
)

func TestMain(m *testing.M) {
	for kind, end := range map[string]func(){"hang": func() { select {} }, "crash": func() { panic("the device is lost") }, "unkillable": leaveGroup} {
		measurements[kind] = func(_ context.Context, _ job, found func(result)) error {
			found(result{Shape: "tiny", What: "before the " + kind, Measured: "5"})
			go end()
			select {}
		}
	}
	if child() {
		return
	}
	goleak.VerifyTestMain(m)
}

// tiny is a workload for kernels that run on the processor.
var tiny = workload{Name: "tiny", Shape: shape{"tiny", 96, 32, 48, 2, 4, 2, 16, false, nil}, Batches: []int{24, 12}, Sequences: 2, Length: 9, Streams: 2, Context: 5, Generated: 16, Adapters: 2, Rank: 2, Repeat: 1,
	Section: `, "max_context_length": 64, "kv_cache_tokens": 1024, "max_batch": 4`, Train: "much", Decode: "more", Product: "most"}

// tinyOptions are of a run over the driver that needs no GPU, with a report in a folder of its own.
func tinyOptions(t *testing.T) options {
	t.Helper()
	dir := t.TempDir()
	version := filepath.Join(dir, "version")
	write(t, version, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12.3.0\n")
	return options{Report: filepath.Join(dir, "REPORT.md"), Limit: 5 * time.Minute, Libraries: shim.WithCuBLASLt(shim.Require(t, shim.Options{})), Workloads: []workload{tiny}, DriverVersion: version, Root: dir}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil { //nolint:gosec // scripts too
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A run over a driver that needs no GPU, every measurement in a process of its own: every comparison holds, every figure is there, and the device and the libraries are named. (The figures say nothing about a GPU, and are
// not kept.) What cannot be run here, for its sources are not, is no failure.
func TestReport(t *testing.T) {
	if os.Getenv("E2E_LEVEL") != "all" {
		t.Skip("every measurement, with kernels on the processor, takes a minute: E2E_LEVEL=all runs it")
	}
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	o := tinyOptions(t)
	o.Only = []string{"tiny", "models"}
	if err := o.run(t.Context()); err != nil {
		t.Error(err)
	}
	text := read(t, o.Report)
	for _, want := range []string{
		"make bench GPU=1` at 20", "\n\nNot chosen, so not run: operations, contract, sanitizer.\n\n", "fifty steps, the sampler's bits against the trainer's, bits however work is cut | not run: the tests' folder is not here: ",
		"| cuda:1 | no GPU: kernels on the processor, compute capability 9.0, 2 multiprocessors, 1024 MiB |", "| NVIDIA driver | 570.86.15 |", "| driver | CUDA 12.8 (/", "libnccl.so.2) |", "| cuBLASLt | 12.8.4 (/",
		"| tiny | the sampler's log-probabilities against the trainer's | equal |  | equal bits |", "| tiny | the same run again | equal |", "| tiny | a batch of 1 sequences against one of 2 | equal |",
		"| tiny, two layers | gradients in float32 against the processor's in float32 | off by ", " of their norm |  | at most 1e-4 |", "| tiny, two layers | gradients in bfloat16 against the processor's in float32 | off by ",
		"| tiny | forward and backward, 2 sequences of 9 tokens, rank 2 | ", " tok/s; passes of 24 tokens, activations kept |  | much |", "training with 2 adapters, time against one", " ×; passes of 24 tokens, activations kept |  | 1.05 × |",
		"| tiny | decoding 2 sequences after 5 tokens | ", " of a copy |  | more |", "decoding with 2 adapters, time against one",
		"| tiny | products by warpgroups against those by warps | equal |  | equal bits |", "| tiny | product of 18 rows with the weight of gate, 48 × 32, gradient | ", " TFLOP/s by warpgroups, ", " by warps; with an adapter of rank 2 in the same launch ", " in one of its own ",
		"| tiny | products of 16 rows with the weights of queries, keys and values, and with an adapter of rank 2 | ", " µs in shared launches, ", " with the adapter's second products in a launch of their own",
		"| tiny | products by cuBLASLt against those by kernels | equal; faster, and so used, for ", " of 48 shapes", "| tiny | product of up to 2048 rows, 48 columns, 32 deep: by cuBLASLt, time against kernels | ",
		"| tiny | dataparallel over two ranks against one | equal |", "| tiny | dataparallel with shared-out weights over two ranks against one | equal |", "| tiny | dataparallel with shared-out weights: the sampler's log-probabilities against the trainer's | equal |",
		"| tiny | tensorparallel over two ranks against one | off by ", " of their spread |  | at most 0.03 |", "| tiny | tensorparallel by NCCL against exchange through memory | equal |  | equal bits |",
		"| tiny | tensorparallel: the sampler's log-probabilities against the trainer's | equal |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "Not run yet") {
		t.Errorf("a run that is over says that steps are left:\n%s", text)
	}
}

// What is compared with a tolerance fails beyond it: other values, values that are no numbers, and too few of them.
func TestNear(t *testing.T) {
	want := []float32{-4.5, -4.25, -4.75, -4.5, -5, -4}
	for _, c := range []struct {
		name string
		got  []float32
		fine bool
	}{
		{"the same", want, true},
		{"one off by a rounding", []float32{-4.5, -4.25, -4.75, -4.5, -5, -4.0078125}, true},
		{"in another order", []float32{-4, -5, -4.5, -4.75, -4.25, -4.5}, false},
		{"all the same", []float32{-4.5, -4.5, -4.5, -4.5, -4.5, -4.5}, false},
		{"not a number", []float32{-4.5, -4.25, float32(math.NaN()), -4.5, -5, -4}, false},
		{"too few", want[:5], false},
		{"none", nil, false},
	} {
		if r := tiny.near(c.name, c.got, want); (r.Failure == "") != c.fine {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

// Without a device there is nothing to report, and the reason is the driver's.
func TestNoGPU(t *testing.T) {
	t.Setenv("FAKE_CUDA_DEVICES", "0")
	if _, err := gather([]string{shim.Require(t, shim.Options{})}); err == nil || !strings.Contains(err.Error(), "0 CUDA devices") || !strings.Contains(err.Error(), "cuInit") {
		t.Errorf("without devices: %v", err)
	}
}

// The bytes of the true shapes are those of the models' files, about: 0.6 and 8.2 billion parameters less the 8B's embedding.
func TestShapes(t *testing.T) {
	for _, c := range []struct {
		shape    shape
		from, to int64
	}{{qwen06B, 1_190_000_000, 1_195_000_000}, {qwen8B, 15_100_000_000, 15_150_000_000}} {
		if n, err := c.shape.bytes(64); err != nil || n < c.from || n > c.to {
			t.Errorf("%s: a step reads %d bytes of weights, want %d to %d: %v", c.shape.Name, n, c.from, c.to, err)
		}
	}
}
