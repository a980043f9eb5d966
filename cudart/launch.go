package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// kernel is one entry of the PTX: how many threads a block has and how much dynamic shared memory, in bytes.
type kernel struct {
	name    string
	threads int
	shared  int
}

// Numbers of the kernels, in the order of the table.
const (
	kAdd = iota
	kAddRow
	kScale
	kFillZero
	kRoundRows
	kNarrowRows
	kPackRows
	kRepack
	kGatherRows
	kGatherElements
	kNorm
	kNormNarrow
	kNormBackward
	kNormBackwardNarrow
	kRope
	kSwiGLU
	kSwiGLUBackward
	kProductFloat32
	kProductTransposedFloat32
	kOuterProduct
	kWritePages
	kCopyPage
	kHeads
	kHeadsWide
	kHeadsBackward
	kHeadsBackwardWide
	kProduct                                                  // of each of warpShapes
	kProductTransposed        = kProduct + 5                  // likewise
	kAttention                = kProduct + 10                 // for every one of headDims
	kAttentionFew             = kAttention + headDimKernels   // tiles of 16 items
	kAttentionPart            = kAttention + 2*headDimKernels // and one part of the keys
	kAttentionMerge           = kAttention + 3*headDimKernels
	kAttentionDelta           = kAttentionMerge + 1
	kAttentionBackwardKeys    = kAttentionMerge + 2
	kAttentionBackwardQueries = kAttentionBackwardKeys + headDimKernels
	// With tensor cores, for every one of tensorHeadDims.
	kTensorAttention                = kAttentionBackwardQueries + headDimKernels
	kTensorAttentionFew             = kTensorAttention + tensorDimKernels
	kTensorAttentionPart            = kTensorAttention + 2*tensorDimKernels
	kTensorAttentionBackwardKeys    = kTensorAttention + 3*tensorDimKernels
	kTensorAttentionBackwardQueries = kTensorAttention + 4*tensorDimKernels
	kLogSumExp                      = kTensorAttention + 5*tensorDimKernels
	kSoftmax                        = kLogSumExp + 1
	kSoftmaxGradient                = kLogSumExp + 2
	kAdamW                          = kLogSumExp + 3
	kSumSquares                     = kLogSumExp + 4
	kSumPartials                    = kLogSumExp + 5
	kAdjustElements                 = kLogSumExp + 6
	kDrawTokens                     = kLogSumExp + 7
	kDifferentiate                  = kLogSumExp + 8
	kDatumRatios                    = kLogSumExp + 9
	kMaskColumns                    = kLogSumExp + 10
	// Mixtures of experts.
	kRoute                   = kLogSumExp + 11
	kRouteBackward           = kRoute + 1
	kDispatch                = kRoute + 2
	kSpread                  = kRoute + 3
	kCombine                 = kRoute + 4
	kCombineBackward         = kRoute + 5
	kOuterRouted             = kRoute + 6
	kRoutedFloat32           = kRoute + 7
	kRoutedTransposedFloat32 = kRoute + 8
	kRouted                  = kRoute + 9  // of each of routedShapes
	kRoutedTransposed        = kRouted + 3 // likewise
	// Sinks, and what experts have with them.
	kSink                  = kRoutedTransposed + 3
	kSwiGLUClamped         = kSink + 1
	kSwiGLUClampedBackward = kSink + 2
	kAddRouted             = kSink + 3
	kAddRoutedBackward     = kSink + 4
	kRecurrence            = kSink + 5         // those of recurrenceKernels
	kE4M3                  = kBehindRecurrence // those of e4m3Kernels
)

// headDims are the head dimensions that attention kernels exist for, tensorHeadDims those of the ones with tensor cores; a smaller head is filled up.
var headDims, tensorHeadDims = [headDimKernels]int64{32, 64, 128, 256}, [tensorDimKernels]int64{64, 128, 256}

// How many kernels a family of attention has.
const headDimKernels, tensorDimKernels = 4, 3

var kernels = func() []kernel {
	table := []kernel{
		{"add", 256, 0}, {"add_row", 256, 0}, {"scale", 256, 0}, {"fill_zero", 256, 0}, {"round_rows", 256, 0}, {"narrow_rows", 256, 0},
		{"pack_rows", 256, 0}, {"repack", 256, 0}, {"gather_rows", 256, 0}, {"gather_elements", 256, 0},
		{"rms_norm", 256, 0}, {"rms_norm_narrow", 256, 0}, {"rms_norm_backward", 256, 0}, {"rms_norm_backward_narrow", 256, 0},
		{"rope", 256, 0}, {"swiglu", 256, 0}, {"swiglu_backward", 256, 0},
		{"product_float32", 256, 0}, {"product_transposed_float32", 256, 0}, {"outer_product", 128, 0},
		{"write_pages", 256, 0}, {"copy_page", 256, 0}, {"heads", 256, 0}, {"heads_wide", 256, 0},
		{"heads_backward", 256, 0}, {"heads_backward_wide", 256, 0},
	}
	for _, transposed := range []bool{false, true} {
		for _, s := range warpShapes {
			table = append(table, s.kernel("product", transposed))
		}
	}
	// A tile of items, a page's keys or values, and the scores of both; rows have one element more, against bank conflicts.
	forward := func(items, dim int) int { return 4 * ((items+C.PAGE_KEYS)*(dim+1) + items*(C.PAGE_KEYS+1)) }
	backward := func(dim int) int {
		return 4 * ((2*C.PAGE_KEYS+2*backwardItems)*(dim+1) + 2*backwardItems*(C.PAGE_KEYS+1))
	}
	family := func(name string, shared func(dim int) int) {
		for _, dim := range headDims {
			table = append(table, kernel{fmt.Sprintf("%s_%d", name, dim), 256, shared(int(dim))})
		}
	}
	// Rows of bfloat16, and what else the kernels keep beside them.
	tensorFamily := func(name string, items, rest int) {
		for _, dim := range tensorHeadDims {
			table = append(table, kernel{fmt.Sprintf("%s_%d", name, dim), 128, 2*(items+2*C.PAGE_KEYS)*(int(dim)+sharedPad) + rest})
		}
	}
	notFinite := 4 * (C.PAGE_KEYS + 4)
	together := notFinite + 2*fewItems*(C.PAGE_KEYS+sharedPad) + 4*fewItems*(4+16) // of warps that share their items
	family("attention", func(dim int) int { return forward(manyItems, dim) })
	family("attention_few", func(dim int) int { return forward(fewItems, dim) })
	family("attention_part", func(dim int) int { return forward(fewItems, dim) })
	table = append(table, kernel{"attention_merge", 256, 0}, kernel{"attention_delta", 256, 0})
	family("attention_backward_keys", backward)
	family("attention_backward_queries", backward)
	tensorFamily("tensor_attention", manyItems, notFinite)
	for _, name := range []string{"tensor_attention_few", "tensor_attention_part"} { // two pages; the items' place becomes that of what warps share
		for _, dim := range tensorHeadDims {
			row := 2 * (int(dim) + sharedPad)
			table = append(table, kernel{fmt.Sprintf("%s_%d", name, dim), 128, 4*C.PAGE_KEYS*row + max(fewItems*row, together)})
		}
	}
	tensorFamily("tensor_attention_backward_keys", 2*tensorKeysItems, 4*3*tensorKeysItems)
	tensorFamily("tensor_attention_backward_queries", 2*tensorQueriesItems, 0)
	table = append(table, kernel{"log_sum_exp", 512, 0}, kernel{"softmax", 256, 0}, kernel{"softmax_gradient", 256, 0},
		kernel{"adamw", 256, 0}, kernel{"sum_squares", 256, 0}, kernel{"sum_partials", 256, 0},
		kernel{"adjust_elements", 256, 0}, kernel{"draw_tokens", 512, 0}, kernel{"differentiate", 256, 0}, kernel{"datum_ratios", 256, 0},
		kernel{"mask_columns", 256, 0},
		kernel{"route", 32, 0}, kernel{"route_backward", 32, 0}, kernel{"dispatch", 256, 0}, kernel{"spread", 256, 0}, kernel{"combine", 256, 0}, kernel{"combine_backward", 256, 0},
		kernel{"outer_routed", 128, 0}, kernel{"routed_float32", 256, 0}, kernel{"routed_transposed_float32", 256, 0})
	for _, transposed := range []bool{false, true} {
		for _, s := range routedShapes {
			table = append(table, s.kernel("routed", transposed))
		}
	}
	table = append(table, kernel{"sink", 256, 0}, kernel{"swiglu_clamped", 256, 0}, kernel{"swiglu_clamped_backward", 256, 0}, kernel{"add_routed", 256, 0}, kernel{"add_routed_backward", 256, 0})
	return slices.Concat(table, recurrenceKernels, e4m3Kernels)
}()

// View is a matrix in device memory: element (r, c) is at At + (r·Stride + c)·size. Rows without elements may have any address.
type View struct {
	At                 Address
	Rows, Cols, Stride int64
}

// Weight is a matrix of Out × In elements for products: row by row, a row beginning every Pitch elements, Pitch a multiple of 8; what lies between In and Pitch is zero. Of one of Type E4M3, Pitch is for how many columns it has a
// scale, and E4M3GroupBytes says how it lies.
type Weight struct {
	At             Address
	Out, In, Pitch int64
}

// Type is the type of elements in device memory.
type Type int32

// The element types. Float16 is one of weight files only, E4M3 and BFloat16Blocks are of weights.
const (
	Float32  Type = C.FLOAT32
	BFloat16 Type = C.BFLOAT16
	Float16  Type = C.FLOAT16
	E4M3     Type = C.E4M3
	// BFloat16Blocks is one of weights after UseBulk: bfloat16 in blocks of 64 × 64, as kernels/bulk_arguments.h says, with Pitch = In.
	BFloat16Blocks Type = C.BFLOAT16_BLOCKS
)

// The Go structures are the C ones.
const (
	_ = uint(unsafe.Sizeof(View{}) - C.sizeof_view)
	_ = uint(C.sizeof_view - unsafe.Sizeof(View{}))
	_ = uint(unsafe.Sizeof(Weight{}) - C.sizeof_weight)
	_ = uint(C.sizeof_weight - unsafe.Sizeof(Weight{}))
)

func (v View) c() C.view {
	return C.view{at: C.uint64_t(v.At), rows: C.int64_t(v.Rows), cols: C.int64_t(v.Cols), stride: C.int64_t(v.Stride)}
}

func (w Weight) c() C.weight {
	return C.weight{at: C.uint64_t(w.At), out: C.int64_t(w.Out), in: C.int64_t(w.In), pitch: C.int64_t(w.Pitch)}
}

func (v View) empty() bool { return v.Rows == 0 || v.Cols == 0 }

// Limits of a grid.
const (
	maxX = math.MaxInt32
	maxY = 65535
)

// kernelOf gives kernel k of whichever module.
func kernelOf(k int) kernel {
	if k >= kOuterGroup {
		return outerGroupKernels[k-kOuterGroup]
	}
	if k >= kGroupAttention {
		return groupAttentionKernels[k-kGroupAttention]
	}
	if k >= kBulk {
		return bulkKernels[k-kBulk]
	}
	if k >= kWarpgroup {
		return warpgroupKernels[k-kWarpgroup]
	}
	return kernels[k]
}

// bytesIn sees a kernel's arguments as their bytes.
func bytesIn[T any](a *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(a)), unsafe.Sizeof(*a)) }

// launch puts kernel k into the stream, or records it (Record); arguments are its structure, which is copied.
func (v *Device) launch(k int, x, y, z int64, arguments []byte) error {
	if v.c == nil {
		return errClosed
	}
	of := kernelOf(k)
	if x > maxX || y > maxY || z > maxY {
		return fmt.Errorf("kernel %s: a grid of %d × %d × %d blocks is more than the device takes", of.name, x, y, z)
	}
	if err := v.fits(k); err != nil {
		return err
	}
	return v.record(C.cuda_work{kernel: C.int(k), x: C.unsigned(x), y: C.unsigned(y), z: C.unsigned(z), threads: C.unsigned(of.threads), shared: C.unsigned(of.shared),
		bytes: C.unsigned(len(arguments))}, arguments)
}

// fits says whether the device has the shared memory that a block of kernel k takes.
func (v *Device) fits(k int) error {
	if of := kernelOf(k); of.shared > v.shared {
		return fmt.Errorf("kernel %s needs %d bytes of shared memory per block, and %s has %d", of.name, of.shared, v.name, v.shared)
	}
	return nil
}

// rowwise launches an element-wise kernel: a block per row and piece of cols columns.
func (v *Device) rowwise(k int, rows, cols int64, arguments []byte) error {
	if rows == 0 || cols == 0 {
		return nil
	}
	return v.launch(k, rows, min((cols+C.PIECE-1)/C.PIECE, maxY), 1, arguments)
}

func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}
