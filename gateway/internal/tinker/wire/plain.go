package wire

import (
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// Most passes are plain: text and dense tensors, every field once, nothing wrong with them. They are read from their bytes at once, in a quarter of the time that messages in between take.
// Whatever else protobuf allows is left to the messages, and so is saying what is wrong: decodePlain gives what they would give, or nothing.

// The fields of a plain request, as tags: the number, and the kind in the lowest three bits.
const (
	plainVarint = uint64(protowire.VarintType)
	plainEight  = uint64(protowire.Fixed64Type)
	plainBytes  = uint64(protowire.BytesType)

	requestModel       = 1<<3 | plainBytes
	requestSeq         = 2<<3 | plainVarint
	requestData        = 3<<3 | plainBytes
	requestLoss        = 4<<3 | plainBytes
	requestConfig      = 5<<3 | plainBytes
	requestForwardOnly = 6<<3 | plainVarint

	datumChunks = 1<<3 | plainBytes
	datumInputs = 2<<3 | plainBytes

	chunkText  = 1<<3 | plainBytes
	textTokens = 1<<3 | plainBytes

	plainKey      = 1<<3 | plainBytes // of every map
	plainTensor   = 2<<3 | plainBytes
	plainSetting  = 2<<3 | plainEight
	denseData     = 1<<3 | plainBytes
	denseDType    = 3<<3 | plainVarint
	denseShape    = 4<<3 | plainBytes // packed
	plainTagLimit = 8 << 3
)

// plainReader goes through the fields of a message.
type plainReader struct {
	rest   []byte
	tag    uint64 // of the field
	number uint64 // its value, if it is a number
	bytes  []byte // its value, if it has a length
	seen   uint64 // the fields that may come once and have come
	odd    bool   // this is for the messages
}

// next reads a field; false at the end, or where it is odd.
func (r *plainReader) next() bool {
	if r.odd || len(r.rest) == 0 {
		return false
	}
	var n, m int
	if r.tag, n = protowire.ConsumeVarint(r.rest); n < 0 || r.tag >= plainTagLimit {
		return r.leave()
	}
	switch r.tag & 7 {
	case plainVarint:
		r.number, m = protowire.ConsumeVarint(r.rest[n:])
	case plainEight:
		r.number, m = protowire.ConsumeFixed64(r.rest[n:])
	case plainBytes:
		r.bytes, m = protowire.ConsumeBytes(r.rest[n:])
	default:
		return r.leave()
	}
	if m < 0 {
		return r.leave()
	}
	r.rest = r.rest[n+m:]
	return true
}

// leave leaves everything to the messages.
func (r *plainReader) leave() bool {
	r.odd = true
	return false
}

// once says that the field is one that may come once.
func (r *plainReader) once() *plainReader {
	bit := uint64(1) << r.tag
	r.odd = r.odd || r.seen&bit != 0
	r.seen |= bit
	return r
}

// text is the value of a field.
func (r *plainReader) text() string {
	r.odd = r.odd || !utf8.Valid(r.bytes)
	return string(r.bytes)
}

// decodePlain is DecodeForwardBackward for a plain body of not too many parts. ok = false: it is not plain.
func decodePlain(body []byte) (op runs.ForwardBackward, ok bool) {
	op.Config = map[string]float64{}
	total := 0
	r := plainReader{rest: body}
	for r.next() {
		switch r.tag {
		case requestModel:
			op.RunID = r.once().text()
		case requestSeq:
			op.Seq = int64(r.once().number)
		case requestData:
			datum, elements, ok := plainDatum(r.bytes)
			if total += elements; !ok || total > maxElements {
				return op, false
			}
			op.Data = append(op.Data, datum)
		case requestLoss:
			op.Loss = r.once().text()
		case requestConfig:
			name, value, ok := plainEntry(r.bytes, plainSetting)
			if _, twice := op.Config[name]; twice || !ok {
				return op, false
			}
			op.Config[name] = math.Float64frombits(value.number)
		case requestForwardOnly:
			op.ForwardOnly = protowire.DecodeBool(r.once().number)
		default:
			return op, false
		}
	}
	op.Unnumbered = op.Seq == 0
	return op, !r.odd && op.RunID != "" && op.Seq >= 0 && op.Seq <= math.MaxInt32
}

// plainDatum reads a datum, and counts the elements of its tensors.
func plainDatum(b []byte) (out runs.Datum, elements int, ok bool) {
	out.Inputs = map[string]runs.Tensor{}
	r := plainReader{rest: b}
	for r.next() {
		switch r.tag {
		case datumChunks:
			tokens, ok := plainText(r.bytes)
			if !ok {
				return out, 0, false
			}
			out.Tokens = slices.Grow(out.Tokens, len(tokens)/4)
			for ; len(tokens) > 0; tokens = tokens[4:] {
				out.Tokens = append(out.Tokens, int32(binary.LittleEndian.Uint32(tokens)))
			}
		case datumInputs:
			name, value, ok := plainEntry(r.bytes, plainTensor)
			if _, twice := out.Inputs[name]; twice || !ok {
				return out, 0, false
			}
			tensor, ok := denseTensor(value.bytes)
			if !ok {
				return out, 0, false
			}
			out.Inputs[name] = tensor
			elements += len(tensor.Floats) + len(tensor.Ints)
		default:
			return out, 0, false
		}
	}
	return out, elements, !r.odd
}

// plainEntry reads an entry of a map whose value has that tag; its reader stands at the value.
func plainEntry(b []byte, tag uint64) (name string, value plainReader, ok bool) {
	r := plainReader{rest: b}
	if !r.next() || r.tag != plainKey {
		return "", r, false
	}
	name = r.text()
	ok = r.next() && r.tag == tag && len(r.rest) == 0
	return name, r, ok
}

// plainText gives the bytes of a chunk's tokens.
func plainText(b []byte) (tokens []byte, ok bool) {
	chunk := plainReader{rest: b}
	if !chunk.next() || chunk.tag != chunkText || len(chunk.rest) > 0 {
		return nil, false
	}
	text := plainReader{rest: chunk.bytes}
	for text.next() {
		if text.once().tag != textTokens {
			return nil, false
		}
		tokens = text.bytes
	}
	return tokens, !text.odd && len(tokens)%4 == 0
}

// denseTensor reads a dense tensor whose shape fits its bytes.
func denseTensor(b []byte) (out runs.Tensor, ok bool) {
	var data, shape []byte
	var dtype uint64
	r := plainReader{rest: b}
	for r.next() {
		switch r.once().tag {
		case denseData:
			data = r.bytes
		case denseDType:
			dtype = r.number
		case denseShape:
			shape = r.bytes
		default:
			return out, false
		}
	}
	size := 4
	if dtype == uint64(tinkerpb.DType_DTYPE_INT64) {
		size = 8
	} else if dtype != uint64(tinkerpb.DType_DTYPE_FLOAT32) {
		return out, false
	}
	dimensions := make([]int, 0, 2) // seldom more
	elements := uint64(1)
	for len(shape) > 0 {
		d, n := protowire.ConsumeVarint(shape)
		if n < 0 || d > maxElements || elements*d > maxElements || len(dimensions) == maxDimensions {
			return out, false
		}
		elements *= d
		dimensions, shape = append(dimensions, int(d)), shape[n:]
	}
	if r.odd || data == nil || len(dimensions) == 0 || elements*uint64(size) != uint64(len(data)) {
		return out, false
	}
	out.Shape = dimensions
	if size == 8 {
		out.Ints = int64s(data)
	} else {
		out.Floats = float32s(data)
	}
	return out, true
}
