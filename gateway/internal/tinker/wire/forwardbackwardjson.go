package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// Pass says which of the two JSON bodies of a pass is read.
type Pass string

const (
	ForwardBackward Pass = "forward_backward_input"
	Forward         Pass = "forward_input"
)

// DecodeForwardBackwardJSON reads a body as the SDK wrote it before protobuf, and as a client without the SDK writes it. It gives what DecodeForwardBackward gives for the same request in protobuf, under the same
// bounds: the text becomes the protobuf message, and everything after that is the same. take and the error are as there.
func DecodeForwardBackwardJSON(body []byte, pass Pass, take func(int64) error) (runs.ForwardBackward, error) {
	if !json.Valid(body) {
		return runs.ForwardBackward{}, fmt.Errorf("body: not valid JSON: %w", json.Unmarshal(body, &json.RawMessage{}))
	}
	if len(body) > smallBytes {
		// A number takes two bytes of the text at least and eight afterwards.
		if err := take(copies * max(int64(len(body)), 8*int64(bytes.Count(body, []byte{','})))); err != nil {
			return runs.ForwardBackward{}, err
		}
	}
	d := passDecoder{take: take}
	var input []byte
	top := jsonReader{body}
	err := top.object("body", func(name string) error {
		switch name {
		case "model_id":
			return d.optional(&top, func() (err error) { d.m.ModelId, err = top.text(name); return err })
		case "seq_id":
			return d.optional(&top, func() error {
				seq, err := top.integer(1, math.MaxInt32)
				d.m.SeqId = int32(seq)
				return in(err, name)
			})
		case "forward_only":
			return d.optional(&top, func() error {
				value, err := top.expect(name, "tf", "true or false")
				d.m.ForwardOnly = len(value) == len("true")
				return err
			})
		case string(pass):
			input = top.raw()
		default:
			top.raw()
		}
		return nil
	})
	if err != nil {
		return runs.ForwardBackward{}, err
	}
	d.m.ForwardOnly = d.m.ForwardOnly || pass == Forward
	if input == nil {
		return fromMessage(&d.m, fieldErrorf(string(pass), "is required"), take)
	}
	err = d.input(jsonReader{input}, pass)
	var refused *FieldError
	if err != nil && !errors.As(err, &refused) {
		return runs.ForwardBackward{}, err // there is no memory
	}
	return fromMessage(&d.m, err, take)
}

// passDecoder makes the message.
type passDecoder struct {
	m     tinkerpb.ForwardBackwardRequest
	take  func(int64) error
	parts int // so far
}

// claimedParts is how many parts memory is asked for at once.
const claimedParts = 1024

// part counts a part of the message.
func (d *passDecoder) part() error {
	d.parts++
	if d.parts > maxParts {
		return errTooManyParts
	}
	if d.parts%claimedParts == 0 {
		return d.take(claimedParts * partBytes)
	}
	return nil
}

// optional reads a value unless it is null, which is as good as none.
func (d *passDecoder) optional(r *jsonReader, read func() error) error {
	if r.null() {
		return nil
	}
	return read()
}

func (d *passDecoder) input(r jsonReader, pass Pass) error {
	return r.object(string(pass), func(name string) error {
		switch name {
		case "loss_fn":
			return d.optional(&r, func() (err error) { d.m.LossFn, err = r.text(name); return err })
		case "loss_fn_config":
			return d.optional(&r, func() error { return d.config(&r) })
		case "data":
			d.m.Data = nil // of a name that comes twice the last value counts, as in protobuf
			return r.list(name, func(i int) error {
				d.m.Data = append(d.m.Data, &tinkerpb.Datum{LossFnInputs: map[string]*tinkerpb.Tensor{}})
				if err := d.part(); err != nil {
					return err
				}
				return d.datum(&r, fmt.Sprintf("data[%d]", i), d.m.Data[i])
			})
		}
		r.raw()
		return nil
	})
}

// config reads the settings of a loss: numbers, and texts as newer clients have them.
func (d *passDecoder) config(r *jsonReader) error {
	const field = "loss_fn_config"
	d.m.LossFnConfigV2 = map[string]*tinkerpb.LossConfigValue{}
	return r.object(field, func(name string) error {
		if err := d.part(); err != nil {
			return err
		}
		if r.kind() == '"' {
			text, err := r.text(field)
			d.m.LossFnConfigV2[name] = &tinkerpb.LossConfigValue{Value: &tinkerpb.LossConfigValue_Text{Text: text}}
			return err
		}
		number, err := r.float()
		d.m.LossFnConfigV2[name] = &tinkerpb.LossConfigValue{Value: &tinkerpb.LossConfigValue_Number{Number: number}}
		return in(err, field+"."+name)
	})
}

func (d *passDecoder) datum(r *jsonReader, field string, out *tinkerpb.Datum) error {
	return r.object(field, func(name string) error {
		field := field + "." + name
		switch name {
		case "model_input":
			return r.object(field, func(name string) error {
				if name != "chunks" {
					r.raw()
					return nil
				}
				out.ModelInput = nil
				return r.list(field+".chunks", func(i int) error {
					if err := d.part(); err != nil {
						return err
					}
					chunk, err := d.chunk(r, fmt.Sprintf("%s.chunks[%d]", field, i))
					out.ModelInput = append(out.ModelInput, chunk)
					return err
				})
			})
		case "loss_fn_inputs":
			return r.object(field, func(name string) error {
				if err := d.part(); err != nil {
					return err
				}
				tensor, err := d.tensor(r, field+"."+name)
				out.LossFnInputs[name] = tensor
				return err
			})
		}
		r.raw()
		return nil
	})
}

// chunk reads a chunk. The oldest clients leave out the type, and have nothing but text then.
func (d *passDecoder) chunk(r *jsonReader, field string) (*tinkerpb.Chunk, error) {
	kind := "encoded_text"
	var tokens []byte
	err := r.object(field, func(name string) error {
		switch name {
		case "type":
			return d.optional(r, func() (err error) { kind, err = r.text(field + ".type"); return err })
		case "tokens":
			tokens = r.raw() // of an image it is a number
		default:
			r.raw()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := checkChunkType(field, kind); err != nil {
		return nil, err
	}
	if tokens == nil {
		return nil, fieldErrorf(field+".tokens", "is required")
	}
	var out []byte
	list := jsonReader{tokens}
	err = list.integers(field+".tokens", math.MinInt32, math.MaxInt32, func(v int64) { out = binary.LittleEndian.AppendUint32(out, uint32(v)) })
	return &tinkerpb.Chunk{Chunk: &tinkerpb.Chunk_EncodedText{EncodedText: &tinkerpb.EncodedTextChunk{Tokens: out}}}, err
}

// tensor reads a tensor, dense or sparse.
func (d *passDecoder) tensor(r *jsonReader, field string) (*tinkerpb.Tensor, error) {
	out := &tinkerpb.Tensor{}
	var data, dtype, crow, col []byte
	err := r.object(field, func(name string) error {
		if r.null() {
			return nil
		}
		switch name {
		case "data":
			data = r.raw()
		case "dtype":
			dtype = r.raw()
		case "sparse_crow_indices":
			crow = r.raw()
		case "sparse_col_indices":
			col = r.raw()
		case "shape":
			var dimensions error
			out.Shape = nil
			err := r.integers(field+".shape", math.MinInt64, math.MaxInt64, func(v int64) {
				if dimensions == nil {
					dimensions = d.part()
					out.Shape = append(out.Shape, v)
				}
			})
			return errors.Join(dimensions, err)
		default:
			r.raw()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, fieldErrorf(field+".data", "is required")
	}
	var values []byte
	numbers := jsonReader{data}
	switch string(dtype) {
	case `"float32"`:
		out.Dtype = tinkerpb.DType_DTYPE_FLOAT32
		err = numbers.float32s(field+".data", func(v float32) { values = binary.LittleEndian.AppendUint32(values, math.Float32bits(v)) })
	case `"int64"`:
		out.Dtype = tinkerpb.DType_DTYPE_INT64
		values, err = indices(data, field+".data")
	case "":
		err = fieldErrorf(field+".dtype", "is required: float32 or int64")
	default:
		err = fieldErrorf(field+".dtype", "%.40s is not one of float32, int64", dtype)
	}
	if err != nil {
		return nil, err
	}
	if crow == nil && col == nil {
		out.Encoding = &tinkerpb.Tensor_Dense{Dense: values}
		return out, nil
	}
	sparse := &tinkerpb.SparseCsr{Values: values}
	if sparse.CrowIndices, err = indices(crow, field+".sparse_crow_indices"); err != nil {
		return nil, err
	}
	if sparse.ColIndices, err = indices(col, field+".sparse_col_indices"); err != nil {
		return nil, err
	}
	out.Encoding = &tinkerpb.Tensor_SparseCsr{SparseCsr: sparse}
	return out, nil
}

// indices gives the bytes of a list of 64-bit integers.
func indices(list []byte, field string) ([]byte, error) {
	if list == nil {
		return nil, fieldErrorf(field, "is required for a sparse tensor")
	}
	var out []byte
	r := jsonReader{list}
	err := r.integers(field, math.MinInt64, math.MaxInt64, func(v int64) { out = binary.LittleEndian.AppendUint64(out, uint64(v)) })
	return out, err
}
