package checked

// Record implements tensor.Recorder.
func (d *remoteDevice) Record(f func() error) error {
	if c := d.check("record"); c.err != nil {
		return c.err
	}
	return d.remote.Record(f)
}

// LimitRecorded implements tensor.Recorder.
func (d *remoteDevice) LimitRecorded(bytes int64) { d.remote.LimitRecorded(bytes) }
