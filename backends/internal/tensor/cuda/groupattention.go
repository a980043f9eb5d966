package cuda

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tinsmith/tinsmith/cudart"
)

// The values of Options.Attention.
const (
	AttentionAuto       = "auto"       // kernels by warps, until a device has shown that others pay
	AttentionOwn        = "own"        // likewise
	AttentionWarpgroups = "warpgroups" // by warpgroups where there are kernels for the head dimension; an error if these are not there, give other bits or take longer
)

// ErrAttention is wrapped by the error of New when AttentionWarpgroups is asked for and cannot be had.
var ErrAttention = errors.New("attention as it is asked for cannot be had")

// checkAttention has the process that checks compare attention by warpgroups with that by warps, and write a cudart.GroupAttentionCheck.
func checkAttention(v *cudart.Device) error {
	return tell(v.CheckGroupAttention())
}

// CheckAttention has another process compare attention by warpgroups, and its gradient, with those by warps on a device, bit by bit, and take the times of both. As with CheckWarpgroups the program must have the same package in it.
func CheckAttention(ordinal int, libraries []string) (cudart.GroupAttentionCheck, error) {
	return foundElsewhere[cudart.GroupAttentionCheck](checkTask{Ordinal: ordinal, Libraries: libraries, Attention: true})
}

// attentionFinding is what a check found, or why it found nothing.
type attentionFinding struct {
	cudart.GroupAttentionCheck
	err error
}

// refusal is why attention by warpgroups is not to be used; nil if it is.
func (f *attentionFinding) refusal() error {
	if f.err != nil {
		return fmt.Errorf("check of attention by warpgroups: %w", f.err)
	}
	for _, part := range []struct {
		name  string
		times cudart.AttentionTimes
	}{{"attention by warpgroups has the same bits and takes", f.Forward}, {"the gradient of attention by warpgroups has the same bits and takes", f.Backward}} {
		if part.times.Groups >= part.times.Warps {
			return fmt.Errorf("%s longer: %v, and %v by warps", part.name, part.times.Groups, part.times.Warps)
		}
	}
	return nil
}

// attention finds out whether a device that is not open yet can have attention by warpgroups. Its error says why not.
func (o *Options) attention(driver *cudart.Driver, info cudart.Information, ordinal int, known *known) error {
	if !info.Warpgroups() {
		return fmt.Errorf("%w: warpgroups are for compute capability 9.0, and %s has %d.%d", ErrAttention, info.Name, info.Major, info.Minor)
	}
	found, first := known.attention.of(kindOf(driver, info), func() (f attentionFinding) {
		f.GroupAttentionCheck, f.err = CheckAttention(ordinal, o.Libraries)
		return f
	})
	if err := found.refusal(); err != nil {
		return fmt.Errorf("%w: %w", ErrAttention, err)
	}
	if first {
		slog.Info("attention of many rows uses warpgroups", "device", info.Name, "forward", found.Forward.Groups, "forward by warps", found.Forward.Warps, "backward", found.Backward.Groups, "backward by warps", found.Backward.Warps)
	}
	return nil
}
