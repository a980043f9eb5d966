package nn

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// arenaAlignment is in elements: 64 bytes, a cache line and the widest vector.
const arenaAlignment = 16

// minChunk is the least size of one allocation, in elements (4 MiB).
const minChunk = 1 << 20

// Arena hands out float32 scratch tensors from a few large device allocations, in stack order, so that a steady stream of passes allocates nothing. Its
// memory is not cleared. An arena is used by one pass at a time.
type Arena struct {
	device tensor.Device
	chunks []tensor.Tensor // each 1 × n
	chunk  int             // index of the chunk in use
	used   int             // elements used of it
	peak   int             // most elements in use at once, over all chunks
	before int             // elements of the chunks before the one in use
}

// NewArena makes an empty arena.
func NewArena(device tensor.Device) *Arena { return &Arena{device: device} }

// Mark is a position to release to.
type Mark struct{ chunk, used, before int }

// Mark gives the present position.
func (a *Arena) Mark() Mark { return Mark{a.chunk, a.used, a.before} }

// Release gives back everything that was handed out after the mark. Releasing to the start joins several chunks to one, which invalidates nothing that is in use.
func (a *Arena) Release(m Mark) error {
	a.chunk, a.used, a.before = m.chunk, m.used, m.before
	if len(a.chunks) < 2 || m.chunk != 0 || m.used != 0 {
		return nil
	}
	a.Free()
	return a.grow(a.peak)
}

// Get hands out rows × cols elements of undefined content, contiguous.
func (a *Arena) Get(rows, cols int) (tensor.Tensor, error) {
	n := (rows*cols + arenaAlignment - 1) / arenaAlignment * arenaAlignment
	for a.chunk < len(a.chunks) && a.used+n > a.chunks[a.chunk].Cols {
		a.before += a.chunks[a.chunk].Cols
		a.chunk++
		a.used = 0
	}
	if a.chunk == len(a.chunks) {
		if err := a.grow(n); err != nil {
			return tensor.Tensor{}, err
		}
	}
	t := a.chunks[a.chunk]
	t.Offset += a.used
	t.Rows, t.Cols, t.Stride = rows, cols, cols
	a.used += n
	a.peak = max(a.peak, a.before+a.used)
	return t, nil
}

func (a *Arena) grow(n int) error {
	c, err := a.device.Alloc(tensor.Float32, 1, max(n, minChunk))
	if err != nil {
		return fmt.Errorf("scratch memory: %w", err)
	}
	a.chunks = append(a.chunks, c)
	return nil
}

// Bytes is the device memory held.
func (a *Arena) Bytes() int64 {
	var n int64
	for _, c := range a.chunks {
		n += int64(c.Cols) * int64(tensor.Float32.Size())
	}
	return n
}

// Free gives all memory back to the device; the arena can be used again.
func (a *Arena) Free() {
	for _, c := range a.chunks {
		a.device.Free(c)
	}
	a.chunks, a.chunk, a.used, a.before = a.chunks[:0], 0, 0, 0
}
