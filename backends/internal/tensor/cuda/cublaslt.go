package cuda

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
)

// The values of Options.Products.
const (
	ProductsAuto     = "auto"     // cuBLASLt where it is there, gives the bits of the kernels and is faster
	ProductsOwn      = "own"      // kernels only
	ProductsCuBLASLt = "cublaslt" // cuBLASLt wherever it has an algorithm; an error if it is not there or gives other bits for a shape
	ProductsBulk     = "bulk"     // weights in blocks, and kernels that have them brought by bulk copies; an error if these are not there, give other bits or take longer
	ProductsClusters = "clusters" // as ProductsBulk, and products of few rows by clusters of blocks that share these; an error likewise
)

// ErrProducts is wrapped by the error of New when ProductsCuBLASLt, ProductsBulk or ProductsClusters is asked for and cannot be had.
var ErrProducts = errors.New("products as they are asked for cannot be had")

// LeastGain is the share of the kernels' time that cuBLASLt may take at most: for less a second library is not worth having.
const LeastGain = 0.95

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
	remembered bool // of a process before
	err        error
}

// CheckCuBLASLt has another process compare products by cuBLASLt with those by kernels on a device, bit by bit, and take the times of both, for weights that are each an Out and an In. warpgroups says that the kernels use them.
// As with CheckWarpgroups the program must have the same package in it.
func CheckCuBLASLt(ordinal int, libraries []string, weights [][2]int, warpgroups bool) (found cudart.LibraryCheck, err error) {
	task := cublasltTask{Warpgroups: warpgroups}
	for _, w := range weights {
		task.Weights = append(task.Weights, [2]int64{int64(w[0]), int64(w[1])})
	}
	out, err := checkTask{Ordinal: ordinal, Libraries: libraries, CuBLASLt: &task}.elsewhere()
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	return found, err
}

// cublasltUse is the library, if it has the kernels' bits for any shape, and what it is to be used for, which may be nothing.
type cublasltUse struct {
	library    *cudart.CuBLASLt
	products   []cudart.LibraryProduct
	accumulate bool
	shapes     int    // that were compared
	without    string // why there are no products
	remembered bool   // what was found, or there was nothing to find
}

// route says what is used, or why nothing is.
func (u *cublasltUse) route(to *Routes) {
	to.Shapes, to.Used, to.WithoutCuBLASLt = u.shapes, len(u.products), u.without
	for _, p := range u.products {
		to.CuBLASLt = u.library.Version()
		if p.Apart {
			to.Apart++
		}
	}
}

// named says which library an error is about.
func (u *cublasltUse) named(err error) error {
	return fmt.Errorf("the cuBLASLt %s, version %s: %w", u.library.Path(), u.library.Version(), err)
}

// cublaslt finds out whether a device that is not open yet is to use cuBLASLt; the caller closes the library.
func (o *Options) cublaslt(driver *cudart.Driver, info cudart.Information, ordinal int, warpgroups bool, known *known) (use cublasltUse, err error) {
	use.remembered = true
	switch {
	case o.Products != ProductsAuto && o.Products != ProductsCuBLASLt:
		use.without = "products are to be the kernels'"
		return use, nil
	case len(o.Weights) == 0:
		use.without = "no weights are known"
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
		return cublasltUse{without: err.Error(), remembered: true}, nil
	}
	kind := fmt.Sprint(kindOf(driver, info), " ", use.library.Path(), " ", o.Weights, " ", warpgroups)
	found, first := known.cublaslt.of(kind, func() (f cublasltFinding) {
		f.LibraryCheck, f.remembered, f.err = once(o.Remember, func() (circumstances, error) {
			return o.circumstances("cublaslt", driver, info, use.library, warpgroups)
		}, func() (cudart.LibraryCheck, error) {
			found, err := CheckCuBLASLt(ordinal, o.Libraries, o.Weights, warpgroups)
			if err == nil && found.Version != use.library.Version() {
				err = fmt.Errorf("the process that checked it found version %s", found.Version)
			}
			return found, err
		})
		return f
	})
	reason := found.err
	if reason == nil && (o.Products == ProductsCuBLASLt || len(found.Products) == 0) {
		reason = unlike(found.LibraryCheck)
	}
	if reason == nil && len(found.Products) == 0 {
		reason = errNoAlgorithm
	}
	switch {
	case reason == nil:
		use.products, use.accumulate, use.shapes, use.remembered = worthwhile(found.Products, o.Products), found.Accumulates == "", len(found.Products)+len(found.LeftOut), found.remembered
		if len(use.products) == 0 {
			use.without = fmt.Sprintf("cuBLASLt %s has the kernels' bits for %d of %d shapes and would be faster for none", use.library.Version(), len(found.Products), use.shapes)
		}
		if first {
			use.log(info, found)
		}
		return use, nil // also for no shape: the next start may find it faster by a hair, and what names the bits must not depend on that
	case o.Products == ProductsCuBLASLt:
		err = fmt.Errorf("%w: %w", ErrProducts, use.named(reason))
	case first:
		slog.Warn("products do without cuBLASLt", "device", info.Name, "reason", use.named(reason))
	}
	without := use.named(reason).Error()
	use.library.Close()
	return cublasltUse{without: without, remembered: found.remembered}, err
}

var errNoAlgorithm = errors.New("it has no algorithm for this model's products that sums each element in one piece")

// unlike is the error of a library that has algorithms for a shape, none of which is right: it names the first such shape. Nil if there is none.
func unlike(found cudart.LibraryCheck) error {
	var first cudart.LeftOut
	n := 0
	for _, s := range found.LeftOut {
		if s.None {
			continue
		}
		if n++; n == 1 {
			first = s
		}
	}
	switch n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("products of %v: %s", first.ProductShape, first.Reason)
	}
	return fmt.Errorf("products of %v, and of %d more of %d shapes: %s", first.ProductShape, n-1, len(found.Products)+len(found.LeftOut), first.Reason)
}

// log says what the library is used for.
func (u *cublasltUse) log(info cudart.Information, found cublasltFinding) {
	for _, p := range found.Products {
		slog.Debug("products by cuBLASLt have the kernels' bits", "device", info.Name, "shape", p.ProductShape, "kernels", p.Kernels, "cublaslt", p.Library, "kernels_with_adapter", p.Riding, "cublaslt_and_adapter", p.Separate)
	}
	shapes := len(found.Products) + len(found.LeftOut)
	if len(found.LeftOut) > 0 {
		var reasons []string
		for _, s := range found.LeftOut {
			reasons = append(reasons, fmt.Sprint(s.ProductShape, ": ", s.Reason))
		}
		slog.Info("kernels keep the products that cuBLASLt cannot give the same bits", "device", info.Name, "version", u.library.Version(), "shapes", len(reasons), "of", shapes, "reasons", reasons)
	}
	if len(u.products) == 0 {
		slog.Info("products do without cuBLASLt, which would not be faster", "device", info.Name, "version", u.library.Version())
		return
	}
	var route Routes
	u.route(&route)
	slog.Info("products of many rows use cuBLASLt", "device", info.Name, "library", u.library.Path(), "version", u.library.Version(), "shapes", route.Used, "of", shapes, "with_adapters", route.Apart, "remembered", found.remembered,
		"where_output_is_added_to", u.accumulate)
	if !u.accumulate {
		slog.Debug("products that are added to an output stay with the kernels", "reason", found.Accumulates)
	}
}

// worthwhile gives the products that are to be cuBLASLt's: those in which it is faster by itself, and with an adapter's product those in which it is faster although that has a launch of its own behind it.
func worthwhile(products []cudart.LibraryProduct, setting string) (worth []cudart.LibraryProduct) {
	faster := func(library, kernels time.Duration) bool {
		return setting == ProductsCuBLASLt || float64(library) < LeastGain*float64(kernels)
	}
	for _, p := range products {
		if faster(p.Library, p.Kernels) {
			p.Apart = faster(p.Separate, p.Riding)
			worth = append(worth, p)
		}
	}
	return worth
}
