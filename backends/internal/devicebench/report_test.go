package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/cudart/shim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tiny is a workload for kernels that run on the processor.
var tiny = workload{Shape: shape{"tiny", 96, 32, 48, 2, 4, 2, 16, false}, Sequences: 2, Length: 9, Streams: 2, Context: 5, Generated: 16, Adapters: 2, Rank: 2, Repeat: 1,
	Section: `, "max_context_length": 64, "kv_cache_tokens": 1024, "max_batch": 4, "batch_tokens": 24`, Train: "much", Decode: "more", Product: "most"}

// A report of a driver that needs no GPU: every comparison holds, every figure is there, and the device and the libraries are named. (The figures say nothing about a GPU, and are not kept.)
func TestReport(t *testing.T) {
	libraries := shim.WithCuBLASLt(shim.Require(t, shim.Options{}))
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	facts, err := gather(libraries)
	if err != nil {
		t.Fatal(err)
	}
	results, err := measure(t.Context(), tiny, libraries, len(facts.Devices))
	if err != nil {
		t.Fatal(err)
	}
	r := report{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Facts: facts, Results: results}
	text := r.markdown()
	if n := r.failures(); n != 0 {
		t.Errorf("%d failures:\n%s", n, text)
	}
	for _, want := range []string{
		"make bench GPU=1` at 2026-01-02T03:04:05Z",
		"| cuda:1 | no GPU: kernels on the processor, compute capability 9.0, 2 multiprocessors, 1024 MiB |", "| driver | CUDA 12.8 (/", "libnccl.so.2) |", "| cuBLASLt | 12.8.4 (/",
		"| tiny | the sampler's log-probabilities against the trainer's | equal | equal bits |", "| tiny | the same run again | equal |", "| tiny | a batch of 1 sequences against one of 2 | equal |",
		"| tiny | forward and backward, 2 sequences of 9 tokens, rank 2 | ", " tok/s | much |", "the same with 2 adapters, time against one", "| tiny | decoding 2 sequences after 5 tokens | ", " GB/s | more |",
		"| tiny | products by warpgroups against those by warps | equal | equal bits |", "| tiny | product of 18 rows with the weight of gate, 48 × 32, gradient | ", " TFLOP/s by warpgroups, ", " by warps; with an adapter of rank 2 in the same launch ", " in one of its own ",
		"| tiny | products by cuBLASLt against those by kernels | equal; faster, and so used, for ", " of 48 shapes", "| tiny | product of up to 2048 rows, 48 columns, 32 deep: by cuBLASLt, time against kernels | ",
		"| tiny | dataparallel over two ranks against one | equal |", "| tiny | dataparallel with shared-out weights over two ranks against one | equal |", "| tiny | dataparallel with shared-out weights: the sampler's log-probabilities against the trainer's | equal |",
		"| tiny | tensorparallel over two ranks against one | off by ", " of their spread | at most 0.03 |", "| tiny | tensorparallel by NCCL against exchange through memory | equal | equal bits |",
		"| tiny | tensorparallel: the sampler's log-probabilities against the trainer's | equal |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
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

// Suites that fail, or that found no device after all, are failures of the report; a program that is not installed is not.
func TestSuites(t *testing.T) {
	var r report
	for _, s := range []suite{
		{What: "well", Commands: [][]string{{"true"}}},
		{What: "ill", Commands: [][]string{{"sh", "-c", "echo 'wrong | bits'; exit 3"}}},
		{What: "idle", Commands: [][]string{{"echo", "--- SKIP: TestX (0.00s)"}}},
		{What: "absent", Needs: "no-such-program", Commands: [][]string{{"false"}}},
	} {
		r.Suites = append(r.Suites, s.run(t.Context()))
	}
	text := r.markdown()
	for _, want := range []string{"| well | passed |", "exit status 3: wrong \\| bits |", "| idle | **FAILED**: TestX (0.00s) was skipped |", "| absent | not run: no-such-program is not installed |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if n := r.failures(); n != 2 {
		t.Errorf("%d failures, want 2", n)
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
		if n := c.shape.bytes(); n < c.from || n > c.to {
			t.Errorf("%s: a step reads %d bytes of weights, want %d to %d", c.shape.Name, n, c.from, c.to)
		}
	}
}
