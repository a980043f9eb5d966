package tensor

import "slices"

// Scratcher is implemented by devices whose operations take memory beside that of their arguments while they run: rows that products with bfloat16 matrices round before, and intermediate results of attention.
type Scratcher interface {
	// ReserveScratch has so many bytes ready at least until ReleaseScratch, in one piece: operations that take no more at once, see ProductScratch, RoutedScratch and AttentionScratch, allocate nothing. For more, and without it, they take memory
	// as they need it; where there is none products do without, with equal bits. An error wraps ErrMemory.
	ReserveScratch(bytes int64) error
	// ReleaseScratch gives that memory back to the device, for whatever it is asked for next.
	ReleaseScratch()
	// RowsInBlocks says whether products of many rows with large bfloat16 matrices have these in blocks of 64 × 64 first: they take BlockScratch beside ProductScratch.
	RowsInBlocks() bool
}

const scratchUnit = 512 // bytes that scratch memory is given in

func inScratchUnits(bytes int64) int64 { return (bytes + scratchUnit - 1) / scratchUnit * scratchUnit }

// ProductScratch is the most memory that MatMuls of these arguments takes at once on a Scratcher, or MatMulGroups or MatMul of one of them. Only shapes and types are looked at: the rows of x, beside those of a product of the
// next stage that is added to the same y, which may be rounded while the first's are there; and all rows of a stage's products whose groups have few rows or few columns, which may be done together. Of a product of many rows with a matrix in eight bits, parts of that in bfloat16 as well.
// Where rows lie in blocks BlockScratch comes to it.
func ProductScratch(stages ...[]Multiplication) int64 {
	var most int64
	for i, products := range stages {
		var together int64
		for k, p := range products {
			if few(p) && !slices.ContainsFunc(products[:k], func(q Multiplication) bool { return few(q) && q.X == p.X }) {
				together += rowBytes(p)
			}
			var beside int64
			if i+1 < len(stages) {
				for _, q := range stages[i+1] {
					if q.Accumulate && q.Y == p.Y {
						beside = max(beside, rowBytes(q))
					}
				}
			}
			most = max(most, rowBytes(p)+max(beside, expandedBytes(p)))
		}
		most = max(most, together)
	}
	return most
}

// BlockScratch is the most memory that MatMuls of these arguments takes at once for rows in blocks, on a Scratcher that has RowsInBlocks; MatMulsAdd and MatMulsGated likewise, with all rows of the second stage, which may be rounded beside
// them.
func BlockScratch(stages ...[]Multiplication) int64 {
	var most int64
	for i, products := range stages {
		for _, p := range products {
			bytes := blockBytes(p)
			if bytes > 0 && i+1 < len(stages) {
				for _, q := range stages[i+1] {
					bytes += rowBytes(q)
				}
			}
			most = max(most, bytes)
		}
	}
	return most
}

// blockBytes is what the rows of a product take in blocks; 0 if it is not one of many rows with a matrix in blocks.
func blockBytes(p Multiplication) int64 {
	const side, tile = 64, 128
	if len(p.Groups) != 1 {
		return 0
	}
	g := p.Groups[0]
	if m := g.Matrix; m.DType() != BFloat16 || ScaleColumns(m) != 0 || m.Out()%side != 0 || m.In()%side != 0 || g.To-g.From < tile {
		return 0
	}
	return inScratchUnits(int64((p.X.Rows+tile-1)/tile*tile) * int64(p.X.Cols) * int64(BFloat16.Size()))
}

// RoutedScratch is the most memory that MatMulRouted of these products takes at once on a Scratcher: the rows of each x once.
func RoutedScratch(products ...RoutedProduct) (bytes int64) {
	for i, p := range products {
		if slices.ContainsFunc(products[:i], func(q RoutedProduct) bool { return q.X == p.X }) {
			continue
		}
		if slices.ContainsFunc(p.Groups, func(g RoutedGroup) bool { return g.Stack.Matrix.DType() == BFloat16 }) {
			bytes += roundedBytes(p.X)
		}
	}
	return bytes
}

// few says whether a product has few rows for each of its matrices, or all of these few columns.
func few(p Multiplication) bool {
	const many = 128
	columns := func(g RowGroup) int {
		if p.Transposed {
			return g.Matrix.In()
		}
		return g.Matrix.Out()
	}
	return !slices.ContainsFunc(p.Groups, func(g RowGroup) bool { return g.To-g.From >= many }) || !slices.ContainsFunc(p.Groups, func(g RowGroup) bool { return columns(g) >= many })
}

// expandedBytes is what a product of many rows takes that expands parts of its matrix in eight bits before. Some devices do so from 512 rows on only.
func expandedBytes(p Multiplication) int64 {
	const rows, most = 256, 64 << 20
	if len(p.Groups) != 1 || p.Groups[0].To-p.Groups[0].From < rows || ScaleColumns(p.Groups[0].Matrix) == 0 {
		return 0
	}
	m := p.Groups[0].Matrix
	return min(most, inScratchUnits(int64(MatrixBytes(BFloat16, m.Out(), m.In()))))
}

// rowBytes is what the rows of one product take: none where no matrix is bfloat16.
func rowBytes(p Multiplication) int64 {
	if !slices.ContainsFunc(p.Groups, func(g RowGroup) bool { return g.Matrix.DType() == BFloat16 }) {
		return 0
	}
	return roundedBytes(p.X)
}

// roundedBytes is what rows take that are rounded: none where they are bfloat16 at multiples of 16 bytes.
func roundedBytes(x Tensor) int64 {
	const chunk = 8 // elements that rows are filled up to
	if x.DType == BFloat16 && x.Offset%chunk == 0 && x.Stride%chunk == 0 {
		return 0
	}
	return inScratchUnits(int64(x.Rows) * int64((x.Cols+chunk-1)/chunk*chunk) * int64(BFloat16.Size()))
}

// AttentionScratch is the most memory that Attention over so many rows takes at once on a Scratcher, where all sequences have few rows and the longest so many keys: what each part of the keys gives for each row and head.
func AttentionScratch(rows, queryHeads, headDim, keys int) int64 {
	const restart = 2048 // keys of a part
	parts := int64((keys + restart - 1) / restart)
	if parts <= 1 {
		return 0
	}
	return inScratchUnits(int64(rows) * int64(queryHeads) * parts * int64(headDim+2) * int64(Float32.Size()))
}

// AttentionBackwardScratch is what AttentionBackward over so many rows takes on a Scratcher: a number for each row and head.
func AttentionBackwardScratch(rows, queryHeads int) int64 {
	return inScratchUnits(int64(rows) * int64(queryHeads) * int64(Float32.Size()))
}

// ConvBackwardScratch is what ConvBackward of so many columns takes on a Scratcher: of what is cut after every 64 rows, the rows behind that see those before.
func ConvBackwardScratch(cols, width int, runs []StateRun) int64 {
	const rows = 64
	edges := 0
	for _, r := range runs {
		edges += max(r.Count-1, 0) / rows
	}
	return inScratchUnits(int64(edges) * int64(width-1) * int64(cols) * int64(Float32.Size()))
}

// DeltaBackwardScratch is what DeltaRuleBackward of such runs takes on a Scratcher: what belongs to each of 32 chunks at most, of 32 rows, and for the longest sequence, if it has more, a state for each 32 of its chunks and one more.
func DeltaBackwardScratch(in *DeltaInputs, runs []StateRun) int64 {
	const rows, most, gates = 32, 32, 160
	chunks, spans := 0, 0
	for _, r := range runs {
		n := (r.Count + rows - 1) / rows
		chunks += n
		if n > most {
			spans = max(spans, (n+most-1)/most+1)
		}
	}
	perHead := 2*in.KeyDim*in.ValueDim + rows*(2*in.ValueDim+in.KeyDim) + gates
	each := int64(in.ValueHeads)*int64(perHead) + int64(rows*in.KeyHeads)*int64(2*in.KeyDim)
	return inScratchUnits((int64(min(chunks, most))*each + int64(spans)*int64(in.StateSize())) * int64(Float32.Size()))
}
