package model_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// onlyDevice hides what a device has beyond tensor.Device, so that the host computes losses.
type onlyDevice struct{ tensor.Device }

// lossExamples are two sequences with every loss, of which prompts count nothing, and one without a gradient; every loss has an adapter of its own.
func (b *bench) lossExamples(r *rand.Rand) (examples []model.Example, gradients []*lora.Gradient) {
	b.t.Helper()
	for i, name := range loss.Names() {
		form, err := loss.New(name, nil)
		if err != nil {
			b.t.Fatal(err)
		}
		w := b.randomAdapter(2, uint64(i+1), true, false, true)
		g := b.gradient(w.Layout())
		gradients = append(gradients, g)
		for j, n := range []int{24, 9, 5} {
			k := 1
			if name == "cross_entropy" {
				k = 2
			}
			e := model.Example{Sequence: model.Sequence{Adapter: w, Tokens: b.randomTokens(r, n), Pages: b.take(n)}, Targets: b.randomTokens(r, n*k), K: k, Loss: form}
			floats := func(n int, f func(i int) float32) []float32 {
				values := make([]float32, n)
				for i := range values {
					values[i] = f(i)
				}
				return values
			}
			normalBeyond := func(i int) float32 {
				if i < 2 {
					return 0
				}
				return float32(r.NormFloat64())
			}
			if name == "cross_entropy" {
				e.Inputs.Weights = floats(n*k, normalBeyond)
			} else {
				e.Inputs.Advantages = floats(n, normalBeyond)
				e.Inputs.Logprobs = floats(n, func(int) float32 { return float32(-10 + 6*r.NormFloat64()) })
				if j == 1 {
					e.Inputs.Weights = floats(n, func(i int) float32 { return []float32{1, 0.3, 0, 2.7}[i%4] })
				}
				if name == "gspo" {
					e.Inputs.SequenceRatioMask = floats(n, func(i int) float32 { return float32(i % 2) })
				}
			}
			if j < 2 {
				e.Gradient = g
			}
			examples = append(examples, e)
		}
	}
	return examples, gradients
}

// manyChunks is memory for logits of few rows.
func manyChunks(d tensor.DType) model.LoadOptions {
	return model.LoadOptions{DType: d, LogitsBytes: 3 << 10}
}

// A device that differentiates losses gives the bits of one that has the host do it: log-probabilities, losses and gradients.
func TestLossesOnTheDevice(t *testing.T) {
	dir := shim.Require(t, shim.Options{})
	t.Setenv("FAKE_CUDA_LATE", "1")
	type result struct {
		outcomes  []model.Outcome
		gradients [][]float32
	}
	folder := unpack(t, "llama")
	run := func(t *testing.T, hide bool, spoil func([]model.Example)) (out result) {
		onCUDA(t, func() (tensor.Device, error) {
			d, err := cuda.New(cuda.Options{Device: "cuda:0", Libraries: []string{dir}})
			if hide && err == nil {
				return onlyDevice{d}, nil
			}
			return d, err
		}, func(t *testing.T) {
			b := newBenchWith(t, folder, 1, manyChunks(tensor.Float32))
			examples, gradients := b.lossExamples(rand.New(rand.NewPCG(7, 8)))
			spoil(examples)
			var err error
			if out.outcomes, err = b.Train(b.work, b.pages, examples, model.TrainOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, g := range gradients {
				values := make([]float32, g.Flat.Rows*g.Flat.Cols)
				if err := b.device.Download(values, g.Flat); err != nil {
					t.Fatal(err)
				}
				out.gradients = append(out.gradients, values)
			}
		})
		return out
	}
	for name, spoil := range map[string]func([]model.Example){
		"finite":     func([]model.Example) {},
		"not finite": func(e []model.Example) { e[12].Inputs.Logprobs[3], e[12].Inputs.Advantages[3] = -800, 1 }, // of importance_sampling
	} {
		t.Run(name, func(t *testing.T) {
			var there, here result
			t.Run("there", func(t *testing.T) { there = run(t, false, spoil) })
			t.Run("here", func(t *testing.T) { here = run(t, true, spoil) })
			failed := 0
			for i, got := range there.outcomes {
				want := here.outcomes[i]
				if !slices.Equal(got.Logprobs, want.Logprobs) || !slices.Equal(got.Terms, want.Terms) || math.Float64bits(got.Loss) != math.Float64bits(want.Loss) || fmt.Sprint(got.Err) != fmt.Sprint(want.Err) {
					t.Errorf("example %d: %v, want %v", i, got, want)
				}
				if got.Err != nil {
					failed++
				}
			}
			if want := map[string]int{"finite": 0, "not finite": 1}[name]; failed != want {
				t.Errorf("%d examples have failed, want %d", failed, want)
			}
			for i, got := range there.gradients {
				if want := here.gradients[i]; !slices.Equal(got, want) && (name == "finite" || loss.Names()[i] != "importance_sampling") {
					t.Errorf("gradients of %s differ", loss.Names()[i])
				} else if !slices.ContainsFunc(got, func(x float32) bool { return x != 0 }) {
					t.Errorf("no gradient of %s", loss.Names()[i])
				}
			}
		})
	}
}

// The host waits for a device that differentiates losses at the end of a pass, whatever the loss and the number of chunks, and within it for nothing but earlier steps.
func TestPassWaitsOnce(t *testing.T) {
	dir := shim.Require(t, shim.Options{})
	folder := unpack(t, "llama")
	for _, name := range []string{"cross_entropy", "ppo", "gspo"} {
		t.Run(name, func(t *testing.T) {
			onCUDA(t, func() (tensor.Device, error) {
				return cuda.New(cuda.Options{Device: "cuda:0", Libraries: []string{dir}})
			}, func(t *testing.T) {
				b := newBenchWith(t, folder, 1, manyChunks(tensor.Float32))
				all, _ := b.lossExamples(rand.New(rand.NewPCG(7, 8)))
				examples := slices.DeleteFunc(all, func(e model.Example) bool { return e.Loss.Name() != name })
				visits := 0
				train := func(plan string, stepWork float64) error {
					t.Setenv("FAKE_CUDA_FAIL", plan)
					defer t.Setenv("FAKE_CUDA_FAIL", "")
					visits = 0
					_, err := b.Train(b.work, b.pages, examples, model.TrainOptions{Yield: func() error { visits++; return nil }, StepWork: stepWork})
					return err
				}
				const whole = 1e15                       // operations: more than the pass has
				if err := train("", whole); err != nil { // memory is there from now on
					t.Fatal(err)
				}
				for _, f := range []struct {
					function string
					waits    int
				}{{"cuStreamSynchronize", 1}, {"cuEventSynchronize", 0}} {
					if err := train(fmt.Sprintf("%s:%d:1", f.function, f.waits+1), whole); err != nil {
						t.Errorf("a pass waits more than %d times: %v", f.waits, err)
					}
					if f.waits > 0 {
						if err := train(fmt.Sprintf("%s:%d:1", f.function, f.waits), whole); err == nil {
							t.Errorf("a pass waits less than %d times", f.waits)
						}
					}
				}
				// In steps it waits for the one before the last, so that the device is never given all of a pass at once.
				for _, waits := range []int{1, 2 * b.Config.Layers} {
					if err := train(fmt.Sprintf("cuEventSynchronize:%d:1", waits), 1e5); err == nil {
						t.Errorf("a pass in steps waits less than %d times between them", waits)
					}
				}
				if err := train("", 1e5); err != nil {
					t.Error(err)
				}
				if visits < 4*b.Config.Layers+2 {
					t.Errorf("%d calls between parts: the pass has too few chunks to tell", visits)
				}
			})
		})
	}
}
