package cuda

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// pacing is the marks of Pace: the newest one, which nobody has waited for, and the one before.
type pacing struct {
	events [2]*cudart.Event // nil until the first call
	newest int
	marked bool
}

// PeakRate implements tensor.Rated.
func (d *device) PeakRate(weights tensor.DType) float64 {
	if weights == tensor.Float32 {
		return d.info.Float32Rate()
	}
	return d.info.BFloat16Rate()
}

// Pace implements tensor.Paced.
func (d *device) Pace() error {
	p := &d.pacing
	next := 1 - p.newest
	if p.events[next] == nil {
		event, err := d.v.NewEvent(false)
		if err != nil {
			return d.failed("pace", err)
		}
		p.events[next] = event
	}
	if err := p.events[next].Record(); err != nil {
		return d.failed("pace", err)
	}
	before, waits := p.events[p.newest], p.marked
	p.newest, p.marked = next, true
	if !waits {
		return nil
	}
	return d.failed("pace", before.Wait())
}

func (p *pacing) free() error {
	var errs []error
	for _, event := range p.events {
		if event != nil {
			errs = append(errs, event.Free())
		}
	}
	*p = pacing{}
	return errors.Join(errs...)
}
