package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// Until a body is accepted there are about so many copies of it beside itself: the decoded data, what package runs makes of them, and what is journalled.
const copies = 3

const (
	smallBytes = 16 << 10 // of a plain body, which need not ask for memory
	partBytes  = 256      // of a decoded message
)

// DecodeForwardBackward reads a protobuf body; the owner is left empty. take is asked for the memory that the body takes beside itself until it is accepted, before it does. The error is take's, or for a body that
// cannot be decoded or does not say which operation it is; everything else that is wrong becomes the operation's Refusal, so that it has its place in the order and fails there.
func DecodeForwardBackward(body []byte, take func(int64) error) (runs.ForwardBackward, error) {
	parts := countParts(body)
	tooMany := parts > maxParts
	if tooMany {
		body, parts = identity(body), 0
	}
	if len(body) > smallBytes {
		if err := take(copies * int64(len(body))); err != nil {
			return runs.ForwardBackward{}, err
		}
	}
	if !tooMany {
		if out, ok := decodePlain(body); ok {
			return out, nil
		}
	}
	if err := take(partBytes * int64(parts)); err != nil {
		return runs.ForwardBackward{}, err
	}
	return decodeMessages(body, tooMany, take)
}

// decodeMessages does it for every body. tooMany: there is only the operation's identity.
func decodeMessages(body []byte, tooMany bool, take func(int64) error) (runs.ForwardBackward, error) {
	var m tinkerpb.ForwardBackwardRequest
	if err := proto.Unmarshal(body, &m); err != nil {
		return runs.ForwardBackward{}, fmt.Errorf("body: not a ForwardBackwardRequest: %w", err)
	}
	var wrong error
	if tooMany {
		wrong = errTooManyParts
	}
	return fromMessage(&m, wrong, take)
}

var errTooManyParts = fieldErrorf("data", "datums, chunks, inputs, dimensions, spans and loss_fn_config entries are more than %d in all", maxParts)

// fromMessage translates a request. wrong is what is known to be wrong with its data, nil if nothing is.
func fromMessage(m *tinkerpb.ForwardBackwardRequest, wrong error, take func(int64) error) (runs.ForwardBackward, error) {
	if m.GetModelId() == "" {
		return runs.ForwardBackward{}, fieldErrorf("model_id", "is required")
	}
	if m.GetSeqId() < 0 {
		return runs.ForwardBackward{}, fieldErrorf("seq_id", "%d is not a positive number", m.GetSeqId())
	}
	out := runs.ForwardBackward{Loss: m.GetLossFn(), ForwardOnly: m.GetForwardOnly(), Config: map[string]float64{}}
	out.RunID, out.Seq, out.Unnumbered = m.GetModelId(), int64(m.GetSeqId()), m.GetSeqId() == 0
	refuse := func(err error) (runs.ForwardBackward, error) {
		out.Data, out.Refusal = nil, err.Error()
		return out, nil
	}
	if wrong != nil {
		return refuse(wrong)
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
	if err := take(copies * sparseBytes(m.GetData())); err != nil {
		return runs.ForwardBackward{}, err
	}
	left := int64(maxElements)
	for i, d := range m.GetData() {
		datum, err := decodeDatum(i, d, &left)
		if err != nil {
			return refuse(err)
		}
		out.Data = append(out.Data, datum)
	}
	return out, nil
}
