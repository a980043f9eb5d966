package model_test

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// onCUDA runs a test on a device; the tests of this package do not run beside each other.
func onCUDA(t *testing.T, open func() (tensor.Device, error), test func(t *testing.T)) {
	t.Helper()
	before := openDevice
	t.Cleanup(func() { openDevice = before })
	openDevice = func(*testing.T, int) (tensor.Device, error) { return open() }
	test(t)
}

// Whole models by the CUDA kernels' own text, which runs on the processor here: values and gradients against transformers and PEFT, and the sampler's bits against the trainer's.
func TestCUDAKernels(t *testing.T) {
	dir, few := shim.Require(t, shim.Options{}), fewTypes()
	onCUDA(t, func() (tensor.Device, error) {
		return cuda.New(cuda.Options{Device: "cuda:0", Libraries: []string{dir}})
	}, func(t *testing.T) {
		t.Run("log-probabilities", TestLogprobsAgreeWithTransformers)
		t.Cleanup(func() { oneGolden = "" })
		oneGolden = "qwen3"
		t.Run("bfloat16", TestBFloat16Weights)
		t.Run("gradients", TestGradientsAgreeWithPEFT)
		t.Run("gradients with bfloat16", TestBFloat16Gradients)
		t.Run("sampler equals trainer", func(t *testing.T) { samplerEqualsTrainer(t, unpack(t, "qwen3"), dtypes) })
		t.Run("sampler equals trainer of a mixture", func(t *testing.T) { samplerEqualsTrainer(t, mixture(t), few) })
		t.Run("batched decoding", func(t *testing.T) { batchedDecode(t, unpack(t, "qwen3"), 3, 4) })
		t.Run("batched decoding of a mixture", func(t *testing.T) { batchedDecode(t, mixture(t), 3, 4) })
		t.Run("chunks of logits", func(t *testing.T) { chunksOfLogits(t, unpack(t, "qwen3")) })
		t.Run("fused equals separate", func(t *testing.T) { fusedEqualsSeparate(t, "qwen2", "qwen3") }) // without norms of heads, and with
	})
}

// TestGradientsOnTensorCores: gradients that are summed by groups of rows have the same bits however a pass is cut and whatever is beside a sequence, also in steps, and are as near to float64 as is demanded of those by chains. Bits with E2E_LEVEL=all only: they take minutes.
func TestGradientsOnTensorCores(t *testing.T) {
	dir, file := shim.Require(t, shim.Options{}), filepath.Join(t.TempDir(), "kernels")
	t.Setenv("FAKE_CUDA_KERNELS", file)
	onCUDA(t, func() (tensor.Device, error) {
		return cuda.New(cuda.Options{Device: "cuda:0", Libraries: []string{dir}, Gradients: cuda.GradientsTensorCores, Trusted: true})
	}, func(t *testing.T) {
		t.Cleanup(func() { oneGolden = "" })
		oneGolden = "qwen3"
		t.Run("gradients with bfloat16", TestBFloat16Gradients)
		ran, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(ran), "run outer_group\n") {
			t.Errorf("outer_group did not run: %v", err)
		}
		if os.Getenv("E2E_LEVEL") != "all" {
			return
		}
		t.Run("bits", func(t *testing.T) {
			trainingBits(t, unpack(t, "qwen3"), tensor.BFloat16, []trainingSetting{{1, 17 * 4 * 512}})
		})
	})
}

// TestCUDAHybrid is the same for a model with linear attention.
func TestCUDAHybrid(t *testing.T) {
	dir, few := shim.Require(t, shim.Options{}), fewTypes()
	onCUDA(t, func() (tensor.Device, error) {
		return cuda.New(cuda.Options{Device: "cuda:0", Libraries: []string{dir}})
	}, func(t *testing.T) {
		t.Run("gradients", func(t *testing.T) {
			gradientsAgree(t, slices.DeleteFunc(tinkerAdapters(t), func(g adapterGolden) bool { return g.name != "committed/qwen3.5/tinker" }), []string{"cross_entropy"})
		})
		t.Run("sampler equals trainer", func(t *testing.T) { samplerEqualsTrainer(t, unpack(t, "qwen3.5"), few) })
		t.Run("copies of states", TestStateCopies)
		t.Run("fused equals separate", func(t *testing.T) { fusedEqualsSeparate(t, "qwen3.5") })
		t.Run("batched decoding", func(t *testing.T) { batchedDecode(t, unpack(t, "qwen3.5"), 3, 4) })
	})
}

// TestCUDASinks is the same for a gpt-oss: windows, sinks, and experts with biases and a clamped gated product.
func TestCUDASinks(t *testing.T) {
	dir, few := shim.Require(t, shim.Options{}), fewTypes()
	onCUDA(t, func() (tensor.Device, error) {
		return cuda.New(cuda.Options{Device: "cuda:0", Libraries: []string{dir}})
	}, func(t *testing.T) {
		t.Run("gradients", func(t *testing.T) {
			gradientsAgree(t, slices.DeleteFunc(tinkerAdapters(t), func(g adapterGolden) bool { return g.name != "committed/gpt-oss/tinker" }), []string{"cross_entropy"})
		})
		t.Run("sampler equals trainer", func(t *testing.T) { samplerEqualsTrainer(t, unpack(t, "gpt-oss"), few) })
		t.Run("batched decoding", func(t *testing.T) { batchedDecode(t, unpack(t, "gpt-oss"), 3, 4) })
		t.Run("fused equals separate", func(t *testing.T) { fusedEqualsSeparate(t, "gpt-oss") })
	})
}

// fewTypes are the types of models that take long on the processor: batchedDecode has both anyway.
func fewTypes() []tensor.DType {
	if os.Getenv("E2E_LEVEL") == "all" {
		return dtypes
	}
	return []tensor.DType{tensor.BFloat16}
}

// chunksOfLogits trains a sequence with its logits in chunks of several sizes: no bit depends on them.
func chunksOfLogits(t *testing.T, dir string) {
	for _, d := range fewTypes() {
		var want *operation
		for _, rows := range []int{0, 128, 7} { // of a chunk; 0: all
			b := newBenchWith(t, dir, 1, model.LoadOptions{DType: d, LogitsBytes: rows * goldenVocabulary})
			if b.Config.VocabSize != goldenVocabulary {
				t.Fatalf("%d tokens, want %d", b.Config.VocabSize, goldenVocabulary)
			}
			r := rand.New(rand.NewPCG(3, 4))
			w := b.randomAdapter(4, 1, true, true, true)
			op := &operation{w: w, data: []model.Example{b.example(w, b.randomTokens(r, 140), b.randomTokens(r, 140), nil)}}
			b.run([]*operation{op}, nil, model.TrainOptions{})
			if want == nil {
				want = op
			}
			if !slices.Equal(op.logprobs[0], want.logprobs[0]) || !slices.Equal(op.gradient, want.gradient) {
				t.Errorf("%v, chunks of %d rows: other bits", d, rows)
			}
		}
	}
}

// goldenVocabulary is how many tokens the model of chunksOfLogits has.
const goldenVocabulary = 512

// samplerEqualsTrainer is TestSamplerGivesTheTrainersBits for one short sequence.
func samplerEqualsTrainer(t *testing.T, dir string, dtypes []tensor.DType) {
	for _, d := range dtypes {
		b := newBench(t, dir, d, 1)
		r := rand.New(rand.NewPCG(1, 2))
		for _, w := range []*lora.Weights{nil, b.randomAdapter(4, 4, true, true, true)} {
			tokens, targets := b.randomTokens(r, 68), b.randomTokens(r, 68)
			want := b.train(model.TrainOptions{}, b.example(w, tokens, targets, nil))[0].Logprobs
			for _, pieces := range [][]int{{64, 1, 1, 2}, {30, 38}, {62, 1, 1, 1, 1, 1, 1}} {
				if got := b.scored(w, tokens, targets, pieces); !slices.Equal(got, want) {
					t.Errorf("%v, pieces of %v tokens: log-probabilities differ from training's", d, pieces)
				}
			}
		}
	}
}

// finishing is a device that looks as if it gained from products that end in what comes next, and counts those.
type finishing struct {
	tensor.Finisher
	added, gated int
}

func (*finishing) Finishes() bool { return true }

func (f *finishing) MatMulsAdd(add tensor.Tensor, stages ...[]tensor.Multiplication) error {
	f.added++
	return f.Finisher.MatMulsAdd(add, stages...)
}

func (f *finishing) MatMulsGated(hidden, keptGate, keptUp tensor.Tensor, stages ...[]tensor.Multiplication) error {
	f.gated++
	return f.Finisher.MatMulsGated(hidden, keptGate, keptUp, stages...)
}

// fusedEqualsSeparate trains models on the device, on one that looks as if it fused no operations, and on one that is asked to finish products; with what is kept, and with what is computed again.
func fusedEqualsSeparate(t *testing.T, names ...string) {
	open := openDevice
	defer func() { openDevice = open }()
	for _, name := range names {
		for _, d := range dtypes {
			var first []float32
			for _, way := range []string{"fused", "separate", "finished"} {
				var asked finishing
				openDevice = func(t *testing.T, threads int) (tensor.Device, error) {
					d, err := open(t, threads)
					switch {
					case err != nil || way == "fused":
						return d, err
					case way == "separate":
						return struct {
							tensor.Device
							tensor.Differentiator
							tensor.Keeper
						}{d, d.(tensor.Differentiator), d.(tensor.Keeper)}, nil
					}
					asked.Finisher = d.(tensor.Finisher)
					return struct {
						tensor.Device
						tensor.Differentiator
						tensor.Keeper
						tensor.Fuser
						tensor.Finisher
					}{d, d.(tensor.Differentiator), d.(tensor.Keeper), d.(tensor.Fuser), &asked}, nil
				}
				for _, recompute := range []bool{false, true} {
					b := newBench(t, unpack(t, name), d, 1)
					r := rand.New(rand.NewPCG(5, 6))
					w := b.randomAdapter(4, 4, true, true, true)
					e := b.example(w, b.randomTokens(r, 30), b.randomTokens(r, 30), slices.Repeat([]float32{1}, 30))
					e.Gradient = b.gradient(w.Layout())
					result := slices.Clone(b.train(model.TrainOptions{Recompute: recompute}, e)[0].Logprobs)
					if err := e.Gradient.Each(func(_ string, x tensor.Tensor) error {
						result = append(result, b.download(x)...)
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					if first == nil {
						first = result
					}
					if !slices.Equal(result, first) {
						t.Errorf("%s, %v, %s, recompute %v: log-probabilities or gradients are others than those of fused operations and what is kept", name, d, way, recompute)
					}
				}
				if dense := name != "gpt-oss"; way == "finished" && (dense && asked.added == 0 || (asked.gated > 0) != (dense && d == tensor.BFloat16)) { // gpt-oss has biases, and experts
					t.Errorf("%s, %v: %d products that are added, %d that are gated", name, d, asked.added, asked.gated)
				}
			}
		}
	}
}

// Steps of decoding come again and again with the same launches, so that they are started as graphs; and if that fails the bits are the same.
func TestCUDAGraphs(t *testing.T) {
	dir := shim.Require(t, shim.Options{})
	for _, late := range []string{"0", "1"} {
		t.Setenv("FAKE_CUDA_LATE", late)
		onCUDA(t, func() (tensor.Device, error) {
			return cuda.New(cuda.Options{Device: "cuda:0", Libraries: []string{dir}})
		}, func(t *testing.T) {
			var said bytes.Buffer
			before := slog.Default()
			defer slog.SetDefault(before)
			slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
			for name, directory := range lawful(t, "qwen3", "qwen3.5", "gpt-oss") {
				said.Reset()
				b := newBench(t, directory, tensor.BFloat16, 1)
				r := rand.New(rand.NewPCG(1, 2))
				w, tokens, targets := b.randomAdapter(4, 4, true, true, true), b.randomTokens(r, 12), b.randomTokens(r, 12)
				oneByOne := slices.Repeat([]int{1}, 12)
				want := b.scored(w, tokens, targets, []int{12})
				for _, plan := range []string{"", "cuGraphLaunch:7:1"} {
					t.Setenv("FAKE_CUDA_FAIL", plan)
					if got := b.scored(w, tokens, targets, oneByOne); !slices.Equal(got, want) {
						t.Errorf("%s, late %s, failing %q: log-probabilities are not those of the whole sequence", name, late, plan)
					}
					if strings.Contains(said.String(), "CUDA graphs are not used any more") != (plan != "") {
						t.Errorf("%s, late %s, failing %q: it was said:\n%s", name, late, plan, &said)
					}
				}
				t.Setenv("FAKE_CUDA_FAIL", "")
			}
		})
	}
}

// A token's products in a layer of few rows are launches of several: of q, k and v, of o, of gate and up, and of down, one each, and where there are adapters another one each, whatever their number.
func TestCUDALaunches(t *testing.T) {
	dir := shim.Require(t, shim.Options{})
	onCUDA(t, func() (tensor.Device, error) {
		return cuda.New(cuda.Options{Device: "cuda:0", Libraries: []string{dir}})
	}, func(t *testing.T) {
		b := newBench(t, unpack(t, "qwen3"), tensor.BFloat16, 1)
		r := rand.New(rand.NewPCG(1, 2))
		all, other := b.randomAdapter(4, 4, true, true, false), b.randomAdapter(8, 5, true, true, false)
		attention, mlp := b.randomAdapter(4, 6, true, false, false), b.randomAdapter(4, 7, false, true, false)
		for _, c := range []struct {
			name     string
			adapters []*lora.Weights // of a token each
			launches int             // a layer
		}{
			{"no adapter", []*lora.Weights{nil}, 4},
			{"one adapter", []*lora.Weights{all}, 8},
			{"one, of several sequences", []*lora.Weights{all, all, all}, 8},
			{"two adapters", []*lora.Weights{all, other}, 8},
			{"an adapter and none", []*lora.Weights{all, nil, nil}, 8},
			{"on attention", []*lora.Weights{attention}, 6},
			{"on the MLP", []*lora.Weights{mlp}, 6},
			{"on attention, on the MLP, on both", []*lora.Weights{attention, mlp, all}, 8},
		} {
			batch := model.Batch{Pages: b.pages}
			for _, w := range c.adapters {
				batch.Sequences = append(batch.Sequences, model.Sequence{Adapter: w, Tokens: b.randomTokens(r, 1), Pages: b.take(1)})
			}
			file := filepath.Join(t.TempDir(), "count")
			t.Setenv("FAKE_CUDA_COUNT", file)
			_, err := b.Forward(b.work, batch, []int32{0})
			t.Setenv("FAKE_CUDA_COUNT", "")
			text, failed := os.ReadFile(file)
			if err := errors.Join(err, failed); err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(string(text), " product_"); got != c.launches*b.Config.Layers {
				t.Errorf("%s: %d launches of products in %d layers, want %d in each", c.name, got, b.Config.Layers, c.launches)
			}
		}
	})
}

// On a machine with a GPU everything holds there.
func TestCUDADevice(t *testing.T) {
	if err := cuda.Available(nil); err != nil {
		t.Skipf("no CUDA device: %v", err)
	}
	onCUDA(t, func() (tensor.Device, error) { return cuda.New(cuda.Options{Device: "cuda:0"}) }, func(t *testing.T) {
		t.Run("log-probabilities", TestLogprobsAgreeWithTransformers)
		t.Run("bfloat16", TestBFloat16Weights)
		t.Run("gradients", TestGradientsAgreeWithPEFT)
		t.Run("gradients with bfloat16", TestBFloat16Gradients)
		t.Run("batched decoding", TestBatchedDecode)
		t.Run("sampler equals trainer", TestSamplerGivesTheTrainersBits)
		t.Run("training bits", TestTrainingBits)
		t.Run("every cut", TestEveryCut)
		t.Run("copies of states", TestStateCopies)
		t.Run("fifty steps", TestFiftySteps)
	})
}
