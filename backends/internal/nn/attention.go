package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Attention is causal self-attention over pages: grouped queries, rotary positions, and optionally an RMSNorm of every query and key head. Keys (after norm and rotation) and values are
// rounded to the pages' type, in training as in sampling; the gradient passes through that rounding unchanged. Where the model is cut, the heads are those of the rank.
type Attention struct {
	Q, K, V, O              Linear
	QNorm, KNorm            *RMSNorm // nil = none
	Heads, KVHeads, HeadDim int
	Rope                    tensor.Tensor // see RopeTable
	Layer                   int           // of the pages
	Scale                   float32       // 1/√HeadDim
}

// AttentionActivations is what backward needs.
type AttentionActivations struct {
	queries, keys  tensor.Tensor // as products gave them; of use where they have norms
	q, o, lse      tensor.Tensor
	qa, ka, va, oa LinearActivations
}

// Forward writes out (rows × hidden) for the normed residual stream h, and the rows' keys and values to the pages.
func (t *Attention) Forward(p *Pass, out, h tensor.Tensor, a *AttentionActivations) error {
	rows := h.Rows
	var v tensor.Tensor
	if err := p.get(rows, slot{&v, p.Temp, t.KVHeads * t.HeadDim}, slot{&a.o, p.Keep, t.Heads * t.HeadDim}, slot{&a.lse, p.Keep, t.Heads}); err != nil {
		return err
	}
	var err error
	if a.q, err = p.Keep.GetAs(p.queryType(), rows, t.Heads*t.HeadDim); err != nil {
		return err
	}
	// What has a norm is needed for its gradient.
	a.queries = a.q
	if t.QNorm != nil || a.q.DType != tensor.Float32 {
		if a.queries, err = p.kept(t.QNorm != nil).Get(rows, a.q.Cols); err != nil {
			return err
		}
	}
	if a.keys, err = p.kept(t.KNorm != nil).Get(rows, t.KVHeads*t.HeadDim); err != nil {
		return err
	}
	if err := p.linears(h, application{&t.Q, a.queries, &a.qa}, application{&t.K, a.keys, &a.ka}, application{&t.V, v, &a.va}); err != nil {
		return err
	}
	heads := t.heads(p, a)
	heads.Values = v
	if err := p.turnHeads(a.q, heads, t.Layer); err != nil {
		return err
	}
	if err := p.attention(a.o, a.lse, a.q, t.Layer, t.Heads, t.Scale); err != nil {
		return err
	}
	if err := t.O.Forward(p, out, a.o, &a.oa); err != nil {
		return err
	}
	return p.reduce(out)
}

// Backward gives dh, the gradient by h, for the gradient dout by the output. dh is overwritten; without inputGradient it is not computed.
func (t *Attention) Backward(p *Pass, dh, dout, h tensor.Tensor, a *AttentionActivations, inputGradient bool) error {
	rows := h.Rows
	var do, dq, dk, dv tensor.Tensor
	if err := p.get(rows, slot{&do, p.Temp, a.o.Cols}, slot{&dq, p.Temp, a.q.Cols},
		slot{&dk, p.Temp, t.KVHeads * t.HeadDim}, slot{&dv, p.Temp, t.KVHeads * t.HeadDim}); err != nil {
		return err
	}
	if err := t.O.Backward(p, do, dout, a.o, &a.oa, false, true); err != nil {
		return err
	}
	if err := p.attentionBackward(dq, dk, dv, do, a.o, a.lse, a.q, t.Layer, t.Heads, t.Scale); err != nil {
		return err
	}
	if err := p.turnHeadsBackward(dq, dk, t.heads(p, a)); err != nil {
		return err
	}
	if err := t.Q.Backward(p, dh, dq, h, &a.qa, false, inputGradient); err != nil {
		return err
	}
	if err := t.K.Backward(p, dh, dk, h, &a.ka, true, inputGradient); err != nil {
		return err
	}
	if err := t.V.Backward(p, dh, dv, h, &a.va, true, inputGradient); err != nil || !inputGradient {
		return err
	}
	return p.reduce(dh)
}

// heads are the layer's queries and keys, as products gave them.
func (t *Attention) heads(p *Pass, a *AttentionActivations) tensor.Heads {
	return tensor.Heads{Queries: a.queries, Keys: a.keys, QueryHeads: t.Heads, KeyHeads: t.KVHeads, QueryNorm: t.QNorm.ofHeads(), KeyNorm: t.KNorm.ofHeads(), Positions: p.Positions, Table: t.Rope}
}
