package checked

// Pace implements tensor.Paced.
func (d *remoteDevice) Pace() error {
	if c := d.check("pace"); c.err != nil {
		return c.err
	}
	return d.remote.Pace()
}
