package nn

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Attention is causal self-attention over pages: grouped queries, rotary positions, and optionally an RMSNorm of every query and key head. Keys (after norm and rotation) and values are
// rounded to the pages' type, in training as in sampling; the gradient passes through that rounding unchanged. Where the model is cut, the heads are those of the rank.
type Attention struct {
	Q, K, V, O              Linear
	QNorm, KNorm            *RMSNorm // nil = none
	Heads, KVHeads, HeadDim int
	Rope                    tensor.Tensor // see RopeTable
	Layer                   int           // of the pages
	Scale                   float32       // 1/√HeadDim
	Window                  int           // positions that a row attends to at most, see tensor.AttentionRun; 0 = all
	Sinks                   tensor.Tensor // 1 × Heads, see tensor.SinkDevice; no buffer = none
	// KeyParts is how many of the parts into which ranks may cut a key head's query heads are here: the gradients by its keys and values are summed over each part, and then over the parts as a tree. 0 is 1.
	KeyParts int
	// Sharers is how many ranks, one after another, have each key head of this one, where there are more ranks than key heads. Each computes the gradients by what its query heads see, all add them, and each counts an equal
	// share of the head's elements in what goes further back. 0 is 1.
	Sharers int
	Ranks   int // over which the model is cut
}

// AttentionActivations is what backward needs.
type AttentionActivations struct {
	queries, keys  tensor.Tensor // as products gave them, of what has a norm; they may be rounded, see Pass.keptType
	q, o, lse      tensor.Tensor // o may be rounded, see Pass.outputType
	qa, ka, va, oa LinearActivations
}

// NewActivations implements Sublayer.
func (*Attention) NewActivations() Activations { return &AttentionActivations{} }

// WithWeights implements Sublayer.
func (t *Attention) WithWeights(weight func(tensor.Matrix) tensor.Matrix) Sublayer {
	other := *t
	reweigh(weight, &other.Q, &other.K, &other.V, &other.O)
	return &other
}

// rounds implements Sublayer.
func (t *Attention) rounds(p *Pass) bool { return p.roundRows(&t.Q, &t.K, &t.V) }

// reserve gets what is kept of so many rows.
func (t *Attention) reserve(p *Pass, rows int, a *AttentionActivations) error {
	var err error
	if a.q, err = p.Keep.GetAs(p.queryType(), rows, t.Heads*t.HeadDim); err != nil {
		return err
	}
	if a.o, err = p.Keep.GetAs(p.outputType(&t.O), rows, a.q.Cols); err != nil {
		return err
	}
	if a.lse, err = p.Keep.Get(rows, t.Heads); err != nil {
		return err
	}
	if t.QNorm != nil {
		if a.queries, err = p.Keep.GetAs(p.keptType(&t.Q), rows, a.q.Cols); err != nil {
			return err
		}
	}
	if t.KNorm != nil {
		if a.keys, err = p.Keep.GetAs(p.keptType(&t.K), rows, t.KVHeads*t.HeadDim); err != nil {
			return err
		}
	}
	return errors.Join(t.Q.reserve(p, rows, &a.qa), t.K.reserve(p, rows, &a.ka), t.V.reserve(p, rows, &a.va), t.O.reserve(p, rows, &a.oa))
}

// products gets memory for what the products give: queries and keys may be what is kept, and queries, where there is nothing to be done with them but turning, what attention reads.
func (t *Attention) products(p *Pass, a *AttentionActivations) (queries, keys, values tensor.Tensor, err error) {
	rows := a.q.Rows
	if err = p.get(rows, slot{&values, p.Temp, t.KVHeads * t.HeadDim}); err != nil {
		return
	}
	switch {
	case t.QNorm != nil:
		queries, err = p.unrounded(a.queries)
	case a.q.DType == tensor.Float32:
		queries = a.q
	default:
		queries, err = p.Temp.Get(rows, a.q.Cols)
	}
	if err != nil {
		return
	}
	if t.KNorm != nil {
		keys, err = p.unrounded(a.keys)
	} else {
		keys, err = p.Temp.Get(rows, values.Cols)
	}
	return
}

// Forward implements Sublayer. Keys and values of the rows go to the pages.
func (t *Attention) Forward(p *Pass, out, h tensor.Tensor, activations Activations) error {
	_, err := t.forwardAdding(p, out, tensor.Tensor{}, h, activations)
	return err
}

// forwardAdding implements adder; an add without a buffer is none.
func (t *Attention) forwardAdding(p *Pass, out, add, h tensor.Tensor, activations Activations) (added bool, err error) {
	a := activations.(*AttentionActivations)
	if err := t.reserve(p, h.Rows, a); err != nil {
		return false, err
	}
	mark := p.Temp.Mark()
	queries, keys, values, err := t.products(p, a)
	if err != nil {
		return false, err
	}
	if err := p.linears(h, application{&t.Q, queries, &a.qa}, application{&t.K, keys, &a.ka}, application{&t.V, values, &a.va}); err != nil {
		return false, err
	}
	heads := t.heads(p, queries, keys)
	heads.Values = values
	if a.queries.DType == tensor.BFloat16 {
		heads.KeptQueries = a.queries
	}
	if a.keys.DType == tensor.BFloat16 {
		heads.KeptKeys = a.keys
	}
	if err := p.turnHeads(a.q, heads, t.Layer); err != nil {
		return false, err
	}
	o, err := p.unrounded(a.o)
	if err != nil {
		return false, err
	}
	if err := p.attention(t, a.o, o, a.lse, a.q); err != nil {
		return false, err
	}
	if added, err = p.linearAdding(a.o, add, application{&t.O, out, &a.oa}); err != nil {
		return false, err
	}
	return added, p.Temp.Release(mark)
}

// Backward implements Sublayer.
func (t *Attention) Backward(p *Pass, dh, dout, h tensor.Tensor, activations Activations, inputGradient bool) error {
	return p.together(func() error { return t.backward(p, dh, dout, h, activations.(*AttentionActivations), inputGradient) })
}

func (t *Attention) backward(p *Pass, dh, dout, h tensor.Tensor, a *AttentionActivations, inputGradient bool) error {
	rows := h.Rows
	var do, dq tensor.Tensor
	if err := p.get(rows, slot{&do, p.Temp, a.o.Cols}, slot{&dq, p.Temp, a.q.Cols}); err != nil {
		return err
	}
	if err := t.outputBackward(p, do, dout, a); err != nil {
		return err
	}
	o, err := p.readable(a.o)
	if err != nil {
		return err
	}
	dk, dv, err := t.keysBackward(p, dq, do, o, a.lse, a.q)
	if err != nil {
		return err
	}
	queries, err := p.readable(a.queries)
	if err != nil {
		return err
	}
	keys, err := p.readable(a.keys)
	if err != nil {
		return err
	}
	if err := p.turnHeadsBackward(dq, dk, t.heads(p, queries, keys)); err != nil {
		return err
	}
	return t.projectionsBackward(p, dh, h, dq, dk, dv, &a.qa, &a.ka, &a.va, inputGradient)
}

// projectionsBackward is the backward pass of the projections of h, for the gradients by what they give.
func (t *Attention) projectionsBackward(p *Pass, dh, h, dq, dk, dv tensor.Tensor, qa, ka, va *LinearActivations, inputGradient bool) error {
	ownK, err := t.counted(p, dk)
	if err != nil {
		return err
	}
	ownV, err := t.counted(p, dv)
	if err != nil {
		return err
	}
	return p.backward(dh, h, inputGradient, slope{&t.Q, dq, dq, qa}, slope{&t.K, dk, ownK, ka}, slope{&t.V, dv, ownV, va})
}

// keysBackward is attention's backward pass: it writes dq, and gives the gradients by keys and values, whole.
func (t *Attention) keysBackward(p *Pass, dq, do, o, lse, q tensor.Tensor) (dk, dv tensor.Tensor, err error) {
	rows, width, parts := dq.Rows, t.KVHeads*t.HeadDim, max(1, t.KeyParts)
	if err = p.get(rows, slot{&dk, p.Temp, width}, slot{&dv, p.Temp, width}); err != nil {
		return
	}
	if parts == 1 && t.Sharers <= 1 {
		err = p.attentionBackward(t, dq, dk, dv, do, o, lse, q)
		return
	}
	mark := p.Temp.Mark()
	var partK, partV tensor.Tensor
	if err = p.get(rows, slot{&partK, p.Temp, parts * width}, slot{&partV, p.Temp, parts * width}); err != nil {
		return
	}
	if err = p.attentionBackward(t, dq, partK, partV, do, o, lse, q); err != nil {
		return
	}
	for _, g := range [][2]tensor.Tensor{{dk, partK}, {dv, partV}} {
		for head := range t.KVHeads {
			if err = p.sumColumns(g[0].Columns(head*t.HeadDim, (head+1)*t.HeadDim), g[1], head*parts, parts); err != nil {
				return
			}
		}
	}
	if t.Sharers > 1 {
		if err = t.shareKeys(p, dk, dv); err != nil {
			return
		}
	}
	err = p.Temp.Release(mark)
	return
}

// sumColumns writes the sum of count ranges of columns of x, each as wide as sum, from number first on, as a tree over neighbours. x is overwritten.
func (p *Pass) sumColumns(sum, x tensor.Tensor, first, count int) error {
	part := func(i int) tensor.Tensor { return x.Columns((first+i)*sum.Cols, (first+i+1)*sum.Cols) }
	for step := 1; step < count; step *= 2 {
		for i := 0; i+step < count; i += 2 * step {
			if err := p.Device.Add(part(i), part(i+step)); err != nil {
				return err
			}
		}
	}
	return p.Device.Round(sum, part(0)) // a copy
}

// shareKeys adds the gradients by the key head that several ranks have, on all of them.
func (t *Attention) shareKeys(p *Pass, dk, dv tensor.Tensor) error {
	var own, all tensor.Tensor
	if err := p.get(dk.Rows, slot{&own, p.Temp, 2 * dk.Cols}, slot{&all, p.Temp, 2 * dk.Cols * t.Ranks}); err != nil || p.Comm == nil { // a model that is only measured has no others
		return err
	}
	for i, d := range []tensor.Tensor{dk, dv} {
		if err := p.Device.Round(own.Columns(i*d.Cols, (i+1)*d.Cols), d); err != nil { // a copy
			return err
		}
	}
	if err := p.Comm.AllGather(all, own); err != nil {
		return err
	}
	first := p.Comm.Rank() / t.Sharers * t.Sharers
	if err := p.sumColumns(own, all, first, t.Sharers); err != nil {
		return err
	}
	for i, d := range []tensor.Tensor{dk, dv} {
		if err := p.Device.Round(d, own.Columns(i*d.Cols, (i+1)*d.Cols)); err != nil {
			return err
		}
	}
	return nil
}

// counted is the gradient by keys or values with zeros for what other ranks that have the head count.
func (t *Attention) counted(p *Pass, d tensor.Tensor) (tensor.Tensor, error) {
	if t.Sharers <= 1 {
		return d, nil
	}
	own, err := p.Temp.Get(d.Rows, d.Cols)
	if err != nil || p.Comm == nil {
		return own, err
	}
	place := p.Comm.Rank() % t.Sharers
	from, to := d.Cols*place/t.Sharers&^1, d.Cols*(place+1)/t.Sharers&^1
	if place == t.Sharers-1 {
		to = d.Cols
	}
	if err := p.Device.Zero(own); err != nil {
		return own, err
	}
	return own, p.Device.Round(own.Columns(from, to), d.Columns(from, to)) // a copy
}

// outputBackward is the backward pass of the product with O.
func (t *Attention) outputBackward(p *Pass, do, dout tensor.Tensor, a *AttentionActivations) error {
	mark := p.Temp.Mark()
	o := a.o
	if p.largestRank(t.O.Module) > 0 { // gradients of adapters are sums of float32
		var err error
		if o, err = p.widened(o); err != nil {
			return err
		}
	}
	if err := t.O.Backward(p, do, dout, o, &a.oa, true); err != nil {
		return err
	}
	return p.releaseRead(mark)
}

// heads are the layer's queries and keys, as products gave them.
func (t *Attention) heads(p *Pass, queries, keys tensor.Tensor) tensor.Heads {
	return tensor.Heads{Queries: queries, Keys: keys, QueryHeads: t.Heads, KeyHeads: t.KVHeads, QueryNorm: t.QNorm.ofHeads(), KeyNorm: t.KNorm.ofHeads(), Positions: p.Positions, Table: t.Rope}
}
