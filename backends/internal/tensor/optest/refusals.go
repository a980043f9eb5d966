package optest

import (
	"math"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// refusals checks that arguments that do not fit are errors, never a panic and never a crash.
func refusals(t *testing.T, d tensor.Device) {
	h := start(t, d)
	zeros := func(rows, cols int) tensor.Tensor { return h.tensor(rows, cols, make([]float32, rows*cols)) }
	a, b, row, column := zeros(4, 6), zeros(4, 7), zeros(1, 6), zeros(4, 1)
	m := h.matrix(tensor.Float32, 7, 6, make([]float32, 42))
	freed, err := d.Alloc(tensor.Float32, 4, 6)
	h.ok(err)
	gone := freed
	d.Free(freed)
	wild := a
	wild.Rows = 5
	huge := a
	huge.Rows, huge.Stride = math.MaxInt, math.MaxInt/2
	negative := a
	negative.Offset = -1
	half, err := d.Alloc(tensor.BFloat16, 4, 6)
	h.ok(err)
	t.Cleanup(func() { d.Free(half) })
	pages, err := d.NewPages(tensor.Float32, 1, 2, 1, 6)
	h.ok(err)
	t.Cleanup(pages.Free)
	adam := tensor.AdamWStep{LearningRate: 1, Beta1: 0.9, Beta2: 0.9, Eps: 1e-8, Step: 1}
	wrong := func(change func(*tensor.AdamWStep)) tensor.AdamWStep { s := adam; change(&s); return s }
	update := func(g tensor.Tensor, s tensor.AdamWStep) tensor.AdamWUpdate {
		return tensor.AdamWUpdate{NewP: a, NewM: a, NewV: a, P: a, M: a, V: a, G: g, AdamWStep: s}
	}
	withPieces := func(u tensor.AdamWUpdate, n int) tensor.AdamWUpdate { u.Pieces = make([]float64, n); return u }
	adamW := func(second tensor.AdamWUpdate) error {
		_, err := d.AdamW(update(a, adam), second)
		return err
	}
	one := []tensor.AttentionRun{{Count: 4, Pages: []int32{0}}}
	other := h.matrix(tensor.Float32, 7, 5, make([]float32, 35))
	short := h.matrix(tensor.Float32, 6, 6, make([]float32, 36))
	half7 := h.matrix(tensor.BFloat16, 7, 6, make([]float32, 42))
	copied := func(j tensor.MatrixCopy) error {
		finish, err := d.StartCopies([]tensor.MatrixCopy{{Dst: m, Src: m}, j})
		if err == nil {
			h.ok(finish())
		}
		return err
	}
	_, discardErr := pages.Discard(1, 2)
	_, sumErr := d.SumSquares(a, half)
	_, allocErr := d.Alloc(tensor.Float32, math.MaxInt/2, 3)
	_, negativeErr := d.Alloc(tensor.Float32, -1, 3)
	_, typeErr := d.Alloc(tensor.DType(9), 1, 3)
	_, matrixErr := d.NewMatrix(tensor.BFloat16, math.MaxInt, math.MaxInt)
	_, pagesErr := d.NewPages(tensor.Float32, 1, math.MaxInt32, 1<<40, 128)
	for name, err := range map[string]error{
		"freed":                   d.Zero(gone),
		"beyond the buffer":       d.Zero(wild),
		"size overflows":          d.Zero(huge),
		"negative offset":         d.Zero(negative),
		"no buffer":               d.Zero(tensor.Tensor{Rows: 1, Cols: 1, Stride: 1, DType: tensor.Float32}),
		"no type":                 d.Zero(tensor.Tensor{Buffer: a.Buffer, Rows: 1, Cols: 1, Stride: 1}),
		"upload length":           d.Upload(a, make([]float32, 23)),
		"download length":         d.Download(make([]float32, 25), a),
		"download rows apart":     d.DownloadRows(make([]float32, 24), 5, a),
		"download rows length":    d.DownloadRows(make([]float32, 26), 7, a),
		"download rows type":      d.DownloadRows(make([]float32, 24), 6, half),
		"discard beyond the end":  discardErr,
		"alloc overflows":         allocErr,
		"alloc negative":          negativeErr,
		"alloc type":              typeErr,
		"matrix overflows":        matrixErr,
		"pages overflow":          pagesErr,
		"pack source":             d.PackRows(m, 0, 1, "F64", make([]byte, 48)),
		"pack rows":               d.PackRows(m, 6, 2, "F32", make([]byte, 48)),
		"pack length":             d.PackRows(m, 0, 1, "F32", make([]byte, 23)),
		"repack shape":            repack(d, m, a),
		"copy width":              copied(tensor.MatrixCopy{Dst: m, Src: other}),
		"copy type":               copied(tensor.MatrixCopy{Dst: m, Src: half7}),
		"copy too many rows":      copied(tensor.MatrixCopy{Dst: short, Src: m}),
		"copy to a row within":    copied(tensor.MatrixCopy{Dst: m, Row: 1, Src: short}),
		"copy short of the end":   copied(tensor.MatrixCopy{Dst: m, Src: short}),
		"copy beyond the end":     copied(tensor.MatrixCopy{Dst: m, Row: 64, Src: short}),
		"copy negative row":       copied(tensor.MatrixCopy{Dst: m, Row: -64, Src: m}),
		"copy no matrix":          copied(tensor.MatrixCopy{Dst: m}),
		"gather id":               d.GatherRows(row, m, []int32{7}),
		"gather below none":       d.GatherRows(row, m, []int32{-2}),
		"gather count":            d.GatherRows(row, m, []int32{1, 2}),
		"elements count":          d.GatherElements(row, a, make([]tensor.Element, 5)),
		"elements beyond rows":    d.GatherElements(row.Columns(0, 1), a, []tensor.Element{{Row: 4}}),
		"elements negative row":   d.GatherElements(row.Columns(0, 1), a, []tensor.Element{{Row: -1}}),
		"elements column":         d.GatherElements(row.Columns(0, 1), a, []tensor.Element{{Column: 6}}),
		"elements below none":     d.GatherElements(row.Columns(0, 1), a, []tensor.Element{{Column: -2}}),
		"elements type":           d.GatherElements(row.Columns(0, 1), half, make([]tensor.Element, 1)),
		"matmul shape":            d.MatMul(a, b, m, false),
		"matmul type":             d.MatMul(b, half, m, false),
		"matmul no matrix":        d.MatMul(b, a, nil, false),
		"matmul transposed shape": d.MatMulTransposed(b, a, m, false),
		"outer product shape":     d.OuterProduct(zeros(6, 6), a, b),
		"groups rows":             d.MatMulGroups(b, a, []tensor.RowGroup{{From: 3, To: 5, Matrix: m}}, false),
		"groups row twice":        d.MatMulGroups(b, a, []tensor.RowGroup{{From: 0, To: 2, Matrix: m}, {From: 1, To: 3, Matrix: m}}, false),
		"groups columns":          d.MatMulGroups(a, a, []tensor.RowGroup{{From: 0, To: 1, Matrix: m}}, false),
		"groups round":            d.MatMulGroups(b, a, []tensor.RowGroup{{From: 0, To: 1, Matrix: m, Factor: 2}}, false),
		"groups no matrix":        d.MatMulGroups(b, a, []tensor.RowGroup{{From: 0, To: 1}}, false),
		"groups type":             d.MatMulGroups(b, half, []tensor.RowGroup{{From: 0, To: 1, Matrix: m}}, false),
		"matmuls rows":            d.MatMuls([]tensor.Multiplication{{Y: b, X: a, Groups: []tensor.RowGroup{{From: 3, To: 5, Matrix: m}}}}),
		"matmuls columns":         d.MatMuls([]tensor.Multiplication{{Y: b, X: a, Groups: []tensor.RowGroup{{From: 0, To: 1, Matrix: m}}}, {Y: a, X: a, Groups: []tensor.RowGroup{{From: 0, To: 1, Matrix: m}}}}),
		"matmuls transposed":      d.MatMuls([]tensor.Multiplication{{Y: b, X: a, Groups: []tensor.RowGroup{{From: 0, To: 1, Matrix: m}}, Transposed: true}}),
		"transposed groups":       d.MatMulTransposedGroups(b, a, []tensor.RowGroup{{From: 0, To: 1, Matrix: m}}, false),
		"outer products shape":    d.OuterProducts([]tensor.OuterProduct{{G: zeros(6, 6), A: a, B: b}}),
		"outer product first":     d.OuterProducts([]tensor.OuterProduct{{G: row, A: column.Slice(0, 0), B: a.Slice(0, 0), First: true}}),
		"outer product apart":     d.OuterProducts([]tensor.OuterProduct{{G: row, A: column, B: a, Apart: a.Rows + 1}}),
		"outer product all apart": d.OuterProducts([]tensor.OuterProduct{{G: row, A: column, B: a, First: true, Apart: a.Rows}}),
		"outer products same":     d.OuterProducts([]tensor.OuterProduct{{G: row, A: column, B: a}, {G: row, A: column, B: a}}),
		"round shape":             d.Round(half, b),
		"add shape":               d.Add(a, b),
		"add type":                d.Add(half, a),
		"add row shape":           d.AddRow(b, row),
		"scale type":              d.Scale(a, 1, tensor.DType(0)),
		"norm weight":             d.RMSNorm(b, b, row, 1e-6),
		"norm backward shape":     d.RMSNormBackward(a, a, b, row, 1e-6, false),
		"rope heads":              d.Rope(a, []int32{0, 0, 0, 0}, zeros(2, 2), 4, false),
		"rope no heads":           d.Rope(a, []int32{0, 0, 0, 0}, zeros(2, 2), 0, false),
		"rope table":              d.Rope(a, []int32{0, 0, 0, 0}, zeros(2, 4), 2, false),
		"rope position":           d.Rope(a, []int32{0, 0, 2, 0}, zeros(2, 2), 2, false),
		"rope positions":          d.Rope(a, []int32{0}, zeros(2, 2), 2, false),
		"swiglu shape":            d.SwiGLU(a, a, b),
		"swiglu backward shape":   d.SwiGLUBackward(a, a, a, a, b),
		"log-sum-exp shape":       d.LogSumExp(row, a),
		"softmax shape":           d.Softmax(a, b, column),
		"gradient target":         d.SoftmaxGradient(a, column, []int32{0, 0, 6, 0}, make([]float32, 4)),
		"gradient targets":        d.SoftmaxGradient(a, column, []int32{0}, make([]float32, 1)),
		"gradient coefficients":   d.SoftmaxGradient(a, column, make([]int32, 4), make([]float32, 8)),
		"sum of squares type":     sumErr,
		"adamw shape":             adamW(update(b, adam)),
		"adamw step":              adamW(update(a, wrong(func(s *tensor.AdamWStep) { s.Step = 0 }))),
		"adamw beta":              adamW(update(a, wrong(func(s *tensor.AdamWStep) { s.Beta1 = 1 }))),
		"adamw beta NaN":          adamW(update(a, wrong(func(s *tensor.AdamWStep) { s.Beta2 = math.NaN() }))),
		"adamw pieces":            adamW(withPieces(update(a, adam), 3)),
		"adamw norm":              adamW(update(a, wrong(func(s *tensor.AdamWStep) { s.MaxNorm = math.NaN() }))),
		"zero page":               pages.Zero(2),
		"copy to no page":         pages.Copy(2, 0),
		"copy from no page":       pages.Copy(0, -1),
		"write layer":             d.WritePages(pages, 1, a, a, one),
		"write shape":             d.WritePages(pages, 0, b, b, one),
		"write rows":              d.WritePages(pages, 0, a, a, []tensor.AttentionRun{{Count: 5, Pages: []int32{0}}}),
		"write page":              d.WritePages(pages, 0, a, a, []tensor.AttentionRun{{Count: 4, Pages: []int32{2}}}),
		"write too few pages":     d.WritePages(pages, 0, a, a, []tensor.AttentionRun{{Count: 4, First: 61, Pages: []int32{0}}}),
		"write rows twice":        d.WritePages(pages, 0, a, a, []tensor.AttentionRun{{Count: 2, Pages: []int32{0}}, {Row: 1, Count: 2, Pages: []int32{1}}}),
		"attention heads":         d.Attention(a, tensor.Tensor{}, a, pages, 0, one, 0, 1),
		"attention shape":         d.Attention(b, tensor.Tensor{}, a, pages, 0, one, 1, 1),
		"attention lse":           d.Attention(a, row, a, pages, 0, one, 1, 1),
		"attention pages":         d.Attention(a, column, a, nil, 0, one, 1, 1),
		"backward rows":           d.AttentionBackward(a, a, a, a, a, column, a, pages, 0, []tensor.AttentionRun{{Count: 4, Pages: []int32{0}, RowsFrom: 1, RowsTo: 4}}, 1, 1),
		"backward keys":           d.AttentionBackward(a, a, a, a, a, column, a, pages, 0, []tensor.AttentionRun{{Count: 4, Pages: []int32{0}, KeysFrom: 1, KeysTo: 4}}, 1, 1),
		"backward position":       d.AttentionBackward(a, a, a, a, a, column, a, pages, 0, []tensor.AttentionRun{{Count: 4, First: 1, Pages: []int32{0}}}, 1, 1),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
