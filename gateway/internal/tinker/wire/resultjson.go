package wire

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// The results of passes and samples for clients that do not take protobuf. They are written by hand: nearly everything in them are numbers. A float32 is written with the digits of the same float64, so
// that a client that has no float32 reads the very number that protobuf would give it. What JSON cannot say, NaN and infinity, becomes null.

// EncodeForwardBackwardOutputJSON writes what EncodeForwardBackwardOutput writes, as JSON: a record of tensors for each datum. A metric that is not finite is left out, since null is no metric to a client.
func EncodeForwardBackwardOutputJSON(result *runs.ForwardBackwardResult) ([]byte, error) {
	b := append(make([]byte, 0, OutputBytes(result, false)), `{"loss_fn_output_type":"ArrayRecord","loss_fn_outputs":[`...)
	for i := range result.Logprobs {
		b = append(separate(b, i), '{')
		for j, field := range outputs(result, i, i+1) {
			values := field.values[0]
			shape := []int64{int64(len(values))}
			if k := int64(result.K[i]); k > 0 {
				shape = []int64{shape[0] / k, k}
			}
			b = append(append(append(separate(b, j), '"'), field.name...), `":`...)
			b = appendTensor(b, values, shape)
		}
		b = append(b, '}')
	}
	b = append(b, `],"metrics":{`...)
	written := 0
	for _, name := range slices.Sorted(maps.Keys(result.Metrics)) {
		if value := result.Metrics[name]; !math.IsNaN(value) && !math.IsInf(value, 0) {
			quoted, err := json.Marshal(name)
			if err != nil {
				return nil, fmt.Errorf("encode forward_backward result: %w", err)
			}
			b = append(append(separate(b, written), quoted...), ':')
			b = strconv.AppendFloat(b, value, 'g', -1, 64)
			written++
		}
	}
	return append(b, "}}"...), nil
}

// EncodeSampleResponseJSON writes what EncodeSampleResponse writes, as JSON. What was not asked for is left out.
func EncodeSampleResponseJSON(r *runs.SampleResult) []byte {
	b := append(make([]byte, 0, SampleBytes(r, false)), `{"type":"sample","sequences":[`...)
	for i, s := range r.Sequences {
		reason := "stop"
		if s.StoppedByLength {
			reason = "length"
		}
		b = append(append(append(separate(b, i), `{"stop_reason":"`...), reason...), `","tokens":`...)
		b = append(appendIntegers(b, s.Tokens), `,"logprobs":`...)
		b = appendFloats(b, s.Logprobs)
		b = append(appendTop(b, "topk_logprobs", s.Top, len(s.Tokens)), '}')
	}
	b = append(b, ']')
	if r.Prompt.Logprobs != nil {
		b = appendFloats(append(b, `,"prompt_logprobs":`...), r.Prompt.Logprobs)
	}
	b = appendTop(b, "topk_prompt_logprobs", r.Prompt.Top, r.PromptLength)
	rows := int64(r.PromptLength - 1)
	if r.TargetPromptK > 0 {
		b = appendTargets(append(b, `,"target_prompt_logprobs":`...), r, rows)
	}
	if k := int64(r.PromptAlternatives); k > 0 {
		b = append(b, `,"prompt_alt_tokens":{"tokens":{"data":`...)
		b = appendTensorEnd(appendIntegers(b, r.Prompt.AltTokens), "int64", []int64{rows, k})
		b = append(b, `,"logprobs":`...)
		b = append(appendTensor(b, r.Prompt.AltLogprobs, []int64{rows, k}), '}')
	}
	b = strconv.AppendInt(append(b, `,"prompt_cache_hit_tokens":`...), int64(r.Prompt.CachedTokens), 10)
	return append(b, '}')
}

// unscored is the log-probability that fills up a row, beside token 0.
const unscored = -99999

// separate writes the comma before the element with number i.
func separate(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	return b
}

func appendIntegers[T int32 | int64](b []byte, values []T) []byte {
	b = append(b, '[')
	for i, v := range values {
		b = strconv.AppendInt(separate(b, i), int64(v), 10)
	}
	return append(b, ']')
}

func appendFloat(b []byte, v float32) []byte {
	if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return strconv.AppendFloat(b, f, 'g', -1, 64)
	}
	return append(b, "null"...)
}

func appendFloats(b []byte, values []float32) []byte {
	b = append(b, '[')
	for i, v := range values {
		b = appendFloat(separate(b, i), v)
	}
	return append(b, ']')
}

// appendTensor writes a dense tensor.
func appendTensor(b []byte, values []float32, shape []int64) []byte {
	return appendTensorEnd(appendFloats(append(b, `{"data":`...), values), "float32", shape)
}

// appendTensorEnd writes what comes after a tensor's data.
func appendTensorEnd(b []byte, dtype string, shape []int64) []byte {
	b = append(append(append(b, `,"dtype":"`...), dtype...), `","shape":`...)
	return append(appendIntegers(b, shape), '}')
}

// appendTop writes a field with pairs of token and log-probability for each of the rows. Rows without any are null, and what fills up a row that has fewer than K is left out.
func appendTop(b []byte, name string, top plugins.TopLogprobs, rows int) []byte {
	if top.K < 1 {
		return b
	}
	b = append(append(append(b, `,"`...), name...), `":[`...)
	for row := range rows {
		b = separate(b, row)
		ids, logprobs := top.IDs[row*top.K:(row+1)*top.K], top.Logprobs[row*top.K:(row+1)*top.K]
		held := top.K
		for held > 0 && ids[held-1] == 0 && logprobs[held-1] == unscored {
			held--
		}
		if held == 0 {
			b = append(b, "null"...)
			continue
		}
		b = append(b, '[')
		for i := range held {
			b = append(strconv.AppendInt(append(separate(b, i), '['), int64(ids[i]), 10), ',')
			b = append(appendFloat(b, logprobs[i]), ']')
		}
		b = append(b, ']')
	}
	return append(b, ']')
}

// appendTargets answers in the layout that was asked.
func appendTargets(b []byte, r *runs.SampleResult, rows int64) []byte {
	shape := []int64{rows, int64(r.TargetPromptK)}
	if !r.TargetPromptSparse {
		return appendTensor(b, r.Prompt.Targets, shape)
	}
	values, crow, col := sparseTargets(r, rows)
	b = append(appendFloats(append(b, `{"data":`...), values), `,"sparse_crow_indices":`...)
	b = append(appendIntegers(b, crow), `,"sparse_col_indices":`...)
	return appendTensorEnd(appendIntegers(b, col), "float32", shape)
}
