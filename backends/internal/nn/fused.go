package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// What devices that are a tensor.Fuser do in one pass over memory and others in several, with equal bits.

// together has the outer products that layers add to in f done at its end, all at once: on a GPU those of one layer are tiles for few of the multiprocessors, and take as long as a chain over all rows does. Until then what they
// read stays as it is; releaseRead keeps it in Temp. Other devices, which are filled by each, do them where they come, and need less memory.
func (p *Pass) together(f func() error) error {
	if _, ok := p.Device.(tensor.Fuser); !ok || p.joined {
		return f()
	}
	p.products, p.joined = p.products[:0], true
	err := f()
	p.joined = false
	if err == nil {
		err = p.outerProducts(p.products)
	}
	p.products = p.products[:0]
	return err
}

// releaseRead releases Temp to a mark after which there is what outer products read: not if they are still to come. Then who called together's caller does.
func (p *Pass) releaseRead(m Mark) error {
	if p.joined {
		return nil
	}
	return p.Temp.Release(m)
}

// rowType is the type of rows that nothing but products of layers will read, those of their adapters included. Where all of them round their rows to bfloat16, the rows are written as that, on devices that can.
// Gradients of adapters are float32 sums of what is not rounded, but for what was kept rounded: rows that they read too are float32.
func (p *Pass) rowType(layers ...*Linear) tensor.DType {
	if _, ok := p.Device.(tensor.Fuser); ok && p.roundRows(layers...) {
		return tensor.BFloat16
	}
	return tensor.Float32
}

// roundRows tells whether all products of layers round their rows to bfloat16.
func (p *Pass) roundRows(layers ...*Linear) bool {
	for _, l := range layers {
		if l.Weight.DType() != tensor.BFloat16 {
			return false
		}
		for _, s := range p.Segments {
			if m := s.lora(l.Module); m.A != nil && m.A.DType() != tensor.BFloat16 {
				return false
			}
		}
	}
	return true
}

// outputType is the type of attention's output, the rows of the product with o, which Backward needs too.
func (p *Pass) outputType(o *Linear) tensor.DType {
	switch {
	case !p.Keeps:
		return p.rowType(o)
	case p.roundRows(o):
		return p.keptType(o)
	}
	return tensor.Float32
}

// keptType is the type that the outputs of layers are kept in for Backward.
func (p *Pass) keptType(layers ...*Linear) tensor.DType {
	k, ok := p.Device.(tensor.Keeper)
	if !ok || !p.Keeps {
		return tensor.Float32
	}
	for _, l := range layers {
		if k.KeptType(l.Weight.DType()) != tensor.BFloat16 {
			return tensor.Float32
		}
	}
	return tensor.BFloat16
}

// finisher is the device, if it gains from products that end in what layers do next.
func (p *Pass) finisher() tensor.Finisher {
	if f, ok := p.Device.(tensor.Finisher); ok && f.Finishes() {
		return f
	}
	return nil
}

// adder is a sublayer that can have what its output is added to added by its last product.
type adder interface {
	// forwardAdding is Sublayer.Forward and then Device.Add(out, add); added says whether that was done as well.
	forwardAdding(p *Pass, out, add, h tensor.Tensor, a Activations) (added bool, err error)
}

// forwardAdding is the sublayer's Forward, and adds x to out where that costs no pass over memory of its own; added says whether it did.
func (p *Pass) forwardAdding(s Sublayer, out, x, h tensor.Tensor, a Activations) (added bool, err error) {
	if t, ok := s.(adder); ok && p.finisher() != nil {
		return t.forwardAdding(p, out, x, h, a)
	}
	return false, s.Forward(p, out, h, a)
}

// linearAdding is linears of one layer, and Device.Add(l.y, add) where add has a buffer and a Finisher does both at once; added says whether it did.
func (p *Pass) linearAdding(x, add tensor.Tensor, l application) (added bool, err error) {
	f := p.finisher()
	if f == nil || add.Buffer == nil {
		return false, p.linears(x, l)
	}
	return p.linearsEnding(func(stages ...[]tensor.Multiplication) error { return f.MatMulsAdd(add, stages...) }, x, l)
}

// linearsGated is linears of gate and up and then swiGLUKeep, at once where a Finisher does that. What gate and up hold afterwards is undefined but for what they are kept in.
func (p *Pass) linearsGated(h, hidden, keptGate, keptUp tensor.Tensor, gate, up application) error {
	f := p.finisher()
	var end func(stages ...[]tensor.Multiplication) error
	if kept := keptGate.DType == tensor.BFloat16; f != nil && hidden.DType == tensor.BFloat16 && (kept || !p.Keeps) { // gate and up of float32 are what is kept themselves
		end = func(stages ...[]tensor.Multiplication) error {
			if !kept {
				return f.MatMulsGated(hidden, tensor.Tensor{}, tensor.Tensor{}, stages...)
			}
			return f.MatMulsGated(hidden, keptGate, keptUp, stages...)
		}
	}
	ended, err := p.linearsEnding(end, h, gate, up)
	if ended || err != nil {
		return err
	}
	return p.swiGLUKeep(hidden, keptGate, keptUp, gate.y, up.y)
}

// unrounded is memory for what is kept as x before it is rounded: x itself where it is not.
func (p *Pass) unrounded(x tensor.Tensor) (tensor.Tensor, error) {
	if x.DType != tensor.BFloat16 {
		return x, nil
	}
	return p.Temp.Get(x.Rows, x.Cols)
}

// widened gives what was kept as x in float32.
func (p *Pass) widened(x tensor.Tensor) (tensor.Tensor, error) {
	y, err := p.unrounded(x)
	if err != nil || x.DType != tensor.BFloat16 {
		return y, err
	}
	return y, p.Device.Round(y, x)
}

// readable is widened where the device's operations do not read what was kept as x.
func (p *Pass) readable(x tensor.Tensor) (tensor.Tensor, error) {
	if _, ok := p.Device.(tensor.Fuser); ok {
		return x, nil
	}
	return p.widened(x)
}

// gateAndKeep writes silu(gate) · up to y, and gate and up, rounded, to what is kept of them.
func (p *Pass) gateAndKeep(y, keptGate, keptUp, gate, up tensor.Tensor) error {
	if f, ok := p.Device.(tensor.Fuser); ok {
		return f.SwiGLUKeep(y, keptGate, keptUp, gate, up)
	}
	if err := p.Device.SwiGLU(y, gate, up); err != nil {
		return err
	}
	if err := p.Device.Round(keptGate, gate); err != nil {
		return err
	}
	return p.Device.Round(keptUp, up)
}

// attend is Device.Attention, with the layer's sinks; o is rounded to kept, which is o where that is float32.
func (p *Pass) attend(t *Attention, kept, o, lse, q tensor.Tensor, runs []tensor.AttentionRun) error {
	f, fuses := p.Device.(tensor.Fuser)
	fuses = fuses && kept.DType == tensor.BFloat16
	if fuses && t.Sinks.Buffer == nil {
		return f.AttentionKeep(kept, o, lse, q, p.Pages, t.Layer, runs, t.Heads, t.Scale)
	}
	if err := p.Device.Attention(o, lse, q, p.Pages, t.Layer, runs, t.Heads, t.Scale); err != nil {
		return err
	}
	if t.Sinks.Buffer != nil {
		if err := eachRows(runs, func(from, to int) error {
			if fuses {
				return f.SinkKeep(kept.Slice(from, to), o.Slice(from, to), lse.Slice(from, to), t.Sinks)
			}
			return p.Device.Sink(o.Slice(from, to), lse.Slice(from, to), t.Sinks)
		}); err != nil {
			return err
		}
	}
	if kept.DType == tensor.Float32 || fuses {
		return nil
	}
	return eachRows(runs, func(from, to int) error { return p.Device.Round(kept.Slice(from, to), o.Slice(from, to)) })
}

// eachRows calls f for the rows of runs: at once for those that lie one behind another.
func eachRows(runs []tensor.AttentionRun, f func(from, to int) error) error {
	for len(runs) > 0 {
		from, n := runs[0].Row, 0
		to := from
		for n < len(runs) && runs[n].Row == to {
			to += runs[n].Count
			n++
		}
		if err := f(from, to); err != nil {
			return err
		}
		runs = runs[n:]
	}
	return nil
}

// addNorm adds x to sum and writes the norm of that to y.
func (p *Pass) addNorm(n *RMSNorm, y, sum, x tensor.Tensor) error {
	if f, ok := p.Device.(tensor.Fuser); ok {
		return f.AddRMSNorm(y, sum, x, n.Weight, n.Eps)
	}
	if err := p.Device.Add(sum, x); err != nil {
		return err
	}
	return n.Forward(p, y, sum)
}

// queryType is the type that queries are kept in.
func (p *Pass) queryType() tensor.DType {
	if f, ok := p.Device.(tensor.Fuser); ok {
		return f.QueryType(p.Pages)
	}
	return tensor.Float32
}

// turnHeads norms and turns h's queries to q, which is them where there is no norm and nothing to round, and norms and turns its keys and writes them to the pages, with its values; before that it rounds what is to be kept. The keys are
// undefined then if they have no norm.
func (p *Pass) turnHeads(q tensor.Tensor, h tensor.Heads, layer int) error {
	if f, ok := p.Device.(tensor.Fuser); ok {
		return f.TurnHeads(q, h, p.Pages, layer, p.Runs)
	}
	for _, kept := range []struct{ to, x tensor.Tensor }{{h.KeptQueries, h.Queries}, {h.KeptKeys, h.Keys}} {
		if kept.to.Buffer == nil {
			continue
		}
		if err := p.Device.Round(kept.to, kept.x); err != nil {
			return err
		}
	}
	if n := h.QueryNorm; n.Weight.Buffer != nil {
		if err := p.Device.RMSNorm(perHead(q, h.QueryHeads), perHead(h.Queries, h.QueryHeads), n.Weight, n.Eps); err != nil {
			return err
		}
	}
	mark := p.Temp.Mark()
	k := h.Keys
	if n := h.KeyNorm; n.Weight.Buffer != nil {
		if err := p.get(k.Rows, slot{&k, p.Temp, k.Cols}); err != nil {
			return err
		}
		if err := p.Device.RMSNorm(perHead(k, h.KeyHeads), perHead(h.Keys, h.KeyHeads), n.Weight, n.Eps); err != nil {
			return err
		}
	}
	if err := p.Device.Rope(q, h.Positions, h.Table, h.QueryHeads, false); err != nil {
		return err
	}
	if err := p.Device.Rope(k, h.Positions, h.Table, h.KeyHeads, false); err != nil {
		return err
	}
	if err := p.Device.WritePages(p.Pages, layer, k, h.Values, p.Runs); err != nil {
		return err
	}
	return p.Temp.Release(mark)
}

// turnHeadsBackward makes dq and dk, the gradients by what attention read, those by h's queries and keys.
func (p *Pass) turnHeadsBackward(dq, dk tensor.Tensor, h tensor.Heads) error {
	if f, ok := p.Device.(tensor.Fuser); ok {
		return f.TurnHeadsBackward(dq, dk, h)
	}
	for _, part := range []struct {
		d, x  tensor.Tensor
		heads int
		norm  tensor.HeadNorm
	}{{dq, h.Queries, h.QueryHeads, h.QueryNorm}, {dk, h.Keys, h.KeyHeads, h.KeyNorm}} {
		if err := p.Device.Rope(part.d, h.Positions, h.Table, part.heads, true); err != nil {
			return err
		}
		if part.norm.Weight.Buffer == nil {
			continue
		}
		d := perHead(part.d, part.heads)
		if err := p.Device.RMSNormBackward(d, d, perHead(part.x, part.heads), part.norm.Weight, part.norm.Eps, false); err != nil {
			return err
		}
	}
	return nil
}

// perHead sees rows of heads as one row per head.
func perHead(x tensor.Tensor, heads int) tensor.Tensor { return x.Reshape(x.Rows*heads, x.Cols/heads) }
