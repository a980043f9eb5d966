package cuda

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tinsmith/tinsmith/cudart"
)

// The values of Options.Gradients.
const (
	GradientsAuto        = "auto"         // chains of float32 over rows, until a device has shown that others pay
	GradientsOwn         = "own"          // likewise
	GradientsTensorCores = "tensor_cores" // sums of groups of rows; an error if these are not there, depend on cuts, are too far from float64 or take longer
)

// ErrGradients is wrapped by the error of New when GradientsTensorCores is asked for and cannot be had.
var ErrGradients = errors.New("adapters' gradients as they are asked for cannot be had")

// checkGradients has the process that checks look at outer products by groups of rows, and write a cudart.OuterGroupCheck.
func checkGradients(v *cudart.Device) error {
	return tell(v.CheckOuterGroups())
}

// CheckGradients has another process see that outer products by groups of rows on a device have the same bits however they are cut, and are near to float64, and take their time. As with CheckWarpgroups the program must have the same package
// in it.
func CheckGradients(ordinal int, libraries []string) (cudart.OuterGroupCheck, error) {
	return foundElsewhere[cudart.OuterGroupCheck](checkTask{Ordinal: ordinal, Libraries: libraries, Gradients: true})
}

// gradientsFinding is what a check found, or why it found nothing.
type gradientsFinding struct {
	cudart.OuterGroupCheck
	err error
}

// refusal is why gradients on tensor cores are not to be used; nil if they are.
func (f *gradientsFinding) refusal() error {
	if f.err != nil {
		return fmt.Errorf("check of adapters' gradients on tensor cores: %w", f.err)
	}
	if f.Groups >= f.Chains {
		return fmt.Errorf("adapters' gradients on tensor cores take longer: %v, and %v without", f.Groups, f.Chains)
	}
	return nil
}

// gradients finds out whether a device that is not open yet can have them. Its error says why not.
func (o *Options) gradients(driver *cudart.Driver, info cudart.Information, ordinal int, known *known) error {
	if !info.Warpgroups() {
		return fmt.Errorf("%w: the kernel is for compute capability 9.0, and %s has %d.%d", ErrGradients, info.Name, info.Major, info.Minor)
	}
	found, first := known.gradients.of(kindOf(driver, info), func() (f gradientsFinding) {
		f.OuterGroupCheck, f.err = CheckGradients(ordinal, o.Libraries)
		return f
	})
	if err := found.refusal(); err != nil {
		return fmt.Errorf("%w: %w", ErrGradients, err)
	}
	if first {
		slog.Info("adapters' gradients are summed on tensor cores", "device", info.Name, "with", found.Groups, "without", found.Chains, "error", found.GroupsError, "error without", found.ChainsError)
	}
	return nil
}
