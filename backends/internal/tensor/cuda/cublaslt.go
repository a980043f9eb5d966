package cuda

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/tinsmith/tinsmith/cudart"
)

// The values of Options.Products.
const (
	ProductsAuto     = "auto"     // cuBLASLt where it is there, gives the bits of the kernels and is faster
	ProductsOwn      = "own"      // kernels only
	ProductsCuBLASLt = "cublaslt" // cuBLASLt wherever it has an algorithm; an error if it is not there or gives other bits
)

// ErrProducts is wrapped by the error of New when ProductsCuBLASLt is asked for and cannot be had.
var ErrProducts = errors.New("products are to be cuBLASLt's")

// leastGain is the share of the kernels' time that cuBLASLt may take at most: for less a second library is not worth having.
const leastGain = 0.95

// cublasltTask has the process that checks compare cuBLASLt with the kernels, for weights that are each an Out and an In, and write a cudart.LibraryCheck.
type cublasltTask struct {
	Weights    [][2]int64
	Warpgroups bool // the kernels use them
}

func (c *checkTask) checkCuBLASLt(driver *cudart.Driver, v *cudart.Device) error {
	library, err := driver.OpenCuBLASLt(cudart.Options{Directories: c.Libraries})
	if err != nil {
		return err
	}
	defer library.Close()
	if c.CuBLASLt.Warpgroups {
		if err := v.UseWarpgroups(true); err != nil {
			return err
		}
	}
	found, err := v.CheckCuBLASLt(library, c.CuBLASLt.Weights)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

// cublasltFinding is what a check found, or why it found nothing.
type cublasltFinding struct {
	cudart.LibraryCheck
	err error
}

func checkCuBLASLt(ordinal int, libraries []string, task cublasltTask) (f cublasltFinding) {
	out, err := checkTask{Ordinal: ordinal, Libraries: libraries, CuBLASLt: &task}.elsewhere()
	if err == nil {
		err = json.Unmarshal(out, &f.LibraryCheck)
	}
	f.err = err
	return f
}

// cublasltUse is the library, if it is to be used, and what for.
type cublasltUse struct {
	library    *cudart.CuBLASLt
	shapes     []cudart.ProductShape
	accumulate bool
}

// named says which library an error is about.
func (u *cublasltUse) named(err error) error {
	return fmt.Errorf("the cuBLASLt %s, version %s: %w", u.library.Path(), u.library.Version(), err)
}

// cublaslt finds out whether a device that is not open yet is to use cuBLASLt; the caller closes the library.
func (o *Options) cublaslt(driver *cudart.Driver, info cudart.Information, ordinal int, warpgroups bool, known *known) (use cublasltUse, err error) {
	if o.Products != ProductsAuto && o.Products != ProductsCuBLASLt || len(o.Weights) == 0 {
		return use, nil
	}
	use.library, err = driver.OpenCuBLASLt(cudart.Options{Directories: o.Libraries})
	if err != nil {
		if o.Products == ProductsCuBLASLt {
			return use, fmt.Errorf("%w: %w", ErrProducts, err)
		}
		if _, first := known.cublaslt.of(kindOf(driver, info), func() cublasltFinding { return cublasltFinding{err: err} }); first {
			slog.Info("products do without cuBLASLt", "device", info.Name, "reason", err)
		}
		return cublasltUse{}, nil
	}
	task := cublasltTask{Warpgroups: warpgroups}
	for _, w := range o.Weights {
		task.Weights = append(task.Weights, [2]int64{int64(w[0]), int64(w[1])})
	}
	kind := fmt.Sprint(kindOf(driver, info), " ", use.library.Path(), " ", task)
	found, first := known.cublaslt.of(kind, func() cublasltFinding { return checkCuBLASLt(ordinal, o.Libraries, task) })
	if first {
		for _, p := range found.Products {
			slog.Debug("products by cuBLASLt have the kernels' bits", "device", info.Name, "shape", p.ProductShape, "kernels", p.Kernels, "cublaslt", p.Library)
		}
	}
	if found.err == nil {
		use.shapes, use.accumulate = worthwhile(found.Products, o.Products), found.Accumulates == ""
	}
	switch {
	case found.err != nil && o.Products == ProductsCuBLASLt:
		err = fmt.Errorf("%w: %w", ErrProducts, use.named(found.err))
	case found.err == nil && len(use.shapes) > 0:
		if first {
			slog.Info("products of many rows use cuBLASLt", "device", info.Name, "library", use.library.Path(), "version", use.library.Version(), "shapes", len(use.shapes), "of", len(found.Products),
				"where_output_is_added_to", use.accumulate)
			if !use.accumulate {
				slog.Debug("products that are added to an output stay with the kernels", "reason", found.Accumulates)
			}
		}
		return use, nil
	case found.err == nil && o.Products == ProductsCuBLASLt:
		err = fmt.Errorf("%w: %w", ErrProducts, use.named(errors.New("it has no algorithm for this model's products that sums each element in one piece")))
	case first && found.err != nil:
		slog.Warn("products do without cuBLASLt", "device", info.Name, "reason", use.named(found.err))
	case first:
		slog.Info("products do without cuBLASLt, which would not be faster", "device", info.Name, "version", use.library.Version())
	}
	use.library.Close()
	return cublasltUse{}, err
}

// worthwhile gives the products that are to be cuBLASLt's.
func worthwhile(products []cudart.LibraryProduct, setting string) (shapes []cudart.ProductShape) {
	for _, p := range products {
		if setting == ProductsCuBLASLt || float64(p.Library) < leastGain*float64(p.Kernels) {
			shapes = append(shapes, p.ProductShape)
		}
	}
	return shapes
}
