package wire

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// likeMessages checks that a body that is read as a plain one gives what its messages give.
func likeMessages(t *testing.T, body []byte) (plain bool) {
	t.Helper()
	got, ok := decodePlain(body)
	if !ok {
		return false
	}
	want, err := decodeMessages(body, false, freely)
	if err != nil {
		t.Fatalf("a body that cannot be decoded is taken for a plain one: %v", err)
	}
	if !same(reflect.ValueOf(got), reflect.ValueOf(want)) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	return true
}

// same is reflect.DeepEqual, but that numbers are the same by their bits: no NaN is equal to itself.
func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Float32, reflect.Float64:
		return math.Float64bits(a.Float()) == math.Float64bits(b.Float())
	case reflect.Struct:
		for i := range a.NumField() {
			if !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		for _, key := range a.MapKeys() {
			if other := b.MapIndex(key); !other.IsValid() || !same(a.MapIndex(key), other) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

func TestPlain(t *testing.T) {
	text := func(tokens ...int32) *tinkerpb.Chunk {
		return &tinkerpb.Chunk{Chunk: &tinkerpb.Chunk_EncodedText{EncodedText: &tinkerpb.EncodedTextChunk{Tokens: bytesOfInt32s(tokens)}}}
	}
	dense := func(data []byte, kind tinkerpb.DType, shape ...int64) *tinkerpb.Tensor {
		return &tinkerpb.Tensor{Encoding: &tinkerpb.Tensor_Dense{Dense: data}, Dtype: kind, Shape: shape}
	}
	request := func(change func(*tinkerpb.ForwardBackwardRequest)) []byte {
		m := &tinkerpb.ForwardBackwardRequest{
			ModelId: "m", SeqId: 7, LossFn: "ppo", ForwardOnly: true, LossFnConfig: map[string]float64{"clip_low_threshold": 0.5, "clip_high_threshold": 1.5},
			Data: []*tinkerpb.Datum{
				{
					ModelInput: []*tinkerpb.Chunk{text(1, 2), text(), text(-3)},
					LossFnInputs: map[string]*tinkerpb.Tensor{
						"target_tokens": dense(bytesOfInt64s([]int64{1, -2, 3, 4, 5, 6}), tinkerpb.DType_DTYPE_INT64, 3, 2),
						"weights":       dense(bytesOfFloat32s([]float32{0, 0.5, -1}), tinkerpb.DType_DTYPE_FLOAT32, 3),
					},
				},
				{LossFnInputs: map[string]*tinkerpb.Tensor{"weights": dense(nil, tinkerpb.DType_DTYPE_FLOAT32, 0)}},
				{},
			},
		}
		if change != nil {
			change(m)
		}
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	weights := func(tensor *tinkerpb.Tensor) []byte {
		return request(func(m *tinkerpb.ForwardBackwardRequest) { m.Data[0].LossFnInputs["weights"] = tensor })
	}
	f32 := tinkerpb.DType_DTYPE_FLOAT32
	for _, c := range []struct {
		name  string
		body  []byte
		plain bool
	}{
		{"as the SDK writes it", unhex(t, b1), true},
		{"everything", request(nil), true},
		{"numbers that are none", request(func(m *tinkerpb.ForwardBackwardRequest) {
			m.LossFnConfig["clip_low_threshold"] = math.NaN()
			m.Data[0].LossFnInputs["weights"] = dense(bytesOfFloat32s([]float32{float32(math.NaN()), float32(math.Copysign(0, -1)), float32(math.Inf(1))}), f32, 3)
		}), true},
		{"no data", request(func(m *tinkerpb.ForwardBackwardRequest) { m.Data = nil }), true},
		{"no settings", request(func(m *tinkerpb.ForwardBackwardRequest) { m.LossFnConfig = nil }), true},
		{"no model", request(func(m *tinkerpb.ForwardBackwardRequest) { m.ModelId = "" }), false},
		{"no number", request(func(m *tinkerpb.ForwardBackwardRequest) { m.SeqId = 0 }), true},
		{"a negative number", request(func(m *tinkerpb.ForwardBackwardRequest) { m.SeqId = -1 }), false},
		{"settings of newer clients, spans", unhex(t, b4), false},
		{"an image", request(func(m *tinkerpb.ForwardBackwardRequest) {
			m.Data[0].ModelInput[1] = &tinkerpb.Chunk{Chunk: &tinkerpb.Chunk_Image{Image: &tinkerpb.ImageChunk{}}}
		}), false},
		{"a chunk of nothing", request(func(m *tinkerpb.ForwardBackwardRequest) { m.Data[0].ModelInput[1] = &tinkerpb.Chunk{} }), false},
		{"half a token", request(func(m *tinkerpb.ForwardBackwardRequest) {
			m.Data[0].ModelInput[1].GetEncodedText().Tokens = []byte{1, 2}
		}), false},
		{"no dtype", weights(dense(make([]byte, 4), 0, 1)), false},
		{"no shape", weights(dense(make([]byte, 4), f32)), false},
		{"too many dimensions", weights(dense(make([]byte, 4), f32, 1, 1, 1, 1, 1, 1, 1, 1, 1)), false},
		{"a negative dimension", weights(dense(make([]byte, 4), f32, -1)), false},
		{"a huge shape", weights(dense(make([]byte, 4), f32, 1<<40, 1<<40)), false},
		{"a shape that the bytes do not fill", weights(dense(make([]byte, 4), f32, 2)), false},
		{"not whole", weights(dense(make([]byte, 5), f32, 1)), false},
		{"sparse", weights(&tinkerpb.Tensor{Encoding: &tinkerpb.Tensor_SparseCsr{SparseCsr: &tinkerpb.SparseCsr{}}, Dtype: f32, Shape: []int64{0, 0}}), false},
		{"no tensor", weights(&tinkerpb.Tensor{}), false},
		{"a field twice", slices.Concat(request(nil), request(func(m *tinkerpb.ForwardBackwardRequest) { m.Reset(); m.ModelId = "n" })), false},
		{"a setting twice", slices.Concat(request(nil), request(func(m *tinkerpb.ForwardBackwardRequest) {
			m.Reset()
			m.LossFnConfig = map[string]float64{"clip_low_threshold": 1}
		})), false},
		{"an unknown field", protowire.AppendVarint(protowire.AppendTag(request(nil), 99, protowire.VarintType), 1), false},
		{"a field of another kind", protowire.AppendVarint(protowire.AppendTag(request(nil), 3, protowire.VarintType), 1), false},
		{"a group", protowire.AppendTag(protowire.AppendTag(request(nil), 3, protowire.StartGroupType), 3, protowire.EndGroupType), false},
		{"not UTF-8", append(request(func(m *tinkerpb.ForwardBackwardRequest) { m.LossFn = "" }), 4<<3|2, 1, 0xff), false},
		{"cut off", request(nil)[:len(request(nil))-1], false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := likeMessages(t, c.body); got != c.plain {
				t.Errorf("taken for a plain body: %v, want %v", got, c.plain)
			}
		})
	}
}

func FuzzPlain(f *testing.F) {
	for _, s := range []string{b1, b4} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if countParts(body) <= maxParts {
			likeMessages(t, body)
		}
	})
}
