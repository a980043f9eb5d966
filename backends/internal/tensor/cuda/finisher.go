package cuda

import (
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// Finishes implements tensor.Finisher: products by bulk copies can end in more than their sums.
func (d *device) Finishes() bool { return d.v.Bulk() }

// ending is a product, with the one that is added to it, whose end is to be another one.
type ending struct {
	cudart.Multiplication
	tail int // the place of the second product in its stage; -1: there is none
}

// endingOf gives a product of the first stage so; false if what is added to it cannot be a tail, or more than one product is.
func (d *device) endingOf(p tensor.Multiplication, stages [][]tensor.Multiplication) (e ending, ok bool) {
	e.tail = -1
	if len(stages) > 1 {
		e.tail = second(p, stages[1])
		for k, q := range stages[1] {
			if k != e.tail && q.Y == p.Y {
				return e, false
			}
		}
	}
	if e.tail < 0 {
		w := p.Groups[0].Matrix.(*matrix)
		e.Multiplication = multiplication(p, []cudart.RowGroup{rowGroup(p.Groups[0])}, w.kind())
	} else if e.Multiplication, ok = d.pair(p, stages[1][e.tail]); !ok {
		return e, false
	}
	return e, e.Type == cudart.BFloat16Blocks
}

// besides does the products of stages before those that end otherwise, which are the first of the first stage, and gives what is to come behind them: the second stage without the tails.
func (d *device) besides(stages [][]tensor.Multiplication, endings ...ending) (behind []tensor.Multiplication, err error) {
	if before := stages[0][len(endings):]; len(before) > 0 {
		if err := d.MatMuls(before); err != nil {
			return nil, err
		}
	}
	if len(stages) == 1 {
		return nil, nil
	}
	for k, q := range stages[1] {
		ends := false
		for _, e := range endings {
			ends = ends || e.tail == k
		}
		if !ends {
			behind = append(behind, q)
		}
	}
	return behind, nil
}

// MatMulsAdd implements tensor.Finisher.
func (d *device) MatMulsAdd(add tensor.Tensor, stages ...[]tensor.Multiplication) error {
	separately := func() error {
		y := stages[0][0].Y
		if err := d.MatMuls(stages...); err != nil {
			return err
		}
		return d.Add(y, add)
	}
	d.rowGroups = d.rowGroups[:0]
	e, ok := d.endingOf(stages[0][0], stages)
	if !ok || len(stages) > 2 {
		return separately()
	}
	p := cudart.IntoProduct{Result: cudart.Add, Y: e.Y, Add: view(add), X: e.X, XType: e.XType, Weight: e.Groups[0].Weight, Tail: ownTail(e.Tail)}
	if !d.v.Ends(&p) {
		return separately()
	}
	behind, err := d.besides(stages, e)
	if err != nil {
		return err
	}
	done, err := d.v.ProductInto(p)
	if err == nil && !done { // for want of memory
		if err = d.v.ProductWithTail(e.Y, e.X, e.XType, []cudart.RowGroup{{To: e.X.Rows, Weight: p.Weight}}, p.Tail, e.Type, false, false); err == nil {
			err = d.v.Add(view(stages[0][0].Y), view(add))
		}
	}
	if err != nil || len(behind) == 0 {
		return d.failed("matmuls and add", err)
	}
	return d.MatMuls(behind)
}

// MatMulsGated implements tensor.Finisher.
func (d *device) MatMulsGated(hidden, keptGate, keptUp tensor.Tensor, stages ...[]tensor.Multiplication) error {
	gate, up := stages[0][0], stages[0][1]
	separately := func() error {
		if err := d.MatMuls(stages...); err != nil {
			return err
		}
		if keptGate.Buffer == nil {
			return d.SwiGLU(hidden, gate.Y, up.Y)
		}
		return d.SwiGLUKeep(hidden, keptGate, keptUp, gate.Y, up.Y)
	}
	d.rowGroups = d.rowGroups[:0]
	e, ok := d.endingOf(gate, stages)
	f, also := d.endingOf(up, stages)
	if !ok || !also || len(stages) > 2 || e.X != f.X || e.XType != f.XType {
		return separately()
	}
	p := cudart.GatedProduct{Hidden: view(hidden), X: e.X, XType: e.XType, Gate: e.Groups[0].Weight, Up: f.Groups[0].Weight, GateTail: ownTail(e.Tail), UpTail: ownTail(f.Tail)}
	if keptGate.Buffer != nil {
		p.KeptGate, p.KeptUp = view(keptGate), view(keptUp)
	}
	if !d.v.Gates(p) {
		return separately()
	}
	behind, err := d.besides(stages, e, f)
	if err != nil {
		return err
	}
	done, err := d.v.GatedProducts(p)
	switch {
	case err != nil:
		return d.failed("matmuls and gate", err)
	case !done: // for want of memory; what was done before is done again
		return separately()
	case len(behind) == 0:
		return nil
	}
	return d.MatMuls(behind)
}

// ownTail has the groups of a tail stay when MatMuls is called.
func ownTail(t cudart.Tail) cudart.Tail {
	t.Groups = append([]cudart.RowGroup(nil), t.Groups...)
	return t
}
