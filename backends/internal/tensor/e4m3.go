package tensor

import "errors"

// E4M3Device is the part of Device that holds matrices in eight bits. Such a matrix is one of bfloat16 in all that it is used for: its elements are numbers of the type E4M3, a sign, four bits of exponent and three of
// fraction, each multiplied by a scale in float32 and rounded once to bfloat16, and products with it have the bits of products with the matrix of bfloat16 that has these elements. Repack and PackRows are not for it, and
// StartCopies copies it to others that have scales for as many columns.
type E4M3Device interface {
	// HasE4M3 tells whether the device has kernels for them; NewE4M3Matrix and PackE4M3 fail where it has not.
	HasE4M3() bool
	// NewE4M3Matrix allocates a packed matrix of zeros with a scale for each E4M3Rows rows and each run of so many columns, an even number.
	NewE4M3Matrix(out, in, columns int) (Matrix, error)
	// PackE4M3 packs rows [row, row+n) from n × In numbers, with a scale for each row and run of columns, row-major. The rows of one group of E4M3Rows, which begins at a multiple of that, must have equal scales, also where
	// they are packed by several calls; scales must be finite, and of a magnitude of E4M3LeastScale at least. An error wraps ErrNotFinite where a number is none, or too large for bfloat16 with its scale: what the rows hold is
	// undefined then.
	PackE4M3(m Matrix, row, n int, codes []byte, scales []float32) error
}

// E4M3Rows is how many rows of a matrix in eight bits have a scale in common.
const E4M3Rows = 32

// E4M3LeastScale is the least magnitude of a scale with which no number but zero is below the normal ones of float32: those devices flush.
const E4M3LeastScale = 0x1p-117

// ErrNotFinite says that a value is not finite.
var ErrNotFinite = errors.New("a value is not finite")

// ScaleColumns is for how many columns a matrix in eight bits has a scale; 0 for any other matrix.
func ScaleColumns(m Matrix) int {
	if m, ok := m.(interface{ ScaleColumns() int }); ok {
		return m.ScaleColumns()
	}
	return 0
}

// E4M3Bytes is what a matrix in eight bits takes of a processor: a line of 64 bytes for every two elements of the inner axis of each E4M3Rows rows, and one for what their scale makes of the numbers.
func E4M3Bytes(out, in, columns int) int {
	const line = 64
	return (out + E4M3Rows - 1) / E4M3Rows * ((in+1)/2 + (in+columns-1)/columns) * line
}

// GroupedE4M3Bytes is what it takes of a GPU: each E4M3Rows rows as they are, filled up to 16 numbers, and their scales, filled up to 16 bytes.
func GroupedE4M3Bytes(out, in, columns int) int {
	return (out + E4M3Rows - 1) / E4M3Rows * (E4M3Rows*((in+15)/16*16) + ((in+columns-1)/columns+3)/4*16)
}
