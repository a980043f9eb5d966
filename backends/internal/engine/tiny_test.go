package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Sizes of the test model.
const (
	tinyVocabulary = 89
	tinyContext    = 512
)

// shape is the size of a Qwen3 of random weights.
type shape struct{ vocabulary, hidden, intermediate, layers, heads, kvHeads, headDim int }

// writeTiny writes the test model's directory.
func writeTiny(dir string) error {
	return writeModel(dir, shape{tinyVocabulary, 32, 48, 2, 4, 2, 16})
}

// writeModel writes a model's directory.
func writeModel(dir string, s shape) error { return writeModelOf(dir, s, tinyContext) }

// writeModelOf writes that of one with another context.
func writeModelOf(dir string, s shape, context int) error {
	hidden, intermediate, layers, heads, kvHeads, headDim := s.hidden, s.intermediate, s.layers, s.heads, s.kvHeads, s.headDim
	config, err := json.Marshal(map[string]any{
		"architectures": []string{"Qwen3ForCausalLM"}, "model_type": "qwen3", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": intermediate,
		"num_attention_heads": heads, "num_key_value_heads": kvHeads, "head_dim": headDim, "vocab_size": s.vocabulary, "max_position_embeddings": context,
		"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu",
	})
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(7, 7))
	var sources []safetensors.Source
	add := func(name string, scale, offset float64, shape ...int) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(offset + scale*random.NormFloat64())
		}
		sources = append(sources, safetensors.Float32Source(name, shape, func() ([]float32, error) { return values, nil }))
	}
	add("model.embed_tokens.weight", 0.25, 0, s.vocabulary, hidden) // the head as well: logits of about ±1.5
	add("model.norm.weight", 0.1, 1, hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm.weight", 0.1, 1, hidden)
		add(p+"post_attention_layernorm.weight", 0.1, 1, hidden)
		add(p+"self_attn.q_norm.weight", 0.1, 1, headDim)
		add(p+"self_attn.k_norm.weight", 0.1, 1, headDim)
		add(p+"self_attn.q_proj.weight", 0.2, 0, heads*headDim, hidden)
		add(p+"self_attn.k_proj.weight", 0.2, 0, kvHeads*headDim, hidden)
		add(p+"self_attn.v_proj.weight", 0.2, 0, kvHeads*headDim, hidden)
		add(p+"self_attn.o_proj.weight", 0.2, 0, hidden, heads*headDim)
		add(p+"mlp.gate_proj.weight", 0.2, 0, intermediate, hidden)
		add(p+"mlp.up_proj.weight", 0.2, 0, intermediate, hidden)
		add(p+"mlp.down_proj.weight", 0.2, 0, hidden, intermediate)
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, err := safetensors.Write(f, nil, sources); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

func testOptions() Options {
	return Options{Plugin: "single", Version: "test", Registry: architectures.All(), Log: slog.New(slog.DiscardHandler),
		OpenDevice: func(c Config) (tensor.Device, error) { return cpu.New(cpu.Options{Threads: c.Threads}) }}
}

// start loads the test model into a new engine with a `backend:` section, and closes it when the test ends.
func start(t testing.TB, section string) *Engine {
	t.Helper()
	dir := t.TempDir()
	if err := writeTiny(dir); err != nil {
		t.Fatal(err)
	}
	e := open(t)
	if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: []byte(section)}, nil); err != nil {
		t.Fatal(err)
	}
	return e
}

// driver uses one adapter and counts its positions.
type driver struct {
	t       testing.TB
	e       *Engine
	adapter string
	next    int64
}

func create(t testing.TB, e *Engine, id string, seed uint64, rank int) *driver {
	t.Helper()
	if _, err := e.CreateAdapter(t.Context(), plugins.CreateAdapterRequest{Adapter: id, Config: plugins.AdapterConfig{Rank: rank, Seed: seed, TrainAttention: true, TrainMLP: true, TrainUnembed: true}}); err != nil {
		t.Fatal(err)
	}
	materialize(t, e, id)
	return &driver{t: t, e: e, adapter: id}
}

// materialize makes a new adapter one that has values of its own, as those have that were trained or loaded.
func materialize(t testing.TB, e *Engine, id string) {
	t.Helper()
	if err := e.onDevice(func() error {
		e.mu.Lock() // others are made at the same time
		l, v := e.loaded, e.runs[id].latest
		e.mu.Unlock()
		if v.weights.again == nil {
			return nil
		}
		for _, b := range []*spillable{v.weights, v.moments} {
			if err := l.adapters.need(b); err != nil {
				return err
			}
			defer l.adapters.done(b)
		}
		v.weights.again, v.moments.again, v.size = nil, nil, v.weights.bytes+v.moments.bytes
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func (d *driver) position() int64 { d.next++; return d.next }

func (d *driver) pass(data []plugins.Datum) plugins.ForwardBackwardResult {
	d.t.Helper()
	r, err := d.e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: d.position(), Data: data, Loss: "cross_entropy"})
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

func (d *driver) step() plugins.OptimStepResult {
	d.t.Helper()
	r, err := d.e.OptimStep(context.Background(), plugins.OptimStepRequest{Adapter: d.adapter, Position: d.position(), Adam: adamDefaults})
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

var adamDefaults = plugins.AdamParams{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradClipNorm: 1}

// weights reads the latest weights through a checkpoint.
func (d *driver) weights() map[string][]float32 {
	d.t.Helper()
	path := filepath.Join(d.t.TempDir(), "weights")
	if _, err := d.e.SaveAdapter(context.Background(), plugins.SaveAdapterRequest{Adapter: d.adapter, Version: plugins.LatestVersion, Path: path}); err != nil {
		d.t.Fatal(err)
	}
	return tensorsOf(d.t, filepath.Join(path, plugins.AdapterWeightsFile))
}

func tensorsOf(t testing.TB, path string) map[string][]float32 {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]float32{}
	for _, name := range f.Names() {
		tensor, _ := f.Tensor(name)
		if all[name], err = tensor.Float32s(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func equalTensors(t testing.TB, what string, a, b map[string][]float32) {
	t.Helper()
	if len(a) != len(b) || len(a) == 0 {
		t.Fatalf("%s: %d tensors and %d", what, len(a), len(b))
	}
	for name := range a {
		equalBits(t, what+" "+name, a[name], b[name])
	}
}

func equalBits(t testing.TB, what string, a, b []float32) {
	t.Helper()
	if !slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }) {
		t.Fatalf("%s: bits differ:\n%v\n%v", what, a[:min(8, len(a))], b[:min(8, len(b))])
	}
}

// randomTokens gives n tokens of the test model.
func randomTokens(random *rand.Rand, n int) []int32 {
	return randomTokensOf(random, tinyVocabulary, n)
}

// randomTokensOf gives n tokens of a vocabulary.
func randomTokensOf(random *rand.Rand, vocabulary, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(random.IntN(vocabulary))
	}
	return tokens
}

// randomData gives n sequences for cross_entropy.
func randomData(random *rand.Rand, n, longest int) []plugins.Datum {
	data := make([]plugins.Datum, n)
	for i := range data {
		tokens := randomTokens(random, 2+random.IntN(longest-1))
		weights := make([]float32, len(tokens)-1)
		for k := range weights {
			weights[k] = random.Float32()
		}
		data[i] = plugins.Datum{Tokens: tokens[:len(tokens)-1], Targets: tokens[1:], K: 1, Weights: weights}
	}
	return data
}

// sampled is everything that a Sample call has emitted.
type sampled struct {
	prompt    plugins.PromptScores
	sequences []plugins.SampledTokens
	reasons   []plugins.StopReason
}

// collect runs a request. It is safe for several goroutines.
func collect(ctx context.Context, e plugins.Backend, q plugins.SampleRequest) (sampled, error) {
	out := sampled{sequences: make([]plugins.SampledTokens, q.NumSamples), reasons: slices.Repeat([]plugins.StopReason{-1}, q.NumSamples)}
	prompts := 0
	err := e.Sample(ctx, q, func(event plugins.SampleEvent) error {
		switch {
		case event.Prompt != nil:
			out.prompt = *event.Prompt
			prompts++
		case event.Tokens != nil:
			if prompts != 1 {
				return fmt.Errorf("tokens after %d prompt events", prompts)
			}
			s := &out.sequences[event.Tokens.Sequence]
			if s.Tokens == nil { // benchmarks count what the engine allocates, not what its reader does
				s.Tokens, s.Logprobs = make([]int32, 0, q.MaxTokens), make([]float32, 0, q.MaxTokens)
			}
			s.Tokens, s.Logprobs = append(s.Tokens, event.Tokens.Tokens...), append(s.Logprobs, event.Tokens.Logprobs...)
			s.ConstraintLogprobs = append(s.ConstraintLogprobs, event.Tokens.ConstraintLogprobs...)
			s.Top.K = event.Tokens.Top.K
			s.Top.IDs, s.Top.Logprobs = append(s.Top.IDs, event.Tokens.Top.IDs...), append(s.Top.Logprobs, event.Tokens.Top.Logprobs...)
		case event.Finished != nil:
			if out.reasons[event.Finished.Sequence] != -1 {
				return fmt.Errorf("sequence %d finished twice", event.Finished.Sequence)
			}
			out.reasons[event.Finished.Sequence] = event.Finished.Reason
		}
		return nil
	})
	return out, err
}

// collectAll runs requests at the same time.
func collectAll(t *testing.T, e plugins.Backend, requests []plugins.SampleRequest) []sampled {
	t.Helper()
	return collectBy(t, e, requests, together)
}

// collectBy runs requests as call calls.
func collectBy(t *testing.T, e plugins.Backend, requests []plugins.SampleRequest, call func(...func())) []sampled {
	t.Helper()
	results := make([]sampled, len(requests))
	var calls []func()
	for i, q := range requests {
		calls = append(calls, func() {
			var err error
			if results[i], err = collect(t.Context(), e, q); err != nil {
				t.Error(err)
			}
		})
	}
	call(calls...)
	return results
}

// ask is a request with the defaults of the contract.
func ask(id, adapter string, prompt []int32, n, tokens int) plugins.SampleRequest {
	return plugins.SampleRequest{ID: id, Adapter: adapter, Version: plugins.LatestVersion, Prompt: prompt, NumSamples: n, MaxTokens: tokens, Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: 11}
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// together runs functions at the same time and waits for them.
func together(functions ...func()) {
	var group sync.WaitGroup
	for _, f := range functions {
		group.Go(f)
	}
	group.Wait()
}
