package wire

import (
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// decodeDatum translates one datum; i is its place in the request, whose tensors may have *left more elements.
func decodeDatum(i int, d *tinkerpb.Datum, left *int64) (runs.Datum, error) {
	prefix := fmt.Sprintf("data[%d].", i)
	out := runs.Datum{Inputs: make(map[string]runs.Tensor, len(d.GetLossFnInputs()))}
	for j, chunk := range d.GetModelInput() {
		field := fmt.Sprintf("%smodel_input.chunks[%d]", prefix, j)
		switch c := chunk.GetChunk().(type) {
		case *tinkerpb.Chunk_EncodedText:
			b := c.EncodedText.GetTokens()
			if len(b)%4 != 0 {
				return runs.Datum{}, fieldErrorf(field, "%d bytes of tokens are not a multiple of 4", len(b))
			}
			out.Tokens = append(out.Tokens, int32s(b)...)
		case *tinkerpb.Chunk_Image:
			return runs.Datum{}, unsupportedChunk(field, "image")
		case *tinkerpb.Chunk_Dmel:
			return runs.Datum{}, unsupportedChunk(field, "dmel")
		default:
			return runs.Datum{}, fieldErrorf(field, "unknown kind of chunk; allowed is encoded_text")
		}
	}
	for name, tensor := range d.GetLossFnInputs() {
		var err error
		if out.Inputs[name], err = decodeTensor(prefix+"loss_fn_inputs."+name, tensor, left); err != nil {
			return runs.Datum{}, err
		}
	}
	var err error
	if out.InputSpans, err = decodeSpans(prefix+"model_input_spans", d.GetModelInputSpans()); err != nil {
		return runs.Datum{}, err
	}
	out.LossSpans, err = decodeSpans(prefix+"loss_fn_input_spans", d.GetLossFnInputSpans())
	return out, err
}

// unsupportedChunk refuses what is not text, in the same words for training and sampling.
func unsupportedChunk(field, kind string) error {
	return fieldErrorf(field, "%s chunks are not supported: the served models read text; allowed is encoded_text", kind)
}

// checkChunkType refuses a JSON chunk that is not text. The oldest clients leave the type out.
func checkChunkType(field, kind string) error {
	switch kind {
	case "encoded_text", "":
		return nil
	case "image", "image_asset_pointer", "dmel":
		return unsupportedChunk(field, kind)
	}
	return fieldErrorf(field+".type", "%.40q is unknown; allowed is encoded_text", kind)
}

func decodeSpans(field string, spans []*tinkerpb.ProvenanceSpan) ([]runs.Span, error) {
	var out []runs.Span
	for i, s := range spans {
		switch span := s.GetSpan().(type) {
		case *tinkerpb.ProvenanceSpan_PromptTokens:
			p := span.PromptTokens
			out = append(out, runs.Span{SequenceID: p.GetSequenceId(), Offset: p.GetOffset(), Length: p.GetLength()})
		case *tinkerpb.ProvenanceSpan_SampledTokens:
			p := span.SampledTokens
			out = append(out, runs.Span{Sampled: true, SequenceID: p.GetSequenceId(), Offset: p.GetOffset(), Length: p.GetLength()})
		default:
			return nil, fieldErrorf(fmt.Sprintf("%s[%d]", field, i), "must be prompt_tokens or sampled_tokens")
		}
	}
	return out, nil
}
