package transformers

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// Bounds of a frame, which worker.py has too.
const (
	maxHead = 1 << 24
	maxBody = 1 << 30
	// chunk is how much of a larger tensor one frame has.
	chunk = 64 << 20
)

// writeFrame sends a head and the parts of a body as one frame.
func writeFrame(w io.Writer, head any, parts ...[]byte) error {
	text, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if len(text) > maxHead || size > maxBody {
		return fmt.Errorf("a frame of %d and %d bytes is larger than %d and %d", len(text), size, maxHead, maxBody)
	}
	prefix := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
	prefix = binary.LittleEndian.AppendUint64(prefix, uint64(size))
	for _, p := range append([][]byte{append(prefix, text...)}, parts...) {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// readFrame reads one. Memory is taken as the bytes come.
func readFrame(r io.Reader) (head, body []byte, err error) {
	var prefix [12]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, nil, err
	}
	n, m := binary.LittleEndian.Uint32(prefix[:4]), binary.LittleEndian.Uint64(prefix[4:])
	if n > maxHead || m > maxBody {
		return nil, nil, fmt.Errorf("a frame of %d and %d bytes is larger than %d and %d", n, m, maxHead, maxBody)
	}
	if head, err = readSized(r, int64(n)); err != nil {
		return nil, nil, err
	}
	body, err = readSized(r, int64(m))
	return head, body, err
}

func readSized(r io.Reader, n int64) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(min(n, 1<<20)))
	if _, err := io.CopyN(&b, r, n); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b.Bytes(), nil
}

// encoded has lists of numbers of a fixed size one behind another, as frames do.
func encoded[T int32 | float32 | float64](lists ...[]T) []byte {
	var out []byte
	for _, list := range lists {
		out, _ = binary.Append(out, binary.LittleEndian, list) // fails for other types only
	}
	return out
}

func float32At(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

func float64At(b []byte, i int) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
}
