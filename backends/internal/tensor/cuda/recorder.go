package cuda

// Record implements tensor.Recorder: kernels are launched in series, as CUDA graphs where the same series comes again.
func (d *device) Record(f func() error) error {
	var own error // of f, which says itself what it is about
	err := d.v.Record(func() error {
		own = f()
		return nil
	})
	if own != nil {
		return own // what it left may well fail for the same reason
	}
	return d.failed("start what was recorded", err)
}

// LimitRecorded implements tensor.Recorder: it bounds the memory of graphs.
func (d *device) LimitRecorded(bytes int64) { d.v.LimitGraphs(bytes) }
