package model

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// spread is a base weight whose rows are shared out over the copies of a model that is sharded (LoadSharded): each copy holds some, on its device. It says what the whole would be, for the layers that are made of it, and has
// no rows itself: no device takes it for a product. A workspace puts it together (gatherer).
type spread struct {
	dtype   tensor.DType
	columns int // that have one scale, in eight bits; else 0
	out, in int
	shards  []shard // by rows, ascending, without gaps
}

// shard is rows of a weight on one device.
type shard struct {
	rows   extent
	matrix tensor.Matrix // nil if there are no rows
}

// newSpread cuts a matrix into n shards at multiples of tensor.MatrixRows.
func newSpread(dtype tensor.DType, columns, out, in, n int) *spread {
	s := &spread{dtype: dtype, columns: columns, out: out, in: in}
	blocks := (out + tensor.MatrixRows - 1) / tensor.MatrixRows
	for i := range n {
		rows := share(blocks, i, n).times(tensor.MatrixRows)
		s.shards = append(s.shards, shard{rows: extent{min(rows.from, out), min(rows.to, out)}})
	}
	return s
}

// shardOf is the number of the shard that copy c of n holds of matrix number turn of its model: rows that do not divide are held by each in turn.
func shardOf(c, turn, n int) int { return ((c-turn)%n + n) % n }

func (s *spread) Out() int            { return s.out }
func (s *spread) In() int             { return s.in }
func (s *spread) DType() tensor.DType { return s.dtype }

// ScaleColumns is what tensor.ScaleColumns gives.
func (s *spread) ScaleColumns() int { return s.columns }

// Bytes is 0: the memory is that of the shards.
func (s *spread) Bytes() int { return 0 }

// Rows gives nothing: there is no such matrix.
func (s *spread) Rows(int, int) tensor.Matrix { return nil }

// Free does nothing: the shards are freed with the models that hold them.
func (s *spread) Free() {}

// copies appends what puts rows [from, to), from a multiple of tensor.MatrixRows, together in dst, from its row 0.
func (s *spread) copies(list []tensor.MatrixCopy, dst tensor.Matrix, from, to int) []tensor.MatrixCopy {
	for _, p := range s.shards {
		a, b := max(from, p.rows.from), min(to, p.rows.to)
		if a >= b {
			continue
		}
		src := p.matrix
		if a > p.rows.from || b < p.rows.to {
			src = src.Rows(a-p.rows.from, b-p.rows.from)
		}
		list = append(list, tensor.MatrixCopy{Dst: dst, Row: a - from, Src: src})
	}
	return list
}

// link makes each copy's weights know the shards that the others hold. models are the copies of one rank.
func link(models []*Model) {
	for turn := range models[0].spreads {
		for holder, m := range models {
			i := shardOf(holder, turn, len(models))
			for _, other := range models {
				other.spreads[turn].shards[i].matrix = m.spreads[turn].shards[i].matrix
			}
		}
	}
}

// measuredCopies gives the models of all copies over devices without memory, of which the first one's have been loaded: the others differ from it in the shards that they hold.
func measuredCopies(first []*Model, devices [][]tensor.Device) ([][]*Model, error) {
	all := [][]*Model{first}
	for c := 1; c < len(devices); c++ {
		var ranks []*Model
		for rank, m := range first {
			other := *m
			other.Device, other.matrices = devices[c][rank], nil
			for turn, s := range m.spreads {
				own := &s.shards[shardOf(c, turn, len(devices))]
				if own.rows.size() == 0 {
					continue
				}
				var err error
				if own.matrix, err = newMatrix(other.Device, s.dtype, s.columns, own.rows.size(), s.in); err != nil {
					return all, err
				}
				other.matrices = append(other.matrices, own.matrix)
			}
			ranks = append(ranks, &other)
		}
		all = append(all, ranks)
	}
	return all, nil
}
