package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

func (d *device) Route(choice, p, logits tensor.Tensor, normalise bool) error {
	return failed("route", C.op_route(d.c, view(choice), view(p), view(logits), C.bool(normalise)))
}

func (d *device) RouteBackward(dlogits, dp, p, choice, logits tensor.Tensor, normalise bool) error {
	return failed("route backward", C.op_route_backward(d.c, view(dlogits), view(dp), view(p), view(choice), view(logits), C.bool(normalise)))
}

// tableOf is a table as C takes it.
func tableOf(t tensor.Table) C.table {
	from, to := t.Range()
	return C.table{words: C.uintptr_t(t.Words.Address()), tokens: C.int64_t(t.Tokens), slots: C.int64_t(t.Slots), experts: C.int64_t(t.Experts), from: C.int64_t(from), to: C.int64_t(to)}
}

func (d *device) Dispatch(table tensor.Table, choice tensor.Tensor) error {
	if C.op_dispatch(d.c, tableOf(table), view(choice)) != 0 {
		return errors.New("cpu: dispatch: the choice has an expert that there is not")
	}
	return nil
}

func (d *device) MatMulRouted(table tensor.Table, products ...tensor.RoutedProduct) error {
	d.routed, d.routedGroups = d.routed[:0], d.routedGroups[:0]
	for i := range products {
		p := &products[i]
		for _, g := range p.Groups {
			w := g.Stack.Matrix.(*matrix)
			first := of(w)
			first.out = C.int64_t(g.Stack.Out)
			d.routedGroups = append(d.routedGroups, C.routed_group{from: C.int64_t(g.From), to: C.int64_t(g.To), w: first, apart: C.int64_t(g.Stack.Pitch * w.rowBytes()),
				factor: C.float(g.Factor), round: C.int32_t(g.Round)})
		}
		d.routed = append(d.routed, C.routed_product{y: view(p.Y), x: view(p.X), groups_end: C.int64_t(len(d.routedGroups)), gathered: C.bool(p.Gathered),
			accumulate: C.bool(p.Accumulate), transposed: C.bool(p.Transposed), cut: cut(p.Segments), continues: C.bool(p.Continues)})
	}
	return failed("routed matmul", C.op_routed(d.c, tableOf(table), &d.routed[0], C.int64_t(len(d.routed)), &d.routedGroups[0]))
}

func (d *device) OuterRouted(table tensor.Table, products ...tensor.RoutedOuter) error {
	d.routedOuter = d.routedOuter[:0]
	for _, p := range products {
		d.routedOuter = append(d.routedOuter, C.routed_outer{g: view(p.G), a: view(p.A), b: view(p.B), from: C.int64_t(p.From), to: C.int64_t(p.To), first: C.bool(p.First)})
	}
	return failed("routed outer products", C.op_outer_routed(d.c, tableOf(table), &d.routedOuter[0], C.int64_t(len(d.routedOuter))))
}

// slots is a view of the factors of slots, without an address if there are none.
func slots(p tensor.Tensor) C.view {
	if p.Buffer == nil {
		return C.view{}
	}
	return view(p)
}

func (d *device) Spread(rows, x, p tensor.Tensor, table tensor.Table, gathered bool) error {
	return failed("spread", C.op_spread(d.c, view(rows), view(x), slots(p), tableOf(table), C.bool(gathered)))
}

func (d *device) Combine(y, rows, p tensor.Tensor, table tensor.Table, accumulate bool) error {
	return failed("combine", C.op_combine(d.c, view(y), view(rows), slots(p), tableOf(table), C.bool(accumulate)))
}

func (d *device) CombineBackward(dp, drows, h, p tensor.Tensor, table tensor.Table, segments tensor.Segments) error {
	return failed("combine backward", C.op_combine_backward(d.c, view(dp), view(drows), view(h), view(p), tableOf(table), cut(segments)))
}
