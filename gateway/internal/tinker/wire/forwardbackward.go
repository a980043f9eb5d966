package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// DecodeForwardBackward reads a protobuf body; the owner is left empty. The error is for a body that cannot be decoded or does not say which operation it is; everything else
// that is wrong becomes the operation's Refusal, so that it has its place in the order and fails there.
func DecodeForwardBackward(body []byte) (runs.ForwardBackward, error) {
	tooMany := countParts(body) > maxParts
	if tooMany {
		body = identity(body)
	} else if out, ok := decodePlain(body); ok {
		return out, nil
	}
	return decodeMessages(body, tooMany)
}

// decodeMessages does it for every body. tooMany: there is only the operation's identity.
func decodeMessages(body []byte, tooMany bool) (runs.ForwardBackward, error) {
	var m tinkerpb.ForwardBackwardRequest
	if err := proto.Unmarshal(body, &m); err != nil {
		return runs.ForwardBackward{}, fmt.Errorf("body: not a ForwardBackwardRequest: %w", err)
	}
	if m.GetModelId() == "" {
		return runs.ForwardBackward{}, fieldErrorf("model_id", "is required")
	}
	if m.GetSeqId() < 1 {
		return runs.ForwardBackward{}, fieldErrorf("seq_id", "%d is not a positive number", m.GetSeqId())
	}
	out := runs.ForwardBackward{Loss: m.GetLossFn(), ForwardOnly: m.GetForwardOnly(), Config: map[string]float64{}}
	out.RunID, out.Seq = m.GetModelId(), int64(m.GetSeqId())
	refuse := func(err error) (runs.ForwardBackward, error) {
		out.Data, out.Refusal = nil, err.Error()
		return out, nil
	}
	if tooMany {
		return refuse(fieldErrorf("data", "datums, chunks, inputs, dimensions, spans and loss_fn_config entries are more than %d in all", maxParts))
	}
	for name, value := range m.GetLossFnConfig() {
		out.Config[name] = value
	}
	// Newer clients send every entry in the second map, and the numbers in both.
	for name, value := range m.GetLossFnConfigV2() {
		switch v := value.GetValue().(type) {
		case *tinkerpb.LossConfigValue_Number:
			out.Config[name] = v.Number
		case *tinkerpb.LossConfigValue_Text:
			if out.ConfigText == nil {
				out.ConfigText = map[string]string{}
			}
			out.ConfigText[name] = v.Text
		default:
			return refuse(fieldErrorf("loss_fn_config."+name, "has no value"))
		}
	}
	total := 0
	for i, d := range m.GetData() {
		datum, err := decodeDatum(i, d)
		if err != nil {
			return refuse(err)
		}
		for _, t := range datum.Inputs {
			total += len(t.Floats) + len(t.Ints)
		}
		if total > 4*maxElements {
			return refuse(fieldErrorf("data", "the tensors have more than %d elements", 4*maxElements))
		}
		out.Data = append(out.Data, datum)
	}
	return out, nil
}
