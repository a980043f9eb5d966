package dry

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// ReserveScratch implements tensor.Scratcher.
func (Remote) ReserveScratch(int64) error { return nil }

// ReleaseScratch implements tensor.Scratcher.
func (Remote) ReleaseScratch() {}

// RowsInBlocks implements tensor.Scratcher.
func (r Remote) RowsInBlocks() bool { return r.Blocks }

// products notes what products take.
func (r Remote) products(stages ...[]tensor.Multiplication) error {
	bytes := tensor.ProductScratch(stages...)
	if r.Blocks {
		bytes += tensor.BlockScratch(stages...)
	}
	return r.takes(bytes)
}

// takes notes what an operation takes.
func (r Remote) takes(bytes int64) error {
	if r.Scratch != nil {
		*r.Scratch = max(*r.Scratch, bytes)
	}
	return nil
}

// MatMul implements tensor.Device.
func (r Remote) MatMul(y, x tensor.Tensor, w tensor.Matrix, accumulate bool) error {
	return r.MatMulGroups(y, x, []tensor.RowGroup{{To: x.Rows, Matrix: w}}, accumulate)
}

// MatMulTransposed implements tensor.Device.
func (r Remote) MatMulTransposed(dx, dy tensor.Tensor, w tensor.Matrix, accumulate bool) error {
	return r.MatMulGroups(dx, dy, []tensor.RowGroup{{To: dy.Rows, Matrix: w}}, accumulate)
}

// MatMulGroups implements tensor.Device.
func (r Remote) MatMulGroups(y, x tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return r.products([]tensor.Multiplication{{Y: y, X: x, Groups: groups, Accumulate: accumulate}})
}

// MatMulTransposedGroups implements tensor.Device.
func (r Remote) MatMulTransposedGroups(dx, dy tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return r.MatMulGroups(dx, dy, groups, accumulate)
}

// MatMuls implements tensor.Device.
func (r Remote) MatMuls(stages ...[]tensor.Multiplication) error {
	return r.products(stages...)
}

// MatMulRouted implements tensor.Device.
func (r Remote) MatMulRouted(_ tensor.Table, products ...tensor.RoutedProduct) error {
	return r.takes(tensor.RoutedScratch(products...))
}

// Attention implements tensor.Device: sequences of one row are those that long keys are cut into parts for.
func (r Remote) Attention(_, _, q tensor.Tensor, p tensor.Pages, _ int, runs []tensor.AttentionRun, queryHeads int, _ float32) error {
	keys := 0
	for _, run := range runs {
		if run.Count > 1 {
			return nil
		}
		if run.Window == 0 { // within one they are not cut
			keys = max(keys, run.First+run.Count)
		}
	}
	return r.takes(tensor.AttentionScratch(q.Rows, queryHeads, p.(pages).headDim, keys))
}

// AttentionBackward implements tensor.Device.
func (r Remote) AttentionBackward(_, _, _, _, _, _, q tensor.Tensor, _ tensor.Pages, _ int, _ []tensor.AttentionRun, queryHeads int, _ float32) error {
	return r.takes(tensor.AttentionBackwardScratch(q.Rows, queryHeads))
}
