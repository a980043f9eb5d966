package cuda

import (
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// Route implements tensor.Device.
func (d *device) Route(choice, p, logits tensor.Tensor, normalise bool) error {
	return d.failed("route", d.v.Route(view(choice), view(p), view(logits), normalise))
}

// RouteBackward implements tensor.Device.
func (d *device) RouteBackward(dlogits, dp, p, choice, logits tensor.Tensor, normalise bool) error {
	return d.failed("route backward", d.v.RouteBackward(view(dlogits), view(dp), view(p), view(choice), view(logits), normalise))
}

// tableOf is a table as kernels take it.
func tableOf(t tensor.Table) cudart.ExpertTable {
	from, to := t.Range()
	return cudart.ExpertTable{Words: view(t.Words).At, Tokens: int64(t.Tokens), Slots: int64(t.Slots), Experts: int64(t.Experts), From: int64(from), To: int64(to)}
}

// Dispatch implements tensor.Device.
func (d *device) Dispatch(table tensor.Table, choice tensor.Tensor) error {
	return d.failed("dispatch", d.v.Dispatch(tableOf(table), view(choice)))
}

// MatMulRouted implements tensor.Device: products of one type and orientation are one launch.
func (d *device) MatMulRouted(table tensor.Table, products ...tensor.RoutedProduct) error {
	for _, t := range kinds {
		for _, transposed := range []bool{false, true} {
			d.routed = d.routed[:0]
			for i := range products {
				if p := &products[i]; p.Transposed == transposed {
					d.routed = appendRouted(d.routed, p, t)
				}
			}
			if len(d.routed) == 0 {
				continue
			}
			if err := d.v.RoutedProducts(tableOf(table), d.routed, t, transposed); err != nil {
				return d.failed("routed matmul", err)
			}
		}
	}
	return nil
}

// appendRouted appends the groups of a product whose matrices have a type.
func appendRouted(list []cudart.RoutedProduct, p *tensor.RoutedProduct, t cudart.Type) []cudart.RoutedProduct {
	for _, g := range p.Groups {
		m := g.Stack.Matrix.(*matrix)
		if m.kind() != t {
			continue
		}
		w := m.weight()
		w.Out = int64(g.Stack.Out)
		list = append(list, cudart.RoutedProduct{Y: view(p.Y), X: view(p.X), XType: typeOf(p.X.DType), Weight: w, Apart: m.apart(g.Stack.Pitch), First: int32(g.From), End: int32(g.To),
			Factor: g.Factor, Round: typeOf(g.Round), Gathered: p.Gathered, Accumulate: p.Accumulate})
	}
	return list
}

// apart is how far the matrices of a stack lie apart that begin so many rows after each other: elements, or bytes in eight bits.
func (m *matrix) apart(rows int) int64 {
	if m.columns > 0 {
		return int64(m.size(rows))
	}
	return int64(rows) * int64(m.pitch)
}

// OuterRouted implements tensor.Device.
func (d *device) OuterRouted(table tensor.Table, products ...tensor.RoutedOuter) error {
	d.outerRouted = d.outerRouted[:0]
	for _, p := range products {
		d.outerRouted = append(d.outerRouted, cudart.RoutedOuter{G: view(p.G), A: view(p.A), B: view(p.B), From: int32(p.From), To: int32(p.To), First: p.First})
	}
	return d.failed("routed outer products", d.v.OuterRouted(tableOf(table), d.outerRouted))
}

// slots is a view of the factors of slots, without an address if there are none.
func slots(p tensor.Tensor) cudart.View {
	if p.Buffer == nil {
		return cudart.View{}
	}
	return view(p)
}

// Spread implements tensor.Device.
func (d *device) Spread(rows, x, p tensor.Tensor, table tensor.Table, gathered bool) error {
	return d.failed("spread", d.v.Spread(view(rows), view(x), slots(p), tableOf(table), gathered))
}

// Combine implements tensor.Device.
func (d *device) Combine(y, rows, p tensor.Tensor, table tensor.Table, accumulate bool) error {
	return d.failed("combine", d.v.Combine(view(y), view(rows), slots(p), tableOf(table), accumulate))
}

// CombineBackward implements tensor.Device.
func (d *device) CombineBackward(dp, drows, h, p tensor.Tensor, table tensor.Table, _ tensor.Segments) error { // which there are none of on this device
	return d.failed("combine backward", d.v.CombineBackward(view(dp), view(drows), view(h), view(p), tableOf(table)))
}
