package nn

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// arenaAlignment is in elements: 64 bytes, a cache line and the widest vector.
const arenaAlignment = 16

// minChunk is the least size of one allocation, in elements (4 MiB).
const minChunk = 1 << 20

// LeastBytes is the least that an arena takes from the device at once.
const LeastBytes = 4 * minChunk

// Arena hands out float32 scratch tensors from a few large device allocations, in stack order, so that a steady stream of passes allocates nothing. Its
// memory is not cleared. An arena is used by one pass at a time.
type Arena struct {
	// Room, when not nil, is asked before so many bytes are taken from the device, its error is that of the call that needs them; and told with a negative number what has been given back.
	Room func(bytes int64) error

	device tensor.Device
	chunks []tensor.Tensor // each 1 × n
	chunk  int             // index of the chunk in use
	used   int             // elements used of it
	live   int             // elements handed out, over all chunks
	peak   int             // most that live has been
}

// NewArena makes an empty arena.
func NewArena(device tensor.Device) *Arena { return &Arena{device: device} }

// Mark is a position to release to.
type Mark struct{ chunk, used, live int }

// Mark gives the present position.
func (a *Arena) Mark() Mark { return Mark{a.chunk, a.used, a.live} }

// Release gives back everything that was handed out after the mark. Releasing to the start joins several chunks to one, which invalidates nothing that is in use.
func (a *Arena) Release(m Mark) error {
	a.chunk, a.used, a.live = m.chunk, m.used, m.live
	if len(a.chunks) < 2 || m.chunk != 0 || m.used != 0 {
		return nil
	}
	return a.replace(a.peak)
}

// Reserve makes the arena, of which nothing is in use, one chunk of so many bytes at least.
func (a *Arena) Reserve(bytes int64) error {
	n := int((bytes + int64(tensor.Float32.Size()) - 1) / int64(tensor.Float32.Size()))
	if n == 0 || len(a.chunks) == 1 && a.chunks[0].Cols >= n {
		return nil
	}
	return a.replace(n)
}

func (a *Arena) replace(n int) error {
	peak := a.peak
	a.Free()
	a.peak = peak
	return a.grow(n)
}

// Get hands out rows × cols elements of undefined content, contiguous.
func (a *Arena) Get(rows, cols int) (tensor.Tensor, error) {
	n := (rows*cols + arenaAlignment - 1) / arenaAlignment * arenaAlignment
	for a.chunk < len(a.chunks) && a.used+n > a.chunks[a.chunk].Cols {
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
	a.live += n
	a.peak = max(a.peak, a.live)
	return t, nil
}

// GetAs is Get for elements of type d.
func (a *Arena) GetAs(d tensor.DType, rows, cols int) (tensor.Tensor, error) {
	if d == tensor.Float32 {
		return a.Get(rows, cols)
	}
	ratio := tensor.Float32.Size() / d.Size()
	t, err := a.Get(1, (rows*cols+ratio-1)/ratio)
	t.Offset *= ratio
	t.Rows, t.Cols, t.Stride, t.DType = rows, cols, cols, d
	return t, err
}

func (a *Arena) grow(n int) error {
	n = max(n, minChunk)
	if a.Room != nil {
		if err := a.Room(int64(n) * int64(tensor.Float32.Size())); err != nil {
			return fmt.Errorf("scratch memory: %w", err)
		}
	}
	c, err := a.device.Alloc(tensor.Float32, 1, n)
	if err != nil {
		if a.Room != nil {
			_ = a.Room(-int64(n) * int64(tensor.Float32.Size()))
		}
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

// Peak is the most bytes that were in use at once since the last Free; Reserve of as many makes room for the same again.
func (a *Arena) Peak() int64 { return int64(a.peak) * int64(tensor.Float32.Size()) }

// Free gives all memory back to the device and forgets the peak; the arena can be used again.
func (a *Arena) Free() {
	for _, c := range a.chunks {
		a.device.Free(c)
		if a.Room != nil {
			_ = a.Room(-int64(c.Cols) * int64(tensor.Float32.Size()))
		}
	}
	a.chunks, a.chunk, a.used, a.live, a.peak = a.chunks[:0], 0, 0, 0, 0
}
