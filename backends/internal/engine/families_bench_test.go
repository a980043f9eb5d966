package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// BenchmarkFamilies trains and samples the models in the folders of TINSMITH_BENCH_FAMILIES, which e2e/bench/families.py writes, with an adapter of rank 32 on every linear layer: forward and backward of one sequence, and decoding
// behind a context of 256. %read is the share of the read bandwidth that the same process measured; of experts it counts as many as draws without aim touch. It counts the model alone: %moved has the states of linear attention, too,
// which every sequence's step reads and writes.
func BenchmarkFamilies(b *testing.B) {
	root := os.Getenv("TINSMITH_BENCH_FAMILIES")
	if root == "" {
		b.Skip("TINSMITH_BENCH_FAMILIES names no folder of models: `make bench CASE=families` makes one")
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		b.Fatal(err)
	}
	for _, entry := range entries {
		for _, dtype := range []string{"bfloat16", "float32"} {
			b.Run(entry.Name()+"/"+dtype, func(b *testing.B) { benchmarkFamily(b, filepath.Join(root, entry.Name()), dtype) })
		}
	}
}

func benchmarkFamily(b *testing.B, dir, dtype string) {
	before := readBandwidth(b)
	e := open(b)
	section := fmt.Sprintf(`{"dtype": %q, "max_context_length": 4096, "kv_cache_tokens": 4096, "batch_tokens": 2048}`, dtype)
	info, err := e.Load(b.Context(), plugins.LoadRequest{ModelDir: dir, Config: []byte(section)}, nil)
	if err != nil {
		b.Fatal(err)
	}
	d := create(b, e, "a", 1, 32)
	text := func(first, n int) []int32 {
		tokens := make([]int32, n)
		for i := range tokens {
			tokens[i] = int32((first + i) * 7919 % info.VocabSize)
		}
		return tokens
	}
	for _, n := range []int{512, 2048} {
		b.Run(fmt.Sprint("train-", n), func(b *testing.B) {
			data := []plugins.Datum{{Tokens: text(0, n), Targets: text(1, n), K: 1, Weights: slices.Repeat([]float32{1}, n)}}
			d.pass(data)
			for b.Loop() {
				d.pass(data)
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "tok/s")
		})
	}
	read := max(readBandwidth(b), before)
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprint("decode-", n), func(b *testing.B) {
			const tokens = 33
			var spent atomic.Int64 // from the first token of the last sequence to the end
			round := func() {
				var calls []func()
				var first atomic.Int64
				for i := range n {
					q := ask(fmt.Sprint("q", i), "a", text(i*256, 256), 1, tokens)
					calls = append(calls, func() {
						begun := false
						if err := e.Sample(b.Context(), q, func(event plugins.SampleEvent) error {
							if event.Tokens != nil && !begun {
								begun = true
								first.Store(time.Now().UnixNano())
							}
							return nil
						}); err != nil {
							b.Error(err)
						}
					})
				}
				together(calls...)
				spent.Add(time.Now().UnixNano() - first.Load())
			}
			round()
			spent.Store(0)
			for b.Loop() {
				round()
			}
			rate := float64(n*(tokens-1)*b.N) / time.Duration(spent.Load()).Seconds()
			b.ReportMetric(rate, "tok/s")
			weights, states := bytesOfStep(b, dir, dtype, n)
			b.ReportMetric(100*rate/float64(n)*weights/read, "%read")
			if states > 0 {
				b.ReportMetric(100*rate/float64(n)*(weights+states)/read, "%moved")
			}
		})
	}
}

// readBandwidth measures how many bytes of memory all threads read in a second. A single measurement is at times far too low: one is made before the model is there, and one after it was trained.
func readBandwidth(b *testing.B) float64 {
	b.Helper()
	device, err := cpu.New(cpu.Options{Threads: runtime.GOMAXPROCS(0)})
	if err != nil {
		b.Fatal(err)
	}
	ceilings, err := cpu.Measure(device)
	if err != nil {
		b.Fatal(err)
	}
	if err := device.Close(); err != nil {
		b.Fatal(err)
	}
	return ceilings.Read
}

// bytesOfStep is how much of a model one decoding step of so many sequences reads, and what it reads and writes of their states.
func bytesOfStep(b *testing.B, dir, dtype string, sequences int) (weights, states float64) {
	b.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		b.Fatal(err)
	}
	var c struct {
		Tied    bool    `json:"tie_word_embeddings"`
		Vocab   float64 `json:"vocab_size"`
		Hidden  float64 `json:"hidden_size"`
		Layers  float64 `json:"num_hidden_layers"`
		Experts float64 `json:"num_experts"`
		Local   float64 `json:"num_local_experts"` // the same, as transformers 5 writes it
		Chosen  float64 `json:"num_experts_per_tok"`
		Width   float64 `json:"moe_intermediate_size"`

		Types      []string `json:"layer_types"`
		ValueHeads float64  `json:"linear_num_value_heads"`
		KeyDim     float64  `json:"linear_key_head_dim"`
		ValueDim   float64  `json:"linear_value_head_dim"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		b.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		b.Fatal(err)
	}
	for _, kind := range c.Types {
		if kind == "linear_attention" {
			states += 2 * 4 * float64(sequences) * c.ValueHeads * c.KeyDim * c.ValueDim
		}
	}
	for _, file := range files {
		f, err := os.Stat(file)
		if err != nil {
			b.Fatal(err)
		}
		weights += float64(f.Size()) / 2 // they are bfloat16
	}
	if !c.Tied {
		weights -= c.Vocab * c.Hidden
	}
	if c.Experts = max(c.Experts, c.Local); c.Experts > 0 {
		missed := math.Pow(1-c.Chosen/c.Experts, float64(sequences))
		weights -= missed * c.Layers * c.Experts * 3 * c.Hidden * c.Width
	}
	if dtype == "float32" {
		return 4 * weights, states
	}
	return 2 * weights, states
}
