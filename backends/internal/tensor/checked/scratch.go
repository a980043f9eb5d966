package checked

// ReserveScratch implements tensor.Scratcher.
func (d *remoteDevice) ReserveScratch(bytes int64) error {
	c := d.check("reserve scratch")
	if bytes < 0 {
		c.fail("%d bytes", bytes)
	}
	if c.err != nil {
		return c.err
	}
	return d.remote.ReserveScratch(bytes)
}

// RowsInBlocks implements tensor.Scratcher.
func (d *remoteDevice) RowsInBlocks() bool { return d.remote.RowsInBlocks() }

// ReleaseScratch implements tensor.Scratcher.
func (d *remoteDevice) ReleaseScratch() { d.remote.ReleaseScratch() }
