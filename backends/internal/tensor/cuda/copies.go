package cuda

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// StartCopies implements tensor.Device. The copies run in a stream of their own, beside the kernels that are launched until finish; the host waits for nothing.
func (d *device) StartCopies(copies []tensor.MatrixCopy) (func() error, error) {
	if len(copies) == 0 {
		return func() error { return nil }, nil
	}
	finish, err := d.v.Aside(func() error {
		for _, j := range copies {
			dst, src := j.Dst.(*matrix), j.Src.(*matrix)
			if dst.blocks != src.blocks {
				return errors.New("of two matrices one is in blocks and one row by row")
			}
			if err := d.v.Copy(cudart.Address(dst.at+uintptr(dst.size(j.Row))), src.device.v, cudart.Address(src.at), src.size(src.out)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, d.failed("copy matrices", err)
	}
	return func() error { return d.failed("copy matrices", finish()) }, nil
}
