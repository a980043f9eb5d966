package transformers

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/engine"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/device"
	"github.com/tinsmith/tinsmith/plugins"
)

// differences are the largest between our engine and transformers for one model.
type differences struct{ logprobs, gradients, stepped float64 }

// TestOracle puts the same requests to our engine and to transformers, for every model in package model's testdata: adapters begin with the same bits, and log-probabilities, gradients and what a step
// makes of them agree.
func TestOracle(t *testing.T) {
	python(t)
	for _, name := range oracleModels(t) {
		t.Run(name, func(t *testing.T) {
			d := oracle(t, name)
			t.Logf("largest differences: log-probabilities %.2g, gradients %.2g of a tensor's norm, log-probabilities after a step %.2g", d.logprobs, d.gradients, d.stepped)
			if !(d.logprobs <= 1e-4) || !(d.gradients <= 1e-4) || !(d.stepped <= 1e-3) {
				t.Errorf("more than 1e-4, 1e-4 and 1e-3: %+v", d)
			}
		})
	}
}

// BenchmarkOracle prints the differences as metrics.
func BenchmarkOracle(b *testing.B) {
	for _, name := range oracleModels(b) {
		b.Run(name, func(b *testing.B) {
			if _, why := findPython(); why != "" {
				b.Skip(why)
			}
			var d differences
			for b.Loop() {
				d = oracle(b, name)
			}
			b.ReportMetric(d.logprobs, "logprobs")
			b.ReportMetric(d.gradients, "gradients")
			b.ReportMetric(d.stepped, "stepped")
		})
	}
}

// unlike are models that transformers does not compare with ours as they are, with the reasons.
var unlike = map[string]string{
	"odd":         "its own check of configurations refuses the sizes",
	"fp8":         "it takes whole blocks only",
	"int4":        "it needs a library of its own to unpack the weights",
	"int8":        "it needs a library of its own to unpack the weights",
	"awq":         "it needs a library of its own to unpack the weights",
	"gptq":        "it needs a library of its own to unpack the weights",
	"gptq-order":  "it needs a library of its own to unpack the weights",
	"longrope":    "it has q, k and v as one module, and an adapter for each of ours has no place there",
	"phi3":        "it has q, k and v as one module, and an adapter for each of ours has no place there",
	"phi3-window": "it has q, k and v as one module, and an adapter for each of ours has no place there",
	"qwen3-next":  "it has q, k, v and z of linear attention as one module, and an adapter for each of ours has no place there",
	"qwen3-vl":    "it has no causal language model of several kinds of input",
}

// oracleModels are all models that package model has values for but unlike.
func oracleModels(t testing.TB) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("..", "model", "testdata", "*", "base.safetensors.gz"))
	if err != nil || len(found) < 3 {
		t.Fatalf("%d models, %v", len(found), err)
	}
	for _, f := range found {
		if name := filepath.Base(filepath.Dir(f)); unlike[name] == "" {
			names = append(names, name)
		}
	}
	return names
}

func oracle(t testing.TB, name string) (d differences) {
	t.Helper()
	dir := goldenDir(t, name)
	ours := engine.New(engine.Options{Plugin: "single", Version: "test", Registry: architectures.All(), OpenDevice: func(c engine.Config) (tensor.Device, error) {
		return device.Open(device.Options{Name: c.Device, Threads: c.Threads})
	}})
	t.Cleanup(func() {
		if err := ours.Close(); err != nil {
			t.Error(err)
		}
	})
	theirs := New(Options{Version: "test", Lost: func(err error) { t.Error(err) }})
	t.Cleanup(theirs.Close)
	load := func(b plugins.Backend, section string) plugins.ModelInfo {
		t.Helper()
		info, err := b.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: name, Config: json.RawMessage(section), Scratch: t.TempDir()}, func(plugins.LoadProgress) {})
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	path, _ := findPython()
	info := load(ours, `{"plugin": "single", "device": "cpu", "dtype": "float32", "threads": 1}`)
	load(theirs, fmt.Sprintf(`{"python": %q, "dtype": "float32", "threads": 1}`, path))

	both := []*asked{{TB: t, b: ours}, {TB: t, b: theirs}}
	c := plugins.AdapterConfig{Rank: 4, Seed: 9, TrainAttention: true, TrainMLP: true, TrainUnembed: true}
	var fresh []map[string][]float32
	for _, a := range both {
		if _, err := a.b.CreateAdapter(t.Context(), plugins.CreateAdapterRequest{Adapter: "fresh", Config: c}); err != nil {
			t.Fatal(err)
		}
		a.id = "fresh"
		fresh = append(fresh, a.save(plugins.ScopeWeights, plugins.AdapterWeightsFile))
	}
	for n, want := range fresh[0] {
		if got := fresh[1][n]; !slices.Equal(got, want) {
			t.Errorf("%s of a fresh adapter differs", n)
		}
	}
	if len(fresh[0]) != len(fresh[1]) {
		t.Errorf("%d tensors, transformers has %d", len(fresh[0]), len(fresh[1]))
	}

	// An adapter that is not fresh: two steps of ours, taken over by the other one as a file of unknown origin.
	data := oracleData(info.VocabSize)
	for range 2 {
		both[0].pass("cross_entropy", data)
		both[0].step()
	}
	path = both[0].path(plugins.ScopeWeights)
	if err := os.Remove(filepath.Join(path, plugins.ManifestFile)); err != nil {
		t.Fatal(err)
	}
	for _, a := range both {
		a.id, a.position = "taken", 0
		if _, err := a.b.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: a.id, Path: path}); err != nil {
			t.Fatal(err)
		}
	}
	for _, loss := range []string{"cross_entropy", "importance_sampling", "dro"} {
		x, y := both[0].pass(loss, data), both[1].pass(loss, data)
		for i := range x {
			for j := range x[i] {
				d.logprobs = max(d.logprobs, math.Abs(float64(x[i][j])-float64(y[i][j])))
			}
		}
		g, h := both[0].save(plugins.ScopeAccumulator, plugins.AccumulatorFile), both[1].save(plugins.ScopeAccumulator, plugins.AccumulatorFile)
		for n, want := range g {
			got := make([]float64, len(h[n]))
			for i, v := range h[n] {
				got[i] = float64(v)
			}
			if len(got) != len(want) {
				t.Fatalf("gradient of %s: %d values, %d of ours", n, len(got), len(want))
			}
			d.gradients = max(d.gradients, relative(got, want))
		}
		for _, a := range both {
			a.step()
		}
		x, y = both[0].forward(data), both[1].forward(data)
		for i := range x {
			for j := range x[i] {
				d.stepped = max(d.stepped, math.Abs(float64(x[i][j])-float64(y[i][j])))
			}
		}
		for _, a := range both { // the next loss begins from the same bits again
			if _, err := a.b.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: a.id, Position: a.next(), Path: path}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return d
}

func oracleData(vocab int) (data []plugins.Datum) {
	for n, length := range []int{1, 9, 70} {
		d := plugins.Datum{K: 1}
		for i := range length {
			d.Tokens = append(d.Tokens, int32((i*i*7+n*31+3*i)%vocab))
			d.Targets = append(d.Targets, int32((i*i*5+n*17+i+2)%vocab))
			d.Weights = append(d.Weights, float32(1+i%3)/2)
			d.Logprobs = append(d.Logprobs, -float32(vocab%7+i%5))
			d.Advantages = append(d.Advantages, float32(i%4)/2-0.5)
		}
		data = append(data, d)
	}
	return data
}

// asked is one of two backends that get the same requests.
type asked struct {
	testing.TB
	b        plugins.Backend
	id       string
	position int64
}

func (a *asked) next() int64 {
	a.position++
	return a.position
}

func (a *asked) pass(loss string, data []plugins.Datum) [][]float32 { return a.run(loss, data, false) }

func (a *asked) forward(data []plugins.Datum) [][]float32 {
	return a.run("cross_entropy", data, true)
}

func (a *asked) run(loss string, data []plugins.Datum, forwardOnly bool) [][]float32 {
	a.Helper()
	spec, _ := plugins.LookupLoss(loss)
	given := slices.Clone(data)
	for i := range given {
		if !spec.Logprobs {
			given[i].Logprobs, given[i].Advantages = nil, nil
		} else {
			// Near the model's own, so that ratios are of moderate size.
			given[i].Weights, given[i].Logprobs = nil, a.own(data[i])
		}
	}
	res, err := a.b.ForwardBackward(a.Context(), plugins.ForwardBackwardRequest{Adapter: a.id, Position: a.next(), Data: given, Loss: loss, ForwardOnly: forwardOnly})
	if err != nil {
		a.Fatal(err)
	}
	return res.Logprobs
}

// own gives log-probabilities near those of the model, rounded, so that both backends get the same.
func (a *asked) own(d plugins.Datum) []float32 {
	a.Helper()
	lps := a.forward([]plugins.Datum{d})[0]
	out := make([]float32, len(lps))
	for i, lp := range lps {
		out[i] = float32(math.Round(float64(lp)*4)/4) + float32(i%3-1)/4
	}
	return out
}

func (a *asked) step() {
	a.Helper()
	if _, err := a.b.OptimStep(a.Context(), plugins.OptimStepRequest{Adapter: a.id, Position: a.next(), Adam: plugins.AdamParams{LearningRate: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}); err != nil {
		a.Fatal(err)
	}
}

func (a *asked) path(scope plugins.Scope) string {
	a.Helper()
	path := filepath.Join(a.TempDir(), "saved")
	if _, err := a.b.SaveAdapter(a.Context(), plugins.SaveAdapterRequest{Adapter: a.id, Position: a.next(), Scope: scope, Path: path}); err != nil {
		a.Fatal(err)
	}
	return path
}

// save gives the tensors of one file of a checkpoint.
func (a *asked) save(scope plugins.Scope, file string) map[string][]float32 {
	a.Helper()
	f, err := safetensors.Open(filepath.Join(a.path(scope), file))
	if err != nil {
		a.Fatal(err)
	}
	defer f.Close()
	tensors := map[string][]float32{}
	for _, n := range f.Names() {
		x, _ := f.Tensor(n)
		v, err := x.Float32s()
		if err != nil {
			a.Fatal(err)
		}
		tensors[n] = slices.Clone(v)
	}
	return tensors
}
