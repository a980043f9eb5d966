// Package cuda is the tensor.Device of an NVIDIA GPU: it checks arguments, keeps account of memory, and puts the kernels of package cudart into the device's stream. It knows no model.
//
// Operations return before they are done; because a device has one stream, what comes next sees their results, and Download and SumSquares wait. So a step is launched
// without the host waiting in it.
//
// Bits: every sum is a chain or a tree that depends on the row alone. Products with bfloat16 weights go over the inner axis in groups of 16, one tensor-core instruction each, in
// ascending order; products with float32 weights, and the gradients of adapters, are chains of fused multiply-adds. Attention computes in float32. The same
// kernels serve training, prefill and decoding.
package cuda

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// Options choose the device.
type Options struct {
	// Device is "cuda:0", "cuda:1", …; "cuda" means the first.
	Device string
	// Libraries are folders that the driver is looked for in before the system's.
	Libraries []string
	// Lost, if not nil, is called by the goroutine of an operation after which the device is of no more use, with its error. Nothing that the device holds can be read any more: the
	// process should end, so that another one begins with a fresh device.
	Lost func(error)
}

// Ordinal reads the number of a device's name; false if it is no CUDA device's.
func Ordinal(name string) (int, bool) {
	if name == "cuda" {
		return 0, true
	}
	digits, ok := strings.CutPrefix(name, "cuda:")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0 && digits == strconv.Itoa(n)
}

// Available tells whether this machine has a CUDA driver and a device that Open would take. The reason is nil if so.
func Available(libraries []string) error {
	driver, err := cudart.Open(cudart.Options{Directories: libraries})
	if err != nil {
		return err
	}
	defer driver.Close()
	n, err := driver.Devices()
	if err == nil && n == 0 {
		err = errors.New("the CUDA driver has no devices")
	}
	return err
}

// New opens a device. The caller closes it.
func New(o Options) (tensor.Device, error) {
	ordinal, ok := Ordinal(o.Device)
	if !ok {
		return nil, fmt.Errorf("cuda: device %q: must be cuda or cuda:N", o.Device)
	}
	driver, err := cudart.Open(cudart.Options{Directories: o.Libraries})
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	v, err := driver.Open(ordinal)
	if err != nil {
		driver.Close()
		return nil, fmt.Errorf("cuda: %w", err)
	}
	return &device{v: v, driver: driver, name: fmt.Sprintf("cuda:%d", ordinal), lost: o.Lost}, nil
}

// device implements tensor.Device. One goroutine at a time calls it.
type device struct {
	v      *cudart.Device // nil: closed
	driver *cudart.Driver
	name   string
	lost   func(error)
	live   int

	// Kept between calls, so that operations do not allocate.
	taken  []bool // rows of a batch that belong to a run or a group
	runs   []cudart.Sequence
	groups [2][]cudart.RowGroup // with float32 and with bfloat16 matrices
	outer  []cudart.OuterProduct
}

var errClosed = errors.New("cuda: the device is closed")

func (d *device) Name() string { return d.name }

// Arithmetic names the architecture, whose tensor cores decide how a group of 16 is summed, and the driver, which compiles the kernels.
func (d *device) Arithmetic() string {
	if d.v == nil {
		return "cuda"
	}
	major, minor := d.v.Capability()
	return fmt.Sprintf("cuda-sm%d%d-driver%d", major, minor, d.v.DriverVersion())
}

// Close gives the device back. It is an error if memory has not been freed; the device is closed all the same.
func (d *device) Close() error {
	if d.v == nil {
		return nil
	}
	err := d.v.Close()
	d.driver.Close()
	d.v = nil
	if d.live != 0 {
		return fmt.Errorf("cuda: close: %d allocations have not been freed", d.live)
	}
	return d.failed("close", err)
}

// failed names the operation in an error, and makes the device's lack of memory the interface's.
func (d *device) failed(op string, err error) error {
	if errors.Is(err, cudart.ErrDeviceLost) && d.lost != nil {
		d.lost(fmt.Errorf("cuda: %s: %w", op, err))
	}
	if errors.Is(err, cudart.ErrOutOfMemory) {
		err = fmt.Errorf("%w: %w", err, tensor.ErrMemory)
	}
	if err != nil {
		return fmt.Errorf("cuda: %s: %w", op, err)
	}
	return nil
}

// take makes d.taken that many rows, none of them taken.
func (d *device) take(rows int) {
	if cap(d.taken) < rows {
		d.taken = make([]bool, rows)
	}
	d.taken = d.taken[:rows]
	clear(d.taken)
}

// maxElements keeps sizes in bytes, and sums of two of them, within int64.
const maxElements = math.MaxInt64 / 64

// product multiplies sizes; false if one is negative or the product is too large.
func product(sizes ...int) (int, bool) {
	n := 1
	for _, s := range sizes {
		if s < 0 || (s > 0 && n > maxElements/s) {
			return 0, false
		}
		n *= s
	}
	return n, true
}

// FreeMemory implements tensor.OwnMemory.
func (d *device) FreeMemory() (int64, error) {
	if d.v == nil {
		return 0, errClosed
	}
	free, _, err := d.v.Memory()
	return free, d.failed("memory", err)
}

// memory gives zeroed memory.
func (d *device) memory(what string, bytes int) (uintptr, error) {
	if d.v == nil {
		return 0, errClosed
	}
	at, err := d.v.Alloc(bytes)
	if err != nil {
		return 0, d.failed(what, err)
	}
	if err := d.v.Zero(at, bytes); err != nil {
		return 0, d.failed(what, errors.Join(err, d.v.Free(at)))
	}
	d.live++
	return uintptr(at), nil
}

func (d *device) release(at uintptr) {
	if d.v == nil {
		return // Close has given all memory back
	}
	if err := d.v.Free(cudart.Address(at)); err == nil { // else it was not d's: Close will say that something is left
		d.live--
	}
}

func validType(t tensor.DType) bool { return t == tensor.Float32 || t == tensor.BFloat16 }

func typeOf(t tensor.DType) cudart.Type {
	if t == tensor.BFloat16 {
		return cudart.BFloat16
	}
	return cudart.Float32
}

func (d *device) Alloc(t tensor.DType, rows, cols int) (tensor.Tensor, error) {
	n, ok := product(rows, cols)
	if !ok || !validType(t) {
		return tensor.Tensor{}, fmt.Errorf("cuda: alloc %d × %d of %v: not a size that can be had", rows, cols, t)
	}
	bytes := n * t.Size()
	at, err := d.memory("alloc", bytes)
	if err != nil {
		return tensor.Tensor{}, err
	}
	return tensor.Tensor{Buffer: &tensor.Buffer{Addr: at, Bytes: bytes}, Rows: rows, Cols: cols, Stride: cols, DType: t}, nil
}

func (d *device) Free(t tensor.Tensor) {
	if t.Buffer == nil || t.Buffer.Addr == 0 {
		return
	}
	d.release(t.Buffer.Addr)
	t.Buffer.Addr = 0 // a second Free, or a use after it, is seen
}

func (d *device) Upload(dst tensor.Tensor, src []float32) error {
	c := d.check("upload")
	v := c.float("dst", dst)
	c.length("src", len(src), dst.Rows, dst.Cols)
	if c.err != nil || len(src) == 0 {
		return c.err
	}
	return d.failed("upload", d.v.Upload(v.At, int(4*v.Stride), bytesOf(src), int(4*v.Cols), dst.Rows))
}

func (d *device) Download(dst []float32, src tensor.Tensor) error {
	c := d.check("download")
	v := c.float("src", src)
	c.length("dst", len(dst), src.Rows, src.Cols)
	if c.err != nil || len(dst) == 0 {
		return c.err
	}
	return d.failed("download", d.v.Download(bytesOf(dst), v.At, int(4*v.Stride), int(4*v.Cols), src.Rows))
}
