// Package checked is the checks that tensor.Device promises, once for all devices: New puts them before a device that takes its arguments for good. So a device has nothing but its
// operations, and every device refuses the same arguments in the same words. A call that is refused has done nothing; one that is not allocates no Go memory here.
package checked

import (
	"errors"
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// New gives the tensor.Device that hands its operations to kernels. Kernels implements tensor.Device but for what is done here:
//   - Arguments have been checked, and calls that have nothing to do (no rows, no elements, no groups) do not come.
//   - A Matrix or Pages is always one that kernels made itself and that has not been freed; a buffer is freed once.
//   - Runs have rows; their Pages are as many as their positions need; KeysFrom, KeysTo, RowsFrom and RowsTo are set. Slices that hold groups and runs are the caller's and are used again in the next call.
//   - Allocations are counted here, and Close comes once; after it nothing comes but Free of what was left.
//
// The result implements tensor.Drawer if kernels does, and tensor.OwnMemory, tensor.Neighbour, tensor.Linker, tensor.Differentiator, tensor.Recorder, tensor.Paced, tensor.Rated, tensor.Routed, tensor.Fuser, tensor.Keeper, tensor.Scratcher and tensor.Finisher if it implements all thirteen.
func New(kernels tensor.Device) tensor.Device {
	d := &device{kernels: kernels, name: kernels.Name()}
	if r, ok := kernels.(remote); ok {
		return &remoteDevice{drawingDevice: &drawingDevice{d, r}, remote: r}
	}
	if drawer, ok := kernels.(tensor.Drawer); ok {
		return &drawingDevice{d, drawer}
	}
	return d
}

// Kernels gives what New was given; nil if the device is not one of New's.
func Kernels(d tensor.Device) tensor.Device {
	if b := base(d); b != nil {
		return b.kernels
	}
	return nil
}

// device is used by one goroutine at a time, as tensor.Device says.
type device struct {
	kernels tensor.Device
	name    string
	closed  bool
	live    int // allocations that have not been freed

	// Kept between calls, so that a call does not allocate.
	taken     []bool
	groups    []tensor.RowGroup
	products  []tensor.Multiplication
	ends      []int // of the products' groups among groups
	stages    [][]tensor.Multiplication
	runs      []tensor.AttentionRun
	updates   []tensor.AdamWUpdate
	sources   []tensor.MatrixSource
	slots     []bool // of states, that a run has
	stateRuns []tensor.StateRun

	routed       []tensor.RoutedProduct
	routedGroups []tensor.RoutedGroup
}

func (d *device) Name() string       { return d.name }
func (d *device) Arithmetic() string { return d.kernels.Arithmetic() }
func (d *device) Segmented() bool    { return d.kernels.Segmented() }

// ArithmeticOf implements tensor.Typed.
func (d *device) ArithmeticOf(weights tensor.DType) string {
	return tensor.ArithmeticOf(d.kernels, weights)
}

// ComputesNothing is what dry.Is asks.
func (d *device) ComputesNothing() bool { return dry.Is(d.kernels) }

func (d *device) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	err := d.kernels.Close()
	if d.live != 0 {
		err = errors.Join(err, fmt.Errorf("%s: close: %d allocations have not been freed", d.name, d.live))
	}
	return err
}

func (d *device) Alloc(t tensor.DType, rows, cols int) (tensor.Tensor, error) {
	return d.alloc(t, rows, cols, d.kernels.Alloc)
}

func (d *device) AllocUnset(t tensor.DType, rows, cols int) (tensor.Tensor, error) {
	return d.alloc(t, rows, cols, d.kernels.AllocUnset)
}

func (d *device) alloc(t tensor.DType, rows, cols int, alloc func(tensor.DType, int, int) (tensor.Tensor, error)) (tensor.Tensor, error) {
	c := d.check("alloc")
	if _, ok := tensor.Product(rows, cols); !ok || !validType(t) {
		c.fail("%d × %d of %v: not a size that can be had", rows, cols, t)
	}
	if c.err != nil {
		return tensor.Tensor{}, c.err
	}
	a, err := alloc(t, rows, cols)
	if err == nil {
		d.live++
	}
	return a, err
}

func (d *device) Free(t tensor.Tensor) {
	if t.Buffer == nil || t.Buffer.Addr == 0 {
		return
	}
	d.kernels.Free(t)
	d.live--
	t.Buffer.Addr = 0 // a second Free, or a use after it, is seen
}

func (d *device) Trim() { d.kernels.Trim() }

func (d *device) Upload(dst tensor.Tensor, src []float32) error {
	c := d.check("upload")
	c.float("dst", dst)
	c.length("src", len(src), dst.Rows, dst.Cols)
	if c.err != nil || len(src) == 0 {
		return c.err
	}
	return d.kernels.Upload(dst, src)
}

func (d *device) Download(dst []float32, src tensor.Tensor) error {
	c := d.check("download")
	c.float("src", src)
	c.length("dst", len(dst), src.Rows, src.Cols)
	if c.err != nil || len(dst) == 0 {
		return c.err
	}
	return d.kernels.Download(dst, src)
}

func (d *device) DownloadRows(dst []float32, pitch int, src tensor.Tensor) error {
	c := d.check("download rows")
	c.float("src", src)
	if pitch < src.Cols {
		c.fail("rows of %d elements begin %d apart", src.Cols, pitch)
	}
	if c.err != nil || src.Empty() {
		return c.err
	}
	if room := len(dst) - src.Cols; room < 0 || src.Rows-1 > room/pitch {
		c.fail("dst has %d elements: must have room for %d rows of %d that begin %d apart", len(dst), src.Rows, src.Cols, pitch)
		return c.err
	}
	return d.kernels.DownloadRows(dst, pitch, src)
}

// take makes d.taken that many rows, none of them taken.
func (d *device) take(rows int) {
	rows = max(rows, 0)
	if cap(d.taken) < rows {
		d.taken = make([]bool, rows)
	}
	d.taken = d.taken[:rows]
	clear(d.taken)
}

// check begins the checks of one operation.
func (d *device) check(op string) check {
	c := check{device: d.name, op: op}
	if d.closed {
		c.fail("the device is closed")
	}
	return c
}

// check gathers the first thing that is wrong with the arguments of one operation.
type check struct {
	device, op string
	err        error
}

func (c *check) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(c.device+": "+c.op+": "+format, args...)
	}
}

func validType(t tensor.DType) bool { return t == tensor.Float32 || t == tensor.BFloat16 }

// view checks that a tensor lies within its buffer.
func (c *check) view(name string, t tensor.Tensor) {
	if !validType(t.DType) || t.Rows < 0 || t.Cols < 0 || t.Offset < 0 || (t.Rows > 1 && t.Stride < t.Cols) {
		c.fail("%s: not a tensor: %d × %d, stride %d, offset %d, %v", name, t.Rows, t.Cols, t.Stride, t.Offset, t.DType)
		return
	}
	if t.Empty() {
		return
	}
	if t.Buffer == nil || t.Buffer.Addr == 0 {
		c.fail("%s: no buffer, or a freed one", name)
		return
	}
	room := t.Buffer.Bytes / t.DType.Size()
	if t.Cols > room || t.Offset > room-t.Cols || (t.Rows > 1 && t.Rows-1 > (room-t.Cols-t.Offset)/t.Stride) {
		c.fail("%s: %d × %d, stride %d, offset %d does not lie within its buffer of %d elements", name, t.Rows, t.Cols, t.Stride, t.Offset, room)
	}
}

// float is view for a tensor that must be float32.
func (c *check) float(name string, t tensor.Tensor) {
	if t.DType != tensor.Float32 {
		c.fail("%s is %v: must be float32", name, t.DType)
	}
	c.view(name, t)
}

// size checks that a tensor is rows × cols.
func (c *check) size(name string, t tensor.Tensor, rows, cols int) {
	if t.Rows != rows || t.Cols != cols {
		c.fail("%s is %d × %d: must be %d × %d", name, t.Rows, t.Cols, rows, cols)
	}
}

// shaped is float for a tensor that must be rows × cols.
func (c *check) shaped(name string, t tensor.Tensor, rows, cols int) {
	c.size(name, t, rows, cols)
	c.float(name, t)
}

// length checks a slice that holds rows × cols values.
func (c *check) length(name string, n, rows, cols int) {
	if size, ok := tensor.Product(rows, cols); !ok || n != size {
		c.fail("%s has %d elements: must have %d × %d", name, n, rows, cols)
	}
}

// indices checks that every value of a list lies in [least, most).
func (c *check) indices(name string, list []int32, least, most int, what string) {
	for i, v := range list {
		if int(v) < least || int(v) >= most {
			c.fail("%s[%d] is %d: %s %d", name, i, v, what, most)
			return
		}
	}
}

// maxPosition bounds positions of sequences.
const maxPosition = math.MaxInt32
