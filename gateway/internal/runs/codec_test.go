package runs

import (
	"math"
	"reflect"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

var (
	onePass = forwardBackward{K: []int{0, 2}, ForwardBackwardRequest: plugins.ForwardBackwardRequest{
		Loss: "ppo", LossConfig: map[string]float64{"clip_low_threshold": 0.5, "clip_high_threshold": 2}, ForwardOnly: true, Data: []plugins.Datum{
			{Tokens: []int32{1, 2}, Targets: []int32{2, 3}, K: 1, Weights: []float32{1, -2}, Logprobs: []float32{}, Advantages: nil},
			{Tokens: []int32{math.MaxInt32}, Targets: []int32{2, 3}, K: 2, SequenceRatioMask: []float32{1e-40}},
		},
	}}
	oneResult = &ForwardBackwardResult{K: []int{0, 2}, ForwardBackwardResult: plugins.ForwardBackwardResult{
		Logprobs: [][]float32{{-1, -2}, {-3, float32(math.Inf(-1))}}, Terms: [][]float32{{0.5, 0}, {3, float32(math.Inf(1))}}, Metrics: map[string]float64{"loss:sum": 3.5},
	}}
	resultWithoutTerms = &ForwardBackwardResult{K: []int{0}, ForwardBackwardResult: plugins.ForwardBackwardResult{Logprobs: [][]float32{{-1}}, Metrics: map[string]float64{"loss:sum": 1}}}
	oneSample          = sampleRequest{SparseTargets: true, StopStrings: []string{"\n\nUser:", "x"}, SampleRequest: plugins.SampleRequest{
		Prompt: []int32{1, 2, 3}, NumSamples: 4, MaxTokens: 7, Temperature: 0.7, TopK: -1, TopP: 0.9, Seed: math.MaxUint64, StopTokens: []int32{5}, RepetitionPenalty: 1,
		TopKSampledLogprobs: 2, PromptLogprobs: true, PromptLogprobsLastN: 1, TopKPromptLogprobs: 3, TargetPromptTokens: []int32{-1, 4}, TargetPromptK: 1, PromptAlternatives: 2,
	}}
	oneSampled = &SampleResult{
		PromptLength: 3, TargetPromptTokens: []int32{-1, 4}, TargetPromptK: 1, TargetPromptSparse: true, PromptAlternatives: 2,
		Prompt: plugins.PromptScores{Version: 3, CachedTokens: 2, Logprobs: []float32{-1}, Top: plugins.TopLogprobs{K: 1, IDs: []int32{1}, Logprobs: []float32{-99999}},
			Targets: []float32{0}, AltTokens: []int32{4}, AltLogprobs: []float32{-2}},
		Sequences: []SampledSequence{{StoppedByLength: true, Tokens: []int32{1}, Logprobs: []float32{-1}}, {Tokens: []int32{}, Logprobs: []float32{}, Top: plugins.TopLogprobs{K: 2}}},
	}
)

// Tables of targets in which few are asked for; and one with a score where none is asked for.
var (
	fewTargets = sampleRequest{SampleRequest: plugins.SampleRequest{Prompt: []int32{1, 2}, RepetitionPenalty: 1, TargetPromptK: 1000, TargetPromptTokens: table(map[int]int32{0: 7, 998: 0, 999: math.MaxInt32})}}
	fewScores  = &SampleResult{TargetPromptK: 1000, TargetPromptTokens: fewTargets.TargetPromptTokens, Prompt: plugins.PromptScores{Targets: values(map[int]float32{0: -7, 998: 0, 999: float32(math.Inf(-1))})}}
	oddScores  = &SampleResult{TargetPromptK: 1000, TargetPromptTokens: fewTargets.TargetPromptTokens, Prompt: plugins.PromptScores{Targets: values(map[int]float32{0: -7, 5: float32(math.Copysign(0, -1))})}}
)

func table(cells map[int]int32) []int32 {
	t := make([]int32, 1000)
	for i := range t {
		t[i] = -1
	}
	for i, v := range cells {
		t[i] = v
	}
	return t
}

func values(cells map[int]float32) []float32 {
	t := make([]float32, 1000)
	for i, v := range cells {
		t[i] = v
	}
	return t
}

func TestFewTargetsAreFewBytes(t *testing.T) {
	if n := len(encodeSample(fewTargets)); n > 200 {
		t.Errorf("the request has %d bytes", n)
	}
	if n := len(encodeSampleResult(fewScores)); n > 200 {
		t.Errorf("the result has %d bytes", n)
	}
}

// TestOlderForms reads what older versions wrote: every cell of the targets, where the table is.
func TestOlderForms(t *testing.T) {
	r := oneSample
	e := newEncoder(formSample, 0)
	e.Int32s(r.Prompt)
	e.Int(int64(r.NumSamples))
	e.Int(int64(r.MaxTokens))
	e.Float(r.Temperature)
	e.Int(int64(r.TopK))
	e.Float(r.TopP)
	e.Uint(r.Seed)
	e.Int32s(r.StopTokens)
	e.Uint(uint64(len(r.StopStrings)))
	for _, s := range r.StopStrings {
		e.Text(s)
	}
	e.Int(int64(r.TopKSampledLogprobs))
	e.Bool(r.PromptLogprobs)
	e.Int(int64(r.PromptLogprobsLastN))
	e.Int(int64(r.TopKPromptLogprobs))
	e.Int32s(r.TargetPromptTokens)
	e.Int(int64(r.TargetPromptK))
	e.Int(int64(r.PromptAlternatives))
	e.Bool(r.SparseTargets)
	if got, err := decodeSample(e.B); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, r)
	}
	pass := oneResult
	e = newEncoder(formForwardBackwardResult, 0)
	e.Uint(uint64(len(pass.Logprobs)))
	for i, lp := range pass.Logprobs {
		e.Int(int64(pass.K[i]))
		e.Float32s(lp)
	}
	e.numbers(pass.Metrics)
	withoutTerms := *pass
	withoutTerms.Terms = nil
	if got, err := decodeForwardBackwardResult(e.B); err != nil || !reflect.DeepEqual(got, &withoutTerms) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, withoutTerms)
	}
	a, p := oneSampled, oneSampled.Prompt
	e = newEncoder(formSampleResult, 0)
	e.Int(p.Version)
	e.Int(int64(p.CachedTokens))
	e.Float32s(p.Logprobs)
	e.top(p.Top)
	e.Float32s(p.Targets)
	e.Int32s(p.AltTokens)
	e.Float32s(p.AltLogprobs)
	e.Int(int64(a.PromptLength))
	e.Int32s(a.TargetPromptTokens)
	e.Int(int64(a.TargetPromptK))
	e.Bool(a.TargetPromptSparse)
	e.Int(int64(a.PromptAlternatives))
	e.Uint(uint64(len(a.Sequences)))
	for _, s := range a.Sequences {
		e.Bool(s.StoppedByLength)
		e.Int32s(s.Tokens)
		e.Float32s(s.Logprobs)
		e.top(s.Top)
	}
	if got, err := decodeSampleResult(e.B); err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, a)
	}
}

func TestCodecKeepsEverything(t *testing.T) {
	for _, c := range []struct {
		name string
		want any
		got  func() (any, error)
	}{
		{"pass", onePass, func() (any, error) { return decodeForwardBackward(encodeForwardBackward(onePass)) }},
		{"result of a pass", oneResult, func() (any, error) { return decodeForwardBackwardResult(encodeForwardBackwardResult(oneResult)) }},
		{"result of a backend that gives no terms", resultWithoutTerms, func() (any, error) {
			return decodeForwardBackwardResult(encodeForwardBackwardResult(resultWithoutTerms))
		}},
		{"sample", oneSample, func() (any, error) { return decodeSample(encodeSample(oneSample)) }},
		{"sample with few targets", fewTargets, func() (any, error) { return decodeSample(encodeSample(fewTargets)) }},
		{"result with few targets", fewScores, func() (any, error) { return decodeSampleResult(encodeSampleResult(fewScores)) }},
		{"result with scores elsewhere", oddScores, func() (any, error) { return decodeSampleResult(encodeSampleResult(oddScores)) }},
		{"result of a sample", oneSampled, func() (any, error) { return decodeSampleResult(encodeSampleResult(oneSampled)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.got()
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Fatalf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func FuzzCodec(f *testing.F) {
	for _, b := range [][]byte{encodeForwardBackward(onePass), encodeForwardBackwardResult(oneResult), encodeSample(oneSample), encodeSampleResult(oneSampled), encodeSample(fewTargets), encodeSampleResult(fewScores), encodeRecordedSample(oneSampled)} {
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Add([]byte{formSample, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		// A record that was cut or changed is an error or other numbers, never a panic and never more memory than it is long, but for a table of targets.
		if r, err := decodeForwardBackward(b); err == nil && len(r.K) != len(r.Data) {
			t.Fatal("shapes and data differ")
		}
		if r, err := decodeForwardBackwardResult(b); err == nil && (len(r.K) != len(r.Logprobs) || len(r.Terms) > len(r.K)) {
			t.Fatal("shapes and results differ")
		}
		if r, err := decodeSample(b); err == nil {
			if _, err := decodeSample(encodeSample(r)); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := decodeSampleResult(b); err == nil {
			if _, err := decodeSampleResult(encodeSampleResult(r)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
