package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
	"github.com/tinsmith/tinsmith/plugins"
)

// ForwardBackward is a decoded forward_backward request.
type ForwardBackward struct {
	ModelID     string
	SeqID       int64
	Data        []Datum
	Loss        string
	LossConfig  map[string]float64
	LossTexts   map[string]string // text values of the configuration
	ForwardOnly bool
	// Invalid is set when the body could be read but not be meant; Data is then nil. The operation has its place in the order and fails there.
	Invalid error
}

// DecodeForwardBackward reads a protobuf body. The error is for a body that cannot be decoded, or that does not say which operation it is.
func DecodeForwardBackward(body []byte) (*ForwardBackward, error) {
	var m tinkerpb.ForwardBackwardRequest
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, fmt.Errorf("body: not a ForwardBackwardRequest: %w", err)
	}
	if m.GetModelId() == "" {
		return nil, fieldError("model_id", "is required")
	}
	if m.GetSeqId() < 1 {
		return nil, fieldError("seq_id", "%d is less than 1", m.GetSeqId())
	}
	out := &ForwardBackward{ModelID: m.GetModelId(), SeqID: int64(m.GetSeqId()), Loss: m.GetLossFn(), ForwardOnly: m.GetForwardOnly(), LossConfig: map[string]float64{}}
	for name, value := range m.GetLossFnConfig() {
		out.LossConfig[name] = value
	}
	// Newer clients send every entry in the second map, numbers in both.
	for name, value := range m.GetLossFnConfigV2() {
		switch v := value.GetValue().(type) {
		case *tinkerpb.LossConfigValue_Number:
			out.LossConfig[name] = v.Number
		case *tinkerpb.LossConfigValue_Text:
			if out.LossTexts == nil {
				out.LossTexts = map[string]string{}
			}
			out.LossTexts[name] = v.Text
		default:
			out.Invalid = fieldError("loss_fn_config."+name, "has no value")
		}
	}
	if out.Invalid != nil {
		return out, nil
	}
	if len(m.GetData()) == 0 {
		out.Invalid = fieldError("data", "has no datum")
		return out, nil
	}
	out.Data = make([]Datum, len(m.GetData()))
	for i, d := range m.GetData() {
		var err error
		if out.Data[i], err = decodeDatum(i, d); err != nil {
			out.Data, out.Invalid = nil, err
			return out, nil
		}
	}
	return out, nil
}

// EncodeForwardBackwardOutput writes the protobuf result. ks gives the targets per position of each datum (1 for one-dimensional targets); datums
// of different K go into different records, since a record is rectangular. Order is kept.
func EncodeForwardBackwardOutput(result plugins.ForwardBackwardResult, ks []int) ([]byte, error) {
	out := &tinkerpb.ForwardBackwardOutput{LossFnOutputType: "ArrayRecord", Metrics: result.Metrics}
	for from := 0; from < len(result.Logprobs); {
		to := from
		var data []byte
		offsets := []int64{0}
		for ; to < len(result.Logprobs) && ks[to] == ks[from]; to++ {
			data = append(data, bytesOfFloat32s(result.Logprobs[to])...)
			offsets = append(offsets, int64(len(data)))
		}
		batched := &tinkerpb.BatchedTensor{Data: data, Offsets: bytesOfInt64s(offsets), Dtype: tinkerpb.DType_DTYPE_FLOAT32}
		if ks[from] > 0 {
			batched.TrailingShape = []int64{int64(ks[from])}
		}
		out.LossFnOutputs = append(out.LossFnOutputs, &tinkerpb.ArrayRecord{Fields: map[string]*tinkerpb.BatchedTensor{"logprobs": batched}, NumDatums: int64(to - from)})
		from = to
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode forward_backward result: %w", err)
	}
	return b, nil
}
