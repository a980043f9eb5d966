package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

func TestCountParts(t *testing.T) {
	b, err := proto.Marshal(&tinkerpb.ForwardBackwardRequest{
		ModelId: "m", SeqId: 3,
		Data: []*tinkerpb.Datum{{
			ModelInput:       []*tinkerpb.Chunk{{}, {}},
			LossFnInputs:     map[string]*tinkerpb.Tensor{"weights": {Shape: []int64{1, 2, 3}}},
			ModelInputSpans:  []*tinkerpb.ProvenanceSpan{{}},
			LossFnInputSpans: []*tinkerpb.ProvenanceSpan{{}, {}},
		}},
		LossFnConfig:   map[string]float64{"a": 1},
		LossFnConfigV2: map[string]*tinkerpb.LossConfigValue{"b": {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// A datum, 2 chunks, an input with its tensor and 3 dimensions, 3 spans, 2 settings.
	if got := countParts(b); got != 1+2+1+1+3+3+2 {
		t.Errorf("counted %d parts", got)
	}
}

func TestTooManyParts(t *testing.T) {
	head, err := proto.Marshal(&tinkerpb.ForwardBackwardRequest{ModelId: "m", SeqId: 3, LossFn: "ppo"})
	if err != nil {
		t.Fatal(err)
	}
	empty := func(n int) []byte {
		return bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), nil), n)
	}
	for _, c := range []struct {
		name    string
		datums  int
		refused bool
	}{{"most", maxParts, false}, {"one more", maxParts + 1, true}} {
		t.Run(c.name, func(t *testing.T) {
			op, err := DecodeForwardBackward(append(empty(c.datums), head...), freely)
			if err != nil || op.RunID != "m" || op.Seq != 3 {
				t.Fatalf("got %v %d, %v", op.RunID, op.Seq, err)
			}
			if refused := strings.Contains(op.Refusal, "in all"); refused != c.refused || refused && op.Data != nil {
				t.Errorf("refusal %q with %d datums", op.Refusal, len(op.Data))
			}
		})
	}
}

// Sparse tensors may name shapes far larger than their bytes: memory is asked for before they are made dense, and all of a request together are bounded.
func TestSparseTensorsAskForMemory(t *testing.T) {
	tensor := func(rows, cols int64) *tinkerpb.Tensor {
		return &tinkerpb.Tensor{Dtype: tinkerpb.DType_DTYPE_INT64, Shape: []int64{rows, cols}, Encoding: &tinkerpb.Tensor_SparseCsr{SparseCsr: &tinkerpb.SparseCsr{CrowIndices: bytesOfInt64s(make([]int64, rows+1))}}}
	}
	none := errors.New("none is left")
	for _, c := range []struct {
		name    string
		inputs  map[string]*tinkerpb.Tensor
		least   int64 // that is asked for
		refusal string
	}{
		{"one", map[string]*tinkerpb.Tensor{"a": tensor(2, 1<<20)}, 8 * 2 << 20, ""},
		{"many", map[string]*tinkerpb.Tensor{"a": tensor(2, 4<<20), "b": tensor(2, 4<<20), "c": tensor(1, 1)}, 8 * 16 << 20, "more than 16777216 elements"},
		{"one that is too large", map[string]*tinkerpb.Tensor{"a": tensor(2, 1<<40)}, 0, "more than 16777216 elements"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := proto.Marshal(&tinkerpb.ForwardBackwardRequest{ModelId: "m", SeqId: 1, Data: []*tinkerpb.Datum{{LossFnInputs: c.inputs}}})
			if err != nil {
				t.Fatal(err)
			}
			asked := int64(0)
			op, err := DecodeForwardBackward(b, func(n int64) error { asked += n; return nil })
			if err != nil || !strings.Contains(op.Refusal, c.refusal) || c.refusal == "" && op.Refusal != "" || asked < c.least {
				t.Errorf("%d bytes are asked for, want %d; refusal %q, %v", asked, c.least, op.Refusal, err)
			}
			if _, err := DecodeForwardBackward(b, func(n int64) error {
				if n >= c.least {
					return none
				}
				return nil
			}); !errors.Is(err, none) {
				t.Errorf("without memory: %v", err)
			}
		})
	}
}
