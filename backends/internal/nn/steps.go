package nn

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// A pass over many tokens is cut into device steps of about Pass.StepWork operations, between which it yields. Cuts change no bits: products are cut at the weight's outputs (in the backward pass of the input the
// chain goes on from piece to piece; where it has segments, at rows), other operations at rows, attention's backward pass at keys.

// did counts work that was done and yields when a step's worth has been.
func (p *Pass) did(work float64) error {
	if p.StepWork <= 0 {
		return nil
	}
	p.ahead += work
	if p.work += work; p.work < p.StepWork {
		return nil
	}
	return p.yield()
}

func (p *Pass) yield() error {
	p.work = 0
	if err := p.pace(); err != nil {
		return err
	}
	if p.Yield == nil {
		return nil
	}
	return p.Yield()
}

// pace keeps the host from launching a whole pass before the device has begun with it: what comes between two steps would wait for all of it.
func (p *Pass) pace() error {
	if p.StepWork <= 0 || p.ahead < p.StepWork {
		return nil
	}
	p.ahead = 0
	if d, ok := p.Device.(tensor.Paced); ok {
		return d.Pace()
	}
	return nil
}

// piece cuts n into equal pieces, multiples of unit but for the last, such that each has about a step's work, and gives their size.
func (p *Pass) piece(n, unit int, work float64) int {
	if p.StepWork <= 0 || work <= p.StepWork {
		return n
	}
	count := min(int(work/p.StepWork)+1, n)
	size := (n + count - 1) / count
	return (size + unit - 1) / unit * unit
}

func productWork(rows int, w tensor.Matrix) float64 {
	return 2 * float64(rows) * float64(w.Out()) * float64(w.In())
}

// Streamed is a weight of which only some rows are on the device at a time.
type Streamed interface {
	tensor.Matrix
	// Stream calls visit with pieces of the weight: rows from on, ascending, without gaps, each from a multiple of tensor.MatrixRows. A piece is gone when visit returns. visit's error ends it and is returned.
	Stream(visit func(from int, piece tensor.Matrix) error) error
}

// matMul is Device.MatMul in steps, with the segments of the inner axis.
func (p *Pass) matMul(y, x tensor.Tensor, w tensor.Matrix, segments tensor.Segments) error {
	if s, ok := w.(Streamed); ok {
		return s.Stream(func(from int, piece tensor.Matrix) error {
			return p.matMul(y.Columns(from, from+piece.Out()), x, piece, segments)
		})
	}
	work := productWork(x.Rows, w)
	size := p.piece(w.Out(), tensor.MatrixRows, work)
	for from := 0; from < w.Out(); from += size {
		to, part := min(from+size, w.Out()), w
		if size < w.Out() {
			part = w.Rows(from, to)
		}
		if err := p.multiply(y.Columns(from, to), x, part, segments); err != nil {
			return err
		}
		if err := p.did(work * float64(to-from) / float64(w.Out())); err != nil {
			return err
		}
	}
	return nil
}

// multiply is Device.MatMul with segments.
func (p *Pass) multiply(y, x tensor.Tensor, w tensor.Matrix, segments tensor.Segments) error {
	if segments.Count == 0 {
		return p.Device.MatMul(y, x, w, false)
	}
	p.groups = append(p.groups[:0], tensor.RowGroup{To: x.Rows, Matrix: w})
	return p.alone(tensor.Multiplication{Y: y, X: x, Groups: p.groups, Segments: segments})
}

// alone is Device.MatMuls of one.
func (p *Pass) alone(m tensor.Multiplication) error {
	p.one[0] = m
	p.stages = append(p.stages[:0], p.one[:])
	return p.Device.MatMuls(p.stages...)
}

// matMulTransposed is Device.MatMulTransposed in steps.
func (p *Pass) matMulTransposed(dx, dy tensor.Tensor, w tensor.Matrix, accumulate bool) error {
	if s, ok := w.(Streamed); ok {
		return s.Stream(func(from int, piece tensor.Matrix) error {
			return p.matMulTransposed(dx, dy.Columns(from, from+piece.Out()), piece, accumulate || from > 0)
		})
	}
	work := productWork(dx.Rows, w)
	size := p.piece(w.Out(), tensor.MatrixRows, work)
	if size >= w.Out() {
		if err := p.Device.MatMulTransposed(dx, dy, w, accumulate); err != nil {
			return err
		}
		return p.did(work)
	}
	for from := 0; from < w.Out(); from += size {
		to := min(from+size, w.Out())
		if err := p.Device.MatMulTransposed(dx, dy.Columns(from, to), w.Rows(from, to), accumulate || from > 0); err != nil {
			return err
		}
		if err := p.did(work * float64(to-from) / float64(w.Out())); err != nil {
			return err
		}
	}
	return nil
}

// matMulGroups is Device.MatMulGroups in steps, with the segments of the inner axis.
func (p *Pass) matMulGroups(y, x tensor.Tensor, groups []tensor.RowGroup, accumulate bool, segments tensor.Segments) error {
	return p.grouped(tensor.Multiplication{Y: y, X: x, Groups: groups, Accumulate: accumulate, Segments: segments})
}

// matMulTransposedGroups is Device.MatMulTransposedGroups in steps, with the segments of the inner axis.
func (p *Pass) matMulTransposedGroups(dx, dy tensor.Tensor, groups []tensor.RowGroup, accumulate bool, segments tensor.Segments) error {
	return p.grouped(tensor.Multiplication{Y: dx, X: dy, Groups: groups, Accumulate: accumulate, Segments: segments, Transposed: true})
}

func (p *Pass) grouped(m tensor.Multiplication) error {
	y, x, groups := m.Y, m.X, m.Groups
	if len(groups) == 0 {
		return nil
	}
	work := 0.0
	for _, g := range groups {
		work += productWork(g.To-g.From, g.Matrix)
	}
	if p.piece(y.Rows, 1, work) >= y.Rows {
		if err := p.groupsAtOnce(m); err != nil {
			return err
		}
		return p.did(work)
	}
	return p.rows(y.Rows, work/float64(y.Rows), func(from, to int) error {
		p.clipped = p.clipped[:0]
		for _, g := range groups {
			if g.From, g.To = max(g.From, from)-from, min(g.To, to)-from; g.From < g.To {
				p.clipped = append(p.clipped, g)
			}
		}
		part := m
		part.Y, part.X, part.Groups = y.Slice(from, to), x.Slice(from, to), p.clipped
		return p.groupsAtOnce(part)
	})
}

func (p *Pass) groupsAtOnce(m tensor.Multiplication) error {
	switch {
	case m.Segments.Count > 0:
		return p.alone(m)
	case m.Transposed:
		return p.Device.MatMulTransposedGroups(m.Y, m.X, m.Groups, m.Accumulate)
	}
	return p.Device.MatMulGroups(m.Y, m.X, m.Groups, m.Accumulate)
}

// outerProducts is Device.OuterProducts in steps: as many at once as are no more than one, and of what is more by itself some rows at a time.
func (p *Pass) outerProducts(products []tensor.OuterProduct) error {
	for len(products) > 0 {
		n, work := 0, 0.0
		for ; n < len(products); n++ {
			more := outerWork(products[n].A.Rows, products[n].G)
			if p.StepWork > 0 && work+more > p.StepWork {
				break
			}
			work += more
		}
		if n == 0 {
			if err := p.outerProduct(products[0]); err != nil {
				return err
			}
			products = products[1:]
			continue
		}
		if err := p.Device.OuterProducts(products[:n]); err != nil {
			return err
		}
		if err := p.did(work); err != nil {
			return err
		}
		products = products[n:]
	}
	return nil
}

// outerProduct is one of them, some rows at a time.
func (p *Pass) outerProduct(o tensor.OuterProduct) error {
	second := o.A.Rows - o.Apart
	part := func(from, to, apart int) error {
		p.outer[0] = tensor.OuterProduct{G: o.G, A: o.A.Slice(from, to), B: o.B.Slice(from, to), First: o.First && from == 0, Apart: apart}
		if o.Positions != nil {
			p.outer[0].Positions = o.Positions[from:to]
		}
		return p.Device.OuterProducts(p.outer[:])
	}
	done := 0 // steps end where a group of positions does
	if err := p.rows(second, outerWork(1, o.G), func(_, to int) error {
		if to < second {
			to = groupEnd(o.Positions, done, to)
		}
		if to == done {
			return nil
		}
		from := done
		done = to
		return part(from, to, 0)
	}); err != nil {
		return err
	}
	if o.Apart == 0 {
		return nil
	}
	if err := part(second, o.A.Rows, o.Apart); err != nil {
		return err
	}
	return p.did(outerWork(o.Apart, o.G))
}

// groupEnd is the last row up to to, from on, at which a group of positions begins; from if there is none. Without positions it is to.
func groupEnd(positions []int32, from, to int) int {
	for positions != nil && to > from && positions[to]%tensor.PositionGroup != 0 {
		to--
	}
	return to
}

// outerWork is the work of an outer product of so many rows.
func outerWork(rows int, g tensor.Tensor) float64 {
	return 2 * float64(rows) * float64(g.Rows) * float64(g.Cols)
}

// rows calls f for ranges of n rows in order; each row is so much work.
func (p *Pass) rows(n int, work float64, f func(from, to int) error) error {
	size := p.piece(n, 1, work*float64(n))
	for from := 0; from < n; from += size {
		to := min(from+size, n)
		if err := f(from, to); err != nil {
			return err
		}
		if err := p.did(work * float64(to-from)); err != nil {
			return err
		}
	}
	return nil
}

// exponentialWork is about what one exponential function costs, in the operations of a product.
const exponentialWork = 50

// attentionWork is about what one query row with its heads costs for each key, forward.
func attentionWork(heads, headDim int) float64 {
	return float64(heads) * (4*float64(headDim) + exponentialWork)
}

// leastRows is how many query rows a step of attention has at least: fewer would read keys and values too often.
const leastRows = 16

// leastRowsBackward is how many rows a step of the backward pass has at least: a page of keys is turned, and its gradients are read and written, for each.
const leastRowsBackward = 8 * tensor.PageSize

// attention is attend in steps of whole sequences and of rows of long ones.
func (p *Pass) attention(t *Attention, kept, o, lse, q tensor.Tensor) error {
	each := attentionWork(t.Heads, q.Cols/t.Heads)
	if p.StepWork <= 0 {
		return p.attend(t, kept, o, lse, q, p.runs(t))
	}
	p.part = p.part[:0]
	work := 0.0
	flush := func() error {
		if err := p.attend(t, kept, o, lse, q, p.part); err != nil {
			return err
		}
		done := work
		p.part, work = p.part[:0], 0
		return p.did(done)
	}
	for _, r := range p.Runs {
		for r.Count > 0 {
			// n rows from position f see n·f + n²/2 keys; as many rows as are a step's work. With a window they see about as many as if they were the first ones behind it.
			f := float64(r.First)
			if t.Window > 0 {
				f = min(f, float64(t.Window))
			}
			most := int(math.Sqrt(f*f+2*max(0, p.StepWork-work)/each) - f)
			n := min(r.Count, max(leastRows, most/leastRows*leastRows))
			p.part = append(p.part, tensor.AttentionRun{Row: r.Row, Count: n, First: r.First, Pages: r.Pages, Window: t.Window})
			work += each * float64(n) * (f + float64(n)/2)
			r.Row, r.First, r.Count = r.Row+n, r.First+n, r.Count-n
			if work >= p.StepWork {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	if len(p.part) == 0 {
		return nil
	}
	return flush()
}

// runs are the pass's as a layer attends.
func (p *Pass) runs(t *Attention) []tensor.AttentionRun {
	if t.Window == 0 {
		return p.Runs
	}
	p.part = append(p.part[:0], p.Runs...)
	for i := range p.part {
		p.part[i].Window = t.Window
	}
	return p.part
}

// attentionBackward is Device.AttentionBackward in steps of whole sequences, of keys of long ones, and of rows where a page of keys is seen by too many.
func (p *Pass) attentionBackward(t *Attention, dq, dk, dv, do, o, lse, q tensor.Tensor) error {
	if p.StepWork <= 0 {
		return p.Device.AttentionBackward(dq, dk, dv, do, o, lse, q, p.Pages, t.Layer, p.runs(t), t.Heads, t.Scale)
	}
	each := 2.5 * attentionWork(t.Heads, q.Cols/t.Heads)
	p.part = p.part[:0]
	work := 0.0
	flush := func() error {
		if err := p.Device.AttentionBackward(dq, dk, dv, do, o, lse, q, p.Pages, t.Layer, p.part, t.Heads, t.Scale); err != nil {
			return err
		}
		done := work
		p.part, work = p.part[:0], 0
		return p.did(done)
	}
	for _, r := range p.Runs {
		for from := 0; from < r.Count; {
			n := r.Count - from // keys, seen by the rows from them on
			seeing := t.seeing(n)
			if whole := each * float64(n) * float64(seeing) / 2; work+whole > p.StepWork {
				n = min(n, max(1, int((p.StepWork-work)/(each*float64(seeing)*tensor.PageSize)))*tensor.PageSize)
			}
			part := r
			part.KeysFrom, part.KeysTo, part.Window = from, from+n, t.Window
			end := r.Count // of the rows that see some of them; the first keys are for all rows, whose gradients they begin
			if from > 0 {
				end = min(end, from+t.seeing(r.Count-from-n)+n)
			}
			for row := from; row < end; {
				rows := end - row
				if n == tensor.PageSize {
					rows = min(rows, max(leastRowsBackward, int((p.StepWork-work)/(each*tensor.PageSize))/tensor.PageSize*tensor.PageSize))
				}
				part.RowsFrom, part.RowsTo = row, row+rows
				p.part = append(p.part, part)
				work += each * float64(n) * float64(rows)
				if row == from {
					work -= each * float64(n) * float64(n) / 2 // the first see some of the keys only
				}
				row += rows
				if work >= p.StepWork || row < end || from+n < r.Count { // a sequence stands once in a call
					if err := flush(); err != nil {
						return err
					}
				}
			}
			from += n
		}
	}
	if len(p.part) == 0 {
		return nil
	}
	return flush()
}

// seeing is how many of n rows behind a key see it, in whole pages.
func (t *Attention) seeing(n int) int {
	if t.Window == 0 {
		return n
	}
	return min(n, (t.Window+2*tensor.PageSize-1)/tensor.PageSize*tensor.PageSize)
}

// stateRuns calls f for the runs with a state in order, in steps of whole sequences: each row is so much work. A long one is a step of its own, because its state goes from row to row.
func (p *Pass) stateRuns(work float64, f func(runs []tensor.StateRun) error) error {
	first, rows := 0, 0
	for i, r := range p.StateRuns {
		rows += r.Count
		if done := work * float64(rows); i+1 == len(p.StateRuns) || p.StepWork > 0 && done >= p.StepWork {
			if err := f(p.StateRuns[first : i+1]); err != nil {
				return err
			}
			if err := p.did(done); err != nil {
				return err
			}
			first, rows = i+1, 0
		}
	}
	return nil
}
