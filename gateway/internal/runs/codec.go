package runs

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"

	"github.com/tinsmith/tinsmith/plugins"
)

// Requests and results with many numbers are stored in a compact form of ours: a byte that says which form, then the fields in a fixed order; integers as varints, text and
// arrays with their length in front, arrays of numbers as packed little-endian bytes.
const (
	formForwardBackward       = 1
	formForwardBackwardResult = 2
	formSample                = 3
	formSampleResult          = 4
)

type encoder struct{ b []byte }

func (e *encoder) uint(v uint64)   { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) int(v int64)     { e.b = binary.AppendVarint(e.b, v) }
func (e *encoder) float(v float64) { e.b = binary.LittleEndian.AppendUint64(e.b, math.Float64bits(v)) }
func (e *encoder) text(s string)   { e.uint(uint64(len(s))); e.b = append(e.b, s...) }
func (e *encoder) ints(v []int32) {
	e.length(len(v), v == nil)
	for _, x := range v {
		e.b = binary.LittleEndian.AppendUint32(e.b, uint32(x))
	}
}

func (e *encoder) floats(v []float32) {
	e.length(len(v), v == nil)
	for _, x := range v {
		e.b = binary.LittleEndian.AppendUint32(e.b, math.Float32bits(x))
	}
}

// length keeps nil and empty apart: 0 is nil, n+1 is n.
func (e *encoder) length(n int, isNil bool) {
	if isNil {
		e.uint(0)
		return
	}
	e.uint(uint64(n) + 1)
}

func (e *encoder) bool(v bool) {
	if v {
		e.uint(1)
		return
	}
	e.uint(0)
}

func (e *encoder) numbers(m map[string]float64) {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	e.uint(uint64(len(names)))
	for _, name := range names {
		e.text(name)
		e.float(m[name])
	}
}

func (e *encoder) top(t plugins.TopLogprobs) {
	e.int(int64(t.K))
	e.ints(t.IDs)
	e.floats(t.Logprobs)
}

// decoder reads the form back. After the first error everything reads as zero.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail() {
	if d.err == nil {
		d.err = fmt.Errorf("stored record: %d bytes before its end something does not fit", len(d.b))
	}
	d.b = nil
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bool() bool { return d.uint() != 0 }

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) float() float64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

func (d *decoder) text() string { return string(d.take(d.uint())) }

// count reads the number of things that take at least one byte each.
func (d *decoder) count() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) words() ([]byte, bool) {
	n := d.uint()
	if n == 0 {
		return nil, false
	}
	if n-1 > uint64(len(d.b))/4 {
		d.fail()
		return nil, false
	}
	return d.take((n - 1) * 4), true
}

func (d *decoder) ints() []int32 {
	b, ok := d.words()
	if !ok {
		return nil
	}
	out := make([]int32, len(b)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func (d *decoder) floats() []float32 {
	b, ok := d.words()
	if !ok {
		return nil
	}
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func (d *decoder) numbers() map[string]float64 {
	n := d.count()
	if n == 0 {
		return nil
	}
	m := make(map[string]float64, n)
	for range n {
		name := d.text()
		m[name] = d.float()
	}
	return m
}

func (d *decoder) top() plugins.TopLogprobs {
	return plugins.TopLogprobs{K: int(d.int()), IDs: d.ints(), Logprobs: d.floats()}
}

// form checks the first byte.
func (d *decoder) form(want byte) {
	if b := d.take(1); b == nil || b[0] != want {
		d.fail()
	}
}

// end gives the error, also if something is left over.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail()
	}
	return d.err
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
	e := encoder{b: append(make([]byte, 0, size), formForwardBackward)}
	e.text(r.Loss)
	e.numbers(r.LossConfig)
	e.bool(r.ForwardOnly)
	e.uint(uint64(len(r.Data)))
	for i, x := range r.Data {
		e.int(int64(r.K[i]))
		e.int(int64(x.K))
		e.ints(x.Tokens)
		e.ints(x.Targets)
		e.floats(x.Weights)
		e.floats(x.Logprobs)
		e.floats(x.Advantages)
		e.floats(x.SequenceRatioMask)
	}
	return e.b
}

func decodeForwardBackward(b []byte) (forwardBackward, error) {
	d := decoder{b: b}
	d.form(formForwardBackward)
	var r forwardBackward
	r.Loss, r.LossConfig, r.ForwardOnly = d.text(), d.numbers(), d.bool()
	for range d.count() {
		r.K = append(r.K, int(d.int()))
		r.Data = append(r.Data, plugins.Datum{
			K: int(d.int()), Tokens: d.ints(), Targets: d.ints(), Weights: d.floats(), Logprobs: d.floats(), Advantages: d.floats(), SequenceRatioMask: d.floats(),
		})
	}
	return r, d.end()
}

func encodeForwardBackwardResult(r *ForwardBackwardResult) []byte {
	e := encoder{b: []byte{formForwardBackwardResult}}
	e.uint(uint64(len(r.Logprobs)))
	for i, lp := range r.Logprobs {
		e.int(int64(r.K[i]))
		e.floats(lp)
	}
	e.numbers(r.Metrics)
	return e.b
}

func decodeForwardBackwardResult(b []byte) (*ForwardBackwardResult, error) {
	d := decoder{b: b}
	d.form(formForwardBackwardResult)
	r := &ForwardBackwardResult{}
	for range d.count() {
		r.K = append(r.K, int(d.int()))
		r.Logprobs = append(r.Logprobs, d.floats())
	}
	r.Metrics = d.numbers()
	return r, d.end()
}

// sampleRequest is the journalled form of a sample: the backend's request without id, adapter and version, and what stops it.
type sampleRequest struct {
	plugins.SampleRequest
	StopStrings   []string
	SparseTargets bool // TargetPromptTokens came sparse, and the scores go back so
}

func encodeSample(r sampleRequest) []byte {
	e := encoder{b: []byte{formSample}}
	e.ints(r.Prompt)
	e.int(int64(r.NumSamples))
	e.int(int64(r.MaxTokens))
	e.float(r.Temperature)
	e.int(int64(r.TopK))
	e.float(r.TopP)
	e.uint(r.Seed)
	e.ints(r.StopTokens)
	e.uint(uint64(len(r.StopStrings)))
	for _, s := range r.StopStrings {
		e.text(s)
	}
	e.int(int64(r.TopKSampledLogprobs))
	e.bool(r.PromptLogprobs)
	e.int(int64(r.PromptLogprobsLastN))
	e.int(int64(r.TopKPromptLogprobs))
	e.ints(r.TargetPromptTokens)
	e.int(int64(r.TargetPromptK))
	e.int(int64(r.PromptAlternatives))
	e.bool(r.SparseTargets)
	return e.b
}

func decodeSample(b []byte) (sampleRequest, error) {
	d := decoder{b: b}
	d.form(formSample)
	var r sampleRequest
	r.RepetitionPenalty = 1
	r.Prompt, r.NumSamples, r.MaxTokens = d.ints(), int(d.int()), int(d.int())
	r.Temperature, r.TopK, r.TopP, r.Seed, r.StopTokens = d.float(), int(d.int()), d.float(), d.uint(), d.ints()
	for range d.count() {
		r.StopStrings = append(r.StopStrings, d.text())
	}
	r.TopKSampledLogprobs, r.PromptLogprobs, r.PromptLogprobsLastN, r.TopKPromptLogprobs = int(d.int()), d.bool(), int(d.int()), int(d.int())
	r.TargetPromptTokens, r.TargetPromptK, r.PromptAlternatives, r.SparseTargets = d.ints(), int(d.int()), int(d.int()), d.bool()
	return r, d.end()
}

func encodeSampleResult(r *SampleResult) []byte {
	e := encoder{b: []byte{formSampleResult}}
	p := r.Prompt
	e.int(p.Version)
	e.int(int64(p.CachedTokens))
	e.floats(p.Logprobs)
	e.top(p.Top)
	e.floats(p.Targets)
	e.ints(p.AltTokens)
	e.floats(p.AltLogprobs)
	e.int(int64(r.PromptLength))
	e.ints(r.TargetPromptTokens)
	e.int(int64(r.TargetPromptK))
	e.bool(r.TargetPromptSparse)
	e.int(int64(r.PromptAlternatives))
	e.uint(uint64(len(r.Sequences)))
	for _, s := range r.Sequences {
		e.bool(s.StoppedByLength)
		e.ints(s.Tokens)
		e.floats(s.Logprobs)
		e.top(s.Top)
	}
	return e.b
}

func decodeSampleResult(b []byte) (*SampleResult, error) {
	d := decoder{b: b}
	d.form(formSampleResult)
	r := &SampleResult{Prompt: plugins.PromptScores{
		Version: d.int(), CachedTokens: int(d.int()), Logprobs: d.floats(), Top: d.top(), Targets: d.floats(), AltTokens: d.ints(), AltLogprobs: d.floats(),
	}}
	r.PromptLength, r.TargetPromptTokens, r.TargetPromptK, r.TargetPromptSparse, r.PromptAlternatives = int(d.int()), d.ints(), int(d.int()), d.bool(), int(d.int())
	for range d.count() {
		r.Sequences = append(r.Sequences, SampledSequence{StoppedByLength: d.bool(), Tokens: d.ints(), Logprobs: d.floats(), Top: d.top()})
	}
	return r, d.end()
}
