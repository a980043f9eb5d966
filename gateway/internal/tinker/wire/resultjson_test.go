package wire

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

func TestForwardBackwardOutputJSON(t *testing.T) {
	got, err := EncodeForwardBackwardOutputJSON(&runs.ForwardBackwardResult{
		ForwardBackwardResult: plugins.ForwardBackwardResult{
			Logprobs: [][]float32{{-0.1, -1}, {}, {-1e-8, -2, -3, float32(math.NaN())}}, Terms: [][]float32{{0.1, 0}, {}, {1, 2, 3, 4}}, Metrics: map[string]float64{"loss:sum": 1.5, "a\"b:mean": 1e300, "x:max": math.Inf(1)},
		},
		K: []int{0, 0, 2},
	})
	want := `{"loss_fn_output_type":"ArrayRecord","loss_fn_outputs":[{"logprobs":{"data":[-0.10000000149011612,-1],"dtype":"float32","shape":[2]},"elementwise_loss":{"data":[0.10000000149011612,0],"dtype":"float32","shape":[2]}},` +
		`{"logprobs":{"data":[],"dtype":"float32","shape":[0]},"elementwise_loss":{"data":[],"dtype":"float32","shape":[0]}},` +
		`{"logprobs":{"data":[-9.99999993922529e-09,-2,-3,null],"dtype":"float32","shape":[2,2]},"elementwise_loss":{"data":[1,2,3,4],"dtype":"float32","shape":[2,2]}}],"metrics":{"a\"b:mean":1e+300,"loss:sum":1.5}}`
	if err != nil || string(got) != want || !json.Valid(got) {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}

func TestSampleResponseJSON(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name   string
		result runs.SampleResult
		want   string
	}{
		{"plain", runs.SampleResult{Sequences: []runs.SampledSequence{{Tokens: []int32{5, 6}, Logprobs: []float32{-0.25, -0.5}}, {StoppedByLength: true, Tokens: []int32{}, Logprobs: []float32{}}}, PromptLength: 2, Prompt: plugins.PromptScores{CachedTokens: 1}},
			`{"type":"sample","sequences":[{"stop_reason":"stop","tokens":[5,6],"logprobs":[-0.25,-0.5]},{"stop_reason":"length","tokens":[],"logprobs":[]}],"prompt_cache_hit_tokens":1}`},
		{"scores of the prompt", runs.SampleResult{
			Prompt:       plugins.PromptScores{Logprobs: []float32{nan, -1, -2}, Top: plugins.TopLogprobs{K: 2, IDs: []int32{0, 0, 7, 8, 0, 0}, Logprobs: []float32{-99999, -99999, -0.5, -1, -0.25, -99999}}},
			PromptLength: 3,
		}, `{"type":"sample","sequences":[],"prompt_logprobs":[null,-1,-2],"topk_prompt_logprobs":[null,[[7,-0.5],[8,-1]],[[0,-0.25]]],"prompt_cache_hit_tokens":0}`},
		{"everything newer", runs.SampleResult{
			Prompt:       plugins.PromptScores{Targets: []float32{0, 0, -3}, AltTokens: []int32{8, 9}, AltLogprobs: []float32{-1, -2}},
			Sequences:    []runs.SampledSequence{{Tokens: []int32{5}, Logprobs: []float32{-0.25}, Top: plugins.TopLogprobs{K: 1, IDs: []int32{5}, Logprobs: []float32{-0.25}}}},
			PromptLength: 2, TargetPromptTokens: []int32{-1, -1, 4}, TargetPromptK: 3, TargetPromptSparse: true, PromptAlternatives: 2,
		}, `{"type":"sample","sequences":[{"stop_reason":"stop","tokens":[5],"logprobs":[-0.25],"topk_logprobs":[[[5,-0.25]]]}],` +
			`"target_prompt_logprobs":{"data":[-3],"sparse_crow_indices":[0,1],"sparse_col_indices":[2],"dtype":"float32","shape":[1,3]},` +
			`"prompt_alt_tokens":{"tokens":{"data":[8,9],"dtype":"int64","shape":[1,2]},"logprobs":{"data":[-1,-2],"dtype":"float32","shape":[1,2]}},"prompt_cache_hit_tokens":0}`},
		{"dense targets", runs.SampleResult{Prompt: plugins.PromptScores{Targets: []float32{0, -3}}, PromptLength: 2, TargetPromptTokens: []int32{-1, 4}, TargetPromptK: 2},
			`{"type":"sample","sequences":[],"target_prompt_logprobs":{"data":[0,-3],"dtype":"float32","shape":[1,2]},"prompt_cache_hit_tokens":0}`},
	} {
		if got := EncodeSampleResponseJSON(&c.result); string(got) != c.want || !json.Valid(got) {
			t.Errorf("%s: got  %s\nwant %s", c.name, got, c.want)
		}
	}
}

// FuzzFloatsInJSON: every float32 comes back as the very same number, and what is no number as null.
func FuzzFloatsInJSON(f *testing.F) {
	f.Add(uint32(1))
	f.Add(math.Float32bits(-0.1))
	f.Add(uint32(0x7fc00000))
	f.Fuzz(func(t *testing.T, bits uint32) {
		v := math.Float32frombits(bits)
		var got *float64
		if err := json.Unmarshal(appendFloat(nil, v), &got); err != nil {
			t.Fatal(err)
		}
		finite := !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0)
		if finite != (got != nil) || finite && math.Float64bits(*got) != math.Float64bits(float64(v)) {
			t.Errorf("%x became %s", bits, appendFloat(nil, v))
		}
	})
}
