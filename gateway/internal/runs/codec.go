package runs

import (
	"math"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
	"github.com/tinsmith/tinsmith/plugins"
)

// Requests and results with many numbers are stored in a compact form of ours: a byte that says which form, then the fields in a fixed order as package pack
// writes them.
const (
	formForwardBackward       = 1
	formForwardBackwardResult = 2 // of older versions, and of backends that give no terms
	formSample                = 3 // of older versions, which wrote every cell of the targets
	formSampleResult          = 4 // likewise
	formSampleOfCells         = 5
	formSampleResultOfCells   = 6
	formRecordedSample        = 7 // what is kept of a result once its session is over: tokens and their log-probabilities
	formForwardBackwardTerms  = 8 // a forward_backward result with what each target adds to the loss
)

type encoder struct{ pack.Encoder }

func newEncoder(form byte, size int) *encoder {
	return &encoder{pack.Encoder{B: append(make([]byte, 0, size), form)}}
}

func (e *encoder) numbers(m map[string]float64) {
	e.Uint(uint64(len(m)))
	for _, name := range sortedKeys(m) {
		e.Text(name)
		e.Float(m[name])
	}
}

func (e *encoder) top(t plugins.TopLogprobs) {
	e.Int(int64(t.K))
	e.Int32s(t.IDs)
	e.Float32s(t.Logprobs)
}

// cells writes the tokens that are asked for in a table, of which the others are -1. A client may ask for a few in a table that is a thousand times as large as its request.
func (e *encoder) cells(tokens []int32) {
	listed := listedCells(tokens)
	sparse := len(tokens) > 0 && listed >= 0 && listed < len(tokens)/2
	if e.Bool(sparse); !sparse {
		e.Int32s(tokens)
		return
	}
	e.Uint(uint64(len(tokens)))
	e.Uint(uint64(listed))
	last := 0
	for i, t := range tokens {
		if t >= 0 {
			e.Uint(uint64(i - last))
			e.Uint(uint64(t))
			last = i
		}
	}
}

// listedCells counts the cells that are asked for; -1 where a table has something else than tokens and -1.
func listedCells(tokens []int32) int {
	n := 0
	for _, t := range tokens {
		if t < -1 {
			return -1
		}
		if t >= 0 {
			n++
		}
	}
	return n
}

// scores writes the values of the cells that are asked for, as far as the others are 0.
func (e *encoder) scores(values []float32, tokens []int32) {
	sparse := len(values) > 0 && len(values) == len(tokens)
	var listed []float32
	for i := 0; sparse && i < len(values); i++ {
		if tokens[i] >= 0 {
			listed = append(listed, values[i])
		} else if math.Float32bits(values[i]) != 0 {
			sparse = false
		}
	}
	if e.Bool(sparse); sparse {
		e.Float32s(listed)
	} else {
		e.Float32s(values)
	}
}

type decoder struct{ *pack.Decoder }

// maxCells bounds a table: in a damaged record it could be of any size.
const maxCells = 16 << 20

func (d decoder) cells() []int32 {
	if !d.Bool() {
		return d.Int32s()
	}
	size, listed := d.Uint(), d.Count()
	if size > maxCells || uint64(listed) > size {
		d.Fail()
		return nil
	}
	tokens := make([]int32, size)
	for i := range tokens {
		tokens[i] = -1
	}
	at := uint64(0)
	for range listed {
		step, token := d.Uint(), d.Uint()
		if at += step; step > size || at >= size || token > math.MaxInt32 {
			d.Fail()
			return nil
		}
		tokens[at] = int32(token)
	}
	return tokens
}

func (d decoder) scores(tokens []int32) []float32 {
	if !d.Bool() {
		return d.Float32s()
	}
	listed := d.Float32s()
	values := make([]float32, len(tokens))
	for i, t := range tokens {
		if t < 0 {
			continue
		}
		if len(listed) == 0 {
			d.Fail()
			return nil
		}
		values[i], listed = listed[0], listed[1:]
	}
	return values
}

// newDecoder checks the first byte.
func newDecoder(b []byte, form byte) decoder {
	d := decoder{pack.NewDecoder(b)}
	if d.Byte() != form {
		d.Fail()
	}
	return d
}

func (d decoder) numbers() map[string]float64 {
	n := d.Count()
	if n == 0 {
		return nil
	}
	m := make(map[string]float64, n)
	for range n {
		name := d.Text()
		m[name] = d.Float()
	}
	return m
}

func (d decoder) top() plugins.TopLogprobs {
	return plugins.TopLogprobs{K: int(d.Int()), IDs: d.Int32s(), Logprobs: d.Float32s()}
}

// forwardBackward is the journalled form of a pass: the backend's request without adapter and position, and the shapes of the answers.
type forwardBackward struct {
	plugins.ForwardBackwardRequest
	K []int // per datum 0 for targets of shape (N), else the K of (N, K)
}

func encodeForwardBackward(r forwardBackward) []byte {
	size := 64
	for _, x := range r.Data {
		size += 64 + 4*(len(x.Tokens)+len(x.Targets)+len(x.Weights)+len(x.Logprobs)+len(x.Advantages)+len(x.SequenceRatioMask))
	}
	e := newEncoder(formForwardBackward, size)
	e.Text(r.Loss)
	e.numbers(r.LossConfig)
	e.Bool(r.ForwardOnly)
	e.Uint(uint64(len(r.Data)))
	for i, x := range r.Data {
		e.Int(int64(r.K[i]))
		e.Int(int64(x.K))
		e.Int32s(x.Tokens)
		e.Int32s(x.Targets)
		e.Float32s(x.Weights)
		e.Float32s(x.Logprobs)
		e.Float32s(x.Advantages)
		e.Float32s(x.SequenceRatioMask)
	}
	return e.B
}

func decodeForwardBackward(b []byte) (forwardBackward, error) {
	d := newDecoder(b, formForwardBackward)
	var r forwardBackward
	r.Loss, r.LossConfig, r.ForwardOnly = d.Text(), d.numbers(), d.Bool()
	for range d.Count() {
		r.K = append(r.K, int(d.Int()))
		r.Data = append(r.Data, plugins.Datum{
			K: int(d.Int()), Tokens: d.Int32s(), Targets: d.Int32s(), Weights: d.Float32s(), Logprobs: d.Float32s(), Advantages: d.Float32s(), SequenceRatioMask: d.Float32s(),
		})
	}
	return r, d.End()
}

func encodeForwardBackwardResult(r *ForwardBackwardResult) []byte {
	form, size := byte(formForwardBackwardTerms), 64+48*len(r.Metrics)
	if len(r.Terms) != len(r.Logprobs) {
		form = formForwardBackwardResult
	}
	for _, lp := range r.Logprobs {
		size += 24 + 8*len(lp)
	}
	e := newEncoder(form, size)
	e.Uint(uint64(len(r.Logprobs)))
	for i, lp := range r.Logprobs {
		e.Int(int64(r.K[i]))
		e.Float32s(lp)
		if form == formForwardBackwardTerms {
			e.Float32s(r.Terms[i])
		}
	}
	e.numbers(r.Metrics)
	return e.B
}

func decodeForwardBackwardResult(b []byte) (*ForwardBackwardResult, error) {
	d := decoder{pack.NewDecoder(b)}
	form := d.Byte()
	if form != formForwardBackwardResult && form != formForwardBackwardTerms {
		d.Fail()
	}
	r := &ForwardBackwardResult{}
	for range d.Count() {
		r.K = append(r.K, int(d.Int()))
		r.Logprobs = append(r.Logprobs, d.Float32s())
		if form == formForwardBackwardTerms {
			r.Terms = append(r.Terms, d.Float32s())
		}
	}
	r.Metrics = d.numbers()
	return r, d.End()
}

// sampleRequest is the journalled form of a sample: the backend's request without id, adapter and version, and what stops it.
type sampleRequest struct {
	plugins.SampleRequest
	StopStrings   []string
	SparseTargets bool // TargetPromptTokens came sparse, and the scores go back so
}

// promptBytes is what counts against the memory of waiting samples.
func (r *sampleRequest) promptBytes() int64 {
	return 4 * (int64(len(r.Prompt)) + int64(len(r.TargetPromptTokens)))
}

func encodeSample(r sampleRequest) []byte {
	e := newEncoder(formSampleOfCells, 128+4*len(r.Prompt))
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
	e.cells(r.TargetPromptTokens)
	e.Int(int64(r.TargetPromptK))
	e.Int(int64(r.PromptAlternatives))
	e.Bool(r.SparseTargets)
	return e.B
}

func decodeSample(b []byte) (sampleRequest, error) {
	d := decoder{pack.NewDecoder(b)}
	form := d.Byte()
	if form != formSample && form != formSampleOfCells {
		d.Fail()
	}
	var r sampleRequest
	r.RepetitionPenalty = 1
	r.Prompt, r.NumSamples, r.MaxTokens = d.Int32s(), int(d.Int()), int(d.Int())
	r.Temperature, r.TopK, r.TopP, r.Seed, r.StopTokens = d.Float(), int(d.Int()), d.Float(), d.Uint(), d.Int32s()
	for range d.Count() {
		r.StopStrings = append(r.StopStrings, d.Text())
	}
	r.TopKSampledLogprobs, r.PromptLogprobs, r.PromptLogprobsLastN, r.TopKPromptLogprobs = int(d.Int()), d.Bool(), int(d.Int()), int(d.Int())
	if form == formSample {
		r.TargetPromptTokens = d.Int32s()
	} else {
		r.TargetPromptTokens = d.cells()
	}
	r.TargetPromptK, r.PromptAlternatives, r.SparseTargets = int(d.Int()), int(d.Int()), d.Bool()
	return r, d.End()
}

func encodeSampleResult(r *SampleResult) []byte {
	e := newEncoder(formSampleResultOfCells, 256)
	p := r.Prompt
	e.cells(r.TargetPromptTokens)
	e.Int(p.Version)
	e.Int(int64(p.CachedTokens))
	e.Float32s(p.Logprobs)
	e.top(p.Top)
	e.scores(p.Targets, r.TargetPromptTokens)
	e.Int32s(p.AltTokens)
	e.Float32s(p.AltLogprobs)
	e.Int(int64(r.PromptLength))
	e.Int(int64(r.TargetPromptK))
	e.Bool(r.TargetPromptSparse)
	e.Int(int64(r.PromptAlternatives))
	e.Uint(uint64(len(r.Sequences)))
	for _, s := range r.Sequences {
		e.Bool(s.StoppedByLength)
		e.Int32s(s.Tokens)
		e.Float32s(s.Logprobs)
		e.top(s.Top)
	}
	return e.B
}

// encodeRecordedSample keeps of a result what training may ask for later: see resolveProvenance.
func encodeRecordedSample(r *SampleResult) []byte {
	e := newEncoder(formRecordedSample, 256)
	e.Uint(uint64(len(r.Sequences)))
	for _, s := range r.Sequences {
		e.Bool(s.StoppedByLength)
		e.Int32s(s.Tokens)
		e.Float32s(s.Logprobs)
	}
	return e.B
}

func decodeSampleResult(b []byte) (*SampleResult, error) {
	d := decoder{pack.NewDecoder(b)}
	r := &SampleResult{}
	switch d.Byte() {
	case formSampleResult:
		r.Prompt = plugins.PromptScores{
			Version: d.Int(), CachedTokens: int(d.Int()), Logprobs: d.Float32s(), Top: d.top(), Targets: d.Float32s(), AltTokens: d.Int32s(), AltLogprobs: d.Float32s(),
		}
		r.PromptLength, r.TargetPromptTokens, r.TargetPromptK, r.TargetPromptSparse, r.PromptAlternatives = int(d.Int()), d.Int32s(), int(d.Int()), d.Bool(), int(d.Int())
	case formSampleResultOfCells:
		r.TargetPromptTokens = d.cells()
		r.Prompt = plugins.PromptScores{
			Version: d.Int(), CachedTokens: int(d.Int()), Logprobs: d.Float32s(), Top: d.top(), Targets: d.scores(r.TargetPromptTokens), AltTokens: d.Int32s(), AltLogprobs: d.Float32s(),
		}
		r.PromptLength, r.TargetPromptK, r.TargetPromptSparse, r.PromptAlternatives = int(d.Int()), int(d.Int()), d.Bool(), int(d.Int())
	case formRecordedSample:
		r.recorded = true
		for range d.Count() {
			r.Sequences = append(r.Sequences, SampledSequence{StoppedByLength: d.Bool(), Tokens: d.Int32s(), Logprobs: d.Float32s()})
		}
		return r, d.End()
	default:
		d.Fail()
	}
	for range d.Count() {
		r.Sequences = append(r.Sequences, SampledSequence{StoppedByLength: d.Bool(), Tokens: d.Int32s(), Logprobs: d.Float32s(), Top: d.top()})
	}
	return r, d.End()
}
