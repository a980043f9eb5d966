package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
)

// decodingRows are the numbers of rows that products of decoding are measured with.
var decodingRows = []int64{1, 16, 64}

// decodingProducts measures the products of a layer that have few rows in common, with an adapter of all rows: in the launches that decoding has, in one for each product, and with the adapter's second products in a launch of their
// own, behind one of all others, as where there are several adapters.
func (w workload) decodingProducts(v *cudart.Device, found func(result)) error {
	s := w.Shape
	query, key := int64(s.Heads*s.HeadWidth), int64(s.KeyHeads*s.HeadWidth)
	for _, layers := range []struct {
		what string
		outs []int64
	}{{"queries, keys and values", []int64{query, key, key}}, {"gate and up", []int64{int64(s.Intermediate), int64(s.Intermediate)}}} {
		for _, rows := range decodingRows {
			times, err := w.decodingLaunches(v, rows, int64(s.Hidden), layers.outs)
			if err != nil {
				return err
			}
			found(result{Shape: s.Name, What: fmt.Sprintf("products of %d rows with the weights of %s, and with an adapter of rank %d", rows, layers.what, w.Rank),
				Measured: fmt.Sprintf("%.3g µs in shared launches, %.3g in one each; %.3g with the adapter's second products in a launch of their own", 1e6*times[0].Seconds(), 1e6*times[1].Seconds(), 1e6*times[2].Seconds())})
		}
	}
	return nil
}

// decodingLaunches gives the times of decodingProducts, in the order of its description.
func (w workload) decodingLaunches(v *cudart.Device, rows, in int64, outs []int64) (times [3]time.Duration, err error) {
	o := operands{v: v}
	defer func() { err = errors.Join(err, o.free()) }()
	// Weights are read from memory, as those of layer after layer are: no more than some of what is here stays in the second-level cache.
	const most, leastBytes = 16, 256 << 20
	size := int64(0)
	for _, out := range outs {
		size += 2 * out * in
	}
	sets := min(max(leastBytes/size, 2), most)
	rank := int64(w.Rank)
	x := cudart.View{At: o.memory(2 * rows * in), Rows: rows, Cols: in, Stride: in}
	product := func(y, x cudart.View, t cudart.Type, weight cudart.Weight) cudart.Multiplication {
		return cudart.Multiplication{Y: y, X: x, XType: t, Type: cudart.BFloat16, Groups: []cudart.RowGroup{{To: rows, Weight: weight}}}
	}
	type layer struct{ bases, riding, shrinks, expands []cudart.Multiplication }
	layers := make([]layer, sets)
	for i := range layers {
		l := &layers[i]
		for _, out := range outs {
			y, inner := o.rows(rows, out), o.rows(rows, rank)
			base, shrink, expand := product(y, x, cudart.BFloat16, o.weight(out, in)), product(inner, x, cudart.BFloat16, o.weight(rank, in)), product(y, inner, cudart.Float32, o.weight(out, rank))
			expand.Accumulate = true
			l.bases, l.shrinks, l.expands = append(l.bases, base), append(l.shrinks, shrink), append(l.expands, expand)
			base.Tail = cudart.Tail{X: inner, XType: cudart.Float32, Groups: expand.Groups}
			l.riding = append(l.riding, base)
		}
	}
	if o.err != nil {
		return times, o.err
	}
	eachOf := func(lists ...[]cudart.Multiplication) (err error) {
		for _, list := range lists {
			for i := range list {
				err = errors.Join(err, v.Products(list[i:i+1]))
			}
		}
		return err
	}
	for i, run := range []func(l layer) error{
		func(l layer) error { return errors.Join(v.Products(l.shrinks), v.Products(l.riding)) },
		func(l layer) error { return eachOf(l.shrinks, l.riding) },
		func(l layer) error {
			return errors.Join(v.Products(slices.Concat(l.bases, l.shrinks)), v.Products(l.expands))
		},
	} {
		whole, err := w.best(v, func() error {
			return v.Record(func() error {
				for _, l := range layers {
					if err := run(l); err != nil {
						return err
					}
				}
				return v.ShareRows(cudart.View{}, cudart.Float32)
			})
		})
		if err != nil {
			return times, err
		}
		times[i] = whole / time.Duration(sets)
	}
	return times, nil
}
