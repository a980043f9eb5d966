package nn

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// GatedAttention is Attention whose outputs are multiplied with the sigmoid of gates, which come from the same product as the queries: of every head HeadDim queries, then as many gates. Queries and keys have norms.
type GatedAttention struct{ Attention }

// GatedAttentionActivations is what backward needs.
type GatedAttentionActivations struct {
	queries, keys  tensor.Tensor // as products gave them, the queries with their gates
	q, o, lse      tensor.Tensor
	qa, ka, va, oa LinearActivations
}

// NewActivations implements Sublayer.
func (*GatedAttention) NewActivations() Activations { return &GatedAttentionActivations{} }

// WithWeights implements Sublayer.
func (t *GatedAttention) WithWeights(weight func(tensor.Matrix) tensor.Matrix) Sublayer {
	other := *t
	reweigh(weight, &other.Q, &other.K, &other.V, &other.O)
	return &other
}

// halves are the queries and the gates of every head, a row each.
func (t *GatedAttention) halves(both tensor.Tensor) (queries, gates tensor.Tensor) {
	x := both.Reshape(both.Rows*t.Heads, 2*t.HeadDim)
	return x.Columns(0, t.HeadDim), x.Columns(t.HeadDim, 2*t.HeadDim)
}

func (t *GatedAttention) reserve(p *Pass, rows int, a *GatedAttentionActivations) error {
	width := t.Heads * t.HeadDim
	if err := p.get(rows, slot{&a.queries, p.Keep, 2 * width}, slot{&a.keys, p.Keep, t.KVHeads * t.HeadDim}, slot{&a.q, p.Keep, width}, slot{&a.o, p.Keep, width}, slot{&a.lse, p.Keep, t.Heads}); err != nil {
		return err
	}
	return errors.Join(t.Q.reserve(p, rows, &a.qa), t.K.reserve(p, rows, &a.ka), t.V.reserve(p, rows, &a.va), t.O.reserve(p, rows, &a.oa))
}

// Forward implements Sublayer. Keys and values of the rows go to the pages.
func (t *GatedAttention) Forward(p *Pass, out, h tensor.Tensor, activations Activations) error {
	_, err := t.forwardAdding(p, out, tensor.Tensor{}, h, activations)
	return err
}

// forwardAdding implements adder; an add without a buffer is none.
func (t *GatedAttention) forwardAdding(p *Pass, out, add, h tensor.Tensor, activations Activations) (added bool, err error) {
	a := activations.(*GatedAttentionActivations)
	if err := t.reserve(p, h.Rows, a); err != nil {
		return false, err
	}
	mark := p.Temp.Mark()
	var values, keys, gated tensor.Tensor
	if err := p.get(h.Rows, slot{&values, p.Temp, a.keys.Cols}, slot{&keys, p.Temp, a.keys.Cols}, slot{&gated, p.Temp, a.o.Cols}); err != nil {
		return false, err
	}
	if err := p.linears(h, application{&t.Q, a.queries, &a.qa}, application{&t.K, a.keys, &a.ka}, application{&t.V, values, &a.va}); err != nil {
		return false, err
	}
	queries, gates := t.halves(a.queries)
	if err := p.Device.RMSNorm(perHead(a.q, t.Heads), queries, t.QNorm.Weight, t.QNorm.Eps); err != nil {
		return false, err
	}
	if err := p.Device.RMSNorm(perHead(keys, t.KVHeads), perHead(a.keys, t.KVHeads), t.KNorm.Weight, t.KNorm.Eps); err != nil {
		return false, err
	}
	if err := p.Device.Rope(a.q, p.Positions, t.Rope, t.Heads, false); err != nil {
		return false, err
	}
	if err := p.Device.Rope(keys, p.Positions, t.Rope, t.KVHeads, false); err != nil {
		return false, err
	}
	if err := p.Device.WritePages(p.Pages, t.Layer, keys, values, p.Runs); err != nil {
		return false, err
	}
	if err := p.attention(&t.Attention, a.o, a.o, a.lse, a.q); err != nil {
		return false, err
	}
	if err := p.Device.SigmoidGate(perHead(gated, t.Heads), perHead(a.o, t.Heads), gates); err != nil {
		return false, err
	}
	if out.Buffer == nil {
		if err := t.O.inner(p, gated, &a.oa); err != nil {
			return false, err
		}
		return false, p.Temp.Release(mark)
	}
	if added, err = p.linearAdding(gated, add, application{&t.O, out, &a.oa}); err != nil {
		return false, err
	}
	return added, p.Temp.Release(mark)
}

// Backward implements Sublayer.
func (t *GatedAttention) Backward(p *Pass, dh, dout, h tensor.Tensor, activations Activations, inputGradient bool) error {
	a := activations.(*GatedAttentionActivations)
	mark := p.Temp.Mark()
	rows := h.Rows
	var gated, do, dq, dqueries tensor.Tensor
	if err := p.get(rows, slot{&do, p.Temp, a.o.Cols}, slot{&dqueries, p.Temp, a.queries.Cols}, slot{&dq, p.Temp, a.q.Cols}, slot{&gated, p.Temp, a.o.Cols}); err != nil {
		return err
	}
	queries, gates := t.halves(a.queries)
	if err := p.Device.SigmoidGate(perHead(gated, t.Heads), perHead(a.o, t.Heads), gates); err != nil {
		return err
	}
	if err := t.O.Backward(p, do, dout, gated, &a.oa, true); err != nil {
		return err
	}
	turned, dgates := t.halves(dqueries)
	if err := p.Device.SigmoidGateBackward(perHead(do, t.Heads), dgates, perHead(do, t.Heads), perHead(a.o, t.Heads), gates); err != nil {
		return err
	}
	dk, dv, err := t.keysBackward(p, dq, do, a.o, a.lse, a.q)
	if err != nil {
		return err
	}
	if err := p.Device.Rope(dq, p.Positions, t.Rope, t.Heads, true); err != nil {
		return err
	}
	if err := p.Device.Rope(dk, p.Positions, t.Rope, t.KVHeads, true); err != nil {
		return err
	}
	if err := p.Device.RMSNormBackward(turned, perHead(dq, t.Heads), queries, t.QNorm.Weight, t.QNorm.Eps, false); err != nil {
		return err
	}
	if err := p.Device.RMSNormBackward(perHead(dk, t.KVHeads), perHead(dk, t.KVHeads), perHead(a.keys, t.KVHeads), t.KNorm.Weight, t.KNorm.Eps, false); err != nil {
		return err
	}
	if err := t.projectionsBackward(p, dh, h, dqueries, dk, dv, &a.qa, &a.ka, &a.va, inputGradient); err != nil {
		return err
	}
	return p.Temp.Release(mark)
}
