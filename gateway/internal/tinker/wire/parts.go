package wire

import "google.golang.org/protobuf/encoding/protowire"

// maxParts bounds the messages and repeated values of one forward_backward. An empty message takes two bytes on the wire and some hundred when it is decoded, so a
// bound on bytes alone is none on memory. The SDK puts at most 1024 datums into a request, each of some ten parts.
const maxParts = 1 << 18

// part tells which fields of a message are counted: a message to descend into, or nil for a repeated value.
type part map[protowire.Number]part

var (
	tensorParts  = part{4: nil}
	spanParts    = part{}
	requestParts = part{
		3: {1: {}, 2: {2: tensorParts}, 3: spanParts, 4: spanParts},
		5: {},
		7: {},
	}
)

// countParts counts the parts of an encoded ForwardBackwardRequest, up to a little more than maxParts. What cannot be decoded is not counted: the real decoder says what is wrong.
func countParts(body []byte) int {
	count := 0
	requestParts.count(body, &count)
	return count
}

func (p part) count(b []byte, count *int) {
	for len(b) > 0 && *count <= maxParts {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return
		}
		b = b[size:]
		inner, counted := p[n]
		if counted && kind == protowire.BytesType {
			value, size := protowire.ConsumeBytes(b)
			if size < 0 {
				return
			}
			b = b[size:]
			if inner == nil { // packed numbers take at least a byte each
				*count += len(value)
				continue
			}
			*count++
			inner.count(value, count)
			continue
		}
		if counted {
			*count++
		}
		if size = protowire.ConsumeFieldValue(n, kind, b); size < 0 {
			return
		}
		b = b[size:]
	}
}

// identity keeps of an encoded ForwardBackwardRequest what says which operation it is: model_id and seq_id.
func identity(body []byte) []byte {
	var out []byte
	for len(body) > 0 {
		n, _, size := protowire.ConsumeField(body)
		if size < 0 {
			return append(out, body...) // let the decoder say what is wrong
		}
		if n == 1 || n == 2 {
			out = append(out, body[:size]...)
		}
		body = body[size:]
	}
	return out
}
