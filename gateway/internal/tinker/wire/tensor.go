package wire

import (
	"math"

	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// maxElements bounds a decoded tensor: a sparse one can name a shape far larger than its bytes.
const maxElements = 16 << 20

// array is a decoded tensor of one datum: dense, row-major, of either type.
type array struct {
	shape  []int64
	floats []float32 // one of the two is set
	ints   []int64
	isInt  bool
}

// decodeTensor reads a dense or sparse tensor. field names it in errors.
func decodeTensor(field string, t *tinkerpb.Tensor) (array, error) {
	switch t.GetDtype() {
	case tinkerpb.DType_DTYPE_FLOAT32, tinkerpb.DType_DTYPE_INT64:
	default:
		return array{}, fieldError(field, "dtype %s is not one of DTYPE_FLOAT32, DTYPE_INT64", t.GetDtype())
	}
	isInt := t.GetDtype() == tinkerpb.DType_DTYPE_INT64
	size := 4
	if isInt {
		size = 8
	}
	if sparse := t.GetSparseCsr(); sparse != nil {
		return decodeSparse(field, t.GetShape(), sparse, isInt)
	}
	data := t.GetDense()
	if len(data)%size != 0 {
		return array{}, fieldError(field, "%d bytes are not a multiple of the element size %d", len(data), size)
	}
	shape := t.GetShape()
	if len(shape) == 0 {
		shape = []int64{int64(len(data) / size)}
	}
	n, err := elements(field, shape, maxElements)
	if err != nil {
		return array{}, err
	}
	if n != int64(len(data)/size) {
		return array{}, fieldError(field, "%d elements do not fill shape %v", len(data)/size, shape)
	}
	a := array{shape: shape, isInt: isInt}
	if isInt {
		a.ints = int64s(data)
	} else {
		a.floats = float32s(data)
	}
	return a, nil
}

// decodeSparse fills a dense array from compressed sparse rows; cells that are not stored are zero.
func decodeSparse(field string, shape []int64, s *tinkerpb.SparseCsr, isInt bool) (array, error) {
	size := 4
	if isInt {
		size = 8
	}
	if len(shape) != 2 {
		return array{}, fieldError(field, "a sparse tensor needs a shape of two dimensions, not %v", shape)
	}
	n, err := elements(field, shape, maxElements)
	if err != nil {
		return array{}, err
	}
	if len(s.GetCrowIndices())%8 != 0 || len(s.GetColIndices())%8 != 0 || len(s.GetValues())%size != 0 {
		return array{}, fieldError(field, "sparse values or indices are not whole elements")
	}
	crow, col := int64s(s.GetCrowIndices()), int64s(s.GetColIndices())
	count := len(s.GetValues()) / size
	if int64(len(crow)) != shape[0]+1 || len(col) != count {
		return array{}, fieldError(field, "%d row offsets and %d columns do not fit %d rows and %d values", len(crow), len(col), shape[0], count)
	}
	if crow[0] != 0 || crow[len(crow)-1] != int64(count) {
		return array{}, fieldError(field, "row offsets must run from 0 to %d", count)
	}
	a := array{shape: shape, isInt: isInt}
	var ints []int64
	var floats []float32
	if isInt {
		ints, a.ints = int64s(s.GetValues()), make([]int64, n)
	} else {
		floats, a.floats = float32s(s.GetValues()), make([]float32, n)
	}
	for r := range shape[0] {
		if crow[r] > crow[r+1] || crow[r+1] > int64(count) {
			return array{}, fieldError(field, "row offsets must not fall")
		}
		for i := crow[r]; i < crow[r+1]; i++ {
			c := col[i]
			if c < 0 || c >= shape[1] {
				return array{}, fieldError(field, "column %d is not in 0…%d", c, shape[1]-1)
			}
			if i > crow[r] && c <= col[i-1] {
				return array{}, fieldError(field, "columns of row %d must rise", r)
			}
			if isInt {
				a.ints[r*shape[1]+c] = ints[i]
			} else {
				a.floats[r*shape[1]+c] = floats[i]
			}
		}
	}
	return a, nil
}

// asFloats gives the elements as float32; integers are converted, since users pass integer weights and advantages. Values must be finite.
func (a array) asFloats(field string) ([]float32, error) {
	if a.isInt {
		out := make([]float32, len(a.ints))
		for i, v := range a.ints {
			out[i] = float32(v)
		}
		return out, nil
	}
	for i, v := range a.floats {
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, fieldError(indexed(field+"[%d]", i), "NonFiniteInTensor: %v is not a finite number", v)
		}
	}
	return a.floats, nil
}

// asTokens gives the elements as token ids.
func (a array) asTokens(field string) ([]int32, error) {
	if !a.isInt {
		return nil, fieldError(field, "dtype float32 where int64 token ids are needed")
	}
	out := make([]int32, len(a.ints))
	for i, v := range a.ints {
		if v < 0 || v > math.MaxInt32 {
			return nil, fieldError(indexed(field+"[%d]", i), "%d is not a token id", v)
		}
		out[i] = int32(v)
	}
	return out, nil
}
