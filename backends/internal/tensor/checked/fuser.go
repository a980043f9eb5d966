package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// forProducts is float for rows that a device may have as bfloat16.
func (d *device) forProducts(c *check, name string, t tensor.Tensor) {
	if _, ok := d.kernels.(tensor.Fuser); ok && t.DType == tensor.BFloat16 {
		c.view(name, t)
		return
	}
	c.float(name, t)
}

// gated checks gate and up, which have y's shape and may have been kept rounded.
func (d *device) gated(c *check, y, gate, up tensor.Tensor) {
	c.size("gate", gate, y.Rows, y.Cols)
	c.size("up", up, y.Rows, y.Cols)
	if gate.DType != up.DType {
		c.fail("gate is %v, up %v: must be of one type", gate.DType, up.DType)
	}
	d.forProducts(c, "gate", gate)
	d.forProducts(c, "up", up)
}

// rounded checks a tensor that must be rows × cols of bfloat16.
func (c *check) rounded(name string, t tensor.Tensor, rows, cols int) {
	c.size(name, t, rows, cols)
	if t.DType != tensor.BFloat16 {
		c.fail("%s is %v: must be bfloat16", name, t.DType)
	}
	c.view(name, t)
}

// kept checks a gated product that keeps gate and up.
func (d *remoteDevice) kept(c *check, y, keptGate, keptUp, gate, up tensor.Tensor) {
	d.forProducts(c, "y", y)
	c.shaped("gate", gate, y.Rows, y.Cols)
	c.shaped("up", up, y.Rows, y.Cols)
	c.rounded("the kept gate", keptGate, y.Rows, y.Cols)
	c.rounded("the kept up", keptUp, y.Rows, y.Cols)
}

// SwiGLUKeep implements tensor.Fuser.
func (d *remoteDevice) SwiGLUKeep(y, keptGate, keptUp, gate, up tensor.Tensor) error {
	c := d.check("swiglu and keep")
	d.kept(&c, y, keptGate, keptUp, gate, up)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.remote.SwiGLUKeep(y, keptGate, keptUp, gate, up)
}

// queries checks q, which may be of the type that attention rounds it to.
func (d *device) queries(c *check, p *pages, q tensor.Tensor, width int) {
	c.size("q", q, q.Rows, width)
	if c.err == nil && q.DType == tensor.BFloat16 {
		if f, ok := d.kernels.(tensor.Fuser); ok && f.QueryType(p.Pages) == tensor.BFloat16 {
			c.view("q", q)
			return
		}
	}
	c.float("q", q)
}

// AddRMSNorm implements tensor.Fuser.
func (d *remoteDevice) AddRMSNorm(y, sum, x, weight tensor.Tensor, eps float32) error {
	c := d.check("add and rms norm")
	d.forProducts(&c, "y", y)
	c.shaped("sum", sum, y.Rows, y.Cols)
	c.shaped("x", x, y.Rows, y.Cols)
	c.shaped("weight", weight, 1, y.Cols)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.remote.AddRMSNorm(y, sum, x, weight, eps)
}

// QueryType implements tensor.Fuser.
func (d *remoteDevice) QueryType(p tensor.Pages) tensor.DType {
	c := d.check("query type")
	own := c.pages(d.device, p)
	if c.err != nil {
		return tensor.Float32
	}
	return d.remote.QueryType(own.Pages)
}

// AttentionKeep implements tensor.Fuser.
func (d *remoteDevice) AttentionKeep(kept, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	c := d.check("attention and keep")
	own, sequences := d.attention(&c, o, lse, q, p, layer, runs, queryHeads)
	c.rounded("what is kept", kept, o.Rows, o.Cols)
	if c.err != nil || len(sequences) == 0 {
		return c.err
	}
	return d.remote.AttentionKeep(kept, o, lse, q, own.Pages, layer, sequences, queryHeads, scale)
}

// TurnHeads implements tensor.Fuser.
func (d *remoteDevice) TurnHeads(q tensor.Tensor, h tensor.Heads, p tensor.Pages, layer int, runs []tensor.AttentionRun) error {
	c := d.check("turn heads")
	own := c.pages(d.device, p)
	if h.KeyHeads != own.heads {
		c.fail("%d key heads: the pages have %d", h.KeyHeads, own.heads)
	}
	keys := own.heads * own.headDim
	c.view("q", q)
	c.size("q", q, q.Rows, c.width(own, h.QueryHeads))
	c.shaped("queries", h.Queries, q.Rows, q.Cols)
	c.shaped("keys", h.Keys, q.Rows, keys)
	c.shaped("values", h.Values, q.Rows, keys)
	if h.KeptQueries.Buffer != nil {
		c.rounded("the kept queries", h.KeptQueries, q.Rows, q.Cols)
	}
	if h.KeptKeys.Buffer != nil {
		c.rounded("the kept keys", h.KeptKeys, q.Rows, keys)
	}
	c.turned(h, q.Rows, own.headDim)
	sequences := d.sequences(&c, own, layer, q.Rows, runs, false)
	if c.err != nil || q.Rows == 0 {
		return c.err
	}
	return d.remote.TurnHeads(q, h, own.Pages, layer, sequences)
}

// TurnHeadsBackward implements tensor.Fuser.
func (d *remoteDevice) TurnHeadsBackward(dq, dk tensor.Tensor, h tensor.Heads) error {
	c := d.check("turn heads backward")
	headDim := 0
	if h.QueryHeads < 1 || h.KeyHeads < 1 || dq.Cols%max(h.QueryHeads, 1) != 0 {
		c.fail("%d columns do not divide into %d query heads, or there are no key heads (%d)", dq.Cols, h.QueryHeads, h.KeyHeads)
	} else {
		headDim = dq.Cols / h.QueryHeads
		if keys, ok := tensor.Product(h.KeyHeads, headDim); !ok || dk.Cols != keys {
			c.fail("dk has %d columns: must have %d heads of dimension %d", dk.Cols, h.KeyHeads, headDim)
		}
	}
	c.float("dq", dq)
	c.shaped("dk", dk, dq.Rows, dk.Cols)
	if h.QueryNorm.Weight.Buffer != nil {
		c.size("queries", h.Queries, dq.Rows, dq.Cols)
		d.forProducts(&c, "queries", h.Queries)
	}
	if h.KeyNorm.Weight.Buffer != nil {
		c.size("keys", h.Keys, dk.Rows, dk.Cols)
		d.forProducts(&c, "keys", h.Keys)
	}
	c.turned(h, dq.Rows, headDim)
	if c.err != nil || dq.Empty() {
		return c.err
	}
	return d.remote.TurnHeadsBackward(dq, dk, h)
}

// turned checks what says how heads are normed and turned.
func (c *check) turned(h tensor.Heads, rows, headDim int) {
	if h.QueryNorm.Weight.Buffer != nil {
		c.shaped("the queries' norm", h.QueryNorm.Weight, 1, headDim)
	}
	if h.KeyNorm.Weight.Buffer != nil {
		c.shaped("the keys' norm", h.KeyNorm.Weight, 1, headDim)
	}
	c.float("table", h.Table)
	if h.Table.Cols%2 != 0 || h.Table.Cols > headDim {
		c.fail("table has %d columns: must be even and at most the head's dimension %d", h.Table.Cols, headDim)
	}
	if len(h.Positions) != rows {
		c.fail("%d positions for %d rows", len(h.Positions), rows)
	}
	c.indices("positions", h.Positions, 0, h.Table.Rows, "must not be negative, and less than the table's rows,")
}
