package wire

import "github.com/tinsmith/tinsmith/gateway/internal/runs"

// About what a value takes that is encoded: in protobuf 4 bytes, and 8 if it is an index; in JSON a float32 with its comma, and an integer.
const (
	binaryFloat, binaryInteger = 4, 8
	textFloat, textInteger     = 20, 8
	recordBytes                = 128 // of a record, a metric or a sequence beside its values
)

// OutputBytes is about what the result of a pass takes that is encoded, known before it is.
func OutputBytes(result *runs.ForwardBackwardResult, asProtobuf bool) int64 {
	value, values := int64(textFloat), 0
	if asProtobuf {
		value = binaryFloat
	}
	for _, field := range outputs(result, 0, len(result.Logprobs)) {
		for _, x := range field.values {
			values += len(x)
		}
	}
	return value*int64(values) + recordBytes*int64(1+len(result.Logprobs)+len(result.Metrics))
}

// SampleBytes is about what the result of a sample takes that is encoded, known before it is.
func SampleBytes(r *runs.SampleResult, asProtobuf bool) int64 {
	floats, integers := len(r.Prompt.Logprobs)+len(r.Prompt.Top.Logprobs)+len(r.Prompt.Targets)+len(r.Prompt.AltLogprobs), len(r.Prompt.Top.IDs)+len(r.Prompt.AltTokens)
	if r.TargetPromptSparse {
		integers += len(r.Prompt.Targets) + r.PromptLength
	}
	for _, s := range r.Sequences {
		floats, integers = floats+len(s.Logprobs)+len(s.Top.Logprobs), integers+len(s.Tokens)+len(s.Top.IDs)
	}
	size := int64(recordBytes) * int64(1+len(r.Sequences))
	if asProtobuf {
		return size + binaryFloat*int64(floats) + binaryInteger*int64(integers)
	}
	return size + textFloat*int64(floats) + textInteger*int64(integers)
}
