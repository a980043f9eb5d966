package wire

import (
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
	"github.com/tinsmith/tinsmith/plugins"
)

// Span says where a run of positions of a datum comes from: from the prompt of a sampled sequence's request, or from what was sampled.
type Span struct {
	SequenceID     string
	Sampled        bool
	Offset, Length int64
}

// Datum is a training sequence with the provenance of its positions; both span lists are empty when the client sent none.
type Datum struct {
	plugins.Datum
	InputSpans  []Span // tile Tokens
	TargetSpans []Span // tile the rows of Targets
}

// maxDatumTokens bounds one datum before the model's own context limit is known.
const maxDatumTokens = 4 << 20

// decodeDatum translates one datum; i is its place in the request.
func decodeDatum(i int, d *tinkerpb.Datum) (Datum, error) {
	at := func(name string) string { return indexed("data[%d].", i) + name }
	var out Datum
	for j, chunk := range d.GetModelInput() {
		field := at(indexed("model_input.chunks[%d]", j))
		switch c := chunk.GetChunk().(type) {
		case *tinkerpb.Chunk_EncodedText:
			b := c.EncodedText.GetTokens()
			if len(b)%4 != 0 {
				return Datum{}, fieldError(field, "%d bytes of tokens are not a multiple of 4", len(b))
			}
			out.Tokens = append(out.Tokens, int32s(b)...)
		case *tinkerpb.Chunk_Image:
			return Datum{}, fieldError(field, "image chunks are not supported: the model reads text tokens only")
		case *tinkerpb.Chunk_Dmel:
			return Datum{}, fieldError(field, "audio (dmel) chunks are not supported: the model reads text tokens only")
		default:
			return Datum{}, fieldError(field, "unknown kind of chunk, allowed is encoded_text")
		}
		if len(out.Tokens) > maxDatumTokens {
			return Datum{}, fieldError(at("model_input"), "more than %d tokens", maxDatumTokens)
		}
	}
	if len(out.Tokens) == 0 {
		return Datum{}, fieldError(at("model_input"), "has no tokens")
	}
	if err := decodeInputs(at, d.GetLossFnInputs(), &out); err != nil {
		return Datum{}, err
	}
	var err error
	if out.InputSpans, err = decodeSpans(at("model_input_spans"), d.GetModelInputSpans(), len(out.Tokens)); err != nil {
		return Datum{}, err
	}
	if out.TargetSpans, err = decodeSpans(at("loss_fn_input_spans"), d.GetLossFnInputSpans(), len(out.Targets)/out.K); err != nil {
		return Datum{}, err
	}
	if (len(out.InputSpans) == 0) != (len(out.TargetSpans) == 0) {
		return Datum{}, fieldError(at("model_input_spans"), "model_input_spans and loss_fn_input_spans must be given together")
	}
	return out, nil
}

func decodeInputs(at func(string) string, inputs map[string]*tinkerpb.Tensor, out *Datum) error {
	n := int64(len(out.Tokens))
	key := func(name string) string { return at("loss_fn_inputs." + name) }
	targets, ok := inputs["target_tokens"]
	if !ok {
		return fieldError(key("target_tokens"), "is required")
	}
	a, err := decodeTensor(key("target_tokens"), targets)
	if err != nil {
		return err
	}
	if len(a.shape) > 2 || a.shape[0] != n || len(a.shape) == 2 && a.shape[1] < 1 {
		return fieldError(key("target_tokens"), "shape %v does not fit %d input positions: allowed are (N) and (N, K)", a.shape, n)
	}
	if out.Targets, err = a.asTokens(key("target_tokens")); err != nil {
		return err
	}
	out.K = len(out.Targets) / int(n)
	for name, t := range inputs {
		if name == "target_tokens" {
			continue
		}
		field := key(name)
		var into *[]float32
		switch name {
		case "weights":
			into = &out.Weights
		case "logprobs":
			into = &out.Logprobs
		case "advantages":
			into = &out.Advantages
		case "sequence_ratio_mask":
			into = &out.SequenceRatioMask
		default:
			return fieldError(field, "unknown loss input, allowed are target_tokens, weights, logprobs, advantages, sequence_ratio_mask")
		}
		b, err := decodeTensor(field, t)
		if err != nil {
			return err
		}
		want := []int64{n}
		if name == "weights" && len(a.shape) == 2 {
			want = a.shape
		}
		if !equal(b.shape, want) {
			return fieldError(field, "shape %v, but target_tokens of shape %v need %v", b.shape, a.shape, want)
		}
		if *into, err = b.asFloats(field); err != nil {
			return err
		}
	}
	return nil
}

func equal(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// decodeSpans checks that spans tile rows exactly, in order.
func decodeSpans(field string, spans []*tinkerpb.ProvenanceSpan, rows int) ([]Span, error) {
	if len(spans) == 0 {
		return nil, nil
	}
	out := make([]Span, len(spans))
	covered := int64(0)
	for i, s := range spans {
		switch span := s.GetSpan().(type) {
		case *tinkerpb.ProvenanceSpan_PromptTokens:
			out[i] = Span{span.PromptTokens.GetSequenceId(), false, span.PromptTokens.GetOffset(), span.PromptTokens.GetLength()}
		case *tinkerpb.ProvenanceSpan_SampledTokens:
			out[i] = Span{span.SampledTokens.GetSequenceId(), true, span.SampledTokens.GetOffset(), span.SampledTokens.GetLength()}
		default:
			return nil, fieldError(indexed(field+"[%d]", i), "must be prompt_tokens or sampled_tokens")
		}
		if out[i].Offset < 0 || out[i].Length < 0 || out[i].Offset > maxDatumTokens || out[i].Length > maxDatumTokens {
			return nil, fieldError(indexed(field+"[%d]", i), "offset %d and length %d must be from 0 to %d", out[i].Offset, out[i].Length, maxDatumTokens)
		}
		covered += out[i].Length
	}
	if covered != int64(rows) {
		return nil, fieldError(field, "spans cover %d positions of %d", covered, rows)
	}
	return out, nil
}
