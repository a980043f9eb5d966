package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// checker gathers the first thing that is wrong with the arguments of one operation, and turns them into what kernels take.
type checker struct {
	op  string
	err error
}

func (d *device) check(op string) *checker {
	c := &checker{op: op}
	if d.v == nil {
		c.err = errClosed
	}
	return c
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("cuda: "+c.op+": "+format, args...)
	}
}

// view checks that a tensor lies within its buffer.
func (c *checker) view(name string, t tensor.Tensor) cudart.View {
	v := cudart.View{Rows: int64(t.Rows), Cols: int64(t.Cols), Stride: int64(max(t.Stride, t.Cols))}
	if !validType(t.DType) || t.Rows < 0 || t.Cols < 0 || t.Offset < 0 || (t.Rows > 1 && t.Stride < t.Cols) {
		c.fail("%s: not a tensor: %d × %d, stride %d, offset %d, %v", name, t.Rows, t.Cols, t.Stride, t.Offset, t.DType)
		return v
	}
	if t.Rows == 0 || t.Cols == 0 {
		return v
	}
	if t.Buffer == nil || t.Buffer.Addr == 0 {
		c.fail("%s: no buffer, or a freed one", name)
		return v
	}
	room := t.Buffer.Bytes / t.DType.Size()
	if t.Cols > room || t.Offset > room-t.Cols || (t.Rows > 1 && t.Rows-1 > (room-t.Cols-t.Offset)/t.Stride) {
		c.fail("%s: %d × %d, stride %d, offset %d does not lie within its buffer of %d elements", name, t.Rows, t.Cols, t.Stride, t.Offset, room)
		return v
	}
	v.At = cudart.Address(t.Address())
	return v
}

// float is view for a tensor that must be float32.
func (c *checker) float(name string, t tensor.Tensor) cudart.View {
	if t.DType != tensor.Float32 {
		c.fail("%s is %v: must be float32", name, t.DType)
	}
	return c.view(name, t)
}

// shaped is float for a tensor that must be rows × cols.
func (c *checker) shaped(name string, t tensor.Tensor, rows, cols int) cudart.View {
	if t.Rows != rows || t.Cols != cols {
		c.fail("%s is %d × %d: must be %d × %d", name, t.Rows, t.Cols, rows, cols)
	}
	return c.float(name, t)
}

// length checks a slice that holds rows × cols values.
func (c *checker) length(name string, n, rows, cols int) {
	if size, ok := product(rows, cols); !ok || n != size {
		c.fail("%s has %d elements: must have %d × %d", name, n, rows, cols)
	}
}

// matrix checks that a matrix is one of this package's and not freed.
func (c *checker) matrix(m tensor.Matrix) *matrix {
	w, ok := m.(*matrix)
	if !ok {
		c.fail("the matrix is a %T, not of this device", m)
		return &matrix{dtype: tensor.Float32}
	}
	if w.at == 0 {
		c.fail("the matrix has been freed")
	}
	return w
}

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

func bytesOf[T int32 | float32](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), 4*len(s))
}
