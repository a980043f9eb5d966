package runs

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"iter"
	"maps"
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// hasher makes the identity of a request from its parsed content, so that a repeat that is encoded otherwise counts as the same. Every part is led by its length.
type hasher struct {
	h   hash.Hash // nil while everything is in buf
	buf []byte    // not hashed yet: a request has hundreds of small parts
}

// hashedAtOnce is how much is gathered before it is hashed.
const hashedAtOnce = 4 << 10

// hashBuffers are those of requests whose identity is known.
var hashBuffers = sync.Pool{New: func() any { return new([]byte) }}

// flush hashes what was gathered, if it is much.
func (h *hasher) flush() {
	if len(h.buf) < hashedAtOnce {
		return
	}
	if h.h == nil {
		h.h = sha256.New()
	}
	h.h.Write(h.buf)
	h.buf = h.buf[:0]
}

func (h *hasher) int(v int64) {
	h.buf = binary.LittleEndian.AppendUint64(h.buf, uint64(v))
	h.flush()
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
		h.buf = append(h.buf, s...)
		h.flush()
	}
}

func (h *hasher) int32s(v []int32) {
	h.int(int64(len(v)))
	h.buf = pack.AppendInt32s(h.buf, v)
	h.flush()
}

func (h *hasher) tensor(t Tensor) {
	h.int(int64(len(t.Shape)))
	for _, d := range t.Shape {
		h.int(int64(d))
	}
	h.int(int64(len(t.Floats)))
	h.buf = pack.AppendFloat32s(h.buf, t.Floats)
	h.buf = pack.AppendInt64s(h.buf, t.Ints)
	h.flush()
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
	if h.h == nil {
		sum := sha256.Sum256(h.buf)
		return hex.EncodeToString(sum[:])
	}
	h.h.Write(h.buf)
	return hex.EncodeToString(h.h.Sum(nil))
}

func hashForwardBackward(op ForwardBackward) string {
	buf := hashBuffers.Get().(*[]byte)
	h := hasher{buf: (*buf)[:0]}
	defer func() {
		if cap(h.buf) <= 16*hashedAtOnce { // a large tensor's is not kept
			*buf = h.buf
		}
		hashBuffers.Put(buf)
	}()
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

// inOrder gives the values of a map in the order of their keys: what is begun for each of them begins in the same order every time, so that what went wrong can be repeated.
func inOrder[K cmp.Ordered, V any](m map[K]V) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(m[k]) {
				return
			}
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
