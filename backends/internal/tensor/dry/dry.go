// Package dry has a tensor.Device that computes nothing and has no memory: a pass that runs over it costs next to no time and tells how much memory it would take. It knows no model.
package dry

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Device takes every operation for done, without a check. Its buffers have no address; what is downloaded stays as it was. The zero value is ready, for any number of goroutines.
type Device struct{}

// Remote is a Device that does what devices with memory of their own do as well: it differentiates losses, fuses operations, keeps what backward passes need rounded and has operations that take scratch memory. With
// Scratch it is for one goroutine.
type Remote struct {
	Device
	// Scratch, unless nil, becomes the most bytes that an operation has taken as a tensor.Scratcher, if that is more than it is.
	Scratch *int64
	// Blocks says that rows lie in blocks, as tensor.Scratcher has it.
	Blocks bool
}

// Is tells whether a device computes nothing: it is one of this package's, or made of it, or says so.
func Is(d tensor.Device) bool {
	says, ok := d.(interface{ ComputesNothing() bool })
	return ok && says.ComputesNothing()
}

// ComputesNothing is what Is asks.
func (Device) ComputesNothing() bool { return true }

var (
	_ tensor.Device         = Device{}
	_ tensor.Differentiator = Remote{}
	_ tensor.Fuser          = Remote{}
	_ tensor.Keeper         = Remote{}
	_ tensor.Scratcher      = Remote{}
)

// Differentiate implements tensor.Differentiator.
func (Remote) Differentiate(_, _, _, _ tensor.Tensor, _ []tensor.LossTerm) error { return nil }

// DatumRatios implements tensor.Differentiator.
func (Remote) DatumRatios(_, _ tensor.Tensor, _ []tensor.RatioPosition, _ []int32) error { return nil }

// SoftmaxGradientBy implements tensor.Differentiator.
func (Remote) SoftmaxGradientBy(_, _ tensor.Tensor, _ []int32, _ tensor.Tensor) error {
	return nil
}

// StartDownload implements tensor.Differentiator.
func (Remote) StartDownload([]float32, tensor.Tensor) (func() error, error) {
	return func() error { return nil }, nil
}

// AddRMSNorm implements tensor.Fuser.
func (Remote) AddRMSNorm(_, _, _, _ tensor.Tensor, _ float32) error { return nil }

// SwiGLUKeep implements tensor.Fuser.
func (Remote) SwiGLUKeep(_, _, _, _, _ tensor.Tensor) error { return nil }

// KeptType implements tensor.Keeper: as package cuda does.
func (Remote) KeptType(weights tensor.DType) tensor.DType { return weights }

// QueryType implements tensor.Fuser: as package cuda does.
func (Remote) QueryType(p tensor.Pages) tensor.DType {
	if p := p.(pages); p.dtype == tensor.BFloat16 && p.headDim%8 == 0 {
		return tensor.BFloat16
	}
	return tensor.Float32
}

// AttentionKeep implements tensor.Fuser.
func (r Remote) AttentionKeep(_, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	return r.Attention(o, lse, q, p, layer, runs, queryHeads, scale)
}

// Segmented implements tensor.Device.
func (Remote) Segmented() bool { return false }

// TurnHeads implements tensor.Fuser.
func (Remote) TurnHeads(tensor.Tensor, tensor.Heads, tensor.Pages, int, []tensor.AttentionRun) error {
	return nil
}

// TurnHeadsBackward implements tensor.Fuser.
func (Remote) TurnHeadsBackward(_, _ tensor.Tensor, _ tensor.Heads) error { return nil }

// Name implements tensor.Device.
func (Device) Name() string { return "dry" }

// Arithmetic implements tensor.Device.
func (Device) Arithmetic() string { return "none" }

// Segmented implements tensor.Device.
func (Device) Segmented() bool { return true }

// LogSumExps implements tensor.Device.
func (Device) LogSumExps(_, _ tensor.Tensor, _ tensor.Segments) error { return nil }

// mostBytes is more than any device has. Allocations of so much fail, so that sums of what they take stay numbers.
const mostBytes = 1 << 46

// Alloc implements tensor.Device. It fails where no device would have so much memory.
func (Device) Alloc(d tensor.DType, rows, cols int) (tensor.Tensor, error) {
	if rows > 0 && cols > mostBytes/d.Size()/rows {
		return tensor.Tensor{}, fmt.Errorf("%d × %d elements: %w", rows, cols, tensor.ErrMemory)
	}
	return tensor.Tensor{Buffer: &tensor.Buffer{Bytes: rows * cols * d.Size()}, Rows: rows, Cols: cols, Stride: cols, DType: d}, nil
}

// AllocUnset implements tensor.Device.
func (device Device) AllocUnset(d tensor.DType, rows, cols int) (tensor.Tensor, error) {
	return device.Alloc(d, rows, cols)
}

// Free implements tensor.Device.
func (Device) Free(tensor.Tensor) {}

// Trim implements tensor.Device.
func (Device) Trim() {}

// Upload implements tensor.Device.
func (Device) Upload(tensor.Tensor, []float32) error { return nil }

// Download implements tensor.Device.
func (Device) Download([]float32, tensor.Tensor) error { return nil }

// DownloadRows implements tensor.Device.
func (Device) DownloadRows([]float32, int, tensor.Tensor) error { return nil }

// NewMatrix implements tensor.Device: as package cpu fills matrices up.
func (Device) NewMatrix(d tensor.DType, out, in int) (tensor.Matrix, error) {
	m := matrix{dtype: d, out: out, in: in, rows: 32, columns: 1}
	if d == tensor.BFloat16 {
		m.columns = 2
	}
	return m, nil
}

// NewMatrix implements tensor.Device: as package cuda fills matrices up.
func (Remote) NewMatrix(d tensor.DType, out, in int) (tensor.Matrix, error) {
	return matrix{dtype: d, out: out, in: in, rows: 1, columns: 8}, nil
}

type matrix struct {
	dtype         tensor.DType
	out, in       int
	rows, columns int // of which there are multiples in memory
}

func (m matrix) Out() int            { return m.out }
func (m matrix) In() int             { return m.in }
func (m matrix) DType() tensor.DType { return m.dtype }
func (m matrix) Bytes() int {
	return (m.out + m.rows - 1) / m.rows * m.rows * ((m.in + m.columns - 1) / m.columns * m.columns) * m.dtype.Size()
}
func (matrix) Free() {}

func (m matrix) Rows(from, to int) tensor.Matrix {
	if from < 0 || to > m.out || from > to || from%tensor.MatrixRows != 0 {
		return nil
	}
	m.out = to - from
	return m
}

// PackRows implements tensor.Device.
func (Device) PackRows(tensor.Matrix, int, int, string, []byte) error { return nil }

// Repack implements tensor.Device.
func (Device) Repack(...tensor.MatrixSource) error { return nil }

// StartCopies implements tensor.Device.
func (Device) StartCopies([]tensor.MatrixCopy) (func() error, error) {
	return func() error { return nil }, nil
}

// GatherRows implements tensor.Device.
func (Device) GatherRows(tensor.Tensor, tensor.Matrix, []int32) error { return nil }

// MatMul implements tensor.Device.
func (Device) MatMul(_, _ tensor.Tensor, _ tensor.Matrix, _ bool) error { return nil }

// MatMulTransposed implements tensor.Device.
func (Device) MatMulTransposed(_, _ tensor.Tensor, _ tensor.Matrix, _ bool) error { return nil }

// MatMulGroups implements tensor.Device.
func (Device) MatMuls(...[]tensor.Multiplication) error                           { return nil }
func (Device) MatMulGroups(_, _ tensor.Tensor, _ []tensor.RowGroup, _ bool) error { return nil }

// MatMulTransposedGroups implements tensor.Device.
func (Device) MatMulTransposedGroups(_, _ tensor.Tensor, _ []tensor.RowGroup, _ bool) error {
	return nil
}

// OuterProducts implements tensor.Device.
func (Device) OuterProducts([]tensor.OuterProduct) error { return nil }

// OuterProduct implements tensor.Device.
func (Device) OuterProduct(_, _, _ tensor.Tensor) error { return nil }

// Round implements tensor.Device.
func (Device) Round(_, _ tensor.Tensor) error { return nil }

// Add implements tensor.Device.
func (Device) Add(_, _ tensor.Tensor) error { return nil }

// Scale implements tensor.Device.
func (Device) Scale(tensor.Tensor, float32, tensor.DType) error { return nil }

// AddRow implements tensor.Device.
func (Device) AddRow(_, _ tensor.Tensor) error { return nil }

// Zero implements tensor.Device.
func (Device) Zero(tensor.Tensor) error { return nil }

// RMSNorm implements tensor.Device.
func (Device) RMSNorm(_, _, _ tensor.Tensor, _ float32) error { return nil }

// RMSNormBackward implements tensor.Device.
func (Device) RMSNormBackward(_, _, _, _ tensor.Tensor, _ float32, _ bool) error { return nil }

// Rope implements tensor.Device.
func (Device) Rope(tensor.Tensor, []int32, tensor.Tensor, int, bool) error { return nil }

// SwiGLU implements tensor.Device.
func (Device) SwiGLU(_, _, _ tensor.Tensor) error { return nil }

// SwiGLUBackward implements tensor.Device.
func (Device) SwiGLUBackward(_, _, _, _, _ tensor.Tensor) error { return nil }

// NewPages implements tensor.Device.
func (Device) NewPages(d tensor.DType, layers, count, heads, headDim int) (tensor.Pages, error) {
	return pages{d, headDim, layers, count, 2 * layers * count * heads * tensor.PageSize * headDim * d.Size()}, nil
}

type pages struct {
	dtype                         tensor.DType
	headDim, layers, count, bytes int
}

func (p pages) Layers() int         { return p.layers }
func (p pages) Count() int          { return p.count }
func (p pages) Bytes() int          { return p.bytes }
func (pages) Zero(int32) error      { return nil }
func (pages) Copy(_, _ int32) error { return nil }
func (pages) Free()                 {}

// Discard implements tensor.Pages: there is no memory.
func (pages) Discard(_, _ int32) (bool, error) { return true, nil }

// WritePages implements tensor.Device.
func (Device) WritePages(tensor.Pages, int, tensor.Tensor, tensor.Tensor, []tensor.AttentionRun) error {
	return nil
}

// Attention implements tensor.Device.
func (Device) Attention(_, _, _ tensor.Tensor, _ tensor.Pages, _ int, _ []tensor.AttentionRun, _ int, _ float32) error {
	return nil
}

// AttentionBackward implements tensor.Device.
func (Device) AttentionBackward(_, _, _, _, _, _, _ tensor.Tensor, _ tensor.Pages, _ int, _ []tensor.AttentionRun, _ int, _ float32) error {
	return nil
}

// GatherElements implements tensor.Device.
func (Device) GatherElements(_, _ tensor.Tensor, _ []tensor.Element) error { return nil }

// LogSumExp implements tensor.Device.
func (Device) LogSumExp(_, _ tensor.Tensor) error { return nil }

// Softmax implements tensor.Device.
func (Device) Softmax(_, _, _ tensor.Tensor) error { return nil }

// SoftmaxGradient implements tensor.Device.
func (Device) SoftmaxGradient(_, _ tensor.Tensor, _ []int32, _ []float32) error { return nil }

// SumSquares implements tensor.Device.
func (Device) SumSquares(xs ...tensor.Tensor) (func() ([]float64, error), error) {
	return func() ([]float64, error) { return make([]float64, len(xs)), nil }, nil
}

// AdamW implements tensor.Device.
func (Device) AdamW(updates ...tensor.AdamWUpdate) (func() ([]tensor.AdamWSums, error), error) {
	return func() ([]tensor.AdamWSums, error) { return make([]tensor.AdamWSums, len(updates)), nil }, nil
}

// Close implements tensor.Device.
func (Device) Close() error { return nil }
