package main

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart"
)

// planOf is the plans of a workload from its shape alone.
func planOf(t *testing.T, w workload, kind string, sequences int) (training, decoding planned) {
	t.Helper()
	if err := w.Shape.sizes(func(dir string) (err error) {
		training, decoding, err = w.plan(t.Context(), dir, kind, sequences, false)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return training, decoding
}

// sum adds up what launches of kernels whose names have one of these parts have.
func sum(launches []cudart.Launch, of func(cudart.Launch) float64, parts ...string) (all float64) {
	for _, l := range launches {
		for _, part := range parts {
			if strings.Contains(l.Kernel, part) {
				all += of(l)
				break
			}
		}
	}
	return all
}

func flopOf(l cudart.Launch) float64  { return l.FLOP }
func bytesOf(l cudart.Launch) float64 { return l.Bytes }

func within(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got/want-1) <= tolerance) {
		t.Errorf("%s: %.6g, want %.6g within %g", what, got, want, tolerance)
	}
}

// What is counted of a pass's launches is what formulas say of dense Qwen3: for each token and parameter that products have 2 operations forward and 2 for
// the gradient by their inputs, none for the gradient of frozen weights; 6 for each parameter of the adapter; attention over half of all pairs, with two
// products forward and seven backward. A decoding step reads all weights but the embedding, and keys and values, once.
func TestPredictedTotals(t *testing.T) {
	for _, c := range []struct {
		name   string
		shape  shape
		layers int
	}{{"0.6B", qwen06B, 3}, {"8B", qwen8B, 2}} {
		t.Run(c.name, func(t *testing.T) {
			s := c.shape
			s.Layers = c.layers // the others are the same
			w := workload{Shape: s, Length: 1024, Streams: 64, Context: 512, Generated: 1, Rank: 32}
			training, decoding := planOf(t, w, "H200", 2)
			all, err := s.matrices()
			if err != nil {
				t.Fatal(err)
			}
			var parameters, sides float64
			for _, m := range all {
				head := strings.HasSuffix(m.name, "lm_head.weight") || s.Tied && strings.HasSuffix(m.name, embeddingTensor)
				if len(m.shape) == 2 && (head || !strings.HasSuffix(m.name, embeddingTensor)) {
					parameters += float64(m.elements())
					sides += float64(m.shape[0] + m.shape[1])
				}
			}
			// Nobody wants the gradient of the first layer's input, so q, k and v, and their adapters' first products, have none there.
			first := 2 * float64(s.Hidden) * float64((s.Heads+2*s.KeyHeads)*s.HeadWidth+3*w.Rank)
			products := float64(training.tokens) * (4*parameters + 6*float64(w.Rank)*sides - first)
			within(t, "products' operations", sum(training.launches, flopOf, "product"), products, 1e-6)
			pairs := 2 * float64(w.Length) * float64(w.Length+1) / 2 * float64(s.Heads*s.HeadWidth*s.Layers)
			within(t, "attention's operations", sum(training.launches, flopOf, "attention"), (4+14)*pairs, 1e-6)
			within(t, "the model's operations", training.modelFLOP(), products+12*pairs, 1e-6)

			weights, err := s.bytes(w.Streams)
			if err != nil {
				t.Fatal(err)
			}
			adapters := 2 * float64(w.Rank) * sides
			read := sum(decoding.launches, bytesOf, "product_") - 4*float64(w.Streams*s.Vocabulary) // without logits
			if least := 2*parameters + adapters; !(read >= least && read <= 1.1*least) {            // other rows are read and written beside
				t.Errorf("products of a decoding step read and write %g bytes, want %g of weights and little more", read, least)
			}
			within(t, "weights", float64(weights), 2*parameters, 1e-3) // and norms
			cached := float64(w.Streams*s.positions(w.Context+1)) * float64(s.positionBytes())
			within(t, "attention's bytes", sum(decoding.launches, bytesOf, "attention"), cached, 0.02)
		})
	}
}

// Of families with experts, states and sinks the parts that are theirs are counted, by formulas too.
func TestPredictedFamilies(t *testing.T) {
	w := workload{Length: 256, Streams: 16, Context: 512, Generated: 1, Rank: 8}
	t.Run("experts", func(t *testing.T) {
		w := w
		w.Shape = qwen30B.some(2, mixture)
		training, decoding := planOf(t, w, "H200", 2)
		// Each token is 8 experts' of three matrices. Their adapters have 6 operations for a parameter that is an expert's own: the sides towards the
		// hidden state are all experts' in common.
		base, rank := 3*2048.0*768, 8*768.0*3
		within(t, "operations of experts", sum(training.launches, flopOf, "routed"), 512*2*8*(4*base+6*rank), 1e-6)
		chosen := w.Shape.Family.chosen(16)
		read := sum(decoding.launches, bytesOf, "routed")
		if least := 2 * 2 * chosen * (base + rank); !(read >= least && read <= 1.05*least) {
			t.Errorf("products of experts read and write %g bytes, want %g of weights and little more", read, least)
		}
	})
	t.Run("states", func(t *testing.T) {
		w := w
		w.Shape = qwen27B.some(4, hybrid)
		training, decoding := planOf(t, w, "H200", 2)
		within(t, "operations of the delta rule", sum(decoding.launches, flopOf, "delta_rule"), 16*3*7*48*128*128, 1e-6)
		forward := 2 * 256 * 3 * 7 * 48 * 128 * 128.0
		if got := sum(training.launches, flopOf,
			"delta_rule"); !(got >= 1.8*forward && got <= 2*forward) { // its gradient goes through them once more, but for the last chunk
			t.Errorf("the delta rule has %g operations, want about twice %g", got, forward)
		}
	})
	t.Run("sinks", func(t *testing.T) {
		w := w
		w.Shape = gptOSS.some(2, sinks)
		_, decoding := planOf(t, w, "H200", 2)
		cached := float64(w.Streams*w.Shape.positions(w.Context+1)) * float64(w.Shape.positionBytes())
		within(t, "attention's bytes", sum(decoding.launches, bytesOf, "attention"), cached, 0.05)
		if sum(decoding.launches, bytesOf, "sink") == 0 {
			t.Error("no sinks")
		}
	})
}

// Every known GPU is expected something of, by the kernels that it has: wgmma on Hopper alone. A launch takes the longest of what bounds it.
func TestPredictedGPUs(t *testing.T) {
	s := qwen06B
	s.Layers = 1
	for i, kind := range cudart.AbsentGPUs() {
		training, decoding := planOf(t, workload{Shape: s, Length: 512, Streams: 4, Context: 64, Generated: 1, Rank: 8}, kind, 1)
		if gpus[i].kind != kind {
			t.Fatalf("the %d-th is %s, want %s", i, gpus[i].kind, kind)
		}
		if groups := sum(training.launches, flopOf, "product_group") > 0; groups != strings.HasPrefix(kind, "H") {
			t.Errorf("%s uses warpgroups: %v", kind, groups)
		}
		var out bytes.Buffer
		gpus[i].write(&out, "a layer", training)
		gpus[i].write(&out, "a layer", decoding)
		for _, want := range []string{"**Predicted, not measured**: a layer on one " + kind + ", training pass of 512 tokens, 1 sequence of 512, rank 8: ",
			"MFU", "| bound by |", "\n| all | ", "decoding step of 4 sequences after 64 tokens", "GB/s that are stated"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: lacks %q:\n%s", kind, want, &out)
			}
		}
	}
	if _, _, err := cuda.NewAbsent("TPU", cuda.Options{}); err == nil || !strings.Contains(err.Error(), "H100, H200, A100, B200") {
		t.Errorf("a GPU that is not known: %v", err)
	}
	g := gpu{copies: 1000, launch: 2, blocks: 10, cache: 100, share: 20, of: []class{{"mul", 10, 0.5, 1}, {"", 0, 1, 0}}}
	for _, c := range []struct {
		launch  cudart.Launch
		seconds float64
		bound   string
	}{
		{cudart.Launch{Kernel: "multiply", Blocks: 11, FLOP: 1e9, Bytes: 1e6}, 102e-6, boundOperations},
		{cudart.Launch{Kernel: "multiply", Blocks: 5, FLOP: 1e9, Bytes: 1e6}, 202e-6, boundOperations},
		{cudart.Launch{Kernel: "multiply", Blocks: 10, FLOP: 1e8, Bytes: 1e7}, 22e-6, boundMemory},
		{cudart.Launch{Kernel: "multiply", Blocks: 10, FLOP: 1e8, Steps: 50}, 52e-6, boundChain},
		{cudart.Launch{Kernel: "add", Blocks: 1, FLOP: 1e12, Bytes: 1e6}, 3e-6, boundLaunch},
		{cudart.Launch{Kernel: "product_16x48", Blocks: 10, Steps: 100, Bytes: 1e6}, 22.48e-6, boundCache},   // 2,048 bytes a step; ten blocks at 100 GB/s
		{cudart.Launch{Kernel: "product_16x48", Blocks: 1, Steps: 100, Bytes: 1e6}, 12.24e-6, boundCache},    // one at 20
		{cudart.Launch{Kernel: "product_e4m3_transposed_16x32", Blocks: 1, Steps: 100}, 7.12e-6, boundCache}, // 1,024 bytes a step
	} {
		if seconds, bound := g.seconds(c.launch); math.Abs(seconds-c.seconds) > 1e-12 || bound != c.bound {
			t.Errorf("%+v takes %g by %s, want %g by %s", c.launch, seconds, bound, c.seconds, c.bound)
		}
	}
}

func TestGPUOf(t *testing.T) {
	for name, want := range map[string]string{"NVIDIA H200": "H200", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 PCIe": "",
		"NVIDIA GH200 480GB": "", "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA L4": ""} {
		if g, ok := gpuOf(name); g.kind != want || ok != (want != "") {
			t.Errorf("%s is %q", name, g.kind)
		}
	}
}

// What was measured stands beside what was expected, by kernel, whichever of the two has it; a pass that was planned once counts as often as it ran.
func TestBeside(t *testing.T) {
	e := expectation{gpu: gpus[1], known: true}
	p := planned{launches: []cudart.Launch{{Kernel: "add", Blocks: 200, Bytes: 4.3e12}, {Kernel: "rope", Blocks: 200, Bytes: 4.3e11}}}
	got := e.beside(map[string]cudart.KernelTime{"add": {Launches: 6, Seconds: 6}, "cuMemcpyHtoD": {Launches: 3, Seconds: 0.3}}, 3, p, 2)
	if len(got) != 3 || got[0].Kernel != "add" || got[0].Launches != 2 || got[0].Seconds != 2 || math.Abs(got[0].Predicted-2*1.000003) > 1e-9 ||
		got[0].Bytes != 8.6e12 || got[1].Kernel != "cuMemcpyHtoD" || got[1].Predicted != 0 ||
		got[2].Kernel != "rope" || got[2].Seconds != 0 || got[2].Predicted < 0.2 {
		t.Errorf("%+v", got)
	}
	if rates := got[0].rates(); rates != "4.3e+03 GB/s" {
		t.Errorf("it reached %s", rates)
	}
	if none := (&expectation{}).training() + (&expectation{}).decoding() + (&expectation{}).utilization(1); none != "" {
		t.Errorf("of a device of which nothing is expected: %s", none)
	}
}

// A report has notes once, and a check that failed in bold.
func TestNotes(t *testing.T) {
	var r report
	log := slog.New(noting{say: func(n note) { r.note(&n) }})
	for range 2 {
		log.With("device", "X").Warn("products of many rows do without warpgroups and take longer", "reason", errors.New("element 3 differs"))
	}
	log.Debug("nothing")
	log.Info("arithmetic", "device", "X")
	text := r.markdown()
	const want = "| **warn** | products of many rows do without warpgroups and take longer; device X; reason element 3 differs |\n| log | arithmetic; device X |\n"
	if !strings.Contains(text, want) || len(r.Notes) != 2 {
		t.Errorf("%d notes, want %q:\n%s", len(r.Notes), want, text)
	}
}

// -predict takes a model by name or by its folder, and refuses what no pass can be by the flag's name.
func TestPrediction(t *testing.T) {
	fine := prediction{Model: "", Device: "H100", Sequences: 2, Length: 64, Streams: 2, Context: 64, Rank: 4}
	small := tiny.Shape
	config, err := small.config()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "own")
	write(t, filepath.Join(dir, "config.json"), string(config))
	for _, c := range []struct {
		name   string
		change func(p *prediction)
		want   string // in the output or, with "-" first, in the error
	}{
		{"folder", func(p *prediction) { p.Model = dir }, "own on one H100, training pass of 128 tokens, 2 sequences of 64, rank 4"},
		{"by name, recomputed", func(p *prediction) { p.Model, p.Recompute = "Qwen3-0.6B", true },
			"Qwen3-0.6B on one H100, decoding step of 2 sequences after 64 tokens, rank 4"},
		{"no such model", func(p *prediction) { p.Model = "Qwen3-9B" }, `--model: "Qwen3-9B" is neither one of Qwen3-0.6B, Qwen3-8B`},
		{"no such device", func(p *prediction) { p.Device = "H300" }, `--device: "H300" is not known; allowed are H100, H200, A100, B200`},
		{"no rank", func(p *prediction) { p.Rank = 0 }, "--rank is 0; allowed is 1 to 512"},
		{"too long for the model", func(p *prediction) { p.Model, p.Length = dir, 10000 }, "-10000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := fine
			c.change(&p)
			var out bytes.Buffer
			err := p.check()
			if err == nil {
				err = p.run(t.Context(), &out)
			}
			if refused, is := strings.CutPrefix(c.want, "-"); is != (err != nil) || is && !strings.Contains(err.Error(),
				refused) || !is && !strings.Contains(out.String(), c.want) {
				t.Errorf("%v, want %q:\n%s", err, c.want, &out)
			}
		})
	}
}
