package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Pace implements tensor.Paced.
func (d *remoteDevice) Pace() error {
	if c := d.check("pace"); c.err != nil {
		return c.err
	}
	return d.remote.Pace()
}

// Routes implements tensor.Routed.
func (d *remoteDevice) Routes() string { return d.remote.Routes() }

// PeakRate implements tensor.Rated.
func (d *remoteDevice) PeakRate(weights tensor.DType) float64 { return d.remote.PeakRate(weights) }
