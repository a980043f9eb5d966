package cuda

import (
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// AddRMSNorm implements tensor.Fuser.
func (d *device) AddRMSNorm(y, sum, x, weight tensor.Tensor, eps float32) error {
	return d.failed("add and rms norm", d.v.RMSNorm(view(y), typeOf(y.DType), view(sum), view(x), view(weight).At, eps))
}

// SwiGLUKeep implements tensor.Fuser.
func (d *device) SwiGLUKeep(y, keptGate, keptUp, gate, up tensor.Tensor) error {
	return d.failed("swiglu and keep", d.v.SwiGLUKeep(view(y), typeOf(y.DType), view(keptGate), view(keptUp), view(gate), view(up)))
}

// KeptType implements tensor.Keeper.
func (d *device) KeptType(weights tensor.DType) tensor.DType { return weights }

// QueryType implements tensor.Fuser: tensor cores take bfloat16.
func (d *device) QueryType(p tensor.Pages) tensor.DType {
	if p.(*pages).cache.TensorCores() {
		return tensor.BFloat16
	}
	return tensor.Float32
}

// AttentionKeep implements tensor.Fuser.
func (d *device) AttentionKeep(kept, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	return d.failed("attention and keep", d.attention(view(kept), o, lse, q, p.(*pages).cache, layer, runs, queryHeads, scale))
}

// TurnHeads implements tensor.Fuser.
func (d *device) TurnHeads(q tensor.Tensor, h tensor.Heads, p tensor.Pages, layer int, runs []tensor.AttentionRun) error {
	return d.failed("turn heads", d.v.TurnHeads(view(q), typeOf(q.DType), heads(h), p.(*pages).cache, int64(layer), d.sequences(runs)))
}

// TurnHeadsBackward implements tensor.Fuser.
func (d *device) TurnHeadsBackward(dq, dk tensor.Tensor, h tensor.Heads) error {
	return d.failed("turn heads backward", d.v.TurnHeadsBackward(view(dq), view(dk), heads(h)))
}

// heads are those of the interface as kernels take them.
func heads(h tensor.Heads) cudart.Heads {
	own := cudart.Heads{QueryHeads: int64(h.QueryHeads), KeyHeads: int64(h.KeyHeads), QueryEps: h.QueryNorm.Eps, KeyEps: h.KeyNorm.Eps, Table: view(h.Table), Positions: h.Positions,
		QueryType: typeOf(h.Queries.DType), KeyType: typeOf(h.Keys.DType)}
	for _, t := range []struct {
		to   *cudart.View
		from tensor.Tensor
	}{{&own.Queries, h.Queries}, {&own.Keys, h.Keys}, {&own.Values, h.Values}, {&own.KeptQueries, h.KeptQueries}, {&own.KeptKeys, h.KeptKeys}} {
		if t.from.Buffer != nil {
			*t.to = view(t.from)
		}
	}
	if w := h.QueryNorm.Weight; w.Buffer != nil {
		own.QueryScale = view(w).At
	}
	if w := h.KeyNorm.Weight; w.Buffer != nil {
		own.KeyScale = view(w).At
	}
	return own
}
