package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/goldenfiles"
	"github.com/tinsmith/tinsmith/plugins"
)

// TestFamiliesAgree: of every model that package model has values for, the log-probabilities of sampled tokens are those that the trainer computes, bit by bit, and those of the same request alone.
// So it is on ranks, of two families here. E2E_LEVEL=all samples 100,000 tokens of each, and of more ranks.
func TestFamiliesAgree(t *testing.T) {
	tokens, cuts := 500, map[string][]int{"gpt-oss": {2}, "qwen3.5-moe": {2}}
	if os.Getenv("E2E_LEVEL") == "all" {
		tokens = 100_000
		cuts["gpt-oss"] = []int{2, 4}
	}
	const section = `{"dtype": "bfloat16", "threads": 2, "kv_cache_tokens": 8192, "prefill_tokens": 37`
	root := filepath.Join("..", "model", "testdata")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	families := 0
	for _, entry := range entries {
		if _, err := os.Stat(filepath.Join(root, entry.Name(), "config.json")); err != nil {
			continue
		}
		families++
		agree := func(t *testing.T, p placement) {
			dir := t.TempDir()
			goldenfiles.Unpack(t, filepath.Join(root, entry.Name()), dir)
			e := placeModel(t, dir, p, testOptions())
			samplerAgrees(t, e, e.loaded.info, tokens)
		}
		t.Run(entry.Name(), func(t *testing.T) { agree(t, placement{plugin: "single", section: section + "}"}) })
		for _, n := range cuts[entry.Name()] {
			devices := strings.Repeat(`, "cpu"`, n)[2:]
			t.Run(fmt.Sprintf("%s on %d ranks", entry.Name(), n), func(t *testing.T) {
				agree(t, placement{plugin: "tensorparallel", section: fmt.Sprintf(`%s, "devices": [%s]}`, section, devices)})
			})
		}
	}
	if families < 10 {
		t.Errorf("%d models were found", families)
	}
}

// samplerAgrees samples so many tokens from two adapters, 32 sequences at a time.
func samplerAgrees(t *testing.T, e *Engine, info plugins.ModelInfo, tokens int) {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 9))
	drivers := map[string]*driver{}
	for i, id := range []string{"a", "b"} {
		d := create(t, e, id, uint64(i), 2<<(2*i))
		for range 2 {
			text := randomTokensOf(random, info.VocabSize, 40)
			d.pass([]plugins.Datum{{Tokens: text[:39], Targets: text[1:], K: 1, Weights: slices.Repeat([]float32{1}, 39)}})
			d.step()
		}
		drivers[id] = d
	}
	longest := min(100, tokens/32+1)
	for round := 0; tokens > 0; round++ {
		requests := make([]plugins.SampleRequest, 8)
		for i := range requests {
			prompt := randomTokensOf(random, info.VocabSize, 1+random.IntN(150))
			q := ask(fmt.Sprint("q", round, ".", i), []string{"a", "b"}[i%2], prompt, 4, longest)
			q.Seed, q.Temperature = random.Uint64()>>1, []float64{1, 1, 0, 0.6}[i/2]
			requests[i] = q
			tokens -= q.NumSamples * q.MaxTokens
		}
		results := collectAll(t, e, requests)
		if t.Failed() {
			return
		}
		for i, q := range requests {
			if q.Temperature != 0.6 { // else the log-probabilities are of another distribution than the trainer's
				agreesWithTrainer(t, drivers[q.Adapter], q, results[i])
			}
		}
		alone, err := collect(t.Context(), e, requests[round%8])
		if err != nil {
			t.Fatal(err)
		}
		equalSamples(t, "alone", alone.sequences, results[round%8].sequences)
	}
}

// agreesWithTrainer scores what was sampled as the trainer does.
func agreesWithTrainer(t *testing.T, d *driver, q plugins.SampleRequest, got sampled) {
	t.Helper()
	var data []plugins.Datum
	for _, s := range got.sequences {
		if len(s.Tokens) != q.MaxTokens {
			t.Fatalf("%d tokens, want %d", len(s.Tokens), q.MaxTokens)
		}
		whole := slices.Concat(q.Prompt, s.Tokens)
		data = append(data, plugins.Datum{Tokens: whole[:len(whole)-1], Targets: whole[1:], K: 1, Weights: slices.Repeat([]float32{1}, len(whole)-1)})
	}
	r, err := d.e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: d.position(), Loss: "cross_entropy", ForwardOnly: true, Data: data})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range got.sequences {
		equalBits(t, fmt.Sprintf("%s, sequence %d", q.ID, i), s.Logprobs, r.Logprobs[i][len(q.Prompt)-1:])
	}
}
