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
	queries, keys  tensor.Tensor // before their norms
	q, o, lse      tensor.Tensor
	qa, ka, va, oa LinearActivations
}

// Forward writes out (rows × hidden) for the normed residual stream h, and the rows' keys and values to the pages.
func (t *Attention) Forward(p *Pass, out, h tensor.Tensor, a *AttentionActivations) error {
	d, rows := p.Device, h.Rows
	var k, v tensor.Tensor
	if err := p.get(rows,
		slot{&a.q, p.Keep, t.Heads * t.HeadDim}, slot{&k, p.Temp, t.KVHeads * t.HeadDim}, slot{&v, p.Temp, t.KVHeads * t.HeadDim},
		slot{&a.o, p.Keep, t.Heads * t.HeadDim}, slot{&a.lse, p.Keep, t.Heads}); err != nil {
		return err
	}
	a.queries, a.keys = a.q, k
	if t.QNorm != nil {
		if err := p.get(rows, slot{&a.queries, p.Keep, a.q.Cols}); err != nil {
			return err
		}
	}
	if t.KNorm != nil {
		if err := p.get(rows, slot{&a.keys, p.Keep, k.Cols}); err != nil {
			return err
		}
	}
	if err := p.linears(h, application{&t.Q, a.queries, &a.qa}, application{&t.K, a.keys, &a.ka}, application{&t.V, v, &a.va}); err != nil {
		return err
	}
	if t.QNorm != nil {
		if err := t.QNorm.Forward(p, t.perHead(a.q), t.perHead(a.queries)); err != nil {
			return err
		}
	}
	if t.KNorm != nil {
		if err := t.KNorm.Forward(p, t.perHead(k), t.perHead(a.keys)); err != nil {
			return err
		}
	}
	if err := d.Rope(a.q, p.Positions, t.Rope, t.Heads, false); err != nil {
		return err
	}
	if err := d.Rope(k, p.Positions, t.Rope, t.KVHeads, false); err != nil {
		return err
	}
	if err := d.WritePages(p.Pages, t.Layer, k, v, p.Runs); err != nil {
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
	d, rows := p.Device, h.Rows
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
	if err := d.Rope(dq, p.Positions, t.Rope, t.Heads, true); err != nil {
		return err
	}
	if err := d.Rope(dk, p.Positions, t.Rope, t.KVHeads, true); err != nil {
		return err
	}
	if t.QNorm != nil {
		if err := t.QNorm.Backward(p, t.perHead(dq), t.perHead(dq), t.perHead(a.queries), false); err != nil {
			return err
		}
	}
	if t.KNorm != nil {
		if err := t.KNorm.Backward(p, t.perHead(dk), t.perHead(dk), t.perHead(a.keys), false); err != nil {
			return err
		}
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

// perHead sees rows × heads·headDim as one row per head.
func (t *Attention) perHead(x tensor.Tensor) tensor.Tensor {
	return x.Reshape(x.Rows*(x.Cols/t.HeadDim), t.HeadDim)
}
