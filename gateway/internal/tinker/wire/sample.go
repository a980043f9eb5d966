package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"

	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
	"github.com/tinsmith/tinsmith/plugins"
)

// SampleRequest is the body of asample.
type SampleRequest struct {
	SamplingSessionID    string          `json:"sampling_session_id"`
	SeqID                *int64          `json:"seq_id"`
	NumSamples           *int            `json:"num_samples"`
	Prompt               ModelInput      `json:"prompt"`
	SamplingParams       SamplingParams  `json:"sampling_params"`
	PromptLogprobs       bool            `json:"prompt_logprobs"`
	TopKPromptLogprobs   int             `json:"topk_prompt_logprobs"`
	TopKSampleLogprobs   int             `json:"topk_sample_logprobs"`
	TargetPromptLogprobs *JSONTensor     `json:"target_prompt_logprobs"`
	PromptAltTokensK     int             `json:"prompt_alt_tokens_k"`
	PromptLogprobsLastN  *int            `json:"prompt_logprobs_last_n"`
	RecordStabilityInfo  bool            `json:"record_stability_info"` // every sample is recorded, so nothing more is to be done
	BaseModel            json.RawMessage `json:"base_model"`            // never sent by the SDK: the sampling session says which weights
	ModelPath            json.RawMessage `json:"model_path"`
}

// ModelInput is a prompt in chunks.
type ModelInput struct {
	Chunks []JSONChunk `json:"chunks"`
}

// JSONChunk is one chunk; only text has tokens.
type JSONChunk struct {
	Type   string          `json:"type"`
	Tokens json.RawMessage `json:"tokens"`
}

// SamplingParams are the JSON sampling parameters.
type SamplingParams struct {
	MaxTokens   *int            `json:"max_tokens"`
	Seed        json.RawMessage `json:"seed"`
	Stop        json.RawMessage `json:"stop"`
	Temperature *float64        `json:"temperature"`
	TopK        *int            `json:"top_k"`
	TopP        *float64        `json:"top_p"`
}

// JSONTensor is a tensor of token ids in JSON, dense or sparse.
type JSONTensor struct {
	Data      []int64
	DType     string
	Shape     []int64
	Crow, Col []int64 // nil where it is dense
}

// UnmarshalJSON reads a tensor in which null is no number.
func (t *JSONTensor) UnmarshalJSON(text []byte) error {
	const field = "target_prompt_logprobs"
	lists := map[string]*[]int64{"data": &t.Data, "shape": &t.Shape, "sparse_crow_indices": &t.Crow, "sparse_col_indices": &t.Col}
	r := jsonReader{text}
	return r.object(field, func(name string) error {
		if r.null() {
			return nil
		}
		if name == "dtype" {
			var err error
			t.DType, err = r.text(field + ".dtype")
			return err
		}
		list := lists[name]
		if list == nil {
			r.raw()
			return nil
		}
		*list = []int64{}
		return r.integers(field+"."+name, math.MinInt64, math.MaxInt64, func(v int64) { *list = append(*list, v) })
	})
}

// Tokens joins the chunks; adjacent ones mean the same as one.
func (m ModelInput) Tokens() ([]int32, error) {
	var out []int32
	for i, c := range m.Chunks {
		field := fmt.Sprintf("prompt.chunks[%d]", i)
		if err := checkChunkType(field, c.Type); err != nil {
			return nil, err
		}
		if !given(c.Tokens) {
			return nil, fieldErrorf(field+".tokens", "is required")
		}
		list := jsonReader{c.Tokens}
		if err := list.integers(field+".tokens", math.MinInt32, math.MaxInt32, func(v int64) { out = append(out, int32(v)) }); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, fieldErrorf("prompt", "has no tokens")
	}
	return out, nil
}

// Sample translates the request; the owner is left empty.
func (r *SampleRequest) Sample() (runs.Sample, error) {
	if r.SamplingSessionID == "" {
		return runs.Sample{}, fieldErrorf("sampling_session_id", "is required")
	}
	for name, value := range map[string]json.RawMessage{"base_model": r.BaseModel, "model_path": r.ModelPath} {
		if given(value) {
			return runs.Sample{}, fieldErrorf(name, "is not allowed here: the sampling session names the weights")
		}
	}
	prompt, err := r.Prompt.Tokens()
	if err != nil {
		return runs.Sample{}, err
	}
	out := runs.Sample{
		SamplerID: r.SamplingSessionID, Unnumbered: r.SeqID == nil, Prompt: prompt, NumSamples: 1, PromptLogprobs: r.PromptLogprobs,
		TopKPromptLogprobs: r.TopKPromptLogprobs, TopKSampledLogprobs: r.TopKSampleLogprobs, PromptAlternatives: r.PromptAltTokensK,
	}
	if r.SeqID != nil {
		out.Seq = *r.SeqID
	}
	if r.NumSamples != nil {
		out.NumSamples = *r.NumSamples
	}
	if r.PromptLogprobsLastN != nil {
		if out.PromptLogprobsLastN = *r.PromptLogprobsLastN; out.PromptLogprobsLastN < 1 {
			return runs.Sample{}, fieldErrorf("prompt_logprobs_last_n", "%d is less than 1", out.PromptLogprobsLastN)
		}
	}
	if out.Params, err = r.SamplingParams.params(); err != nil {
		return runs.Sample{}, err
	}
	if t := r.TargetPromptLogprobs; t != nil {
		if out.TargetPromptTokens, err = t.targets(int64(len(prompt) - 1)); err != nil {
			return runs.Sample{}, err
		}
		out.TargetPromptK, out.TargetPromptSparse = int(t.Shape[1]), t.Crow != nil
	}
	return out, nil
}

// targets gives the wanted token of every cell, -1 where nothing is asked.
func (t *JSONTensor) targets(rows int64) ([]int32, error) {
	const field = "target_prompt_logprobs"
	if t.DType != "int64" && t.DType != "" {
		return nil, fieldErrorf(field+".dtype", "%.40q is not int64", t.DType)
	}
	n, err := elements(field, t.Shape)
	if err != nil {
		return nil, err
	}
	if len(t.Shape) != 2 || t.Shape[0] != rows || t.Shape[1] < 1 {
		return nil, fieldErrorf(field+".shape", "%v is not [%d, K] (one row per prompt position after the first)", t.Shape, rows)
	}
	for i, v := range t.Data {
		if v < -1 || v > math.MaxInt32 || v == -1 && t.Crow != nil {
			return nil, fieldErrorf(fmt.Sprintf("%s.data[%d]", field, i), "%d is not a token id", v)
		}
	}
	out := make([]int32, n)
	if t.Crow == nil && t.Col == nil {
		if int64(len(t.Data)) != n {
			return nil, fieldErrorf(field+".data", "%d elements do not fill shape %v", len(t.Data), t.Shape)
		}
		for i, v := range t.Data {
			out[i] = int32(v)
		}
		return out, nil
	}
	for i := range out {
		out[i] = -1
	}
	err = sparseRows(field, t.Shape[0], t.Shape[1], t.Crow, t.Col, len(t.Data), func(value int, cell int64) { out[cell] = int32(t.Data[value]) })
	return out, err
}

func given(raw json.RawMessage) bool { return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) }

func (p *SamplingParams) params() (runs.SamplingParams, error) {
	out := runs.SamplingParams{MaxTokens: p.MaxTokens, Temperature: 1, TopK: -1, TopP: 1}
	if p.Temperature != nil {
		out.Temperature = *p.Temperature
	}
	if p.TopK != nil {
		out.TopK = *p.TopK
	}
	if p.TopP != nil {
		out.TopP = *p.TopP
	}
	var err error
	if out.Seed, err = ParseSeed("sampling_params.seed", p.Seed); err != nil {
		return out, err
	}
	out.Stops, err = ParseStops("sampling_params.stop", p.Stop)
	return out, err
}

// ParseSeed takes an integer of at most 64 bits, modulo 2^64, so that negative seeds work as well; nil if it is absent or null.
func ParseSeed(field string, raw json.RawMessage) (*uint64, error) {
	if !given(raw) {
		return nil, nil
	}
	const digits = 40 // enough for 64 bits; reading millions of them would take minutes
	n, ok := new(big.Int).SetString(string(raw[:min(len(raw), digits)]), 10)
	if !ok || n.BitLen() > 64 {
		return nil, fieldErrorf(field, "%.40s is not a 64-bit integer", raw)
	}
	seed := n.Uint64()
	if n.Sign() < 0 {
		seed = -seed
	}
	return &seed, nil
}

// maxStops bounds the stop strings or tokens of one request.
const maxStops = 1024

// ParseStops reads the forms of `stop`: absent or null (the model's own end), a string, a list of strings, a list of token ids, [] (no stop at all).
func ParseStops(field string, raw json.RawMessage) (runs.Stops, error) {
	if !given(raw) {
		return runs.Stops{}, nil
	}
	out := runs.Stops{Given: true}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		out.Strings = []string{text}
	} else if json.Unmarshal(raw, &out.Strings) != nil {
		out.Strings = nil
		list := jsonReader{raw}
		if !json.Valid(raw) || list.integers(field, math.MinInt32, math.MaxInt32, func(v int64) { out.Tokens = append(out.Tokens, int32(v)) }) != nil {
			return runs.Stops{}, fieldErrorf(field, "must be a string, a list of strings or a list of token ids")
		}
	}
	if len(out.Strings) > maxStops || len(out.Tokens) > maxStops {
		return runs.Stops{}, fieldErrorf(field, "more than %d entries", maxStops)
	}
	for i, s := range out.Strings {
		if s == "" || len(s) > 4096 {
			return runs.Stops{}, fieldErrorf(fmt.Sprintf("%s[%d]", field, i), "a stop string has 1 to 4096 bytes")
		}
	}
	return out, nil
}

// EncodeSampleResponse writes the protobuf result.
func EncodeSampleResponse(r *runs.SampleResult) ([]byte, error) {
	out := &tinkerpb.SampleResponse{PromptCacheHitTokens: int32(r.Prompt.CachedTokens)}
	for _, s := range r.Sequences {
		sequence := &tinkerpb.SampledSequence{Tokens: bytesOfInt32s(s.Tokens), Logprobs: bytesOfFloat32s(s.Logprobs)}
		if s.StoppedByLength {
			sequence.StopReason = tinkerpb.StopReason_STOP_REASON_LENGTH
		}
		sequence.TopkSampledLogprobs = encodeTop(s.Top, len(s.Tokens))
		out.Sequences = append(out.Sequences, sequence)
	}
	if r.Prompt.Logprobs != nil {
		out.PromptLogprobs = bytesOfFloat32s(r.Prompt.Logprobs)
	}
	out.TopkPromptLogprobs = encodeTop(r.Prompt.Top, r.PromptLength)
	rows := int64(r.PromptLength - 1)
	if r.TargetPromptK > 0 {
		out.TargetPromptLogprobs = encodeTargets(r, rows)
	}
	if k := int64(r.PromptAlternatives); k > 0 {
		tokens := make([]int64, len(r.Prompt.AltTokens))
		for i, t := range r.Prompt.AltTokens {
			tokens[i] = int64(t)
		}
		out.PromptAltTokens = &tinkerpb.PromptAltTokens{
			Tokens:   &tinkerpb.Tensor{Encoding: &tinkerpb.Tensor_Dense{Dense: bytesOfInt64s(tokens)}, Dtype: tinkerpb.DType_DTYPE_INT64, Shape: []int64{rows, k}},
			Logprobs: &tinkerpb.Tensor{Encoding: &tinkerpb.Tensor_Dense{Dense: bytesOfFloat32s(r.Prompt.AltLogprobs)}, Dtype: tinkerpb.DType_DTYPE_FLOAT32, Shape: []int64{rows, k}},
		}
	}
	b, err := proto.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode sample result: %w", err)
	}
	return b, nil
}

func encodeTop(top plugins.TopLogprobs, rows int) *tinkerpb.TopkLogprobs {
	if top.K < 1 {
		return nil
	}
	return &tinkerpb.TopkLogprobs{TokenIds: bytesOfInt32s(top.IDs), Logprobs: bytesOfFloat32s(top.Logprobs), K: uint32(top.K), Length: uint32(rows)}
}

// encodeTargets answers in the layout that was asked: dense, or sparse with the same cells.
func encodeTargets(r *runs.SampleResult, rows int64) *tinkerpb.Tensor {
	k := int64(r.TargetPromptK)
	out := &tinkerpb.Tensor{Dtype: tinkerpb.DType_DTYPE_FLOAT32, Shape: []int64{rows, k}}
	if !r.TargetPromptSparse {
		out.Encoding = &tinkerpb.Tensor_Dense{Dense: bytesOfFloat32s(r.Prompt.Targets)}
		return out
	}
	values, crow, col := sparseTargets(r, rows)
	out.Encoding = &tinkerpb.Tensor_SparseCsr{SparseCsr: &tinkerpb.SparseCsr{Values: bytesOfFloat32s(values), CrowIndices: bytesOfInt64s(crow), ColIndices: bytesOfInt64s(col)}}
	return out
}

// sparseTargets gives the answers of the cells that ask for one.
func sparseTargets(r *runs.SampleResult, rows int64) (values []float32, crow, col []int64) {
	k := int64(r.TargetPromptK)
	crow = []int64{0}
	for row := range rows {
		for j := range k {
			if r.TargetPromptTokens[row*k+j] >= 0 {
				values = append(values, r.Prompt.Targets[row*k+j])
				col = append(col, j)
			}
		}
		crow = append(crow, int64(len(values)))
	}
	return values, crow, col
}
