package wire

import (
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// decodeTensor reads a dense or sparse tensor as a dense one; cells that a sparse tensor does not store are zero. field names it in errors. It may have *left elements, of which
// it takes its own.
func decodeTensor(field string, t *tinkerpb.Tensor, left *int64) (runs.Tensor, error) {
	size := 4
	switch t.GetDtype() {
	case tinkerpb.DType_DTYPE_FLOAT32:
	case tinkerpb.DType_DTYPE_INT64:
		size = 8
	default:
		return runs.Tensor{}, fieldErrorf(field, "dtype %s is not one of DTYPE_FLOAT32, DTYPE_INT64", t.GetDtype())
	}
	data, shape := t.GetDense(), t.GetShape()
	sparse := t.GetSparseCsr()
	if sparse != nil {
		data = sparse.GetValues()
	}
	if len(data)%size != 0 {
		return runs.Tensor{}, fieldErrorf(field, "%d bytes are not a multiple of the element size %d", len(data), size)
	}
	if sparse == nil && len(shape) == 0 {
		shape = []int64{int64(len(data) / size)}
	}
	n, err := elements(field, shape)
	if err != nil {
		return runs.Tensor{}, err
	}
	if *left -= n; *left < 0 {
		return runs.Tensor{}, fieldErrorf("data", "the tensors have more than %d elements in all", maxElements)
	}
	out := runs.Tensor{Shape: make([]int, len(shape))}
	for i, d := range shape {
		out.Shape[i] = int(d)
	}
	if size == 8 {
		out.Ints = int64s(data)
	} else {
		out.Floats = float32s(data)
	}
	if sparse == nil {
		if n != int64(len(data)/size) {
			return runs.Tensor{}, fieldErrorf(field, "%d elements do not fill shape %v", len(data)/size, shape)
		}
		return out, nil
	}
	if len(shape) != 2 {
		return runs.Tensor{}, fieldErrorf(field, "a sparse tensor needs a shape of two dimensions, not %v", shape)
	}
	if len(sparse.GetCrowIndices())%8 != 0 || len(sparse.GetColIndices())%8 != 0 {
		return runs.Tensor{}, fieldErrorf(field, "sparse indices are not whole 64-bit integers")
	}
	crow, col := int64s(sparse.GetCrowIndices()), int64s(sparse.GetColIndices())
	ints, floats := out.Ints, out.Floats
	if size == 8 {
		out.Ints = make([]int64, n)
	} else {
		out.Floats = make([]float32, n)
	}
	err = sparseRows(field, shape[0], shape[1], crow, col, len(data)/size, func(value int, cell int64) {
		if size == 8 {
			out.Ints[cell] = ints[value]
		} else {
			out.Floats[cell] = floats[value]
		}
	})
	return out, err
}

// sparseBytes is what the sparse tensors of a request take that are made dense, as far as they are allowed.
func sparseBytes(data []*tinkerpb.Datum) int64 {
	total := int64(0)
	for _, d := range data {
		for _, t := range d.GetLossFnInputs() {
			if t.GetSparseCsr() == nil {
				continue
			}
			n, err := elements("", t.GetShape())
			if err != nil {
				continue // it is refused
			}
			total = min(total+n, maxElements)
		}
	}
	return 8 * total
}
