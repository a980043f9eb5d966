package model

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Source is a matrix of Out × In in a model's files, as an architecture wants it, wherever they hold its rows and in whatever form. It is a value; nothing is read before it is packed, and no more of it then than some
// rows at a time. It belongs to the Loader that gave it, and to its goroutine.
type Source struct {
	Out, In int

	name    string // of the tensor, for errors
	read    reader
	numbers *numbers // nil: its rows cannot be had so
}

// reader gives rows from row from on: at least one, at most n of them. What it gives is valid until any source of the same Loader is read again.
type reader func(from, n int) (rowChunk, error)

// scratch is memory for rows that are computed: one for all sources of a Loader, of which there are tens of thousands where layers have experts.
type scratch struct{ bytes []byte }

// take gives n bytes, which are valid until the next call.
func (s *scratch) take(n int) []byte {
	if cap(s.bytes) < n {
		s.bytes = make([]byte, n)
	}
	return s.bytes[:n]
}

// rowChunk is rows of a source as PackRows takes them.
type rowChunk struct {
	rows  int
	dtype string // of tensor.SourceSizes; of numbers none
	data  []byte
	file  int // bytes of the files that they came from

	scales []float32 // of numbers; with none the rows are zero
}

// Slice is rows [from, to).
func (s Source) Slice(from, to int) Source {
	return s.with(to-from, from%tensor.E4M3Rows == 0, func(read reader) reader {
		return func(at, n int) (rowChunk, error) { return read(from+at, n) }
	})
}

// with is a source of so many rows that are made of those of s, in each of its forms. aligned tells that rows which have scales in common are still those.
func (s Source) with(out int, aligned bool, rows func(reader) reader) Source {
	made := Source{Out: out, In: s.In, name: s.name, read: rows(s.read)}
	if s.numbers != nil && aligned {
		made.numbers = &numbers{rows(s.numbers.read), s.numbers.columns}
	}
	return made
}

// pieces has pieces of the source one below another.
func (s Source) pieces(pieces []extent) Source {
	if len(pieces) == 1 {
		return s.Slice(pieces[0].from, pieces[0].to)
	}
	ends, out, aligned := make([]int, len(pieces)), 0, true
	for i, p := range pieces {
		aligned = aligned && p.from%tensor.E4M3Rows == 0 && out%tensor.E4M3Rows == 0
		out += p.size()
		ends[i] = out
	}
	return s.with(out, aligned, func(read reader) reader {
		return func(from, n int) (rowChunk, error) {
			i := sort.SearchInts(ends, from+1) // the piece that row from is in
			return read(pieces[i].to-ends[i]+from, min(n, ends[i]-from))
		}
	})
}

// Select has row rows[i] of the source as its row i.
func (s Source) Select(rows []int) Source {
	return s.with(len(rows), false, func(read reader) reader { return selected(read, rows) })
}

// selected reads rows[i] as row i.
func selected(read reader, rows []int) reader {
	return func(from, n int) (rowChunk, error) {
		var all rowChunk
		for _, row := range rows[from : from+n] {
			c, err := read(row, 1)
			if err != nil {
				return c, err
			}
			if all.rows == 0 {
				all.data = make([]byte, 0, n*len(c.data)) // not kept: a model may have a selection for each expert
			} else if c.dtype != all.dtype {
				break
			}
			all = rowChunk{rows: all.rows + 1, dtype: c.dtype, data: append(all.data, c.data...), file: all.file + c.file}
		}
		return all, nil
	}
}

// stride is how many rows a matrix of out rows takes in a stack: views of a matrix begin at multiples of tensor.MatrixRows.
func stride(out int) int { return roundUp(out, tensor.MatrixRows) }

// stacked has sources, all of the same size, one below another, each from a multiple of tensor.MatrixRows on; what is between is zero.
func stacked(sources []Source) Source {
	first := sources[0]
	step := stride(first.Out)
	var zeros []byte
	all := Source{Out: step * len(sources), In: first.In, name: first.name, read: func(from, n int) (rowChunk, error) {
		s, row := sources[from/step], from%step
		if row < s.Out {
			return s.read(row, min(n, s.Out-row))
		}
		n = min(n, step-row)
		if need := n * s.In * 2; len(zeros) < need {
			zeros = make([]byte, need)
		}
		return rowChunk{rows: n, dtype: "BF16", data: zeros[:n*s.In*2]}, nil
	}}
	all.numbers = stackedNumbers(sources, step)
	return all
}

// rowsOf has the rows of a tensor as they are; data may be a part of the tensor's.
func rowsOf(t safetensors.Tensor, data []byte, out, in int) Source {
	row := in * tensor.SourceSizes[t.DType]
	return Source{Out: out, In: in, name: t.Name, read: func(from, n int) (rowChunk, error) {
		return rowChunk{rows: n, dtype: t.DType, data: data[from*row : (from+n)*row], file: n * row}, nil
	}}
}

// columnsOf has as its rows the columns of a tensor of in × out.
func (l *Loader) columnsOf(t safetensors.Tensor, data []byte, out, in int) Source {
	size := tensor.SourceSizes[t.DType]
	return Source{Out: out, In: in, name: t.Name, read: func(from, n int) (rowChunk, error) {
		b := l.scratch.take(n * in * size)
		for k := range in {
			column := data[(k*out+from)*size:]
			for r := range n {
				copy(b[(r*in+k)*size:(r*in+k+1)*size], column[r*size:(r+1)*size])
			}
		}
		return rowChunk{rows: n, dtype: t.DType, data: b, file: len(b)}, nil
	}}
}

// find looks a tensor up and checks its shape.
func (l *Loader) find(name string, shape ...int) (safetensors.Tensor, error) {
	if l.files.absent != nil {
		return l.stated(name, shape)
	}
	t, ok := l.files.Tensor(name)
	if !ok {
		if bare := strings.TrimPrefix(name, textPrefix); bare != name {
			if _, ok := l.files.Tensor(bare); ok {
				return t, fmt.Errorf("tensor %q is missing, but there is %q: the files are of the bare model without its head; load it with AutoModelForCausalLM of transformers and write it with save_pretrained", name, bare)
			}
		}
		return t, fmt.Errorf("tensor %q is missing", l.files.inFile(name))
	}
	if !slices.Equal(t.Shape, shape) {
		return t, fmt.Errorf("tensor %q has shape %v, the configuration makes it %v", t.Name, t.Shape, shape)
	}
	l.used[t.Name] = true
	return t, nil
}

// findFloats is find for a tensor of a type that is not quantized.
func (l *Loader) findFloats(name string, shape ...int) (safetensors.Tensor, error) {
	t, err := l.find(name, shape...)
	if err != nil {
		return t, err
	}
	return t, checkFloats(t)
}

func checkFloats(t safetensors.Tensor) error {
	if tensor.SourceSizes[t.DType] == 0 {
		return fmt.Errorf("tensor %q has type %s, only F32, BF16 and F16 are supported", t.Name, t.DType)
	}
	return nil
}

// count adds a tensor's parameters to the model's, once.
func (l *Loader) count(t safetensors.Tensor, n int) {
	if !l.counted[t.Name] {
		l.counted[t.Name] = true
		l.model.Parameters += int64(n)
	}
}

// Has tells whether the files have a tensor.
func (l *Loader) Has(name string) bool {
	return l.files.has(name)
}

// Weight is the matrix NAME.weight, out × in, quantized or not.
func (l *Loader) Weight(name string, out, in int) (Source, error) {
	const weight = ".weight"
	if q := l.Config.Quantization; q != nil && q.integers() != "" && !l.Has(name+weight) && l.Has(name+q.integers()) {
		switch {
		case q.keeps(name, l.files.inFile(name)):
			return Source{}, fmt.Errorf("tensor %q is there, but quantization_config says that %s is not quantized", l.files.inFile(name+q.integers()), name)
		case q.method == packedMethod:
			return l.packed(name, out, in)
		}
		return l.zeroPointed(name, out, in)
	}
	t, err := l.find(name+weight, out, in)
	if err != nil {
		return Source{}, err
	}
	all, err := l.matricesOf(t, name, name+weight+"_scale_inv", 1, out, in, rowsOf)
	if err != nil {
		return Source{}, err
	}
	return all[0], nil
}

// Matrices are those of a tensor of n × out × in.
func (l *Loader) Matrices(name string, n, out, in int) ([]Source, error) {
	t, err := l.find(name, n, out, in)
	if err != nil {
		return nil, err
	}
	return l.matricesOf(t, name, name+"_scale_inv", n, out, in, rowsOf)
}

// TransposedMatrices are matrices of out × in, of which a tensor of n × in × out has the transposed ones.
func (l *Loader) TransposedMatrices(name string, n, out, in int) ([]Source, error) {
	t, err := l.findFloats(name, n, in, out)
	if err != nil {
		return nil, err
	}
	return l.matricesOf(t, name, "", n, out, in, l.columnsOf)
}

// matricesOf are n matrices that a tensor has one below another.
func (l *Loader) matricesOf(t safetensors.Tensor, module, scales string, n, out, in int, form func(t safetensors.Tensor, data []byte, out, in int) Source) ([]Source, error) {
	l.count(t, n*out*in)
	if q := l.Config.Quantization; q != nil && q.method == fp8Method && (t.DType == "F8_E4M3" || l.files.absent != nil && q.expected(module, l.files.inFile(module))) {
		if q.keeps(module, l.files.inFile(module)) {
			return nil, fmt.Errorf("tensor %q has type %s, but quantization_config says that %s is not quantized", t.Name, t.DType, module)
		}
		return l.fp8(t, scales, n, out, in)
	}
	if err := checkFloats(t); err != nil {
		return nil, err
	}
	each := len(t.Data) / n
	if l.measures() {
		return slices.Repeat([]Source{form(t, t.Data[:each], out, in)}, n), nil
	}
	var all []Source
	for i := range n {
		all = append(all, form(t, t.Data[i*each:(i+1)*each], out, in))
	}
	return all, nil
}

// Pack packs columns of a source, all its rows, until ctx ends; where the model is sharded, those of the rows that this copy holds.
func (l *Loader) Pack(ctx context.Context, s Source, cols extent) (tensor.Matrix, error) {
	if l.copies == 1 {
		return l.pack(ctx, s, cols)
	}
	if strings.HasSuffix(s.name, embeddingName) || strings.HasSuffix(s.name, headName+".weight") { // they are put together in the same memory (gatherer)
		s.numbers = nil
	}
	all := newSpread(l.model.DType, s.scaleColumns(cols), s.Out, cols.size(), l.copies)
	own := &all.shards[shardOf(l.copy, len(l.model.spreads), l.copies)]
	l.model.spreads = append(l.model.spreads, all)
	if own.rows.size() == 0 {
		return all, nil
	}
	var err error
	own.matrix, err = l.pack(ctx, s.Slice(own.rows.from, own.rows.to), cols)
	return all, err
}

func (l *Loader) pack(ctx context.Context, s Source, cols extent) (tensor.Matrix, error) {
	w, err := newMatrix(l.model.Device, l.model.DType, s.scaleColumns(cols), s.Out, cols.size())
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", s.name, err)
	}
	l.model.matrices = append(l.model.matrices, w)
	if l.measures() {
		return w, nil
	}
	read, pack := s.read, l.packRows
	if tensor.ScaleColumns(w) > 0 {
		read, pack = s.numbers.read, l.packNumbers
	}
	for from := 0; from < s.Out; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		const widest = 4 // bytes of an element
		c, err := read(from, min(s.Out-from, max(1, packBytes/(s.In*widest))))
		if err != nil {
			return nil, err
		}
		if err := pack(w, from, s, c, cols); err != nil {
			return nil, err
		}
		from += c.rows
		l.gauge.advance(c.file / s.In * cols.size())
	}
	return w, nil
}

// newMatrix allocates a matrix, in eight bits where it has scales for so many columns.
func newMatrix(device tensor.Device, dtype tensor.DType, columns, out, in int) (tensor.Matrix, error) {
	if columns > 0 {
		return device.NewE4M3Matrix(out, in, columns)
	}
	return device.NewMatrix(dtype, out, in)
}

// packRows packs columns of rows of a source.
func (l *Loader) packRows(w tensor.Matrix, from int, s Source, c rowChunk, cols extent) error {
	if err := l.model.Device.PackRows(w, from, c.rows, c.dtype, l.columns(s, c, cols, tensor.SourceSizes[c.dtype])); err != nil {
		return fmt.Errorf("tensor %q: %w", s.name, err)
	}
	return nil
}

// columns are the bytes of those columns of a chunk, of so many bytes an element.
func (l *Loader) columns(s Source, c rowChunk, cols extent, element int) []byte {
	if cols.size() == s.In {
		return c.data
	}
	l.some = l.some[:0]
	row := len(c.data) / c.rows
	for at := 0; at < len(c.data); at += row {
		l.some = append(l.some, c.data[at+cols.from*element:at+cols.to*element]...)
	}
	return l.some
}

// Stack is matrices of the same size in one: of each of a layer's experts.
type Stack struct {
	Matrix tensor.Matrix // of Stride · Count rows
	Count  int
	Out    int
	Stride int // rows from one to the next, a multiple of tensor.MatrixRows; those behind Out are zero
}

// At is a view of matrix i.
func (s Stack) At(i int) tensor.Matrix { return s.Matrix.Rows(i*s.Stride, i*s.Stride+s.Out) }

// PackStack packs columns of sources, all of the same size, into one matrix.
func (l *Loader) PackStack(ctx context.Context, sources []Source, cols extent) (Stack, error) {
	m, err := l.Pack(ctx, stacked(sources), cols)
	return Stack{Matrix: m, Count: len(sources), Out: sources[0].Out, Stride: stride(sources[0].Out)}, err
}
