package engine

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/goldenfiles"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

// peftGolden is what PEFT and PyTorch make of an adapter, see testdata/peft/make.py.
type peftGolden struct {
	Base            string
	Prompt          []int32
	Logprobs        []float64
	Data            [][]int32
	Rate, Decay     float64
	Losses          []float64
	TrainedLogprobs []float64 `json:"trained_logprobs"`
	Weights         map[string][]float64
}

func readGolden(t *testing.T, dir string) *peftGolden {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "golden.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	in, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	g := &peftGolden{}
	if err := json.NewDecoder(in).Decode(g); err != nil {
		t.Fatal(err)
	}
	return g
}

// openModel loads a model of package model's testdata.
func openModel(t *testing.T, name string) *Engine {
	t.Helper()
	dir := t.TempDir()
	goldenfiles.Unpack(t, filepath.Join("..", "model", "testdata", name), dir)
	return openGolden(t, dir)
}

// prompted gives a prompt's log-probabilities after its first token.
func (d *driver) prompted(prompt []int32) []float32 {
	d.t.Helper()
	q := ask("q", d.adapter, prompt, 1, 0)
	q.PromptLogprobs = true
	got, err := collect(d.t.Context(), d.e, q)
	if err != nil {
		d.t.Fatal(err)
	}
	return got.prompt.Logprobs[1:]
}

// Adapters as PEFT writes them, of every scale, rank and method, mean what they mean to PEFT, and go on in training as PyTorch trains them on, step by step; the sampler has the trainer's bits.
func TestPEFTGoldens(t *testing.T) {
	engines := map[string]*Engine{"llama": openModel(t, "llama"), "qwen3": openModel(t, "qwen3"), "phi3": openModel(t, "phi3")}
	for _, c := range []struct {
		name      string
		tolerance float64 // of log-probabilities
	}{
		{"alpha", 1e-4}, {"rslora", 1e-4}, {"rank3", 1e-4}, {"patterns", 1e-4}, {"rslora-patterns", 1e-4}, {"eva", 1e-4}, {"pissa-converted", 1e-4}, {"gaussian", 1e-4}, {"orthogonal", 1e-4},
		{"head", 1e-4}, {"fused", 1e-4}, {"fused-rslora", 1e-4}, {"fused-diagonal", 1e-4},
		{"head-tied-bfloat16", 0.2}, // its golden was computed in bfloat16
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join("testdata", "peft", c.name)
			want := readGolden(t, dir)
			e := engines[want.Base]
			d := load(t, e, c.name, absolute(t, dir), plugins.ScopeWeights)
			prompt := want.Prompt
			compare := func(what string, want []float64) {
				t.Helper()
				got := d.prompted(prompt)
				if len(got) != len(want) {
					t.Fatalf("%s: %d log-probabilities, want %d", what, len(got), len(want))
				}
				for i := range want {
					if math.Abs(float64(got[i])-want[i]) > c.tolerance {
						t.Errorf("%s: log-probability %d is %v, want %v", what, i, got[i], want[i])
					}
				}
			}
			compare("as it was imported", want.Logprobs)
			var data []plugins.Datum
			for _, tokens := range want.Data {
				n := len(tokens) - 1
				data = append(data, plugins.Datum{Tokens: tokens[:n], Targets: tokens[1:], K: 1, Weights: slices.Repeat([]float32{1}, n)})
			}
			for step, loss := range want.Losses {
				sampled := d.prompted(append(slices.Clone(data[0].Tokens), data[0].Targets[len(data[0].Targets)-1]))
				result := d.pass(data)
				equalBits(t, fmt.Sprint("sampler and trainer, step ", step), sampled, result.Logprobs[0])
				if got := result.Metrics["loss:sum"]; math.Abs(got-loss) > 1e-5*math.Abs(loss) {
					t.Errorf("step %d: loss %v, want %v", step, got, loss)
				}
				if _, err := e.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: c.name, Position: d.position(), Adam: plugins.AdamParams{
					LearningRate: want.Rate, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: want.Decay,
				}}); err != nil {
					t.Fatal(err)
				}
			}
			if len(want.Losses) == 0 {
				return
			}
			compare("after training", want.TrainedLogprobs)
			got := d.weights()
			if len(got) != len(want.Weights) {
				t.Errorf("%d tensors, want %d", len(got), len(want.Weights))
			}
			for name, exact := range want.Weights {
				if a := apart(unpadded(t, name, got, len(exact)), exact); a > 1e-3 {
					t.Errorf("%s is %v apart", name, a)
				}
			}
		})
	}
}

// unpadded leaves out the zeros that an adapter's rank was filled up with.
func unpadded(t *testing.T, name string, all map[string][]float32, size int) []float32 {
	t.Helper()
	values := all[name]
	if size == 0 || len(values) < size {
		t.Fatalf("%s has %d values, want %d", name, len(values), size)
	}
	if strings.Contains(name, "lora_A") {
		return values[:size]
	}
	in := 64
	if strings.Contains(name, "down_proj") {
		in = 120
	}
	rank := len(all[strings.Replace(name, "lora_B", "lora_A", 1)]) / in
	var out []float32
	for row := range slices.Chunk(values, rank) {
		out = append(out, row[:size*rank/len(values)]...)
	}
	return out
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Configurations of every method that changes the base model, as PEFT writes them, are refused by the option's name.
func TestPEFTRefused(t *testing.T) {
	configs, err := filepath.Glob(filepath.Join("testdata", "peft", "refused", "*", plugins.AdapterConfigFile))
	if err != nil || len(configs) < 6 {
		t.Fatalf("%d configurations, %v", len(configs), err)
	}
	for _, path := range configs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodePEFT(text, 512); !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), `init_lora_weights "`+filepath.Base(filepath.Dir(path))+`"`) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A copy of a base weight in an adapter's file is left out where it is the served model's, and else refused by name.
func TestBaseCopies(t *testing.T) {
	llama, qwen := openModel(t, "llama"), openModel(t, "qwen3")
	read := func(name string) map[string]safetensors.Tensor { // of a folder's adapter
		f, err := safetensors.Open(filepath.Join("testdata", "peft", name, plugins.AdapterWeightsFile))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		all := map[string]safetensors.Tensor{}
		for _, n := range f.Names() {
			all[n], _ = f.Tensor(n)
			x := all[n]
			x.Data = slices.Clone(x.Data)
			all[n] = x
		}
		return all
	}
	const copied = "base_model.model.lm_head.base_layer.weight"
	model, err := safetensors.OpenModel(llama.loaded.files.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = model.Close() })
	for _, c := range []struct {
		name, folder string
		e            *Engine
		change       func(map[string]safetensors.Tensor)
		message      string // of the refusal
	}{
		{"as PEFT wrote it", "head", llama, nil, ""},
		{"of a tied model, in bfloat16", "head-tied-bfloat16", qwen, nil, ""},
		{"with the embedding's and the head's whole layers", "head", llama, func(all map[string]safetensors.Tensor) {
			all["base_model.model.lm_head.weight"] = all[copied]
			all["base_model.model.model.embed_tokens.weight"], _ = model.Tensor("model.embed_tokens.weight")
			all["base_model.model.model.layers.0.mlp.up_proj.base_layer.weight"], _ = model.Tensor("model.layers.0.mlp.up_proj.weight")
		}, ""},
		{"one value of which is another", "head", llama, func(all map[string]safetensors.Tensor) { all[copied].Data[400] ^= 1 }, copied + `" is a copy of the base model's weight and differs`},
		{"one value of which is not a number", "head", llama, func(all map[string]safetensors.Tensor) {
			copy(all[copied].Data[len(all[copied].Data)-4:], []byte{0, 0, 0xc0, 0x7f})
		}, "is NaN, not"},
		{"of the tied weight, changed", "head-tied-bfloat16", qwen, func(all map[string]safetensors.Tensor) { all[copied].Data[1] ^= 1 }, copied + `" is a copy`},
		{"of a resized vocabulary", "head", llama, func(all map[string]safetensors.Tensor) {
			x := all[copied]
			x.Shape, x.Data = []int{500, 64}, x.Data[:500*64*4]
			all[copied] = x
		}, "shape [500 64]; that of the model that is served is [512 64]"},
		{"in a type that is not compared", "head", llama, func(all map[string]safetensors.Tensor) {
			x := all[copied]
			x.DType, x.Data = "I8", x.Data[:512*64]
			all[copied] = x
		}, "type I8"},
		{"of a weight that is not there", "head", llama, func(all map[string]safetensors.Tensor) { all["base_model.model.lm_head.base_layer.bias"] = all[copied] }, "has no such weight"},
		{"of a layer that is not there", "head", llama, func(all map[string]safetensors.Tensor) {
			all["base_model.model.model.layers.9.mlp.up_proj.base_layer.weight"] = all[copied]
		}, "belongs to no module"},
		{"alone", "head", llama, func(all map[string]safetensors.Tensor) {
			for name := range all {
				if name != copied {
					delete(all, name)
				}
			}
		}, "holds no LoRA tensor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := read(c.folder)
			if c.change != nil {
				c.change(all)
			}
			dir := t.TempDir()
			writeTensors(t, filepath.Join(dir, plugins.AdapterWeightsFile), all)
			config, err := os.ReadFile(filepath.Join("testdata", "peft", c.folder, plugins.AdapterConfigFile))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, plugins.AdapterConfigFile), config, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = c.e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: c.name, Path: dir})
			if c.message != "" {
				if !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), c.message) {
					t.Errorf("got %v, want %q", err, c.message)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			weights := (&driver{t: t, e: c.e, adapter: c.name}).weights()
			for name := range weights {
				if !strings.Contains(name, ".lora_") {
					t.Errorf("the adapter has kept %s", name)
				}
			}
			if len(weights) == 0 {
				t.Error("the adapter has no tensor")
			}
		})
	}
}

// writeTensors writes a file of tensors of any type.
func writeTensors(t *testing.T, path string, all map[string]safetensors.Tensor) {
	t.Helper()
	type entry struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header, data := map[string]entry{}, []byte{}
	for _, name := range sortedKeys(all) {
		x := all[name]
		header[name] = entry{x.DType, x.Shape, [2]int{len(data), len(data) + len(x.Data)}}
		data = append(data, x.Data...)
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	n := make([]byte, 8)
	for i := range n {
		n[i] = byte(len(text) >> (8 * i))
	}
	if err := os.WriteFile(path, slices.Concat(n, text, data), 0o600); err != nil {
		t.Fatal(err)
	}
}
