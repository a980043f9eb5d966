package cuda

import (
	"errors"
	"unsafe"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// withList runs an operation whose kernel reads lists from memory: they are put there for it, and f gets their addresses in order.
func (d *device) withList(op string, f func(at []cudart.Address) error, data ...[]byte) error {
	at := make([]cudart.Address, len(data))
	var releases []func() error
	var err error
	for i, b := range data {
		var release func() error
		if at[i], release, err = d.v.Put(b); err != nil {
			break
		}
		releases = append(releases, release)
	}
	if err == nil {
		err = f(at)
	}
	for _, release := range releases {
		err = errors.Join(err, release())
	}
	return d.failed(op, err)
}

// The kernels' element is the interface's.
const (
	_ = uint(unsafe.Sizeof(tensor.Element{}) - unsafe.Sizeof(cudart.Element{}))
	_ = uint(unsafe.Sizeof(cudart.Element{}) - unsafe.Sizeof(tensor.Element{}))
)

func bytesOf[T int32 | float32 | tensor.Element | tensor.RatioPosition](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}
