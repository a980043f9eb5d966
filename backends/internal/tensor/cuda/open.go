package cuda

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tinsmith/tinsmith/cudart"
)

// opened is a device with what it uses.
type opened struct {
	*cudart.Device
	info    cudart.Information
	library *cudart.CuBLASLt // there, used or not, if its bits were found to be right for any shape; it is closed after the device
	routes  Routes
}

// openDevice opens a device and has it use warpgroups if it has them and they were found to be right, and cuBLASLt if o wants it, it was, and it is faster.
func openDevice(driver *cudart.Driver, ordinal int, o Options, known *known) (to opened, err error) {
	info, err := driver.Information(ordinal)
	if err != nil {
		if v, failed := driver.Open(ordinal); failed == nil {
			err = errors.Join(err, v.Close())
		} else { // which says more
			err = failed
		}
		return to, err
	}
	groups := o.warpgroups(driver, info, ordinal, known)
	if o.inBlocks() {
		if err := o.bulk(driver, info, ordinal, groups.err == nil, known); err != nil {
			return to, err
		}
	}
	if o.Products == ProductsClusters {
		if err := o.clusters(driver, info, ordinal, known); err != nil {
			return to, err
		}
	}
	if o.Attention == AttentionWarpgroups && !o.Trusted {
		if err := o.attention(driver, info, ordinal, known); err != nil {
			return to, err
		}
	}
	if o.Gradients == GradientsTensorCores && !o.Trusted {
		if err := o.gradients(driver, info, ordinal, known); err != nil {
			return to, err
		}
	}
	if o.Launches == LaunchesDependent && !o.Trusted {
		if err := o.launches(driver, info, ordinal, known); err != nil {
			return to, err
		}
	}
	use, err := o.cublaslt(driver, info, ordinal, groups.err == nil, known)
	if err != nil {
		return to, err
	}
	if to.Device, err = driver.Open(ordinal); err != nil {
		use.library.Close()
		return to, err
	}
	if o.Launches == LaunchesDependent { // before other modules are loaded
		if err := to.UseDependentLaunches(); err != nil {
			use.library.Close()
			return opened{}, errors.Join(fmt.Errorf("%w: %w", ErrLaunches, err), to.Close())
		}
	}
	if groups.err == nil {
		if groups.err = to.UseWarpgroups(true); groups.err != nil {
			slog.Warn("products of many rows do without warpgroups and take longer", "device", to.Name(), "reason", groups.err)
		}
	}
	to.info, to.routes = info, Routes{Warpgroups: groups.err == nil, Dependent: to.DependentLaunches()}
	to.routes.Remembered = (groups.remembered || !info.Warpgroups()) && use.remembered && !to.routes.Dependent
	if groups.err != nil {
		to.routes.WithoutWarpgroups = groups.err.Error()
	}
	if o.inBlocks() {
		err := to.UseBulk()
		if err == nil {
			err = to.UseClusters(o.Products == ProductsClusters)
		}
		if err != nil {
			return opened{}, errors.Join(fmt.Errorf("%w: %w", ErrProducts, err), to.Close())
		}
		to.routes.Bulk, to.routes.Clusters, to.routes.Remembered = true, to.Clusters(), false
	}
	if o.Attention == AttentionWarpgroups {
		if err := to.UseGroupAttention(true); err != nil {
			use.library.Close()
			return opened{}, errors.Join(fmt.Errorf("%w: %w", ErrAttention, err), to.Close())
		}
		to.routes.Attention, to.routes.Remembered = true, false
	}
	if o.Gradients == GradientsTensorCores {
		if err := to.UseOuterGroups(); err != nil {
			use.library.Close()
			return opened{}, errors.Join(fmt.Errorf("%w: %w", ErrGradients, err), to.Close())
		}
		to.routes.Gradients, to.routes.Remembered = true, false
	}
	if len(use.products) > 0 {
		if err := to.UseCuBLASLt(use.library, use.products, use.accumulate); err != nil {
			err = use.named(err)
			use.library.Close()
			if o.Products == ProductsCuBLASLt {
				return to, errors.Join(fmt.Errorf("%w: %w", ErrProducts, err), to.Close())
			}
			slog.Warn("products do without cuBLASLt", "device", to.Name(), "reason", err)
			use = cublasltUse{without: err.Error()}
		}
	}
	to.library = use.library
	use.route(&to.routes)
	return to, nil
}
