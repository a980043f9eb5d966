package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart"
)

// products measures the large products of a training pass by themselves, in each of the ways that the device has, and says which of them training uses.
func (w workload) products(libraries []string) (results []result, err error) {
	driver, err := cudart.Open(cudart.Options{Directories: libraries})
	if err != nil {
		return nil, err
	}
	defer driver.Close()
	info, err := driver.Information(0)
	if err != nil {
		return nil, err
	}
	used := "warps"
	if info.Warpgroups() {
		r := result{Shape: w.Shape.Name, What: "products by warpgroups against those by warps", Goal: "equal bits"}
		if err := cuda.CheckWarpgroups(0, libraries); err != nil {
			r.Failure = err.Error()
		} else {
			used = "warpgroups"
		}
		results = append(results, r)
	}
	v, err := driver.Open(0)
	if err != nil {
		return results, err
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
					return results, err
				}
				if rates[way], err = w.product(v, int64(p.out), int64(p.in), transposed); err != nil {
					return results, err
				}
			}
			r.Measured = fmt.Sprintf("%.0f TFLOP/s by %s", rates[used], used)
			if used != "warps" {
				r.Measured += fmt.Sprintf(", %.0f by warps", rates["warps"])
			}
			results = append(results, r)
		}
	}
	return results, nil
}

// productRows is how many tokens a pass has, up to those of one chunk.
func (w workload) productRows() int { return min(w.Sequences*w.Length, 16384) }

// fill writes random numbers that are ±[2⁻⁶, 2⁻⁵) as bfloat16 and as float32: with zeros a device takes less power and is faster than it will be.
func fill(v *cudart.Device, at cudart.Address, size int) error {
	const piece = 1 << 20
	var block bytes.Buffer
	if err := random(&block, 1, []int{1, piece / 2}); err != nil {
		return err
	}
	have := min(piece, size)
	if err := v.Upload(at, have, block.Bytes()[:have], have, 1); err != nil {
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

// product gives the best rate of one product, in TFLOP/s.
func (w workload) product(v *cudart.Device, out, in int64, transposed bool) (rate float64, err error) {
	rows, depth, columns := int64(w.productRows()), in, out
	if transposed {
		depth, columns = out, in
	}
	var taken []cudart.Address
	defer func() {
		for _, a := range taken {
			err = errors.Join(err, v.Free(a))
		}
	}()
	memory := func(size int64) cudart.Address {
		a, failed := v.Alloc(int(size))
		if failed == nil {
			taken = append(taken, a)
			failed = fill(v, a, int(size))
		}
		err = errors.Join(err, failed)
		return a
	}
	y := cudart.View{At: memory(4 * rows * columns), Rows: rows, Cols: columns, Stride: columns}
	x := cudart.View{At: memory(4 * rows * depth), Rows: rows, Cols: depth, Stride: depth}
	weight := cudart.Weight{Out: out, In: in, Pitch: (in + 7) / 8 * 8}
	weight.At = memory(2 * out * weight.Pitch)
	if err != nil {
		return 0, err
	}
	best := time.Duration(math.MaxInt64)
	for range w.Repeat + 1 {
		begin := time.Now()
		if err := v.Product(y, x, cudart.Float32, []cudart.RowGroup{{To: rows, Weight: weight}}, cudart.BFloat16, transposed, false); err != nil {
			return 0, err
		}
		if err := v.Synchronize(); err != nil {
			return 0, err
		}
		best = min(best, time.Since(begin))
	}
	return 2 * float64(rows) * float64(out) * float64(in) / best.Seconds() / 1e12, nil
}
