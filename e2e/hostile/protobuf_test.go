package hostile

import (
	"encoding/binary"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of the training request are written field by field: the numbers are those of the public protocol.

func field(b []byte, n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
}

func number(b []byte, n protowire.Number, value int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(value))
}

func double(b []byte, n protowire.Number, value float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, n, protowire.Fixed64Type), math.Float64bits(value))
}

// Element types of tensors on the wire.
const (
	typeFloat32 = 1
	typeInt64   = 2
)

// tensor is an encoded Tensor message.
type tensor []byte

func floats(values ...float32) tensor {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return dense(typeFloat32, b, int64(len(values)))
}

func ints(values ...int64) tensor { return dense(typeInt64, int64s(values...), int64(len(values))) }

func int64s(values ...int64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func int32s(values ...int32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func dense(kind int64, data []byte, shape ...int64) tensor {
	return shaped(number(field(nil, 1, data), 3, kind), shape...)
}

func shaped(b []byte, shape ...int64) tensor {
	var packed []byte
	for _, d := range shape {
		packed = protowire.AppendVarint(packed, uint64(d))
	}
	return field(b, 4, packed)
}

func sparse(kind int64, values, crow, col []byte, shape ...int64) tensor {
	return shaped(number(field(nil, 2, field(field(field(nil, 1, values), 2, crow), 3, col)), 3, kind), shape...)
}

// datum is one training example. chunk, when not nil, takes the place of the tokens.
type datum struct {
	tokens     []int32
	chunk      []byte
	inputs     map[string]tensor
	inputSpans [][]byte
	lossSpans  [][]byte
}

func (d datum) encode() []byte {
	chunk := d.chunk
	if chunk == nil {
		chunk = field(nil, 1, field(nil, 1, int32s(d.tokens...)))
	}
	b := field(nil, 1, chunk)
	for name, t := range d.inputs {
		b = field(b, 2, field(field(nil, 1, []byte(name)), 2, t))
	}
	for _, s := range d.inputSpans {
		b = field(b, 3, s)
	}
	for _, s := range d.lossSpans {
		b = field(b, 4, s)
	}
	return b
}

// span is a ProvenanceSpan; kind 1 is of a prompt, 2 of sampled tokens.
func span(kind protowire.Number, sequence string, offset, length int64) []byte {
	return field(nil, kind, number(number(field(nil, 1, []byte(sequence)), 2, offset), 3, length))
}

// pass is a ForwardBackwardRequest. extra is appended to the message as it is.
type pass struct {
	model   string
	seq     int
	data    []datum
	loss    string
	config  map[string]float64
	text    map[string]string
	forward bool
	extra   []byte
}

func (p pass) encode() []byte {
	b := number(field(nil, 1, []byte(p.model)), 2, int64(p.seq))
	for _, d := range p.data {
		b = field(b, 3, d.encode())
	}
	b = field(b, 4, []byte(p.loss))
	for name, value := range p.config {
		b = field(b, 5, double(field(nil, 1, []byte(name)), 2, value))
	}
	if p.forward {
		b = number(b, 6, 1)
	}
	for name, value := range p.text {
		b = field(b, 7, field(field(nil, 1, []byte(name)), 2, field(nil, 2, []byte(value))))
	}
	return append(b, p.extra...)
}

// ordinary is a request that nobody could object to.
func ordinary(i int) pass {
	var data []datum
	for j := range 3 {
		tokens, targets, weights := make([]int32, 12), make([]int64, 12), make([]float32, 12)
		for k := range tokens {
			tokens[k], targets[k], weights[k] = int32(100+(i*31+j*17+k*7)%900), int64(100+(i*13+j*29+k*11)%900), float32(k%3)/2
		}
		data = append(data, datum{tokens: tokens, inputs: map[string]tensor{"target_tokens": ints(targets...), "weights": floats(weights...)}})
	}
	return pass{data: data, loss: "cross_entropy"}
}

// tensorBytes is the data of a safetensors file without its header, in which names of runs may stand.
func tensorBytes(t testing.TB, b []byte) []byte {
	t.Helper()
	if len(b) < 8 || uint64(len(b)-8) < binary.LittleEndian.Uint64(b) {
		t.Fatalf("%d bytes are no safetensors file", len(b))
	}
	return b[8+binary.LittleEndian.Uint64(b):]
}

// sampledTokens reads the tokens of the first sequence of a SampleResponse.
func sampledTokens(t testing.TB, b []byte) []int64 {
	t.Helper()
	sequence := bytesOf(t, b, 1)
	raw := bytesOf(t, sequence, 2)
	out := make([]int64, len(raw)/4)
	for i := range out {
		out[i] = int64(int32(binary.LittleEndian.Uint32(raw[4*i:])))
	}
	return out
}

// bytesOf finds the first field of a number in a message.
func bytesOf(t testing.TB, b []byte, want protowire.Number) []byte {
	t.Helper()
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			t.Fatal(protowire.ParseError(size))
		}
		b = b[size:]
		if n == want && kind == protowire.BytesType {
			value, size := protowire.ConsumeBytes(b)
			if size < 0 {
				t.Fatal(protowire.ParseError(size))
			}
			return value
		}
		if size = protowire.ConsumeFieldValue(n, kind, b); size < 0 {
			t.Fatal(protowire.ParseError(size))
		}
		b = b[size:]
	}
	t.Fatalf("field %d is missing", want)
	return nil
}
