package cuda

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/checked"
)

// Routes says who computes a device's products of many rows with weights of bfloat16, and why nobody else does. All give the same bits
// (tensor.Device.Arithmetic has what decides about those).
type Routes struct {
	// Warpgroups says that kernels for warpgroups do, where they are faster than those for warps; else WithoutWarpgroups says why not.
	Warpgroups        bool
	WithoutWarpgroups string
	// Bulk says that weights lie in blocks, and that products with them are by bulk copies (ProductsBulk, ProductsClusters).
	Bulk bool
	// Clusters says that products of few rows are by clusters of blocks that share these (ProductsClusters).
	Clusters bool
	// Attention says that attention of many rows, and its gradient, are by warpgroups (AttentionWarpgroups).
	Attention bool
	// Gradients says that adapters' gradients are summed on tensor cores (GradientsTensorCores), by another arithmetic.
	Gradients bool
	// Dependent says that launches of a decoding step overlap (LaunchesDependent).
	Dependent bool
	// CuBLASLt is the version of the library if it computes products of Used of the model's Shapes, in both orientations and by classes of rows: of Apart
	// of them also where an adapter's product would ride in the kernels'. If it
	// computes none it is empty, and WithoutCuBLASLt says why.
	CuBLASLt            string
	WithoutCuBLASLt     string
	Shapes, Used, Apart int
	// Remembered says that all of this was found out by another process before.
	Remembered bool
}

// String is for people to read.
func (r Routes) String() string {
	text := "products of many rows by warpgroups"
	if !r.Warpgroups {
		text = fmt.Sprintf("products of many rows by warps, not by warpgroups (%s)", r.WithoutWarpgroups)
	}
	if r.Bulk {
		text = "products of many rows by bulk copies; others: " + text
	}
	if r.Clusters {
		text = "products of few rows by clusters; " + text
	}
	if r.Attention {
		text = "attention by warpgroups; " + text
	}
	if r.Gradients {
		text = "adapters' gradients on tensor cores; " + text
	}
	if r.Dependent {
		text = "launches of graphs overlap; " + text
	}
	if r.CuBLASLt != "" {
		return fmt.Sprintf("%s, and by cuBLASLt %s in %d of %d shapes, of which %d with an adapter's product behind it", text, r.CuBLASLt, r.Used, r.Shapes, r.Apart)
	}
	return fmt.Sprintf("%s, none by cuBLASLt (%s)", text, r.WithoutCuBLASLt)
}

// Routes implements tensor.Routed.
func (d *device) Routes() string { return d.routes.String() }

// RoutesOf gives the routes of a device of this package, as they were chosen when it was opened; false for any other.
func RoutesOf(d tensor.Device) (Routes, bool) {
	if own, ok := checked.Kernels(d).(*device); ok {
		return own.routes, true
	}
	return Routes{}, false
}
