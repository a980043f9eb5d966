package engine

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/plugins"
)

// The values of Config.Products.
const (
	productsAuto     = "auto"
	productsOwn      = "own"
	productsCuBLASLt = "cublaslt"
	productsBulk     = "bulk"
	productsClusters = "clusters"
)

// The values of Config.Attention.
const (
	attentionAuto       = "auto"
	attentionOwn        = "own"
	attentionWarpgroups = "warpgroups"
)

// The values of Config.Gradients.
const (
	gradientsAuto        = "auto"
	gradientsOwn         = "own"
	gradientsTensorCores = "tensor_cores"
)

// The values of Config.Launches.
const (
	launchesAuto      = "auto"
	launchesPlain     = "plain"
	launchesDependent = "dependent"
)

// inBlocks says whether weights lie in blocks on GPUs.
func (c *Config) inBlocks() bool {
	return c.Products == productsBulk || c.Products == productsClusters
}

// checkProducts refuses what is for GPUs where there is none.
func (c *Config) checkProducts() error {
	if c.Gradients == gradientsTensorCores && c.Device != "auto" && !isCUDA(c.Device) {
		return plugins.Invalidf("backend.adapter_gradients", "is %s, which is for GPUs, and there is the device %q", c.Gradients, c.Device)
	}
	if c.Launches == launchesDependent && c.Device != "auto" && !isCUDA(c.Device) {
		return plugins.Invalidf("backend.launches", "is %s, which is for GPUs, and there is the device %q", c.Launches, c.Device)
	}
	if c.Attention == attentionWarpgroups && c.Device != "auto" && !isCUDA(c.Device) {
		return plugins.Invalidf("backend.attention", "is %s, which is for GPUs, and there is the device %q", c.Attention, c.Device)
	}
	if (c.Products == productsCuBLASLt || c.inBlocks()) && c.Device != "auto" && !isCUDA(c.Device) {
		return plugins.Invalidf("backend.products", "is %s, which is for GPUs, and there is the device %q", c.Products, c.Device)
	}
	return nil
}

// findWeights fills Weights in for devices that may choose by them, before they are opened. What is wrong with the model's files is for the load itself to say.
func (e *Engine) findWeights(ctx context.Context, c *Config, dir string) error {
	if c.Products == productsOwn || c.inBlocks() || c.Device != "auto" && !isCUDA(c.Device) {
		return nil
	}
	ranks := []int{len(c.Training[0])}
	if len(c.Sampling) > 0 {
		ranks = append(ranks, len(c.Sampling[0]))
	}
	shapes, err := model.WeightShapes(ctx, dir, e.options.Registry, model.LoadOptions{DType: c.DType, MaxContext: c.MaxContextLength}, ranks...)
	if err != nil {
		return nil //nolint:nilerr // the load says what is wrong
	}
	if c.Weights = shapes; len(shapes) == 0 && c.Products == productsCuBLASLt {
		return plugins.Invalidf("backend.products", "is %s, which multiplies weights of bfloat16, and this model has none", productsCuBLASLt)
	}
	return nil
}
