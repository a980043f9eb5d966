package cuda

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tinsmith/tinsmith/cudart"
)

// The values of Options.Launches.
const (
	LaunchesAuto      = "auto"      // one after another, until a device has shown that others pay
	LaunchesPlain     = "plain"     // likewise
	LaunchesDependent = "dependent" // those of graphs overlap; an error if the device or the driver cannot have it, the bits are others, or it takes longer
)

// ErrLaunches is wrapped by the error of New when LaunchesDependent is asked for and cannot be had.
var ErrLaunches = errors.New("launches as they are asked for cannot be had")

// checkLaunches has the process that checks compare launches that overlap with others, and write a cudart.DependentCheck.
func checkLaunches(v *cudart.Device) error {
	return tell(v.CheckDependentLaunches())
}

// CheckLaunches has another process compare a series of launches as a graph in which they overlap with one in which they do not, bit by bit, and take the times of both. As with CheckWarpgroups the program must have the same package in
// it.
func CheckLaunches(ordinal int, libraries []string) (cudart.DependentCheck, error) {
	return foundElsewhere[cudart.DependentCheck](checkTask{Ordinal: ordinal, Libraries: libraries, Launches: true})
}

// launchesFinding is what a check found, or why it found nothing.
type launchesFinding struct {
	cudart.DependentCheck
	err error
}

// refusal is why launches are not to overlap; nil if they are.
func (f *launchesFinding) refusal() error {
	if f.err != nil {
		return fmt.Errorf("check of dependent launches: %w", f.err)
	}
	if f.Dependent >= f.Apart {
		return fmt.Errorf("dependent launches have the same bits and take longer: %v, and %v one after another", f.Dependent, f.Apart)
	}
	return nil
}

// launches finds out whether launches on a device that is not open yet can overlap. Its error says why not.
func (o *Options) launches(driver *cudart.Driver, info cudart.Information, ordinal int, known *known) error {
	if !info.Warpgroups() {
		return fmt.Errorf("%w: dependent launches are for compute capability 9.0, and %s has %d.%d", ErrLaunches, info.Name, info.Major, info.Minor)
	}
	found, first := known.launches.of(kindOf(driver, info), func() (f launchesFinding) {
		f.DependentCheck, f.err = CheckLaunches(ordinal, o.Libraries)
		return f
	})
	if err := found.refusal(); err != nil {
		return fmt.Errorf("%w: %w", ErrLaunches, err)
	}
	if first {
		slog.Info("launches of graphs overlap", "device", info.Name, "with", found.Dependent, "without", found.Apart)
	}
	return nil
}
