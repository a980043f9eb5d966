package wire

import (
	"bytes"
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
