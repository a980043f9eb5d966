package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/engine"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/device"
	"github.com/tinsmith/tinsmith/plugins"
)

// workload is a model and what is measured on it.
type workload struct {
	Name               string // of its steps
	Shape              shape
	Batches            []int // tokens of a training pass that are tried, the most first
	Sequences, Length  int   // of a training pass
	Streams            int   // decoded at once,
	Context, Generated int   // after prompts of so many tokens
	Adapters           int   // beside one; divides Sequences and Streams
	Rank, Repeat       int
	Section            string   // further keys of `backend:`, after a comma
	Train, Decode      string   // goals,
	Product            string   // of a product by itself
	Device             string   // its name, for what is stated and expected of it; "" asks nobody
	Copies             float64  // GB/s that a copy has there, read and written; 0: not measured
	Kernels            bool     // times by kernel are wanted
	Kinds              []string // of measurements; none: all
	// Of a GPU that is not there; one that is has what Section says.
	Attention, Gradients string
}

var workloads = []workload{
	{Name: "0.6B", Shape: qwen06B, Batches: []int{16384, 8192, 4096}, Sequences: 16, Length: 4096, Streams: 64, Context: 512, Generated: 128, Adapters: 16, Rank: 32, Repeat: 3, Train: "100,000 tok/s", Product: "600 TFLOP/s"},
	{Name: "8B", Shape: qwen8B, Batches: []int{16384, 8192, 4096}, Sequences: 16, Length: 4096, Streams: 64, Context: 512, Generated: 128, Adapters: 16, Rank: 32, Repeat: 3, Train: "16,000 tok/s", Decode: "75 % of the bandwidth", Product: "600 TFLOP/s"},
	// Of other families a few layers that are as wide: bits, and what their kernels cost. Their products are not those of dense models, so there is no step for them.
	family4K("30B-A3B", qwen30B.some(6, mixture)), family4K("Qwen3.5", qwen27B.some(4, hybrid)), family4K("gpt-oss", gptOSS.some(4, sinks)),
}

func family4K(name string, s shape) workload {
	return workload{Name: name, Shape: s, Batches: []int{8192, 4096}, Sequences: 8, Length: 4096, Streams: 64, Context: 512, Generated: 128, Adapters: 4, Rank: 32, Repeat: 2, Kinds: []string{"bits", "speed"}}
}

// bench is a loaded backend.
type bench struct {
	*engine.Engine
	workload
	positions map[string]int64
	section   string                // without the closing brace
	dir       string                // of the model
	memory    []plugins.MemoryShare // the plan
	device    tensor.Device         // the first, under the engine
}

// The types of weights and activations.
const (
	bfloat16s = "bfloat16"
	float32s  = "float32"
)

// load loads the model as a plugin does, with its default of who computes products.
func load(ctx context.Context, w workload, dir, plugin, placement, dtype string, libraries []string) (*bench, error) {
	var first tensor.Device
	e := engine.New(engine.Options{Plugin: plugin, Version: "devicebench", Registry: architectures.All(), Log: slog.New(slog.DiscardHandler),
		OpenDevice: func(c engine.Config) (tensor.Device, error) {
			d, err := device.Open(device.Options{Name: c.Device, Threads: c.Threads, CUDALibraries: libraries, Products: c.Products, Attention: c.Attention, Gradients: c.Gradients, Launches: c.Launches, Weights: c.Weights})
			if first == nil && err == nil {
				first = d
			}
			return d, err
		}})
	section := fmt.Sprintf(`{%s, "dtype": %q%s`, placement, dtype, w.Section)
	scratch := dir + ".scratch" // for adapters that find no room on the device
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	info, err := e.Load(ctx, plugins.LoadRequest{ModelDir: dir, Name: w.Shape.Name, Config: []byte(section + "}"), Scratch: scratch}, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load %s}: %w", section, err), e.Close())
	}
	slog.Info("arithmetic", "device", info.Device, "weights", info.DType, "arithmetic", info.Arithmetic)
	return &bench{Engine: e, workload: w, positions: map[string]int64{}, section: section, dir: dir, memory: info.Memory, device: first}, nil
}

// create makes an adapter that is not what it began as: a pass and a step have gone over it.
func (b *bench) create(ctx context.Context, adapter string) error {
	if _, err := b.CreateAdapter(ctx, plugins.CreateAdapterRequest{Adapter: adapter, Config: plugins.AdapterConfig{Rank: b.Rank, Seed: 1, TrainAttention: true, TrainMLP: true, TrainUnembed: true}}); err != nil {
		return err
	}
	if _, err := b.pass(ctx, adapter, b.data(1)); err != nil {
		return err
	}
	b.positions[adapter]++
	_, err := b.OptimStep(ctx, plugins.OptimStepRequest{Adapter: adapter, Position: b.positions[adapter], Adam: plugins.AdamParams{LearningRate: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}})
	return err
}

func (b *bench) pass(ctx context.Context, adapter string, data []plugins.Datum) ([][]float32, error) {
	b.positions[adapter]++
	r, err := b.ForwardBackward(ctx, plugins.ForwardBackwardRequest{Adapter: adapter, Position: b.positions[adapter], Loss: "cross_entropy", Data: data})
	return r.Logprobs, err
}

// tokens gives random ones, the same for a seed.
func (b *bench) tokens(seed uint64, n int) []int32 {
	random, t := rand.New(rand.NewPCG(seed, 1)), make([]int32, n)
	for i := range t {
		t[i] = int32(random.IntN(b.Shape.Vocabulary))
	}
	return t
}

// data gives the first n sequences of a training pass.
func (b *bench) data(n int) []plugins.Datum {
	all := make([]plugins.Datum, n)
	for i := range all {
		t := b.tokens(uint64(i), b.Length+1)
		all[i] = plugins.Datum{Tokens: t[:b.Length], Targets: t[1:], K: 1, Weights: slices.Repeat([]float32{1}, b.Length)}
	}
	return all
}

// on gives f the model on one device.
func on(ctx context.Context, j job, f func(b *bench) error) error {
	b, err := load(ctx, j.Workload, j.Dir, "single", `"device": "cuda:0"`, bfloat16s, j.Libraries)
	if err != nil {
		return err
	}
	return errors.Join(f(b), b.Close())
}

// bits compares what one device computes with what it computes otherwise.
func bits(ctx context.Context, j job, found func(result)) error {
	return on(ctx, j, func(b *bench) error { return b.all(ctx, found) })
}

// speed measures training and decoding on one device.
func speed(ctx context.Context, j job, found func(result)) error {
	j.Workload.Device, j.Workload.Copies, j.Workload.Kernels = j.Facts.Devices[0].Name, j.Facts.Copies, j.Kernels
	return on(ctx, j, func(b *bench) error { return b.speed(ctx, found) })
}

// placements compares what two ranks compute with what one device does. Where there are two devices the ranks are on these, and exchange by NCCL too if that was found;
// otherwise both are on one.
func placements(ctx context.Context, j job, found func(result)) error {
	w, dir, libraries, devices, nccl := j.Workload, j.Dir, j.Libraries, len(j.Facts.Devices), j.Facts.NCCL
	var single [][]float32
	if err := on(ctx, j, func(b *bench) (err error) {
		single, _, err = b.life(ctx, "a")
		return err
	}); err != nil {
		return err
	}
	list := `"devices": ["cuda:0", "cuda:0"]`
	if devices > 1 {
		list = `"devices": ["cuda:0", "cuda:1"]`
	}
	const data, cut = "dataparallel", "tensorparallel"
	all, byNCCL := slices.Concat(single...), cut+" by NCCL"
	var local []float32
	for _, p := range []struct{ name, plugin, further string }{
		{data, data, ""}, {data + " with shared-out weights", data, `, "shard_base": true`}, {cut, cut, `, "comm": "local"`}, {byNCCL, cut, `, "comm": "nccl"`},
	} {
		if p.name == byNCCL && devices < 2 {
			continue // it takes each GPU once
		}
		if why, none := strings.CutPrefix(nccl, noLibrary); p.name == byNCCL && none {
			found(result{Shape: w.Shape.Name, What: p.name, Measured: "not run: " + why})
			continue
		}
		b, err := load(ctx, w, dir, p.plugin, list+p.further, bfloat16s, libraries)
		if err != nil {
			return err
		}
		got, scored, err := b.life(ctx, "a")
		if err = errors.Join(err, b.Close()); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		switch trained := slices.Concat(got...); {
		case p.plugin == data:
			found(w.equal(p.name+" over two ranks against one", trained, all))
		case p.name == byNCCL:
			found(w.equal(p.name+" against exchange through memory", trained, local))
		default:
			local = trained
			found(w.near(p.name+" over two ranks against one", trained, all))
		}
		found(w.equal(p.name+": the sampler's log-probabilities against the trainer's", scored, got[0]))
	}
	return nil
}

// equal compares bits.
func (w workload) equal(what string, got, want []float32) result {
	r := result{Shape: w.Shape.Name, What: what, Goal: "equal bits"}
	if len(got) != len(want) {
		r.Failure = fmt.Sprintf("%d values and %d", len(got), len(want))
		return r
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			r.Failure = fmt.Sprintf("value %d is %v and %v", i, got[i], want[i])
			return r
		}
	}
	return r
}

// near compares log-probabilities of a model that is cut over ranks with those of the whole one: sampler and trainer that agree on nonsense do not agree with that.
func (w workload) near(what string, got, want []float32) result {
	off, most := apart(got, want), w.Shape.rounding()
	r := result{Shape: w.Shape.Name, What: what, Measured: fmt.Sprintf("off by %.1g of their spread", off), Goal: fmt.Sprintf("at most %.1g", most)}
	if !(off <= most) { // nor is what is not a number
		r.Failure = fmt.Sprintf("%d values are off by %g of the spread of %d, more than %.1g", len(got), off, len(want), most)
	}
	return r
}

// rounding is how far apart rounding may bring the log-probabilities of a whole model and a cut one, relative to their spread. A cut sum is added up in another order, so it differs in the last bits of float32, and
// where it is then rounded for a product it may become the neighbouring bfloat16 value, at most 2⁻⁷ away. If everything that goes into the seven products of every layer did, each by itself, the errors would
// add up to √(7·layers) such steps: 0.11 for 28 layers, ten times what a model of random weights showed that is 64 wide, and far from the √2 of another text.
func (s shape) rounding() float64 { return math.Sqrt(7*float64(s.Layers)) / 128 }

// apart is the root mean square of the differences, relative to the standard deviation of what is wanted.
func apart(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.NaN()
	}
	n := float64(len(want))
	var mean, spread, square float64
	for _, v := range want {
		mean += float64(v) / n
	}
	for i, v := range want {
		spread += (float64(v) - mean) * (float64(v) - mean) / n
		square += (float64(got[i]) - float64(v)) * (float64(got[i]) - float64(v)) / n
	}
	return math.Sqrt(square / spread)
}

// life trains an adapter and gives the log-probabilities of a pass over all sequences after a step, and the sampler's of the first one.
func (b *bench) life(ctx context.Context, adapter string) (trained [][]float32, scored []float32, err error) {
	if err := b.create(ctx, adapter); err != nil {
		return nil, nil, err
	}
	if trained, err = b.pass(ctx, adapter, b.data(b.Sequences)); err != nil {
		return nil, nil, err
	}
	err = b.Sample(ctx, plugins.SampleRequest{ID: "score " + adapter, Adapter: adapter, Version: plugins.LatestVersion, Prompt: b.tokens(0, b.Length+1), NumSamples: 1, TopP: 1, RepetitionPenalty: 1, PromptLogprobs: true},
		func(e plugins.SampleEvent) error {
			if e.Prompt != nil {
				scored = e.Prompt.Logprobs[1:]
			}
			return nil
		})
	return trained, scored, err
}

// all is what is found on one device.
func (b *bench) all(ctx context.Context, found func(result)) error {
	crowd, scored, err := b.life(ctx, "a")
	if err != nil {
		return err
	}
	first := crowd[0]
	found(b.equal("the sampler's log-probabilities against the trainer's", scored, first))
	again, _, err := b.life(ctx, "again")
	if err != nil {
		return err
	}
	found(b.equal("the same run again", slices.Concat(again...), slices.Concat(crowd...)))
	for n := 1; n < b.Sequences; n *= 4 {
		alone, err := b.pass(ctx, "a", b.data(n))
		if err != nil {
			return err
		}
		found(b.equal(fmt.Sprintf("a batch of %d sequences against one of %d", n, b.Sequences), alone[0], first))
	}
	return nil
}

// pace gives the shortest time of a pass over all sequences, shared out over adapters.
func (b *bench) pace(ctx context.Context, adapters []string) (time.Duration, error) {
	best, data := time.Duration(math.MaxInt64), b.data(b.Sequences)
	share := len(data) / len(adapters)
	for range b.Repeat + 1 { // the first one takes memory
		for _, a := range adapters {
			b.positions[a]++
		}
		begin := time.Now()
		if err := together(len(adapters), func(i int) error {
			_, err := b.ForwardBackward(ctx, plugins.ForwardBackwardRequest{Adapter: adapters[i], Position: b.positions[adapters[i]], Loss: "cross_entropy", Data: data[i*share : (i+1)*share]})
			return err
		}); err != nil {
			return 0, err
		}
		best = min(best, time.Since(begin))
	}
	return best, nil
}

// together runs f for 0 … n-1 at once and gives their errors.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	return errors.Join(errs...)
}
