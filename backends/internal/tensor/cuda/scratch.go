package cuda

// ReserveScratch implements tensor.Scratcher.
func (d *device) ReserveScratch(bytes int64) error {
	return d.failed("reserve scratch memory", d.v.ReserveScratch(int(bytes)))
}

// RowsInBlocks implements tensor.Scratcher.
func (d *device) RowsInBlocks() bool { return d.v.Bulk() }

// ReleaseScratch implements tensor.Scratcher.
func (d *device) ReleaseScratch() {
	if !d.closed {
		_ = d.failed("release scratch memory", d.v.ReleaseScratch()) // it cannot fail for what is the device's own
	}
}
