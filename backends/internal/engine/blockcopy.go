package engine

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// visitBytes is how much of an adapter is copied from the device at once. Training and sampling go on between two visits, and Go memory holds no more of the adapter, unless it has been moved out of memory.
const visitBytes = 64 << 20

// blockCopy gives the tensors of a block, which somebody holds and nobody changes, to a file: in the file's order, as many in one visit to the device as visit bytes hold.
type blockCopy struct {
	engine *Engine
	block  *spillable
	visit  int

	pieces []copiedPiece // in the order of the file
	next   int           // the first that has not been copied
	values [][]float32   // of the last visit's pieces, as far as they have not been written
	room   []float32     // for a visit
}

// copiedPiece is some rows of a tensor: of the block's parameters with a number, A (0) or B (1) of a module.
type copiedPiece struct {
	number, module, matrix int
	from, to, cols         int
}

func (p copiedPiece) size() int { return (p.to - p.from) * p.cols }

// sources are the tensors of the file, with a suffix behind their names for each of the block's parameters.
func (c *blockCopy) sources(names lora.Names, suffixes ...string) []safetensors.Source {
	type named struct {
		name string
		copiedPiece
	}
	var tensors []named
	for i, m := range c.block.layout.Modules {
		if !c.block.layout.Has(i) {
			continue
		}
		for k, shape := range matrixShapes(c.block.layout, m) {
			for number, suffix := range suffixes {
				tensors = append(tensors, named{lora.TensorName(m.Name, string("AB"[k]), names) + suffix, copiedPiece{number, i, k, 0, shape[0], shape[1]}})
			}
		}
	}
	slices.SortFunc(tensors, func(a, b named) int { return cmp.Compare(a.name, b.name) })
	var sources []safetensors.Source
	for _, t := range tensors {
		first := len(c.pieces)
		for rows := max(1, c.visit/(4*t.cols)); t.from < t.to; t.from += rows {
			p := t.copiedPiece
			p.to = min(p.from+rows, t.to)
			c.pieces = append(c.pieces, p)
		}
		last := len(c.pieces)
		sources = append(sources, safetensors.Source{Name: t.name, DType: "F32", Shape: []int{t.to, t.cols}, Write: func(out io.Writer) error { return c.write(out, first, last) }})
	}
	return sources
}

// write writes pieces first to last, which are next.
func (c *blockCopy) write(out io.Writer, first, last int) error {
	for i := first; i < last; i++ {
		if len(c.values) == 0 {
			if err := c.engine.onDevice(c.copy); err != nil {
				return err
			}
		}
		if at := c.next - len(c.values); at != i {
			return fmt.Errorf("piece %d is asked for, %d is next", i, at)
		}
		if err := safetensors.WriteFloat32s(out, c.values[0]); err != nil {
			return err
		}
		c.values = c.values[1:]
	}
	return nil
}

// copy copies the next pieces, on the device goroutine: all that are left where the block was moved out of memory, so that it is brought back once and not for every visit.
func (c *blockCopy) copy() error {
	l := c.engine.loaded
	here := c.block.content != nil
	if err := l.adapters.need(c.block); err != nil {
		return err
	}
	defer l.adapters.done(c.block)
	size, last := 0, c.next
	for last < len(c.pieces) && (size == 0 || !here || 4*(size+c.pieces[last].size()) <= c.visit) {
		size += c.pieces[last].size()
		last++
	}
	if len(c.room) < size {
		c.room = make([]float32, size)
	}
	parameters, left := c.block.parameters(), c.room
	values := c.values[:0]
	for _, p := range c.pieces[c.next:last] {
		matrices := []func(int) tensor.Tensor{parameters[p.number].A, parameters[p.number].B}
		n := p.size()
		if err := l.device.Download(left[:n], matrices[p.matrix](p.module).Slice(p.from, p.to)); err != nil {
			return err
		}
		values, left = append(values, left[:n]), left[n:]
	}
	c.next, c.values = last, values
	return nil
}
