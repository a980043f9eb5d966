package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart"
)

// products measures the large products of a training pass by themselves, in each of the ways that the device has, and says which of them training uses; then those of decoding.
func products(ctx context.Context, j job, found func(result)) (err error) {
	w, libraries := j.Workload, j.Libraries
	driver, err := cudart.Open(cudart.Options{Directories: libraries})
	if err != nil {
		return err
	}
	defer driver.Close()
	info, err := driver.Information(0)
	if err != nil {
		return err
	}
	used := "warps"
	if info.Warpgroups() {
		r := result{Shape: w.Shape.Name, What: "products by warpgroups against those by warps", Goal: "equal bits"}
		if err := cuda.CheckWarpgroups(0, libraries); err != nil {
			r.Failure = err.Error()
		} else {
			used = "warpgroups"
		}
		found(r)
	}
	if library, missing := driver.OpenCuBLASLt(cudart.Options{Directories: libraries}); missing == nil { // the report's head has the reason
		library.Close()
		compared, err := w.cublaslt(ctx, libraries, used == "warpgroups")
		if err != nil {
			return err
		}
		for _, r := range compared {
			found(r)
		}
	}
	v, err := driver.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	s := w.Shape
	for _, p := range []struct {
		what    string
		out, in int
	}{{"queries", s.Heads * s.HeadWidth, s.Hidden}, {"keys", s.KeyHeads * s.HeadWidth, s.Hidden}, {"gate", s.Intermediate, s.Hidden}, {"down", s.Hidden, s.Intermediate}} {
		for _, transposed := range []bool{false, true} {
			what := fmt.Sprintf("product of %d rows with the weight of %s, %d × %d", w.productRows(), p.what, p.out, p.in)
			if transposed {
				what += ", gradient"
			}
			r := result{Shape: s.Name, What: what, Goal: w.Product}
			rates := map[string]float64{}
			for _, way := range []string{"warps", "warpgroups"} {
				if way == "warpgroups" && used != way {
					continue
				}
				if err := v.UseWarpgroups(way == "warpgroups"); err != nil {
					return err
				}
				if rates[way], err = w.product(v, int64(p.out), int64(p.in), transposed); err != nil {
					return err
				}
			}
			r.Measured = fmt.Sprintf("%.0f TFLOP/s by %s", rates[used], used)
			if used != "warps" {
				r.Measured += fmt.Sprintf(", %.0f by warps", rates["warps"])
			}
			together, apart, err := w.adapter(v, int64(p.out), int64(p.in), transposed)
			if err != nil {
				return err
			}
			r.Measured += fmt.Sprintf("; with an adapter of rank %d in the same launch %.3g ms, in one of its own %.3g", w.Rank, 1e3*together.Seconds(), 1e3*apart.Seconds())
			found(r)
		}
	}
	return w.decodingProducts(v, found)
}

// cublaslt compares products by cuBLASLt with those by kernels, in bits and in time, as a plugin does before it uses them.
func (w workload) cublaslt(ctx context.Context, libraries []string, warpgroups bool) ([]result, error) {
	var weights [][2]int
	err := w.Shape.sizes(func(dir string) (err error) {
		weights, err = model.WeightShapes(ctx, dir, architectures.All(), model.LoadOptions{Sizes: true}, 1)
		return err
	})
	if err != nil {
		return nil, err
	}
	r := result{Shape: w.Shape.Name, What: "products by cuBLASLt against those by kernels", Goal: "equal bits where it is used"}
	found, err := cuda.CheckCuBLASLt(0, libraries, weights, warpgroups)
	if err != nil {
		r.Failure = err.Error()
		return []result{r}, nil //nolint:nilerr // the report has it, as that of every comparison that does not hold
	}
	r.Measured = comparedWithCuBLASLt(found)
	most := int64(0)
	for _, p := range found.Products {
		most = max(most, p.Rows)
	}
	results := []result{r}
	for _, p := range found.Products {
		if p.Rows == most { // those of a large pass
			results = append(results, result{Shape: w.Shape.Name, What: fmt.Sprintf("product of %v: by cuBLASLt, time against kernels", p.ProductShape), Measured: fmt.Sprintf("%.2f ×, %.3g ms against %.3g",
				p.Library.Seconds()/p.Kernels.Seconds(), 1e3*p.Library.Seconds(), 1e3*p.Kernels.Seconds())})
		}
	}
	return results, nil
}

// comparedWithCuBLASLt says for how many shapes the library has the kernels' bits and is used, and which are left to the kernels: that is how a plugin goes on, and no failure.
func comparedWithCuBLASLt(found cudart.LibraryCheck) string {
	faster, shapes := 0, len(found.Products)+len(found.LeftOut)
	for _, p := range found.Products {
		if float64(p.Library) < cuda.LeastGain*float64(p.Kernels) {
			faster++
		}
	}
	text := "equal"
	if len(found.LeftOut) > 0 {
		text += fmt.Sprintf(" for %d of %d shapes", len(found.Products), shapes)
	}
	text += fmt.Sprintf("; faster, and so used, for %d of %d shapes", faster, shapes)
	if found.Accumulates != "" {
		text += "; not where an output is added to: " + found.Accumulates
	}
	for i, s := range found.LeftOut {
		if i == 0 {
			text += "; left to the kernels: "
		} else {
			text += "; "
		}
		text += fmt.Sprintf("%v (%s)", s.ProductShape, s.Reason)
	}
	return text
}

// productRows is how many tokens a pass has, up to those of one chunk.
func (w workload) productRows() int { return min(w.Sequences*w.Length, 16384) }

// fill writes random numbers that are ±[2⁻⁶, 2⁻⁵) as bfloat16 and as float32: with zeros a device takes less power and is faster than it will be.
func fill(v *cudart.Device, at cudart.Address, size int) error {
	const piece = 1 << 20
	have := min(piece, size)
	if err := v.Upload(at, have, newPattern().elements[:have], have, 1); err != nil {
		return err
	}
	for have < size { // doubled until all is full
		n := min(have, size-have)
		if err := v.Copy(at+cudart.Address(have), v, at, n); err != nil {
			return err
		}
		have += n
	}
	return nil
}

// operands are a product's, filled with random numbers.
type operands struct {
	v     *cudart.Device
	taken []cudart.Address
	err   error
}

func (o *operands) memory(size int64) cudart.Address {
	if o.err != nil {
		return 0
	}
	a, err := o.v.Alloc(int(size))
	if err == nil {
		o.taken = append(o.taken, a)
		err = fill(o.v, a, int(size))
	}
	o.err = err
	return a
}

// rows gives rows × cols of float32.
func (o *operands) rows(rows, cols int64) cudart.View {
	return cudart.View{At: o.memory(4 * rows * cols), Rows: rows, Cols: cols, Stride: cols}
}

// weight gives out × in of bfloat16.
func (o *operands) weight(out, in int64) cudart.Weight {
	pitch := (in + 7) / 8 * 8
	return cudart.Weight{At: o.memory(2 * out * pitch), Out: out, In: in, Pitch: pitch}
}

// free gives the memory back.
func (o *operands) free() error {
	var err error
	for _, a := range o.taken {
		err = errors.Join(err, o.v.Free(a))
	}
	return err
}

// best gives the shortest time of a run that puts work into the device's stream.
func (w workload) best(v *cudart.Device, run func() error) (time.Duration, error) {
	best := time.Duration(math.MaxInt64)
	for range w.Repeat + 1 {
		begin := time.Now()
		if err := run(); err != nil {
			return 0, err
		}
		if err := v.Synchronize(); err != nil {
			return 0, err
		}
		best = min(best, time.Since(begin))
	}
	return best, nil
}

// product gives the best rate of one product, in TFLOP/s.
func (w workload) product(v *cudart.Device, out, in int64, transposed bool) (rate float64, err error) {
	rows, depth, columns := int64(w.productRows()), in, out
	if transposed {
		depth, columns = out, in
	}
	o := operands{v: v}
	defer func() { err = errors.Join(err, o.free()) }()
	y, x, weight := o.rows(rows, columns), o.rows(rows, depth), o.weight(out, in)
	if o.err != nil {
		return 0, o.err
	}
	best, err := w.best(v, func() error {
		return v.Product(y, x, cudart.Float32, []cudart.RowGroup{{To: rows, Weight: weight}}, cudart.BFloat16, transposed, false)
	})
	return 2 * float64(rows) * float64(out) * float64(in) / best.Seconds() / 1e12, err
}

// adapter gives the times of a product with an adapter of all rows, in one launch and in two.
func (w workload) adapter(v *cudart.Device, out, in int64, transposed bool) (together, apart time.Duration, err error) {
	rows, rank, depth, columns := int64(w.productRows()), int64(w.Rank), in, out
	if transposed {
		depth, columns = out, in
	}
	o := operands{v: v}
	defer func() { err = errors.Join(err, o.free()) }()
	y, x, inner, weight := o.rows(rows, columns), o.rows(rows, depth), o.rows(rows, rank), o.weight(out, in)
	var second cudart.Weight
	if transposed {
		second = o.weight(rank, in)
	} else {
		second = o.weight(out, rank)
	}
	if o.err != nil {
		return 0, 0, o.err
	}
	groups := []cudart.RowGroup{{To: rows, Weight: weight}}
	tail := cudart.Tail{X: inner, XType: cudart.Float32, Groups: []cudart.RowGroup{{To: rows, Weight: second}}}
	if together, err = w.best(v, func() error {
		return v.ProductWithTail(y, x, cudart.Float32, groups, tail, cudart.BFloat16, transposed, false)
	}); err != nil {
		return 0, 0, err
	}
	apart, err = w.best(v, func() error {
		if err := v.Product(y, x, cudart.Float32, groups, cudart.BFloat16, transposed, false); err != nil {
			return err
		}
		return v.Product(y, tail.X, tail.XType, tail.Groups, cudart.BFloat16, transposed, true)
	})
	return together, apart, err
}
