package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
	"github.com/tinsmith/tinsmith/plugins"
)

// placeOnCUDA is place on devices of the driver that needs no GPU, so many of them. Their streams run as late as they may, so that a device that does not wait for another computes something else.
func placeOnCUDA(t *testing.T, p placement, devices int) *Engine {
	t.Helper()
	return placeOnCUDAWith(t, p, devices, nil)
}

// placeOnCUDAWith is placeOnCUDA with a function that is told when a device is lost.
func placeOnCUDAWith(t *testing.T, p placement, devices int, lost func(error)) *Engine {
	t.Helper()
	return placeOpened(t, p, devices, func(o cuda.Options) (tensor.Device, error) {
		o.Lost = lost
		return cuda.New(o)
	})
}

// hiding is a device that seems to draw no tokens, nor to have most else that a GPU has beside operations.
type hiding struct {
	tensor.Device
	tensor.OwnMemory
	tensor.Neighbour
}

// openHiding opens one.
func openHiding(o cuda.Options) (tensor.Device, error) {
	d, err := cuda.New(o)
	if err != nil {
		return nil, err
	}
	return hiding{d, d.(tensor.OwnMemory), d.(tensor.Neighbour)}, nil
}

func (h hiding) Reach(other tensor.Device) error { return h.Neighbour.Reach(other.(hiding).Device) }

func (h hiding) NewMark() (tensor.Mark, error) {
	m, err := h.Neighbour.NewMark()
	return hidingMark{m}, err
}

type hidingMark struct{ tensor.Mark }

func (m hidingMark) Before(later tensor.Device) error { return m.Mark.Before(later.(hiding).Device) }

func placeOpened(t *testing.T, p placement, devices int, open func(cuda.Options) (tensor.Device, error)) *Engine {
	t.Helper()
	return placeWith(t, p, optionsOnCUDA(t, devices, open))
}

// optionsOnCUDA are testOptions with devices of the driver that needs no GPU.
func optionsOnCUDA(t *testing.T, devices int, open func(cuda.Options) (tensor.Device, error)) Options {
	t.Helper()
	t.Setenv("FAKE_CUDA_LATE", "1")
	libraries := []string{shim.Require(t, shim.Options{})}
	t.Setenv("FAKE_CUDA_DEVICES", strconv.Itoa(devices))
	o := testOptions()
	o.OpenDevice = func(c Config) (tensor.Device, error) {
		return open(cuda.Options{Device: c.Device, Libraries: libraries})
	}
	return o
}

// briefLife is live with as little as shows everything: the kernels run on the processor, one fiber per thread.
func briefLife(t *testing.T, e *Engine) history {
	t.Helper()
	return briefLifeOf(t, e, 9, 5)
}

// briefLifeOf is briefLife with data and prompts of so many tokens.
func briefLifeOf(t *testing.T, e *Engine, datum, prompt int) history {
	t.Helper()
	h := history{floats: map[string][]float32{}, tokens: map[string][]int32{}}
	d := create(t, e, "run", 1, 2)
	random := rand.New(rand.NewPCG(3, 1))
	for step := range 2 {
		for i, lp := range d.pass(randomData(random, 3, datum)).Logprobs {
			h.floats[strconv.Itoa(step)+" logprobs "+strconv.Itoa(i)] = lp
		}
		d.step()
	}
	out, err := collect(t.Context(), e, ask("q", d.adapter, randomTokens(random, prompt), 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range out.sequences {
		h.tokens[strconv.Itoa(i)], h.floats["sample "+strconv.Itoa(i)] = s.Tokens, s.Logprobs
	}
	setVocabulary(t, e)
	q := ask("constrained", d.adapter, randomTokens(random, prompt), 2, 3)
	constrainedCases(t)[0].set(&q)
	if out, err = collect(t.Context(), e, q); err != nil {
		t.Fatal(err)
	}
	for i, s := range out.sequences {
		h.tokens["constrained "+strconv.Itoa(i)], h.floats["sample constrained "+strconv.Itoa(i)] = s.Tokens, slices.Concat(s.Logprobs, s.ConstraintLogprobs)
	}
	for name, w := range d.weights() {
		h.floats["weights "+name] = w
	}
	return h
}

const smallMemory = `, "kv_cache_tokens": 1024, "max_batch": 4, "batch_tokens": 24`

// Ranks on one GPU, and on two that reach each other's memory, give the bits of one alone.
func TestCopiesOnCUDAEqualSingle(t *testing.T) {
	want := briefLife(t, placeOnCUDA(t, placement{plugin: "single", section: `{"device": "cuda:0"` + smallMemory + `}`}, 1))
	for _, p := range []struct {
		placement
		devices int
	}{
		{placement{"two ranks on one GPU", "dataparallel", `{"devices": ["cuda:0", "cuda:0"]` + smallMemory + `}`}, 1},
		{placement{"two GPUs", "dataparallel", `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, 2},
		{placement{"two ranks on one GPU with shared-out weights", "dataparallel", `{"devices": ["cuda:0", "cuda:0"], "shard_base": true` + smallMemory + `}`}, 1},
		{placement{"three GPUs with shared-out weights", "dataparallel", `{"devices": ["cuda:0", "cuda:1", "cuda:2"], "shard_base": true` + smallMemory + `}`}, 3},
		{placement{"one GPU trains, one samples", "dataparallel", `{"devices": ["cuda:1"], "sample_devices": ["cuda:0"]` + smallMemory + `}`}, 2},
	} {
		t.Run(p.name, func(t *testing.T) { equalHistories(t, briefLife(t, placeOnCUDA(t, p.placement, p.devices)), want) })
	}
}

// A model with experts does on a GPU what it does on a processor, but for rounding, and on copies what it does on one GPU.
func TestMixtureOnCUDA(t *testing.T) {
	dir := writeMixture(t, 1)
	one := briefLife(t, placeModel(t, dir, placement{plugin: "single", section: `{"device": "cuda:0"` + smallMemory + `}`}, optionsOnCUDA(t, 1, cuda.New)))
	t.Run("a processor", func(t *testing.T) {
		nearHistories(t, one, briefLife(t, placeModel(t, dir, placement{plugin: "single", section: `{"threads": 1` + smallMemory + `}`}, testOptions())))
	})
	t.Run("small batches, computed again", func(t *testing.T) {
		section := `{"device": "cuda:0", "recompute": "on", "kv_cache_tokens": 1024, "max_batch": 4, "batch_tokens": 16, "prefill_tokens": 3}`
		equalHistories(t, briefLife(t, placeModel(t, dir, placement{plugin: "single", section: section}, optionsOnCUDA(t, 1, cuda.New))), one)
	})
	t.Run("two GPUs", func(t *testing.T) {
		section := `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`
		equalHistories(t, briefLife(t, placeModel(t, dir, placement{plugin: "dataparallel", section: section}, optionsOnCUDA(t, 2, cuda.New))), one)
	})
}

// So does a gpt-oss, of data and prompts that are longer than its window; and on a GPU that trains and one that samples.
func TestGPTOSSOnCUDA(t *testing.T) {
	dir := gptOSS{quantized: true}.write(t)
	life := func(t *testing.T, p placement, o Options) history {
		t.Helper()
		return briefLifeOf(t, placeModel(t, dir, p, o), 40, 26)
	}
	one := life(t, placement{plugin: "single", section: `{"device": "cuda:0"` + smallMemory + `}`}, optionsOnCUDA(t, 1, cuda.New))
	t.Run("a processor", func(t *testing.T) {
		// Adam divides by a gradient's size, and so enlarges the rounding of those that are nearly nothing, as some of the keys' are.
		nearHistoriesTo(t, one, life(t, placement{plugin: "single", section: `{"threads": 1` + smallMemory + `}`}, testOptions()), 5e-3)
	})
	for _, c := range []placement{
		{"small batches, computed again", "single", `{"device": "cuda:0", "recompute": "on", "kv_cache_tokens": 1024, "max_batch": 4, "batch_tokens": 16, "prefill_tokens": 7}`},
		{"two GPUs", "dataparallel", `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`},
		{"two GPUs with shared-out weights", "dataparallel", `{"devices": ["cuda:0", "cuda:1"], "shard_base": true` + smallMemory + `}`},
		{"one GPU trains, one samples", "dataparallel", `{"devices": ["cuda:1"], "sample_devices": ["cuda:0"]` + smallMemory + `}`},
	} {
		t.Run(c.name, func(t *testing.T) { equalHistories(t, life(t, c, optionsOnCUDA(t, 2, cuda.New)), one) })
	}
}

// A model that is cut over ranks on one GPU gives the bits of one that is cut over two GPUs, and nearly those of the whole one.
func TestCutsOnCUDA(t *testing.T) {
	whole := briefLife(t, placeOnCUDA(t, placement{plugin: "single", section: `{"device": "cuda:0"` + smallMemory + `}`}, 1))
	var first history
	for _, p := range []struct {
		placement
		devices int
	}{
		{placement{"two ranks on one GPU", "tensorparallel", `{"devices": ["cuda:0", "cuda:0"]` + smallMemory + `}`}, 1},
		{placement{"two GPUs", "tensorparallel", `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, 2},
		{placement{"two GPUs by NCCL", "tensorparallel", `{"devices": ["cuda:0", "cuda:1"], "comm": "nccl"` + smallMemory + `}`}, 2},
		{placement{"two copies over two GPUs", "dataparallel", `{"devices": [["cuda:0", "cuda:1"], ["cuda:1", "cuda:0"]]` + smallMemory + `}`}, 2},
	} {
		t.Run(p.name, func(t *testing.T) {
			got := briefLife(t, placeOnCUDA(t, p.placement, p.devices))
			nearHistories(t, got, whole)
			if first.floats == nil {
				first = got
			}
			equalHistories(t, got, first)
		})
	}
}

// GPUs need not reach each other's memory but the first one's, where adapters are, and, without NCCL, that of the ranks of the same model. A machine where they cannot reach that is told of, with the reason.
func TestReachOfGPUs(t *testing.T) {
	for _, c := range []struct {
		placement
		apart string // pairs of devices of which the first cannot reach the second
		want  string // in the error; "": none
	}{
		{placement{"ranks by NCCL", "tensorparallel", `{"devices": ["cuda:0", "cuda:1", "cuda:2", "cuda:3"], "comm": "nccl"` + smallMemory + `}`}, "0-1 0-2 0-3 1-2 1-3 2-1 2-3 3-1 3-2", ""},
		{placement{"ranks without", "tensorparallel", `{"devices": ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]` + smallMemory + `}`}, "2-3", "cuda:2 cannot reach the memory of cuda:3"},
		{placement{"groups", "dataparallel", `{"devices": [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]]` + smallMemory + `}`}, "0-2 0-3 1-2 1-3 2-1 3-1", ""},
		{placement{"copies", "dataparallel", `{"devices": ["cuda:0", "cuda:1", "cuda:2"]` + smallMemory + `}`}, "0-1 0-2 1-2 2-1", ""},
		{placement{"copies with shared-out weights", "dataparallel", `{"devices": ["cuda:0", "cuda:1", "cuda:2"], "shard_base": true` + smallMemory + `}`}, "0-1 0-2 1-2 2-1", ""},
		{placement{"one trains, one samples", "dataparallel", `{"devices": ["cuda:1"], "sample_devices": ["cuda:0"]` + smallMemory + `}`}, "1-0", ""},
		{placement{"no way to the first", "dataparallel", `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, "1-0", "cuda:1 cannot reach the memory of cuda:0"},
		{placement{"no way to the first, by NCCL", "tensorparallel", `{"devices": ["cuda:0", "cuda:1"], "comm": "nccl"` + smallMemory + `}`}, "1-0", "adapters and their gradients are in the memory of cuda:0, which all other GPUs read and write, also with comm: nccl"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_APART", c.apart)
			if c.want == "" {
				briefLife(t, placeOnCUDA(t, c.placement, 4))
				return
			}
			libraries := []string{shim.Require(t, shim.Options{})}
			t.Setenv("FAKE_CUDA_DEVICES", "4")
			e := New(gpuOptions(c.plugin, libraries))
			_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: t.TempDir(), Name: "tiny", Config: []byte(c.section)}, nil)
			if plugins.KindOf(err) != plugins.KindInvalid || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("error %v", err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A checkpoint goes from one kind of device to another and back: what is saved has the same bits, and a step there is the step here but for rounding.
func TestResumeOnAnotherKind(t *testing.T) {
	onProcessor, onGPUs := placement{plugin: "single", section: `{"threads": 1}`}, []struct {
		placement
		devices int
	}{
		{placement{"one GPU", "single", `{"device": "cuda:0"` + smallMemory + `}`}, 1},
		{placement{"two GPUs, cut", "tensorparallel", `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, 2},
	}
	writer := create(t, place(t, onProcessor), "a", 3, 4)
	data := randomData(rand.New(rand.NewPCG(4, 4)), 3, 9)
	writer.pass(data)
	writer.step()
	writer.pass(data)
	path := writer.save(plugins.ScopeAccumulator)
	writer.step()
	want := history{floats: writer.weights()}
	for _, p := range onGPUs {
		t.Run(p.name, func(t *testing.T) {
			d := load(t, placeOnCUDA(t, p.placement, p.devices), "b", path, plugins.ScopeAccumulator)
			back := load(t, place(t, onProcessor), "c", d.save(plugins.ScopeAccumulator), plugins.ScopeAccumulator)
			d.step()
			back.step()
			nearHistories(t, history{floats: d.weights()}, want)
			equalTensors(t, "and back", back.weights(), want.floats)
		})
	}
}

// Steps of several runs that are ready together are done at once: the host waits for the device as often as for one, and every run gets what it gets alone.
func TestStepsOnCUDATogether(t *testing.T) {
	var waits atomic.Int32 // beyond the allowed number: the next one fails, in a way that is told of although the steps are then done one by one
	start := func(t *testing.T) (*Engine, []*driver) {
		e := placeOnCUDAWith(t, placement{plugin: "single", section: `{"device": "cuda:0"` + smallMemory + `}`}, 1, func(error) { waits.Add(1) })
		var runs []*driver
		for i := range 4 {
			d := create(t, e, "run "+strconv.Itoa(i), uint64(i), 2)
			if i != 2 { // which steps without a gradient
				d.pass(randomData(rand.New(rand.NewPCG(6, uint64(i))), 1, 7))
			}
			runs = append(runs, d)
		}
		return e, runs
	}
	type result struct {
		plugins.OptimStepResult
		weights map[string][]float32
	}
	var alone, together [4]result
	t.Run("alone", func(t *testing.T) {
		_, runs := start(t)
		for i, d := range runs {
			alone[i].OptimStepResult = d.step()
			alone[i].weights = d.weights()
		}
	})
	t.Run("together", func(t *testing.T) {
		t.Setenv("FAKE_CUDA_FAIL", "")
		e, runs := start(t)
		const allowed = 1
		release := block(t, e, func() {
			e.cycle.end = time.Time{} // no step belongs to the cycle of the last pass: all wait for the next one
			_ = os.Setenv("FAKE_CUDA_FAIL", fmt.Sprintf("cuStreamSynchronize:%d:719", allowed+1))
		})
		var done sync.WaitGroup
		for i, d := range runs {
			position := d.position()
			done.Go(func() {
				r, err := e.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: d.adapter, Position: position, Adam: adamDefaults})
				if err != nil {
					t.Errorf("run %d: %v", i, err)
				}
				together[i].OptimStepResult = r
			})
			eventually(t, "the step is queued", func() bool { return queued(e, d.adapter, position) })
		}
		release()
		done.Wait()
		hook(t, e, func() { _ = os.Setenv("FAKE_CUDA_FAIL", "") })
		if waits.Load() != 0 {
			t.Errorf("the host waits more than %d times for the steps of %d runs", allowed, len(runs))
		}
		for i, d := range runs {
			together[i].weights = d.weights()
		}
	})
	for i, got := range together {
		want := alone[i]
		for _, name := range []string{"grad_norm", "adapter_norm"} {
			if got.Metrics[name] != want.Metrics[name] {
				t.Errorf("run %d: %s %v, alone %v", i, name, got.Metrics[name], want.Metrics[name])
			}
		}
		for name, w := range want.weights {
			if !slices.Equal(got.weights[name], w) {
				t.Errorf("run %d: %s is not what it is alone", i, name)
			}
		}
	}
}

// The host waits once for the passes of several runs that go together, whatever the number of chunks of logits, and takes no memory for passes like those before: the gradients' check is part of it.
func TestPassesOnCUDAWaitOnce(t *testing.T) {
	for _, c := range []struct {
		function string
		calls    int
		experts  bool
	}{{"cuStreamSynchronize", 1, false}, {"cuEventSynchronize", 0, false}, {"cuMemAlloc_v2", 0, false}, {"cuMemFree_v2", 0, false}, {"cuMemHostAlloc", 0, false}, {"cuMemcpyDtoHAsync_v2", 2, false}, // the log-probabilities of all, and the sums of squares
		{"cuStreamSynchronize", 1, true}, {"cuMemHostAlloc", 0, true}} {
		t.Run(fmt.Sprintf("%s, experts %v", c.function, c.experts), func(t *testing.T) {
			t.Setenv("FAKE_CUDA_FAIL", "")
			var lost atomic.Int32
			at := placement{plugin: "single", section: `{"device": "cuda:0", "kv_cache_tokens": 1024, "max_batch": 4, "batch_tokens": 256}`}
			dir := t.TempDir()
			if c.experts {
				dir = writeMixture(t, 1)
			} else if err := writeTiny(dir); err != nil {
				t.Fatal(err)
			}
			e := placeModel(t, dir, at, optionsOnCUDA(t, 1, func(o cuda.Options) (tensor.Device, error) {
				o.Lost = func(error) { lost.Add(1) }
				return cuda.New(o)
			}))
			var runs []*driver
			for i := range 3 {
				d := create(t, e, "run "+strconv.Itoa(i), uint64(i), 2)
				d.pass(randomData(rand.New(rand.NewPCG(6, uint64(i))), 1, 7)) // what follows is added to it
				runs = append(runs, d)
			}
			const first, enough, short = 0, 1, 2
			for _, round := range []int{first, enough, short} {
				release := block(t, e, func() {
					// The call after the last one that is expected fails, or that one itself, in a way that is told of although operations are tried again.
					if round != first { // which takes memory
						_ = os.Setenv("FAKE_CUDA_FAIL", fmt.Sprintf("%s:%d:719", c.function, c.calls+2-round))
					}
				})
				var done sync.WaitGroup
				for i, d := range runs {
					position := d.position()
					done.Go(func() {
						_, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: position, Loss: "cross_entropy", Data: randomData(rand.New(rand.NewPCG(7, uint64(i))), 1, 7)})
						if err != nil {
							t.Errorf("run %d: %v", i, err)
						}
					})
					eventually(t, "the pass is queued", func() bool { return queued(e, d.adapter, position) })
				}
				release()
				done.Wait()
				hook(t, e, func() { _ = os.Setenv("FAKE_CUDA_FAIL", "") })
				if told := lost.Swap(0) > 0; told != (round == short && c.calls > 0) {
					t.Errorf("round %d, with %d calls of %s expected: the failing one was made: %v", round, c.calls, c.function, told)
				}
			}
		})
	}
}

// A rank of a model that is cut waits for its device as often for the logits of several rows as for those of one: of tokens that are drawn, and of a prompt's whose likeliest tokens are asked for.
func TestRanksOnCUDAWaitOnceForRows(t *testing.T) {
	e := placeOnCUDA(t, placement{plugin: "tensorparallel", section: `{"devices": ["cuda:0", "cuda:0"]` + smallMemory + `}`}, 1)
	waits := func(sequences, tokens, scored int) int {
		file := filepath.Join(t.TempDir(), "count")
		q := ask(fmt.Sprintf("%d sequences, %d tokens, %d scored", sequences, tokens, scored), "", randomTokens(rand.New(rand.NewPCG(1, 2)), 12), sequences, tokens)
		q.Version, q.TopKPromptLogprobs, q.PromptLogprobsLastN = 0, 2, scored
		hook(t, e, func() { _ = os.Setenv("FAKE_CUDA_COUNT", file) })
		_, err := collect(t.Context(), e, q)
		hook(t, e, func() { _ = os.Setenv("FAKE_CUDA_COUNT", "") })
		text, failed := os.ReadFile(file)
		if err := errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "cuStreamSynchronize\n")
	}
	t.Setenv("FAKE_CUDA_COUNT", "")
	if one, more := waits(1, 1, 1), waits(1, 1, 9); more != one {
		t.Errorf("the host waits %d times when one position of a prompt is scored, %d times for nine", one, more)
	}
	// The first tokens of a prompt's sequences need not be drawn in one step; the last ones are. Each rank waits once, for its own device.
	if one, more := waits(1, 4, 1)-waits(1, 3, 1), waits(4, 4, 1)-waits(4, 3, 1); more != 2 || one != 2 {
		t.Errorf("the ranks wait %d times to draw a token of one sequence, %d times for one each of four", one, more)
	}
}

// A machine with too few GPUs is told of when the model is loaded.
func TestTooFewGPUs(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	o := gpuOptions(pluginDataParallel, libraries)
	check := func(section, want string) {
		t.Helper()
		e := New(o)
		_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: t.TempDir(), Name: "tiny", Config: []byte(section)}, nil)
		if plugins.KindOf(err) != plugins.KindInvalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: error %v", section, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	for section, want := range map[string]string{
		`{"devices": ["cuda:0", "cuda:1", "cuda:2", "cuda:3"], "shard_base": true}`: "backend.devices: cuda: cuda:1: this machine has 1 CUDA devices, numbered from 0; this configuration needs 4, the last is cuda:3",
		`{"devices": ["cuda:0"], "sample_devices": ["cuda:1"]}`:                     "backend.sample_devices: cuda: cuda:1: this machine has 1 CUDA devices, numbered from 0; this configuration needs 2, the last is cuda:1",
		`{"devices": ["cuda:7", "cuda:0"]}`:                                         "backend.devices: cuda: cuda:7: this machine has 1 CUDA devices, numbered from 0; this configuration needs 8, the last is cuda:7",
	} {
		check(section, want)
	}
	t.Setenv("FAKE_CUDA_DEVICES", "0")
	check(`{"devices": ["cuda:0", "cuda:1"]}`, "backend.devices: cuda: this machine has 0 CUDA devices that this process may use")
	check(`{"devices": ["cuda:0", "cuda:1"]}`, "; this configuration needs 2, the last is cuda:1")
}

// A machine without a CUDA driver has no GPUs, which is told of beside what was looked for and where, and how many are needed.
func TestNoGPUs(t *testing.T) {
	if err := cuda.Available(nil); !errors.Is(err, cudart.ErrNoDriver) {
		t.Skipf("this machine has a CUDA driver: %v", err)
	}
	empty := t.TempDir()
	for _, c := range []struct{ plugin, section, key, needs string }{
		{pluginSingle, `{"device": "cuda:0"}`, "backend.device: ", "; this configuration needs 1, cuda:0"},
		{pluginTensorParallel, `{"devices": ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]}`, "backend.devices: ", "; this configuration needs 4, the last is cuda:3"},
	} {
		e := New(gpuOptions(c.plugin, []string{empty}))
		_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: t.TempDir(), Name: "tiny", Config: []byte(c.section)}, nil)
		said := fmt.Sprint(err)
		begin := c.key + "cuda: this machine has 0 CUDA devices that this process may use: no CUDA driver was found: libcuda.so.1 "
		if plugins.KindOf(err) != plugins.KindInvalid || !strings.Contains(said, begin) || !strings.Contains(said, filepath.Join(empty, "libcuda.so.1")) || !strings.HasSuffix(said, c.needs) {
			t.Errorf("%s: error %v", c.section, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Tokens that the device draws are those that are drawn in Go memory, with the same log-probabilities.
func TestDrawsOnCUDAEqualThoseInMemory(t *testing.T) {
	for _, c := range []struct {
		name, plugin        string
		section, more       string // more: of the engine that draws on the device alone
		devices, vocabulary int
	}{
		{"one GPU", "single", `{"device": "cuda:0"`, "", 1, tinyVocabulary},
		{"two GPUs with equal parts", "tensorparallel", `{"devices": ["cuda:0", "cuda:1"]`, "", 2, tinyVocabulary + 1},
		{"three GPUs, two with a token more, by NCCL", "tensorparallel", `{"devices": ["cuda:0", "cuda:1", "cuda:2"]`, `, "comm": "nccl"`, 3, tinyVocabulary},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := writeModel(dir, shape{c.vocabulary, 32, 48, 1, 6, 6, 16}); err != nil {
				t.Fatal(err)
			}
			there := placeModel(t, dir, placement{plugin: c.plugin, section: c.section + c.more + smallMemory + `}`}, optionsOnCUDA(t, c.devices, cuda.New))
			here := placeModel(t, dir, placement{plugin: c.plugin, section: c.section + smallMemory + `}`}, optionsOnCUDA(t, c.devices, openHiding))
			drawsEqual(t, there, here, 1, 4)
		})
	}
}

// gpuOptions are testOptions of a plugin whose GPUs are those of the driver in libraries.
func gpuOptions(plugin string, libraries []string) Options {
	o := testOptions()
	o.Plugin = plugin
	o.OpenDevice = func(c Config) (tensor.Device, error) {
		return cuda.New(cuda.Options{Device: c.Device, Libraries: libraries})
	}
	return o
}

// When nothing has been trained for a while, GPUs have as much free for other processes as before: what passes held, and at every home what was an adapter's.
func TestRestOnCUDAGivesMemoryBack(t *testing.T) {
	for _, p := range []struct {
		placement
		devices int
	}{
		{placement{"one GPU", "single", `{"device": "cuda:0"` + smallMemory + `}`}, 1},
		{placement{"two GPUs", "dataparallel", `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, 2},
	} {
		t.Run(p.name, func(t *testing.T) {
			e := placeOnCUDA(t, p.placement, p.devices)
			free := func() (bytes []int64) {
				hook(t, e, func() {
					for _, d := range e.loaded.homes.devices {
						bytes = append(bytes, freeMemory(d))
					}
				})
				return bytes
			}
			hook(t, e, func() { e.restAfter = time.Hour; e.loaded.trim() })
			before := free()
			d := create(t, e, "run", 1, 2)
			d.pass(randomData(rand.New(rand.NewPCG(3, 1)), 3, 9))
			d.step()
			if err := e.DeleteAdapter(t.Context(), d.adapter); err != nil {
				t.Fatal(err)
			}
			for i, n := range free() {
				if n >= before[i] {
					t.Errorf("%d of %d bytes are free at home %d while memory is kept: the test shows nothing", n, before[i], i)
				}
			}
			hook(t, e, func() { e.restAfter = time.Millisecond })
			eventually(t, "the memory is free", func() bool { return slices.Equal(free(), before) })
		})
	}
}
