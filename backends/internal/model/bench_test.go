package model_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// writeRandomModel writes a model directory of the shape of Qwen3-0.6B (or with fewer layers) with random bfloat16 weights.
func writeRandomModel(dir string, layers int) error { return writeRandomModelOf(dir, layers, 151936) }

// writeRandomModelOf writes that of one with another vocabulary.
func writeRandomModelOf(dir string, layers, vocab int) error {
	const hidden, ffn, heads, kv, headDim = 1024, 3072, 16, 8, 128
	config := map[string]any{"architectures": []string{"Qwen3ForCausalLM"}, "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": ffn,
		"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": headDim, "vocab_size": vocab, "max_position_embeddings": 4096, "rope_theta": 1e6, "tie_word_embeddings": true}
	var all randomTensors
	all.add("model.embed_tokens.weight", vocab, hidden)
	all.add("model.norm.weight", hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		all.add(p+"self_attn.q_proj.weight", heads*headDim, hidden)
		all.add(p+"self_attn.k_proj.weight", kv*headDim, hidden)
		all.add(p+"self_attn.v_proj.weight", kv*headDim, hidden)
		all.add(p+"self_attn.o_proj.weight", hidden, heads*headDim)
		all.add(p+"self_attn.q_norm.weight", headDim)
		all.add(p+"self_attn.k_norm.weight", headDim)
		all.add(p+"mlp.gate_proj.weight", ffn, hidden)
		all.add(p+"mlp.up_proj.weight", ffn, hidden)
		all.add(p+"mlp.down_proj.weight", hidden, ffn)
		all.add(p+"input_layernorm.weight", hidden)
		all.add(p+"post_attention_layernorm.weight", hidden)
	}
	return all.write(dir, config)
}

// randomTensors are the tensors of a directory, of random bfloat16 values.
type randomTensors []safetensors.Source

func (all *randomTensors) add(name string, shape ...int) {
	n := 1
	for _, s := range shape {
		n *= s
	}
	*all = append(*all, safetensors.Source{Name: name, DType: "BF16", Shape: shape, Write: func(w io.Writer) error {
		r := rand.NewPCG(uint64(n), 1)
		buf := make([]byte, 2*shape[len(shape)-1])
		for done := 0; done < n; done += len(buf) / 2 {
			for i := 0; i+8 <= len(buf); i += 8 { // 4 elements of ±[2⁻⁶, 2⁻⁵), or 1 for norms
				u := r.Uint64()
				for j := range 4 {
					v := uint16(u>>(16*j))&0x807f | 121<<7
					if len(shape) == 1 {
						v = 127 << 7
					}
					buf[i+2*j], buf[i+2*j+1] = byte(v), byte(v>>8)
				}
			}
			if _, err := w.Write(buf); err != nil {
				return err
			}
		}
		return nil
	}})
}

// write writes them and their configuration.
func (all randomTensors) write(dir string, config map[string]any) error {
	raw, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	if _, _, err := safetensors.Write(f, nil, all); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// BenchmarkQwen3 measures the shape of Qwen3-0.6B with random weights. With 28 layers it is the real model; with 4 it is quicker to run, and the output head weighs more. The device
// has as many threads as -cpu says. Beside tokens per second stand the processor time of an operation, which does not count what other processes took, so on a busy machine it is
// the figure to compare, the share of the multiply-add peak or of the read bandwidth that the same process measured, and the objects that Go allocates by token: some per pass, whatever its tokens.
//
//	go test -bench Qwen3/layers=28 -benchtime 3x -cpu 1,2 -run none ./backends/internal/model
func BenchmarkQwen3(b *testing.B) {
	for _, layers := range []int{4, 28} {
		b.Run(fmt.Sprintf("layers=%d", layers), func(b *testing.B) {
			dir := b.TempDir()
			if err := writeRandomModel(dir, layers); err != nil {
				b.Fatal(err)
			}
			for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
				b.Run(d.String(), func(b *testing.B) { benchmarkQwen3(b, dir, d) })
			}
		})
	}
}

// processorSeconds is the processor time that this process has taken.
func processorSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// benchmarked is a loaded model with what its passes need.
type benchmarked struct {
	m        *model.Model
	dtype    tensor.DType
	ceilings cpu.Ceilings
	work     *model.Workspace
	pages    tensor.Pages
	states   *model.States   // nil where the model has none
	adapters []*lora.Weights // of ranks 32, then 8, 16, 32, 64, 8, …
	tokens   []int32
}

const (
	benchmarkTokens = 512
	mixedAdapters   = 16 // beside the first, in the comparison of one adapter with many
	decodeContext   = 256
)

func benchmarkQwen3(b *testing.B, dir string, d tensor.DType) {
	device, err := cpu.New(cpu.Options{Threads: runtime.GOMAXPROCS(0)})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := device.Close(); err != nil {
			b.Error(err)
		}
	}()
	m, err := model.Load(context.Background(), dir, device, architectures.All(), model.LoadOptions{DType: d})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Free()
	q := &benchmarked{m: m, dtype: d, work: m.NewWorkspace(), tokens: make([]int32, benchmarkTokens)}
	defer q.work.Free()
	if q.ceilings, err = cpu.Measure(device); err != nil {
		b.Fatal(err)
	}
	if q.pages, err = m.NewPages(mixedAdapters * (decodeContext/tensor.PageSize + 1)); err != nil {
		b.Fatal(err)
	}
	defer q.pages.Free()
	for i := range q.tokens {
		q.tokens[i] = int32(i * 7919 % m.Config.VocabSize)
	}
	defer func() {
		for _, w := range q.adapters {
			w.Free()
		}
	}()
	q.adapter(b, 0)
	for _, recompute := range []bool{false, true} {
		b.Run(fmt.Sprintf("train/recompute=%v", recompute), func(b *testing.B) {
			pass := q.train(b, 1, false, recompute)
			// Frozen weights: 2 operations per weight forward and 2 backward; attention 2 · 2 per key, head and element forward, 2.5 times that backward; LoRA 2 and 4 per parameter.
			flops := 4*q.weights() + 3.5*q.attention() + 6*float64(q.adapters[0].Layout().Size)
			q.measure(b, benchmarkTokens, flops*benchmarkTokens, 0, pass)
			b.ReportMetric(float64(q.work.Bytes())/1e6, "MB")
		})
	}
	b.Run("forward", func(b *testing.B) {
		sequence := model.Sequence{Adapter: q.adapters[0], Tokens: q.tokens, Pages: q.own(0, benchmarkTokens/tensor.PageSize)}
		flops := 2*(q.weights()-q.head()) + q.attention() + 2*float64(q.adapters[0].Layout().Size)
		q.measure(b, benchmarkTokens, flops*benchmarkTokens, 0, func() { q.forward(b, benchmarkTokens-1, sequence) })
	})
	for _, c := range []struct {
		sequences int
		lora      bool
	}{{1, false}, {1, true}, {8, true}} {
		b.Run(fmt.Sprintf("decode/sequences=%d/lora=%v", c.sequences, c.lora), func(b *testing.B) {
			bytes := float64(m.WeightBytes())
			if c.lora {
				bytes += float64(q.adapters[0].Layout().Size * d.Size())
			}
			q.measure(b, c.sequences, 0, bytes, q.decode(b, c.sequences, func(int) *lora.Weights {
				if c.lora {
					return q.adapters[0]
				}
				return nil
			}))
		})
	}
	// One adapter of rank 32 against 16 of ranks 8 to 64, a sequence each; the same tokens, turn about.
	b.Run("adapters/train", func(b *testing.B) {
		q.compare(b, q.train(b, mixedAdapters, false, false), q.train(b, mixedAdapters, true, false))
	})
	b.Run("adapters/decode", func(b *testing.B) {
		q.compare(b, q.decode(b, mixedAdapters, func(int) *lora.Weights { return q.adapters[0] }),
			q.decode(b, mixedAdapters, func(i int) *lora.Weights { return q.adapter(b, 1+i) }))
	})
}

// adapter makes adapters up to number i and gives it.
func (q *benchmarked) adapter(b *testing.B, i int) *lora.Weights {
	b.Helper()
	for n := len(q.adapters); n <= i; n++ {
		rank := 32
		if n > 0 {
			rank = 8 << ((n - 1) % 4)
		}
		l, err := q.m.Layout(rank, true, true, true)
		if err != nil {
			b.Fatal(err)
		}
		w, err := lora.NewWeights(q.m.Device, l, q.dtype)
		if err != nil {
			b.Fatal(err)
		}
		q.adapters = append(q.adapters, w)
		if err := w.Initialize(uint64(n)); err != nil {
			b.Fatal(err)
		}
	}
	return q.adapters[i]
}

// weights is how many weights a token meets, head those of the output head, attention the operations of a token's attention forward.
func (q *benchmarked) weights() float64 { return float64(q.m.Parameters) }
func (q *benchmarked) head() float64    { return float64(q.m.Config.VocabSize * q.m.Config.HiddenSize) }
func (q *benchmarked) attention() float64 {
	c := q.m.Config
	return 4 * float64(c.Layers*c.Heads*c.HeadDim) * benchmarkTokens / 2
}

// own is a range of pages.
func (q *benchmarked) own(first, count int) []int32 {
	pages := make([]int32, count)
	for i := range pages {
		pages[i] = int32(first + i)
	}
	return pages
}

// train gives a training pass over 512 tokens in so many sequences: all with the first adapter, or each with an adapter of its own.
func (q *benchmarked) train(b *testing.B, sequences int, mixed, recompute bool) func() {
	b.Helper()
	return q.trainTokens(b, benchmarkTokens, sequences, mixed, recompute)
}

// trainTokens is train over so many tokens.
func (q *benchmarked) trainTokens(b *testing.B, tokens, sequences int, mixed, recompute bool) func() {
	b.Helper()
	crossEntropy, err := loss.New("cross_entropy", nil)
	if err != nil {
		b.Fatal(err)
	}
	n := tokens / sequences
	pages := (n + tensor.PageSize - 1) / tensor.PageSize
	weights := make([]float32, n)
	for i := range weights {
		weights[i] = 1
	}
	var examples []model.Example
	for i := range sequences {
		w := q.adapters[0]
		if mixed {
			w = q.adapter(b, 1+i)
		}
		own := q.tokens[i*n : (i+1)*n]
		examples = append(examples, model.Example{Sequence: model.Sequence{Adapter: w, Tokens: own, Pages: q.own(i*pages, pages)},
			Targets: own, K: 1, Loss: crossEntropy, Inputs: loss.Inputs{Weights: weights}})
	}
	return func() { // as an engine does, with a buffer of gradient for each operation, made for the pass
		for i := range examples {
			if !mixed && i > 0 {
				examples[i].Gradient = examples[0].Gradient
				continue
			}
			g, err := lora.NewUnsetGradient(q.m.Device, examples[i].Adapter.Layout())
			if err != nil {
				b.Fatal(err)
			}
			defer g.Free()
			examples[i].Gradient = g
		}
		if _, err := q.m.Train(q.work, q.pages, examples, model.TrainOptions{Recompute: recompute}); err != nil {
			b.Fatal(err)
		}
	}
}

// forward runs sequences and gives the log-sum-exp of one row's logits or, with row -1, of the last of each sequence of one token.
func (q *benchmarked) forward(b *testing.B, row int, sequences ...model.Sequence) {
	rows := []int32{int32(row)}
	if row < 0 {
		rows = q.own(0, len(sequences))
	}
	h, err := q.m.Forward(q.work, model.Batch{Pages: q.pages, States: q.states, Sequences: sequences}, rows)
	if err != nil {
		b.Fatal(err)
	}
	if err := q.m.Logits(q.work, h, func(_ int, logits tensor.Tensor) error {
		_, _, err := q.m.Logprobs(q.work, logits, nil, 0)
		return err
	}); err != nil {
		b.Fatal(err)
	}
}

// decode gives a decoding step of one token for each of so many sequences behind a context.
func (q *benchmarked) decode(b *testing.B, sequences int, adapter func(i int) *lora.Weights) func() {
	const pages = decodeContext/tensor.PageSize + 1
	all := make([]model.Sequence, sequences)
	for i := range all {
		all[i] = model.Sequence{Adapter: adapter(i), Tokens: q.tokens[i : i+1], First: decodeContext, Pages: q.own(i*pages, pages), Slot: i}
	}
	return func() { q.forward(b, -1, all...) }
}

// measure times pass, which computes so many tokens with flops operations, or reads so many bytes.
func (q *benchmarked) measure(b *testing.B, tokens int, flops, bytes float64, pass func()) {
	pass() // the workspace grows
	pass() // and is joined
	var since, until runtime.MemStats
	runtime.ReadMemStats(&since)
	before := processorSeconds(b)
	b.ResetTimer()
	for range b.N {
		pass()
	}
	seconds := b.Elapsed().Seconds() / float64(b.N)
	after := processorSeconds(b)
	runtime.ReadMemStats(&until)
	b.ReportMetric(float64(until.Mallocs-since.Mallocs)/float64(b.N*tokens), "allocs/token")
	b.ReportMetric(float64(tokens)/seconds, "tok/s")
	b.ReportMetric((after-before)/float64(b.N), "cpu-s/op")
	if flops > 0 {
		peak := q.ceilings.Float32
		if q.dtype == tensor.BFloat16 {
			peak = q.ceilings.BFloat16
		}
		b.ReportMetric(100*flops/seconds/peak, "%peak")
	}
	if bytes > 0 {
		b.ReportMetric(100*bytes/seconds/q.ceilings.Read, "%read")
	}
}

// compare runs one and other turn about and reports the processor time of each, and other's by one's.
func (q *benchmarked) compare(b *testing.B, one, other func()) {
	var seconds [2]float64
	passes := []func(){one, other}
	for range 2 {
		one()
		other()
	}
	b.ResetTimer()
	for i := range 2 * b.N {
		before := processorSeconds(b)
		passes[i%2]()
		seconds[i%2] += processorSeconds(b) - before
	}
	b.ReportMetric(seconds[0]/float64(b.N), "one-cpu-s/op")
	b.ReportMetric(seconds[1]/float64(b.N), "other-cpu-s/op")
	b.ReportMetric(seconds[1]/seconds[0], "ratio")
}
