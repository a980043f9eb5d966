package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// gatherer puts the weights of a sharded model together for the passes of one workspace: each layer as a whole in one of two places, in turn, so that the next one is copied while one runs; the embedding and the head, which
// may be larger than many layers, in pieces, in two places of their own; a training pass holds the whole head while it goes through its logits, if there is memory. Base weights never change, so a copy needs nobody else: ranks do not wait for each other, and those without work take no part. It belongs to the
// goroutine that runs the passes.
type gatherer struct {
	model  *Model
	layers []gathered // the model's, over the matrices of their places; empty while no memory is held
	head   nn.Linear
	stream *stream
	places [2]place
	full   bool // there was no memory for the whole head in this pass

	matrices []tensor.Matrix // that are held
	bytes    int64
	room     func(bytes int64) error // as Workspace.Bound
}

// gathered is a layer and what puts it together.
type gathered struct {
	layer  nn.Layer
	copies []tensor.MatrixCopy
}

// place is memory for a layer, or for a piece of the embedding or the head.
type place struct {
	holds  int // number of the layer or the piece + 1; 0 = none
	finish func() error
}

// start begins to put number i there, unless it is there.
func (p *place) start(device tensor.Device, i int, copies []tensor.MatrixCopy) error {
	if p.holds == i+1 {
		return nil
	}
	if err := p.settle(); err != nil {
		return err
	}
	p.holds = 0
	finish, err := device.StartCopies(copies)
	if err != nil {
		return fmt.Errorf("gather weights: %w", err)
	}
	p.holds, p.finish = i+1, finish
	return nil
}

// settle waits for what is being copied.
func (p *place) settle() error {
	if p.finish == nil {
		return nil
	}
	finish := p.finish
	p.finish = nil
	if err := finish(); err != nil {
		p.holds = 0
		return fmt.Errorf("gather weights: %w", err)
	}
	return nil
}

// newGatherer makes one that holds no memory; nil for a model that is not sharded.
func newGatherer(m *Model) *gatherer {
	if len(m.spreads) == 0 {
		return nil
	}
	return &gatherer{model: m}
}

// reserve takes the memory, if it is not held.
func (g *gatherer) reserve() error {
	if g == nil || len(g.layers) > 0 {
		return nil
	}
	if err := g.take(); err != nil {
		g.free()
		return fmt.Errorf("memory for gathered weights: %w", err)
	}
	return nil
}

// shape is what makes matrices alike.
type shape struct {
	dtype   tensor.DType
	columns int // that have one scale, in eight bits; else 0
	out, in int
}

// bytes is the most that a matrix takes.
func (s shape) bytes() int64 {
	if s.columns > 0 {
		return int64(max(tensor.E4M3Bytes(s.out, s.in, s.columns), tensor.GroupedE4M3Bytes(s.out, s.in, s.columns)))
	}
	return int64(tensor.MatrixBytes(s.dtype, s.out, s.in))
}

func (g *gatherer) take() error {
	m := g.model
	var failed error
	matrix := func(s shape) tensor.Matrix {
		w, err := g.matrix(s)
		failed = errors.Join(failed, err)
		return w
	}
	var layers []gathered
	var free [2]map[shape][]tensor.Matrix // of each place: layers that share it use its matrices again
	for i := range free {
		free[i] = map[shape][]tensor.Matrix{}
	}
	for i, l := range m.layers {
		at, used := free[i%2], map[shape]int{}
		var to gathered
		to.layer = l.WithWeights(func(w tensor.Matrix) tensor.Matrix {
			s := shape{w.DType(), tensor.ScaleColumns(w), w.Out(), w.In()}
			n := used[s]
			used[s]++
			if n == len(at[s]) {
				at[s] = append(at[s], matrix(s))
			}
			if failed == nil {
				to.copies = w.(*spread).copies(to.copies, at[s][n], 0, s.out)
			}
			return at[s][n]
		})
		if failed != nil {
			return failed
		}
		layers = append(layers, to)
	}
	head := m.head.Weight.(*spread)
	s := shape{head.dtype, head.columns, min(g.pieceRows(), roundUp(head.out, tensor.MatrixRows)), head.in}
	buffers := [2]tensor.Matrix{matrix(s), matrix(s)}
	if failed != nil {
		return failed
	}
	g.stream = newStream(g, head, buffers)
	g.head = m.head
	g.head.Weight = g.stream
	g.layers = layers
	return nil
}

// pieceRows is how many rows of embedding and head are held at once: as many as take the memory of the largest matrix of a layer, and at least one block.
func (g *gatherer) pieceRows() int {
	most := 0
	for _, l := range g.model.layers {
		l.WithWeights(func(w tensor.Matrix) tensor.Matrix {
			most = max(most, w.Out()*w.In())
			return w
		})
	}
	return max(1, most/g.model.Config.HiddenSize/tensor.MatrixRows) * tensor.MatrixRows
}

// matrix takes one from the device.
func (g *gatherer) matrix(s shape) (tensor.Matrix, error) {
	most := s.bytes()
	if g.room != nil {
		if err := g.room(most); err != nil {
			return nil, err
		}
	}
	w, err := newMatrix(g.model.Device, s.dtype, s.columns, s.out, s.in)
	if err != nil {
		g.give(most)
		return nil, err
	}
	g.give(most - int64(w.Bytes())) // what it is exactly
	g.matrices, g.bytes = append(g.matrices, w), g.bytes+int64(w.Bytes())
	return w, nil
}

// give tells that memory has not been taken after all, or has been given back.
func (g *gatherer) give(bytes int64) {
	if g.room != nil && bytes > 0 {
		_ = g.room(-bytes)
	}
}

// held is the device memory held.
func (g *gatherer) held() int64 {
	if g == nil {
		return 0
	}
	return g.bytes
}

// layer gives layer i, put together, and begins with layer next, or with the head if next is one beyond the last; -1: with nothing.
func (g *gatherer) layer(i, next int) (nn.Layer, error) {
	at := &g.places[i%2]
	if err := at.start(g.model.Device, i, g.layers[i].copies); err != nil {
		return nil, err
	}
	if err := at.settle(); err != nil {
		return nil, err
	}
	var err error
	switch {
	case next == len(g.layers):
		err = g.stream.start(0)
	case next >= 0:
		err = g.places[next%2].start(g.model.Device, next, g.layers[next].copies)
	}
	return g.layers[i].layer, err
}

// holdHead has the head as a whole put together, for the products to come until releaseHead. Where there is no memory for it they go on in pieces.
func (g *gatherer) holdHead() error {
	if g == nil || g.full || g.stream.whole != nil {
		return nil
	}
	s := g.stream
	m, err := g.matrix(shape{s.dtype, s.columns, s.out, s.in})
	if errors.Is(err, tensor.ErrMemory) {
		g.full = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("memory for the gathered head: %w", err)
	}
	s.whole = m
	return s.all.start(g.model.Device, 0, s.copies(nil, m, 0, s.out))
}

// releaseHead gives its memory back.
func (g *gatherer) releaseHead() error {
	if g == nil {
		return nil
	}
	g.full = false
	if g.stream == nil || g.stream.whole == nil {
		return nil
	}
	s := g.stream
	err := s.all.settle()
	s.whole.Free()
	g.matrices = slices.DeleteFunc(g.matrices, func(m tensor.Matrix) bool { return m == s.whole })
	bytes := int64(s.whole.Bytes())
	g.bytes -= bytes
	g.give(bytes)
	s.whole, s.all = nil, place{}
	return err
}

// settle waits for all that is being copied: nothing reads other ranks' memory when it returns. What has been copied stays.
func (g *gatherer) settle() error {
	if g == nil {
		return nil
	}
	err := errors.Join(g.places[0].settle(), g.places[1].settle())
	if g.stream != nil {
		err = errors.Join(err, g.stream.places[0].settle(), g.stream.places[1].settle(), g.stream.all.settle())
	}
	return err
}

// free gives the memory back.
func (g *gatherer) free() {
	if g == nil {
		return
	}
	_ = g.settle() // an error would have been that of a pass, which has ended
	for _, w := range g.matrices {
		w.Free()
	}
	g.give(g.bytes)
	*g = gatherer{model: g.model, room: g.room}
}

// stream is the head, in pieces; and memory in which rows of the embedding are put together. It implements nn.Streamed.
type stream struct {
	*spread
	gatherer *gatherer
	buffers  [2]tensor.Matrix
	places   [2]place // of piece i: i%2
	pieces   []piece

	whole tensor.Matrix // all of it, while a pass holds it; else nil
	all   place
}

type piece struct {
	from   int
	matrix tensor.Matrix
	copies []tensor.MatrixCopy
}

func newStream(g *gatherer, head *spread, buffers [2]tensor.Matrix) *stream {
	s := &stream{spread: head, gatherer: g, buffers: buffers}
	most := buffers[0].Out()
	for from := 0; from < head.out; from += most {
		to := min(from+most, head.out)
		m := buffers[len(s.pieces)%2]
		if to-from < most {
			m = m.Rows(0, to-from)
		}
		s.pieces = append(s.pieces, piece{from, m, head.copies(nil, m, from, to)})
	}
	return s
}

// start begins with piece i.
func (s *stream) start(i int) error {
	return s.places[i%2].start(s.gatherer.model.Device, i, s.pieces[i].copies)
}

// Stream implements nn.Streamed.
func (s *stream) Stream(visit func(from int, piece tensor.Matrix) error) error {
	if s.whole != nil {
		if err := s.all.settle(); err != nil {
			return err
		}
		return visit(0, s.whole)
	}
	for i, p := range s.pieces {
		if err := s.start(i); err != nil {
			return err
		}
		if err := s.places[i%2].settle(); err != nil {
			return err
		}
		if i+1 < len(s.pieces) {
			if err := s.start(i + 1); err != nil {
				return err
			}
		}
		if err := visit(p.from, p.matrix); err != nil {
			return err
		}
	}
	return nil
}

// gatherRows writes rows ids of the embedding to dst: blocks of rows that some of them need are put together, as many as there is memory for at once.
func (g *gatherer) gatherRows(dst tensor.Tensor, embedding *spread, ids []int32) error {
	s, device := g.stream, g.model.Device
	if err := g.places[0].start(device, 0, g.layers[0].copies); err != nil { // which comes next
		return err
	}
	buffer, at := s.buffers[0], &s.places[0]
	if err := at.settle(); err != nil {
		return err
	}
	at.holds = 0
	room := buffer.Out() / tensor.MatrixRows
	blocks := make(map[int32]int, room) // number of a block in the buffer
	rows := make([]int32, 0, len(ids))  // of the buffer
	for from := 0; from < len(ids); {
		clear(blocks)
		rows = rows[:0]
		var copies []tensor.MatrixCopy
		to := from
		for ; to < len(ids); to++ {
			id := ids[to]
			if id < 0 { // another rank's
				rows = append(rows, id)
				continue
			}
			block := id / tensor.MatrixRows
			n, ok := blocks[block]
			if !ok {
				if n = len(blocks); n == room {
					break
				}
				blocks[block] = n
				first := int(block) * tensor.MatrixRows
				end := min(first+tensor.MatrixRows, embedding.out)
				into := buffer.Rows(n*tensor.MatrixRows, n*tensor.MatrixRows+end-first)
				copies = embedding.copies(copies, into, first, end)
			}
			rows = append(rows, int32(n*tensor.MatrixRows)+id%tensor.MatrixRows)
		}
		finish, err := device.StartCopies(copies)
		if err != nil {
			return fmt.Errorf("gather weights: %w", err)
		}
		if err := finish(); err != nil {
			return fmt.Errorf("gather weights: %w", err)
		}
		if err := device.GatherRows(dst.Slice(from, to), buffer, rows); err != nil {
			return err
		}
		from = to
	}
	return nil
}
