package engine

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// visitBytes is how much of an adapter is copied from the device at once. Training and sampling go on between two visits, and Go memory holds no more of the adapter, unless it has been moved out of memory.
const visitBytes = 64 << 20

// blockCopy gives the tensors of a block, which somebody holds and nobody changes, to a file: in the file's order, as many in one visit to the device as visit bytes hold.
type blockCopy struct {
	engine *Engine
	block  *spillable
	form   expertForm // of the layers of experts; 0 = stacked
	visit  int

	pieces []copiedPiece // in the order of the file
	next   int           // the first that has not been copied
	values [][]float32   // of the last visit's pieces, as far as they have not been written
	room   []float32     // for a visit
	kept   []float32     // the values of a piece whose rows take turns with those of the next one
}

// copiedPiece is some rows of a tensor: of the block's parameters with a number, A (0) or B (1) of a module.
type copiedPiece struct {
	number, module, matrix int
	from, to, cols         int
	before, width          int // where in rows of so many columns, which are else zero, the piece's are; 0 = they are the rows
	experts, copies        int // of a B of so many experts, which have so many, that becomes one matrix, see writeSpread; it is not cut
	turn                   int // of such whose rows take turns: 1 of the first, 2 of the second; 0 = they do not
}

func (p copiedPiece) size() int { return (p.to - p.from) * p.cols }

// copied is a tensor of the file: whole matrices, one below another.
type copied struct {
	name       string
	rows, cols int
	parts      []copiedPiece
	stacked    []int // the shape, if it is of experts and has three dimensions
}

// add has the rows of a piece follow, in a tensor of so many columns.
func (t *copied) add(p copiedPiece, cols int) {
	t.rows, t.cols, t.parts = t.rows+p.to-p.from, cols, append(t.parts, p)
}

// shape is that of the tensor.
func (t *copied) shape() []int {
	if t.stacked != nil {
		return t.stacked
	}
	return []int{t.rows, t.cols}
}

// sources are the tensors of the file, with a suffix behind their names for each of the block's parameters. The LoRA of modules that are fused, by their numbers, is one: A one below another, and B on a diagonal.
func (c *blockCopy) sources(names lora.Names, fused map[string]fusedModule, suffixes ...string) []safetensors.Source {
	var tensors []copied
	for number, suffix := range suffixes {
		tensors = append(tensors, c.tensors(names, fused, number, suffix)...)
	}
	slices.SortFunc(tensors, func(a, b copied) int { return cmp.Compare(a.name, b.name) })
	var sources []safetensors.Source
	for _, t := range tensors {
		first := len(c.pieces)
		for _, p := range t.parts {
			if p.experts > 0 {
				c.pieces = append(c.pieces, p)
				continue
			}
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
func (c *blockCopy) tensors(names lora.Names, fused map[string]fusedModule, number int, suffix string) []copied {
	layout := c.block.layout
	within := map[int]bool{}
	var all []copied
	add := func(name string, f fusedModule) {
		a, b := copied{name: lora.TensorName(name, "A", names) + suffix}, copied{name: lora.TensorName(name, "B", names) + suffix}
		width := 0 // of B's rows; 0 = they are those of the one module
		if len(f.parts) > 1 {
			width = len(f.parts) * layout.Rank
		}
		for _, i := range f.parts {
			shape := matrixShapes(layout, layout.Modules[i])[0]
			a.add(copiedPiece{number: number, module: i, matrix: 0, to: shape[0], cols: shape[1]}, shape[1])
			within[i] = true
		}
		for _, r := range f.rows {
			b.add(copiedPiece{number: number, module: f.parts[r.Part], matrix: 1, from: r.From, to: r.To, cols: layout.Rank, before: r.Part * layout.Rank, width: width}, len(f.parts)*layout.Rank)
		}
		all = append(all, a, b)
	}
	for _, name := range sortedKeys(fused) {
		add(name, fused[name])
	}
	for i, m := range layout.Modules {
		switch {
		case !layout.Has(i) || within[i]:
		case m.Experts > 0:
			all = append(all, c.experts(names, number, i, suffix)...)
		default:
			add(m.Name, fusedModule{[]int{i}, []model.RowRange{{Part: 0, From: 0, To: m.Out}}})
		}
	}
	return all
}

// experts lists the tensors of a layer of experts: all experts' A, and all experts' B; or, apart, those of each, where what they share is there for each of them; or as PEFT has a parameter of all.
func (c *blockCopy) experts(names lora.Names, number, module int, suffix string) []copied {
	m := c.block.layout.Modules[module]
	if c.form.fused() {
		return c.fusedParameter(names, number, module, suffix)
	}
	var all []copied
	for k, shape := range matrixShapes(c.block.layout, m) {
		matrix, copies, rows, cols := string("AB"[k]), shape[0], shape[1], shape[2]
		part := func(name string, from, to int) copied {
			return copied{name: lora.TensorName(name, matrix, names) + suffix, rows: to - from, cols: cols, parts: []copiedPiece{{number: number, module: module, matrix: k, from: from, to: to, cols: cols}}}
		}
		if c.form != apartExperts {
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

// fusedParameter lists the tensors of a parameter that has a layer of all experts, see readFused for their form: those of gate and up, once, or those of down.
func (c *blockCopy) fusedParameter(names lora.Names, number, module int, suffix string) []copied {
	layout := c.block.layout
	m := layout.Modules[module]
	if m.Kind() == lora.ExpertUp {
		return nil // with the gate
	}
	modules, name := []int{module}, m.Name[:len(m.Name)-len("."+m.Kind())]
	if m.Kind() == lora.ExpertGate {
		modules, name = append(modules, upBeside(layout, module)), name+".base_layer"
	}
	a, b := copied{name: lora.TensorName(name, "A", names) + suffix}, copied{name: lora.TensorName(name, "B", names) + suffix}
	for e := range m.Experts {
		for _, i := range modules {
			shape := matrixShapes(layout, layout.Modules[i])[0]
			at := min(e, shape[0]-1) * layout.Rank
			a.add(copiedPiece{number: number, module: i, matrix: 0, from: at, to: at + layout.Rank, cols: shape[2]}, shape[2])
		}
	}
	width := len(modules) * layout.Rank
	for k, i := range modules {
		shape := matrixShapes(layout, layout.Modules[i])[1]
		p := copiedPiece{number: number, module: i, matrix: 1, to: shape[0] * shape[1], cols: layout.Rank, before: k * layout.Rank, width: width, experts: m.Experts, copies: shape[0]}
		if c.form == interleavedExperts && len(modules) == 2 {
			p.turn = k + 1
		}
		b.parts = append(b.parts, p)
		b.rows, b.cols = b.rows+shape[1], width*m.Experts
	}
	return []copied{a, b}
}

// upBeside is the number of the module of experts' ups, where one of their gates is given; -1 if there is none with LoRA.
func upBeside(layout *lora.Layout, gate int) int {
	name := strings.TrimSuffix(layout.Modules[gate].Name, lora.ExpertGate) + lora.ExpertUp
	for i, m := range layout.Modules {
		if m.Name == name && layout.Has(i) {
			return i
		}
	}
	return -1
}

// write writes the values of a piece.
func (p copiedPiece) write(out io.Writer, values []float32) error {
	if p.experts > 0 {
		return p.writeSpread(out, values)
	}
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

// writeSpread writes the B of all experts as one matrix, whose row o has column i of expert e's row o as its column (before + i)·experts + e.
func (p copiedPiece) writeSpread(out io.Writer, values []float32) error {
	for o := range p.to / p.copies {
		if err := p.writeSpreadRow(out, values, o); err != nil {
			return err
		}
	}
	return nil
}

func (p copiedPiece) writeSpreadRow(out io.Writer, values []float32, o int) error {
	rows, row := p.to/p.copies, make([]float32, p.width*p.experts)
	for e := range p.experts {
		own := values[(min(e, p.copies-1)*rows+o)*p.cols:][:p.cols]
		for i, v := range own {
			row[(p.before+i)*p.experts+e] = v
		}
	}
	return safetensors.WriteFloat32s(out, row)
}

// writeTurns writes, of pieces whose rows take turns, nothing for the first one, whose values it keeps, and both for the second one.
func (c *blockCopy) writeTurns(out io.Writer, i int, values []float32) error {
	p := c.pieces[i]
	if p.turn == 1 {
		c.kept = append(c.kept[:0], values...)
		return nil
	}
	for o := range p.to / p.copies {
		if err := c.pieces[i-1].writeSpreadRow(out, c.kept, o); err != nil {
			return err
		}
		if err := p.writeSpreadRow(out, values, o); err != nil {
			return err
		}
	}
	c.kept = nil
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
		write := func() error { return c.pieces[i].write(out, c.values[0]) }
		if c.pieces[i].turn > 0 {
			write = func() error { return c.writeTurns(out, i, c.values[0]) }
		}
		if err := write(); err != nil {
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
