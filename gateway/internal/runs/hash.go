package runs

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"
	"sort"
)

// hasher makes the identity of a request from its parsed content, so that a repeat that is encoded otherwise counts as the same. Every part is led by its length.
type hasher struct {
	h   hash.Hash
	buf []byte
}

func (h *hasher) write(b []byte) {
	if h.h == nil {
		h.h = sha256.New()
	}
	h.h.Write(b)
}

func (h *hasher) int(v int64) {
	var b [8]byte // not buf, which a caller may be filling
	binary.LittleEndian.PutUint64(b[:], uint64(v))
	h.write(b[:])
}

func (h *hasher) float(v float64) { h.int(int64(math.Float64bits(v))) }

func (h *hasher) bool(values ...bool) {
	for _, v := range values {
		if v {
			h.int(1)
		} else {
			h.int(0)
		}
	}
}

func (h *hasher) text(values ...string) {
	for _, s := range values {
		h.int(int64(len(s)))
		h.write([]byte(s))
	}
}

func (h *hasher) int32s(v []int32) {
	h.int(int64(len(v)))
	b := h.buf[:0]
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	h.write(b)
	h.buf = b
}

func (h *hasher) tensor(t Tensor) {
	h.int(int64(len(t.Shape)))
	for _, d := range t.Shape {
		h.int(int64(d))
	}
	b := h.buf[:0]
	for _, x := range t.Floats {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	h.int(int64(len(t.Floats)))
	for _, x := range t.Ints {
		b = binary.LittleEndian.AppendUint64(b, uint64(x))
	}
	h.write(b)
	h.buf = b
}

func (h *hasher) spans(spans []Span) {
	h.int(int64(len(spans)))
	for _, s := range spans {
		h.bool(s.Sampled)
		h.text(s.SequenceID)
		h.int(s.Offset)
		h.int(s.Length)
	}
}

// sum gives the identity of a request of a kind.
func (h *hasher) sum(kind string) string {
	h.text(kind)
	return hex.EncodeToString(h.h.Sum(nil))
}

func hashForwardBackward(op ForwardBackward) string {
	var h hasher
	h.text(op.Refusal, op.Loss)
	h.bool(op.ForwardOnly)
	h.int(int64(len(op.Config)))
	for _, k := range sortedKeys(op.Config) {
		h.text(k)
		h.float(op.Config[k])
	}
	h.int(int64(len(op.ConfigText)))
	for _, k := range sortedKeys(op.ConfigText) {
		h.text(k, op.ConfigText[k])
	}
	h.int(int64(len(op.Data)))
	for _, d := range op.Data {
		h.int32s(d.Tokens)
		h.int(int64(len(d.Inputs)))
		for _, k := range sortedKeys(d.Inputs) {
			h.text(k)
			h.tensor(d.Inputs[k])
		}
		h.spans(d.InputSpans)
		h.spans(d.LossSpans)
	}
	return h.sum(string(OpForwardBackward))
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
