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
	apart  bool // each expert's tensors by themselves
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
	before, width          int // where in rows of so many columns, which are else zero, the piece's are; 0 = they are the rows
}

func (p copiedPiece) size() int { return (p.to - p.from) * p.cols }

// copied is a tensor of the file: whole matrices, one below another.
type copied struct {
	name       string
	rows, cols int
	parts      []copiedPiece
	stacked    []int // the shape, if it is of experts and has three dimensions
}

// shape is that of the tensor.
func (t *copied) shape() []int {
	if t.stacked != nil {
		return t.stacked
	}
	return []int{t.rows, t.cols}
}

// sources are the tensors of the file, with a suffix behind their names for each of the block's parameters. The LoRA of modules that are fused, by their numbers, is one: A one below another, and B on a diagonal.
func (c *blockCopy) sources(names lora.Names, fused map[string][]int, suffixes ...string) []safetensors.Source {
	var tensors []copied
	for number, suffix := range suffixes {
		tensors = append(tensors, c.tensors(names, fused, number, suffix)...)
	}
	slices.SortFunc(tensors, func(a, b copied) int { return cmp.Compare(a.name, b.name) })
	var sources []safetensors.Source
	for _, t := range tensors {
		first := len(c.pieces)
		for _, p := range t.parts {
			for end, rows := p.to, max(1, c.visit/(4*p.cols)); p.from < end; p.from += rows {
				p.to = min(p.from+rows, end)
				c.pieces = append(c.pieces, p)
			}
		}
		last := len(c.pieces)
		sources = append(sources, safetensors.Source{Name: t.name, DType: "F32", Shape: t.shape(), Write: func(out io.Writer) error { return c.write(out, first, last) }})
	}
	return sources
}

// tensors lists those of the block's parameters with a number.
func (c *blockCopy) tensors(names lora.Names, fused map[string][]int, number int, suffix string) []copied {
	layout := c.block.layout
	within := map[int]bool{}
	var all []copied
	add := func(name string, modules ...int) {
		both := [2]copied{{name: lora.TensorName(name, "A", names) + suffix}, {name: lora.TensorName(name, "B", names) + suffix}}
		for n, i := range modules {
			shapes := matrixShapes(layout, layout.Modules[i])
			a, b := copiedPiece{number, i, 0, 0, shapes[0][0], shapes[0][1], 0, 0}, copiedPiece{number, i, 1, 0, shapes[1][0], shapes[1][1], 0, 0}
			if len(modules) > 1 {
				b.before, b.width = n*layout.Rank, len(modules)*layout.Rank
			}
			both[0] = copied{both[0].name, both[0].rows + a.to, a.cols, append(both[0].parts, a), nil}
			both[1] = copied{both[1].name, both[1].rows + b.to, len(modules) * layout.Rank, append(both[1].parts, b), nil}
			within[i] = true
		}
		all = append(all, both[:]...)
	}
	for _, name := range sortedKeys(fused) {
		add(name, fused[name]...)
	}
	for i, m := range layout.Modules {
		switch {
		case !layout.Has(i) || within[i]:
		case m.Experts > 0:
			all = append(all, c.experts(names, number, i, suffix)...)
		default:
			add(m.Name, i)
		}
	}
	return all
}

// experts lists the tensors of a layer of experts: all experts' A, and all experts' B; or, apart, those of each, where what they share is there for each of them.
func (c *blockCopy) experts(names lora.Names, number, module int, suffix string) []copied {
	m := c.block.layout.Modules[module]
	var all []copied
	for k, shape := range matrixShapes(c.block.layout, m) {
		matrix, copies, rows, cols := string("AB"[k]), shape[0], shape[1], shape[2]
		part := func(name string, from, to int) copied {
			return copied{name: lora.TensorName(name, matrix, names) + suffix, rows: to - from, cols: cols, parts: []copiedPiece{{number, module, k, from, to, cols, 0, 0}}}
		}
		if !c.apart {
			t := part(m.Name, 0, copies*rows)
			t.stacked = shape
			all = append(all, t)
			continue
		}
		for e := range m.Experts {
			at := min(e, copies-1) * rows
			all = append(all, part(m.OfExpert(e), at, at+rows))
		}
	}
	return all
}

// write writes the values of a piece.
func (p copiedPiece) write(out io.Writer, values []float32) error {
	if p.width == 0 {
		return safetensors.WriteFloat32s(out, values)
	}
	row := make([]float32, p.width)
	for own := range slices.Chunk(values, p.cols) {
		copy(row[p.before:], own)
		if err := safetensors.WriteFloat32s(out, row); err != nil {
			return err
		}
	}
	return nil
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
		if err := c.pieces[i].write(out, c.values[0]); err != nil {
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
